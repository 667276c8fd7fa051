package main

import (
	"bufio"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// scan --follow prints what is there and what comes, also from a server that was killed
// and came back, until it is interrupted.
func TestBinaryScanFollows(t *testing.T) {
	store := "file:" + t.TempDir() + "/data"
	d := start(t, store)
	for _, value := range []string{"a", "b", "c"} {
		d.mustAppend(t, "k", value)
	}
	scan := annals(t, "scan", "--server", d.url, "--last", "2", "--follow", "k")
	stdout, err := scan.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, scan.Start())
	out := bufio.NewReader(stdout)
	prints := func(want string) {
		line, err := out.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want+"\n", line)
	}
	prints("b")
	prints("c")
	d.mustAppend(t, "k", "d")
	prints("d")
	d.kill(t)
	d = start(t, store, "--listen", strings.TrimPrefix(d.url, "http://"))
	d.mustAppend(t, "other", "not this one")
	d.mustAppend(t, "k", "e")
	prints("e")
	require.NoError(t, scan.Process.Signal(syscall.SIGINT))
	require.Equal(t, exitOK, exitStatus(t, scan.Wait()))

	status, printed, stderr := runAnnals(t, "scan", "--server", d.url, "--limit", "3", "--follow", "--json", "k")
	require.Equal(t, exitOK, status, stderr)
	require.Equal(t, 3, strings.Count(printed, "\n"))
	d.stop(t)
}
