package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// openDiskTest runs a cache until the test, or the returned function, ends it.
func openDiskTest(t testing.TB, dir string, budget int64, change func(*diskCache)) (*diskCache, func()) {
	t.Helper()
	d, err := newDiskCache(dir, budget, bubbleEnv(), newTroubles(slog.New(slog.DiscardHandler), bubbleEnv()))
	require.NoError(t, err)
	if change != nil {
		change(d)
	}
	return d, runDisk(t, d)
}

func runDisk(t testing.TB, d *diskCache) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.run(ctx)
	}()
	end = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(end)
	return end
}

// diskBody is the content of a range in these tests.
func diskBody(k diskKey) []byte {
	b := make([]byte, k.n)
	for i := range b {
		b[i] = byte(k.seed()>>(i%8*8)) + byte(i)
	}
	return b
}

// fill keeps ranges and waits until they are written.
func fill(d *diskCache, keys ...diskKey) {
	for _, k := range keys {
		d.put(k, diskBody(k))
	}
	synctest.Wait()
}

func has(t testing.TB, d *diskCache, k diskKey) bool {
	t.Helper()
	body, ok := d.get(t.Context(), k)
	if ok {
		require.True(t, bytes.Equal(diskBody(k), body))
	}
	return ok
}

// diskUse is what the files of a cache occupy, as the file system says.
func diskUse(t testing.TB, dir string) (files int, bytes int64) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "LOCK" {
			return err
		}
		info, err := e.Info()
		files++
		bytes += diskCost(info.Size() - diskHeader)
		return err
	}))
	return files, bytes
}

func testKey(i int) diskKey {
	return diskKey{base.ULID{byte(i), byte(i >> 8), 7}, int64(i) * 1000, int64(1 + i%5000)}
}

func TestDiskCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "a", "b")
		d, end := openDiskTest(t, dir, 16<<20, nil)
		k := diskKey{diskTestID, 100, 5000}
		require.False(t, has(t, d, k))
		fill(d, k, k) // the second finds the first
		require.True(t, has(t, d, k))
		for _, other := range []diskKey{{diskTestID, 100, 4999}, {diskTestID, 101, 5000}, {base.ULID{}, 100, 5000}} {
			require.False(t, has(t, d, other))
		}
		require.EqualValues(t, 1, d.hits.Load())
		require.EqualValues(t, 4, d.misses.Load())
		require.Zero(t, d.failures.Load())
		require.Equal(t, diskCost(5000), d.bytes.Load())

		// It survives a restart.
		end()
		d.put(testKey(1), diskBody(testKey(1)))
		d, _ = openDiskTest(t, dir, 16<<20, nil)
		synctest.Wait()
		require.True(t, has(t, d, k))
		require.Equal(t, diskCost(5000), d.bytes.Load())
		require.False(t, has(t, d, testKey(1)), "it had ended")
		files, _ := diskUse(t, dir)
		require.Equal(t, 1, files)
	})
}

func TestNoDiskCache(t *testing.T) {
	var d *diskCache
	d.put(testKey(1), diskBody(testKey(1)))
	require.False(t, has(t, d, testKey(1)))
}

// F36: every wrong byte, every length, and files of other ranges, are misses.
func TestF36DiskCacheDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openDiskTest(t, t.TempDir(), 16<<20, nil)
		k := diskKey{diskTestID, 0, 40}
		good := diskFile(k, diskBody(k))
		damage := map[string][]byte{
			"longer":  append(bytes.Clone(good), 0),
			"another": diskFile(testKey(39), diskBody(testKey(39))),
		}
		require.Len(t, damage["another"], len(good))
		for i := range good {
			damage[fmt.Sprint("cut at ", i)] = good[:i]
			for _, bit := range []byte{1, 0x80, 0xff} {
				b := bytes.Clone(good)
				b[i] ^= bit
				damage[fmt.Sprint("byte ", i, " ^ ", bit)] = b
			}
		}
		failures := d.failures.Load()
		for name, file := range damage {
			fill(d, k)
			require.True(t, has(t, d, k), name)
			require.NoError(t, os.WriteFile(d.path(k), file, 0o600))
			require.False(t, has(t, d, k), name)
			failures++
			require.Equal(t, failures, d.failures.Load(), name)
		}
		fill(d, k)
		require.True(t, has(t, d, k), "and it can be written again")
	})
}

// F36: deleted under us, in part or whole; then it goes on.
func TestF36DiskCacheDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d, _ := openDiskTest(t, dir, 16<<20, nil)
		for _, remove := range []string{d.path(testKey(1)), filepath.Dir(d.path(testKey(1))), dir} {
			fill(d, testKey(1), testKey(2))
			require.True(t, has(t, d, testKey(1)))
			require.NoError(t, os.RemoveAll(remove))
			require.False(t, has(t, d, testKey(1)))
			fill(d, testKey(1))
			require.True(t, has(t, d, testKey(1)))
		}
		require.Zero(t, d.failures.Load())
	})
}

// What somebody deletes does not count for ever: a folder that is gone is noticed when it is written to,
// a file that is gone when its folder's turn has come.
func TestDiskCacheCountsWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d, _ := openDiskTest(t, dir, 128<<20, nil)
		keys := make([]diskKey, 300)
		for i := range keys {
			keys[i] = testKey(i)
		}
		requireExact := func() {
			t.Helper()
			files, bytes := diskUse(t, dir)
			require.GreaterOrEqual(t, files, len(keys))
			require.Equal(t, bytes, d.bytes.Load())
		}
		fill(d, keys...)
		requireExact()
		require.NoError(t, os.RemoveAll(dir))
		fill(d, keys...)
		requireExact()

		for _, k := range keys {
			require.NoError(t, os.Remove(d.path(k)))
		}
		fill(d, keys...)
		next := len(keys)
		for range diskFolders * diskRecount / 512 {
			some := make([]diskKey, 512)
			for i := range some {
				some[i] = testKey(next)
				next++
			}
			fill(d, some...)
		}
		requireExact()
	})
}

// The files, with what they occupy beside their bytes, stay within the budget,
// also at a restart with a smaller one, and when others delete some.
func TestDiskCacheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rnd := rand.New(rand.NewPCG(1, 2))
		for _, budget := range []int64{512 << 10, 128 << 10, 768 << 10} {
			d, end := openDiskTest(t, dir, budget, nil)
			synctest.Wait()
			for range 20 {
				for range 20 {
					k := testKey(rnd.IntN(3000))
					d.put(k, diskBody(k))
					has(t, d, testKey(rnd.IntN(3000)))
				}
				if rnd.IntN(10) == 0 {
					require.NoError(t, os.RemoveAll(filepath.Join(dir, folderName(rnd.IntN(diskFolders)))))
				}
				synctest.Wait()
				_, used := diskUse(t, dir)
				require.LessOrEqual(t, used, budget)
				require.LessOrEqual(t, used, d.bytes.Load())
				require.LessOrEqual(t, d.bytes.Load(), budget)
			}
			_, used := diskUse(t, dir)
			require.Greater(t, used, budget*8/10, "and it is used")
			require.NotZero(t, d.evictions.Load())
			require.Zero(t, d.failures.Load())
			end()
		}
	})
}

// What is used stays when a flood of ranges passes that are used once.
func TestDiskCacheKeepsWhatIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openDiskTest(t, t.TempDir(), 1<<20, nil)
		used := []diskKey{testKey(10_001), testKey(10_002), testKey(10_003)}
		fill(d, used...)
		for i := range 1000 {
			fill(d, testKey(i))
			if i%20 == 0 {
				for _, k := range used {
					require.True(t, has(t, d, k), i)
				}
			}
		}
		require.Greater(t, d.evictions.Load(), uint64(600))
	})
}

// Ranges that would push out too much at once are not kept.
func TestDiskCacheRefusesLargeRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openDiskTest(t, t.TempDir(), 1<<20, nil)
		large := diskKey{diskTestID, 0, 1 << 20 / diskShare}
		fill(d, large)
		require.False(t, has(t, d, large))
		large.n -= 8192
		fill(d, large)
		require.True(t, has(t, d, large))
	})
}

// F36: a full disk is no error; writing pauses and is tried again later.
func TestF36DiskCacheFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full bool
		var tries int
		dir := t.TempDir()
		d, _ := openDiskTest(t, dir, 16<<20, func(d *diskCache) {
			d.writeFile = func(path string, parts ...[]byte) error {
				tries++
				if full {
					_ = writeDiskFile(path, parts[0]) // part of it gets there
					return &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
				}
				return writeDiskFile(path, parts...)
			}
		})
		fill(d, testKey(1))
		require.Equal(t, 2, tries, "the folder had to be made")
		full, tries = true, 0
		var keys []diskKey
		for i := range 100 {
			keys = append(keys, testKey(i+2))
		}
		fill(d, keys...)
		require.Equal(t, diskWriteFailures, tries)
		require.EqualValues(t, diskWriteFailures, d.failures.Load())
		require.EqualValues(t, 100-diskWriteFailures, d.dropped.Load())
		fill(d, keys...)
		require.Equal(t, diskWriteFailures, tries, "it pauses")
		require.True(t, has(t, d, testKey(1)), "reads go on")
		require.NoFileExists(t, filepath.Join(dir, "write.tmp"))

		time.Sleep(diskPause)
		fill(d, keys...)
		require.Equal(t, diskWriteFailures+1, tries, "one try after the pause")
		full = false
		time.Sleep(diskPause)
		fill(d, keys...)
		for _, k := range keys {
			require.True(t, has(t, d, k))
		}
		_, used := diskUse(t, dir)
		require.Equal(t, used, d.bytes.Load())
	})
}

// F36: what cannot be read is a miss, and is left for later.
func TestF36DiskCacheReadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken error
		d, _ := openDiskTest(t, t.TempDir(), 16<<20, func(d *diskCache) {
			d.readFile = func(path string, size int64) ([]byte, error) {
				if broken != nil {
					return nil, &fs.PathError{Op: "read", Path: path, Err: broken}
				}
				return readDiskFile(path, size)
			}
		})
		fill(d, testKey(1))
		for i, err := range []error{syscall.EIO, syscall.EACCES, syscall.EMFILE} {
			broken = err
			require.False(t, has(t, d, testKey(1)))
			require.EqualValues(t, i+1, d.failures.Load())
			fill(d, testKey(1))
		}
		broken = nil
		require.True(t, has(t, d, testKey(1)))
	})
}

// F36: the folder became something else.
func TestF36DiskCacheFolderIsAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "cache")
		d, _ := openDiskTest(t, dir, 16<<20, nil)
		fill(d, testKey(1))
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.WriteFile(dir, nil, 0o600))
		require.False(t, has(t, d, testKey(1)))
		fill(d, testKey(1), testKey(2), testKey(3), testKey(4))
		require.False(t, has(t, d, testKey(1)))
		require.EqualValues(t, 2+diskWriteFailures, d.failures.Load())
	})
}

// Files that cannot be removed keep their room: nothing is written beyond it.
func TestDiskCacheCannotEvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d, end := openDiskTest(t, dir, 1<<20, nil)
		const files = 10
		for i := range files {
			fill(d, testKey(i))
		}
		end()
		for i := range files { // a folder that is not empty in each file's place
			require.NoError(t, os.Remove(d.path(testKey(i))))
			require.NoError(t, os.MkdirAll(filepath.Join(d.path(testKey(i)), "x"), 0o700))
		}
		d, _ = openDiskTest(t, dir, 40_000, nil)
		fill(d, testKey(files))
		require.False(t, has(t, d, testKey(files)))
		require.NotZero(t, d.failures.Load())
		require.Zero(t, d.evictions.Load())
		require.Equal(t, files*diskCost(1), d.bytes.Load())
	})
}

// One process uses a folder; another runs without, and may take over later.
func TestDiskCacheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		_, end := openDiskTest(t, dir, 16<<20, nil)
		var log bytes.Buffer
		second := &tables{env: bubbleEnv()}
		open := func() {
			log.Reset()
			require.NoError(t, second.openDisk(t.Context(), func(_ string, f func()) { go f() }, dir, 16<<20, newTroubles(slog.New(slog.NewTextHandler(&log, nil)), bubbleEnv())))
		}
		open()
		require.Nil(t, second.disk)
		require.Contains(t, log.String(), "another process uses it")
		end()
		open()
		require.NotNil(t, second.disk)
		require.Empty(t, log.String())
	})
}

// F36: a folder that cannot be made is logged, and no error.
func TestF36DiskCacheCannotOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "sub"), "a\x00b"} {
		var log bytes.Buffer
		ts := &tables{env: base.SystemEnv()}
		require.NoError(t, ts.openDisk(t.Context(), nil, dir, 16<<20, newTroubles(slog.New(slog.NewTextHandler(&log, nil)), bubbleEnv())))
		require.Nil(t, ts.disk)
		require.Contains(t, log.String(), "running without the disk cache")
	}
}

// Files that are not the cache's are neither counted nor touched; what a crash
// left is written over.
func TestDiskCacheForeignFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		wrongFolder := folderName((testKey(1).folder() + 1) % diskFolders)
		foreign := []string{"notes.txt", "00/notes.txt", filepath.Join(wrongFolder, testKey(1).name())}
		for _, f := range foreign {
			path := filepath.Join(dir, f)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(t, os.WriteFile(path, make([]byte, 100_000), 0o600))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "write.tmp"), make([]byte, 100_000), 0o600))
		d, _ := openDiskTest(t, dir, 100_000, nil)
		synctest.Wait()
		require.Zero(t, d.bytes.Load())
		for i := range 200 {
			fill(d, testKey(i))
		}
		require.NotZero(t, d.evictions.Load())
		for _, f := range foreign {
			require.FileExists(t, filepath.Join(dir, f))
		}
		require.NoFileExists(t, filepath.Join(dir, "write.tmp"))
	})
}

// The queue is bounded in bytes and ranges; what does not fit is not kept.
func TestDiskCacheQueueBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := newDiskCache(t.TempDir(), 1<<30, bubbleEnv(), newTroubles(slog.New(slog.DiscardHandler), bubbleEnv()))
		require.NoError(t, err)
		body := make([]byte, 1<<20)
		for i := range 2 * maxDiskQueue >> 20 {
			d.put(diskKey{diskTestID, int64(i), 1 << 20}, body)
		}
		require.Len(t, d.queue, maxDiskQueue>>20)
		require.EqualValues(t, maxDiskQueue>>20, d.dropped.Load())
		end := runDisk(t, d)
		synctest.Wait()
		require.Zero(t, d.queued)
		end()

		d, err = newDiskCache(t.TempDir(), 1<<30, bubbleEnv(), newTroubles(slog.New(slog.DiscardHandler), bubbleEnv()))
		require.NoError(t, err)
		for i := range maxDiskJobs + 5 {
			d.put(diskKey{diskTestID, int64(i), 1}, body[:1])
		}
		require.Len(t, d.queue, maxDiskJobs)
		require.EqualValues(t, 5, d.dropped.Load())
		runDisk(t, d)()
		require.Nil(t, d.queue, "ending does not wait for the queue")
	})
}

// Files open for reading are bounded; a reader that gives up does not wait (F40).
func TestDiskCacheReadsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var mu sync.Mutex
		var open, most int
		d, _ := openDiskTest(t, t.TempDir(), 16<<20, func(d *diskCache) {
			d.readFile = func(string, int64) ([]byte, error) {
				mu.Lock()
				open++
				most = max(most, open)
				mu.Unlock()
				<-release
				mu.Lock()
				open--
				mu.Unlock()
				return nil, errors.New("boom")
			}
		})
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() { d.get(t.Context(), testKey(i)) })
		}
		synctest.Wait()
		require.Equal(t, maxDiskReads, open)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, ok := d.get(ctx, testKey(1))
		require.False(t, ok)
		close(release)
		wg.Wait()
		require.Equal(t, maxDiskReads, most)
		require.EqualValues(t, 1000, d.failures.Load())
	})
}

// A distrusted object is gone and stays out; the others stay.
func TestDiskCacheDistrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d, _ := openDiskTest(t, dir, 16<<20, nil)
		bad := []diskKey{{diskTestID, 0, 10}, {diskTestID, 10, 10}}
		fill(d, append(bad, testKey(1))...)
		require.True(t, d.distrust(diskTestID))
		require.False(t, has(t, d, bad[0]), "at once")
		fill(d, bad...)
		require.True(t, d.distrust(diskTestID), "whoever meets it next reads again too")
		for _, k := range bad {
			require.False(t, has(t, d, k))
		}
		require.True(t, has(t, d, testKey(1)))
		files, used := diskUse(t, dir)
		require.Equal(t, 1, files)
		require.Equal(t, used, d.bytes.Load())
		for i := range maxDistrusted - 1 {
			require.True(t, d.distrust(testKey(i).id))
		}
		require.False(t, d.distrust(base.ULID{0xff}), "bounded")
		require.True(t, d.distrust(diskTestID))
	})
}

// Readers, writers, damage and evictions at the same time: a hit is always right.
func TestDiskCacheConcurrently(t *testing.T) {
	dir := t.TempDir()
	d, end := openDiskTest(t, dir, 512<<10, nil)
	var wg sync.WaitGroup
	// What is put is written by a goroutine that may get its first turn when all of these are through.
	began := time.Now()
	goOn := func(i int) bool { return i < 300 || d.hits.Load() < 10 && time.Since(began) < patience }
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for i := 0; goOn(i); i++ {
				k := testKey(rnd.IntN(300))
				switch rnd.IntN(12) {
				case 0:
					_ = os.WriteFile(d.path(k), []byte(strings.Repeat("x", rnd.IntN(6000))), 0o600)
				case 1:
					_ = os.Remove(d.path(k))
				default:
					if !has(t, d, k) {
						d.put(k, diskBody(k))
					}
				}
			}
		})
	}
	wg.Wait()
	end()
	require.NotZero(t, d.hits.Load())
}

func BenchmarkDiskCacheHit(b *testing.B) {
	for _, n := range []int64{4 << 10, 32 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n>>10, "KiB"), func(b *testing.B) {
			d, end := openDiskTest(b, b.TempDir(), 64<<20, nil)
			defer end()
			k := diskKey{diskTestID, 0, n}
			d.put(k, diskBody(k))
			for !has(b, d, k) {
				d.put(k, diskBody(k))
			}
			b.SetBytes(n)
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := d.get(b.Context(), k); !ok {
					b.Fatal("a miss")
				}
			}
		})
	}
}

func BenchmarkDiskCacheMiss(b *testing.B) {
	d, end := openDiskTest(b, b.TempDir(), 64<<20, nil)
	defer end()
	b.ReportAllocs()
	for b.Loop() {
		d.get(b.Context(), testKey(1))
	}
}

// Writing while the cache is full, with evictions.
func BenchmarkDiskCacheWrite(b *testing.B) {
	d, err := newDiskCache(b.TempDir(), 64<<20, base.SystemEnv(), newTroubles(slog.New(slog.DiscardHandler), base.SystemEnv()))
	require.NoError(b, err)
	defer d.end()
	body := make([]byte, 16<<10)
	b.SetBytes(int64(len(body)))
	i := 0
	for b.Loop() {
		i++
		d.keep(diskKey{testKey(i).id, int64(i), int64(len(body))}, body)
	}
	require.Zero(b, d.failures.Load())
}
