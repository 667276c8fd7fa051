package engine

import (
	"context"
	"iter"
	"math"
)

// Follower returns the records of streams: those that are there, then those that come. The records of one key come
// in sequence order, none missing, none twice, however often streams name the key; records of
// different keys come in any order. What retention drops before it was read is left out.
//
// It waits without a goroutine and without a timer: the commit that makes one of its records readable
// wakes it, and the tip of the log is read from memory. While its user is slow it keeps
// cursors, never records: it is then read from wherever the log has them.
//
// Next, All, Err and Cursor belong to one goroutine; Wake and Close may be called from any. It ends when
// its context ends, the log stops, a read fails, or by Close; Close it in any case.
type Follower struct {
	c    *core
	ctx  context.Context
	wake chan struct{} // capacity 1: a signal is never lost and never blocks

	// Guarded by the hub's lock.
	subs             []subscription
	one              [1]subscription // memory of subs
	first, last      *subscription   // the ready list
	lowest           uint64          // of the cursors of those that are being read
	final            uint64          // the cursor when it ended
	err              error           // why it ended
	cancel           func()          // of a read of tables that is under way
	done             func()          // of what such reads hold
	waiting, stopped bool            // in select; has ended
	woken, inNext    bool

	// Of the goroutine that reads.
	start uint64   // the lowest From
	recs  []Record // memory of what Next returns
	rest  []Record // what All has not yielded yet
}

// FollowRead limits a call of Next. The zero value is fit for most.
type FollowRead struct {
	// MaxBytes bounds the values (keys do not count), but one record is returned at least. 0: 1 MiB.
	MaxBytes int64
	// Log, when not nil, is called before records are read from tables, as against memory, so that a
	// server can bound what such reads hold. It may wait, until ctx ends. done is called when Next is called
	// again, or by Close. An error is returned by Next, and the Follower goes on.
	Log func(ctx context.Context) (done func(), err error)
}

const (
	defaultFollowBytes = 1 << 20
	// maxFollowRecords bounds the records that Next returns, beside their bytes.
	maxFollowRecords = 4096
	// maxKeptRecords is for how many records a Follower that waits keeps memory.
	maxKeptRecords = 16
)

func (f *Follower) init(c *core, ctx context.Context, roots []root) {
	f.c, f.ctx, f.wake = c, ctx, make(chan struct{}, 1)
	f.lowest, f.start = math.MaxUint64, math.MaxUint64
	f.subs = f.one[:]
	if len(roots) > 1 {
		f.subs = make([]subscription, len(roots))
	}
	for i := range roots {
		s := &f.subs[i]
		s.f, s.next = f, roots[i].From
		if roots[i].Prefix {
			s.prefix = &prefix{}
		}
		f.start = min(f.start, roots[i].From)
		for _, c := range roots[i].covered {
			f.start = min(f.start, c.From)
		}
	}
}

// All yields records as they come, and waits in between. It ends when the Follower ends; Err then says
// why. The loop may be left early and All called again: it goes on behind the last record that
// it yielded. The records are the caller's to keep and nobody's to change.
func (f *Follower) All() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for {
			for len(f.rest) > 0 {
				rec := f.rest[0]
				f.rest = f.rest[1:]
				if !yield(rec) {
					return
				}
			}
			recs, err := f.Next(FollowRead{})
			if err != nil {
				return
			}
			f.rest = recs
		}
	}
}

// Err returns why the Follower ended: its context's error, ErrClosed or ErrFenced when the log
// stopped, or why a read failed. It is nil before, and after Close.
func (f *Follower) Err() error {
	h := &f.c.followers
	h.mu.Lock()
	defer h.mu.Unlock()
	return f.err
}

// Cursor returns a sequence below which everything was returned that the streams want: where to go
// on, for all of them. When nothing is left to return it is the frontier, which activity
// on other keys advances; else some records at or above it may have been returned
// already. It never falls.
func (f *Follower) Cursor() uint64 {
	h := &f.c.followers
	h.mu.Lock()
	defer h.mu.Unlock()
	cursor := f.cursor()
	for i := range f.rest {
		cursor = min(cursor, f.rest[i].Sequence)
	}
	return cursor
}

// cursor is Cursor of what Next returned. Callers hold the hub's lock.
func (f *Follower) cursor() uint64 {
	if f.stopped {
		return f.final
	}
	cursor := f.lowest
	for s := f.first; s != nil; s = s.link {
		cursor = min(cursor, s.next)
	}
	if cursor == math.MaxUint64 { // nothing is left
		cursor = f.c.followers.seen
	}
	return max(cursor, f.start)
}

// Wake makes a Next that waits return, with no records and no error; if none waits, the next one
// that would wait, or that is called.
func (f *Follower) Wake() {
	h := &f.c.followers
	h.mu.Lock()
	f.woken = true
	waits := f.waiting
	f.waiting = false
	h.mu.Unlock()
	if waits {
		f.signal()
	}
}

// Close ends the Follower and frees what it holds. A Next that waits returns
// ErrFollowerClosed, as do all later ones. Close again does nothing.
func (f *Follower) Close() { f.end(nil) }

// end ends the Follower, for err unless that is nil, and returns why it has ended.
func (f *Follower) end(err error) error {
	h := &f.c.followers
	h.mu.Lock()
	if f.stopped {
		defer h.mu.Unlock()
		return f.reason()
	}
	f.final = f.cursor()
	f.stopped, f.err = true, err
	f.first, f.last = nil, nil
	waits, cancel, done := f.waiting, f.cancel, f.done
	f.waiting = false
	if !f.inNext {
		f.done = nil
	} else {
		done = nil // Next calls it
	}
	reason := f.reason()
	h.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if waits {
		f.signal()
	}
	h.leave(f)
	if done != nil {
		done()
	}
	return reason
}

// reason says why the Follower has ended. Callers hold the hub's lock.
func (f *Follower) reason() error {
	if f.err != nil {
		return f.err
	}
	return ErrFollowerClosed
}

// signal wakes a Next that waits. It never blocks.
func (f *Follower) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// pushReady appends a subscription to the ready list. Callers hold the hub's lock.
func (f *Follower) pushReady(s *subscription) {
	s.state, s.link = ready, nil
	if f.first == nil {
		f.first = s
	} else {
		f.last.link = s
	}
	f.last = s
}
