package state

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Bytes is what the tables take, whatever made them, and a million cursors of 20 consumers of 50,000 keys of 16 bytes
// take well below 100 bytes each.
func TestHeap(t *testing.T) {
	const consumers = 20
	keys, fewer := 50_000, 10_000
	if testing.Short() {
		keys, fewer = 5_000, 5_000
	}
	names := make([]string, consumers)
	for i := range names {
		names[i] = fmt.Sprintf("consumer-%02d", i)
	}
	key := func(buf []byte, i int) []byte { return fmt.Appendf(buf[:0], "user/%011d", i) }
	fill := func(tables *Tables, n int, number func(i int) int) {
		var buf [16]byte
		for i := range n {
			for _, name := range names {
				tables.SetCursor(name, key(buf[:], number(i)), uint64(i))
			}
		}
	}
	shuffled := rand.New(rand.NewPCG(1, 2)).Perm(keys)
	for _, c := range []struct {
		name string
		most int64 // bytes a cursor; 0: not looked at
		make func(tables *Tables)
	}{
		{"in order", 50, func(tables *Tables) { fill(tables, keys, func(i int) int { return i }) }},
		{"in random order", 60, func(tables *Tables) { fill(tables, keys, func(i int) int { return shuffled[i] }) }},
		{"after deletions", 0, func(tables *Tables) {
			fill(tables, fewer, func(i int) int { return i })
			var buf [16]byte
			for i := range fewer {
				for _, name := range names {
					if i%5 > 0 {
						tables.DeleteCursor(name, key(buf[:], i))
					}
				}
			}
		}},
		{"consumers with one cursor", 0, func(tables *Tables) {
			var buf [16]byte
			for i := range 2 * fewer {
				tables.SetCursor(fmt.Sprintf("consumer-%06d", i*7919%(2*fewer)), key(buf[:], i), 1)
			}
		}},
		{"producers", 0, func(tables *Tables) {
			for i := range uint64(fewer * 20) {
				tables.Mark(fmt.Sprintf("producer-%d", i%uint64(fewer)), Mark{Sequence: i / uint64(fewer), First: i, Count: 1})
			}
		}},
		{"changed after a clone", 60, func(tables *Tables) {
			fill(tables, fewer, func(i int) int { return i })
			clone := tables.Clone()
			fill(tables, fewer, func(i int) int { return fewer - 1 - i })
			tables.Rebase(clone)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := heapInUse()
			tables := New(Limits{Producers: fewer})
			c.make(tables)
			heap := heapInUse() - before
			_, cursors, _ := tables.Counts()
			t.Logf("%d bytes, Bytes() says %d (%+.1f%%), %d bytes a cursor", heap, tables.Bytes(), 100*(float64(tables.Bytes())/float64(heap)-1), heap/int64(max(cursors, 1)))
			require.InEpsilon(t, heap, tables.Bytes(), 0.10)
			if c.most > 0 {
				require.LessOrEqual(t, heap/int64(cursors), c.most)
			}
			runtime.KeepAlive(tables)
		})
	}
	runtime.KeepAlive(shuffled)
	runtime.KeepAlive(names)
}
