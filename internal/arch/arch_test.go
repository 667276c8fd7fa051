package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/annalsdb/annals"

// A rule says which packages of the module one package may import.
type rule struct {
	imports []string
	// tests is what its test files may import beyond imports, testPackages and
	// the package itself.
	tests []string
}

// testPackages are the stores, and what breaks and checks them, that every
// package's tests may import.
var testPackages = []string{"objstore", "objstore/mem", "objstore/dir", "objstore/fault", "objstore/storetest", "objstore/s3/s3fake", "objstore/s3/s3server"}

// everything stands for all packages.
const everything = "*"

// table is the package table of docs/ARCHITECTURE.md: the storage formats know
// nothing of one another, the engine puts them together, and nothing below the
// server knows of HTTP. A new package needs a line here, and a reason.
var table = map[string]rule{
	"internal/base": {},
	"internal/arch": {},
	// Processes that tests start, kill and pause.
	"internal/child": {},
	// Files that are replaced while the process runs.
	"internal/reload": {},
	// Runs every fuzz target; it knows none of the packages.
	"internal/fuzzall": {},
	// Breaks the guards of the others, as text.
	"internal/mutants": {},

	// What the others tell of what they do; it knows none of them.
	"trace": {},

	"objstore":           {},
	"objstore/mem":       {imports: []string{"objstore"}},
	"objstore/dir":       {imports: []string{"objstore"}},
	"objstore/s3":        {imports: []string{"objstore"}},
	"objstore/s3/s3fake": {imports: []string{"objstore"}},
	// Starts a real server; a store on it is made by whoever tests with it.
	"objstore/s3/s3server": {imports: []string{"internal/child"}, tests: []string{"objstore/s3"}},
	"objstore/fault":       {imports: []string{"objstore"}},
	"objstore/storetest":   {imports: []string{"objstore"}},
	// Counts what the process asks of its store, for the server to show.
	"objstore/metered": {imports: []string{"objstore", "trace"}, tests: []string{"objstore/s3"}},
	// Makes any store as slow as S3, for benchmarks.
	"objstore/s3sim": {imports: []string{"objstore"}, tests: []string{"objstore/metered", "objstore/s3"}},

	"memtable": {imports: []string{"internal/base"}},
	"sst":      {imports: []string{"internal/base"}},
	"wal":      {imports: []string{"internal/base", "objstore", "trace"}},
	"manifest": {imports: []string{"internal/base", "objstore", "trace"}},

	"compaction": {imports: []string{"internal/base", "objstore", "sst", "manifest"}},

	"engine": {
		imports: []string{"internal/base", "objstore", "memtable", "sst", "wal", "manifest", "compaction", "state", "trace"},
		tests:   []string{"objstore/metered", "objstore/s3sim"},
	},

	"state": {imports: []string{"internal/base"}},

	// The only one that knows of OpenTelemetry: it makes traces of what the others tell.
	"telemetry": {imports: []string{"trace"}, tests: []string{"engine", "objstore/metered", "server"}},

	"wire": {},
	// Tokens, for any server: nothing of HTTP, nothing of logs.
	"auth":   {imports: []string{"internal/reload"}},
	"server": {imports: []string{"internal/base", "objstore", "objstore/metered", "auth", "engine", "internal/reload", "server/ui", "trace", "wire"}, tests: []string{"client", "wal"}},
	// The page of a server. Its tests drive a real browser on a real server.
	"server/ui": {tests: []string{"auth", "engine", "server"}},
	"client":    {imports: []string{"wire"}, tests: []string{"engine", "server"}},

	// Measures the whole, embedded and over HTTP; the command only defines its flags.
	"bench": {imports: []string{"internal/base", "objstore", "objstore/metered", "objstore/s3sim", "engine", "server", "client", "compaction", "sst", "manifest", "wire", "wal", "bench/crowd"}},
	// Many followers of any server, over HTTP by hand.
	"bench/crowd": {tests: []string{"engine", "server", "wire"}},

	"cmd/annals": {imports: []string{everything}},

	"fuzz": {imports: []string{"internal/base", "objstore", "memtable", "sst", "wal", "manifest", "compaction", "engine", "state"}},
	// Judges what clients of any server saw: it knows nothing of the code that it judges.
	"fuzz/history": {},
	// Drives the built program, over HTTP.
	"fuzz/process": {tests: []string{"client", "engine", "fuzz/history", "internal/child", "objstore/s3", "wire"}},
}

// libraries that only some packages may import, whatever the file. The packages
// of a nil list are test files everywhere and testing packages.
var libraries = map[string][]string{
	"github.com/aws/":                    {"objstore/s3"},
	"github.com/spf13/":                  {"cmd/annals"},
	"github.com/prometheus/":             {"server"},
	"go.yaml.in/yaml/":                   {"auth", "cmd/annals"},
	"github.com/stretchr/testify":        nil,
	"pgregory.net/rapid":                 nil,
	"github.com/getkin/":                 nil,
	"google.golang.org/protobuf/":        {"bench", "compaction", "engine", "manifest", "wire", "server", "client", "telemetry", "fuzz"},
	"github.com/anishathalye/porcupine":  {"fuzz/history"},
	"github.com/chromedp/":               nil,
	"go.opentelemetry.io/":               {"telemetry"},
	"github.com/HdrHistogram/":           {"bench"},
	"golang.org/x/net/":                  {"bench/crowd"},
	"github.com/maypok86/otter/":         {"engine"},
	"github.com/klauspost/compress/zstd": {"sst", "manifest", "state"},
	"github.com/klauspost/compress/s2":   {"sst"},
}

// source is one parsed file.
type source struct {
	path string // of the file, from the module's root
	pkg  string // folder, from the module's root
	test bool
	file *ast.File
	fset *token.FileSet
}

// sources parses every Go file of the module, and none of the modules in its folders.
func sources(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "go.mod"))
	var all []source
	fset := token.NewFileSet()
	err = fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") {
				return fs.SkipDir
			}
			// A module of its own is not bound by these rules: nothing of it gets into the program.
			if _, err := os.Stat(filepath.Join(root, name, "go.mod")); name != "." && err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		file, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, source{name, path.Dir(name), strings.HasSuffix(name, "_test.go"), file, fset})
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

// imports returns the paths that a file imports.
func (s source) imports(t *testing.T) []string {
	t.Helper()
	var paths []string
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		paths = append(paths, p)
	}
	return paths
}

func TestPackageTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range sources(t) {
		seen[s.pkg] = true
		r, known := table[s.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the table", s.path, s.pkg)
			continue
		}
		for _, imported := range s.imports(t) {
			p, ours := strings.CutPrefix(imported, module+"/")
			if ours && !r.allows(s, p) {
				t.Errorf("%s: package %s must not import %s", s.path, s.pkg, p)
			}
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(table)) {
		if !seen[pkg] {
			t.Errorf("package %s is in the table and does not exist", pkg)
		}
	}
}

func (r rule) allows(s source, imported string) bool {
	if slices.Contains(r.imports, everything) || slices.Contains(r.imports, imported) {
		return true
	}
	return s.test && (imported == s.pkg || slices.Contains(testPackages, imported) || slices.Contains(r.tests, imported))
}

func TestLibraries(t *testing.T) {
	used := make(map[string]bool)
	for _, s := range sources(t) {
		for _, imported := range s.imports(t) {
			for library, users := range libraries {
				if !strings.HasPrefix(imported, library) {
					continue
				}
				used[library] = true
				if users == nil && (s.test || slices.Contains(testPackages, s.pkg)) || slices.Contains(users, s.pkg) {
					continue
				}
				t.Errorf("%s: package %s must not import %s", s.path, s.pkg, imported)
			}
		}
	}
	for _, library := range slices.Sorted(maps.Keys(libraries)) {
		if !used[library] {
			t.Logf("nothing imports %s", library)
		}
	}
}

// protocol are the packages whose code a simulation must be able to step.
var protocol = []string{"wal", "manifest", "engine", "compaction", "state", "memtable", "sst"}

// Protocol code takes clock, randomness and goroutine starts from base.Env, so
// that a simulation can decide them.
func TestProtocolCodeCanBeSimulated(t *testing.T) {
	forbidden := map[string][]string{
		"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
		// These set timers and start goroutines of their own.
		"context": {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause", "AfterFunc"},
		"ulid":    {"Make", "Now", "MustNew", "DefaultEntropy"},
	}
	for _, s := range sources(t) {
		if s.test || !slices.Contains(protocol, s.pkg) {
			continue
		}
		for _, imported := range s.imports(t) {
			if slices.Contains([]string{"math/rand", "math/rand/v2", "crypto/rand"}, imported) {
				t.Errorf("%s: imports %s; use base.Env", s.path, imported)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: starts a goroutine; use base.Env", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(forbidden[x.Name], n.Sel.Name) {
					t.Errorf("%s: uses %s.%s; use base.Env", s.fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			}
			return true
		})
	}
}
