package engine

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/annalsdb/annals/trace"
)

// A scan is read in chunks, each from a fresh view at the scan's cursor: a long
// scan pins no old view (I7) and holds at most one chunk, and what it has read ahead.
const (
	chunkRecords = 4096
	chunkBytes   = 1 << 20
	firstChunk   = 16 // records for which a chunk has memory before it grows
)

// Iterator is a scan under way. It belongs to one goroutine.
type Iterator struct {
	c   *core
	ctx context.Context
	key []byte
	o   ScanOptions

	started  bool
	rng      Range // what is left to read: [cursor, end), end fixed when the scan starts
	next     uint64
	returned int   // records yielded
	bytes    int64 // their values' bytes
	finished bool
	quiet    bool  // not a user's scan: not counted
	walk     *walk // over what is not in memory; nil: none under way
	err      error

	// Of the loop of All under way, for whom it may be told:
	outer   context.Context // the scan's; ctx is the loop's
	records int             // returned when it began
	tables  int             // that had a record in the range
}

// Scan implements LogReader.
func (c *core) Scan(ctx context.Context, key []byte, r Range, o ScanOptions) *Iterator {
	return &Iterator{c: c, ctx: ctx, key: slices.Clone(key), o: o, rng: r, next: r.Start}
}

// All yields the records that are left, in sequence order. The loop may be left
// early and All called again: it goes on behind the last record it yielded.
// After the loop, look at Err. The records are the caller's to keep and nobody's
// to change.
func (it *Iterator) All() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		span := it.begin()
		defer it.endLoop(span)
		for !it.finished {
			span.Phase(trace.Caller)
			chunk, last := it.fill()
			span.Phase("read")
			for i := range chunk {
				rec := &chunk[i]
				if it.o.MaxBytes > 0 && it.returned > 0 && it.bytes+int64(len(rec.Value)) > it.o.MaxBytes {
					it.finished = true
					return
				}
				it.returned++
				it.bytes += int64(len(rec.Value))
				it.next = rec.Sequence + 1
				it.rng.Start = it.next
				if !it.quiet {
					it.c.scannedRecords.Add(1)
					it.c.scannedBytes.Add(uint64(rec.Size()))
				}
				it.finished = it.o.Limit > 0 && it.returned == it.o.Limit
				if !yield(*rec) || it.finished {
					return
				}
			}
			if last {
				it.finished = true
				if it.err == nil {
					it.next = max(it.next, it.rng.End)
				}
			}
		}
	}
}

// begin tells that the scan is read from, and makes what that does a part of it.
func (it *Iterator) begin() (span trace.Span) {
	it.outer, it.records, it.tables = it.ctx, it.returned, 0
	it.ctx, span = trace.Begin(it.c.tracer, it.ctx, trace.Scan)
	if span.Wanted() {
		span.Key("key", it.key)
		span.Int("start", int64(it.rng.Start))
	}
	return span
}

// endLoop ends what begin has begun.
func (it *Iterator) endLoop(span trace.Span) {
	it.endWalk()
	it.ctx = it.outer
	span.Phase(trace.Caller)
	if span.Wanted() {
		span.Int("records", int64(it.returned-it.records))
		span.Int("tables", int64(it.tables))
	}
	span.End(it.err)
}

// Err returns why the scan ended early, or nil.
func (it *Iterator) Err() error { return it.err }

// Next returns the cursor to resume from: behind the last record, if the scan
// was stopped by a limit, by an error or by the caller; else the frontier that
// the scan observed (or the end of its range, if that is lower), which activity
// on other keys advances.
func (it *Iterator) Next() uint64 { return it.next }

// fill reads the next chunk and reports whether it is the last one.
func (it *Iterator) fill() (chunk []Record, last bool) {
	if err := it.c.stopped(); err != nil {
		it.err = err
		return nil, true
	}
	if !it.started {
		it.started = true
		it.rng.End = min(it.rng.End, it.c.frontier.Load())
		err := it.o.validate()
		if err == nil {
			err = it.c.checkKey(it.key)
		}
		if err != nil {
			it.err = err
			return nil, true
		}
		if it.o.Last > 0 && it.o.Limit > 0 {
			it.o.Last, it.o.Limit = min(it.o.Last, it.o.Limit), 0
		}
		if it.o.Last > 0 && !it.rng.Empty() {
			return it.fillLast()
		}
	}
	if it.rng.Empty() {
		return nil, true
	}
	want := wanted{records: chunkRecords, bytes: chunkBytes}
	if it.o.Limit > 0 {
		want.records = min(want.records, it.o.Limit-it.returned)
	}
	if it.o.MaxBytes > 0 {
		want.bytes = min(want.bytes, max(1, it.o.MaxBytes-it.bytes))
	}
	var drained bool
	chunk = make([]Record, 0, min(want.records, firstChunk))
	err := it.c.withView(it.ctx, func(v *view) (err error) {
		if chunk, drained, err = it.forward(v, want, chunk[:0]); err != nil {
			it.endWalk() // the next one begins at the cursor
		}
		return err
	})
	if err != nil {
		it.err = fmt.Errorf("scan: %w", err)
		return nil, true
	}
	return chunk, drained
}

func (it *Iterator) endWalk() {
	if it.walk != nil {
		it.tables += it.walk.tables
		it.walk.end()
		it.walk = nil
	}
}

// fillLast reads the newest records of the range, oldest first.
func (it *Iterator) fillLast() (chunk []Record, last bool) {
	want := wanted{records: it.o.Last, bytes: it.o.MaxBytes}
	if want.bytes <= 0 {
		want.bytes = 1<<63 - 1
	}
	err := it.c.withView(it.ctx, func(v *view) (err error) {
		chunk, err = it.backward(v, want, chunk[:0])
		it.endWalk()
		return err
	})
	if err != nil {
		it.err = fmt.Errorf("scan: %w", err)
		return nil, true
	}
	slices.Reverse(chunk)
	return chunk, true
}

// since returns the lowest timestamp of a record that is still to come. Timestamps
// never fall as sequences rise: once there was a record, they are all at or after it.
func (it *Iterator) since() int64 {
	if it.o.Since.IsZero() || it.returned > 0 {
		return minTimestamp
	}
	return atOrAfter(it.o.Since)
}

// minTimestamp is below every record's timestamp.
const minTimestamp = -1 << 63

func (o *ScanOptions) validate() error {
	if o.Limit < 0 || o.Last < 0 || o.MaxBytes < 0 {
		return fmt.Errorf("%w: scan with a negative Limit, Last or MaxBytes", ErrInvalid)
	}
	return nil
}

// wanted is how much a chunk should hold: at most records, and no more once its
// values reach bytes.
type wanted struct {
	records int
	bytes   int64
}

func (w wanted) met(recs []Record, bytes int64) bool {
	return len(recs) >= w.records || (len(recs) > 0 && bytes >= w.bytes)
}

// forward appends records of the key from the cursor on, in order, until the range
// is drained, which it reports, or the chunk is full, or it has some and the next ones have to
// be waited for.
//
// Groups, runs and memories are in sequence order and disjoint (I5), so that reading a
// key never merges: it concatenates.
func (it *Iterator) forward(v *view, want wanted, dst []Record) ([]Record, bool, error) {
	since := it.since()
	var bytes int64
	w, err := it.walkIn(v, since)
	if err != nil {
		return dst, false, err
	}
	if w != nil {
		w.approach()
	}
	for w != nil {
		rec, at, err := w.next(len(dst) > 0)
		if err != nil || at == atPause {
			return dst, false, err
		}
		if at == atEnd {
			break
		}
		dst = append(dst, rec)
		bytes += int64(len(rec.Value))
		since = minTimestamp
		if want.met(dst, bytes) {
			return dst, false, nil
		}
	}
	for i := v.memoriesFrom(it.rng.Start); i < len(v.memories); i++ {
		r := v.memoryRange(i, it.rng)
		if r.Empty() {
			continue
		}
		table := v.memories[i].table
		if since != minTimestamp {
			seq, ok := table.SeekTimestamp(it.key, r, since)
			if !ok {
				continue
			}
			r.Start, since = seq, minTimestamp
		}
		n := len(dst)
		dst = table.Scan(dst, it.key, r, want.records-n, want.bytes-bytes)
		for k := n; k < len(dst); k++ {
			bytes += int64(len(dst[k].Value))
		}
		if want.met(dst, bytes) {
			return dst, false, nil
		}
	}
	return dst, true, nil
}

// walkIn returns the walk over what groups and runs of the view hold from the cursor on: that of the
// chunk before, if it saw the same version, else a new one; nil if memory has everything.
func (it *Iterator) walkIn(v *view, since int64) (*walk, error) {
	if v.onDisk(it.rng).Empty() {
		it.endWalk()
		return nil, nil
	}
	if it.walk != nil && it.walk.of(v) {
		return it.walk, it.c.checkFresh()
	}
	it.endWalk()
	it.walk = it.newWalk(v, since, false)
	return it.walk, nil
}

// backward appends the newest records of the key within the range, newest first.
// It stops before the record with which the values would exceed want.bytes, but
// appends at least one.
func (it *Iterator) backward(v *view, want wanted, dst []Record) ([]Record, error) {
	since := it.since()
	var bytes int64
	// add reports whether the scan goes on behind rec.
	add := func(rec Record) bool {
		if rec.Timestamp < since || (len(dst) > 0 && bytes+int64(len(rec.Value)) > want.bytes) {
			return false
		}
		dst = append(dst, rec)
		bytes += int64(len(rec.Value))
		return len(dst) < want.records
	}
	for i := len(v.memories) - 1; i >= 0; i-- {
		r := v.memoryRange(i, it.rng)
		if r.Empty() {
			continue
		}
		for _, rec := range v.memories[i].table.ScanBackward(nil, it.key, r, want.records-len(dst), max(want.bytes-bytes, want.bytes-bytes+1)) {
			if !add(rec) {
				return dst, nil
			}
		}
	}
	if v.onDisk(it.rng).Empty() {
		return dst, nil
	}
	it.walk = it.newWalk(v, since, true)
	it.walk.records, it.walk.bytes = len(dst), bytes
	for {
		rec, at, err := it.walk.next(false)
		if err != nil || at == atEnd || !add(rec) {
			return dst, err
		}
	}
}
