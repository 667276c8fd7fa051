package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openTerminal returns a pseudo terminal of some columns: what a program writes to, and what is read of it.
func openTerminal(t *testing.T, columns uint16) (terminal, screen *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	require.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	return terminal, screen
}

// On a terminal there is a bar, rewritten in place and no longer than a line; elsewhere there are plain lines.
func TestProgressOnTerminal(t *testing.T) {
	terminal, screen := openTerminal(t, 50)
	now := time.Unix(0, 0)
	line := newStatusLine(terminal, func() time.Time { return now })
	require.True(t, line.terminal)
	require.False(t, line.due())
	now = now.Add(terminalProgressEvery)
	require.True(t, line.due())
	line.show(1, 4, "a text that is longer than the terminal is wide")
	line.show(3, 0, "no end known")
	line.end()
	_, err := io.WriteString(terminal, ".\n")
	require.NoError(t, err)
	got, err := bufio.NewReader(screen).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "\r\x1b[K[#####...............]  25%  a text that is longe"+"\r\x1b[Kno end known"+"\r\x1b[K.\r\n", got)

	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	for _, w := range []io.Writer{file, new(bytes.Buffer)} {
		line := newStatusLine(w, time.Now)
		require.False(t, line.terminal)
		line.show(1, 4, "text")
		line.end()
	}
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Equal(t, "text\n", string(text))
}
