package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/sst"
)

// blockCache keeps decoded blocks within one byte budget. Safe for concurrent
// use.
type blockCache struct {
	c            *otter.Cache[sst.BlockKey, sst.Block]
	hits, misses atomic.Uint64
}

// blockOverhead is what an entry costs beside its block's own bytes.
const blockOverhead = 128

func newBlockCache(budget int64) *blockCache {
	return &blockCache{c: otter.Must(&otter.Options[sst.BlockKey, sst.Block]{
		MaximumWeight: uint64(budget),
		// No goroutines of its own: the budget holds when Put returns, and a
		// simulation decides everything.
		Executor: func(f func()) { f() },
		Weigher: func(_ sst.BlockKey, b sst.Block) uint32 {
			return uint32(min(int64(b.MemoryBytes())+blockOverhead, 1<<32-1))
		},
	})}
}

// Get implements sst.Cache.
func (b *blockCache) Get(k sst.BlockKey) (sst.Block, bool) {
	block, ok := b.c.GetIfPresent(k)
	if ok {
		b.hits.Add(1)
	} else {
		b.misses.Add(1)
	}
	return block, ok
}

// Put implements sst.Cache.
func (b *blockCache) Put(k sst.BlockKey, block sst.Block, _ bool) { b.c.Set(k, block) }

// tables opens the tables of a log for reading: ranges come from the store, each
// missing range by one request however many readers want it at once.
type tables struct {
	store  objstore.Store
	env    *base.Env
	cache  *blockCache
	flight flight
	gets   atomic.Uint64
	bytes  atomic.Uint64
}

// Reads of a range are tried a few times: a failed GET may be a passing fault,
// and the store's own retries do not cover what only we can see.
const (
	readAttempts     = 3
	readBackoffFirst = 20 * time.Millisecond
	readBackoffLimit = 500 * time.Millisecond
)

// open returns a reader of the table. Its root block is in the cache unless the
// table is new to it.
func (ts *tables) open(ctx context.Context, t *viewTable) (*sst.Reader, error) {
	return sst.Open(ctx, sst.ReaderOptions{
		Name:       t.name,
		ID:         t.id.ULID,
		Size:       t.size,
		MetaOffset: t.metaOffset,
		Source:     &tableSource{tables: ts, name: t.name},
		Cache:      ts.cache,
	})
}

// tableSource reads ranges of one object.
type tableSource struct {
	tables *tables
	name   string
}

// ReadRange implements sst.RangeReader.
func (s *tableSource) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	return s.tables.flight.do(ctx, rangeKey{s.name, off, n}, func() ([]byte, error) {
		return s.tables.read(ctx, s.name, off, n)
	})
}

func (ts *tables) read(ctx context.Context, name string, off, n int64) ([]byte, error) {
	for attempt := 0; ; attempt++ {
		obj, err := ts.store.Get(ctx, name, objstore.GetOptions{Offset: off, Length: n, MaxBytes: n})
		ts.gets.Add(1)
		if err == nil {
			if int64(len(obj.Body)) != n {
				return nil, base.Corruptf(name, off, "the object has %d bytes and ends within the range of %d bytes", obj.Size, n)
			}
			ts.bytes.Add(uint64(n))
			return obj.Body, nil
		}
		if ctx.Err() != nil || !worthRetrying(err) || attempt+1 >= readAttempts {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if err := ts.env.Sleep(ctx, ts.env.Backoff(readBackoffFirst, readBackoffLimit, attempt)); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
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
