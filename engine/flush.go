package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/memtable"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/sst"
	"github.com/annalsdb/annals/trace"
)

// Retries of a table's upload: for ever, since the records are in the WAL and
// the memtable meanwhile; these pace them.
const (
	flushBackoffFirst = 100 * time.Millisecond
	flushBackoffLimit = 10 * time.Second
)

// rotate freezes the active memory at a WAL object boundary and starts the next
// one, in the next segment if seal is set (I6). Callers hold mu.
//
// A memory without records is frozen only to seal the segment behind what was
// flushed of it, or with changes of the small state. It covers no sequence: a gap stays with the next
// segment, or memory.
func (db *DB) rotate(seal bool) {
	if db.builder != nil {
		db.cut()
	}
	m := db.active
	m.table.Freeze()
	m.seal = seal
	m.to = manifest.Pos{Epoch: db.epoch, ID: db.nextID}
	m.end = db.next
	segment := m.segment
	if m.table.Empty() {
		m.end = m.start
	}
	if m.changes > 0 {
		m.state = db.small.tables.Clone() // what is assigned is in WAL objects before to, all of it
	}
	if seal {
		segment++
		db.segment = segmentClock{}
		stop(&db.stopSeal)
		db.stats.seals++
	}
	m.heap = m.table.Bytes() + m.changes
	db.frozen = append(db.frozen, m)
	db.frozenHeap += m.heap
	db.active = &memory{table: memtable.New(), segment: segment, start: m.end, from: m.to}
	db.publishView(false)
	select {
	case db.flushWake <- struct{}{}:
	default:
	}
}

// builtRun is a memory in the form in which it is stored.
type builtRun struct {
	m      *memory
	run    *manifest.Run
	tables []builtTable

	ctx  context.Context // of what is done with it
	span trace.Span      // told by buildLoop, then by the upload, then by commitLoop

	uploaded chan struct{} // closed when the upload has ended, and the two below are set
	written  time.Time     // the store's, when the last table was there
	err      error
}

// builtTable is one table of a run, not yet in the store.
type builtTable struct {
	ref  base.ObjectID
	body []byte
}

// maxBuiltRuns bounds the runs that are built and not committed, and so the memory for their tables. On S3 a table of
// 64 MiB takes a third of a second, most of it the transfer: what one upload at a time can do would bound the ingest.
const maxBuiltRuns = 4

// buildLoop turns frozen memories into tables, oldest first, whose uploads go on while it builds the next and
// commitLoop commits those before.
func (db *DB) buildLoop() {
	for {
		db.mu.Lock()
		var m *memory
		if db.built < len(db.frozen) {
			m = db.frozen[db.built]
			db.built++
		}
		db.mu.Unlock()
		if m == nil {
			select {
			case <-db.flushWake:
				continue
			case <-db.life.Done():
				return
			}
		}
		b := db.beginFlush(m)
		db.spawn("upload run", func() {
			b.written, b.err = db.uploadRun(b.ctx, b)
			b.span.Phase("upload")
			close(b.uploaded)
		})
		select {
		case db.builtRuns <- b:
		case <-db.life.Done():
			return
		}
	}
}

// beginFlush builds the run of a memory.
func (db *DB) beginFlush(m *memory) *builtRun {
	op := trace.Flush
	if m.table.Empty() && m.changes == 0 {
		op = trace.Seal
	}
	ctx, span := trace.Begin(db.tracer, db.life, op)
	b := db.buildRun(m)
	b.uploaded = make(chan struct{})
	b.ctx, b.span = ctx, span
	if span.Wanted() {
		b.describe()
	}
	span.Phase("build")
	return b
}

// describe tells of what was built.
func (b *builtRun) describe() {
	var stored uint64
	for _, t := range b.run.GetTables() {
		stored += t.GetSize()
	}
	b.span.Int("segment", int64(b.m.segment))
	b.span.Int("records", int64(b.m.end-b.m.start))
	b.span.Int("bytes", b.m.bytes)
	b.span.Int("tables", int64(len(b.tables)))
	b.span.Int("stored_bytes", int64(stored))
}

// commitLoop brings built runs into the MANIFEST, in order.
func (db *DB) commitLoop() {
	for {
		select {
		case b := <-db.builtRuns:
			if err := db.commitFrozen(b); err != nil {
				db.failWith(fmt.Errorf("flush: %w", err))
				return
			}
		case <-db.life.Done():
			return
		}
	}
}

// commitFrozen makes the oldest frozen memory part of the MANIFEST.
func (db *DB) commitFrozen(b *builtRun) error {
	m := b.m
	<-b.uploaded // it ends with life
	b.span.Phase("turn")
	err := b.err
	switch {
	case err != nil:
	case m.table.Empty():
		err = db.commitEmpty(b.ctx, m)
	default:
		err = db.commitRun(b.ctx, b)
	}
	b.span.Phase("commit")
	b.span.End(err)
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	m.state = nil // the memory may stay for readers
	db.frozen = slices.Delete(db.frozen, 0, 1)
	db.built--
	db.frozenHeap -= m.heap
	db.unflush -= m.bytes
	if !m.table.Empty() {
		db.recent = append(db.recent, m)
	}
	db.trimRecent()
	db.publishView(false)
	db.flushes.signal()
	db.room()
	return nil
}

// trimRecent drops the oldest flushed memories until the rest is within budget.
// Callers hold mu.
func (db *DB) trimRecent() {
	var total int64
	for i := len(db.recent) - 1; i >= 0; i-- {
		total += db.recent[i].table.Bytes()
		if total > db.opts.RecentBytes {
			db.recent = append([]*memory(nil), db.recent[i+1:]...)
			return
		}
	}
}

// uploadRun writes the tables of a run, and returns when the last one was written, by the store's time.
func (db *DB) uploadRun(ctx context.Context, b *builtRun) (written time.Time, err error) {
	for _, t := range b.tables {
		if written, err = db.putObject(ctx, t.ref, t.body); err != nil {
			return time.Time{}, err
		}
		db.keepTableBuffer(t.body) // the store does not keep it
	}
	b.tables = nil
	return written, nil
}

// commitRun waits until all records of a run that is in the store are durable (F10), and commits it.
func (db *DB) commitRun(ctx context.Context, b *builtRun) error {
	m := b.m
	small, err := db.prepareState(ctx, m)
	b.span.Phase("durable")
	if err != nil {
		return err
	}
	written := db.risingTime(b.written)
	f := manifest.Flush{
		Epoch:           db.epoch,
		From:            m.from,
		To:              m.to,
		Run:             b.run,
		Start:           m.start,
		End:             m.end,
		Next:            m.end, // as it was when the memory was frozen; what came since has its own reserve (raiseLimit)
		Segment:         m.segment,
		SegmentStartMs:  m.table.FirstTimestamp(),
		LastTimestampMs: m.table.LastTimestamp(),
		State:           small.inForce(),
	}
	if m.seal {
		f.Seal = &manifest.Seal{TimeMs: written.UnixMilli()}
	}
	if _, err := db.committer.Commit(ctx, f.Edit()); err != nil {
		return err
	}
	db.stateCommitted(m, small)
	db.mu.Lock()
	defer db.mu.Unlock()
	db.stats.flushes++
	for _, t := range b.run.GetTables() {
		db.stats.flushedBytes += t.GetSize()
	}
	return nil
}

// risingTime returns t, or the latest time that it was given if that is later: uploads overlap, and a segment may be
// sealed between them by an answer of its own, but seal times never fall.
func (db *DB) risingTime(t time.Time) time.Time {
	if t.Before(db.lastWritten) {
		return db.lastWritten
	}
	db.lastWritten = t
	return t
}

// prepareState writes what a memory changed of the small state, if it did, and waits until all of the memory
// is durable (F10).
func (db *DB) prepareState(ctx context.Context, m *memory) (o *stateObject, err error) {
	if m.changes > 0 {
		if o, err = db.writeState(ctx, m); err != nil {
			return nil, err
		}
	}
	if db.uploader == nil {
		return o, nil // it was replayed from the store
	}
	return o, db.waitDurable(ctx, place{m.end, m.to.ID - 1})
}

// commitEmpty commits what there is of a memory without records: changes of the small state, a seal.
func (db *DB) commitEmpty(ctx context.Context, m *memory) error {
	if m.changes > 0 {
		small, err := db.prepareState(ctx, m)
		if err != nil {
			return err
		}
		if _, err := db.committer.Commit(ctx, manifest.SkipTo(db.epoch, m.from, m.to, small.inForce())); err != nil {
			return err
		}
		db.stateCommitted(m, small)
	}
	if m.seal {
		return db.sealFlushed(ctx, m)
	}
	return nil
}

// sealFlushed seals the segment of an empty memory: all of it is in runs.
func (db *DB) sealFlushed(ctx context.Context, m *memory) error {
	ask := try{of: &db.troubles[TablesUnwritable]}
	for attempt := 0; ; attempt++ {
		now, err := db.store.ServerTime(ctx)
		if err == nil {
			ask.note(nil)
			_, err = db.committer.Commit(ctx, manifest.SealSegment(db.epoch, m.segment, m.end, db.risingTime(now).UnixMilli()))
			return err
		}
		if err := db.retryFlush(ctx, &ask, attempt, fmt.Errorf("ask the store's time: %w", err)); err != nil {
			return err
		}
	}
}

// buildRun builds the tables of a memory; none if it has no records.
func (db *DB) buildRun(m *memory) *builtRun {
	b := &builtRun{m: m}
	if m.table.Empty() {
		return b
	}
	id := db.env.NewULID()
	b.run = &manifest.Run{Id: id[:]}
	var w *sst.Writer
	var ref base.ObjectID
	finish := func() {
		body, info := w.Finish()
		w = nil
		b.tables = append(b.tables, builtTable{ref, body})
		b.run.Tables = append(b.run.Tables, compaction.TableLine(ref, info))
	}
	for rec := range m.table.All() {
		if w != nil && w.EstimatedSize() >= db.opts.TableBytes {
			finish()
		}
		if w == nil {
			ref = base.ObjectID{
				Tree: tree, Kind: base.KindSST, Role: base.RoleWriter,
				Epoch: db.epoch, Segment: m.segment, ULID: db.env.NewULID(),
			}
			w = sst.NewWriter(sst.WriterOptions{
				ID: ref.ULID, Segment: m.segment, BlockBytes: db.opts.BlockBytes,
				Compression: sst.Fast, // it is soon merged
				Buffer:      db.tableBuffer(),
			})
		}
		w.Add(rec.Key, rec.Sequence, rec.Timestamp, rec.Value)
	}
	finish()
	return b
}

// maxTableBuffers bounds the memory kept for the next tables.
const maxTableBuffers = 2

// tableBuffer returns memory for a table, or nil.
func (db *DB) tableBuffer() []byte {
	db.mu.Lock()
	defer db.mu.Unlock()
	n := len(db.tableBuffers)
	if n == 0 {
		return nil
	}
	buf := db.tableBuffers[n-1]
	db.tableBuffers = db.tableBuffers[:n-1]
	return buf
}

func (db *DB) keepTableBuffer(buf []byte) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if len(db.tableBuffers) < maxTableBuffers && int64(cap(buf)) <= 2*db.opts.TableBytes {
		db.tableBuffers = append(db.tableBuffers, buf)
	}
}

// putObject uploads a table or a state object until it is there. The name is new and ours alone,
// so that a refused PUT means that an earlier try had landed; that is looked at.
func (db *DB) putObject(ctx context.Context, ref base.ObjectID, body []byte) (time.Time, error) {
	name := ref.Name()
	write := try{of: &db.troubles[TablesUnwritable]}
	for attempt := 0; ; attempt++ {
		res, err := db.store.Put(ctx, name, body, objstore.PutOptions{IfAbsent: true})
		if err == nil {
			write.note(nil)
			return res.Time, nil
		}
		if errors.Is(err, objstore.ErrPrecondition) {
			obj, gerr := db.store.Get(ctx, name, objstore.GetOptions{MaxBytes: int64(len(body))})
			if gerr == nil {
				if !bytes.Equal(obj.Body, body) {
					return time.Time{}, base.Corruptf(name, 0, "another object has this name")
				}
				write.note(nil)
				return obj.Time, nil
			}
			err = gerr
		}
		if err := db.retryFlush(ctx, &write, attempt, err); err != nil {
			return time.Time{}, err
		}
	}
}

// retryFlush counts a failure of the store, tells of it, and waits before the next try.
func (db *DB) retryFlush(ctx context.Context, what *try, attempt int, cause error) error {
	db.mu.Lock()
	db.stats.flushFailures++
	db.mu.Unlock()
	if ctx.Err() == nil {
		what.note(cause)
	}
	if err := db.env.Sleep(ctx, db.env.Backoff(flushBackoffFirst, flushBackoffLimit, attempt)); err != nil {
		return fmt.Errorf("%w (last failure: %w)", err, cause)
	}
	return nil
}

// Flush writes everything appended so far as runs, and the small state, and returns when that is
// committed. It is never needed for durability; it makes the next open quick.
// Errors: ErrFenced, ErrClosed, ctx's error (the flush goes on).
func (db *DB) Flush(ctx context.Context) error {
	db.mu.Lock()
	if err := db.writeErr(); err != nil {
		db.mu.Unlock()
		return err
	}
	if !db.active.empty() {
		db.rotate(false)
	}
	id := db.nextID
	db.mu.Unlock()
	return db.waitFlushed(ctx, id)
}

// waitFlushed waits until no frozen memory begins below a WAL object.
func (db *DB) waitFlushed(ctx context.Context, id uint64) error {
	for {
		db.mu.Lock()
		if db.failed != nil {
			err := db.failed
			db.mu.Unlock()
			return err
		}
		if db.closed {
			db.mu.Unlock()
			return ErrClosed
		}
		if len(db.frozen) == 0 || db.frozen[0].from.ID >= id {
			db.mu.Unlock()
			return nil
		}
		wait := db.flushes.wait()
		db.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
