package state

import (
	"bytes"
	"slices"
	"sort"
	"strings"
	"unsafe"
)

const (
	// maxBlockSlots and maxBlockKeyBytes are the size above which a block is cut in two: small enough to be copied for
	// one change after a clone, large enough for its own overhead not to matter. A block of one slot may be larger.
	maxBlockSlots    = 64
	maxBlockKeyBytes = 16 << 10
	// sparseBlockSlots is the size below which a block that lost a slot is joined with a neighbour, if both fit into three
	// quarters of a block.
	sparseBlockSlots = maxBlockSlots / 4
)

// block is some neighbouring keys of one consumer. They lie one behind the other, which spares each
// a pointer, a length and an allocation.
type block struct {
	owner *owner
	stamp uint64 // at least the highest of its slots
	keys  []byte
	slots []slot
	heap  int64 // as it is in blocks.heap
}

// slot is one key of a block, and its cursor.
type slot struct {
	next  uint64
	stamp uint64 // the version that set or removed it
	end   uint32 // of the key in keys
}

// blockItem is a block in the tree of all blocks.
type blockItem struct {
	consumer string
	low      []byte
	block    *block
}

func (a blockItem) less(b blockItem) bool {
	if c := strings.Compare(a.consumer, b.consumer); c != 0 {
		return c < 0
	}
	return bytes.Compare(a.low, b.low) < 0
}

// measure returns what the item keeps on the heap beside the tree's nodes; the first block of a consumer keeps its name too.
// Slices are made by growing, so that their capacity is what the allocator gave.
func (a blockItem) measure() int64 {
	n := allocated(int(unsafe.Sizeof(*a.block))) + int64(cap(a.low)) + int64(cap(a.block.keys)) +
		int64(cap(a.block.slots))*int64(unsafe.Sizeof(slot{}))
	if len(a.low) == 0 {
		n += stringHeap(a.consumer)
	}
	return n
}

// start returns where the key of a slot begins.
func (b *block) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return b.slots[i-1].end
}

// key returns the key of a slot. It is valid until the block changes.
func (b *block) key(i int) []byte {
	end := b.slots[i].end
	return b.keys[b.start(i):end:end]
}

// find returns the place of a key, or where it would be.
func (b *block) find(key []byte) (int, bool) {
	return sort.Find(len(b.slots), func(i int) int { return bytes.Compare(key, b.key(i)) })
}

func (b *block) insert(i int, key []byte, next, stamp uint64) {
	start := b.start(i)
	b.keys = slices.Insert(roomFor(b.keys, len(key)), int(start), key...)
	b.slots = slices.Insert(roomFor(b.slots, 1), i, slot{next: next, stamp: stamp, end: start})
	for j := i; j < len(b.slots); j++ {
		b.slots[j].end += uint32(len(key))
	}
	b.stamp = max(b.stamp, stamp)
}

func (b *block) remove(i int) {
	start, end := b.start(i), b.slots[i].end
	b.keys = slices.Delete(b.keys, int(start), int(end))
	b.slots = slices.Delete(b.slots, i, i+1)
	for j := i; j < len(b.slots); j++ {
		b.slots[j].end -= end - start
	}
}

// part returns a new block of the slots [from, to), without room for more.
func (b *block) part(o *owner, from, to int) *block {
	p := &block{owner: o, stamp: b.stamp}
	if from < to {
		start := b.start(from)
		p.keys = append(p.keys, b.keys[start:b.slots[to-1].end]...)
		p.slots = append(p.slots, b.slots[from:to]...)
		for i := range p.slots {
			p.slots[i].end -= start
		}
	}
	return p
}

// join appends the slots of the block that follows.
func (b *block) join(next *block) {
	n := uint32(len(b.keys))
	b.keys = append(roomFor(b.keys, len(next.keys)), next.keys...)
	for _, s := range next.slots {
		s.end += n
		b.slots = append(roomFor(b.slots, 1), s)
	}
	b.stamp = max(b.stamp, next.stamp)
}

// fits reports whether the block that follows may be joined.
func (b *block) fits(next *block) bool {
	return len(b.slots)+len(next.slots) <= maxBlockSlots/4*3 && len(b.keys)+len(next.keys) <= maxBlockKeyBytes/4*3
}

// full reports whether the block must be cut in two.
func (b *block) full() bool {
	return len(b.slots) > maxBlockSlots || len(b.keys) > maxBlockKeyBytes && len(b.slots) > 1
}

// wasteful reports whether less than half of what the block holds is used.
func (b *block) wasteful() bool {
	return cap(b.slots) > 2*len(b.slots)+sparseBlockSlots || cap(b.keys) > 2*len(b.keys)+256
}

// roomFor returns the slice with room for n more. It grows by an eighth, not by half as append does: there are many
// blocks, and most of them rarely grow.
func roomFor[E any](s []E, n int) []E {
	if need := len(s) + n; need > cap(s) {
		return append(slices.Grow([]E(nil), need+need/8), s...)
	}
	return s
}
