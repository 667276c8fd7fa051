package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/internal/base"
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
// Reasons: ErrInvalid, ErrTooLarge, ErrOverloaded, ErrFenced, ErrClosed, ctx's
// error. Appends that must wait for room enter in the order in which they came.
func (db *DB) Append(ctx context.Context, recs []Record, o AppendOptions) (AppendResult, error) {
	ack := o.Ack
	if ack == Default {
		ack = db.opts.Ack
	}
	size, err := db.validate(recs, ack)
	if err != nil {
		return AppendResult{}, &AppendError{NotAppended, err}
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
		err := ctx.Err()
		if last := db.uploader.Stats().LastError; last != nil {
			err = fmt.Errorf("%w (the store's last answer: %w)", err, last)
		}
		return AppendResult{}, &AppendError{Unknown, err}
	}
}

// maxBatchRecords keeps a batch well below what one commit reserves.
const maxBatchRecords = manifest.SeqReserve / 4

// validate checks a batch against the limits and returns its record bytes.
func (db *DB) validate(recs []Record, ack Durability) (int64, error) {
	if ack != Durable && ack != Memory {
		return 0, fmt.Errorf("%w: Ack is %d", ErrInvalid, ack)
	}
	if len(recs) > maxBatchRecords {
		return 0, fmt.Errorf("batch of %d records: %w: the limit is %d", len(recs), ErrTooLarge, maxBatchRecords)
	}
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
	if err := db.enter(ctx, uint64(len(recs)), size); err != nil {
		return AppendResult{}, nil, err
	}
	if len(recs) == 0 {
		db.mu.Unlock()
		return AppendResult{}, nil, nil
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
	db.sealIfDue()
	if db.memtableFull() {
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

// maxWALObjects bounds the WAL objects of one memory, and so what an open must
// replay: a slow stream of small appends makes many objects of few bytes.
const maxWALObjects = 16_384

// memtableFull reports whether the active memory must be flushed. Callers hold mu.
func (db *DB) memtableFull() bool {
	return db.active.table.Bytes() >= db.opts.MemtableBytes || db.nextID-db.active.from.ID >= maxWALObjects
}

// ticket is a place in the line of appends that wait for room.
type ticket struct {
	turn chan struct{} // capacity 1: look again
}

// enter waits until a batch may enter, first come first served, and returns with
// mu held; or it returns an error, with mu free.
func (db *DB) enter(ctx context.Context, records uint64, size int64) error {
	var mine *ticket
	db.mu.Lock()
	for {
		err := db.writeErr()
		if err == nil && mine == nil {
			err = ctx.Err() // whoever asked is gone already
		}
		wait := false
		if err == nil && records > 0 {
			db.sealIfDue()
			if wait = len(db.line) > 0 && mine != db.line[0]; !wait {
				wait, err = db.admit(records, size)
			}
		}
		if err != nil || !wait {
			db.leaveLine(mine)
			if err != nil {
				db.mu.Unlock()
			}
			return err
		}
		if mine == nil {
			mine = &ticket{turn: make(chan struct{}, 1)}
			db.line = append(db.line, mine)
		}
		db.mu.Unlock()
		select {
		case <-mine.turn:
			db.mu.Lock()
		case <-ctx.Done():
			db.mu.Lock()
			db.leaveLine(mine)
			db.stats.overloaded++
			db.mu.Unlock()
			return fmt.Errorf("%w: waited for room: %w", ErrOverloaded, ctx.Err())
		}
	}
}

// leaveLine removes a ticket, if there is one, and lets the next append look.
// Callers hold mu.
func (db *DB) leaveLine(mine *ticket) {
	if i := slices.Index(db.line, mine); i >= 0 {
		db.line = slices.Delete(db.line, i, i+1)
		db.room()
	}
}

// room lets the first append in line look again: something that kept it out may
// have changed. Callers hold mu.
func (db *DB) room() {
	if len(db.line) > 0 {
		select {
		case db.line[0].turn <- struct{}{}:
		default:
		}
	}
}

// allInLine wakes every append in line: the DB takes none any more. Callers hold mu.
func (db *DB) allInLine() {
	for _, t := range db.line {
		select {
		case t.turn <- struct{}{}:
		default:
		}
	}
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

// admit decides whether a batch must wait (I9), and starts what will make room.
// Callers hold mu.
func (db *DB) admit(records uint64, size int64) (wait bool, err error) {
	switch {
	case db.next > base.MaxSequence-2*manifest.SeqReserve:
		return false, errNoSequences
	case db.activeRuns() >= db.opts.MaxRuns:
		// Until the seal that sealIfDue has begun is committed.
	case db.unflushedFull(size):
		if len(db.frozen) == 0 {
			db.rotate(false) // the memtable alone holds all that is allowed
		}
	case len(db.cuts) > 0 || (db.builder != nil && int64(db.builder.Size()) >= db.opts.WALObjectBytes):
		// The WAL's window is full.
	case records > db.seqLimit-db.next:
		db.raiseLimit()
	default:
		return false, nil
	}
	return true, nil
}

// heapSlack is heap that memtables may have beyond twice the limit on record
// bytes: small records cost more than their bytes.
const heapSlack = 1 << 20

// unflushedFull reports whether a batch would hold more in memory than may wait to
// be flushed. Callers hold mu.
func (db *DB) unflushedFull(size int64) bool {
	if len(db.frozen) == 0 && db.active.table.Empty() {
		return false
	}
	heap := db.frozenHeap + db.active.table.Bytes()
	return db.unflush+size > db.opts.MaxUnflushedBytes || heap > 2*db.opts.MaxUnflushedBytes+heapSlack
}

// errNoSequences: 2^64 sequences were used.
var errNoSequences = errors.New("no sequences are left")

// activeRuns counts the runs that the active segment has, or will have once what
// is frozen is flushed. Callers hold mu.
func (db *DB) activeRuns() int {
	return db.committedRuns() + len(db.frozen)
}

// committedRuns counts the runs of the segment that the MANIFEST calls active.
// Callers hold mu.
func (db *DB) committedRuns() int { return len(activeSegment(db.snapshot.State).GetRuns()) }

// assign gives the batch its sequences and its timestamp and enters it in the
// active memory and the WAL object under construction. Callers hold mu and have
// asked admit.
func (db *DB) assign(recs []Record, size int64) AppendResult {
	elapsed := db.env.Elapsed()
	ts := min(db.env.Now().UnixMilli(), db.storeClock.now(elapsed).Add(maxTimestampLead).UnixMilli())
	db.lastTimestamp = max(db.lastTimestamp, ts)
	first := db.next
	db.next += uint64(len(recs))
	if db.next < first || db.next > db.seqLimit {
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
	if db.seqLimit-db.next < manifest.SeqReserve/2 {
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
		db.room()
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

// WaitDurable returns nil once nothing at or below the given sequence can still
// become durable or be lost: the record that this DB gave it, and every earlier
// one, is durable. A sequence that was not assigned yet is waited for. Errors:
// ErrFenced, ErrClosed (it may never become durable), ctx's error.
func (db *DB) WaitDurable(ctx context.Context, seq uint64) error {
	return db.waitDurable(ctx, max(seq, seq+1)) // no record has the highest sequence
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
