package memtable

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
)

// keyOrder holds the order of the keys, as sorted lists of state numbers.
//
// It is made when a listing asks. A listing sorts the keys that arrived since
// the last one into a new list, and merges lists while the last but one is not
// more than twice as long as the last: the logarithmic method of Bentley and
// Saxe (1980). So there are about log2(keys) lists at most, and a key is merged
// O(log keys) times in all, however many listings there are.
//
// The lock is held while sorting and merging, which other listings wait for
// but nothing else does: the writer and other reads never take it (M3). A
// sorted list never changes; a listing keeps those that it began with.
type keyOrder struct {
	mu     sync.Mutex
	lists  [][]uint32 // a new slice at each change
	sorted uint32     // states below this number are in the lists
	bytes  atomic.Int64

	// whole is the single list of a frozen table, once made.
	whole atomic.Pointer[[]uint32]
}

// keyView resolves the keys of a fixed set of states without the table's lock:
// the places of keys and their bytes never change (M2).
type keyView struct {
	states [][]keyState
	keys   [][]byte
}

func (v *keyView) key(state uint32) []byte {
	k := &v.states[state>>stateShift][state&stateMask]
	return piece(v.keys, k.key, k.keyLength)
}

// viewKeys returns a view of the keys that the table has now, and their number.
func (t *Table) viewKeys() (keyView, uint32) {
	locked := t.rlock()
	defer t.runlock(locked)
	return keyView{t.states.blocks, t.keys.blocks}, t.states.n
}

// sortedKeys returns sorted lists that together hold every key that the table
// had when it was called; of a frozen table, one list at most.
func (t *Table) sortedKeys() (keyView, [][]uint32) {
	frozen := t.frozen.Load()
	view, n := t.viewKeys()
	if whole := t.order.whole.Load(); whole != nil {
		return view, [][]uint32{*whole}
	}
	o := &t.order
	o.mu.Lock()
	defer o.mu.Unlock()
	// A listing that took its view later may have been here before and have
	// sorted keys that this view does not have.
	if n < o.sorted {
		view, n = t.viewKeys()
	}
	lists := o.lists
	if n > o.sorted {
		lists = append(slices.Clone(lists), sortKeys(&view, o.sorted, n))
	}
	for len(lists) > 1 {
		a, b := lists[len(lists)-2], lists[len(lists)-1]
		if !frozen && len(a) > 2*len(b) {
			break
		}
		lists = append(slices.Clone(lists[:len(lists)-2]), mergeKeys(&view, a, b))
	}
	o.lists, o.sorted = lists, n
	if frozen && len(lists) == 1 {
		o.whole.Store(&lists[0])
	}
	o.bytes.Store(4*int64(n) + int64(cap(lists))*sliceHeaderBytes)
	return view, lists
}

// sortItem is a key while it is sorted: eight of its bytes from a certain depth
// on, so that most comparisons touch no other memory. A sort takes 16 bytes a
// new key while it runs.
type sortItem struct {
	word  uint64
	state uint32
	// left is how many bytes the key has from the depth on, at most
	// moreThanWord. It orders keys that differ only in zero bytes at the end.
	left uint32
}

const (
	wordBytes    = 8
	moreThanWord = wordBytes + 1
)

// sortKeys returns the states [from, to) in the order of their keys.
func sortKeys(v *keyView, from, to uint32) []uint32 {
	items := make([]sortItem, to-from)
	for i := range items {
		items[i].state = from + uint32(i)
	}
	sortItems(v, items, 0)
	list := make([]uint32, len(items))
	for i := range items {
		list[i] = items[i].state
	}
	return list
}

// sortItems sorts keys that are equal up to depth: by the next eight bytes,
// and then, those that have these in common, by the bytes after them. Keys are
// distinct. What all keys have in common is skipped by the loop, so that the
// recursion is at most as deep as there are keys, however long they are.
func sortItems(v *keyView, items []sortItem, depth int) {
	for ; ; depth += wordBytes {
		for i := range items {
			items[i].load(v.key(items[i].state)[depth:])
		}
		slices.SortFunc(items, compareItems)
		if len(items) < 2 || compareItems(items[0], items[len(items)-1]) != 0 {
			break
		}
	}
	for i := 0; i < len(items); {
		j := i + 1
		for j < len(items) && compareItems(items[i], items[j]) == 0 {
			j++
		}
		if j > i+1 {
			sortItems(v, items[i:j], depth+wordBytes)
		}
		i = j
	}
}

func compareItems(a, b sortItem) int {
	if a.word != b.word {
		return cmp.Compare(a.word, b.word)
	}
	return cmp.Compare(a.left, b.left)
}

func (s *sortItem) load(rest []byte) {
	if len(rest) >= wordBytes {
		s.word = binary.BigEndian.Uint64(rest)
		s.left = uint32(min(len(rest), moreThanWord))
		return
	}
	var word [wordBytes]byte
	copy(word[:], rest)
	s.word, s.left = binary.BigEndian.Uint64(word[:]), uint32(len(rest))
}

// mergeKeys merges two sorted lists into a new one.
func mergeKeys(v *keyView, a, b []uint32) []uint32 {
	merged := make([]uint32, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		ka, kb := v.key(a[0]), v.key(b[0])
		for bytes.Compare(ka, kb) < 0 {
			merged, a = append(merged, a[0]), a[1:]
			if len(a) == 0 {
				break
			}
			ka = v.key(a[0])
		}
		merged, b = append(merged, b[0]), b[1:]
	}
	return append(append(merged, a...), b...)
}
