package engine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A disk cache on a disk that is really full costs reads nothing but the way to the store, and the log stays ready. It is
// told, and over once there is room again, without a read. Where the cache is required the log is not ready meanwhile.
func TestDiskCacheOnFullDisk(t *testing.T) {
	for _, required := range []bool{false, true} {
		t.Run(fmt.Sprintf("required=%t", required), func(t *testing.T) { diskCacheOnFullDisk(t, required) })
	}
}

func diskCacheOnFullDisk(t *testing.T, required bool) {
	const size = 4 << 20
	disk := t.TempDir()
	if err := unix.Mount("annals-test", disk, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("a small file system needs to be mounted, which takes root: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	synctest.Test(t, func(t *testing.T) {
		var logged logLines
		o := simulatedOptions()
		o.Logger, o.DisableCompaction, o.RecentBytes, o.CacheBytes = logged.logger(), true, 1, 1
		o.DiskCacheDir, o.DiskCacheBytes = filepath.Join(disk, "cache"), minDiskCacheBytes
		o.DiskCacheRequired = required
		db := openTest(t, newStore(), o)
		var want []string
		run := func(n int) {
			value := strings.Repeat(fmt.Sprint(n), 1000)
			want = append(want, value)
			mustAppend(t, db, record("k", value))
			require.NoError(t, db.Flush(t.Context()))
		}
		run(0)
		require.Equal(t, want, values(t, db, "k", All(), ScanOptions{}))
		elapse(time.Second)
		require.Equal(t, want, values(t, db, "k", All(), ScanOptions{}))
		hits := db.Status().DiskCacheHits
		require.NotZero(t, hits)

		others := filepath.Join(disk, "of somebody else")
		require.ErrorIs(t, os.WriteFile(others, make([]byte, size), 0o600), syscall.ENOSPC)
		for n := range 4 {
			run(n + 1)
			require.Equal(t, want, values(t, db, "k", All(), ScanOptions{}), "what is not in the cache comes from the store")
			elapse(time.Second)
		}
		require.Greater(t, db.Status().DiskCacheHits, hits, "what is in the cache is read there")
		if required {
			require.ErrorContains(t, db.Ready(t.Context()), DiskCacheWrites.Says())
			require.ErrorIs(t, db.Ready(t.Context()), syscall.ENOSPC)
		} else {
			require.NoError(t, db.Ready(t.Context()), "the log serves")
		}
		require.True(t, shows(db.Status().Troubles, DiskCacheWrites))
		require.Equal(t, 1, logged.count(DiskCacheWrites.Says()))
		require.True(t, bytes.Contains(logged.buf.Bytes(), []byte("no space left on device")), "%s", logged.buf.String())

		require.NoError(t, os.Remove(others))
		elapse(diskPause + time.Second) // nobody reads from a server that is not ready
		require.NoError(t, db.Ready(t.Context()))
		require.Empty(t, db.Status().Troubles)
		require.Equal(t, 1, logged.count(DiskCacheWrites.Says()+": over"))
	})
}

// The same without a disk: wherever tests run.
func TestDiskCacheTroubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logLines
		told := newTroubles(logged.logger(), bubbleEnv())
		d, err := newDiskCache(filepath.Join(t.TempDir(), "cache"), 16<<20, bubbleEnv(), told)
		require.NoError(t, err)
		var broken error
		d.readFile = func(path string, size int64) ([]byte, error) {
			if broken != nil {
				return nil, &os.PathError{Op: "read", Path: path, Err: broken}
			}
			return readDiskFile(path, size)
		}
		d.writeFile = func(path string, parts ...[]byte) error {
			if broken != nil {
				return &os.PathError{Op: "write", Path: path, Err: broken}
			}
			return writeDiskFile(path, parts...)
		}
		runDisk(t, d)
		fill(d, testKey(1))
		time.Sleep(time.Second)
		require.True(t, has(t, d, testKey(1)))
		require.Empty(t, told.list())

		broken = syscall.EIO
		for range 100 {
			require.False(t, has(t, d, testKey(1)))
		}
		fill(d, testKey(2), testKey(3), testKey(4))
		require.NoError(t, told.stops(), "no reason not to be ready")
		for _, kind := range []TroubleKind{DiskCacheReads, DiskCacheWrites} {
			require.True(t, shows(told.list(), kind))
			require.Equal(t, 1, logged.count(kind.Says()))
		}
		broken = nil
		time.Sleep(diskPause)
		require.True(t, has(t, d, testKey(1)))
		fill(d, testKey(2))
		require.Empty(t, told.list())
		for _, kind := range []TroubleKind{DiskCacheReads, DiskCacheWrites} {
			require.Equal(t, 1, logged.count(kind.Says()+": over"))
		}
	})
}

// A folder that was deleted is made again.
func TestDiskCacheFolderDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "cache")
		d, _ := openDiskTest(t, dir, 16<<20, nil)
		fill(d, testKey(1))
		require.NoError(t, os.RemoveAll(dir))
		require.False(t, has(t, d, testKey(1)))
		fill(d, testKey(1))
		require.True(t, has(t, d, testKey(1)))
		require.Zero(t, d.failures.Load())
	})
}

// Whether the disk of a required cache can be written is known before anything is read.
func TestRequiredDiskCacheOnFullDiskFromTheStart(t *testing.T) {
	const size = 4 << 20
	disk := t.TempDir()
	if err := unix.Mount("annals-test", disk, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("a small file system needs to be mounted, which takes root: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	others := filepath.Join(disk, "of somebody else")
	require.ErrorIs(t, os.WriteFile(others, make([]byte, 2*size), 0o600), syscall.ENOSPC)
	synctest.Test(t, func(t *testing.T) {
		o := simulatedOptions()
		o.DiskCacheDir, o.DiskCacheBytes, o.DiskCacheRequired = filepath.Join(disk, "cache"), minDiskCacheBytes, true
		db := openTest(t, newStore(), o)
		elapse(time.Millisecond)
		require.ErrorIs(t, db.Ready(t.Context()), syscall.ENOSPC)
		require.NoError(t, os.Remove(others))
		elapse(diskPause)
		require.NoError(t, db.Ready(t.Context()))
		require.Empty(t, db.Status().Troubles)
	})
}

// A disk cache that is required and cannot be had keeps the log from being opened, and from being taken from whom has it.
func TestDiskCacheRequired(t *testing.T) {
	store := newStore()
	first := openTest(t, store, Options{})
	o := Options{DiskCacheRequired: true, DiskCacheDir: filepath.Join(t.TempDir(), "cache")}
	require.NoError(t, os.WriteFile(o.DiskCacheDir, nil, 0o600)) // no folder
	_, err := Open(t.Context(), store, o)
	require.ErrorIs(t, err, syscall.ENOTDIR)
	mustAppend(t, first, record("k", "v"))
	require.NoError(t, first.Flush(t.Context()))
	_, err = OpenReader(t.Context(), store, ReaderOptions{DiskCacheRequired: true, DiskCacheDir: o.DiskCacheDir})
	require.ErrorIs(t, err, syscall.ENOTDIR)

	require.ErrorContains(t, Options{DiskCacheRequired: true}.Validate(), "DiskCacheRequired")
	require.ErrorContains(t, ReaderOptions{DiskCacheRequired: true}.Validate(), "DiskCacheRequired")
}
