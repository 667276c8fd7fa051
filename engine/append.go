package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/trace"
	"github.com/annalsdb/annals/wal"
)

// AppendOptions of one append.
type AppendOptions struct {
	// Ack overrides Options.Ack for this append.
	Ack Durability

	// ExpectedNext makes the append conditional: it is refused with a *ConditionError if one of
	// these keys has a record with a sequence at or above Next, be it readable or just assigned. What
	// retention dropped does not count. At most MaxExpected. Appends are linearizable by it: of
	// several that expect the same of a key and append to it, one is accepted. With
	// an empty batch it only looks.
	//
	// It costs nothing for keys whose newer records are in memory. Else the tables that may have
	// such a record are asked, newest first; usually their filters in memory answer.
	ExpectedNext []KeySequence

	// Producer, if not empty, makes the append idempotent: it is append number ProducerSequence of
	// that producer. A producer begins with any number and goes up by one. A repeat of one of
	// its last 64 appends appends nothing and answers as the first did (Repeated), whatever
	// its records are and whatever it expects. Any other number is refused with a *ProducerError. At most 128
	// bytes; the batch must not be empty.
	//
	// What is remembered of a producer is as durable as its records, and survives a restart with them. It is
	// forgotten when Options.MaxProducers others have appended since; then any number is taken.
	Producer         string
	ProducerSequence uint64
}

// AppendResult says where a batch lies: it has the sequences First to Last and
// one timestamp. Of an empty batch all fields are zero.
type AppendResult struct {
	First, Last uint64
	Timestamp   int64 // milliseconds since the Unix epoch
	Repeated    bool  // a producer's earlier append is there; this one appended nothing
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
// Reasons: ErrInvalid, ErrTooLarge, ErrConflict, ErrOverloaded, ErrFenced, ErrClosed, ctx's
// error; of an append with ExpectedNext those of reads too. Appends that must wait for room enter in the order in which they came.
func (db *DB) Append(ctx context.Context, recs []Record, o AppendOptions) (AppendResult, error) {
	ctx, span := trace.Begin(db.tracer, ctx, trace.Append)
	res, err := db.append(ctx, span, recs, o)
	span.End(err)
	return res, err
}

// append is Append, told as it goes.
func (db *DB) append(ctx context.Context, span trace.Span, recs []Record, o AppendOptions) (AppendResult, error) {
	a, err := db.newAppending(recs, o)
	if err != nil {
		return AppendResult{}, &AppendError{NotAppended, err}
	}
	if span.Wanted() {
		a.describe(span)
	}
	res, waiter, err := db.enqueue(ctx, span, a)
	span.Phase("assign")
	if err != nil {
		return AppendResult{}, &AppendError{NotAppended, db.settled(ctx, a, err)}
	}
	span.Int("sequence", int64(res.First))
	if waiter == nil {
		return res, nil
	}
	span.Int("wal_object", int64(waiter.at.id))
	err = db.await(ctx, waiter)
	span.Phase("durable")
	if err != nil {
		return AppendResult{}, &AppendError{Unknown, db.whyNotDurable(ctx, err)}
	}
	return res, nil
}

// whyNotDurable adds the store's last answer to the error of a wait that ctx ended.
func (db *DB) whyNotDurable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if last := db.uploader.Stats().LastError; last != nil {
			return fmt.Errorf("%w (the store's last answer: %w)", err, last)
		}
	}
	return err
}

// appending is an append under way.
type appending struct {
	recs      []Record
	size      int64 // of the records
	ack       Durability
	condition condition
	producer  string // "": none
	number    uint64 // of the producer's append
	announced bool   // those who wait for its records are still to be told
}

// newAppending validates an append.
func (db *DB) newAppending(recs []Record, o AppendOptions) (*appending, error) {
	a := &appending{
		recs: recs, ack: o.Ack,
		condition: condition{expected: o.ExpectedNext},
		producer:  o.Producer, number: o.ProducerSequence,
	}
	if a.ack == Default {
		a.ack = db.opts.Ack
	}
	var err error
	if a.size, err = db.validate(recs, a.ack); err != nil {
		return nil, err
	}
	if err := a.validateProducer(); err != nil {
		return nil, err
	}
	return a, a.condition.validate(db.opts.MaxKeyBytes)
}

// describe tells what is to be appended.
func (a *appending) describe(span trace.Span) {
	span.Int("records", int64(len(a.recs)))
	span.Int("bytes", a.size)
	if len(a.recs) > 0 {
		span.Key("key", a.recs[0].Key) // the first one; most appends have one key
	}
}

// settled returns why an append was refused. A conflict is told only when the record that it names is durable: then whoever
// reads the key again finds it, and it does not vanish in a crash, nor with a writer that was passed and does not know
// it. Where ctx ends first, or the log stops, that is the reason.
func (db *DB) settled(ctx context.Context, a *appending, err error) error {
	if c := a.condition.conflict; c != nil && err == error(c) && a.ack == Durable {
		if werr := db.waitDurable(ctx, place{end: c.Last + 1}); werr != nil {
			return db.whyNotDurable(ctx, werr)
		}
	}
	return err
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
	limit := db.batchLimit()
	if size > limit || int64(wal.BatchSize(recs)) > wal.MaxObjectBytes-maxWALObjectBytes-1<<20 {
		return 0, fmt.Errorf("batch of %d bytes in %d records: %w: the limit is %d bytes", size, len(recs), ErrTooLarge, limit)
	}
	return size, nil
}

// batchLimit is the largest batch: it fits into the WAL object under construction, whatever is in that,
// with the mark of its producer.
func (db *DB) batchLimit() int64 {
	return min(db.opts.MaxUnflushedBytes, wal.MaxObjectBytes-maxWALObjectBytes-1<<20)
}

// enqueue waits until the batch may enter, and enters it. The waiter is nil when
// there is nothing to wait for.
func (db *DB) enqueue(ctx context.Context, span trace.Span, a *appending) (AppendResult, *durableWaiter, error) {
	for {
		// A repeat needs no room, and its own records contradict what it expects.
		if a.producer != "" {
			db.mu.Lock()
			res, waiter, ok := db.repeat(a)
			db.mu.Unlock()
			if ok {
				return res, waiter, nil
			}
		}
		if err := a.condition.look(ctx, db); err != nil {
			return AppendResult{}, nil, err
		}
		if len(a.condition.expected) > 0 {
			span.Phase("condition")
		}
		records, size := uint64(len(a.recs)), a.size
		if a.condition.conflict != nil {
			records, size = 0, 0 // it needs no room
		}
		if err := db.enter(ctx, span, records, size); err != nil {
			return AppendResult{}, nil, err
		}
		res, waiter, again, err := db.enterBatch(a)
		db.mu.Unlock()
		if again {
			continue
		}
		if a.announced {
			db.followers.deliver()
		}
		return res, waiter, err
	}
}

// enterBatch decides about an append and enters its batch, or reports that what it expects must be looked at
// again. Callers hold mu and have asked admit.
func (db *DB) enterBatch(a *appending) (res AppendResult, waiter *durableWaiter, again bool, err error) {
	if res, waiter, ok := db.repeat(a); ok {
		return res, waiter, false, nil
	}
	if err := db.checkProducer(a); err != nil {
		db.stats.conflicts++
		return res, nil, false, err
	}
	if a.condition.decide(db) {
		return res, nil, true, nil
	}
	if c := a.condition.conflict; c != nil {
		db.stats.conflicts++
		return res, nil, false, c
	}
	if len(a.recs) == 0 {
		return res, nil, false, nil
	}
	res = db.assign(a)
	if a.ack == Durable {
		waiter = db.addWaiter(db.here())
	}
	if db.opts.ReadVisibility == Memory {
		db.frontier.Store(db.next)
		a.announced = db.followers.announce(announcement{recs: a.recs, first: res.First, unnumbered: true, frontier: db.next})
	}
	db.entered()
	return res, waiter, false, nil
}

// entered does what is due after something was assigned. Callers hold mu.
func (db *DB) entered() {
	db.sealIfDue()
	if db.memtableFull() {
		db.rotate(false)
	} else {
		db.cutIfDue()
	}
}

// maxWALObjects bounds the WAL objects of one memory, and so what an open must
// replay: a slow stream of small appends makes many objects of few bytes.
const maxWALObjects = 16_384

// memtableFull reports whether the active memory must be flushed. Callers hold mu.
func (db *DB) memtableFull() bool {
	return db.active.table.Bytes()+db.active.changes >= db.opts.MemtableBytes || db.nextID-db.active.from.ID >= maxWALObjects
}

// ticket is a place in the line of appends that wait for room.
type ticket struct {
	turn   chan struct{} // capacity 1: look again
	called bool          // turn has a value, or will soon; guarded by DB.mu
}

// enter waits until a batch, or changes of the small state (of so many bytes, without records), may enter, first come first served, and returns with
// mu held; or it returns an error, with mu free.
func (db *DB) enter(ctx context.Context, span trace.Span, records uint64, size int64) error {
	var mine *ticket
	db.mu.Lock()
	for {
		err := db.writeErr()
		if err == nil && mine == nil {
			err = ctx.Err() // whoever asked is gone already
		}
		wait := false
		if err == nil && (records > 0 || size > 0) {
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
			span.Phase("room")
			db.mu.Lock()
			mine.called = false
		case <-ctx.Done():
			span.Phase("room")
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
// have changed. It waits while several objects are reported durable, one after the other: what a WAL object knows
// of those before it must not depend on whether the append came between two of them. The call is a start of its own: an
// append that has left the line because it must look again at what it expects may come back, and which of the two is
// first must not depend on the runtime. Callers hold mu.
func (db *DB) room() {
	if len(db.line) == 0 || db.landing || db.line[0].called {
		return
	}
	first := db.line[0]
	first.called = true
	db.env.Go("first in line", func() {
		select {
		case first.turn <- struct{}{}:
		default:
		}
	})
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
	if len(db.frozen) == 0 && db.active.empty() {
		return false
	}
	heap := db.frozenHeap + db.active.table.Bytes() + db.active.changes
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
func (db *DB) assign(a *appending) AppendResult {
	elapsed := db.env.Elapsed()
	ts := min(db.env.Now().UnixMilli(), db.storeClock.now(elapsed).Add(maxTimestampLead).UnixMilli())
	db.lastTimestamp = max(db.lastTimestamp, ts)
	object := db.object()
	first := db.next
	db.next += uint64(len(a.recs))
	if db.next < first || db.next > db.seqLimit {
		panic("engine: a sequence at or above seq_limit") // I3
	}
	object.AddBatch(first, db.lastTimestamp, a.recs)
	db.active.table.AddBatch(first, db.lastTimestamp, a.recs)
	res := AppendResult{First: first, Last: db.next - 1, Timestamp: db.lastTimestamp}
	if a.producer != "" {
		db.mark(a, res)
	}
	db.active.bytes += a.size
	db.unflush += a.size
	db.segment.add(elapsed, a.size)
	db.armSealTimer()
	db.stats.appendedRecords += uint64(len(a.recs))
	db.stats.appendedBytes += uint64(a.size)
	if db.seqLimit-db.next < manifest.SeqReserve/2 {
		db.raiseLimit()
	}
	return res
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
