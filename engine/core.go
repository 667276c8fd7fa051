package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/sst"
)

// core is the read path. A writer keeps its view and frontier current; every
// read goes through it. Safe for concurrent use; it holds no lock across I/O.
//
// A read loads the frontier first and the view second: a view holds everything
// that was appended before it was loaded, so everything below a frontier that
// was loaded earlier is in it (invariant I4).
type core struct {
	env        *base.Env
	tables     *tables
	staleAfter time.Duration

	frontier atomic.Uint64
	view     atomic.Pointer[view]
	proved   atomic.Int64 // Elapsed() when the request that last proved the view current was sent

	// refresh reads the MANIFEST and publishes a new view if it changed.
	refresh func(ctx context.Context) error
	// stopped returns why nothing can be read any more, or nil.
	stopped func() error

	followers followers

	scannedRecords, scannedBytes atomic.Uint64
}

// Frontier implements LogReader.
func (c *core) Frontier() uint64 { return c.frontier.Load() }

// FirstSequence implements LogReader.
func (c *core) FirstSequence() uint64 { return c.view.Load().first }

// checkFresh returns ErrStale when objects that the view names may have been
// collected (invariant I7).
func (c *core) checkFresh() error {
	if age := c.env.Elapsed() - time.Duration(c.proved.Load()); age > c.staleAfter {
		return fmt.Errorf("%w: the log's head could not be read for %v", ErrStale, age.Round(time.Second))
	}
	return nil
}

// withView calls read with the current view. When read finds that an object is
// missing, the head is read again: if the object is still named, that is
// damage; if not, the view was old and read starts over with the new one. Wrong
// bytes that the disk cache may have kept are read again once (F35).
func (c *core) withView(ctx context.Context, read func(*view) error) error {
	for again := true; ; {
		v := c.view.Load()
		err := read(v)
		if again && c.tables.distrust(err) {
			again = false
			continue
		}
		if err == nil || !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
		if rerr := c.refresh(ctx); rerr != nil {
			return fmt.Errorf("%w (and the head could not be read: %w)", err, rerr)
		}
		var missing *missingTableError
		if !errors.As(err, &missing) {
			return err
		}
		if c.view.Load().names(missing.id) {
			return fmt.Errorf("%w: the manifest names an object that is not there: %w", ErrCorrupt, err)
		}
	}
}

// missingTableError says that a table was not there.
type missingTableError struct {
	id  base.ObjectID
	err error
}

func (e *missingTableError) Error() string { return e.err.Error() }
func (e *missingTableError) Unwrap() error { return e.err }

func tableError(t *viewTable, err error) error {
	if errors.Is(err, objstore.ErrNotFound) {
		return &missingTableError{id: t.id, err: err}
	}
	return err
}

// names reports whether the view's manifest lists the object.
func (v *view) names(id base.ObjectID) bool {
	for i := range v.runs {
		for j := range v.runs[i].tables {
			if v.runs[i].tables[j].id == id {
				return true
			}
		}
	}
	return false
}

// tableFor opens a table if its bounds allow that it holds the key; else it
// returns nil.
func (c *core) tableFor(ctx context.Context, t *viewTable, key []byte) (*sst.Reader, error) {
	if !t.covers(key) {
		return nil, nil
	}
	if err := c.checkFresh(); err != nil {
		return nil, err
	}
	r, err := c.tables.open(ctx, t)
	return r, tableError(t, err)
}

// tableWith is tableFor with a look at the filter.
func (c *core) tableWith(ctx context.Context, t *viewTable, key []byte) (*sst.Reader, error) {
	r, err := c.tableFor(ctx, t, key)
	if err != nil || r == nil {
		return nil, err
	}
	if ok, err := r.MayContain(ctx, key); err != nil || !ok {
		return nil, tableError(t, err)
	}
	return r, nil
}

// count implements Count on one view.
func (c *core) count(ctx context.Context, v *view, key []byte, r Range) (uint64, error) {
	var n uint64
	onDisk := v.onDisk(r)
	for _, run := range v.runsIn(onDisk) {
		for j := range run.tables {
			t := &run.tables[j]
			if !t.overlaps(onDisk) {
				continue
			}
			reader, err := c.tableWith(ctx, t, key)
			if err != nil {
				return 0, err
			}
			if reader == nil {
				continue
			}
			m, err := reader.Count(ctx, key, onDisk)
			if err != nil {
				return 0, tableError(t, err)
			}
			n += m
		}
	}
	for i := v.memoriesFrom(r.Start); i < len(v.memories); i++ {
		if mr := v.memoryRange(i, r); !mr.Empty() {
			n += v.memories[i].table.Count(key, mr)
		}
	}
	return n, nil
}

// Count implements LogReader.
func (c *core) Count(ctx context.Context, key []byte, r Range) (uint64, error) {
	if err := c.stopped(); err != nil {
		return 0, err
	}
	r.End = min(r.End, c.frontier.Load())
	if r.Empty() {
		return 0, nil
	}
	var n uint64
	err := c.withView(ctx, func(v *view) (err error) {
		n, err = c.count(ctx, v, key, r)
		return err
	})
	return n, err
}

// Wait implements LogReader.
func (c *core) Wait(ctx context.Context, key []byte, r Range) error {
	if r.Empty() {
		return nil
	}
	w := c.followers.add(key, r)
	defer c.followers.remove(w)
	for {
		if err := c.stopped(); err != nil {
			return err
		}
		frontier := c.frontier.Load()
		it := c.Scan(ctx, key, Between(r.Start, min(r.End, frontier)), ScanOptions{Limit: 1})
		it.quiet = true
		for range it.All() {
			return nil
		}
		if err := it.Err(); err != nil {
			return err
		}
		if frontier >= r.End {
			return nil
		}
		r.Start = max(r.Start, frontier)
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Segments implements LogReader.
func (c *core) Segments(_ context.Context, o SegmentsOptions) (SegmentsPage, error) {
	if err := c.stopped(); err != nil {
		return SegmentsPage{}, err
	}
	if o.Range == (Range{}) {
		o.Range = All()
	}
	limit := pageLimit(o.Limit)
	var page SegmentsPage
	for _, info := range c.view.Load().segmentInfos() {
		window := Between(info.Start, info.End)
		if !info.Sealed {
			window.End = base.MaxSequence
		}
		if info.ID <= o.After || !window.Overlaps(o.Range) {
			continue
		}
		if len(page.Segments) == limit {
			page.More = true
			break
		}
		page.Segments = append(page.Segments, info)
	}
	return page, nil
}

// segmentInfos describes every segment, those that exist only in memory too.
func (v *view) segmentInfos() []SegmentInfo {
	infos := make([]SegmentInfo, 0, len(v.segments)+1)
	for _, s := range v.segments {
		info := SegmentInfo{ID: s.GetId(), Start: s.GetFirstSequence(), Sealed: s.GetSealed(), Runs: len(s.GetRuns())}
		if ms := s.GetStartTimeMs(); ms != 0 {
			info.Started = millis(ms)
		}
		if info.Sealed {
			info.End, info.SealedAt = s.GetEndSequence(), millis(s.GetSealTimeMs())
		}
		for _, r := range s.GetRuns() {
			for _, t := range r.GetTables() {
				info.Records += t.GetRecords()
				info.Bytes += t.GetBytes()
			}
		}
		infos = append(infos, info)
	}
	flushedEnd := v.snap.State.GetFlushedEnd()
	for _, m := range v.memories {
		if m.start < flushedEnd {
			continue // kept for readers at the tip; counted in its run
		}
		last := &infos[len(infos)-1]
		if m.segment > last.ID {
			// Sealed by a flush that is under way: not sealed until it commits.
			infos = append(infos, SegmentInfo{ID: m.segment, Start: m.start})
			last = &infos[len(infos)-1]
		}
		if m.table.Records() == 0 {
			continue
		}
		if last.Started.IsZero() {
			last.Started = millis(m.table.FirstTimestamp())
		}
		last.Records += m.table.Records()
		last.Bytes += uint64(m.table.DataBytes())
	}
	return infos
}

func pageLimit(limit int) int {
	if limit <= 0 || limit > MaxPage {
		return MaxPage
	}
	return limit
}

// publish installs a view; the caller serialises.
func (c *core) publish(v *view) { c.view.Store(v) }

// provedAt records that the manifest was current when a request was sent. Late
// answers never move it back.
func (c *core) provedAt(sent time.Duration) {
	for {
		old := c.proved.Load()
		if int64(sent) <= old || c.proved.CompareAndSwap(old, int64(sent)) {
			return
		}
	}
}
