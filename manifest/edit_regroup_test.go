package manifest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/fault"
)

// shelf holds the indexes that a test has made.
type shelf map[base.ObjectID]*shelved

type shelved struct {
	opened   *Index
	segments []*Segment // with their tables
}

// regroup writes an index for the groups [from, to) and so many of the first segments of a state.
func (x shelf) regroup(t require.TestingT, s *State, n, from, to, segments int) Regroup {
	r := Regroup{Epoch: s.Compactor.Epoch}
	var in []*Segment
	for _, g := range s.Groups[from:to] {
		r.Groups = append(r.Groups, GroupRef{ID: g.Id, First: g.FirstSegment, Last: g.LastSegment})
		index := x[g.Index.ID()]
		a, b := index.opened.Live(g)
		in = append(in, index.segments[a:b]...)
	}
	for _, g := range s.Segments[:segments] {
		r.Segments = append(r.Segments, SegmentRef{ID: g.Id, Run: g.Runs[0].Id})
		in = append(in, proto.CloneOf(g))
	}
	id := base.ObjectID{Tree: s.Tree, Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: r.Epoch, ULID: base.ULID(id16(n))}
	b := NewIndexBuilder(in)
	b.AddBase(0, maxHash, maskOf(len(in)))
	for i, g := range in {
		keys := uint64(0)
		for _, tb := range g.Runs[0].Tables {
			keys += tb.Keys
		}
		b.SetKeys(i, keys)
	}
	body, line, err := b.Finish(id)
	require.NoError(t, err)
	opened, err := ParseIndex(id, int64(len(body)), body)
	require.NoError(t, err)
	r.Output, x[id] = line, &shelved{opened, in}
	return r
}

// trim returns the line of a group of a state without the segments up to an id.
func (x shelf) trim(t require.TestingT, g *Group, upTo uint32) *Group {
	trimmed, err := x[g.Index.ID()].opened.Trim(g, upTo)
	require.NoError(t, err)
	return trimmed
}

// tables returns the tables of an index's segments first to last.
func (x shelf) tables(id base.ObjectID, first, last uint32) (tables []*Table) {
	for _, g := range x[id].segments {
		if g.Id >= first && g.Last() <= last {
			tables = append(tables, g.Runs[0].Tables...)
		}
	}
	return tables
}

// finishedState has sealed segments 1 to 8, each with one run, the active segment 9, and a shelf.
func finishedState(t testing.TB) (*State, shelf) {
	s := openState(t)
	for n := 1; n <= 9; n++ {
		f := flushAt(1, uint64(n), uint64(n+1), n, uint64(n-1)*10, uint64(n)*10)
		f.Segment, f.SegmentStartMs, f.Run.Tables[0].Bytes = uint32(n), int64(10+n), uint64(100*n)
		if n < 9 {
			f.Seal = &Seal{TimeMs: int64(100 + n)}
		}
		mustApply(t, s, f.Edit())
	}
	return s, shelf{}
}

// groupedState has groups of segments 1 to 3 (id 20), 4 and 5 (21) and 6 (22), segments 7 and 8, and the active
// segment 9.
func groupedState(t testing.TB) (*State, shelf) {
	s, x := finishedState(t)
	for i, n := range []int{3, 2, 1} {
		mustApply(t, s, x.regroup(t, s, 20+i, i, i, n).Edit())
	}
	require.Empty(t, s.Obsolete)
	return s, x
}

func TestRegroup(t *testing.T) {
	s, x := finishedState(t)
	first := x.regroup(t, s, 20, 0, 0, 2)
	was := clone(s)
	mustApply(t, s, first.Edit())
	want := clone(was)
	want.Groups = []*Group{first.Output}
	want.Segments = want.Segments[2:]
	requireEqual(t, want, s)
	require.ErrorIs(t, first.Edit().Apply(s), ErrApplied)
	requireEqual(t, &Group{
		Id: id16(20), Index: first.Output.Index, IndexSize: first.Output.IndexSize, TocOffset: first.Output.TocOffset,
		Shards: 1, ShardBytes: minShardBytes, FirstSegment: 1, LastSegment: 2, EndSequence: 20, StartTimeMs: 11,
		FirstSealTimeMs: 101, LastSealTimeMs: 102, Segments: 2, Tables: 2, Records: 20, Bytes: 300, StoredBytes: 2000,
	}, s.Groups[0])

	// The next one behind it, and both and one more together.
	second := x.regroup(t, s, 21, 1, 1, 1)
	mustApply(t, s, second.Edit())
	both := x.regroup(t, s, 22, 0, 2, 1)
	was = clone(s)
	mustApply(t, s, both.Edit())
	want = clone(was)
	want.Groups = []*Group{proto.CloneOf(both.Output)}
	want.Segments = want.Segments[1:]
	for _, g := range was.Groups {
		want.Obsolete = append(want.Obsolete, &Obsolete{Ref: g.Index, Size: g.IndexSize})
	}
	requireEqual(t, want, s)
	both.Output.Records++ // the state has a copy
	requireEqual(t, want, s)
	both.Output.Records--
	for _, r := range []Regroup{first, second, both} {
		require.ErrorIs(t, r.Edit().Apply(s), ErrApplied, "its index is named, live or obsolete (F50)")
	}
	mustApply(t, s, StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(1000)}))
	mustApply(t, s, ForgetObsolete(1, obsoleteIDs(s)))
	require.ErrorIs(t, first.Edit().Apply(s), ErrGone, "collected: of no use, and it harms nothing")
	require.ErrorIs(t, second.Edit().Apply(s), ErrGone)

	// The same index under the id of another group is in force, too (F22).
	again := both
	again.Output = proto.CloneOf(both.Output)
	again.Output.Id = id16(99)
	require.ErrorIs(t, again.Edit().Apply(s), ErrApplied)

	// In the middle, with others before and behind.
	for n := range 3 {
		mustApply(t, s, x.regroup(t, s, 30+n, len(s.Groups), len(s.Groups), 1).Edit())
	}
	require.Len(t, s.Groups, 4)
	middle := x.regroup(t, s, 40, 1, 3, 0)
	mustApply(t, s, middle.Edit())
	require.Equal(t, [][]byte{id16(22), id16(40), id16(32)}, groupIDs(s))
	mustApply(t, s, x.regroup(t, s, 41, 0, 3, 1).Edit())
	require.Equal(t, [][]byte{id16(41)}, groupIDs(s))
	require.Equal(t, uint32(8), s.Groups[0].Segments)
	require.Len(t, s.Segments, 1, "the active segment")

	// The log goes on: a flush, a seal, and after a clean close, too (the writer is not concerned).
	f := flushAt(1, 10, 11, 10, 90, 100)
	f.Segment, f.Seal = 9, &Seal{TimeMs: 200}
	mustApply(t, s, f.Edit())
	c := compact(s, 50, 9, 9, 0, 2)
	mustApply(t, s, c.Edit(), CloseClean(1, 105, Pos{1, 11}, nil))
	mustApply(t, s, x.regroup(t, s, 51, 0, 1, 1).Edit())
	require.Equal(t, uint64(105), s.GetCleanNext())
	// A compaction whose output was moved to a group since. Only the index knows.
	require.ErrorIs(t, c.Edit().Apply(s), ErrGone)
}

func groupIDs(s *State) (ids [][]byte) {
	for _, g := range s.Groups {
		ids = append(ids, g.Id)
	}
	return ids
}

// What a regroup refuses leaves the state as it was.
func TestRegroupPreconditions(t *testing.T) {
	for _, c := range []struct {
		name               string
		from, to, segments int
		change             func(s *State, r *Regroup)
		is                 error // nil: none of the errors that callers tell apart
		text               string
	}{
		{"passed epoch", 0, 2, 0, func(s *State, r *Regroup) { s.Compactor.Epoch++ }, ErrFenced, "compactor epoch is 2, mine is 1"},
		{"nothing", 0, 1, 0, func(_ *State, r *Regroup) { r.Groups = nil }, nil, "group of nothing"},
		{"no output", 0, 2, 0, func(_ *State, r *Regroup) { r.Output = nil }, nil, "without an output"},
		{"no index", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Index = nil }, nil, "index: reference is missing"},
		{"F52 index of a passed epoch", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Index.Epoch = 0 }, nil, "by the compactor of epoch 1"},
		{"index by a writer", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Index.Role = Role_ROLE_WRITER }, nil, "by the compactor of"},
		{"index of another tree", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Index.Tree++ }, nil, "index of tree 7"},
		{"output is a table", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Index.Kind = Kind_KIND_SST }, nil, "is not an index"},
		{"output has an input's id", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Id = id16(21) }, nil, "id of its input"},
		{"output keeps an index", 0, 2, 0, func(s *State, r *Regroup) { r.Output.Index = s.Groups[1].Index }, nil, "of its input"},
		{"first group is gone", 0, 2, 0, func(s *State, _ *Regroup) { s.Groups = s.Groups[1:] }, ErrGone, "group "},
		{"last group is gone", 0, 2, 0, func(s *State, _ *Regroup) { s.Groups[1].Id = id16(99) }, ErrGone, "group "},
		{"group was trimmed", 0, 2, 0, func(s *State, _ *Regroup) { s.Groups[0].FirstSegment = 2 }, ErrGone, "has segments [2, 3], had [1, 3]"},
		{"group ends elsewhere", 0, 2, 0, func(s *State, _ *Regroup) { s.Groups[1].LastSegment = 4 }, ErrGone, "has segments [4, 4], had [4, 5]"},
		{"I5 not neighbours", 0, 3, 0, func(_ *State, r *Regroup) { r.Groups = slices.Delete(r.Groups, 1, 2) }, nil, "does not follow"},
		{"I5 not in order", 0, 2, 0, func(_ *State, r *Regroup) { slices.Reverse(r.Groups) }, nil, "does not follow"},
		{"group named twice", 0, 2, 0, func(_ *State, r *Regroup) { r.Groups[1] = r.Groups[0] }, nil, "does not follow"},
		{"I5 a group between", 2, 3, 1, func(_ *State, r *Regroup) { r.Groups[0] = GroupRef{id16(21), 4, 5} }, nil, "groups lie between the inputs and segment 7"},
		{"segment is gone", 2, 3, 2, func(s *State, _ *Regroup) { s.Segments = s.Segments[1:] }, ErrGone, "segment 7: "},
		{"I5 segment passed over", 2, 3, 2, func(_ *State, r *Regroup) { r.Segments = r.Segments[1:] }, nil, "segment 8 is not the first"},
		{"I5 segments not in order", 2, 3, 2, func(_ *State, r *Regroup) { slices.Reverse(r.Segments) }, nil, "segment 8 is not the first"},
		{"active segment", 2, 3, 2, func(_ *State, r *Regroup) { r.Segments = append(r.Segments, SegmentRef{9, id16(9)}) }, nil, "segment 9 is active"},
		{"other run", 2, 3, 2, func(s *State, _ *Regroup) { s.Segments[0].Runs[0].Id = id16(99) }, ErrGone, "of segment 7"},
		{"merged", 2, 3, 2, func(s *State, _ *Regroup) { mustApply(t, s, compact(s, 90, 7, 8, 0, 2).Edit()) }, ErrGone, "of segment 7"},
		{"not consolidated", 2, 3, 2, func(s *State, _ *Regroup) { s.Segments[1].Runs = append(s.Segments[1].Runs, run(99, 80, 81)) }, ErrGone, "of segment 8"},
		{"F27 a segment is missing", 2, 3, 2, func(s *State, r *Regroup) { r.Segments = r.Segments[:1] }, nil, "inputs are 2 segments 6 to 7"},
		{"F27 records", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Records-- }, nil, "the output"},
		{"F27 bytes", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Bytes++ }, nil, "the output"},
		{"F27 stored", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.StoredBytes++ }, nil, "the output"},
		{"F27 tables", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Tables++ }, nil, "the output"},
		{"F27 segments", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.Segments-- }, nil, "the output"},
		{"F27 first segment", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.FirstSegment++ }, nil, "the output"},
		{"F27 last segment", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.LastSegment-- }, nil, "the output"},
		{"F27 window", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.FirstSequence++ }, nil, "the output"},
		{"F27 end", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.EndSequence-- }, nil, "the output"},
		{"F17 start time", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.StartTimeMs++ }, nil, "the output"},
		{"F17 first seal time", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.FirstSealTimeMs++ }, nil, "the output"},
		{"F17 last seal time", 0, 2, 0, func(_ *State, r *Regroup) { r.Output.LastSealTimeMs-- }, nil, "the output"},
		{"totals that do not fit", 0, 2, 0, func(s *State, _ *Regroup) { s.Groups[0].Bytes = 1<<64 - 1 }, nil, "too large to count"},
		{"too many segments", 0, 2, 0, func(s *State, _ *Regroup) { s.Groups[0].Segments = MaxGroupSegments }, nil, "more than 64 segments"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, x := groupedState(t)
			r := x.regroup(t, s, 30, c.from, c.to, c.segments)
			c.change(s, &r)
			before := clone(s)
			err := r.Edit().Apply(s)
			require.ErrorContains(t, err, c.text)
			for _, e := range []error{ErrGone, ErrFenced, ErrApplied} {
				require.Equal(t, e == c.is, errors.Is(err, e), "%v", err)
			}
			requireEqual(t, before, s)
		})
	}
}

// Whole groups go with two entries each: their tables, and the index, which goes last.
func TestDropGroups(t *testing.T) {
	s, x := groupedState(t)
	was := clone(s)
	e := DropSegments(1, 5, nil)
	mustApply(t, s, e)
	want := clone(was)
	want.Groups = want.Groups[2:]
	for i, segments := range []segmentRange{{1, 3}, {4, 5}} {
		g := was.Groups[i]
		want.Obsolete = append(want.Obsolete,
			&Obsolete{Ref: g.Index, SegmentsOnly: true, FirstSegment: segments.first, LastSegment: segments.last, Size: g.StoredBytes},
			&Obsolete{Ref: g.Index, Size: g.IndexSize})
	}
	requireEqual(t, want, s)
	require.ErrorIs(t, e.Apply(s), ErrApplied)
	require.ErrorIs(t, DropSegments(1, 4, x.trim(t, was.Groups[1], 4)).Apply(s), ErrApplied)

	// A group and a segment at once, then all but the active one.
	mustApply(t, s, DropSegments(1, 7, nil))
	require.Empty(t, s.Groups)
	require.Equal(t, uint32(8), s.Segments[0].Id)
	mustApply(t, s, DropSegments(1, 8, nil))
	require.Len(t, s.Obsolete, 4+2+2)
	require.ErrorContains(t, DropSegments(1, 9, nil).Apply(s), "segment 9 is active")
}

// A group that a drop cuts keeps the newer segments.
func TestDropPartOfAGroup(t *testing.T) {
	s, x := groupedState(t)
	was := clone(s)
	s.Groups[0].ProtoReflect().SetUnknown([]byte{0x98, 0x3f, 1}) // since it was planned
	trimmed := x.trim(t, was.Groups[0], 1)
	e := DropSegments(1, 1, trimmed)
	mustApply(t, s, e)
	want := clone(was)
	want.Groups[0] = proto.CloneOf(trimmed)
	want.Groups[0].ProtoReflect().SetUnknown([]byte{0x98, 0x3f, 1})
	want.Obsolete = []*Obsolete{{Ref: trimmed.Index, SegmentsOnly: true, FirstSegment: 1, LastSegment: 1, Size: 1000}}
	requireEqual(t, want, s)
	require.ErrorIs(t, e.Apply(s), ErrApplied)
	require.Equal(t, uint64(10), s.Groups[0].FirstSequence)
	require.NoError(t, x[trimmed.Index.ID()].opened.Check(s.Groups[0]))

	// Whole groups before the cut one, in one edit. The range of the earlier drop stays.
	e = DropSegments(1, 4, x.trim(t, was.Groups[1], 4))
	mustApply(t, s, e)
	require.Equal(t, [][]byte{id16(21), id16(22)}, groupIDs(s))
	require.Equal(t, []segmentRange{{1, 1}, {2, 3}, {0, 0}, {4, 4}}, ranges(s))
	require.ErrorIs(t, e.Apply(s), ErrApplied)
	mustApply(t, s, DropSegments(1, 8, nil))
	require.Equal(t, []segmentRange{{1, 1}, {2, 3}, {0, 0}, {4, 4}, {5, 5}, {0, 0}, {6, 6}, {0, 0}, {0, 0}, {0, 0}}, ranges(s))
	size := uint64(0)
	for _, o := range s.Obsolete {
		if o.SegmentsOnly || o.Ref.Kind == Kind_KIND_SST {
			size += o.Size
		}
	}
	require.Equal(t, uint64(8000), size, "each table is counted once")
}

// ranges are the segments of the obsolete entries; zero for whole objects.
func ranges(s *State) (out []segmentRange) {
	for _, o := range s.Obsolete {
		out = append(out, segmentRange{o.FirstSegment, o.LastSegment})
	}
	return out
}

// Two trims that were planned on the same state: in either order nothing is dropped twice, and
// nothing is forgotten.
func TestConcurrentTrims(t *testing.T) {
	for _, newerFirst := range []bool{false, true} {
		s, x := groupedState(t)
		g := clone(s).Groups[0]
		one, two := DropSegments(1, 1, x.trim(t, g, 1)), DropSegments(1, 2, x.trim(t, g, 2))
		if newerFirst {
			mustApply(t, s, two)
			require.ErrorIs(t, one.Apply(s), ErrApplied)
			require.Equal(t, []segmentRange{{1, 2}}, ranges(s))
			require.Equal(t, uint64(2000), s.Obsolete[0].Size)
		} else {
			mustApply(t, s, one, two)
			require.Equal(t, []segmentRange{{1, 1}, {2, 2}}, ranges(s))
			require.Equal(t, uint64(1000), s.Obsolete[1].Size)
		}
		require.Equal(t, uint32(3), s.Groups[0].FirstSegment)
		require.NoError(t, x[g.Index.ID()].opened.Check(s.Groups[0]))
		require.ErrorIs(t, two.Apply(s), ErrApplied)
		// A drop of the whole group that was planned before both.
		mustApply(t, s, DropSegments(1, 3, nil))
		require.Equal(t, segmentRange{3, 3}, ranges(s)[len(s.Obsolete)-2])
	}
}

// A drop that cuts a group needs the right line of that very group.
func TestDropPartOfAGroupPreconditions(t *testing.T) {
	for _, c := range []struct {
		name   string
		upTo   uint32
		change func(s *State, x shelf, trimmed **Group)
		is     error
		text   string
	}{
		{"no line", 1, func(_ *State, _ shelf, tr **Group) { *tr = nil }, ErrGone, "no trimmed line"},
		{"line of another group", 1, func(s *State, x shelf, tr **Group) { *tr = x.trim(t, s.Groups[1], 4) }, ErrGone, "lie in group"},
		{"regrouped", 1, func(s *State, x shelf, _ **Group) { mustApply(t, s, x.regroup(t, s, 30, 0, 2, 0).Edit()) }, ErrGone, "lie in group"},
		{"closed", 1, func(s *State, _ shelf, _ **Group) { mustApply(t, s, CloseClean(1, 90, Pos{1, 11}, nil)) }, ErrCleanlyClosed, ""},
		{"passed epoch", 1, func(s *State, _ shelf, _ **Group) { s.Writer.Epoch++ }, ErrFenced, ""},
		{"nothing to do", 0, func(_ *State, _ shelf, _ **Group) {}, ErrApplied, ""},
		{"trimmed too little", 2, func(_ *State, _ shelf, _ **Group) {}, nil, "begins with segment 2"},
		{"not trimmed", 1, func(s *State, _ shelf, tr **Group) { *tr = s.Groups[0] }, nil, "begins with segment 1"},
		{"nothing left", 1, func(_ *State, _ shelf, tr **Group) { (*tr).FirstSegment = 4 }, nil, "begins with segment 4"},
		{"window", 1, func(_ *State, _ shelf, tr **Group) { (*tr).FirstSequence = 0 }, nil, "begins with segment 2 at 0"},
		{"other last segment", 1, func(_ *State, _ shelf, tr **Group) { (*tr).LastSegment = 4 }, nil, "ends elsewhere"},
		{"other end", 1, func(_ *State, _ shelf, tr **Group) { (*tr).EndSequence++ }, nil, "ends elsewhere"},
		{"younger", 1, func(_ *State, _ shelf, tr **Group) { (*tr).LastSealTimeMs++ }, nil, "ends elsewhere"},
		{"other index", 1, func(_ *State, _ shelf, tr **Group) { (*tr).Index.Epoch++ }, nil, "of another index"},
		{"other size", 1, func(_ *State, _ shelf, tr **Group) { (*tr).IndexSize++ }, nil, "of another index"},
		{"other shards", 1, func(_ *State, _ shelf, tr **Group) { (*tr).ShardBytes++ }, nil, "of another index"},
		{"as many segments", 1, func(_ *State, _ shelf, tr **Group) { (*tr).Segments++ }, nil, "trimmed group has"},
		{"as many tables", 1, func(_ *State, _ shelf, tr **Group) { (*tr).Tables++ }, nil, "trimmed group has"},
		{"as many records", 1, func(_ *State, _ shelf, tr **Group) { (*tr).Records += 10 }, nil, "trimmed group has"},
		{"more bytes", 1, func(_ *State, _ shelf, tr **Group) { (*tr).Bytes = 601 }, nil, "trimmed group has"},
		{"as large", 1, func(_ *State, _ shelf, tr **Group) { (*tr).StoredBytes = 3000 }, nil, "trimmed group has"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, x := groupedState(t)
			trimmed := x.trim(t, s.Groups[0], 1)
			c.change(s, x, &trimmed)
			before := clone(s)
			err := DropSegments(1, c.upTo, trimmed).Apply(s)
			require.ErrorContains(t, err, c.text)
			for _, e := range []error{ErrGone, ErrFenced, ErrApplied, ErrCleanlyClosed} {
				require.Equal(t, e == c.is, errors.Is(err, e), "%v", err)
			}
			requireEqual(t, before, s)
		})
	}
}

// A drop and a regroup of the same segments: who comes second is planned anew (F23).
func TestRegroupAndDropRace(t *testing.T) {
	for _, segments := range []int{0, 2} { // of the state, behind the groups
		s, x := groupedState(t)
		r := x.regroup(t, s, 30, 0, 3, segments)
		cut, whole := DropSegments(1, 2, x.trim(t, s.Groups[0], 2)), DropSegments(1, 5, nil)

		// The drop comes first.
		for _, drop := range []Edit{cut, whole} {
			dropped := clone(s)
			mustApply(t, dropped, drop)
			before := clone(dropped)
			require.ErrorIs(t, r.Edit().Apply(dropped), ErrGone)
			requireEqual(t, before, dropped)
			require.NotContains(t, NamedObjects(dropped), r.Output.Index.ID(), "the collector sweeps it")
		}
		// The regroup comes first: both need a line of the new group.
		mustApply(t, s, r.Edit())
		before := clone(s)
		for _, drop := range []Edit{cut, whole} {
			require.ErrorIs(t, drop.Apply(s), ErrGone)
			requireEqual(t, before, s)
		}
		mustApply(t, s, DropSegments(1, 5, x.trim(t, s.Groups[0], 5)))
		require.Equal(t, uint32(6), s.Groups[0].FirstSegment)
		require.Equal(t, []segmentRange{{0, 0}, {0, 0}, {0, 0}, {1, 5}}, ranges(s))
		require.ErrorIs(t, cut.Apply(s), ErrApplied)
		require.ErrorIs(t, whole.Apply(s), ErrApplied)
	}
}

// A segment is dropped that a regroup, which was planned before, would move to a group.
func TestSegmentDroppedBeforeItsGroup(t *testing.T) {
	s, x := finishedState(t)
	r := x.regroup(t, s, 30, 0, 0, 3)
	mustApply(t, s, DropSegments(1, 1, nil))
	require.ErrorIs(t, r.Edit().Apply(s), ErrGone)
	// Merged segments are dropped from a group by the id of their newest part.
	mustApply(t, s, compact(s, 90, 2, 4, 0, 3).Edit())
	mustApply(t, s, x.regroup(t, s, 31, 0, 0, 2).Edit())
	g := s.Groups[0]
	require.Equal(t, []uint32{2, 5, 2}, []uint32{g.FirstSegment, g.LastSegment, g.Segments})
	for _, upTo := range []uint32{2, 3} {
		require.ErrorIs(t, DropSegments(1, upTo, nil).Apply(s), ErrGone)
	}
	mustApply(t, s, DropSegments(1, 4, x.trim(t, g, 4)))
	require.Equal(t, segmentRange{2, 4}, ranges(s)[len(s.Obsolete)-1])
}

// The end of an index: each range of its segments is deleted and forgotten, then the index.
func TestAnIndexGoesLast(t *testing.T) {
	s, x := groupedState(t)
	index := s.Groups[0].Index.ID()
	mustApply(t, s, DropSegments(1, 1, x.trim(t, s.Groups[0], 1)))
	mustApply(t, s, x.regroup(t, s, 30, 0, 2, 0).Edit()) // the old index is obsolete, its range stays
	require.Equal(t, []segmentRange{{1, 1}, {0, 0}, {0, 0}}, ranges(s))
	mustApply(t, s, DropSegments(1, 2, x.trim(t, s.Groups[0], 2)))

	forget := ForgetSegments(1, index, 1, 1)
	refused := func(e Edit, text string) {
		t.Helper()
		before := clone(s)
		err := e.Apply(s)
		require.ErrorContains(t, err, text)
		require.NotErrorIs(t, err, ErrApplied)
		requireEqual(t, before, s)
	}
	refused(forget, "segments 1 to 1 were deleted before their grace period began")
	mustApply(t, s, StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(1000)}))
	require.False(t, HasUnstamped(s))
	refused(ForgetObsolete(1, []base.ObjectID{index}), "was deleted before its segments [1, 1]")
	refused(ForgetObsolete(1, obsoleteIDs(s)), "was deleted before its segments")
	require.Contains(t, NamedObjects(s), index)

	for _, e := range []Edit{
		ForgetSegments(1, index, 1, 2), ForgetSegments(1, index, 0, 0), ForgetSegments(1, index, 2, 2),
		ForgetSegments(1, s.Groups[0].Index.ID(), 1, 1),
	} {
		require.ErrorIs(t, e.Apply(s), ErrApplied, "there is no such entry")
	}
	for _, epoch := range []uint64{0, 2} {
		require.ErrorIs(t, ForgetSegments(epoch, index, 1, 1).Apply(s), ErrFenced, "before anything else")
	}
	mustApply(t, s, CloseClean(1, 92, Pos{1, 11}, nil), forget)
	require.Equal(t, uint64(92), s.GetCleanNext())
	require.ErrorIs(t, forget.Apply(s), ErrApplied)
	mustApply(t, s, ForgetObsolete(1, []base.ObjectID{index}))
	require.NotContains(t, NamedObjects(s), index)
	require.Equal(t, []segmentRange{{0, 0}, {2, 2}}, ranges(s))
}

// F50: a regroup's commit is applied, its answer lost, and other commits have followed, even ones that made its
// index obsolete.
func TestF50LostAnswerOfARegroup(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			env := testEnv(1)
			inner, _ := newLog(t, env)
			var follow func()
			store := fault.New(inner, fault.OnKind(fault.Put, func(context.Context, fault.Op) fault.Plan {
				if follow == nil {
					return fault.Plan{}
				}
				f := follow
				follow = nil
				return fault.Plan{After: func(context.Context) error { f(); return fault.ErrInjected }}
			}))
			p := openPair(t, env, inner, store, nil)
			for n := uint64(1); n <= 3; n++ {
				f := flushAt(1, n, n+1, int(n), n*10-10, n*10)
				f.Segment, f.Seal = uint32(n), &Seal{TimeMs: int64(n)}
				commit(t, p.writer, f.Edit())
			}
			x := shelf{}
			r := x.regroup(t, refresh(t, p.compactor).State, 20, 0, 0, 2)
			follow = func() {
				opts := CommitterOptions{Store: inner, Env: env, Start: load(t, inner, env)}
				next := DropSegments(1, 1, x.trim(t, opts.Start.State.Groups[0], 1))
				if again {
					next = x.regroup(t, opts.Start.State, 21, 0, 1, 1).Edit()
				}
				_, err := CommitOne(t.Context(), opts, next)
				require.NoError(t, err)
			}
			snap := commit(t, p.compactor, r.Edit())
			require.Contains(t, NamedObjects(snap.State), r.Output.Index.ID())
			require.Equal(t, again, snap.State.Groups[0].Segments == 3)
		})
	}
}
