package engine

import (
	"context"
	"math"
)

// maxTurns is how many subscriptions Next takes together.
const maxTurns = 32

// Next returns the next records, waiting until there are some. It returns none, and no error, after Wake.
// After an error that is not o.Log's the Follower has ended: the error is that of Err, or ErrFollowerClosed.
// To go on, follow again from the Cursor.
//
// The slice is valid until Next is called again; the records are the caller's to keep and nobody's to change.
func (f *Follower) Next(o FollowRead) ([]Record, error) {
	if len(f.rest) > 0 {
		recs := f.rest
		f.rest = nil
		return recs, nil
	}
	f.recs = f.recs[:0]
	r := reading{f: f, c: f.c, log: o.Log, most: o.MaxBytes}
	if r.most <= 0 {
		r.most = defaultFollowBytes
	}
	for {
		if err := f.ctx.Err(); err != nil {
			return nil, f.fail(err)
		}
		chain, next, err := f.take(&r)
		switch next {
		case nextEnds:
			return nil, err
		case nextLogStopped:
			return nil, f.fail(f.c.stopped())
		case nextWaits:
			f.forget()
			select {
			case <-f.wake:
			case <-f.ctx.Done():
			}
			continue
		}
		r.bytes, r.enough, r.postponed = 0, false, false // what came before was not wanted
		turns, err := r.read(chain)
		f.settle(&r, chain, turns, len(f.recs) > 0 || err != nil)
		switch {
		case len(f.recs) > 0: // an error will come again, if it has to
			f.c.scannedRecords.Add(r.records)
			f.c.scannedBytes.Add(r.size)
			return f.recs, nil
		case err != nil && r.refused:
			return nil, err
		case err != nil:
			return nil, f.fail(err)
		}
	}
}

// fail ends the Follower from within Next, and returns why it has ended.
func (f *Follower) fail(err error) error {
	h := &f.c.followers
	h.mu.Lock()
	f.inNext = false
	h.mu.Unlock()
	return f.end(err)
}

// forget drops the records that Next returned before: a Follower that waits holds none.
func (f *Follower) forget() {
	if cap(f.recs) > maxKeptRecords {
		f.recs = nil
	}
	clear(f.recs[:cap(f.recs)])
}

// nextStep is what Next does.
type nextStep int

const (
	nextReads nextStep = iota
	nextWaits
	nextEnds
	nextLogStopped
)

// take decides what Next does, and takes subscriptions that are ready, a few at a time.
func (f *Follower) take(r *reading) (chain *subscription, next nextStep, err error) {
	h := &f.c.followers
	h.mu.Lock()
	var done func()
	if !r.begun {
		if f.inNext {
			h.mu.Unlock()
			panic("engine: Next of a Follower was called by two goroutines")
		}
		r.begun, f.inNext = true, true
		done, f.done = f.done, nil
	}
	switch {
	case f.stopped:
		next, err, f.inNext = nextEnds, f.reason(), false
		if f.done != nil { // of a read in this call
			done, f.done = f.done, nil
		}
	case h.stopped:
		next = nextLogStopped
	case f.woken:
		next, f.woken, f.inNext = nextEnds, false, false
	case f.first == nil:
		next, f.waiting = nextWaits, true
		if f.done != nil {
			done, f.done = f.done, nil
		}
		r.logged = false
	default:
		chain = f.takeReady(h.seen)
		r.bound = h.seen
	}
	h.mu.Unlock()
	if done != nil {
		done()
	}
	return chain, next, err
}

// takeReady takes the first subscriptions of the ready list. Callers hold the hub's lock.
func (f *Follower) takeReady(seen uint64) *subscription {
	chain, last := f.first, f.first
	for n := 1; ; n++ {
		last.state = taken
		if p := last.prefix; p != nil && p.idle() {
			last.next = p.refill(last.topic.name, seen)
		}
		f.lowest = min(f.lowest, last.next)
		if n == maxTurns || last.link == nil {
			break
		}
		last = last.link
	}
	f.first = last.link
	if f.first == nil {
		f.last = nil
	}
	last.link = nil
	return chain
}

// settle puts back what take took: the first turns of the chain had one. exit says that Next returns.
func (f *Follower) settle(r *reading, chain *subscription, turns int, exit bool) {
	h := &f.c.followers
	h.mu.Lock()
	cancel := f.cancel
	var done func()
	f.cancel, f.lowest = nil, math.MaxUint64
	for ; turns > 0; turns-- {
		s := chain
		chain, s.link = s.link, nil
		if !f.stopped {
			f.putBack(s, h.seen)
		}
	}
	if !f.stopped && chain != nil {
		f.pushFront(chain)
	}
	if exit {
		f.inNext = false
		if f.stopped {
			done, f.done = f.done, nil
		}
	}
	h.mu.Unlock()
	r.ctx = nil
	if cancel != nil {
		cancel()
	}
	if done != nil {
		done()
	}
}

// putBack arms a subscription that has returned everything below seen, or puts it at the end of the ready
// list. Callers hold the hub's lock.
func (f *Follower) putBack(s *subscription, seen uint64) {
	switch p := s.prefix; {
	case p == nil && s.next >= seen:
		s.topic.arm(s)
	case p == nil || !p.idle():
		f.pushReady(s)
	case p.due():
		s.next = p.dueFrom()
		f.pushReady(s)
	default:
		s.state = armed
		if p.start <= seen {
			p.early = nil
		}
	}
}

// pushFront puts subscriptions that had no turn before the others. Callers hold the hub's lock.
func (f *Follower) pushFront(chain *subscription) {
	last := chain
	for last.state = ready; last.link != nil; last.state = ready {
		last = last.link
	}
	last.link = f.first
	if f.first == nil {
		f.last = last
	}
	f.first = chain
}

// What one turn returns at most, so that a busy key does not keep the others waiting.
const (
	turnRecords = 256
	turnBytes   = 64 << 10 // of values, from memory; from tables as much as Next may return
	turnSteps   = 64       // keys of a prefix
)

// reading is one call of Next.
type reading struct {
	f    *Follower
	c    *core
	log  func(context.Context) (func(), error)
	most int64 // bytes of values

	bound  uint64 // every record below it is announced, and none at or above it is read
	begun  bool
	logged bool            // log was called and what it returned is kept
	ctx    context.Context // of reads of tables; nil: none yet
	bytes  int64           // of the values read
	enough bool            // Next returns what there is
	// postponed: it returns because what comes next is read from tables.
	postponed bool

	refused bool   // log returned an error
	records uint64 // from memory; tables are counted by their iterator
	size    uint64
}

// full reports whether Next returns what there is.
func (r *reading) full() bool {
	return r.enough || r.bytes >= r.most || len(r.f.recs) >= maxFollowRecords
}

// read gives subscriptions their turns and returns how many had one.
func (r *reading) read(chain *subscription) (turns int, err error) {
	for s := chain; s != nil && err == nil && !r.full(); s = s.link {
		if turns++; s.prefix != nil {
			err = r.readPrefix(s)
		} else {
			s.next, err = r.readKey([]byte(s.topic.name), s.next, r.bound)
		}
		if r.postponed {
			turns-- // its turn comes first in the next call, before others have filled it
		}
		if r.ctx != nil && r.f.interrupted() {
			break
		}
	}
	return turns, err
}

// interrupted reports whether Wake or Close was called.
func (f *Follower) interrupted() bool {
	h := &f.c.followers
	h.mu.Lock()
	defer h.mu.Unlock()
	return f.woken || f.stopped
}

// readPrefix gives a prefix its turn.
func (r *reading) readPrefix(s *subscription) error {
	p := s.prefix
	records, bytes := len(r.f.recs)+turnRecords, r.bytes+turnBytes
	for step := 0; step < turnSteps && !r.full() && len(r.f.recs) < records && r.bytes < bytes && !p.idle(); step++ {
		var err error
		if p.work != nil {
			err = r.readWork(p)
		} else {
			err = r.readInterval(s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readWork reads the next key that commits have named.
func (r *reading) readWork(p *prefix) error {
	k, n := p.work, len(r.f.recs)
	next, err := r.readKey([]byte(k.key), k.next, p.workEnd)
	if k.next < p.start {
		r.filter(p, n)
	}
	k.next = next
	switch {
	case next >= p.workEnd:
		p.released(&r.c.followers, len(k.key))
		if p.work = k.link; p.work == nil {
			p.workLast = nil
		}
	case k.link != nil: // the others first
		p.work, k.link = k.link, nil
		p.workLast.link, p.workLast = k, k
	}
	return err
}

// readInterval reads the next key in the interval, or lists the next keys, or goes on to the next interval.
func (r *reading) readInterval(s *subscription) error {
	p := s.prefix
	in, l := &p.intervals[0], &p.listing
	if l.at == len(l.keys) {
		if !l.begun || l.more {
			return r.list(in, l)
		}
		*l = listing{}
		if p.intervals = p.intervals[1:]; len(p.intervals) == 0 {
			p.intervals = nil
		} else {
			s.next = p.intervals[0].from
		}
		return nil
	}
	n := len(r.f.recs)
	next, err := r.readKey(l.keys[l.at], max(l.next, in.from), in.end)
	if in.filtered && in.from < p.start {
		r.filter(p, n)
	}
	if l.next = next; next >= in.end {
		l.keys[l.at], l.next = nil, 0
		l.at++
	}
	return err
}

// filter drops those of the records from the nth on that the prefix does not want.
func (r *reading) filter(p *prefix, n int) {
	kept := r.f.recs[:n]
	for i := n; i < len(r.f.recs); i++ {
		if rec := &r.f.recs[i]; p.wants(rec) {
			kept = append(kept, *rec)
		} else {
			r.bytes -= int64(len(rec.Value))
		}
	}
	clear(r.f.recs[len(kept):])
	r.f.recs = kept
}

// readKey reads records of a key within [next, end) and returns the cursor behind them.
func (r *reading) readKey(key []byte, next, end uint64) (uint64, error) {
	if next >= end || r.full() {
		return next, nil
	}
	v := r.c.view.Load()
	if next >= v.memStart {
		return r.fromMemory(v, key, Between(next, end)), nil
	}
	if err := r.open(); err != nil || r.enough {
		return next, err
	}
	return r.fromTables(key, Between(next, end))
}

// fromMemory reads a key that has nothing to read in tables. It allocates nothing but the room of the records.
func (r *reading) fromMemory(v *view, key []byte, rng Range) uint64 {
	f, n := r.f, len(r.f.recs)
	records, bytes := min(turnRecords, maxFollowRecords-n), min(turnBytes, r.most-r.bytes)
	next := rng.End
	for i := v.memoriesFrom(rng.Start); i < len(v.memories); i++ {
		if v.memories[i].start >= rng.End {
			break
		}
		mr := v.memoryRange(i, rng)
		if mr.Empty() {
			continue // one that has entries of the small state, or seals a segment, and no record
		}
		m := len(f.recs)
		f.recs = v.memories[i].table.Scan(f.recs, key, mr, records-(m-n), bytes)
		for _, rec := range f.recs[m:] {
			bytes -= int64(len(rec.Value))
			r.bytes += int64(len(rec.Value))
		}
		if got := len(f.recs) - n; got > 0 && (got == records || bytes <= 0) {
			last := &f.recs[len(f.recs)-1]
			if next = last.Sequence + 1; r.bytes > r.most && len(f.recs) > 1 {
				next = last.Sequence // too much by this one
				r.bytes -= int64(len(last.Value))
				*last = Record{}
				f.recs, r.enough = f.recs[:len(f.recs)-1], true
			}
			break
		}
	}
	for i := n; i < len(f.recs); i++ {
		r.records++
		r.size += uint64(f.recs[i].Size())
	}
	return next
}

// open gets ready for a read of tables; or it sets enough: Next has something to return, and does that
// before it asks whether there is room for more.
func (r *reading) open() error {
	f, h := r.f, &r.c.followers
	if r.log != nil && !r.logged && len(f.recs) > 0 {
		r.enough, r.postponed = true, true
		return nil
	}
	if r.ctx == nil {
		ctx, cancel := context.WithCancel(f.ctx)
		h.mu.Lock()
		stopped := f.stopped
		f.cancel = cancel // settle calls it
		h.mu.Unlock()
		if stopped {
			return ErrFollowerClosed
		}
		r.ctx = ctx
	}
	if r.log == nil || r.logged {
		return nil
	}
	done, err := r.log(r.ctx)
	if err != nil {
		r.refused = true
		return err
	}
	r.logged = true
	h.mu.Lock()
	f.done = done
	h.mu.Unlock()
	return nil
}

// fromTables reads a key like any scan. Nothing of it is kept from one call to the next.
func (r *reading) fromTables(key []byte, rng Range) (uint64, error) {
	f := r.f
	it := r.c.Scan(r.ctx, key, rng, ScanOptions{Limit: maxFollowRecords - len(f.recs), MaxBytes: max(1, r.most-r.bytes)})
	for rec := range it.All() {
		n := int64(len(rec.Value))
		if len(f.recs) > 0 && r.bytes+n > r.most {
			r.enough = true
			return rec.Sequence, nil
		}
		f.recs = append(f.recs, rec)
		r.bytes += n
	}
	return it.Next(), it.Err()
}

// listing is a page of the keys of an interval.
type listing struct {
	begun bool
	more  bool
	keys  [][]byte
	at    int    // the key that is read
	next  uint64 // its cursor, once it was read in part
	last  []byte // key of the page
}

// A page of an interval's keys.
const (
	listedKeys  = 1024
	listedBytes = 256 << 10
)

// list lists the next keys of an interval.
func (r *reading) list(in *interval, l *listing) error {
	if in.exact {
		l.begun, l.keys, l.at = true, [][]byte{[]byte(in.key)}, 0
		return nil
	}
	ctx := r.f.ctx
	if in.from < r.c.view.Load().memStart {
		if err := r.open(); err != nil || r.enough {
			return err
		}
		ctx = r.ctx
	}
	o := KeysOptions{Prefix: []byte(in.key), Limit: listedKeys}
	if l.begun {
		o.After = l.last
	}
	page, err := r.c.keysWithin(ctx, o, Between(in.from, in.end), listedBytes)
	if err != nil {
		return err
	}
	l.begun, l.more, l.keys, l.at = true, page.More, page.Keys, 0
	if len(page.Keys) > 0 {
		l.last = page.Keys[len(page.Keys)-1]
	}
	return nil
}
