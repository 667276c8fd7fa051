package child

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The test binary is its own child: roleVariable says what it does then.
const roleVariable = "CHILD_TEST_ROLE"

// How long, and how often, a test looks for what must come.
const (
	patience = 2 * time.Minute
	tick     = 5 * time.Millisecond
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "echo": // what comes, until the input ends
		_, _ = io.Copy(os.Stdout, os.Stdin)
		os.Exit(7)
	case "stay": // whatever happens to anybody else
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt)
		<-signals
	case "parent": // of one that stays, whose id it tells
		p, err := Start(role("stay"))
		if err != nil {
			panic(err)
		}
		fmt.Println(p.ID())
		_, _ = io.Copy(io.Discard, os.Stdin)
	default:
		os.Exit(m.Run())
	}
}

func role(name string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+name)
	return cmd
}

// start starts a role whose input and output are ours.
func start(t *testing.T, name string) (p *Process, in io.WriteCloser, out *bufio.Reader) {
	t.Helper()
	cmd := role(name)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = w
	p, err = Start(cmd)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	t.Cleanup(func() { p.Kill(); _ = r.Close() })
	return p, in, bufio.NewReader(r)
}

func TestPauseAndKill(t *testing.T) {
	p, in, out := start(t, "echo")
	_, err := io.WriteString(in, "one\n")
	require.NoError(t, err)
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "one\n", line)

	require.NoError(t, p.Pause())
	_, err = io.WriteString(in, "two\n")
	require.NoError(t, err)
	require.NoError(t, p.Resume())
	line, err = out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "two\n", line)

	require.NoError(t, p.Pause())
	p.Kill()
	require.Equal(t, -1, p.ExitCode())
	require.NoError(t, p.Resume(), "it has ended")
	p.Kill()
}

func TestExitCode(t *testing.T) {
	p, in, _ := start(t, "echo")
	require.NoError(t, in.Close())
	require.Equal(t, 7, p.ExitCode())
	_, err := Start(exec.Command(t.TempDir() + "/missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The child of a process that is killed is killed too.
func TestEndsWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux kills children with their parent")
	}
	parent, _, out := start(t, "parent")
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	id, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.True(t, runs(t, id))
	t.Cleanup(func() {
		if t.Failed() && runs(t, id) {
			_ = syscall.Kill(id, syscall.SIGKILL)
		}
	})
	parent.Kill()
	require.Eventually(t, func() bool { return !runs(t, id) }, patience, tick)
}

// runs reports whether a process lives: one that waits to be reaped does not.
func runs(t *testing.T, id int) bool {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
	if err != nil {
		return false
	}
	_, state, ok := bytes.Cut(stat, []byte(") "))
	require.True(t, ok)
	return state[0] != 'Z' && state[0] != 'X'
}

func TestLog(t *testing.T) {
	path := t.TempDir() + "/log"
	require.Contains(t, Tail(path), "no such file")
	for _, part := range []string{"first\n", strings.Repeat("x", maxTail-7) + "\nlast\n"} {
		f, err := OpenLog(path)
		require.NoError(t, err)
		_, err = io.WriteString(f, part)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	tail := Tail(path)
	require.True(t, strings.HasPrefix(tail, "(5 bytes before)\n\nxx"), tail[:30])
	require.True(t, strings.HasSuffix(tail, "x\nlast\n"))
}
