package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/sst"
)

// blockCache keeps decoded blocks within one byte budget. Metadata, of which a
// block serves many keys, is kept apart from data and never makes room for it: it
// takes what it needs, up to half of the budget, and data has the rest. So a scan
// of any length costs other readers no metadata. Blocks are those of tables, and the key
// shards, tails and table lists of groups' indexes, all metadata. Safe for concurrent use.
type blockCache struct {
	meta, data   *otter.Cache[sst.BlockKey, sst.Block]
	hits, misses atomic.Uint64

	budget uint64
	taken  atomic.Uint64 // what data may not use: all bytes of meta, rounded up
	mu     sync.Mutex    // for changes of taken
}

const (
	// blockOverhead is what an entry costs beside its block's own bytes.
	blockOverhead = 128
	// Metadata takes its share of the budget in so many steps.
	metaSteps = 32
)

func newBlockCache(budget int64) *blockCache {
	b := &blockCache{budget: uint64(budget)}
	b.meta, b.data = newBlocks(max(1, b.budget/2)), newBlocks(b.budget)
	return b
}

func newBlocks(maximum uint64) *otter.Cache[sst.BlockKey, sst.Block] {
	return otter.Must(&otter.Options[sst.BlockKey, sst.Block]{
		MaximumWeight: maximum,
		// No goroutines of its own: the budget holds when Put returns, and a
		// simulation decides everything.
		Executor: func(f func()) { f() },
		Weigher: func(_ sst.BlockKey, b sst.Block) uint32 {
			return uint32(min(int64(b.MemoryBytes())+blockOverhead, 1<<32-1))
		},
	})
}

// Get implements sst.Cache.
func (b *blockCache) Get(k sst.BlockKey) (sst.Block, bool) {
	block, ok := b.meta.GetIfPresent(k)
	if !ok {
		block, ok = b.data.GetIfPresent(k)
	}
	if ok {
		b.hits.Add(1)
	} else {
		b.misses.Add(1)
	}
	return block, ok
}

// Put implements sst.Cache.
func (b *blockCache) Put(k sst.BlockKey, block sst.Block, metadata bool) {
	if !metadata {
		b.data.Set(k, block)
		return
	}
	b.meta.Set(k, block)
	if b.share() == b.taken.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if share := b.share(); share != b.taken.Load() {
		b.data.SetMaximum(b.budget - share)
		b.taken.Store(share)
	}
}

// share is what metadata takes of the budget: its bytes, rounded up to a step.
func (b *blockCache) share() uint64 {
	step := max(1, b.budget/2/metaSteps)
	return min((b.meta.WeightedSize()+step-1)/step*step, b.budget/2)
}

// tables opens the tables of a log for reading: ranges come from the disk cache
// or the store, each missing range by one request however many readers want it at
// once.
type tables struct {
	store  objstore.Store
	env    *base.Env
	cache  *blockCache // nil: none
	disk   *diskCache  // nil: none
	hedge  hedger
	flight flight
	ahead  slots // for what reads have fetched ahead
	gets   atomic.Uint64
	bytes  atomic.Uint64
	took   atomic.Int64 // nanoseconds of all gets together

	unreadable *trouble               // nil: nobody is told
	refused    atomic.Pointer[string] // the object that could not be read last, until it can
	trying     atomic.Bool            // it is being tried again
}

// report fills in what a status says about the disk cache and slow reads.
func (ts *tables) report(s *Status) {
	s.TableReadTime = time.Duration(ts.took.Load())
	s.TableReadHedges = ts.hedge.sent.Load()
	if d := ts.disk; d != nil {
		s.DiskCacheBytes = d.bytes.Load()
		s.DiskCacheHits, s.DiskCacheMisses = d.hits.Load(), d.misses.Load()
		s.DiskCacheErrors, s.DiskCacheEvictions = d.failures.Load(), d.evictions.Load()
		s.DiskCacheDropped = d.dropped.Load()
	}
}

// Reads of a range are tried a few times: a failed GET may be a passing fault,
// and the store's own retries do not cover what only we can see.
const (
	readAttempts     = 3
	readBackoffFirst = 20 * time.Millisecond
	readBackoffLimit = 500 * time.Millisecond
)

// opening says how a table is opened.
type opening struct {
	reads *atomic.Uint32 // counts the ranges that were not in memory, if not nil
	// known: the table is known to hold the key, so that its filter is of no use.
	known      bool
	background sst.Background // as in sst.ReaderOptions
	readAhead  int64          // as in sst.ReaderOptions
}

// open returns a reader of the table. Its root block is in the cache unless the
// table is new to it.
func (ts *tables) open(ctx context.Context, t *viewTable, o opening) (*sst.Reader, error) {
	options := sst.ReaderOptions{
		Name:       t.name,
		ID:         t.id.ULID,
		Size:       t.size,
		MetaOffset: t.metaOffset,
		Source:     &tableSource{tables: ts, name: t.name, id: t.id.ULID, reads: o.reads},
		SkipFilter: o.known,
		Background: o.background,
		ReadAhead:  o.readAhead,
	}
	if ts.cache != nil {
		options.Cache = ts.cache
	}
	return sst.Open(ctx, options)
}

// source reads ranges of an index.
func (ts *tables) source(id base.ObjectID, reads *atomic.Uint32) *tableSource {
	return &tableSource{tables: ts, name: id.Name(), id: id.ULID, reads: reads}
}

// cached returns a block from the cache, or nil.
func (ts *tables) cached(k sst.BlockKey) sst.Block {
	if ts.cache == nil {
		return nil
	}
	b, _ := ts.cache.Get(k)
	return b
}

// keep puts a block of metadata into the cache.
func (ts *tables) keep(k sst.BlockKey, b sst.Block) {
	if ts.cache != nil {
		ts.cache.Put(k, b, true)
	}
}

// tableSource reads ranges of one object.
type tableSource struct {
	tables *tables
	name   string
	id     base.ULID
	reads  *atomic.Uint32 // counts them, if not nil
}

// ReadRange implements sst.RangeReader.
func (s *tableSource) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	if s.reads != nil {
		s.reads.Add(1)
	}
	return s.tables.flight.do(ctx, s.tables.env, rangeKey{s.name, off, n}, func(ctx context.Context) ([]byte, error) {
		disk, key := s.tables.disk, diskKey{s.id, off, n}
		if body, ok := disk.get(ctx, key); ok {
			return body, nil
		}
		body, err := s.tables.read(ctx, s.name, off, n)
		if err == nil {
			disk.put(key, body)
		}
		return body, err
	})
}

func (ts *tables) read(ctx context.Context, name string, off, n int64) ([]byte, error) {
	obj, err := ts.readSized(ctx, name, off, n)
	return obj.Body, err
}

// readSized is read that also tells the size of the object, even when that is why the range cannot be read (0: not known).
func (ts *tables) readSized(ctx context.Context, name string, off, n int64) (objstore.Object, error) {
	for attempt := 0; ; attempt++ {
		obj, err := ts.hedge.get(ctx, ts.env, n, func(ctx context.Context) (objstore.Object, error) {
			began := ts.env.Elapsed()
			obj, err := ts.store.Get(ctx, name, objstore.GetOptions{Offset: off, Length: n, MaxBytes: n})
			ts.gets.Add(1)
			ts.took.Add(int64(ts.env.Elapsed() - began))
			return obj, err
		})
		switch {
		case err != nil:
		case int64(len(obj.Body)) == n:
			ts.bytes.Add(uint64(n))
			return obj, nil
		case obj.Size < off+n:
			return sizeOnly(obj), base.Corruptf(name, off, "the object has %d bytes and ends within the range of %d bytes", obj.Size, n)
		default: // the body ended early: it is read again (F35)
			err = base.Corruptf(name, off+int64(len(obj.Body)), "a read of %d bytes gave %d", n, len(obj.Body))
		}
		if errors.Is(err, objstore.ErrRange) {
			return objstore.Object{}, base.Corruptf(name, off, "the object ends before here: %v", err)
		}
		if ctx.Err() != nil || !worthRetrying(err) || attempt+1 >= readAttempts {
			if ctx.Err() == nil {
				ts.note(name, err)
			}
			return objstore.Object{}, fmt.Errorf("read %s: %w", name, err)
		}
		if err := ts.env.Sleep(ctx, ts.env.Backoff(readBackoffFirst, readBackoffLimit, attempt)); err != nil {
			return objstore.Object{}, fmt.Errorf("read %s: %w", name, err)
		}
	}
}

// note tells of a read that the store failed. That an object is missing or damaged is for the reader to say.
func (ts *tables) note(name string, err error) {
	if ts.unreadable != nil && (objstore.Lasting(err) || errors.Is(err, objstore.ErrUnavailable)) {
		ts.unreadable.note(err)
		ts.refused.Store(&name) // after the note: tryAgain, which ends the trouble, must find it as long as that lasts
	}
}

// tryAgain finds out, in the background, whether the object that could not be read can be by now: while the log is not
// ready for that, there may be nobody else who tries. It asks for one byte, and for nothing while all is well.
func (ts *tables) tryAgain(life context.Context, spawn func(string, func())) {
	name := ts.refused.Load()
	if name == nil || !ts.trying.CompareAndSwap(false, true) {
		return
	}
	spawn("try a table again", func() {
		defer ts.trying.Store(false)
		ctx, cancel := context.WithCancel(life)
		defer cancel()
		defer ts.env.AfterFunc(tryLimit, cancel)()
		_, err := ts.store.Get(ctx, *name, objstore.GetOptions{Length: 1})
		switch {
		case life.Err() != nil:
		case ctx.Err() != nil:
			ts.unreadable.note(fmt.Errorf("get %s: no answer for %v: %w", *name, tryLimit, objstore.ErrUnavailable))
		case objstore.Lasting(err) || errors.Is(err, objstore.ErrUnavailable):
			ts.unreadable.note(err)
		case ts.refused.CompareAndSwap(name, nil): // else another one was refused meanwhile
			ts.unreadable.note(nil)
		}
	})
}

// tryLimit bounds one look of tryAgain.
const tryLimit = 30 * time.Second

// sizeOnly is an object without a body that the caller must not use.
func sizeOnly(obj objstore.Object) objstore.Object {
	obj.Body = nil
	return obj
}

// distrust reports whether it helps to read again an object that err calls
// corrupt: the wrong bytes may come from the disk cache, which kept what was once
// received, and from now on keeps nothing of the object.
func (ts *tables) distrust(err error) bool {
	if err == nil || ts.disk == nil {
		return false
	}
	var corrupt *base.CorruptError // allocated, so not on the usual way
	if !errors.As(err, &corrupt) {
		return false
	}
	id, ok := base.ParseObjectName(corrupt.Object)
	return ok && ts.disk.distrust(id.ULID)
}

// worthRetrying reports whether the same request might succeed a little later.
func worthRetrying(err error) bool {
	for _, final := range []error{
		objstore.ErrNotFound, objstore.ErrRange, objstore.ErrTooLarge, objstore.ErrName,
		objstore.ErrDenied, objstore.ErrNoBucket,
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}
