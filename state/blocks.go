package state

import (
	"bytes"
	"strings"

	"github.com/google/btree"
)

// blocks is an ordered map of (consumer, key): the cursors, or those that are gone.
//
//  1. What it holds of a consumer lies in blocks, in key order; none is empty. Each has a lower bound, and holds the keys from
//     it to the bound of the next; the first one's bound is empty.
//  2. Blocks are shared between clones. One is changed only by the owner that it carries.
type blocks struct {
	owner *owner
	tree  *btree.BTreeG[blockItem]
	heap  int64 // without the tree's nodes
}

// owner says who may change a block or producer in place. It has a size, so that each has an address of its own.
type owner struct{ _ byte }

// blockDegree is small: an item of the tree stands for many cursors.
const blockDegree = 16

func newBlocks(o *owner) blocks {
	return blocks{owner: o, tree: btree.NewG(blockDegree, blockItem.less)}
}

// clone returns what holds the same, for another owner. The caller gives a new owner to the original too.
func (m *blocks) clone(o *owner) blocks { return blocks{owner: o, tree: m.tree.Clone(), heap: m.heap} }

// of returns the block that has, or would have, a key; false if there is nothing of the consumer.
func (m *blocks) of(consumer string, key []byte) (found blockItem, ok bool) {
	m.tree.DescendLessOrEqual(blockItem{consumer: consumer, low: key}, func(item blockItem) bool {
		found, ok = item, item.consumer == consumer
		return false
	})
	return found, ok
}

func (m *blocks) get(consumer string, key []byte) (slot, bool) {
	item, ok := m.of(consumer, key)
	if !ok {
		return slot{}, false
	}
	i, ok := item.block.find(key)
	if !ok {
		return slot{}, false
	}
	return item.block.slots[i], true
}

// set sets a key. What is there already with the same number does not change, and keeps its stamp. It returns the
// consumer's name as it keeps it; the key is copied.
func (m *blocks) set(consumer string, key []byte, next, stamp uint64) (name string, was setResult) {
	item, ok := m.of(consumer, key)
	if !ok {
		item = blockItem{consumer: strings.Clone(consumer), block: &block{owner: m.owner}}
		m.tree.ReplaceOrInsert(item)
	}
	i, found := item.block.find(key)
	if found && item.block.slots[i].next == next {
		return item.consumer, setSame
	}
	item.block = m.own(item)
	b := item.block
	if found {
		b.slots[i].next, b.slots[i].stamp, b.stamp = next, stamp, stamp
		return item.consumer, setMoved
	}
	b.insert(i, key, next, stamp)
	if b.full() {
		m.split(item, i)
	} else {
		m.weigh(item)
	}
	return item.consumer, setAdded
}

// setResult says what set did.
type setResult int

const (
	setSame setResult = iota
	setMoved
	setAdded
)

// delete removes a key, and reports whether it was there.
func (m *blocks) delete(consumer string, key []byte) bool {
	item, ok := m.of(consumer, key)
	if !ok {
		return false
	}
	i, found := item.block.find(key)
	if !found {
		return false
	}
	item.block = m.own(item)
	item.block.remove(i)
	m.shrink(item)
	return true
}

// deleteAll removes everything of a consumer.
func (m *blocks) deleteAll(consumer string) {
	var list []blockItem
	m.ascend(consumer, nil, func(item blockItem) bool {
		list = append(list, item)
		return true
	})
	for _, item := range list {
		m.remove(item)
	}
}

// ascend calls yield for the blocks of a consumer, from the one that key belongs to, until yield returns false.
func (m *blocks) ascend(consumer string, key []byte, yield func(blockItem) bool) {
	from, ok := m.of(consumer, key)
	if !ok {
		return
	}
	m.tree.AscendGreaterOrEqual(from, func(item blockItem) bool {
		return item.consumer == consumer && yield(item)
	})
}

// own returns the item's block as one that may be changed: a copy if it is shared.
func (m *blocks) own(item blockItem) *block {
	b := item.block
	if b.owner != m.owner {
		heap := b.heap
		b = b.part(m.owner, 0, len(b.slots))
		b.heap = heap
		item.block = b
		m.tree.ReplaceOrInsert(item)
		m.weigh(item)
	}
	return b
}

// weigh brings the heap of a block of its own up to date.
func (m *blocks) weigh(item blockItem) {
	is := item.measure()
	m.heap += is - item.block.heap
	item.block.heap = is
}

func (m *blocks) add(item blockItem) {
	m.tree.ReplaceOrInsert(item)
	m.weigh(item)
}

func (m *blocks) remove(item blockItem) {
	m.tree.Delete(item)
	m.heap -= item.block.heap
}

// split cuts a block in two. A block that grew at its end, at slot grown, stays full: keys often come in order.
func (m *blocks) split(item blockItem, grown int) {
	b := item.block
	at := len(b.slots) / 2
	if grown == len(b.slots)-1 {
		at = grown
	}
	left, right := item, item
	left.block = b.part(m.owner, 0, at)
	right.block = b.part(m.owner, at, len(b.slots))
	right.low = append([]byte(nil), b.key(at)...)
	m.remove(item)
	m.add(left)
	m.add(right)
}

// shrink frees the room of a key that was removed from a block, and joins the block with a neighbour when both are small.
func (m *blocks) shrink(item blockItem) {
	if len(item.block.slots) < sparseBlockSlots {
		if before, ok := m.before(item); ok && before.block.fits(item.block) {
			m.join(before, item)
			return
		}
		if after, ok := m.after(item); ok && (len(item.block.slots) == 0 || item.block.fits(after.block)) {
			m.join(item, after)
			return
		}
	}
	if len(item.block.slots) == 0 {
		m.remove(item)
		return
	}
	if b := item.block; b.wasteful() {
		item.block = b.part(m.owner, 0, len(b.slots))
		item.block.heap = b.heap
		m.tree.ReplaceOrInsert(item)
	}
	m.weigh(item)
}

// join puts two neighbouring blocks into the first.
func (m *blocks) join(first, second blockItem) {
	first.block = m.own(first)
	first.block.join(second.block)
	m.remove(second)
	m.weigh(first)
}

// before returns the block of the same consumer that comes before.
func (m *blocks) before(item blockItem) (before blockItem, ok bool) {
	if len(item.low) == 0 {
		return blockItem{}, false
	}
	m.tree.DescendLessOrEqual(item, func(other blockItem) bool {
		if bytes.Equal(other.low, item.low) {
			return true
		}
		before, ok = other, true
		return false
	})
	return before, ok
}

// after returns the next block of the same consumer.
func (m *blocks) after(item blockItem) (after blockItem, ok bool) {
	m.tree.AscendGreaterOrEqual(item, func(other blockItem) bool {
		if other.consumer == item.consumer && bytes.Equal(other.low, item.low) {
			return true
		}
		after, ok = other, other.consumer == item.consumer
		return false
	})
	return after, ok
}
