package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tailing is a running "annals tail".
type tailing struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
}

func (d *daemon) tail(t *testing.T, args ...string) *tailing {
	t.Helper()
	cmd := annals(t, append([]string{"tail", "--server", d.url}, args...)...)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return &tailing{t, cmd, bufio.NewReader(stdout)}
}

func (f *tailing) prints(want ...string) {
	f.t.Helper()
	for _, w := range want {
		line, err := f.out.ReadString('\n')
		require.NoError(f.t, err)
		require.Equal(f.t, w+"\n", line)
	}
}

// followers waits until so many requests follow.
func (d *daemon) followers(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, body := request(t, http.MethodGet, d.url+"/api/v1/log/status", "")
		return strings.Contains(body, fmt.Sprintf(`"followers":%d,`, n))
	}, patience, 5*time.Millisecond)
}

// ends signals the process, which ends well.
func (f *tailing) ends(sig syscall.Signal) {
	f.t.Helper()
	require.NoError(f.t, f.cmd.Process.Signal(sig))
	require.Equal(f.t, exitOK, exitStatus(f.t, f.cmd.Wait()))
}

// tail prints what comes for keys and prefixes, from where it is told, also from a server that was killed and came back, until
// it is interrupted.
func TestBinaryTail(t *testing.T) {
	store := "file:" + t.TempDir() + "/data"
	d := start(t, store)
	first := d.mustAppend(t, "a", "old")
	d.mustAppend(t, "p/x", "old")
	d.mustAppend(t, "other", "not this one")
	all := d.tail(t, "--from", "0", "--prefix", "p/", "--prefix", "q/", "a")
	lines := []string{}
	for range 2 { // of two keys: in any order
		line, err := all.out.ReadString('\n')
		require.NoError(t, err)
		lines = append(lines, line)
	}
	require.ElementsMatch(t, []string{"a\told\n", "p/x\told\n"}, lines)
	recent := d.tail(t, "--from", "-1h", "a")
	recent.prints("a\told")
	behind := d.tail(t, "--json", "--from", "now", "--limit", "1", "a")
	d.followers(t, 3)
	d.mustAppend(t, "a", "new")
	all.prints("a\tnew")
	recent.prints("a\tnew")
	line, err := behind.out.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, `"key":"a","value":"new"}`)
	require.Equal(t, exitOK, exitStatus(t, behind.cmd.Wait()))

	d.kill(t)
	d = start(t, store, "--listen", strings.TrimPrefix(d.url, "http://"))
	d.mustAppend(t, "q/y", "after a crash")
	all.prints("q/y\tafter a crash")
	d.mustAppend(t, "a", "too")
	all.prints("a\ttoo")
	recent.prints("a\ttoo")
	all.ends(syscall.SIGINT)
	recent.ends(syscall.SIGTERM)
	require.Zero(t, first)

	// A reader that goes away ends it without a word.
	pipe := annals(t, "tail", "--server", d.url, "--from", "0", "a")
	stdout, err := pipe.StdoutPipe()
	require.NoError(t, err)
	var stderr strings.Builder
	pipe.Stderr = &stderr
	require.NoError(t, pipe.Start())
	_, err = stdout.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, stdout.Close())
	d.mustAppend(t, "a", "nobody reads it")
	require.Error(t, pipe.Wait())
	require.Empty(t, stderr.String())
	d.stop(t)
}

// With a consumer it goes on where the one before ended.
func TestBinaryTailOfAConsumer(t *testing.T) {
	d := start(t, "file:"+t.TempDir()+"/data")
	for _, value := range []string{"1", "2", "3"} {
		d.mustAppend(t, "k", value)
	}
	status, printed, stderr := runAnnals(t, "tail", "--server", d.url, "--consumer", "me", "--commit", "--limit", "2", "k")
	require.Equal(t, exitOK, status, stderr)
	require.Equal(t, "k\t1\nk\t2\n", printed)
	f := d.tail(t, "--consumer", "me", "--commit", "k", "other")
	f.prints("k\t3")
	f.ends(syscall.SIGTERM)
	status, printed, stderr = runAnnals(t, "cursors", "get", "--server", d.url, "me")
	require.Equal(t, exitOK, status, stderr)
	require.Equal(t, "3 k\n", printed)
	f = d.tail(t, "--consumer", "me", "--from", "now", "k", "other")
	d.followers(t, 1)
	d.mustAppend(t, "other", "4")
	f.prints("other\t4")
	f.ends(syscall.SIGINT)
	status, printed, _ = runAnnals(t, "cursors", "get", "--server", d.url, "me")
	require.Equal(t, exitOK, status)
	require.Equal(t, "3 k\n", printed, "nothing is moved without --commit")
	d.stop(t)
}
