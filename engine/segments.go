package engine

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/trace"
)

// segmentsBatch is how many groups a page of segments looks into at the same time.
const segmentsBatch = 16

// Segments implements LogReader.
func (c *core) Segments(ctx context.Context, o SegmentsOptions) (SegmentsPage, error) {
	if err := c.stopped(); err != nil {
		return SegmentsPage{}, err
	}
	if o.Range == (Range{}) {
		o.Range = All()
	}
	ctx, span := trace.Begin(c.tracer, ctx, trace.Segments)
	var page SegmentsPage
	err := c.withView(ctx, func(v *view) (err error) {
		page, err = c.segments(ctx, v, o)
		return err
	})
	span.Int("segments", int64(len(page.Segments)))
	span.End(err)
	return page, err
}

func (c *core) segments(ctx context.Context, v *view, o SegmentsOptions) (SegmentsPage, error) {
	limit := pageLimit(o.Limit)
	var page SegmentsPage
	// add reports whether the page has room for more.
	add := func(infos []SegmentInfo) bool {
		for _, info := range infos {
			window := Between(info.Start, info.End)
			if info.End == 0 {
				window.End = base.MaxSequence
			}
			if info.LastID <= o.After || !window.Overlaps(o.Range) {
				continue
			}
			if len(page.Segments) == limit {
				page.More = true
				return false
			}
			page.Segments = append(page.Segments, info)
		}
		return true
	}
	groups, p := v.groupsIn(o.Range), parallel{c: c}
	for len(groups) > 0 && groups[0].line.GetLastSegment() <= o.After {
		groups = groups[1:]
	}
	for n := 1; len(groups) > 0; n = min(2*n, segmentsBatch) { // a small page needs one or two
		batch := groups[:min(n, len(groups))]
		groups = groups[len(batch):]
		infos, err := c.groupInfos(ctx, &p, batch)
		if err != nil {
			return SegmentsPage{}, err
		}
		if !add(infos) {
			return page, nil
		}
	}
	add(v.segmentInfos())
	return page, nil
}

// groupInfos describes the live segments of the groups, for one request each.
func (c *core) groupInfos(ctx context.Context, p *parallel, groups []viewGroup) ([]SegmentInfo, error) {
	found := make([][]SegmentInfo, len(groups))
	err := p.each(ctx, len(groups), func(ctx context.Context, i int, reads *atomic.Uint32) error {
		x, err := c.groupIndex(ctx, &groups[i], reads)
		if err != nil {
			return err
		}
		from, to := x.Live(groups[i].line)
		for j := from; j < to; j++ {
			found[i] = append(found[i], groupedInfo(x.Segment(j)))
		}
		return nil
	})
	return slices.Concat(found...), err
}

func groupedInfo(s *manifest.IndexedSegment) SegmentInfo {
	info := newSegmentInfo(s.GetSegment())
	info.Records, info.Bytes = s.GetRecords(), s.GetBytes()
	return info
}

// newSegmentInfo describes a segment without its records.
func newSegmentInfo(s *manifest.Segment) SegmentInfo {
	info := SegmentInfo{ID: s.GetId(), LastID: s.Last(), Start: s.GetFirstSequence(), Sealed: s.GetSealed(), Runs: len(s.GetRuns())}
	if ms := s.GetStartTimeMs(); ms != 0 {
		info.Started = millis(ms)
	}
	if info.Sealed {
		info.End, info.SealedAt = s.GetEndSequence(), millis(s.GetSealTimeMs())
	}
	return info
}

// segmentInfos describes every segment that is not in a group, those that exist only in
// memory too. It costs no I/O.
func (v *view) segmentInfos() []SegmentInfo {
	infos := make([]SegmentInfo, 0, len(v.segments)+1)
	for _, s := range v.segments {
		info := newSegmentInfo(s)
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
		above := m.above(flushedEnd)
		if above.records == 0 && m.start < flushedEnd {
			continue // kept for readers at the tip; counted in its run
		}
		last := &infos[len(infos)-1]
		if m.segment > last.ID {
			// The one before ends here; it is sealed by a flush that is under way, when that commits.
			last.End = m.start
			infos = append(infos, SegmentInfo{ID: m.segment, LastID: m.segment, Start: m.start})
			last = &infos[len(infos)-1]
		}
		if above.records == 0 {
			continue
		}
		if last.Started.IsZero() {
			last.Started = millis(above.firstMs)
		}
		last.Records += above.records
		last.Bytes += above.bytes
	}
	return infos
}

func pageLimit(limit int) int {
	if limit <= 0 || limit > MaxPage {
		return MaxPage
	}
	return limit
}
