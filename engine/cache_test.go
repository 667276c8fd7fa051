package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/sst"
)

// fakeBlock is a block of some size.
type fakeBlock int

func (b fakeBlock) MemoryBytes() int { return int(b) }

func blockKey(table, block int) sst.BlockKey {
	return sst.BlockKey{ID: base.ULID{byte(table), byte(table >> 8), 1}, Offset: uint64(block)}
}

func (b *blockCache) size() uint64 { return b.meta.WeightedSize() + b.data.WeightedSize() }

// Ten budgets of data leave the metadata of the tables that are in use alone,
// and the whole never takes more than the budget and one block.
func TestMetadataSurvivesAScan(t *testing.T) {
	const budget, block, tables, perTable = 1 << 20, 8 << 10, 40, 3
	b := newBlockCache(budget)
	put := func(k sst.BlockKey, metadata bool) {
		b.Put(k, fakeBlock(block), metadata)
		require.LessOrEqual(t, b.size(), uint64(budget+block+blockOverhead))
	}
	for i := range tables { // 40 * 8 KiB: less than half
		put(blockKey(i, 0), true)
	}
	for i := range 10 * budget / block {
		put(blockKey(1000+i/perTable, i), false)
	}
	for i := range tables {
		_, ok := b.Get(blockKey(i, 0))
		require.True(t, ok, i)
	}
	require.Greater(t, b.size(), uint64(budget*9/10), "data has what metadata leaves")

	// A scan over many tables brings their metadata too: what is used stays.
	for i := range 10 * budget / block {
		put(blockKey(5000+i/20, i), i%20 == 0)
		for j := range 4 {
			b.Get(blockKey(i/10%10*4+j, 0))
		}
	}
	kept := 0
	for i := range tables {
		if _, ok := b.Get(blockKey(i, 0)); ok {
			kept++
		}
	}
	require.Greater(t, kept, tables*9/10)
}

// Metadata takes no more than half, and data all of it when there is none.
func TestCacheShares(t *testing.T) {
	const budget, block = 1 << 20, 4 << 10
	b := newBlockCache(budget)
	for i := range 2 * budget / block {
		b.Put(blockKey(1, i), fakeBlock(block), false)
	}
	require.Greater(t, b.data.WeightedSize(), uint64(budget*9/10))
	for i := range 2 * budget / block {
		b.Put(blockKey(2, i), fakeBlock(block), true)
		require.LessOrEqual(t, b.size(), uint64(budget))
	}
	require.LessOrEqual(t, b.meta.WeightedSize(), uint64(budget/2))
	require.Greater(t, b.meta.WeightedSize(), uint64(budget*4/10))
	require.Greater(t, b.data.WeightedSize(), uint64(budget*4/10))
}

func TestCacheOfNoUse(t *testing.T) {
	for budget := range int64(300) {
		b := newBlockCache(budget + 1)
		for i := range 10 {
			b.Put(blockKey(1, i), fakeBlock(1000), i%2 == 0)
			require.Zero(t, b.size())
		}
		_, ok := b.Get(blockKey(1, 9))
		require.False(t, ok)
	}
}

func TestCacheConcurrently(t *testing.T) {
	b := newBlockCache(256 << 10)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 9))
			for range 5000 {
				k := blockKey(rnd.IntN(10), rnd.IntN(50))
				if _, ok := b.Get(k); !ok {
					b.Put(k, fakeBlock(500+rnd.IntN(4000)), k.Offset%4 == 0)
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, b.size(), uint64(256<<10))
	require.LessOrEqual(t, b.meta.WeightedSize()+b.data.GetMaximum(), uint64(256<<10))
}

func BenchmarkCacheGet(b *testing.B) {
	for _, metadata := range []bool{true, false} {
		b.Run(fmt.Sprint("metadata=", metadata), func(b *testing.B) {
			c := newBlockCache(1 << 20)
			c.Put(blockKey(1, 1), fakeBlock(1000), metadata)
			for b.Loop() {
				c.Get(blockKey(1, 1))
			}
		})
	}
}

// cachedKeys fills a log with tables and returns what its keys hold.
func cachedKeys(t *testing.T, db *DB) map[string][]string {
	t.Helper()
	want := map[string][]string{}
	rnd := rand.New(rand.NewPCG(3, 3))
	for i := range 400 {
		k := fmt.Sprint("key", i%20)
		v := fmt.Sprint(i, " ", rnd.Uint64(), strings.Repeat(" .", rnd.IntN(200)))
		mustAppend(t, db, record(k, v))
		want[k] = append(want[k], v)
		if i%100 == 99 {
			require.NoError(t, db.Flush(t.Context()))
		}
	}
	return want
}

func requireKeys(t *testing.T, r LogReader, want map[string][]string) {
	t.Helper()
	for k, v := range want {
		require.Equal(t, v, values(t, r, k, All(), ScanOptions{}))
	}
}

// diskOptions read everything from the disk or the store, nothing from memory.
func diskOptions(dir string) Options {
	o := smallOptions()
	o.CacheBytes, o.RecentBytes = 1, 1
	o.DiskCacheDir = dir
	return o
}

// warm reads until nothing needs the store any more.
func warm(t *testing.T, db *DB, want map[string][]string) {
	t.Helper()
	require.Eventually(t, func() bool {
		before := db.Status().TableReads
		requireKeys(t, db, want)
		return db.Status().TableReads == before
	}, patience, time.Millisecond)
}

// A log that was restarted reads from the disk what was read before.
func TestDiskCacheOfALog(t *testing.T) {
	store, dir := newStore(), t.TempDir()
	db := openTest(t, store, diskOptions(dir))
	want := cachedKeys(t, db)
	warm(t, db, want)
	s := db.Status()
	require.NotZero(t, s.DiskCacheHits)
	require.NotZero(t, s.DiskCacheMisses)
	require.NotZero(t, s.DiskCacheBytes)
	require.NotZero(t, s.TableReadTime)
	require.Zero(t, s.DiskCacheErrors)
	require.NoError(t, db.Close(t.Context()))

	o := diskOptions(dir)
	o.DisableCompaction = true // its tables would be new
	db = openTest(t, store, o)
	requireKeys(t, db, want)
	s = db.Status()
	require.Zero(t, s.TableReads)
	require.Zero(t, s.DiskCacheMisses)
	require.NotZero(t, s.DiskCacheHits)

	// F36, while the log is read: cut, scribble, delete.
	for name, damage := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 60) },
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"zeroes":  func(path string) error { return os.WriteFile(path, make([]byte, 1000), 0o600) },
		"deleted": os.Remove,
	} {
		files, err := filepath.Glob(filepath.Join(dir, "*", "*-*-*"))
		require.NoError(t, err)
		require.NotEmpty(t, files, name)
		for _, f := range files {
			require.NoError(t, damage(f))
		}
		requireKeys(t, db, want)
		warm(t, db, want)
	}
	require.NoError(t, os.RemoveAll(dir))
	requireKeys(t, db, want)
	require.NotZero(t, db.Status().DiskCacheErrors)
}

// Two logs that are open with one folder: the second has no disk cache, and works.
func TestDiskCacheSharedByMistake(t *testing.T) {
	dir := t.TempDir()
	first := openTest(t, newStore(), diskOptions(dir))
	second := openTest(t, newStore(), diskOptions(dir))
	want := cachedKeys(t, second)
	requireKeys(t, second, want)
	require.Zero(t, second.Status().DiskCacheMisses)
	require.NotNil(t, first.tables.disk)
}

// wrongBytes changes a byte of what GETs of tables return while it is on.
type wrongBytes struct {
	objstore.Store
	on atomic.Bool
}

func (s *wrongBytes) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	obj, err := s.Store.Get(ctx, name, o)
	if err == nil && s.on.Load() && strings.HasSuffix(name, ".sst") {
		obj.Body[len(obj.Body)/2] ^= 1
	}
	return obj, err
}

// F35: an answer that was wrong once is not kept on the disk; one that is wrong
// for good is an error that names the object, not an endless loop.
func TestDiskCacheKeepsNothingWrong(t *testing.T) {
	store := &wrongBytes{Store: newStore()}
	dir := t.TempDir()
	db := openTest(t, store, diskOptions(dir))
	want := cachedKeys(t, db)
	read := func() error {
		it := db.Scan(t.Context(), []byte("key3"), All(), ScanOptions{})
		for range it.All() {
		}
		return it.Err()
	}
	store.on.Store(true)
	before := db.Status().TableReads
	err := read()
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, ".sst")
	require.LessOrEqual(t, db.Status().TableReads-before, uint64(2*4))
	store.on.Store(false)
	requireKeys(t, db, want)
	require.NoError(t, db.Close(t.Context()))

	// A wrong range that has got to the disk, as if it were received so.
	db = openTest(t, store, diskOptions(dir))
	warm(t, db, want)
	require.NoError(t, db.Close(t.Context()))
	files, err := filepath.Glob(filepath.Join(dir, "*", "*-*-*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		k, ok := parseDiskName(filepath.Base(f))
		require.True(t, ok)
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		body := b[diskHeader:]
		body[len(body)/2] ^= 1
		require.NoError(t, os.WriteFile(f, diskFile(k, body), 0o600))
	}
	db = openTest(t, store, diskOptions(dir))
	for range 2 {
		// Each read tries once more, and one read may meet several tables.
		for range len(files) {
			if err = read(); err == nil {
				break
			}
			require.ErrorIs(t, err, ErrCorrupt)
		}
		require.NoError(t, err)
	}
}

// A slow GET of a log's table is sent again, and both are counted.
func TestHedgedReadOfALog(t *testing.T) {
	var slow atomic.Bool
	var hung atomic.Int64
	store := fault.New(newStore(), func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind != fault.Get || !strings.HasSuffix(op.Name, ".sst") || !slow.CompareAndSwap(true, false) {
			return fault.Plan{}
		}
		hung.Add(1)
		return fault.Plan{Before: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	})
	db := openTest(t, store, diskOptions(""))
	want := cachedKeys(t, db)
	for db.Status().TableReads < 4*minLatencySamples {
		requireKeys(t, db, want)
	}
	slow.Store(true)
	requireKeys(t, db, want)
	require.EqualValues(t, 1, hung.Load())
	require.GreaterOrEqual(t, db.Status().TableReadHedges, uint64(1))
}

func TestDiskCacheOptions(t *testing.T) {
	require.NoError(t, Options{DiskCacheDir: "x"}.Validate())
	require.EqualValues(t, DefaultDiskCacheBytes, Options{DiskCacheDir: "x"}.withDefaults().DiskCacheBytes)
	require.Zero(t, Options{}.withDefaults().DiskCacheBytes)
	require.NoError(t, Options{DiskCacheDir: "x", DiskCacheBytes: minDiskCacheBytes}.Validate())
	require.ErrorContains(t, Options{DiskCacheBytes: 1 << 30}.Validate(), "there is no DiskCacheDir")
	require.ErrorContains(t, Options{DiskCacheDir: "x", DiskCacheBytes: minDiskCacheBytes - 1}.Validate(), "DiskCacheBytes is 16777215; it must be at least 16777216")
	require.ErrorContains(t, Options{DiskCacheDir: "x", DiskCacheBytes: -1}.Validate(), "DiskCacheBytes is -1")
}
