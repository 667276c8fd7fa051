package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/memtable"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/sst"
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
// flushed of it. It covers no sequence: a gap stays with the next segment.
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
	if seal {
		segment++
		db.segment = segmentClock{}
		stop(&db.stopSeal)
		db.stats.seals++
	}
	m.heap = m.table.Bytes()
	db.frozen = append(db.frozen, m)
	db.frozenHeap += m.heap
	db.active = &memory{table: memtable.New(), segment: segment, start: m.end, from: m.to}
	db.publishView(false)
	select {
	case db.flushWake <- struct{}{}:
	default:
	}
}

// flushLoop writes frozen memories as runs, oldest first, until the DB ends.
func (db *DB) flushLoop() {
	for {
		db.mu.Lock()
		var m *memory
		if len(db.frozen) > 0 {
			m = db.frozen[0]
		}
		next := db.next
		db.mu.Unlock()
		if m == nil {
			select {
			case <-db.flushWake:
				continue
			case <-db.life.Done():
				return
			}
		}
		if err := db.flushFrozen(m, next); err != nil {
			db.failWith(fmt.Errorf("flush: %w", err))
			return
		}
	}
}

// flushFrozen makes one frozen memory part of the MANIFEST.
func (db *DB) flushFrozen(m *memory, next uint64) error {
	var err error
	if m.table.Empty() {
		err = db.sealFlushed(db.life, m)
	} else {
		err = db.flushMemory(db.life, m, next)
	}
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.frozen = slices.Delete(db.frozen, 0, 1)
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

// flushMemory writes a memory with records as a run, waits until all of it is
// durable (F10), and commits. next is the next sequence to be assigned.
func (db *DB) flushMemory(ctx context.Context, m *memory, next uint64) error {
	run, written, err := db.writeRun(ctx, m)
	if err != nil {
		return err
	}
	if db.uploader != nil { // else it was replayed from the store
		if err := db.waitDurable(ctx, m.end); err != nil {
			return err
		}
	}
	f := manifest.Flush{
		Epoch:           db.epoch,
		From:            m.from,
		To:              m.to,
		Run:             run,
		Start:           m.start,
		End:             m.end,
		Next:            max(next, m.end),
		Segment:         m.segment,
		SegmentStartMs:  m.table.FirstTimestamp(),
		LastTimestampMs: m.table.LastTimestamp(),
	}
	if m.seal {
		f.Seal = &manifest.Seal{TimeMs: written.UnixMilli()}
	}
	if _, err := db.committer.Commit(ctx, f.Edit()); err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.stats.flushes++
	for _, t := range run.GetTables() {
		db.stats.flushedBytes += t.GetSize()
	}
	return nil
}

// sealFlushed seals the segment of an empty memory: all of it is in runs.
func (db *DB) sealFlushed(ctx context.Context, m *memory) error {
	for attempt := 0; ; attempt++ {
		now, err := db.store.ServerTime(ctx)
		if err == nil {
			_, err = db.committer.Commit(ctx, manifest.SealSegment(db.epoch, m.segment, m.end, now.UnixMilli()))
			return err
		}
		if err := db.retryFlush(ctx, attempt, fmt.Errorf("ask the store's time: %w", err)); err != nil {
			return err
		}
	}
}

// writeRun writes the memory's records as tables and returns the run, and the
// store's time when it had taken the last one.
func (db *DB) writeRun(ctx context.Context, m *memory) (*manifest.Run, time.Time, error) {
	id := db.env.NewULID()
	run := &manifest.Run{Id: id[:]}
	var written time.Time
	var w *sst.Writer
	var ref base.ObjectID
	finish := func() error {
		body, info := w.Finish()
		w = nil
		at, err := db.putTable(ctx, ref, body)
		if err != nil {
			return err
		}
		if int64(cap(body)) <= 2*db.opts.TableBytes {
			db.tableBuf = body // the store does not keep it
		}
		written = at
		run.Tables = append(run.Tables, tableLine(ref, info))
		return nil
	}
	for rec := range m.table.All() {
		if w != nil && w.EstimatedSize() >= db.opts.TableBytes {
			if err := finish(); err != nil {
				return nil, time.Time{}, err
			}
		}
		if w == nil {
			ref = base.ObjectID{
				Tree: tree, Kind: base.KindSST, Role: base.RoleWriter,
				Epoch: db.epoch, Segment: m.segment, ULID: db.env.NewULID(),
			}
			w = sst.NewWriter(sst.WriterOptions{ID: ref.ULID, Segment: m.segment, BlockBytes: db.opts.BlockBytes, Buffer: db.tableBuf})
			db.tableBuf = nil
		}
		w.Add(rec.Key, rec.Sequence, rec.Timestamp, rec.Value)
	}
	if err := finish(); err != nil {
		return nil, time.Time{}, err
	}
	return run, written, nil
}

// tableLine describes a table for the manifest.
func tableLine(ref base.ObjectID, info sst.Info) *manifest.Table {
	p := info.Properties
	t := &manifest.Table{
		Ref:              manifest.RefOf(ref),
		Size:             uint64(info.Size),
		MetaOffset:       uint64(info.MetaOffset),
		LowerKey:         base.LowerBound(p.FirstKey),
		FirstSequence:    p.FirstSequence,
		LastSequence:     p.LastSequence,
		FirstTimestampMs: p.FirstTimestamp,
		LastTimestampMs:  p.LastTimestamp,
		Records:          p.Records,
		Keys:             p.Keys,
		Bytes:            p.Bytes,
	}
	if upper, ok := base.UpperBound(p.LastKey); ok {
		if upper == nil {
			upper = []byte{} // absent means unbounded
		}
		t.UpperKey = upper
	}
	return t
}

// putTable uploads one table until it is there. The name is new and ours alone,
// so that a refused PUT means that an earlier try had landed; that is looked at.
func (db *DB) putTable(ctx context.Context, ref base.ObjectID, body []byte) (time.Time, error) {
	name := ref.Name()
	for attempt := 0; ; attempt++ {
		res, err := db.store.Put(ctx, name, body, objstore.PutOptions{IfAbsent: true})
		if err == nil {
			return res.Time, nil
		}
		if errors.Is(err, objstore.ErrPrecondition) {
			obj, gerr := db.store.Get(ctx, name, objstore.GetOptions{MaxBytes: int64(len(body))})
			if gerr == nil {
				if !bytes.Equal(obj.Body, body) {
					return time.Time{}, base.Corruptf(name, 0, "another object has this name")
				}
				return obj.Time, nil
			}
			err = gerr
		}
		if err := db.retryFlush(ctx, attempt, fmt.Errorf("write %s: %w", name, err)); err != nil {
			return time.Time{}, err
		}
	}
}

// retryFlush counts a failure of the store and waits before the next try.
func (db *DB) retryFlush(ctx context.Context, attempt int, cause error) error {
	db.mu.Lock()
	db.stats.flushFailures++
	db.mu.Unlock()
	if ctx.Err() == nil {
		db.opts.Logger.Warn("flush failed and is tried again", "error", cause, "attempt", attempt+1)
	}
	if err := db.env.Sleep(ctx, db.env.Backoff(flushBackoffFirst, flushBackoffLimit, attempt)); err != nil {
		return fmt.Errorf("%w (last failure: %w)", err, cause)
	}
	return nil
}

// Flush writes everything appended so far as runs and returns when that is
// committed. It is never needed for durability; it makes the next open quick.
// Errors: ErrFenced, ErrClosed, ctx's error (the flush goes on).
func (db *DB) Flush(ctx context.Context) error {
	db.mu.Lock()
	if err := db.writeErr(); err != nil {
		db.mu.Unlock()
		return err
	}
	end := db.next
	if !db.active.table.Empty() {
		db.rotate(false)
	}
	db.mu.Unlock()
	return db.waitFlushed(ctx, end)
}

// waitFlushed waits until no frozen memory begins below end.
func (db *DB) waitFlushed(ctx context.Context, end uint64) error {
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
		if len(db.frozen) == 0 || db.frozen[0].start >= end {
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
