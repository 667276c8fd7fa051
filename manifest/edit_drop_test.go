package manifest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

func TestDropSegments(t *testing.T) {
	s := agedState(t)
	old := clone(s)
	e := DropSegments(1, 2, nil)
	mustApply(t, s, e)
	want := clone(old)
	want.Segments = want.Segments[2:]
	for _, n := range []int{0, 1, 3} { // of segments 1 and 2; run 3 is a gap
		r := old.Segments[n/2].Runs[n%2]
		want.Obsolete = append(want.Obsolete, &Obsolete{Ref: r.Tables[0].Ref, Size: 1000})
	}
	requireEqual(t, want, s)
	require.ErrorIs(t, e.Apply(s), ErrApplied)
	require.ErrorIs(t, DropSegments(1, 1, nil).Apply(s), ErrApplied)

	// Everything but the active segment; the log goes on.
	mustApply(t, s, DropSegments(1, 3, nil))
	require.Len(t, s.Segments, 1)
	f := flushAt(1, 10, 11, 10, 90, 100)
	f.Segment, f.Seal = 4, &Seal{TimeMs: 200}
	mustApply(t, s, f.Edit(), DropSegments(1, 4, nil))
	requireEqual(t, &Segment{Id: 5, FirstSequence: 100}, s.Segments[0])
	require.ErrorIs(t, DropSegments(1, 4, nil).Apply(s), ErrApplied)
}

func TestDropSegmentsPreconditions(t *testing.T) {
	merge := func(first, last uint32, runs int) func(s *State) {
		return func(s *State) { mustApply(t, s, compact(s, 20, first, last, 0, runs).Edit()) }
	}
	for _, x := range []struct {
		name   string
		change func(s *State)
		epoch  uint64
		upTo   uint32
		is     error
		text   string
	}{
		{"passed epoch", nil, 0, 1, ErrFenced, ""},
		{"passed epoch, nothing to do", nil, 2, 0, ErrFenced, ""},
		{"nothing to do", nil, 1, 0, ErrApplied, ""},
		{"active", nil, 1, 4, nil, "segment 4 is active"},
		{"beyond the active", nil, 1, math.MaxUint32, nil, "segment 4 is active"},
		{"F23 merged with newer ones", merge(1, 3, 6), 1, 2, ErrGone, "segment 1 was merged with those up to 3"},
		{"F23 the last of two merged", merge(2, 3, 4), 1, 2, ErrGone, "segment 2 was merged with those up to 3"},
		{"closed", func(s *State) { mustApply(t, s, CloseClean(1, 90, Pos{1, 11}, nil)) }, 1, 1, ErrCleanlyClosed, ""},
		{"closed, nothing to do", func(s *State) { mustApply(t, s, CloseClean(1, 90, Pos{1, 11}, nil)) }, 1, 0, ErrApplied, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := agedState(t)
			if x.change != nil {
				x.change(s)
			}
			before := clone(s)
			err := DropSegments(x.epoch, x.upTo, nil).Apply(s)
			require.ErrorContains(t, err, x.text)
			if x.is != nil {
				require.ErrorIs(t, err, x.is)
			} else {
				for _, e := range []error{ErrGone, ErrFenced, ErrApplied} {
					require.NotErrorIs(t, err, e)
				}
			}
			requireEqual(t, before, s)
		})
	}
}

// A merged segment is dropped by the id of its newest part.
func TestDropMergedSegments(t *testing.T) {
	s := agedState(t)
	mustApply(t, s, compact(s, 20, 1, 2, 0, 4).Edit())
	mustApply(t, s, DropSegments(1, s.Segments[0].Last(), nil))
	require.Equal(t, uint32(3), s.Segments[0].Id)
	require.Len(t, s.Obsolete, 3+2, "inputs and outputs")
}

// stamped is a state of which segment 1 was dropped, and everything obsolete has a stamp.
func stamped(t *testing.T) *State {
	s := agedState(t)
	mustApply(t, s, DropSegments(1, 1, nil))
	mustApply(t, s, StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(1000)}))
	return s
}

func TestForgetObsolete(t *testing.T) {
	s := stamped(t)
	first, second := s.Obsolete[0].Ref.ID(), s.Obsolete[1].Ref.ID()
	deleted := []base.ObjectID{first, {}, s.Segments[0].Runs[1].Tables[0].Ref.ID()}
	e := ForgetObsolete(1, deleted)
	deleted[0] = second // the edit has a copy
	want := clone(s)
	want.Obsolete = want.Obsolete[1:]
	mustApply(t, s, e)
	requireEqual(t, want, s)
	require.ErrorIs(t, e.Apply(s), ErrApplied)
	require.ErrorIs(t, ForgetObsolete(1, nil).Apply(s), ErrApplied)
	// Partly forgotten already: what is left goes.
	mustApply(t, s, ForgetObsolete(1, []base.ObjectID{first, second}))
	require.Empty(t, s.Obsolete)

	// After a clean close too, which it leaves as it is.
	s = stamped(t)
	mustApply(t, s, CloseClean(1, 92, Pos{1, 11}, nil), e)
	require.Equal(t, uint64(92), s.GetCleanNext())

	for _, epoch := range []uint64{0, 2} {
		require.ErrorIs(t, ForgetObsolete(epoch, nil).Apply(s), ErrFenced, "before anything else")
	}
}

// F51: an object whose grace period has not begun cannot have been deleted: neither it nor
// anything named with it is forgotten.
func TestF51NothingUnstampedIsForgotten(t *testing.T) {
	s := stamped(t)
	mustApply(t, s, DropSegments(1, 2, nil))
	before := clone(s)
	err := ForgetObsolete(1, obsoleteIDs(s)).Apply(s)
	require.ErrorContains(t, err, "was deleted before its grace period began")
	require.NotErrorIs(t, err, ErrApplied)
	requireEqual(t, before, s)
}

// F51: what became obsolete after a version was read is not stamped with that version's time,
// whoever put it there, and a stamp is never changed.
func TestF51LaterEntriesWaitForALaterStamp(t *testing.T) {
	s := agedState(t)
	mustApply(t, s, DropSegments(1, 1, nil))
	early := StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(1000)})
	mustApply(t, s, compact(s, 20, 4, 4, 0, 2).Edit(), DropSegments(1, 2, nil))
	late := StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(2000)})
	mustApply(t, s, early)
	for i, o := range s.Obsolete {
		require.Equal(t, i < 2, o.SinceMs == 1000, "entry %d", i)
		require.Equal(t, i >= 2, o.SinceMs == 0, "entry %d", i)
	}
	mustApply(t, s, late)
	require.False(t, HasUnstamped(s))
	require.Equal(t, int64(1000), s.Obsolete[1].SinceMs)
	require.Equal(t, int64(2000), s.Obsolete[2].SinceMs)
	require.ErrorIs(t, early.Apply(s), ErrApplied)
	require.ErrorIs(t, late.Apply(s), ErrApplied)
}

// Entries that mean ranges of segments stay, and their index cannot go before them.
func TestForgetLeavesRangesOfSegments(t *testing.T) {
	s := richState()
	s.CleanNext = nil
	ranges, index := s.Obsolete[1], s.Obsolete[2]
	before := clone(s)
	require.ErrorContains(t, ForgetObsolete(3, []base.ObjectID{ranges.Ref.ID()}).Apply(s), "was deleted before its segments [1, 1]")
	requireEqual(t, before, s)
	mustApply(t, s, ForgetObsolete(3, []base.ObjectID{index.Ref.ID()}))
	require.Len(t, s.Obsolete, 2)
	requireEqual(t, ranges, s.Obsolete[1])
}

func TestNamedObjects(t *testing.T) {
	s := richState()
	want := map[base.ObjectID]struct{}{}
	for kind, ns := range map[base.Kind][]int{
		base.KindSST:   {21, 22, 23, 24, 26, 40},
		base.KindIndex: {10, 11, 41},
		base.KindState: {30, 32},
		base.KindPin:   {31},
	} {
		for _, n := range ns {
			want[ref(kind, n).ID()] = struct{}{}
		}
	}
	require.Equal(t, want, NamedObjects(s))
	s.State, s.StateChanges, s.StatePosition = nil, nil, nil
	s.StateSize, s.StateChangesSize = 0, 0
	delete(want, ref(base.KindState, 30).ID())
	delete(want, ref(base.KindState, 32).ID())
	require.Equal(t, want, NamedObjects(s))
	require.Empty(t, NamedObjects(emptyState(testEnv(1), 0)))

	// An index that is obsolete, with some of its segments.
	s.Groups = nil
	s.Obsolete = append(s.Obsolete, &Obsolete{Ref: ref(base.KindIndex, 10)})
	require.NoError(t, Validate(s))
	require.Contains(t, NamedObjects(s), ref(base.KindIndex, 10).ID())
	require.NotContains(t, NamedObjects(s), ref(base.KindIndex, 11).ID())
}

// largeState has n live and n/10 obsolete tables in sealed segments of 64 tables.
func largeState(t testing.TB, n int) *State {
	s := openState(t)
	s.Segments = nil
	seq := uint64(0)
	for i := 0; i < n; {
		g := &Segment{Id: uint32(len(s.Segments) + 1), FirstSequence: seq, Sealed: true, SealTimeMs: 1}
		r := &Run{Id: id16(n + i), Start: seq, End: seq + 1000}
		for range 64 {
			tb := table(i, seq, seq)
			tb.LowerKey, tb.UpperKey = []byte("k"), []byte("k")
			r.Tables = append(r.Tables, tb)
			if i%10 == 0 {
				s.Obsolete = append(s.Obsolete, obsoleteObject(10*n+i))
			}
			i++
		}
		seq += 1000
		g.EndSequence, g.Runs = seq, []*Run{r}
		s.Segments = append(s.Segments, g)
	}
	s.Segments = append(s.Segments, &Segment{Id: uint32(len(s.Segments) + 1), FirstSequence: seq})
	s.FlushedEnd, s.LastTimestampMs = seq, 20
	require.NoError(t, Validate(s))
	return proto.CloneOf(s)
}

func BenchmarkNamedObjects100k(b *testing.B) {
	s := largeState(b, 100_000)
	for b.Loop() {
		NamedObjects(s)
	}
}

// The edit alone, without the clone and the validation that every commit pays.
func BenchmarkCompaction100k(b *testing.B) {
	s := largeState(b, 100_000)
	c := compact(s, 1<<30, 1, 16, 0, 16)
	for b.Loop() {
		b.StopTimer()
		next := clone(s)
		b.StartTimer()
		require.NoError(b, c.Edit().Apply(next))
	}
}
