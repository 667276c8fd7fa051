package engine

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

// gatedTables is a store whose PUTs of tables wait, each for its own gate, in the order in which they begin. Later
// ones begin with a time that is an hour lower each, as if those before had been applied much later.
type gatedTables struct {
	objstore.Store
	begun chan int // numbers of PUTs, as they begin
	gates []chan struct{}
	next  chan int
}

func newGatedTables(inner objstore.Store, n int) *gatedTables {
	g := &gatedTables{Store: inner, begun: make(chan int, n), next: make(chan int, n)}
	for i := range n {
		g.gates = append(g.gates, make(chan struct{}))
		g.next <- i
	}
	return g
}

func (g *gatedTables) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	if !strings.Contains(name, "/sst/") {
		return g.Store.Put(ctx, name, body, o)
	}
	i := <-g.next
	g.begun <- i
	select {
	case <-g.gates[i]:
	case <-ctx.Done():
		return objstore.PutResult{}, ctx.Err()
	}
	res, err := g.Store.Put(ctx, name, body, o)
	res.Time = res.Time.Add(-time.Duration(i) * time.Hour)
	return res, err
}

// fillSegments appends records each of which fills a segment, without waiting for more than memory.
func fillSegments(t *testing.T, db *DB, n int) {
	t.Helper()
	for range n {
		_, err := db.Append(t.Context(), []Record{{Key: []byte("k"), Value: bytes.Repeat([]byte("v"), 1<<10)}}, AppendOptions{Ack: Memory})
		require.NoError(t, err)
	}
}

// Runs are uploaded at the same time, at most so many, and committed in their order, with seal times that never fall.
func TestUploadsOverlap(t *testing.T) {
	const runs = maxBuiltRuns + 2
	store := newGatedTables(newStore(), runs+1)
	db := openTest(t, store, Options{FlushInterval: time.Millisecond, SegmentBytes: 1 << 10, DisableCompaction: true})
	fillSegments(t, db, runs)
	for i := range maxBuiltRuns {
		require.Equal(t, i, <-store.begun)
	}
	require.NoError(t, db.WaitDurable(t.Context(), runs-1))
	select {
	case i := <-store.begun:
		t.Fatalf("upload %d has begun while none of %d was committed", i, maxBuiltRuns)
	default:
	}
	require.Zero(t, db.Status().Flushes)

	for i := maxBuiltRuns - 1; i > 0; i-- { // what is later is there first, and waits
		close(store.gates[i])
	}
	require.Zero(t, db.Status().Flushes)
	close(store.gates[0])
	for i := maxBuiltRuns; i <= runs; i++ {
		close(store.gates[i])
	}
	require.NoError(t, db.Flush(t.Context()))

	var last int64
	sealed := 0
	for _, s := range db.Head().Segments {
		if s.Sealed {
			sealed++
			require.GreaterOrEqual(t, s.SealTimeMs, last, "segment %d", s.Id)
			last = s.SealTimeMs
		}
	}
	require.GreaterOrEqual(t, sealed, maxBuiltRuns)
}

// A segment that is sealed when all of it is in runs asks the store's time itself: it is not below that of an upload which
// was answered before.
func TestSealOfNothingNeverFalls(t *testing.T) {
	db := openTest(t, newStore(), Options{FlushInterval: time.Millisecond, DisableCompaction: true})
	fillSegments(t, db, 1)
	require.NoError(t, db.Flush(t.Context()))
	later := time.Now().Add(time.Hour)
	db.mu.Lock()
	db.lastWritten = later // commitLoop has nothing to do, and sees it by the lock
	db.rotate(true)
	db.mu.Unlock()
	require.NoError(t, db.waitFlushed(t.Context(), math.MaxUint64))
	require.Equal(t, later.UnixMilli(), db.Head().Segments[0].SealTimeMs)
}
