package engine

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

// heapProbe looks now and then, when a GET is asked for, how much memory is in use.
type heapProbe struct {
	objstore.Store
	mu    sync.Mutex
	every int
	gets  int
	most  int64
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func (p *heapProbe) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	p.mu.Lock()
	if p.gets++; p.gets%p.every == 0 {
		p.most = max(p.most, heapInUse())
	}
	p.mu.Unlock()
	return p.Store.Get(ctx, name, o)
}

// A page of keys takes as much memory as one batch of tables and a page, however many tables there are: here
// eight batches, in groups and not.
func TestKeysMemoryIsBounded(t *testing.T) {
	const tables, keys, most = 8 * keysBatch, 300, 6 << 20
	l := newLayout(t)
	table := func(n int) []Record {
		return l.records(keys, func(i int) (string, string) { return fmt.Sprintf("key %06d %040d", i*tables+n, 0), "" })
	}
	for s := range tables / 2 {
		l.segment(true, table(s))
	}
	for range tables / 2 / 64 {
		l.group(64)
	}
	var runs [][]Record
	for s := tables / 2; s < tables; s++ {
		runs = append(runs, table(s))
	}
	l.segment(false, runs...)
	l.memory(l.records(100, func(i int) (string, string) { return fmt.Sprintf("key %06d in memory", i), "" }))

	probe := &heapProbe{Store: l.store, every: 60}
	c := l.open(probe, 1)
	before := heapInUse()
	page, err := c.Keys(t.Context(), KeysOptions{})
	require.NoError(t, err)
	require.Len(t, page.Keys, MaxPage)
	require.True(t, page.More)
	for i, k := range page.Keys {
		if i%2 == 1 && i < 200 {
			require.Equal(t, fmt.Sprintf("key %06d in memory", i/2), string(k))
		}
	}
	require.GreaterOrEqual(t, probe.gets, tables, "every table was looked at")
	require.Greater(t, probe.most, before)
	require.Less(t, probe.most-before, int64(most))

	// What one table costs: all of them at the same time would not fit.
	one := &heapProbe{Store: l.store, every: 1}
	c = l.open(one, 1)
	sources := make([]*keySource, tables)
	ls := newKeyLister(c, KeysOptions{})
	ls.rng = All()
	v := c.view.Load()
	before = heapInUse()
	for i := range sources[:tables/2] {
		sources[i] = &keySource{run: &v.runs[i]}
		require.NoError(t, sources[i].fill(t.Context(), ls, nil))
	}
	require.Greater(t, 2*(heapInUse()-before), int64(most), "half of the tables")
	runtime.KeepAlive(sources)
}

// Of a run one table is open at a time, and only as far as the page goes.
func TestKeysOpenFewTables(t *testing.T) {
	l := newLayout(t)
	l.perTable = 20
	for s := range 3 {
		l.segment(true, l.records(2000, func(i int) (string, string) { return fmt.Sprintf("key %06d", 3*i+s), "" }))
	}
	l.group(2)
	l.segment(false)
	for _, c := range []struct {
		o    KeysOptions
		gets int
	}{
		{KeysOptions{Limit: 10}, 1 + 2 + 3}, // an index, two lists or none, a table each
		{KeysOptions{Limit: 120}, 1 + 2 + 3*14},
		{KeysOptions{Limit: 10, After: []byte("key 003000")}, 1 + 2 + 3},
		{KeysOptions{Limit: 10, Prefix: []byte("key 00500")}, 1 + 2 + 3*2},
		{KeysOptions{Limit: 10, StartSegment: 3}, 1},
		{KeysOptions{Limit: 10, EndSegment: 2}, 1 + 1 + 1},
		{KeysOptions{Limit: 10, StartSegment: 4}, 0},
		{KeysOptions{Limit: 10, Prefix: []byte("z")}, 1 + 2},
	} {
		t.Run(fmt.Sprintf("%+v", c.o), func(t *testing.T) {
			m := l.metered()
			page, err := l.open(m, 1).Keys(t.Context(), c.o)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Keys), c.o.Limit)
			meta, data := m.gets()
			require.Zero(t, data)
			require.LessOrEqual(t, meta, c.gets, m)
		})
	}
}

// A page ends at so many bytes too, wherever the keys come from.
func TestKeysPageBytes(t *testing.T) {
	l := newLayout(t)
	pad := strings.Repeat("k", 4000)
	for s := range 2 * keysBatch {
		l.segment(true, l.records(15, func(i int) (string, string) { return fmt.Sprintf("%06d", i*2*keysBatch+s) + pad, "" }))
	}
	l.group(64)
	l.segment(false)
	c := l.open(l.store, 1<<20)
	var o KeysOptions
	n := 0
	for more := true; more; {
		page, err := c.Keys(t.Context(), o)
		require.NoError(t, err)
		size := 0
		for _, k := range page.Keys {
			require.Equal(t, fmt.Sprintf("%06d", n)+pad, string(k))
			n++
			size += len(k)
		}
		require.Less(t, size, maxKeysBytes+5000)
		more = page.More
		require.True(t, !more || size >= maxKeysBytes)
		o.After = page.Keys[len(page.Keys)-1]
	}
	require.Equal(t, 15*2*keysBatch, n)
}

// A cold listing asks for what it needs of many tables at the same time.
func TestColdKeysOverlapRequests(t *testing.T) {
	slowLayout(t, func(l *layout) {
		for s := range 128 {
			l.segment(true, l.records(400, func(i int) (string, string) { return fmt.Sprintf("key %06d", i*128+s), "" }))
		}
		l.group(64)
		l.segment(false)
	}, func(t *testing.T, l *layout, m *meter, c *core) {
		n := trips(func() {
			page, err := c.Keys(t.Context(), KeysOptions{})
			require.NoError(t, err)
			require.Len(t, page.Keys, MaxPage)
		})
		require.LessOrEqual(t, n, 1+2*(1+63./17+1))
		require.LessOrEqual(t, m.atOnce, maxWindow+1)
		require.Zero(t, c.tables.ahead.taken.Load())
	})
}

func BenchmarkKeys(b *testing.B) {
	for _, tables := range []int{10, 100, sized(1000, 50)} {
		b.Run(fmt.Sprint("tables=", tables), func(b *testing.B) {
			l := newLayout(b)
			var runs [][]Record
			for s := range tables {
				runs = append(runs, l.records(200, func(i int) (string, string) { return fmt.Sprintf("key %08d", i*tables+s), "" }))
			}
			l.segment(false, runs...)
			c := l.open(l.store, 256<<20)
			b.ReportAllocs()
			for b.Loop() {
				page, err := c.Keys(b.Context(), KeysOptions{Limit: 1000})
				if err != nil || len(page.Keys) != 1000 {
					b.Fatal(len(page.Keys), err)
				}
			}
		})
	}
}
