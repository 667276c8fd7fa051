package s3server

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// Of many that need the binary one builds it, and a build that fails leaves nothing.
func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	broken := errors.New("no network")
	_, err := install(dir, func(temp string) error {
		require.NoError(t, os.WriteFile(filepath.Join(temp, "versitygw"), []byte("half"), 0o700))
		return broken
	})
	require.ErrorIs(t, err, broken)

	var builds atomic.Int32
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			path, err := install(dir, func(temp string) error {
				builds.Add(1)
				return os.WriteFile(filepath.Join(temp, "versitygw"), []byte("whole"), 0o700)
			})
			if err != nil {
				return err
			}
			body, err := os.ReadFile(path)
			if string(body) != "whole" {
				return errors.Join(err, errors.New("got "+string(body)))
			}
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.EqualValues(t, 1, builds.Load())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2, "the binary and the lock: %v", left)
}

func TestGiven(t *testing.T) {
	t.Setenv(Variable, "s3://b/p?endpoint=http://127.0.0.1:9000&region=eu&path_style=true")
	s, other := Start(t), Start(t)
	require.True(t, s.Given())
	require.Equal(t, "127.0.0.1:9000", s.Address())
	require.Regexp(t, `^s3://b/p/test-[0-9a-f]{16}/x\?endpoint=http://127.0.0.1:9000&region=eu&path_style=true$`, s.URL("x"))
	require.Regexp(t, `^s3://b/p/test-[0-9a-f]{16}/x\?endpoint=http%3A%2F%2F127.0.0.1%3A1&path_style=true&region=eu$`, s.URLThrough("127.0.0.1:1", "x"))
	require.NotEqual(t, s.URL("x"), other.URL("x"))
	s.Kill() // does nothing
	require.Empty(t, s.Folder())

	for _, url := range []string{"s3://b/p", "s3://b?endpoint=https://s3.example.com"} {
		t.Setenv(Variable, url)
		require.Empty(t, Start(t).Address())
	}
}
