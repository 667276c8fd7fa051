package state

import (
	"github.com/google/btree"
)

// treeDegree is that of the trees whose items stand for one thing each.
const treeDegree = 16

// Tables is the small state in memory.
//
// It is not safe for concurrent use. A clone is independent of what it was cloned from: each may be used in a
// goroutine of its own.
//
// What holds:
//
//  1. A consumer is in consumers while it has cursors.
//  2. What clones share is changed in none of them: see blocks, and producer.owner.
//  3. Every change has a version of its own, and what it changed carries it as stamp. What changed since the base has
//     a stamp above base; what was removed since is noted with a stamp above base.
type Tables struct {
	limits      Limits
	owner       *owner
	cursors     blocks
	consumers   *btree.BTreeG[consumerItem]
	producers   *btree.BTreeG[producerItem]
	oldest      *btree.BTreeG[ageItem] // producers by their last append
	gone        *btree.BTreeG[goneItem]
	goneCursors blocks

	version uint64 // of the last change
	base    uint64 // the version that the base in force holds

	total int   // of all cursors
	heap  int64 // of producers and gone, without the trees' nodes
}

// consumerItem is a consumer that has cursors.
type consumerItem struct {
	name    string
	cursors int
}

// New returns empty tables.
func New(l Limits) *Tables {
	o := new(owner)
	return &Tables{
		limits:      l,
		owner:       o,
		cursors:     newBlocks(o),
		consumers:   btree.NewG(treeDegree, func(a, b consumerItem) bool { return a.name < b.name }),
		producers:   btree.NewG(treeDegree, func(a, b producerItem) bool { return a.name < b.name }),
		oldest:      btree.NewG(treeDegree, ageItem.less),
		gone:        btree.NewG(treeDegree, goneItem.less),
		goneCursors: newBlocks(o),
	}
}

// Clone returns tables with the same content, which from then on are independent. It takes constant time: both
// share what neither changes.
func (t *Tables) Clone() *Tables {
	c := *t
	t.owner, c.owner = new(owner), new(owner)
	c.cursors, c.goneCursors = t.cursors.clone(c.owner), t.goneCursors.clone(c.owner)
	t.cursors.owner, t.goneCursors.owner = t.owner, t.owner
	c.consumers, c.producers = t.consumers.Clone(), t.producers.Clone()
	c.oldest, c.gone = t.oldest.Clone(), t.gone.Clone()
	return &c
}

// Rebase says that what clone holds is in force in the store as the new base: from then on EncodeChanges gives what changed in
// these tables since clone was cloned from them. Call it on later clones too that are yet to be encoded. Changes that are
// in force need no such call: the next ones replace them.
func (t *Tables) Rebase(clone *Tables) {
	t.base = max(t.base, clone.version)
	t.forgetGone()
}

// Counts returns how much there is. It takes constant time.
func (t *Tables) Counts() (consumers, cursors, producers int) {
	return t.consumers.Len(), t.total, t.producers.Len()
}

// change begins a change and returns its stamp.
func (t *Tables) change() uint64 {
	t.version++
	return t.version
}
