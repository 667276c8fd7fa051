package engine

import (
	"math"
	"slices"
	"sync/atomic"
)

// What a prefix may have pending: keys with records that its follower has not looked at yet.
const (
	maxPendingKeys  = 4096
	maxPendingBytes = 256 << 10 // of these keys

	// maxAllPending bounds what all prefixes of the log have pending together, about as heap.
	maxAllPending   = 256 << 20
	pendingOverhead = 160 // of a key: its entry, in the map and in the list
)

// prefix is what a subscription of a prefix has beside its cursor.
//
// Its records are returned from three sources, in this order, so that each key's come in order:
//
//   - intervals: the keys with records in an interval of sequences are listed, and each is
//     read within it. That is how it begins, with what is there already.
//   - work: keys that commits have named, each with the sequence from which on. It is
//     read up to workEnd.
//   - pending: the same, not begun yet, which commits add to. When it becomes too large, records from
//     lapse on are no longer entered; they become the next interval.
//
// The first group of fields is guarded by the hub's lock; the second belongs to the reader.
type prefix struct {
	link, back  *subscription // its place in the topic's list
	pending     map[string]*pendingKey
	first, last *pendingKey  // of pending, in the order of their sequences
	bytes       int          // of pending keys
	lapse       uint64       // noLapse: none
	held        atomic.Int64 // of the hub's pending: keys that are pending or in work

	start     uint64 // of the prefix itself
	early     *early // of what it covers, if start is not reached yet
	intervals []interval
	listing   listing
	work      *pendingKey
	workLast  *pendingKey
	workEnd   uint64
}

const noLapse = math.MaxUint64

// pendingKey is a key whose records from next on have to be returned.
type pendingKey struct {
	key  string
	next uint64
	link *pendingKey
}

// interval is a part of the sequence space in which all records of a key, or of all keys with a
// prefix, have to be returned.
type interval struct {
	key       string
	exact     bool // key is a key
	filtered  bool // some may lie before the stream's start
	from, end uint64
}

// begin sets the prefix up, and reports whether there are intervals to read: what is below seen is
// there already. Callers hold the hub's lock.
func (p *prefix) begin(r *root, name string, seen uint64) bool {
	p.lapse, p.start = noLapse, r.From
	for _, c := range r.covered {
		if end := min(c.end, seen); c.From < end {
			p.intervals = append(p.intervals, interval{key: string(c.Key), exact: !c.Prefix, from: c.From, end: end})
		}
	}
	if r.From < seen {
		p.intervals = append(p.intervals, interval{key: name, from: r.From, end: seen})
	}
	if r.From > seen && len(r.covered) > 0 {
		p.early = newEarly(r.covered)
	}
	return len(p.intervals) > 0
}

// add enters a key that has a record, unless it is there, and the record lies in work or in
// an interval otherwise. It returns the copy of the key that it keeps: shared if that is one.
// Callers hold the hub's lock.
func (p *prefix) add(h *followers, key []byte, shared string, seq uint64) string {
	if seq >= p.lapse || seq < p.start && p.early == nil {
		return shared
	}
	if _, ok := p.pending[string(key)]; ok {
		return shared
	}
	if len(p.pending) == maxPendingKeys || p.bytes+len(key) > maxPendingBytes || h.pending.Load() >= maxAllPending {
		p.lapse = seq
		return shared
	}
	if shared == "" {
		shared = string(key)
	}
	k := &pendingKey{key: shared, next: seq}
	if p.pending == nil {
		p.pending = make(map[string]*pendingKey)
		p.first = k
	} else {
		p.last.link = k
	}
	p.last = k
	p.pending[shared] = k
	p.bytes += len(shared)
	p.held.Add(pendingOverhead + int64(len(shared)))
	h.pending.Add(pendingOverhead + int64(len(shared)))
	return shared
}

// released says that a key of so many bytes was looked at. Any goroutine may call it.
func (p *prefix) released(h *followers, bytes int) {
	n := pendingOverhead + int64(bytes)
	for held := p.held.Load(); held >= n; held = p.held.Load() { // else all was released by its end
		if p.held.CompareAndSwap(held, held-n) {
			h.pending.Add(-n)
			return
		}
	}
}

// releaseAll says that nothing is left of it.
func (p *prefix) releaseAll(h *followers) { h.pending.Add(-p.held.Swap(0)) }

// due reports whether commits have left something to read.
func (p *prefix) due() bool { return p.first != nil || p.lapse != noLapse }

// dueFrom is the cursor of what commits have left. Callers hold the hub's lock.
func (p *prefix) dueFrom() uint64 {
	if p.first != nil {
		return p.first.next
	}
	return p.lapse
}

// refill gives the reader what commits have left, up to seen, and returns the cursor from which on
// that is. Callers hold the hub's lock; the reader has nothing left.
func (p *prefix) refill(name string, seen uint64) (next uint64) {
	next = p.dueFrom()
	if p.first != nil {
		p.work, p.workLast, p.workEnd = p.first, p.last, min(seen, p.lapse)
		p.pending, p.first, p.last, p.bytes = nil, nil, nil, 0
		return next
	}
	p.intervals = append(p.intervals, interval{key: name, filtered: true, from: p.lapse, end: seen})
	p.lapse = noLapse
	return next
}

// idle reports whether the reader has nothing left.
func (p *prefix) idle() bool { return p.work == nil && len(p.intervals) == 0 }

// early knows which records before the start of a prefix are wanted: those of streams that it covers. It
// matters for a prefix that starts above the frontier only.
type early struct {
	keys, prefixes map[string]Range
	lengths        []int // of the prefixes, ascending
}

func newEarly(list []covered) *early {
	e := &early{keys: make(map[string]Range), prefixes: make(map[string]Range)}
	for _, c := range list {
		if r := Between(c.From, c.end); c.Prefix {
			e.prefixes[string(c.Key)] = r
			e.lengths = append(e.lengths, len(c.Key))
		} else {
			e.keys[string(c.Key)] = r
		}
	}
	slices.Sort(e.lengths)
	e.lengths = slices.Compact(e.lengths)
	return e
}

// wants reports whether the record is of a stream that the prefix covers, and before those start that
// cover it.
func (e *early) wants(rec *Record) bool {
	if e == nil {
		return false
	}
	if r, ok := e.keys[string(rec.Key)]; ok && holds(r, rec.Sequence) {
		return true
	}
	for _, n := range e.lengths {
		if n > len(rec.Key) {
			break
		}
		if r, ok := e.prefixes[string(rec.Key[:n])]; ok && holds(r, rec.Sequence) {
			return true
		}
	}
	return false
}

// wants reports whether the record is not before its start.
func (p *prefix) wants(rec *Record) bool { return rec.Sequence >= p.start || p.early.wants(rec) }

func holds(r Range, seq uint64) bool { return r.Start <= seq && seq < r.End }
