package reload

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// rig is two files, and what is in force of them.
type rig struct {
	*testing.T
	folder string
	files  *Files

	mu    sync.Mutex
	log   bytes.Buffer
	used  string
	times int
}

// inForce returns what was made of the files last, and how often something was.
func (r *rig) inForce() (used string, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used, r.times
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// Write implements io.Writer, for the log.
func (r *rig) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

// requireInForce wants the files to have been used with this content last.
func (r *rig) requireInForce(want string) {
	r.Helper()
	used, _ := r.inForce()
	require.Equal(r, want, used)
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, folder: t.TempDir()}
	r.write("a", "1")
	r.write("b", "1")
	var err error
	r.files, err = Open("pair", []string{r.path("a"), r.path("b")}, func(c [][]byte) error {
		if !bytes.Equal(c[0], c[1]) {
			return errors.New("they do not match")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.used = string(c[0])
		r.times++
		return nil
	})
	require.NoError(t, err)
	r.requireInForce("1")
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.folder, name) }

func (r *rig) write(name, text string) {
	require.NoError(r, os.WriteFile(r.path(name), []byte(text), 0o600))
}

func (r *rig) logger() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

// watch runs Watch on simulated time.
func (r *rig) watch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		r.files.Watch(ctx, r.logger())
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// looks lets so many looks pass.
func looks(n int) {
	time.Sleep(time.Duration(n) * Interval)
	synctest.Wait()
}

func TestChangesAreTakenUp(t *testing.T) {
	r := newRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.watch(t)
		looks(5)
		_, times := r.inForce()
		require.Equal(t, 1, times, "nothing changed")

		r.write("a", "2")
		looks(1)
		r.write("b", "2") // within the time that it takes
		looks(1)
		r.requireInForce("1") // what was seen once may be half written
		looks(1)
		r.requireInForce("2")
		require.Equal(t, 1, strings.Count(r.logged(), "pair was reloaded"))
		require.NotContains(t, r.logged(), "ERROR")
	})
}

func TestBadFilesLeaveTheOldInForce(t *testing.T) {
	r := newRig(t)
	synctest.Test(t, func(t *testing.T) {
		r.watch(t)
		require.False(t, r.files.Failing())
		r.write("a", "2")
		looks(10)
		r.requireInForce("1")
		require.True(t, r.files.Failing())
		require.Equal(t, 1, strings.Count(r.logged(), "ERROR"), "it is told once")
		require.Contains(t, r.logged(), "they do not match")
		require.Contains(t, r.logged(), r.path("a"))

		require.NoError(t, os.Remove(r.path("b")))
		looks(2)
		require.True(t, r.files.Failing())
		require.Contains(t, r.logged(), "no such file")

		r.files.Reload(r.logger())
		require.True(t, r.files.Failing())
		require.Equal(t, 3, strings.Count(r.logged(), "ERROR"), "whoever asks is told again")

		r.write("a", "1") // back to what is in force
		r.write("b", "1")
		looks(2)
		require.False(t, r.files.Failing())
	})
}

// Kubernetes puts files in place by a symlink to a folder, which it replaces.
func TestSymlinksThatAreReplaced(t *testing.T) {
	r := newRig(t)
	for _, version := range []string{"v1", "v2"} {
		require.NoError(t, os.Mkdir(r.path(version), 0o700))
		r.write(version+"/a", version)
		r.write(version+"/b", version)
	}
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.Remove(r.path(name)))
		require.NoError(t, os.Symlink(filepath.Join("data", name), r.path(name)))
	}
	point := func(version string) {
		require.NoError(t, os.Symlink(version, r.path("data.new")))
		require.NoError(t, os.Rename(r.path("data.new"), r.path("data")))
	}
	point("v1")
	r.files.Reload(r.logger())
	r.requireInForce("v1")
	synctest.Test(t, func(t *testing.T) {
		r.watch(t)
		point("v2")
		looks(2)
		r.requireInForce("v2")
	})
}

func TestOpenTellsAllThatIsMissing(t *testing.T) {
	folder := t.TempDir()
	_, err := Open("pair", []string{filepath.Join(folder, "a"), filepath.Join(folder, "b")}, nil)
	require.ErrorContains(t, err, "/a: no such file")
	require.ErrorContains(t, err, "/b: no such file")
	large := filepath.Join(folder, "large")
	require.NoError(t, os.WriteFile(large, make([]byte, MaxFileBytes+1), 0o600))
	_, err = Open("file", []string{large}, nil)
	require.ErrorContains(t, err, "more than 8388608 bytes")
	_, err = Open("file", []string{folder}, nil)
	require.ErrorContains(t, err, "is a directory")
}
