package memtable

import (
	"bytes"
	"iter"
	"sort"

	"github.com/annalsdb/annals/internal/base"
)

// KeysFrom appends to dst, in byte order, the keys from start on (inclusive)
// that have a record within rng, at most limit of them. The keys alias the
// table: they stay valid for ever and must not be written to.
//
// Any goroutine may call it. It sorts the keys that came since the last
// listing, which takes time (a fifth of a second for a million keys) but never
// blocks AddBatch or another read longer than it takes to look at readRecords
// keys; another listing may wait for it.
func (t *Table) KeysFrom(dst [][]byte, start []byte, rng base.Range, limit int) [][]byte {
	if rng.Empty() || limit <= 0 {
		return dst
	}
	view, lists := t.sortedKeys()
	m := newListMerge(&view, lists, start)
	var states [readRecords]uint32
	for limit > 0 {
		n := m.next(states[:min(limit, len(states))])
		if n == 0 {
			break
		}
		for _, state := range t.keepWithin(states[:n], rng) {
			dst = append(dst, view.key(state))
			limit--
		}
	}
	return dst
}

// keepWithin keeps the states that have a record within rng, in place.
func (t *Table) keepWithin(states []uint32, rng base.Range) []uint32 {
	locked := t.rlock()
	defer t.runlock(locked)
	kept := states[:0]
	for _, state := range states {
		if _, ok := t.lastWithin(t.states.at(state), rng); ok {
			kept = append(kept, state)
		}
	}
	return kept
}

// listMerge yields the keys of several sorted lists in order.
type listMerge struct {
	view *keyView
	// heads are the lists that are not exhausted, each with its first key.
	heads []listHead
}

type listHead struct {
	list []uint32
	key  []byte
}

// newListMerge begins at the first key that is not below start.
func newListMerge(view *keyView, lists [][]uint32, start []byte) *listMerge {
	m := &listMerge{view: view, heads: make([]listHead, 0, len(lists))}
	for _, list := range lists {
		list = list[sort.Search(len(list), func(i int) bool {
			return bytes.Compare(view.key(list[i]), start) >= 0
		}):]
		if len(list) > 0 {
			m.heads = append(m.heads, listHead{list, view.key(list[0])})
		}
	}
	return m
}

// next fills states with the next keys and returns how many. There are few
// lists (see keyOrder), most of them short: the least head is found by looking.
func (m *listMerge) next(states []uint32) int {
	n := 0
	for n < len(states) && len(m.heads) > 0 {
		least := 0
		for i := 1; i < len(m.heads); i++ {
			if bytes.Compare(m.heads[i].key, m.heads[least].key) < 0 {
				least = i
			}
		}
		h := &m.heads[least]
		states[n] = h.list[0]
		n++
		if h.list = h.list[1:]; len(h.list) > 0 {
			h.key = m.view.key(h.list[0])
			continue
		}
		m.heads[least] = m.heads[len(m.heads)-1]
		m.heads = m.heads[:len(m.heads)-1]
	}
	return n
}

// All yields every record of a frozen table in the order of (key, sequence),
// the order of a table file. The records alias the table: they stay valid for
// ever and must not be written to. The keys are sorted when the iteration
// begins, unless they were before.
//
// Any goroutine may iterate, as often as it likes. All panics when the table
// is not frozen.
func (t *Table) All() iter.Seq[base.Record] {
	if !t.frozen.Load() {
		panic("memtable: iterate over a table that is not frozen")
	}
	return func(yield func(base.Record) bool) {
		_, lists := t.sortedKeys()
		for _, list := range lists { // one at most: the table is frozen
			for _, state := range list {
				if !t.yieldKey(t.states.at(state), yield) {
					return
				}
			}
		}
	}
}

// yieldKey yields the records of one key.
func (t *Table) yieldKey(k *keyState, yield func(base.Record) bool) bool {
	key := t.key(k)
	for i := uint64(0); i < k.count; {
		entries := t.stretch(k, i)
		i += uint64(len(entries))
		for j := range entries {
			if !yield(t.record(key, &entries[j])) {
				return false
			}
		}
	}
	return true
}
