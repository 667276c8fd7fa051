package engine

import (
	"container/heap"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// followers is the hub of everybody who waits for records: each Wait and each Follower.
// A commit that makes records readable looks their keys up here and wakes those that
// wait for them, and nobody else. Nobody who waits has a goroutine or a timer here.
//
// What holds under mu:
//
//   - Every record below seen was announced, or was readable before anybody was here.
//   - An armed subscription is in the list of its topic, and has returned every record
//     below seen that it wants. Announcing one more moves it to its follower's ready
//     list, with its cursor at that record.
//   - A ready subscription is in its follower's ready list; the records from its cursor on
//     have to be looked at. One that is being read is in neither list.
//   - A follower that waits has no ready subscription.
//
// Followers read up to seen, never up to the frontier, which is ahead of it for a moment
// in each commit. So a follower without ready subscriptions has returned exactly what
// is below seen, and seen is where it would go on after a restart.
//
// Two locks: turn is held by the commit that announces, through all its signals; mu guards what is
// here, and is never held across a signal, an allocation of unbounded size, or a read.
type followers struct {
	// waiting counts who is here; a commit that finds nobody has nothing to do. It
	// rises under mu only.
	waiting atomic.Int64
	// pending is the heap of the keys that prefixes have pending, or in work (I9).
	pending atomic.Int64

	queueMu sync.Mutex
	queue   []announcement // in the order of their frontiers

	turn    sync.Mutex
	line    []announcement // being announced. Guarded by turn, as is touched
	touched []*Follower    // those that have to be woken

	mu       sync.Mutex
	seen     uint64
	keys     map[string]*topic
	prefixes map[string]*topic
	lengths  []prefixLength // of the prefixes, ascending
	ends     endHeap
	stopped  bool // the log stopped: nobody waits any more
}

// topic is a key, or a prefix, that somebody follows.
type topic struct {
	name string
	// first is the list of its armed subscriptions; of a prefix, of all of them, since
	// they take matches while they are ready too.
	first *subscription
	count int // subscriptions of any state
}

// prefixLength counts the prefixes of one length.
type prefixLength struct{ bytes, count int }

// announcement is what a commit says: records are readable from here on, and so is everything
// below frontier.
type announcement struct {
	recs     []Record
	first    uint64 // sequence of recs[0], if unnumbered
	frontier uint64
	// unnumbered: the records do not have their sequences; they are consecutive.
	unnumbered bool
	// jump: which records there are is not known. Everybody has to look.
	jump bool
}

// none reports whether nobody waits. A commit asks after it moved the frontier; whoever
// registers later sees that frontier.
func (h *followers) none() bool { return h.waiting.Load() == 0 }

// commit announces records that became readable, with their sequences, in sequence
// order, and the frontier, which was moved before. Keys need to be valid during the call only. Calls
// follow one another in the order of the frontier, and so do those of announce.
func (h *followers) commit(recs []Record, frontier uint64) {
	if h.announce(announcement{recs: recs, frontier: frontier}) {
		h.deliver()
	}
}

// announce puts an announcement in line, and reports whether it did: then deliver has to be called. Callers
// whose commits can overtake one another call it under the lock under which they moved the
// frontier. It does not block.
func (h *followers) announce(a announcement) bool {
	if h.none() {
		return false
	}
	h.queueMu.Lock()
	defer h.queueMu.Unlock()
	h.queue = append(h.queue, a) // as many as there are callers that have yet to call deliver
	return true
}

// deliver returns when everything that was in line is announced, by this call or by another
// one at the same time: what its caller put in line is then no longer used.
func (h *followers) deliver() {
	h.turn.Lock()
	defer h.turn.Unlock()
	for {
		h.queueMu.Lock()
		h.line, h.queue = h.queue, h.line[:0]
		h.queueMu.Unlock()
		if len(h.line) == 0 {
			return
		}
		for i := range h.line {
			h.take(&h.line[i])
		}
		clear(h.line)
	}
}

// takeBatch is how many records are announced without letting others in between.
const takeBatch = 512

// take makes what an announcement says ready, and wakes those that wait for it. Callers hold turn.
func (h *followers) take(a *announcement) {
	for recs, first := a.recs, a.first; ; {
		n, end := len(recs), a.frontier
		if n > takeBatch {
			// Everything below the first record that is left is announced then.
			n, end = takeBatch, first+takeBatch
			if !a.unnumbered {
				end = recs[n].Sequence
			}
		}
		h.mu.Lock()
		if end > h.seen {
			h.takeBatch(a, recs[:n], first, end)
		}
		h.mu.Unlock()
		h.signalTouched()
		if recs, first = recs[n:], first+uint64(n); len(recs) == 0 {
			return
		}
	}
}

// takeBatch announces records and moves seen to end. Callers hold turn and mu.
func (h *followers) takeBatch(a *announcement, recs []Record, first, end uint64) {
	if a.jump {
		h.readyAll()
	}
	for i := range recs {
		seq := recs[i].Sequence
		if a.unnumbered {
			seq = first + uint64(i)
		}
		if seq >= h.seen { // else it was readable before anybody was here
			h.match(recs[i].Key, seq)
		}
	}
	h.seen = end
	for len(h.ends) > 0 && h.ends[0].end <= end {
		h.wake(&heap.Pop(&h.ends).(*waiter).Follower)
	}
}

// wakeBatch is how many followers are woken at once. Thousands that become runnable together would keep
// everybody else from running, acknowledgements too, until each of them has run.
const wakeBatch = 256

// signalTouched wakes those that take has found: the first ones at once, the others from a goroutine that lets
// the woken run in between. Callers hold turn.
func (h *followers) signalTouched() {
	n := min(len(h.touched), wakeBatch)
	for _, f := range h.touched[:n] {
		f.signal()
	}
	if rest := h.touched[n:]; len(rest) > 0 {
		h.touched = nil
		rest[0].c.env.Go("wake followers", func() {
			for batch := range slices.Chunk(rest, wakeBatch) {
				runtime.Gosched()
				for _, f := range batch {
					f.signal()
				}
			}
		})
		return
	}
	clear(h.touched)
	h.touched = h.touched[:0]
}

// match makes ready the subscriptions that want the record. Its cost is that of those, and of
// one lookup for each distinct length of a prefix. Callers hold mu.
func (h *followers) match(key []byte, seq uint64) {
	if t := h.keys[string(key)]; t != nil {
		for s := t.first; s != nil; {
			next := s.link
			if seq >= s.next {
				t.unlink(s)
				s.next = seq
				h.ready(s)
			}
			s = next
		}
	}
	var shared string // the key, for all that keep it
	for _, l := range h.lengths {
		if l.bytes > len(key) {
			break
		}
		t := h.prefixes[string(key[:l.bytes])]
		if t == nil {
			continue
		}
		for s := t.first; s != nil; s = s.prefix.link {
			shared = s.prefix.add(h, key, shared, seq)
			if s.state == armed && s.prefix.due() {
				s.next = seq
				h.ready(s)
			}
		}
	}
}

// readyAll makes everything ready: of each subscription records at or above seen may have come.
// Callers hold mu.
func (h *followers) readyAll() {
	for _, t := range h.keys {
		for t.first != nil {
			s := t.first
			t.unlink(s)
			s.next = max(s.next, h.seen)
			h.ready(s)
		}
	}
	for _, t := range h.prefixes {
		for s := t.first; s != nil; s = s.prefix.link {
			s.prefix.lapse = min(s.prefix.lapse, h.seen)
			if s.state == armed {
				s.next = s.prefix.lapse
				h.ready(s)
			}
		}
	}
}

// ready appends a subscription to its follower's ready list and notes who has to be woken.
// Callers hold mu and turn.
func (h *followers) ready(s *subscription) {
	s.f.pushReady(s)
	h.wake(s.f)
}

// wake notes that the follower has to be woken, if it waits. Callers hold mu and turn.
func (h *followers) wake(f *Follower) {
	if f.waiting {
		f.waiting = false
		h.touched = append(h.touched, f)
	}
}

// wakeAll tells everybody that the log stopped, which core.stopped says from now on.
func (h *followers) wakeAll() {
	h.turn.Lock()
	defer h.turn.Unlock()
	h.mu.Lock()
	h.stopped = true
	for _, topics := range []map[string]*topic{h.keys, h.prefixes} {
		for _, t := range topics {
			// One that waits has nothing ready: all its subscriptions are in these lists.
			for s := t.first; s != nil; s = s.peer() {
				h.wake(s.f)
			}
		}
	}
	h.mu.Unlock()
	h.signalTouched()
}

// registerBatch is how many subscriptions are entered, or removed, without letting others in
// between.
const registerBatch = 512

// enter registers a follower with a subscription for each root.
func (h *followers) enter(f *Follower, roots []root) {
	h.mu.Lock()
	if h.waiting.Add(1) == 1 {
		// Commits that found nobody here have moved the frontier before.
		h.seen = max(h.seen, f.c.frontier.Load())
	}
	h.mu.Unlock()
	for from := 0; from < len(roots); from += registerBatch {
		h.mu.Lock()
		for i := from; i < min(from+registerBatch, len(roots)); i++ {
			h.subscribe(&f.subs[i], &roots[i])
		}
		h.mu.Unlock()
	}
}

// subscribe enters a subscription in its topic. Callers hold mu.
func (h *followers) subscribe(s *subscription, r *root) {
	topics := &h.keys
	if s.prefix != nil {
		topics = &h.prefixes
	}
	t := (*topics)[string(r.Key)]
	if t == nil {
		t = &topic{name: string(r.Key)}
		if *topics == nil {
			*topics = make(map[string]*topic)
		}
		(*topics)[t.name] = t
		if s.prefix != nil {
			h.countLength(len(t.name), 1)
		}
	}
	t.count++
	s.topic = t
	switch {
	case s.prefix != nil:
		t.linkPrefix(s)
		s.state = armed
		if s.prefix.begin(r, t.name, h.seen) {
			s.next = s.prefix.intervals[0].from
			s.f.pushReady(s)
		}
	case s.next < h.seen:
		s.f.pushReady(s)
	default:
		t.arm(s)
	}
}

// leave removes a follower that has ended.
func (h *followers) leave(f *Follower) {
	for batch := range slices.Chunk(f.subs, registerBatch) {
		h.mu.Lock()
		for i := range batch {
			h.unsubscribe(&batch[i])
		}
		h.mu.Unlock()
	}
	h.waiting.Add(-1)
}

// unsubscribe removes a subscription from its topic. Callers hold mu.
func (h *followers) unsubscribe(s *subscription) {
	t, topics := s.topic, h.keys
	switch {
	case s.prefix != nil:
		t.unlinkPrefix(s)
		s.prefix.releaseAll(h)
		topics = h.prefixes
	case s.state == armed:
		t.unlink(s)
	}
	s.state = ended
	if t.count--; t.count > 0 {
		return
	}
	delete(topics, t.name)
	if s.prefix != nil {
		h.countLength(len(t.name), -1)
	}
}

// countLength adds n to the number of prefixes with a length. Callers hold mu.
func (h *followers) countLength(bytes, n int) {
	i, ok := slices.BinarySearchFunc(h.lengths, bytes, func(l prefixLength, bytes int) int { return l.bytes - bytes })
	if !ok {
		h.lengths = slices.Insert(h.lengths, i, prefixLength{bytes: bytes})
	}
	if h.lengths[i].count += n; h.lengths[i].count == 0 {
		h.lengths = slices.Delete(h.lengths, i, i+1)
	}
}
