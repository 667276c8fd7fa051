package state

import "strings"

// What was removed since the base is noted, for changes to say so. That it was in the base is not known, and is not
// needed. A cursor that is gone is in goneCursors, a consumer that lost all cursors at once, or its last one, is in gone, and
// covers those that it ever had in the base; so is a producer.

// goneItem is a consumer or producer that was removed.
type goneItem struct {
	producer bool
	name     string
	stamp    uint64
}

func (a goneItem) less(b goneItem) bool {
	if a.producer != b.producer {
		return b.producer
	}
	return strings.Compare(a.name, b.name) < 0
}

// consumerGone notes that a consumer has no cursor left.
func (t *Tables) consumerGone(name string) {
	t.goneCursors.deleteAll(name)
	t.remember(goneItem{name: name, stamp: t.change()})
}

func (t *Tables) remember(g goneItem) {
	if _, known := t.gone.ReplaceOrInsert(g); !known {
		t.heap += stringHeap(g.name)
	}
}

// restore notes that a producer that may have been removed is there again: what is known of it replaces what the base
// has. A consumer stays, since it may have had other cursors.
func (t *Tables) restore(producer string) {
	if g, ok := t.gone.Delete(goneItem{producer: true, name: producer}); ok {
		t.heap -= stringHeap(g.name)
	}
}

// forgetGone forgets what a new base does not have. It takes time for each block of what is gone, and for each cursor that
// went since.
func (t *Tables) forgetGone() {
	var old []goneItem
	t.gone.Ascend(func(g goneItem) bool {
		if g.stamp <= t.base {
			old = append(old, g)
		}
		return true
	})
	for _, g := range old {
		t.gone.Delete(g)
		t.heap -= stringHeap(g.name)
	}
	all := t.goneCursors
	t.goneCursors = newBlocks(t.owner)
	all.tree.Ascend(func(item blockItem) bool {
		if item.block.stamp <= t.base {
			return true
		}
		for i, s := range item.block.slots {
			if s.stamp > t.base {
				t.goneCursors.set(item.consumer, item.block.key(i), 0, s.stamp)
			}
		}
		return true
	})
}
