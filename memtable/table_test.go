package memtable

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

func TestSizes(t *testing.T) {
	require.Equal(t, uintptr(keyStateBytes), unsafe.Sizeof(keyState{}))
	require.Equal(t, uintptr(stagedBytes), unsafe.Sizeof(stagedRecord{}))
	require.Equal(t, uintptr(32), unsafe.Sizeof(entry{}))
	require.Less(t, New().Bytes(), int64(1<<10))
}

func TestEmptyTable(t *testing.T) {
	table := New()
	table.AddBatch(0, 0, nil)
	check := func() {
		require.True(t, table.Empty())
		require.Zero(t, table.Keys())
		require.Zero(t, table.LastSequence())
		require.Empty(t, table.Scan(nil, nil, base.All(), 10, 10))
		require.Empty(t, table.ScanBackward(nil, nil, base.All(), 10, 10))
		require.Zero(t, table.Count([]byte("k"), base.All()))
		require.False(t, table.HasKey(nil, base.All()))
		require.Empty(t, table.KeysFrom(nil, nil, base.All(), 10))
		_, ok := table.SeekTimestamp(nil, base.All(), 0)
		require.False(t, ok)
	}
	check()
	table.Freeze()
	check()
	for range table.All() {
		t.Fatal("a record in an empty table")
	}
}

func TestMisusePanics(t *testing.T) {
	one := []base.Record{{Key: []byte("k")}}
	tests := map[string]func(*Table){
		"sequence used before":   func(m *Table) { m.AddBatch(10, 5, one) },
		"sequence below":         func(m *Table) { m.AddBatch(3, 5, one) },
		"timestamp goes back":    func(m *Table) { m.AddBatch(11, 4, one) },
		"past the last sequence": func(m *Table) { m.AddBatch(base.MaxSequence, 5, one) },
		"frozen":                 func(m *Table) { m.Freeze(); m.AddBatch(11, 5, one) },
		"frozen, no records":     func(m *Table) { m.Freeze(); m.AddBatch(11, 5, nil) },
		"two writers":            func(m *Table) { m.adding.Store(true); m.AddBatch(11, 5, one) },
		"All before Freeze":      func(m *Table) { m.All() },
	}
	for name, misuse := range tests {
		t.Run(name, func(t *testing.T) {
			table := New()
			table.AddBatch(10, 5, one)
			require.Panics(t, func() { misuse(table) })
		})
	}
	table := New()
	table.AddBatch(base.MaxSequence-1, 5, one) // the last sequence there is
	table.Freeze()
	table.Freeze()
	require.Equal(t, uint64(1), table.Records())
}

// TestCallerReusesBuffers checks both directions: the caller's buffers after
// AddBatch, and appending to what a read returned.
func TestCallerReusesBuffers(t *testing.T) {
	table := New()
	key, value := []byte("key"), []byte("value")
	table.AddBatch(0, 0, []base.Record{{Key: key, Value: value}, {Key: key, Value: value}})
	copy(key, "XXX")
	copy(value, "XXXXX")
	got := table.Scan(nil, []byte("key"), base.All(), 10, 100)
	require.Len(t, got, 2)
	for _, r := range got {
		_ = append(r.Key, "overwritten"...)
		_ = append(r.Value, "overwritten"...)
	}
	keys := table.KeysFrom(nil, nil, base.All(), 10)
	_ = append(keys[0], "overwritten"...)
	for _, r := range table.Scan(nil, []byte("key"), base.All(), 10, 100) {
		require.Equal(t, "key", string(r.Key))
		require.Equal(t, "value", string(r.Value))
	}
}

func TestAppendsToDst(t *testing.T) {
	table := New()
	table.AddBatch(0, 0, []base.Record{{Key: []byte("a")}, {Key: []byte("b")}})
	mark := []base.Record{{Sequence: 77}}
	require.Len(t, table.Scan(mark, []byte("a"), base.All(), 1, 1), 2)
	require.Equal(t, uint64(77), table.ScanBackward(mark, []byte("b"), base.All(), 1, 1)[0].Sequence)
	require.Equal(t, [][]byte{{9}, []byte("a")}, table.KeysFrom([][]byte{{9}}, nil, base.All(), 1))
}

// TestHugeAndEmpty is F42: values of 16 MiB and more among small ones, keys of
// every length.
func TestHugeAndEmpty(t *testing.T) {
	table, m := New(), &model{}
	lengths := []int{0, 1, 100, 511, 512, 513, 4096, 4097, 128 << 10, 128<<10 + 1, 1 << 20, 1<<20 + 1, 17 << 20, 3, 0}
	for i, n := range lengths {
		recs := []base.Record{
			{Key: bytes.Repeat([]byte{byte(i)}, n%4097), Value: bytes.Repeat([]byte{byte(i)}, n)},
			{Value: []byte{byte(i)}},
		}
		table.AddBatch(uint64(2*i), int64(i), recs)
		m.add(uint64(2*i), int64(i), recs)
	}
	checkTotals(t, table, m)
	table.Freeze()
	i := 0
	want := m.all()
	for r := range table.All() {
		require.Equal(t, want[i].Sequence, r.Sequence)
		require.True(t, bytes.Equal(want[i].Key, r.Key) && bytes.Equal(want[i].Value, r.Value))
		require.NotNil(t, r.Key)
		require.NotNil(t, r.Value)
		i++
	}
	require.Equal(t, len(want), i)
}

// TestAllStops ends the iteration early, and iterates again.
func TestAllStops(t *testing.T) {
	table := New()
	table.AddBatch(0, 0, manyKeys(0, 1000, 10))
	table.Freeze()
	n := 0
	for range table.All() {
		if n++; n == 10 {
			break
		}
	}
	require.Len(t, slices.Collect(table.All()), 1000)
}

// TestListingsBetweenAdds lists after every few keys: lists are merged, few,
// and complete, and one that was begun before stays right.
func TestListingsBetweenAdds(t *testing.T) {
	table := New()
	view, early := keyView{}, [][]uint32(nil)
	for i := range 300 {
		table.AddBatch(uint64(i*7), 0, manyKeys(i*7, 7, 0))
		if i == 100 {
			view, early = table.sortedKeys()
		}
		keys := table.KeysFrom(nil, nil, base.All(), 1<<30)
		require.Len(t, keys, (i+1)*7)
		require.True(t, slices.IsSortedFunc(keys, bytes.Compare))
		require.LessOrEqual(t, len(table.order.lists), 12)
	}
	states := make([]uint32, 2100)
	n := newListMerge(&view, early, nil).next(states)
	require.Equal(t, 101*7, n)
	for i := 1; i < n; i++ {
		require.Negative(t, bytes.Compare(view.key(states[i-1]), view.key(states[i])))
	}
}

// manyKeys returns records with new keys of 16 bytes in no order.
func manyKeys(from, n, valueBytes int) []base.Record {
	recs := make([]base.Record, n)
	for i := range recs {
		// An odd factor permutes the numbers of 64 bits.
		recs[i].Key = fmt.Appendf(nil, "%016x", uint64(from+i)*0x9E3779B97F4A7C15)
		recs[i].Value = make([]byte, valueBytes)
	}
	return recs
}

func heapNow() int64 {
	runtime.GC()
	runtime.GC() // the first one may leave spans to sweep
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestBytesIsRealHeap compares Bytes with what the runtime says (I9, F41).
func TestBytesIsRealHeap(t *testing.T) {
	tests := []struct {
		name    string
		records int
		batch   func(from, n int) []base.Record
		most    float64 // heap for a byte of key and value; 0: not bounded
	}{
		{"new keys", 100_000, func(from, n int) []base.Record { return manyKeys(from, n, 100) }, 3},
		{"new keys, few", 10_000, func(from, n int) []base.Record { return manyKeys(from, n, 100) }, 3},
		{"hot key", 100_000, func(from, n int) []base.Record {
			recs := manyKeys(from, n, 100)
			for i := range recs {
				recs[i].Key = []byte("0123456789abcdef")
			}
			return recs
		}, 1.5},
		{"ten records a key", 100_000, func(from, n int) []base.Record {
			recs := manyKeys(from, n, 100)
			for i := range recs {
				recs[i].Key = fmt.Appendf(nil, "%016d", (from+i)%10_000)
			}
			return recs
		}, 2},
		{"empty values", 100_000, func(from, n int) []base.Record { return manyKeys(from, n, 0) }, 0},
		{"large values", 100, func(from, n int) []base.Record { return manyKeys(from, n, 300_000) }, 1.1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := heapNow()
			table := New()
			for i := 0; i < test.records; i += 100 {
				table.AddBatch(uint64(i), 0, test.batch(i, 100))
			}
			compare := func() {
				real := heapNow() - before
				require.InEpsilon(t, real, table.Bytes(), 0.05)
			}
			compare()
			table.KeysFrom(nil, nil, base.All(), 1)
			compare()
			table.Freeze()
			compare()
			ratio := float64(table.Bytes()) / float64(table.DataBytes())
			t.Logf("%.2f heap bytes for a byte of key and value", ratio)
			if test.most > 0 {
				require.Less(t, ratio, test.most)
			}
			require.Equal(t, uint64(test.records), table.Records())
		})
	}
}

// TestReadsDoNotAllocate: nothing but the growth of dst.
func TestReadsDoNotAllocate(t *testing.T) {
	table := New()
	recs := manyKeys(0, 1000, 10)
	for i := range recs {
		if i%2 == 0 {
			recs[i].Key = []byte("hot")
		}
	}
	table.AddBatch(0, 0, recs)
	dst := make([]base.Record, 0, 1000)
	key, rng := []byte("hot"), base.Range{Start: 111, End: 800}
	check := func() {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			table.Scan(dst, key, rng, 1000, 1<<30)
			table.ScanBackward(dst, key, rng, 1000, 1<<30)
			table.Count(key, rng)
			table.LastSequenceOf(key, rng)
			table.SeekTimestamp(key, rng, 0)
		}))
	}
	check()
	table.Freeze()
	check()
}
