package history

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFile judges a history that was kept: ANNALS_HISTORY=file go test ./fuzz/history -run 'TestFile$' -v
func TestFile(t *testing.T) {
	path := os.Getenv("ANNALS_HISTORY")
	if path == "" {
		t.Skip("ANNALS_HISTORY names no file")
	}
	h, err := ReadFile(path)
	require.NoError(t, err)
	v := Check(h, Options{})
	t.Log(v)
	require.NoError(t, v.Err())
}

func TestFileKeepsHistory(t *testing.T) {
	dir := t.TempDir()
	n := 0
	for name, w := range wrong {
		s := newScene()
		w.play(s)
		path := filepath.Join(dir, "history")
		require.NoError(t, s.WriteFile(path))
		h, err := ReadFile(path)
		require.NoError(t, err)
		v := Check(h, Options{})
		require.ElementsMatch(t, w.rules, rules(v), "%s: %v", name, v.Err())
		again := filepath.Join(dir, "again")
		require.NoError(t, h.WriteFile(again))
		a, err := os.ReadFile(path)
		require.NoError(t, err)
		b, err := os.ReadFile(again)
		require.NoError(t, err)
		require.Equal(t, string(a), string(b))
		n++
	}
	require.NotZero(t, n)
}

// A file that ends early, or is of another version, is not taken for a shorter history.
func TestFileCut(t *testing.T) {
	s := newScene()
	s.append(10, 11, 0, "k=a")
	s.final("k", "0=a")
	path := filepath.Join(t.TempDir(), "history")
	require.NoError(t, s.WriteFile(path))
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for n := range len(whole) - 1 { // without its last byte, a line end, it is whole
		require.NoError(t, os.WriteFile(path, whole[:n], 0o600))
		_, err := ReadFile(path)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d of %d bytes", n, len(whole))
	}
	other := bytes.Replace(whole, []byte(`"version":1`), []byte(`"version":2`), 1)
	require.NoError(t, os.WriteFile(path, other, 0o600))
	_, err = ReadFile(path)
	require.ErrorContains(t, err, "version 2 is not 1")
	_, err = ReadFile(path + ".not")
	require.ErrorIs(t, err, os.ErrNotExist)
}
