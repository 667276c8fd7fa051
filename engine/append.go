package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/wal"
)

// AppendOptions of one append.
type AppendOptions struct {
	// Ack overrides Options.Ack for this append.
	Ack Durability
}

// AppendResult says where a batch lies: it has the sequences First to Last and
// one timestamp. Of an empty batch all fields are zero.
type AppendResult struct {
	First, Last uint64
	Timestamp   int64 // milliseconds since the Unix epoch
}

// maxTimestampLead is how far record timestamps may run ahead of the store's
// time: a writer whose clock is a year ahead must not drag the log with it.
const maxTimestampLead = 5 * time.Minute

// Append adds the records as one batch: they get consecutive sequences in the
// given order and become readable, durable and recovered all together or not at
// all. Keys and values are copied; only Key and Value of each record are used.
//
// It returns when the batch is durable, or, with Memory, at once. ctx bounds the
// wait, not the upload. Every error is an *AppendError: with NotAppended the
// batch had no effect; with Unknown it may become durable, or be so already.
// Reasons: ErrTooLarge, ErrOverloaded, ErrFenced, ErrClosed, ctx's error.
func (db *DB) Append(ctx context.Context, recs []Record, o AppendOptions) (AppendResult, error) {
	size, err := db.validate(recs)
	if err != nil {
		return AppendResult{}, &AppendError{NotAppended, err}
	}
	ack := o.Ack
	if ack == Default {
		ack = db.opts.Ack
	}
	res, waiter, err := db.enqueue(ctx, recs, size, ack)
	if err != nil {
		return AppendResult{}, &AppendError{NotAppended, err}
	}
	if waiter == nil {
		return res, nil
	}
	select {
	case err := <-waiter.done:
		if err != nil {
			return AppendResult{}, &AppendError{Unknown, err}
		}
		return res, nil
	case <-ctx.Done():
		return AppendResult{}, &AppendError{Unknown, ctx.Err()}
	}
}

// validate checks a batch against the limits and returns its record bytes.
func (db *DB) validate(recs []Record) (int64, error) {
	var size int64
	for i := range recs {
		r := &recs[i]
		if len(r.Key) > db.opts.MaxKeyBytes {
			return 0, fmt.Errorf("record %d: key of %d bytes: %w: the limit is %d", i, len(r.Key), ErrTooLarge, db.opts.MaxKeyBytes)
		}
		if len(r.Value) > db.opts.MaxValueBytes {
			return 0, fmt.Errorf("record %d: value of %d bytes: %w: the limit is %d", i, len(r.Value), ErrTooLarge, db.opts.MaxValueBytes)
		}
		size += int64(r.Size())
	}
	limit := min(db.opts.MaxUnflushedBytes, wal.MaxObjectBytes-maxWALObjectBytes-1<<20)
	if size > limit || int64(wal.BatchSize(recs)) > wal.MaxObjectBytes-maxWALObjectBytes-1<<20 {
		return 0, fmt.Errorf("batch of %d bytes in %d records: %w: the limit is %d bytes", size, len(recs), ErrTooLarge, limit)
	}
	return size, nil
}

// enqueue waits until the batch may enter, and enters it. The waiter is nil when
// there is nothing to wait for.
func (db *DB) enqueue(ctx context.Context, recs []Record, size int64, ack Durability) (AppendResult, *durableWaiter, error) {
	for {
		db.mu.Lock()
		if err := db.writeErr(); err != nil {
			db.mu.Unlock()
			return AppendResult{}, nil, err
		}
		if len(recs) == 0 {
			db.mu.Unlock()
			return AppendResult{}, nil, nil
		}
		db.sealIfDue()
		wait, err := db.admit(uint64(len(recs)), size)
		if err != nil {
			db.stats.overloaded++
			db.mu.Unlock()
			return AppendResult{}, nil, err
		}
		if wait == nil {
			break
		}
		db.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			db.mu.Lock()
			db.stats.overloaded++
			db.mu.Unlock()
			return AppendResult{}, nil, fmt.Errorf("%w: waited for room: %w", ErrOverloaded, ctx.Err())
		}
	}
	res := db.assign(recs, size)
	var waiter *durableWaiter
	if ack == Durable {
		waiter = db.addWaiter(db.next)
	}
	visible := db.opts.ReadVisibility == Memory
	if visible {
		db.frontier.Store(db.next)
	}
	if db.active.table.Bytes() >= db.opts.MemtableBytes {
		db.rotate(false)
	} else {
		db.cutIfDue()
	}
	db.mu.Unlock()
	if visible {
		db.wakeFollowers(recs)
	}
	return res, waiter, nil
}

// writeErr returns why nothing can be appended any more, or nil. Callers hold mu.
func (db *DB) writeErr() error {
	if db.failed != nil {
		return db.failed
	}
	if db.closing {
		return ErrClosed
	}
	return nil
}

// admit decides whether a batch may enter now (I9). It returns a channel to wait
// on, or an error, or neither. Callers hold mu.
func (db *DB) admit(records uint64, size int64) (<-chan struct{}, error) {
	switch {
	case db.activeRuns() >= db.opts.MaxRuns:
		return nil, fmt.Errorf("%w: the active segment has %d runs", ErrOverloaded, db.activeRuns())
	case db.unflush > 0 && db.unflush+size > db.opts.MaxUnflushedBytes:
		if len(db.frozen) == 0 {
			db.rotate(false) // the memtable alone holds all that is allowed
		}
	case len(db.cuts) > 0 || (db.builder != nil && int64(db.builder.Size()) >= db.opts.WALObjectBytes):
		// The WAL's window is full.
	case db.next+records > db.seqLimit:
		db.raiseLimit()
	default:
		return nil, nil
	}
	return db.room.wait(), nil
}

// activeRuns counts the runs of the active segment, those on their way too.
func (db *DB) activeRuns() int {
	segments := db.snapshot.State.GetSegments()
	return len(segments[len(segments)-1].GetRuns()) + len(db.frozen)
}

// assign gives the batch its sequences and its timestamp and enters it in the
// active memory and the WAL object under construction. Callers hold mu and have
// asked admit.
func (db *DB) assign(recs []Record, size int64) AppendResult {
	elapsed := db.env.Elapsed()
	ts := min(db.env.Now().UnixMilli(), db.storeClock.now(elapsed).Add(maxTimestampLead).UnixMilli())
	db.lastTimestamp = max(db.lastTimestamp, ts)
	first := db.next
	db.next += uint64(len(recs))
	if db.next > db.seqLimit {
		panic("engine: a sequence at or above seq_limit") // I3
	}
	if db.builder == nil {
		db.builder = db.newObject(first)
	}
	db.builder.AddBatch(first, db.lastTimestamp, recs)
	db.active.table.AddBatch(first, db.lastTimestamp, recs)
	db.active.bytes += size
	db.unflush += size
	db.segment.add(elapsed, size)
	db.armSealTimer()
	db.stats.appendedRecords += uint64(len(recs))
	db.stats.appendedBytes += uint64(size)
	if db.next+manifest.SeqReserve/2 > db.seqLimit {
		db.raiseLimit()
	}
	return AppendResult{First: first, Last: db.next - 1, Timestamp: db.lastTimestamp}
}

// raiseLimit starts a commit that raises seq_limit (I3). Callers hold mu.
func (db *DB) raiseLimit() {
	if db.raising {
		return
	}
	db.raising = true
	to := db.next + manifest.SeqReserve
	db.spawn("raise seq_limit", func() {
		_, err := db.committer.Commit(db.life, manifest.RaiseLimit(db.epoch, to))
		db.mu.Lock()
		db.raising = false
		db.room.signal()
		db.mu.Unlock()
		if err != nil && !errors.Is(err, manifest.ErrCleanlyClosed) { // closed meanwhile: no longer needed
			db.failWith(fmt.Errorf("raise seq_limit: %w", err))
		}
	})
}

// durableWaiter waits until every sequence below end is durable.
type durableWaiter struct {
	end  uint64
	done chan error // capacity 1, sent to once
}

// addWaiter adds a waiter behind those that wait for no more. Callers hold mu.
func (db *DB) addWaiter(end uint64) *durableWaiter {
	w := &durableWaiter{end: end, done: make(chan error, 1)}
	i := len(db.waiters)
	for i > 0 && db.waiters[i-1].end > end { // rare: somebody waits for a sequence yet to come
		i--
	}
	db.waiters = slices.Insert(db.waiters, i, w)
	return w
}

// WaitDurable returns nil once the record with the given sequence, and with it
// every earlier one, is durable. A sequence that was not assigned yet is waited
// for. Errors: ErrFenced, ErrClosed (it may never become durable), ctx's error.
func (db *DB) WaitDurable(ctx context.Context, seq uint64) error {
	return db.waitDurable(ctx, seq+1)
}

func (db *DB) waitDurable(ctx context.Context, end uint64) error {
	db.mu.Lock()
	if db.durable >= end {
		db.mu.Unlock()
		return nil
	}
	if db.failed != nil || db.closed {
		err := db.failed
		db.mu.Unlock()
		if err == nil {
			err = ErrClosed
		}
		return err
	}
	w := db.addWaiter(end)
	db.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		db.mu.Lock()
		if i := slices.Index(db.waiters, w); i >= 0 {
			db.waiters = slices.Delete(db.waiters, i, i+1)
		}
		db.mu.Unlock()
		return ctx.Err()
	}
}
