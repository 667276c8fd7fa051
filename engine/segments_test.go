package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/memtable"
)

// Segments are merged between two pages: what was on no page yet is on the next one.
func TestSegmentsAcrossAMerge(t *testing.T) {
	table := func(seq uint64) *manifest.Run {
		return &manifest.Run{Start: seq, End: seq + 1}
	}
	single := &manifest.State{FlushedEnd: 6}
	for id := uint32(1); id <= 6; id++ {
		seq := uint64(id - 1)
		s := &manifest.Segment{Id: id, FirstSequence: seq, Runs: []*manifest.Run{table(seq)}}
		if id < 6 {
			s.Sealed, s.EndSequence = true, seq+1
		}
		single.Segments = append(single.Segments, s)
	}
	merged := &manifest.State{FlushedEnd: 6, Segments: []*manifest.Segment{
		{Id: 1, LastId: 4, FirstSequence: 0, EndSequence: 4, Sealed: true},
		single.Segments[4], single.Segments[5],
	}}
	c := &core{stopped: func() error { return nil }}
	show := func(s *manifest.State) {
		c.view.Store(newView(&manifest.Snapshot{State: s}, []*memory{{table: memtable.New(), segment: 6, start: 6}}))
	}
	show(single)
	page, err := c.Segments(t.Context(), SegmentsOptions{Limit: 2})
	require.NoError(t, err)
	require.True(t, page.More)
	require.Equal(t, uint32(2), page.Segments[1].LastID)

	show(merged)
	seen, after := page.Segments[1].End, page.Segments[1].LastID
	for more := true; more; {
		page, err = c.Segments(t.Context(), SegmentsOptions{Limit: 1, After: after})
		require.NoError(t, err)
		require.Len(t, page.Segments, 1)
		s := page.Segments[0]
		require.LessOrEqual(t, s.Start, seen, "a gap")
		require.Greater(t, s.LastID, after, "no progress")
		seen, after, more = s.End, s.LastID, page.More
	}
	require.Equal(t, uint32(6), after)
}

// A segment that was merged is looked at for keys if it spans any of the ids that are asked for.
func TestKeysOfMergedSegments(t *testing.T) {
	for _, c := range []struct {
		start, end, first, last uint32
		want                    bool
	}{
		{0, 0, 1, 16, true}, {9, 10, 1, 16, true}, {16, 0, 1, 16, true}, {17, 0, 1, 16, false},
		{0, 1, 1, 16, false}, {0, 2, 1, 16, true}, {9, 10, 17, 17, false}, {5, 5, 5, 5, false},
	} {
		o := KeysOptions{StartSegment: c.start, EndSegment: c.end}
		require.Equal(t, c.want, o.wants(c.first, c.last), "%+v", c)
	}
}

// A segment that is being sealed has its end already: those asked for by their sequences do not include it.
func TestSegmentsWhileOneIsSealed(t *testing.T) {
	s := &manifest.State{FlushedEnd: 4, Segments: []*manifest.Segment{
		{Id: 1, Runs: []*manifest.Run{{Start: 0, End: 4}}},
	}}
	c := &core{stopped: func() error { return nil }}
	c.view.Store(newView(&manifest.Snapshot{State: s}, []*memory{
		{table: memtable.New(), segment: 1, start: 4, end: 9}, {table: memtable.New(), segment: 2, start: 9},
	}))
	page, err := c.Segments(t.Context(), SegmentsOptions{})
	require.NoError(t, err)
	require.Len(t, page.Segments, 2)
	require.Equal(t, uint64(9), page.Segments[0].End)
	require.False(t, page.Segments[0].Sealed)
	require.Equal(t, SegmentInfo{ID: 2, LastID: 2, Start: 9}, page.Segments[1])
	page, err = c.Segments(t.Context(), SegmentsOptions{Range: From(9)})
	require.NoError(t, err)
	require.Len(t, page.Segments, 1)
}
