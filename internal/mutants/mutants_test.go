package mutants

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutant breaks one guard.
type mutant struct {
	name string // what is broken
	file string // from the module's root
	// old is in the file exactly once, and is replaced by new.
	old, new string
	// pkg is the folder of the tests that must fail, run the expression that selects them.
	pkg, run string
}

// mutants are all of them.
func mutants() []mutant {
	var all []mutant
	for _, some := range [][]mutant{walMutants, commitMutants, writerMutants, garbageMutants, readMutants, authMutants, troubleMutants, clientMutants} {
		all = append(all, some...)
	}
	return all
}

// mutate returns the file of a mutant as it is and as it is broken.
func (m *mutant) mutate(t *testing.T, root string) (path, broken string) {
	t.Helper()
	path = filepath.Join(root, m.file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), m.old), "%s: the text to change is in %s not once", m.name, m.file)
	require.NotEqual(t, m.old, m.new, m.name)
	return path, strings.Replace(string(text), m.old, m.new, 1)
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "go.mod"))
	return root
}

// Each change fits the source as it is, so that the list does not rot.
func TestMutantsFit(t *testing.T) {
	root := moduleRoot(t)
	seen := make(map[string]bool)
	for _, m := range mutants() {
		m.mutate(t, root)
		require.False(t, seen[m.name], "two mutants are called %q", m.name)
		seen[m.name] = true
		_, err := regexp.Compile(m.run)
		require.NoError(t, err, m.name)
		require.DirExists(t, filepath.Join(root, m.pkg), m.name)
	}
	require.GreaterOrEqual(t, len(seen), 24)
}

// Each mutant compiles, and the tests that pass without it fail with it.
func TestMutantsAreCaught(t *testing.T) {
	which := os.Getenv("ANNALS_MUTANTS")
	switch which {
	case "":
		t.Skip("set ANNALS_MUTANTS=all to make and test all mutants: some minutes")
	case "all":
		which = ""
	}
	chosen := regexp.MustCompile(which)
	l := &laboratory{root: moduleRoot(t), dir: t.TempDir(), sound: make(map[string]string), passed: make(map[string]bool)}
	for _, m := range mutants() {
		if chosen.MatchString(m.name) {
			t.Run(m.name, func(t *testing.T) { l.try(t, &m) })
		}
	}
}

// laboratory makes mutants and runs tests on them.
type laboratory struct {
	root   string
	dir    string            // for the binaries of sound
	sound  map[string]string // binaries of tests without a mutant, by package
	passed map[string]bool   // tests that were seen to pass without one
}

// try requires that a mutant is caught.
func (l *laboratory) try(t *testing.T, m *mutant) {
	l.baseline(t, m)
	dir := t.TempDir()
	path, text := m.mutate(t, l.root)
	broken := filepath.Join(dir, filepath.Base(path))
	require.NoError(t, os.WriteFile(broken, []byte(text), 0o600))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {path: broken}})
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, list, 0o600))
	out, ok := l.run(l.compile(t, dir, m.pkg, "-overlay", overlay), m)
	if ok {
		t.Fatalf("survives: %s in %s passes although %s is changed", m.run, m.pkg, m.file)
	}
	t.Logf("caught by %s: %s", m.pkg, firstFailure(out))
}

// baseline requires that a mutant's tests pass without it.
func (l *laboratory) baseline(t *testing.T, m *mutant) {
	key := m.pkg + " " + m.run
	if l.passed[key] {
		return
	}
	if l.sound[m.pkg] == "" {
		dir := filepath.Join(l.dir, strings.ReplaceAll(m.pkg, "/", "-"))
		require.NoError(t, os.Mkdir(dir, 0o700))
		l.sound[m.pkg] = l.compile(t, dir, m.pkg)
	}
	out, ok := l.run(l.sound[m.pkg], m)
	require.True(t, ok, "without it, %s in %s fails:\n%s", m.run, m.pkg, out)
	require.Contains(t, out, "=== RUN", "%s selects no test of %s", m.run, m.pkg)
	l.passed[key] = true
}

// compile makes the binary of a package's tests in a folder.
func (l *laboratory) compile(t *testing.T, dir, pkg string, flags ...string) string {
	t.Helper()
	binary := filepath.Join(dir, "tests")
	args := append([]string{"test", "-c", "-ldflags", "-s -w", "-o", binary}, flags...) // links faster
	cmd := exec.Command("go", append(args, "./"+pkg)...)
	cmd.Dir = l.root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "it does not compile:\n%s", out)
	return binary
}

// run runs a mutant's tests and reports whether all passed. A test that hangs has failed.
func (l *laboratory) run(binary string, m *mutant) (out string, ok bool) {
	cmd := exec.Command(binary, "-test.run", m.run, "-test.v", "-test.short", "-test.failfast", "-test.timeout", "60s")
	cmd.Dir = filepath.Join(l.root, m.pkg)
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	err := cmd.Run()
	return buf.String(), err == nil
}

// firstFailure is the line that says what failed first.
func firstFailure(out string) string {
	for _, mark := range []string{"--- FAIL: ", "panic: "} {
		for line := range strings.Lines(out) {
			if strings.Contains(line, mark) {
				return strings.TrimSpace(line)
			}
		}
	}
	return "it failed"
}
