package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// A backup is a copy of a log by the recipe of docs/PRODUCTION.md, with folders for buckets.
type backup struct {
	*testing.T
	from, to string
	manifest []byte // of step 3
}

const manifestName = "trees/00000000/MANIFEST"

const walFolder = "trees/00000000/wal"

// sync copies what is below a folder and not there yet, but what skip says. What is collected meanwhile is missed, as by an S3 tool.
func (b *backup) sync(folder string, skip func(name string) bool) {
	b.Helper()
	err := filepath.WalkDir(filepath.Join(b.from, folder), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		name, _ := filepath.Rel(b.from, path)
		if err != nil || d.IsDir() || skip(name) {
			return err
		}
		to := filepath.Join(b.to, name)
		if _, err := os.Stat(to); err == nil {
			return nil
		}
		body, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, body, 0o600))
	})
	require.NoError(b, err)
}

// The steps of the recipe, by their numbers.
func (b *backup) step(n int) {
	b.Helper()
	var err error
	switch n {
	case 1, 4: // all but MANIFEST and the WAL
		b.sync(".", func(name string) bool {
			return name == manifestName || strings.HasPrefix(name, walFolder) || strings.HasPrefix(name, ".tmp")
		})
	case 2:
		b.sync(walFolder, func(string) bool { return false })
	case 3:
		b.manifest, err = os.ReadFile(filepath.Join(b.from, manifestName))
	case 5:
		err = os.WriteFile(filepath.Join(b.to, manifestName), b.manifest, 0o600)
	}
	require.NoError(b, err)
}

// A log that is copied while it is written, flushed, compacted and collected is sound, and has all that was acknowledged before the
// second step began, and then no hole. The same copy is made better again and again.
func TestBinaryBackupWhileWriting(t *testing.T) {
	folder := t.TempDir()
	b := &backup{T: t, from: filepath.Join(folder, "log"), to: filepath.Join(folder, "copy")}
	server := start(t, "file:"+b.from, append([]string{"--gc-interval", "1s", "--memtable-bytes", "64KiB"}, agingFlags...)...)
	var acked atomic.Int64
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := int64(0); ; n++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if status, body := server.appendOne(t, "key", fmt.Sprint(n, strings.Repeat("v", 500))); status != http.StatusOK {
				stopped <- fmt.Errorf("append %d: %d %s", n, status, body)
				return
			}
			acked.Store(n + 1)
		}
	}()
	goesOn := func() {
		for target := acked.Load() + 200; acked.Load() < target; {
			select {
			case err := <-stopped:
				require.NoError(t, err)
			default:
			}
		}
	}
	for round := range 4 {
		before := b.make(&acked, goesOn)
		b.restores(round, before)
	}
	close(stop)
	require.NoError(t, <-stopped)
	server.stop(t)
}

// backupTries bounds how often the steps behind the first are done again. A compactor that takes its epoch between step 3 and 4 spoils
// one, and there is one compactor here.
const backupTries = 3

// make copies the log, which goes on meanwhile, until the copy is sound, and returns how many records were acknowledged before the
// last second step.
func (b *backup) make(acked *atomic.Int64, goesOn func()) (before int64) {
	b.Helper()
	b.step(1)
	for range backupTries {
		before = acked.Load()
		b.step(2)
		b.step(3)
		goesOn()
		b.step(4)
		b.step(5)
		status, report, stderr := checked(b.T, b.to) // 6
		if status == exitOK {
			return before
		}
		b.Log("once more: ", stderr, report.Damage)
	}
	b.Fatal("the copy does not become sound")
	return 0
}

// restores opens a copy of the copy and looks for the first records.
func (b *backup) restores(round int, atLeast int64) {
	b.Helper()
	path := filepath.Join(b.TempDir(), "restored")
	require.NoError(b, os.CopyFS(path, os.DirFS(b.to)))
	restored := start(b.T, "file:"+path)
	defer restored.stop(b.T)
	values := restored.values(b.T, []byte("key"))
	require.GreaterOrEqual(b, len(values), int(min(atLeast, 10_000)), "round %d", round)
	for i, v := range values {
		require.True(b, strings.HasPrefix(v, fmt.Sprint(i, "v")), "round %d: record %d is %.20s", round, i, v)
	}
	status, body := restored.appendOne(b.T, "key", "more")
	require.Equal(b, http.StatusOK, status, body)
}

// A copy from which a WAL object is missing is not taken for the log: check says so, and no server starts on it.
func TestBinaryBackupWithAHole(t *testing.T) {
	folder := t.TempDir()
	b := &backup{T: t, from: filepath.Join(folder, "log"), to: filepath.Join(folder, "copy")}
	server := start(t, "file:"+b.from)
	for n := range 20 {
		status, body := server.appendOne(t, "key", fmt.Sprint(n))
		require.Equal(t, http.StatusOK, status, body)
	}
	for n := range 5 {
		b.step(n + 1)
	}
	server.stop(t)
	wal, err := filepath.Glob(filepath.Join(b.to, walFolder, "*/*"))
	require.NoError(t, err)
	require.Len(t, wal, 20)
	require.NoError(t, os.Remove(wal[10]))
	status, report, _ := checked(t, b.to)
	require.Equal(t, exitDamaged, status)
	require.Equal(t, "missing", string(report.Damage[0].Kind))
	status, _, stderr := runAnnals(t, "serve", "--listen", "127.0.0.1:0", "--store", "file:"+b.to)
	require.Equal(t, exitFailure, status)
	require.Contains(t, stderr, filepath.Base(wal[10]))
}
