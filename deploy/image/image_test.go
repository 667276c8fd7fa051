package main

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/deploy/internal/binary"
)

var program string

func TestMain(m *testing.M) { binary.Main(m, &program) }

// The bounds of TestSize.
const (
	maxProgramBytes = 40e6
	maxImageBytes   = 16e6
)

// nobody is the user of the image.
const nobody = 65532

func stagesOf(t *testing.T, path string) []instructions.Stage {
	t.Helper()
	in, err := os.Open(path)
	require.NoError(t, err)
	defer in.Close()
	stages, err := parse(in)
	require.NoError(t, err)
	return stages
}

// made is the image, with a file instead of the authorities.
func made(t *testing.T) v1.Image {
	t.Helper()
	authorities := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(authorities, []byte("-----BEGIN CERTIFICATE-----\n"), 0o644))
	image, err := build("../Dockerfile", program, authorities)
	require.NoError(t, err)
	return image
}

// The build stage compiles as this module's other tests do, from files that the context holds.
func TestDockerfile(t *testing.T) {
	stages := stagesOf(t, "../Dockerfile")
	require.Len(t, stages, 2)
	require.Equal(t, "build", stages[0].Name)
	version, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	language, _, _ := strings.Cut(strings.SplitN(string(version), "\ngo ", 2)[1], "\n")
	require.True(t, strings.HasPrefix(language, strings.TrimPrefix(stages[0].BaseName, "golang:")), "go.mod says go %s, the Dockerfile %s", language, stages[0].BaseName)

	var runs []string
	for _, command := range stages[0].Commands {
		if c, ok := command.(*instructions.RunCommand); ok {
			runs = append(runs, strings.Join(c.CmdLine, " "))
		}
	}
	require.Contains(t, strings.Join(runs, "\n"), "CGO_ENABLED=0")
	require.Contains(t, strings.Join(runs, "\n"), "go build -trimpath -ldflags='-s -w' -o /out/annals ./cmd/annals")
}

// The COPY of go.mod and go.sum finds both.
func TestCopiedFilesExist(t *testing.T) {
	for _, command := range stagesOf(t, "../Dockerfile")[0].Commands {
		c, ok := command.(*instructions.CopyCommand)
		if !ok {
			continue
		}
		for _, path := range c.SourcePaths {
			_, err := os.Stat(filepath.Join(binary.Root(), path))
			require.NoError(t, err)
		}
	}
}

// What git tracks is not left out of the context: the version of the build would read "modified".
func TestContextHoldsTheClone(t *testing.T) {
	in, err := os.Open("../Dockerfile.dockerignore")
	require.NoError(t, err)
	defer in.Close()
	patterns, err := ignorefile.ReadAll(in)
	require.NoError(t, err)
	ignored, err := patternmatcher.New(patterns)
	require.NoError(t, err)
	git := exec.Command("git", "ls-files")
	git.Dir = binary.Root()
	tracked, err := git.Output()
	if err != nil {
		t.Skip("not a clone: ", err)
	}
	for _, path := range strings.Fields(string(tracked)) {
		out, err := ignored.MatchesOrParentMatches(path)
		require.NoError(t, err)
		require.False(t, out, "%s is tracked, and ignored", path)
	}
	for _, path := range []string{"bin/annals", "annals-data/LOG", "cmd/annals/cpu.prof", "sst/sst.test"} {
		out, err := ignored.MatchesOrParentMatches(path)
		require.NoError(t, err)
		require.True(t, out, path)
	}
}

func TestConfig(t *testing.T) {
	file, err := made(t).ConfigFile()
	require.NoError(t, err)
	c := file.Config
	require.Equal(t, "linux", file.OS)
	require.Equal(t, runtime.GOARCH, file.Architecture)
	require.Equal(t, "65532:65532", c.User, "a number, so that Kubernetes sees that it is not root")
	require.Equal(t, []string{"/usr/local/bin/annals"}, c.Entrypoint)
	require.Equal(t, map[string]struct{}{"8080/tcp": {}}, c.ExposedPorts)
	require.Equal(t, "/var/lib/annals", c.WorkingDir)

	status, out := binary.Run(t, program, nil, append(c.Cmd, "--help")...)
	require.Equal(t, 0, status, "the image's default command has flags that the program does not know: %s", out)
}

func TestAnotherStageIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"a base":         "FROM debian\nUSER 1",
		"a shell":        "FROM scratch\nENTRYPOINT annals",
		"an instruction": "FROM scratch\nRUN true",
		"an owner":       "FROM golang AS build\nFROM scratch\nCOPY --from=build --chown=nobody /a /b",
		"the context":    "FROM scratch\nCOPY go.mod /go.mod",
	} {
		stages, err := parse(strings.NewReader(text))
		require.NoError(t, err, name)
		_, err = planOf(stages)
		require.Error(t, err, name)
	}
	_, err := parse(strings.NewReader("FROM scratch\nCOPPY a b"))
	require.Error(t, err)
}

// The same program gives the same image.
func TestReproducible(t *testing.T) {
	one, err := made(t).Digest()
	require.NoError(t, err)
	two, err := made(t).Digest()
	require.NoError(t, err)
	require.Equal(t, one, two)
}

// extract unpacks the image into a folder, with its owners if this is root.
func extract(t *testing.T, image v1.Image) (root string) {
	t.Helper()
	root = t.TempDir()
	require.NoError(t, os.Chmod(root, 0o755))
	flat := mutate.Extract(image)
	defer flat.Close()
	in := tar.NewReader(flat)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return root
		}
		require.NoError(t, err)
		path := filepath.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			require.NoError(t, os.MkdirAll(path, fs.FileMode(h.Mode)))
		} else {
			body, err := io.ReadAll(in)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, body, fs.FileMode(h.Mode)))
		}
		if os.Geteuid() == 0 {
			require.NoError(t, os.Chown(path, h.Uid, h.Gid))
		}
	}
}

// The image's files alone, without the rest of this machine's, are enough to run it, as its user.
func TestRunsFromItsFilesAlone(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("chroot needs root on Linux")
	}
	image := made(t)
	file, err := image.ConfigFile()
	require.NoError(t, err)
	root := extract(t, image)
	jailed := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), file.Config.Entrypoint[0], args...)
		cmd.Dir, cmd.Env = file.Config.WorkingDir, file.Config.Env
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return cmd
	}
	version, err := jailed("version").CombinedOutput()
	require.NoError(t, err, "%s", version)
	require.Contains(t, string(version), "annals ")

	// It makes the log in its folder, and nowhere else may it write.
	server := binary.StartCommand(t, jailed("serve", "--listen", "127.0.0.1:0", "--log-format", "json"))
	server.Post(t, "/api/v1/log/append", strings.NewReader(`{"records":[{"key":"dXNlcg==","value":"aGk="}]}`))
	server.Stop(t)
	require.FileExists(t, filepath.Join(root, file.Config.WorkingDir, "annals-data/LOG"))
	refused, err := jailed("serve", "--listen", "127.0.0.1:0", "--store", "file:/data").CombinedOutput()
	require.Error(t, err, "it writes outside its folder: %s", refused)
}

// The sizes of the program and the image stay small. The bounds are a fifth above what they are, so that a library that
// adds megabytes is noticed.
func TestSize(t *testing.T) {
	info, err := os.Stat(program)
	require.NoError(t, err)
	layers, err := made(t).Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	compressed, err := layers[0].Size()
	require.NoError(t, err)
	t.Logf("program %.1f MB, image %.1f MB compressed", float64(info.Size())/1e6, float64(compressed)/1e6)
	require.Less(t, info.Size(), int64(maxProgramBytes))
	require.Less(t, compressed, int64(maxImageBytes))
}
