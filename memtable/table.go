// Package memtable is the in-memory buffer of a log's newest records, ordered
// by key and sequence. It does no I/O.
//
// # Layout
//
// Bytes of keys and of values lie in arenas of blocks of up to 1 MiB. A key is a
// state of 64 bytes, which holds its first record, a slot or two in a hash
// table, and, once keys were listed, 4 bytes in a sorted list. Each further
// record is an entry of 32 bytes in a chunk of its key. Nothing but the lists of
// blocks holds pointers, so that the collector has next to nothing to scan.
// There is no tree: only listing keys needs their order, and sorts what arrived
// since the last listing (see order.go).
//
// # Concurrency
//
// One goroutine adds while any number read. Invariants:
//
//	M1 Only the adding goroutine changes a table (the sorted key lists apart),
//	   and it does so under the write lock, except for bytes that no reader can
//	   know of yet. So it may read its own state without the lock.
//	M2 Bytes of keys and values, once stored, never change and never move. What
//	   a read returns aliases them and stays valid for ever.
//	M3 A critical section is short, whatever is asked: a writer holds the lock
//	   for at most publishRecords records, without the copying of values and
//	   without the growth of the hash table; a reader for little more than
//	   readRecords records or keys. Sorting keys holds no lock that adding
//	   needs.
//	M4 A frozen table does not change (the sorted key lists apart) and is read
//	   without the lock.
//
// A batch becomes visible in pieces (M3). Therefore readers ask only for
// sequences below a frontier that the caller publishes after AddBatch has
// returned; prefix-consistent visibility (I4) is the caller's, by that
// frontier.
package memtable

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/annalsdb/annals/internal/base"
)

const (
	// publishRecords bounds the records that are added under the lock at once.
	publishRecords = 256
	// readRecords bounds the records, or keys, that a read looks at under the
	// lock at once.
	readRecords = 256
)

// Table is an in-memory table. New makes one. See the package comment for who
// may call what at the same time.
type Table struct {
	seed   maphash.Seed
	adding atomic.Bool // an assertion: AddBatch and Freeze do not overlap
	frozen atomic.Bool

	// The adding goroutine's own.
	values arena
	staged []stagedRecord

	mu          sync.RWMutex // guards what follows (M1)
	valueBlocks [][]byte     // of values, as published
	keys        arena
	states      stateList
	index       keyIndex
	entries     slab[entry]
	directories slab[uint32]
	totals      totals

	order keyOrder // has a lock of its own
}

// totals describe all batches that were added completely.
type totals struct {
	records                       uint64
	keys                          uint64
	data, heap                    int64
	firstSequence, lastSequence   uint64
	firstTimestamp, lastTimestamp int64
}

// stagedRecord is what is prepared for a record outside the lock.
type stagedRecord struct {
	value place
	hash  uint32
	known uint32 // the number of the key's state plus one; 0 when the key is new
}

const stagedBytes = 16

// New returns an empty table. It takes well under 1 KiB until a record is added.
func New() *Table {
	t := &Table{seed: maphash.MakeSeed()}
	t.totals.heap = t.heap()
	return t
}

// AddBatch adds records, whose sequences become firstSeq, firstSeq+1, ..., all
// with the same timestamp. It copies keys and values; Sequence and Timestamp of
// recs are ignored. A key or a value is shorter than 4 GiB.
//
// It panics when firstSeq is not above every sequence so far, when timestamp
// is below the last one, when the table is frozen, and when another AddBatch
// is running.
func (t *Table) AddBatch(firstSeq uint64, timestamp int64, recs []base.Record) {
	t.beginAdding()
	defer t.adding.Store(false)
	if len(recs) == 0 {
		return
	}
	next := t.totals
	if next.records > 0 && (firstSeq <= next.lastSequence || timestamp < next.lastTimestamp) {
		panic(fmt.Sprintf("memtable: add sequence %d at %d after sequence %d at %d",
			firstSeq, timestamp, next.lastSequence, next.lastTimestamp))
	}
	if uint64(len(recs)) > base.MaxSequence-firstSeq {
		panic(fmt.Sprintf("memtable: add %d records from sequence %d", len(recs), firstSeq))
	}
	if next.records == 0 {
		next.firstSequence, next.firstTimestamp = firstSeq, timestamp
	}
	next.records += uint64(len(recs))
	next.lastSequence, next.lastTimestamp = firstSeq+uint64(len(recs)-1), timestamp
	for i := range recs {
		next.data += int64(recs[i].Size())
	}

	for len(recs) > 0 {
		n := min(len(recs), publishRecords)
		index := t.stage(recs[:n])
		t.mu.Lock()
		t.publish(index, firstSeq, timestamp, recs[:n])
		recs, firstSeq = recs[n:], firstSeq+uint64(n)
		if len(recs) == 0 {
			next.keys, next.heap = uint64(t.states.n), t.heap()
			t.totals = next
		}
		t.mu.Unlock()
	}
}

func (t *Table) beginAdding() {
	if !t.adding.CompareAndSwap(false, true) {
		panic("memtable: two goroutines add to a table")
	}
	if t.frozen.Load() {
		t.adding.Store(false)
		panic("memtable: add to a frozen table")
	}
}

// stage does what is slow and needs no lock (M3): it makes room in the index,
// copies the values, and looks up the keys, which also brings what publish
// needs into the processor's caches.
func (t *Table) stage(recs []base.Record) keyIndex {
	index := t.index.withRoom(uint64(t.states.n) + uint64(len(recs)))
	t.staged = t.staged[:0]
	for i := range recs {
		s := stagedRecord{value: t.values.add(recs[i].Value), hash: t.hash(recs[i].Key)}
		if state, ok := t.find(index, recs[i].Key, s.hash); ok {
			s.known = state + 1
		}
		t.staged = append(t.staged, s)
	}
	return index
}

// publish enters staged records. Called under the lock.
func (t *Table) publish(index keyIndex, sequence uint64, timestamp int64, recs []base.Record) {
	t.valueBlocks = t.values.blocks
	t.index = index // insertions go to the same slots
	for i := range recs {
		s := &t.staged[i]
		e := entry{sequence: sequence, timestamp: timestamp, value: s.value, length: uint32(len(recs[i].Value))}
		state, ok := s.known-1, s.known != 0
		if !ok { // not before this piece; perhaps in it
			state, ok = t.find(index, recs[i].Key, s.hash)
		}
		if ok {
			t.appendEntry(t.states.at(state), e)
		} else {
			state = t.states.add(keyState{
				first:     [1]entry{e},
				key:       t.keys.add(recs[i].Key),
				keyLength: uint32(len(recs[i].Key)),
				count:     1,
				last:      sequence,
			})
			index.insert(s.hash, state)
		}
		sequence++
	}
}

// Freeze ends adding: a later AddBatch panics, and reads take no lock from now
// on. The goroutine that adds calls it; calling it again does nothing.
func (t *Table) Freeze() {
	if t.frozen.Load() {
		return
	}
	t.beginAdding()
	defer t.adding.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.staged = nil
	t.totals.heap = t.heap()
	t.frozen.Store(true)
}

// rlock takes the read lock unless the table is frozen (M4), and returns what
// runlock needs to know.
func (t *Table) rlock() (locked bool) {
	if t.frozen.Load() {
		return false
	}
	t.mu.RLock()
	return true
}

func (t *Table) runlock(locked bool) {
	if locked {
		t.mu.RUnlock()
	}
}

// heap adds up what the table takes of the heap, sorted key lists apart.
func (t *Table) heap() int64 {
	return int64(unsafe.Sizeof(*t)) + int64(cap(t.staged))*stagedBytes +
		t.values.bytes() + t.keys.bytes() + t.states.bytes() + t.index.bytes() +
		t.entries.bytes() + t.directories.bytes()
}

func (t *Table) snapshot() totals {
	locked := t.rlock()
	defer t.runlock(locked)
	return t.totals
}

// Bytes returns the heap that the table holds, in bytes: all of it, unused
// room included, but not what a call in progress uses for itself.
func (t *Table) Bytes() int64 { return t.snapshot().heap + t.order.bytes.Load() }

// DataBytes returns the sum of the lengths of key and value over all records.
func (t *Table) DataBytes() int64 { return t.snapshot().data }

// Records returns the number of records.
func (t *Table) Records() uint64 { return t.snapshot().records }

// Keys returns the number of distinct keys.
func (t *Table) Keys() uint64 { return t.snapshot().keys }

// Empty reports whether the table has no record.
func (t *Table) Empty() bool { return t.Records() == 0 }

// FirstSequence returns the lowest sequence; 0 when the table is empty.
func (t *Table) FirstSequence() uint64 { return t.snapshot().firstSequence }

// LastSequence returns the highest sequence; 0 when the table is empty.
func (t *Table) LastSequence() uint64 { return t.snapshot().lastSequence }

// FirstTimestamp returns the lowest timestamp; 0 when the table is empty.
func (t *Table) FirstTimestamp() int64 { return t.snapshot().firstTimestamp }

// LastTimestamp returns the highest timestamp; 0 when the table is empty.
func (t *Table) LastTimestamp() int64 { return t.snapshot().lastTimestamp }
