package state

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// everything is the limit of tests that do not look at limits.
var everything = Limits{Producers: math.MaxInt}

// idOf returns an id that is recognisably n.
func idOf(n int) (id base.ULID) {
	copy(id[:], "state object")
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return id
}

// contents is what tables hold, in plain maps.
type contents struct {
	Cursors   map[string]map[string]uint64
	Producers map[string][]Mark
}

// contentsOf reads tables by their methods only.
func contentsOf(t require.TestingT, tables *Tables) contents {
	c := contents{map[string]map[string]uint64{}, map[string][]Mark{}}
	consumers, more := tables.Consumers(nil, "", math.MaxInt)
	require.False(t, more)
	for _, name := range consumers {
		list, more := tables.Cursors(nil, name, nil, false, math.MaxInt, math.MaxInt)
		require.False(t, more)
		require.NotEmpty(t, list)
		c.Cursors[name] = map[string]uint64{}
		for _, cur := range list {
			c.Cursors[name][string(cur.Key)] = cur.Next
		}
	}
	tables.producers.Ascend(func(p producerItem) bool {
		for i := range p.producer.marks {
			m, found := tables.Lookup(p.name, p.producer.last-uint64(len(p.producer.marks)-1-i))
			require.Equal(t, Repeat, found)
			c.Producers[p.name] = append(c.Producers[p.name], m)
		}
		return true
	})
	return c
}

// checkTables checks what holds in tables, whatever happened to them.
func checkTables(t require.TestingT, tables *Tables) {
	counts := checkBlocks(t, tables, &tables.cursors)
	total, heap := 0, int64(0)
	tables.consumers.Ascend(func(c consumerItem) bool {
		require.Positive(t, c.cursors)
		require.Equal(t, counts[c.name], c.cursors, "cursors of %q", c.name)
		total += c.cursors
		return true
	})
	require.Len(t, counts, tables.consumers.Len())
	require.Equal(t, total, tables.total)
	heap += checkProducers(t, tables)
	for name := range checkBlocks(t, tables, &tables.goneCursors) {
		require.Contains(t, counts, name, "a consumer that is gone covers its cursors")
		tables.goneCursors.ascend(name, nil, func(item blockItem) bool {
			for i, s := range item.block.slots {
				if _, ok := tables.Cursor(name, item.block.key(i)); ok || s.stamp <= tables.base {
					require.FailNow(t, "gone and there, or long gone", "%q %q", name, item.block.key(i))
				}
			}
			return true
		})
	}
	tables.gone.Ascend(func(g goneItem) bool {
		require.Greater(t, g.stamp, tables.base)
		require.LessOrEqual(t, g.stamp, tables.version)
		heap += stringHeap(g.name)
		if g.producer {
			_, ok := tables.LastOf(g.name)
			require.False(t, ok)
		}
		return true
	})
	require.Equal(t, heap, tables.heap)
	require.LessOrEqual(t, tables.base, tables.version)
}

// checkBlocks returns how many keys there are of each consumer.
func checkBlocks(t require.TestingT, tables *Tables, m *blocks) map[string]int {
	require.Same(t, tables.owner, m.owner)
	counts, heap := map[string]int{}, int64(0)
	var before blockItem
	m.tree.Ascend(func(item blockItem) bool {
		b := item.block
		require.Equal(t, item.measure(), b.heap)
		heap += b.heap
		require.NotEmpty(t, b.slots)
		require.False(t, b.full())
		if before.block == nil || before.consumer != item.consumer {
			require.Empty(t, item.low)
		} else {
			require.Negative(t, bytes.Compare(before.block.key(len(before.block.slots)-1), item.low), "a key behind the next bound")
		}
		require.LessOrEqual(t, b.stamp, tables.version)
		for i, s := range b.slots { // without require, which is slow
			if s.stamp > b.stamp || bytes.Compare(b.key(i), item.low) < 0 || i > 0 && bytes.Compare(b.key(i-1), b.key(i)) >= 0 {
				require.FailNow(t, "slot is wrong", "%d of %+v", i, b)
			}
		}
		require.Len(t, b.keys, int(b.start(len(b.slots))))
		counts[item.consumer] += len(b.slots)
		before = item
		return true
	})
	require.Equal(t, heap, m.heap)
	return counts
}

// checkProducers returns the heap of the producers.
func checkProducers(t require.TestingT, tables *Tables) (heap int64) {
	require.Equal(t, tables.producers.Len(), tables.oldest.Len())
	require.LessOrEqual(t, tables.producers.Len(), max(tables.limits.Producers, 0))
	tables.producers.Ascend(func(p producerItem) bool {
		require.NotEmpty(t, p.producer.marks)
		require.LessOrEqual(t, len(p.producer.marks), ProducerWindow)
		require.True(t, tables.oldest.Has(p.age()))
		heap += p.heap()
		return true
	})
	return heap
}
