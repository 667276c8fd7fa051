package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/trace"
	"github.com/annalsdb/annals/wal"
)

// The tail reads WAL objects from the cursor on and applies them in order. What it must never do
// (I2, I4):
//
//   - skip an id: a missing object is the end for now, and a damaged one stays where the tail stops,
//     until it can be read or a MANIFEST has passed it;
//   - believe what it read at a cursor that has moved meanwhile (F33);
//   - believe a fence before a MANIFEST that was read after it has shown that position has not
//     passed it: it may be one that was delayed, and landed in the name of a record object that was
//     collected (F47). The same for damage.

const (
	// tailMemoryBytes is the heap of one memory: memories are let go of as a whole.
	tailMemoryBytes = 16 << 20
	// tailMemories is how many TailBytes has room for, at least.
	tailMemories = 8
	// busyPolls is how many polls in a row find nothing before they become rarer.
	busyPolls = 10
	// lagSlack is how late a poll may be without counting as lag: the store takes its time.
	lagSlack = time.Second
)

// errTailFull says why the tail does not go on.
var errTailFull = errors.New("records that are not in tables yet need more than TailBytes: waiting for the writer to flush")

// progress is what is known about how far the tail is behind. Guarded by Reader.mu.
type progress struct {
	caughtUp time.Duration // Elapsed() when the request was sent that last found nothing new
	behind   bool          // the last look found something, and the next is not done
	interval time.Duration // between the last look and the next
	trouble  error         // why the last look did not get on; nil: it did
	waiting  uint64        // records of objects that are fetched and not applied
}

// lag returns since when something may be there that is not readable here, and what keeps the tail
// from going on. It is 0 when the last polls, of the WAL and of the MANIFEST, were not longer ago than they
// should be and the tail has seen its end.
func (r *Reader) lag() (time.Duration, error) {
	head := r.headAge()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.progress
	lag := r.env.Elapsed() - p.caughtUp
	if !p.behind && p.trouble == nil && lag <= p.interval+lagSlack {
		lag = 0
	}
	if head > pollInterval+lagSlack {
		lag = max(lag, head)
	}
	return lag, p.trouble
}

// tailLoop follows the WAL until the replica ends.
func (r *Reader) tailLoop() {
	wait := r.opts.PollInterval
	for quiet, failures := 0, 0; r.pause(wait); {
		before := r.walObjects.Load()
		r.step(r.life)
		quiet, failures = quiet+1, failures+1
		if r.walObjects.Load() != before {
			quiet = 0
		}
		r.mu.Lock()
		if r.progress.trouble == nil {
			failures = 0
		}
		wait = r.pace(quiet, failures)
		r.progress.interval = wait
		r.mu.Unlock()
	}
}

// pace returns the time until the next look, after so many in a row that found nothing, or that
// failed.
func (r *Reader) pace(quiet, failures int) time.Duration {
	idle := r.opts.idleInterval()
	if failures > 0 {
		return r.env.Backoff(r.opts.PollInterval, idle, failures-1)
	}
	wait := r.opts.PollInterval
	for n := busyPolls; n < quiet && wait < idle; n++ {
		wait *= 2
	}
	return min(wait, idle)
}

// pause waits, or until a MANIFEST was adopted that the tail should know of. It reports whether the
// replica goes on.
func (r *Reader) pause(wait time.Duration) bool {
	due := make(chan struct{})
	stop := r.env.AfterFunc(wait, func() { close(due) })
	defer stop()
	select {
	case <-due:
	case <-r.moved:
	case <-r.life.Done():
		return false
	}
	return true
}

// step looks for WAL objects and applies them until it has seen the end of the log, or cannot get on:
// progress then says why. One goroutine at a time may call it.
func (r *Reader) step(ctx context.Context) {
	for more := true; more && ctx.Err() == nil; {
		var err error
		r.mu.Lock()
		at, full, loaded, head, sent := r.cursor, r.full(), r.loaded, r.snapshot.State, r.progress.caughtUp
		r.mu.Unlock()
		switch {
		case full:
			more, err = false, errTailFull
		case !loaded:
			more, err = r.loadState(ctx, at, head)
		default:
			look := r.tail.Look(ctx, at.Epoch, at.ID)
			r.walPolls.Add(uint64(look.Requests))
			if ctx.Err() != nil {
				return // a replica that ends shows nothing new, even if some of it had come
			}
			more, err = r.takeTraced(ctx, look)
			sent = look.Sent
		}
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		p := &r.progress
		p.waiting, p.trouble, p.behind = 0, err, more || err != nil
		if !p.behind {
			p.caughtUp = sent
		}
		r.mu.Unlock()
	}
}

// takeTraced is take, told if there is something to apply.
func (r *Reader) takeTraced(ctx context.Context, look wal.Look) (more bool, err error) {
	if len(look.Objects) == 0 {
		return r.take(ctx, look)
	}
	ctx, span := trace.Begin(r.tracer, ctx, trace.Replica)
	if span.Wanted() {
		span.Int("wal_objects", int64(len(look.Objects)))
		span.Int("requests", int64(look.Requests))
		span.Int("polled_us", int64((r.env.Elapsed()-look.Sent)/time.Microsecond))
	}
	more, err = r.take(ctx, look)
	span.End(err)
	return more, err
}

// take applies what a look found. It reports whether to look again at once; if not, err says why the tail
// cannot get on, or, when it is nil, everything that was there is applied.
func (r *Reader) take(ctx context.Context, look wal.Look) (more bool, err error) {
	r.mu.Lock()
	at := r.cursor
	r.progress.behind = r.progress.behind || len(look.Objects) > 0
	for _, o := range look.Objects {
		r.progress.waiting += o.Records()
	}
	r.mu.Unlock()
	for _, o := range look.Objects {
		at = manifest.Pos{Epoch: o.Epoch, ID: o.ID}
		if o.Fence {
			return r.endEpoch(ctx, at)
		}
		applied, err := r.apply(o)
		if err != nil {
			return r.doubt(ctx, at, err)
		}
		if !applied {
			return true, nil
		}
		at.ID++
	}
	switch {
	case look.End == nil:
		return true, nil
	case errors.Is(look.End, objstore.ErrNotFound):
		return false, nil
	}
	return r.doubt(ctx, at, look.End)
}

// endEpoch goes on behind a fence, if it counts.
func (r *Reader) endEpoch(ctx context.Context, fence manifest.Pos) (more bool, err error) {
	if _, err := r.passed(ctx, fence); err != nil {
		return false, fmt.Errorf("look whether the fence at %s counts: %w", base.WALName(tree, fence.Epoch, fence.ID), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cursor == fence {
		r.cursor = manifest.Pos{Epoch: fence.Epoch + 1, ID: 1}
	}
	return true, nil
}

// doubt decides what it means that an object cannot be read or applied: nothing, once position
// has passed it; else the tail stays before it.
func (r *Reader) doubt(ctx context.Context, at manifest.Pos, cause error) (more bool, err error) {
	if !isDamage(cause) && !errors.Is(cause, wal.ErrVersion) {
		return false, cause // the store failed
	}
	passed, err := r.passed(ctx, at)
	switch {
	case err != nil:
		return false, fmt.Errorf("%w (and the head could not be read: %w)", cause, err)
	case passed:
		return true, nil
	case failsForGood(cause):
		r.fail(cause)
	}
	return false, cause
}

// apply makes one record object readable, if it is the one at the cursor still.
func (r *Reader) apply(o *wal.Object) (applied bool, err error) {
	r.mu.Lock()
	applied, err = r.applyLocked(o)
	// In line under the lock under which the frontier moved; asked after it has moved.
	announced := applied && !r.followers.none() &&
		r.followers.announce(announcement{recs: recordsOf(o), frontier: r.frontier.Load()})
	r.mu.Unlock()
	if announced {
		r.followers.deliver()
	}
	return applied, err
}

// applyLocked is apply without those who wait. Callers hold mu.
func (r *Reader) applyLocked(o *wal.Object) (applied bool, err error) {
	if r.cursor != (manifest.Pos{Epoch: o.Epoch, ID: o.ID}) {
		return false, nil
	}
	end := r.chain.End
	if err := r.chain.Accept(base.WALName(tree, o.Epoch, o.ID), o); err != nil {
		return false, err
	}
	if m := r.active(); o.Segment != m.segment || !m.table.Empty() && m.table.Bytes() >= r.memoryBytes() {
		r.rotate(o.Segment, end)
		r.trim()
		r.publishView(false)
	}
	var recs []Record
	var bytes uint64
	for e := range o.Entries() {
		if e.Type != wal.EntryBatch {
			if e.Type == wal.EntryCursor {
				r.small.apply(&e)
			}
			continue
		}
		recs = e.Batch.AppendRecords(recs[:0])
		r.add(e.Batch.First, e.Batch.Timestamp, recs)
		bytes += uint64(e.Batch.Bytes())
	}
	if o.Records() > 0 {
		r.recordsEnd = o.End
		r.active().marks.add(o, bytes)
	}
	r.cursor.ID++
	r.walObjects.Add(1)
	r.progress.waiting -= min(r.progress.waiting, o.Records())
	r.advance(r.chain.End)
	return true, nil
}

// recordsOf returns all records of an object. They alias it.
func recordsOf(o *wal.Object) []Record {
	recs := make([]Record, 0, o.Records())
	for e := range o.Entries() {
		if e.Type == wal.EntryBatch {
			recs = e.Batch.AppendRecords(recs)
		}
	}
	return recs
}

// add adds the records of a batch that are within Keys.
func (r *Reader) add(first uint64, timestamp int64, recs []Record) {
	table := r.active().table
	if r.keys.all() {
		table.AddBatch(first, timestamp, recs)
		return
	}
	for i := 0; i < len(recs); {
		n := 0
		for i+n < len(recs) && r.keys.Contains(recs[i+n].Key) {
			n++
		}
		table.AddBatch(first+uint64(i), timestamp, recs[i:i+n])
		i += n + 1
	}
}

// memoryBytes is the heap at which a memory is full.
func (r *Reader) memoryBytes() int64 { return min(tailMemoryBytes, r.opts.TailBytes/tailMemories) }
