package state

import "unsafe"

// What the nodes of a tree take for an item, in quarters of its size. Nodes are half full when items come in order, always
// at the end; two thirds full when they come in any order; and have a header.
const (
	nodeShare        = 7
	orderedNodeShare = 10
)

// Bytes returns the heap that the tables take, within a few percent. What clones share is in the Bytes of each. It takes
// constant time.
func (t *Tables) Bytes() int64 {
	return t.heap + t.cursors.heap + t.goneCursors.heap +
		nodes[blockItem](t.cursors.tree.Len()+t.goneCursors.tree.Len(), nodeShare) +
		nodes[consumerItem](t.consumers.Len(), nodeShare) +
		nodes[producerItem](t.producers.Len(), nodeShare) +
		nodes[ageItem](t.oldest.Len(), orderedNodeShare) +
		nodes[goneItem](t.gone.Len(), nodeShare)
}

// nodes returns what the nodes of a tree of n items take.
func nodes[T any](n, share int) int64 {
	var item T
	return int64(n) * int64(unsafe.Sizeof(item)) * int64(share) / 4
}

// Bytes of what is written of an entry beside its key or name, about.
const (
	cursorOverhead   = 8
	producerOverhead = 16
	appendedOverhead = 8
)

// BaseBytes estimates the size of EncodeBase before compression. It takes time for each block of cursors and each
// producer, not for each cursor.
func (t *Tables) BaseBytes() int64 { return t.cursors.encodedBytes(0) + t.producerBytes(0) }

// ChangesBytes is BaseBytes for EncodeChanges: the two can be compared. It takes time for each cursor of the blocks that
// changed too.
func (t *Tables) ChangesBytes() int64 {
	n := t.cursors.encodedBytes(t.base) + t.goneCursors.encodedBytes(t.base) + t.producerBytes(t.base)
	t.gone.Ascend(func(g goneItem) bool {
		n += int64(len(g.name))
		return true
	})
	return n
}

// encodedBytes is for what has a stamp above since.
func (m *blocks) encodedBytes(since uint64) (n int64) {
	m.tree.Ascend(func(item blockItem) bool {
		switch b := item.block; {
		case since == 0:
			n += int64(len(b.keys) + len(b.slots)*cursorOverhead)
		case b.stamp > since:
			for i, s := range b.slots {
				if s.stamp > since {
					n += int64(len(b.key(i)) + cursorOverhead)
				}
			}
		}
		return true
	})
	return n
}

func (t *Tables) producerBytes(since uint64) (n int64) {
	t.producers.Ascend(func(p producerItem) bool {
		if p.producer.stamp > since {
			n += int64(len(p.name) + producerOverhead + len(p.producer.marks)*appendedOverhead)
		}
		return true
	})
	return n
}

// allocated returns what an object of so many bytes takes, as the allocator rounds small ones.
func allocated(n int) int64 { return int64(n+15) &^ 15 }

func stringHeap(s string) int64 { return allocated(len(s)) }
