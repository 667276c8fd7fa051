package compaction

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
)

// applyGroup does a job of Kind Group by the numbers.
func (t *tree) applyGroup(tb require.TestingT, j Job) {
	edit := manifest.Regroup{Epoch: testEpoch}
	var parts []*manifest.Group
	for _, g := range j.Groups {
		edit.Groups = append(edit.Groups, manifest.GroupRef{ID: g.Id, First: g.FirstSegment, Last: g.LastSegment})
		parts = append(parts, t.parts[string(g.Id)]...)
	}
	for _, s := range j.Segments {
		require.Len(tb, s.Runs, 1)
		edit.Segments = append(edit.Segments, manifest.SegmentRef{ID: s.Id, Run: s.Runs[0].Id})
		parts = append(parts, partOf(s))
	}
	var keys, tables uint64
	for _, g := range j.Groups {
		keys, tables = keys+g.Keys, tables+uint64(g.Tables)
	}
	require.True(tb, len(j.Groups) == 0 || len(j.Segments) == 0 && len(j.Groups) >= 2 && len(j.Groups) <= groupFanIn, j.String())
	require.LessOrEqual(tb, len(parts), manifest.MaxGroupSegments, j.String())
	if len(j.Groups) > 0 {
		require.LessOrEqual(tb, keys*uint64(manifest.EntryBytes(len(parts))), uint64(manifest.MaxEntryBytes), j.String())
		require.LessOrEqual(tb, tables, uint64(manifest.MaxGroupTables), j.String())
	}
	edit.Output = t.groupOf(parts)
	require.NoError(tb, edit.Edit().Apply(t.s), j.String())
	require.ErrorIs(tb, edit.Edit().Apply(t.s), manifest.ErrApplied)
	t.s.Obsolete = nil
	t.jobs[Group]++
	t.moved[Group] += edit.Output.Keys
}

// partOf is the line of a group of one segment, as far as it is about the segment.
func partOf(s *manifest.Segment) *manifest.Group {
	p := &manifest.Group{
		FirstSegment: s.Id, LastSegment: s.Last(), FirstSequence: s.FirstSequence, EndSequence: s.EndSequence,
		StartTimeMs: s.StartTimeMs, FirstSealTimeMs: s.SealTimeMs, LastSealTimeMs: s.SealTimeMs, Segments: 1,
	}
	for _, t := range s.Runs[0].Tables {
		p.Tables++
		p.Records, p.Bytes, p.StoredBytes = p.Records+t.Records, p.Bytes+t.Bytes, p.StoredBytes+t.Size
	}
	return p
}

// joinParts writes what several lines say together into one.
func joinParts(g *manifest.Group, parts []*manifest.Group) {
	first, last := parts[0], parts[len(parts)-1]
	g.FirstSegment, g.FirstSequence, g.StartTimeMs = first.FirstSegment, first.FirstSequence, first.StartTimeMs
	g.LastSegment, g.EndSequence, g.FirstSealTimeMs = last.LastSegment, last.EndSequence, first.FirstSealTimeMs
	g.LastSealTimeMs, g.Segments, g.Tables, g.Records, g.Bytes, g.StoredBytes = first.LastSealTimeMs, 0, 0, 0, 0, 0
	for _, p := range parts {
		g.LastSealTimeMs = max(g.LastSealTimeMs, p.LastSealTimeMs)
		g.Segments, g.Tables = g.Segments+p.Segments, g.Tables+p.Tables
		g.Records, g.Bytes, g.StoredBytes = g.Records+p.Records, g.Bytes+p.Bytes, g.StoredBytes+p.StoredBytes
	}
}

// groupOf makes the line of a new group with these segments.
func (t *tree) groupOf(parts []*manifest.Group) *manifest.Group {
	id := base.ObjectID{Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: testEpoch, ULID: base.ULID(t.id())}
	g := &manifest.Group{Id: id.ULID[:], Index: manifest.RefOf(id), Shards: 1, ShardBytes: 24}
	joinParts(g, parts)
	if t.keysOf != nil {
		g.Keys = t.keysOf(g.FirstSegment, g.LastSegment)
	}
	if g.Keys > 0 {
		for g.ShardBytes = 64 << 10; uint64(g.Shards)*3000 < g.Keys; {
			g.Shards *= 2
		}
	}
	g.TocOffset = uint64(g.Shards)*uint64(g.ShardBytes) + 100
	g.IndexSize = g.TocOffset + 200
	t.parts[string(g.Id)] = parts
	return g
}

// drop removes the segments up to an id, as retention does.
func (t *tree) drop(tb require.TestingT, upTo uint32) {
	for len(t.s.Groups) > 0 && t.s.Groups[0].LastSegment <= upTo {
		t.s.Groups = t.s.Groups[1:]
	}
	if len(t.s.Groups) > 0 && t.s.Groups[0].FirstSegment <= upTo {
		g := t.s.Groups[0]
		g = &manifest.Group{
			Id: g.Id, Index: g.Index, IndexSize: g.IndexSize, TocOffset: g.TocOffset, Shards: g.Shards, ShardBytes: g.ShardBytes,
			Keys: g.Keys, LastSegment: g.LastSegment,
		}
		parts := t.parts[string(g.Id)]
		cut := slices.IndexFunc(parts, func(p *manifest.Group) bool { return p.FirstSegment > upTo })
		require.Positive(tb, cut)
		joinParts(g, parts[cut:])
		t.parts[string(g.Id)] = parts[cut:]
		t.s.Groups = slices.Clone(t.s.Groups)
		t.s.Groups[0] = g
	}
	for t.s.Segments[0].Sealed && t.s.Segments[0].Last() <= upTo {
		t.s.Segments = t.s.Segments[1:]
	}
}

// oldest returns the last id and the seal time of the oldest sealed segment.
func (t *tree) oldest() (last uint32, sealed int64, ok bool) {
	if len(t.s.Groups) > 0 {
		p := t.parts[string(t.s.Groups[0].Id)][0]
		return p.LastSegment, p.LastSealTimeMs, true
	}
	g := t.s.Segments[0]
	return g.Last(), g.SealTimeMs, g.Sealed
}

// retain drops what was sealed before.
func (t *tree) retain(tb require.TestingT, before int64) {
	for {
		last, sealed, ok := t.oldest()
		if !ok || sealed >= before {
			return
		}
		t.drop(tb, last)
	}
}

// all returns a line for each sealed segment, grouped or not.
func (t *tree) all() (parts []*manifest.Group) {
	for _, g := range t.s.Groups {
		parts = append(parts, t.parts[string(g.Id)]...)
	}
	for _, s := range t.s.Segments {
		if s.Sealed && len(s.Runs) == 1 {
			parts = append(parts, partOf(s))
		}
	}
	return parts
}
