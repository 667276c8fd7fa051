package fuzz

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// scaled returns a size of a test, another one if it has to be short.
func scaled(usual, short int) int {
	if testing.Short() || raceEnabled {
		return short
	}
	return usual
}

// sampled returns which request is broken after request n: further and further away, so that
// a part of n are passed over; more of them if the test has to be short.
func sampled(n, part int) int {
	if testing.Short() || raceEnabled {
		return 3*n + 1
	}
	return n + 1 + n/part
}

// gauge measures the live heap at store operations, without what the store holds.
type gauge struct {
	store *mem.Store
	every int   // so many operations
	base  int64 // what was in use before

	mu    sync.Mutex
	calls int
	most  int64
}

func newGauge(store *mem.Store, every int) *gauge {
	g := &gauge{store: store, every: every}
	g.base = g.live()
	return g
}

func (g *gauge) hook(context.Context, fault.Op) fault.Plan {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls++; g.calls%g.every == 0 {
		g.most = max(g.most, g.live())
	}
	return fault.Plan{}
}

// live is what is in use now.
func (g *gauge) live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) - g.store.Bytes() - g.base
}

// take returns the most that was in use since the last call.
func (g *gauge) take() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := max(g.most, g.live())
	g.most = 0
	return most
}

// scaleOptions keep little in memory, so that it shows if something keeps all.
func scaleOptions() engine.Options {
	o := options()
	o.DisableCompaction = false
	o.MemtableBytes, o.RecentBytes, o.CacheBytes, o.MaxUnflushedBytes, o.MaxValueBytes = 4<<20, 4<<20, 4<<20, 16<<20, 1<<20
	o.WALObjectBytes, o.TableBytes, o.SegmentBytes, o.SegmentMinBytes = 1<<20, 512<<10, 1<<20, 1
	return o
}

// TestF41MillionsOfKeys writes, compacts and lists keys that occur once each. What is held in
// memory does not depend on how many there are.
func TestF41MillionsOfKeys(t *testing.T) {
	failure(t, "once each", func(t *testing.T) {
		budget := int64(scaled(32<<20, 12<<20)) // a memtable of all keys would take 120 MiB, or 15
		n := scaled(1_000_000, 120_000)
		r := newRig(t)
		g := newGauge(r.mem, 20)
		r.rule(g.hook)
		db := r.open(scaleOptions())
		const batchKeys = 5000
		for i := 0; i < n; i += batchKeys {
			recs := make([]engine.Record, 0, batchKeys)
			for j := range uint64(batchKeys) {
				number := uint64(i) + j
				recs = append(recs, engine.Record{Key: fmt.Appendf(nil, "key-%016x", number*0x9E3779B97F4A7C15), Value: fmt.Append(nil, number)})
			}
			_, err := db.Append(t.Context(), recs, engine.AppendOptions{})
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond) // simulated
		}
		require.Less(t, g.take(), budget, "while they are written")
		require.NoError(t, db.Flush(t.Context()))
		time.Sleep(5 * time.Minute)
		require.NotZero(t, db.Status().Compaction.Jobs)
		require.Zero(t, db.Status().Compaction.Failures)
		require.Less(t, g.take(), budget, "while they are compacted")

		listed := 0
		var last []byte
		for o := (engine.KeysOptions{}); ; o.After = last {
			page, err := db.Keys(t.Context(), o)
			require.NoError(t, err)
			for _, key := range page.Keys {
				require.Negative(t, bytes.Compare(last, key))
				last = key
			}
			listed += len(page.Keys)
			require.Less(t, g.take(), budget, "while they are listed")
			if !page.More {
				break
			}
		}
		require.Equal(t, n, listed)
		for _, number := range []uint64{0, uint64(n) / 2, uint64(n) - 1} {
			recs, err := collect(db.Scan(t.Context(), fmt.Appendf(nil, "key-%016x", number*0x9E3779B97F4A7C15), engine.All(), engine.ScanOptions{}))
			require.NoError(t, err)
			require.Len(t, recs, 1)
			require.Equal(t, number, recs[0].Sequence)
		}
	})
}

// TestF40Replay lets a thousand clients read their own history, and one that they
// share, at the same time and page by page.
func TestF40Replay(t *testing.T) {
	failure(t, "a thousand clients", func(t *testing.T) {
		const clients = 1000
		own, shared := 20, scaled(1000, 200)
		r := newRig(t)
		o := scaleOptions()
		o.RecentBytes, o.SegmentBytes = 1, 8<<20
		db := r.open(o)
		for i := range own {
			recs := make([]engine.Record, 0, clients+shared/own)
			for j := range clients {
				recs = append(recs, engine.Record{Key: fmt.Appendf(nil, "client %d", j), Value: []byte(noise(i*clients+j, 500))})
			}
			for j := range shared / own {
				recs = append(recs, engine.Record{Key: []byte("shared"), Value: []byte(noise(-i*clients-j, 1000))})
			}
			_, err := db.Append(t.Context(), recs, engine.AppendOptions{})
			require.NoError(t, err)
			require.NoError(t, db.Flush(t.Context()))
		}
		time.Sleep(5 * time.Minute)

		c := &replay{db: db, gauge: newGauge(r.mem, 500), own: own, shared: shared}
		r.rule(c.hook)
		began := time.Now()
		took := make([]time.Duration, clients)
		group, ctx := errgroup.WithContext(t.Context())
		for j := range clients {
			group.Go(func() error {
				err := c.run(ctx, j)
				took[j] = time.Since(began)
				return err
			})
		}
		require.NoError(t, group.Wait())
		require.LessOrEqual(t, slices.Max(took), 3*slices.Min(took)+time.Second, "nobody waits much longer than others")
		// One for each, those that are fetched ahead for all together, and second requests.
		require.LessOrEqual(t, c.most, clients+128+clients/20+8, "requests under way at the same time")
		require.Less(t, c.gauge.take(), int64(clients)*256<<10, "a page and a few blocks each")
		require.Zero(t, c.underWay)
	})
}

// replay counts what a thousand clients do to the store.
type replay struct {
	db          *engine.DB
	gauge       *gauge
	own, shared int // records

	mu             sync.Mutex
	underWay, most int // guarded by mu
}

// hook makes every read of a range take a while.
func (c *replay) hook(_ context.Context, op fault.Op) fault.Plan {
	if !rangeOf(op) {
		return fault.Plan{}
	}
	return fault.Plan{
		Before: func(context.Context) error {
			c.add(1)
			time.Sleep(20 * time.Millisecond)
			return nil
		},
		After: func(ctx context.Context) error {
			c.gauge.hook(ctx, op)
			c.add(-1)
			return nil
		},
	}
}

func (c *replay) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay += n
	c.most = max(c.most, c.underWay)
}

// run is one client.
func (c *replay) run(ctx context.Context, client int) error {
	for key, want := range map[string]int{fmt.Sprint("client ", client): c.own, "shared": c.shared} {
		n, cursor := 0, uint64(0)
		for {
			it := c.db.Scan(ctx, []byte(key), engine.From(cursor), engine.ScanOptions{Limit: 100, MaxBytes: 64 << 10})
			page := 0
			for rec := range it.All() {
				if rec.Sequence < cursor {
					return fmt.Errorf("%s: record %d after %d", key, rec.Sequence, cursor)
				}
				cursor = rec.Sequence + 1
				page++
			}
			if it.Err() != nil {
				return it.Err()
			}
			if n += page; page == 0 {
				break
			}
		}
		if n != want {
			return fmt.Errorf("%s: %d records, want %d", key, n, want)
		}
	}
	return nil
}
