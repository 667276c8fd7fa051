package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/trace"
)

// Retention drops the oldest sealed segments, whole, by one edit: no data is read
// or rewritten. Segments in groups go by the line of their group, all at once; only where a
// group is old enough, or too much, in part, its index is read, which says which
// segments those are. What must hold:
//
//   - A segment's age is the store's time now against the store's time at which it
//     was sealed; no clock of this machine takes part (F17). The time is asked
//     before the drop is committed, so nothing is ever dropped early.
//   - The active segment is never dropped, nor a segment that was merged with
//     younger ones, or a group that was regrouped, since it was looked at: the edit
//     refuses all three.
//   - From the view on in which FirstSequence has passed a record, no read returns
//     it, wherever it still lies: in the memories that are kept for the tip too.

// maintenanceBackoffLimit bounds the wait after failures of background work that is
// done at intervals, unless the interval itself is longer.
const maintenanceBackoffLimit = 15 * time.Minute

// maintain does work at intervals until the DB ends. Whatever work did not finish
// it takes up the next time; after failures, which are the trouble fails, that comes later and later. Being
// fenced ends the DB.
func (db *DB) maintain(fails TroubleKind, interval time.Duration, work func(context.Context) error) {
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
			db.troubles[fails].note(err)
		default:
			failures = 0
			db.troubles[fails].note(nil)
		}
	}
}

// retentionLoop drops what is too old or too much, if there is such a limit.
func (db *DB) retentionLoop() {
	if db.opts.Retention == 0 && db.opts.RetentionBytes == 0 {
		return
	}
	db.maintain(NothingDropped, db.opts.RetentionInterval, db.enforceRetention)
}

// enforceRetention looks once at what is to be dropped and drops it.
func (db *DB) enforceRetention(ctx context.Context) error {
	ctx, span := trace.Begin(db.tracer, ctx, trace.Retention)
	dropped, err := db.dropSegments(ctx)
	span.Int("segments", int64(dropped))
	span.End(err)
	if err != nil {
		db.mu.Lock()
		db.stats.retentionFailures++
		db.mu.Unlock()
	}
	return err
}

// maxRetentionLooks bounds how often a look is repeated at once because a compactor changed
// what was to be dropped meanwhile. The next look is due soon anyway.
const maxRetentionLooks = 3

// dropSegments returns how many segments it dropped.
func (db *DB) dropSegments(ctx context.Context) (dropped int, err error) {
	var now time.Time
	if db.opts.Retention > 0 {
		if now, err = db.store.ServerTime(ctx); err != nil {
			return 0, fmt.Errorf("ask the store's time: %w", err)
		}
	}
	for range maxRetentionLooks {
		dropped, err = db.dropOnce(ctx, db.view.Load(), now)
		switch {
		case errors.Is(err, manifest.ErrGone):
			continue // merged or regrouped meanwhile, and the view knows
		case errors.Is(err, manifest.ErrCleanlyClosed):
			return 0, nil // closing
		default:
			return dropped, err
		}
	}
	return 0, nil
}

// dropOnce drops what is too old or too much in a view. now is the store's time, asked
// earlier. manifest.ErrGone says that the view is not the last one.
func (db *DB) dropOnce(ctx context.Context, v *view, now time.Time) (dropped int, err error) {
	d := drop{opts: &db.opts, now: now, left: v.recordBytes()}
	planned := d.plan(ctx, v.snap.State, db.indexOfGroup)
	if d.segments == 0 {
		return 0, planned
	}
	if _, err := db.committer.Commit(ctx, manifest.DropSegments(db.epoch, d.upTo, d.trimmed)); err != nil {
		return 0, err
	}
	db.countDropped(&d)
	return int(d.segments), planned
}

// indexOfGroup reads the index of a view's group, past the caches: retention reads an index
// about as often as it drops a segment.
func (db *DB) indexOfGroup(ctx context.Context, g *manifest.Group) (*manifest.Index, error) {
	x, err := uncached(db.store, db.env).index(ctx, g.GetIndex().ID(), int64(g.GetIndexSize()))
	if errors.Is(err, objstore.ErrNotFound) {
		if perr := db.poll(ctx); perr != nil {
			return nil, fmt.Errorf("%w (and the head could not be read: %w)", err, perr)
		}
		if _, named := manifest.NamedObjects(db.Head())[g.GetIndex().ID()]; !named {
			return nil, fmt.Errorf("%w: %w", err, manifest.ErrGone)
		}
		err = fmt.Errorf("%w: the manifest names an object that is not there: %w", ErrCorrupt, err)
	}
	if err == nil {
		err = x.Check(g)
	}
	return x, err
}

// drop is what one look at the log found to be dropped.
type drop struct {
	opts *Options
	now  time.Time // by the store
	left uint64    // record bytes that the log holds without what is dropped

	upTo            uint32          // the last segment to drop
	trimmed         *manifest.Group // what is left of the group that upTo lies in, or nil
	segments, bytes uint64          // to drop
	first           uint64          // sequence of what is left
}

// old reports whether a segment that was sealed at a time of the store is too old.
func (d *drop) old(sealMs int64) bool {
	return d.opts.Retention > 0 && d.now.Sub(time.UnixMilli(sealMs)) >= d.opts.Retention
}

// over reports whether the log would hold too much after so many bytes more are dropped.
func (d *drop) over(bytes uint64) bool {
	return d.opts.RetentionBytes > 0 && d.left-min(bytes, d.left) > uint64(d.opts.RetentionBytes)
}

// take drops the next segments.
func (d *drop) take(upTo uint32, segments, bytes, end uint64) {
	d.upTo, d.first = upTo, end
	d.segments, d.bytes = d.segments+segments, d.bytes+bytes
	d.left -= min(bytes, d.left)
}

// plan takes segments, oldest first, up to the first one that is neither too old nor too much. On
// an error what it took may be dropped all the same.
func (d *drop) plan(ctx context.Context, s *manifest.State, index func(context.Context, *manifest.Group) (*manifest.Index, error)) error {
	for _, g := range s.GetGroups() {
		if !d.old(g.GetFirstSealTimeMs()) && !d.over(0) {
			return nil
		}
		// Segments are dropped in order, so the last one's age decides for all of them. Its bytes
		// are not known here, but at most the group's; or there are too many without it.
		if d.old(g.GetLastSealTimeMs()) || d.over(g.GetBytes()) {
			d.take(g.GetLastSegment(), uint64(g.GetSegments()), g.GetBytes(), g.GetEndSequence())
			continue
		}
		x, err := index(ctx, g)
		if err != nil {
			return fmt.Errorf("look for the segments to drop among %d to %d: %w", g.GetFirstSegment(), g.GetLastSegment(), err)
		}
		if whole, err := d.part(g, x); err != nil || !whole {
			return err
		}
	}
	for _, segment := range s.GetSegments() {
		if !segment.GetSealed() || !d.old(segment.GetSealTimeMs()) && !d.over(0) {
			return nil
		}
		d.take(segment.Last(), 1, recordBytesOf(segment), segment.GetEndSequence())
	}
	return nil
}

// part takes segments of a group, and reports whether that was all of them.
func (d *drop) part(g *manifest.Group, x *manifest.Index) (whole bool, err error) {
	next := *d
	from, to := x.Live(g)
	i := from
	for ; i < to; i++ {
		listed := x.Segment(i)
		segment := listed.GetSegment()
		if !d.old(segment.GetSealTimeMs()) && !next.over(0) {
			break
		}
		next.take(segment.Last(), 1, listed.GetBytes(), segment.GetEndSequence())
	}
	if i == from {
		return false, nil
	}
	if i < to {
		if next.trimmed, err = x.Trim(g, next.upTo); err != nil {
			return false, err
		}
	}
	*d = next
	return i == to, nil
}

// recordBytes returns the record bytes of the whole log: those of runs and those of
// memories that are not in runs yet.
func (v *view) recordBytes() (n uint64) {
	s := v.snap.State
	for _, g := range s.GetGroups() {
		n += g.GetBytes()
	}
	for _, segment := range s.GetSegments() {
		n += recordBytesOf(segment)
	}
	for _, m := range v.memories {
		if m.start >= s.GetFlushedEnd() {
			n += uint64(m.table.DataBytes())
		}
	}
	return n
}

func recordBytesOf(segment *manifest.Segment) (n uint64) {
	for _, r := range segment.GetRuns() {
		for _, t := range r.GetTables() {
			n += t.GetBytes()
		}
	}
	return n
}

// countDropped counts segments that are gone.
func (db *DB) countDropped(d *drop) {
	db.mu.Lock()
	db.stats.segmentsDropped += d.segments
	db.stats.bytesDropped += d.bytes
	db.mu.Unlock()
	db.opts.Logger.Info("retention dropped segments", "segments", d.segments, "bytes", d.bytes, "first_sequence", d.first)
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
