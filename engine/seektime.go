package engine

import (
	"context"
	"fmt"
	"math"
	"time"
)

// SeekTime implements LogReader.
func (c *core) SeekTime(ctx context.Context, t time.Time) (uint64, error) {
	if err := c.stopped(); err != nil {
		return 0, err
	}
	// Memories hold records that are not readable yet, and may be lost.
	frontier := c.frontier.Load()
	var seq uint64
	err := c.withView(ctx, func(v *view) (err error) {
		seq, err = c.seekTime(ctx, v, atOrAfter(t))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("look for a time: %w", err)
	}
	return min(seq, frontier), nil
}

// atOrAfter returns the lowest timestamp that is not before t.
func atOrAfter(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%1e6 != 0 { // UnixNano holds 292 years only
		ms++ // within a millisecond: its start is before t
	}
	return ms
}

// seekTime looks for the newest part of the log whose first record is older than ms: timestamps never fall as
// sequences rise, so that everything before that part is older, too.
func (c *core) seekTime(ctx context.Context, v *view, ms int64) (uint64, error) {
	for i := len(v.memories) - 1; i >= 0; i-- {
		if seq, ok := v.memories[i].seekTime(ms); ok {
			return seq, nil
		}
	}
	for i := len(v.runs) - 1; i >= 0; i-- {
		if seq, ok := v.runs[i].seekTime(ms); ok {
			return seq, nil
		}
	}
	for i := len(v.groups) - 1; i >= 0; i-- {
		if start := v.groups[i].line.GetStartTimeMs(); start != 0 && start < ms {
			return c.seekTimeIn(ctx, &v.groups[i], ms)
		}
	}
	return v.first, nil
}

// seekTime returns where to begin to look for records of ms or later, or false if the memory has none that is older.
func (m *memory) seekTime(ms int64) (seq uint64, ok bool) {
	last := m.table.LastSequence() // before the timestamp: records may come in between
	if m.table.Empty() || m.table.FirstTimestamp() >= ms {
		return 0, false
	}
	if m.table.LastTimestamp() < ms {
		return last + 1, true
	}
	return m.table.FirstSequence(), true
}

// seekTime is likewise for a run.
func (r *viewRun) seekTime(ms int64) (seq uint64, ok bool) {
	first, reached := int64(math.MaxInt64), r.end
	for i := range r.tables {
		t := &r.tables[i]
		first = min(first, t.firstTime)
		if t.lastTime >= ms {
			reached = min(reached, t.first)
		}
	}
	return reached, first < ms
}

// seekTimeIn is likewise for a group that has an older record, for one request at most.
func (c *core) seekTimeIn(ctx context.Context, g *viewGroup, ms int64) (uint64, error) {
	x, err := c.groupIndex(ctx, g, nil)
	if err != nil {
		return 0, err
	}
	from, to := x.Live(g.line)
	for i := to - 1; i > from; i-- {
		s := x.Segment(i).GetSegment()
		if start := s.GetStartTimeMs(); start != 0 && start < ms {
			return s.GetFirstSequence(), nil
		}
	}
	return g.start, nil
}
