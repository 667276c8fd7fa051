package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/manifest"
)

// Retention drops the oldest sealed segments, whole, by one edit: no data is read
// or rewritten. What must hold:
//
//   - A segment's age is the store's time now against the store's time at which it
//     was sealed; no clock of this machine takes part (F17). The time is asked
//     before the drop is committed, so nothing is ever dropped early.
//   - The active segment is never dropped, nor a segment that was merged with
//     younger ones since it was looked at: the edit refuses both.
//   - From the view on in which FirstSequence has passed a record, no read returns
//     it, wherever it still lies: in the memories that are kept for the tip too.

// maintenanceBackoffLimit bounds the wait after failures of background work that is
// done at intervals, unless the interval itself is longer.
const maintenanceBackoffLimit = 15 * time.Minute

// maintain does work at intervals until the DB ends. Whatever work did not finish
// it takes up the next time; after failures that comes later and later. Being
// fenced ends the DB.
func (db *DB) maintain(what string, interval time.Duration, work func(context.Context) error) {
	for failures := 0; ; {
		wait := interval
		if failures > 0 {
			wait = db.env.Backoff(interval, max(interval, maintenanceBackoffLimit), failures)
		}
		if db.env.Sleep(db.life, wait) != nil {
			return
		}
		err := work(db.life)
		switch {
		case db.life.Err() != nil:
			return
		case errors.Is(err, ErrFenced) || errors.Is(err, manifest.ErrFenced):
			db.failWith(err)
			return
		case err != nil:
			failures++
			db.opts.Logger.Warn(what+" failed and is tried again", "error", err, "failures", failures)
		default:
			failures = 0
		}
	}
}

// retentionLoop drops what is too old or too much, if there is such a limit.
func (db *DB) retentionLoop() {
	if db.opts.Retention == 0 && db.opts.RetentionBytes == 0 {
		return
	}
	db.maintain("retention", db.opts.RetentionInterval, db.enforceRetention)
}

// enforceRetention looks once at what is to be dropped and drops it.
func (db *DB) enforceRetention(ctx context.Context) error {
	err := db.dropSegments(ctx)
	if err != nil {
		db.mu.Lock()
		db.stats.retentionFailures++
		db.mu.Unlock()
	}
	return err
}

func (db *DB) dropSegments(ctx context.Context) error {
	var now time.Time
	if db.opts.Retention > 0 {
		var err error
		if now, err = db.store.ServerTime(ctx); err != nil {
			return fmt.Errorf("ask the store's time: %w", err)
		}
	}
	v := db.view.Load()
	infos := v.segmentInfos()
	n := db.droppable(v.segments, infos, now)
	if n == 0 {
		return nil
	}
	_, err := db.committer.Commit(ctx, manifest.DropSegments(db.epoch, v.segments[n-1].Last()))
	switch {
	case errors.Is(err, manifest.ErrGone), errors.Is(err, manifest.ErrCleanlyClosed):
		return nil // merged meanwhile, and looked at again the next time; or closing
	case err != nil:
		return err
	}
	db.countDropped(infos[:n])
	return nil
}

// droppable returns how many of the oldest segments retention drops. now is the
// store's time, asked earlier.
func (db *DB) droppable(segments []*manifest.Segment, infos []SegmentInfo, now time.Time) int {
	var total uint64
	for _, info := range infos {
		total += info.Bytes
	}
	for i, s := range segments {
		old := db.opts.Retention > 0 && now.Sub(time.UnixMilli(s.GetSealTimeMs())) >= db.opts.Retention
		over := db.opts.RetentionBytes > 0 && total > uint64(db.opts.RetentionBytes)
		if !s.GetSealed() || !old && !over {
			return i
		}
		total -= infos[i].Bytes
	}
	return len(segments)
}

// countDropped counts segments that are gone.
func (db *DB) countDropped(segments []SegmentInfo) {
	var bytes uint64
	for _, s := range segments {
		bytes += s.Bytes
	}
	db.mu.Lock()
	db.stats.segmentsDropped += uint64(len(segments))
	db.stats.bytesDropped += bytes
	db.mu.Unlock()
	db.opts.Logger.Info("retention dropped segments",
		"segments", len(segments), "bytes", bytes, "first_sequence", segments[len(segments)-1].End)
}

// withoutDropped returns the memories of a new view without those that lie in
// dropped segments, and lets go of those that were kept for the tip. A memory never
// spans segments (I6), so each lies on one side of the first sequence. The active memory,
// the last one, is never dropped. Callers hold mu.
func (db *DB) withoutDropped(memories []*memory) []*memory {
	first := firstSequence(db.snapshot.State)
	n := 0
	for n < len(memories)-1 && memories[n].end <= first {
		n++
	}
	if recent := min(n, len(db.recent)); recent > 0 {
		db.recent = append([]*memory(nil), db.recent[recent:]...)
	}
	return memories[n:]
}
