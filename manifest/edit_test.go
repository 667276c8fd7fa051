package manifest

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// openState is a tree whose first writer (epoch 1) has just opened.
func openState(t testing.TB) *State {
	s := emptyState(testEnv(1), 7)
	mustApply(t, s, OpenWriter(0, owner(1)), OpenCompactor(0, owner(2)))
	return s
}

func TestFirstOpen(t *testing.T) {
	s := openState(t)
	require.Equal(t, uint64(1), s.Writer.Epoch)
	require.Equal(t, id16(1), s.Writer.Id)
	require.Equal(t, Pos{1, 1}, s.Position.Pos(), "no epoch below is left to be fenced")
	require.Equal(t, uint64(0), OpenedNext(s))
	require.Equal(t, uint64(SeqReserve), s.SeqLimit)
	require.Equal(t, uint64(1), s.CompactorBeat)
}

// F46: unclean opens in a row never reach the same sequence; the limit is read, not
// computed from what was recovered.
func TestF46UncleanOpensNeverReuseSequences(t *testing.T) {
	s := openState(t)
	mustApply(t, s, flushAt(1, 1, 2, 1, 0, 10).Edit())
	for epoch := uint64(1); epoch < 5; epoch++ {
		limit := s.SeqLimit
		mustApply(t, s, OpenWriter(epoch, owner(int(epoch)+1)))
		require.Equal(t, limit, OpenedNext(s))
		require.Equal(t, limit+SeqReserve, s.SeqLimit)
	}
	require.Equal(t, uint64(10), s.FlushedEnd)
	// The gap belongs to the next run.
	next := OpenedNext(s)
	f := flushAt(5, 1, 2, 2, 10, next+3)
	f.From = Pos{1, 2}
	f.Run.Tables[0] = table(2, next, next+2)
	mustApply(t, s, f.Edit())
}

// F53: the clean mark is used once; the open that used it drops it.
func TestF53CleanMarkIsDroppedByTheOpen(t *testing.T) {
	s := openState(t)
	mustApply(t, s, flushAt(1, 1, 2, 1, 0, 10).Edit(), CloseClean(1, 12, Pos{1, 4}, nil))
	require.Equal(t, Pos{1, 4}, s.Position.Pos())
	mustApply(t, s, OpenWriter(1, owner(2)))
	require.Nil(t, s.CleanNext)
	require.Equal(t, uint64(12), OpenedNext(s))
	require.Equal(t, uint64(12+SeqReserve), s.SeqLimit)
	mustApply(t, s, OpenWriter(2, owner(3)))
	require.Equal(t, uint64(12+SeqReserve), OpenedNext(s), "the second open was after a crash")
}

func TestFlush(t *testing.T) {
	s := openState(t)
	f := flushAt(1, 1, 3, 1, 0, 10)
	f.Next = 100
	mustApply(t, s, f.Edit())
	g := s.Segments[0]
	require.Equal(t, Pos{1, 3}, s.Position.Pos())
	require.Equal(t, uint64(10), s.FlushedEnd)
	require.Equal(t, uint64(100+SeqReserve), s.SeqLimit)
	require.Equal(t, int64(10), g.StartTimeMs)
	require.Equal(t, int64(20), s.LastTimestampMs)
	require.Len(t, g.Runs, 1)

	// A gap only: no tables, timestamps stay.
	gap := flushAt(1, 3, 4, 2, 10, 20)
	gap.Run.Tables, gap.LastTimestampMs, gap.SegmentStartMs = nil, 0, 0
	mustApply(t, s, gap.Edit())
	require.Equal(t, int64(20), s.LastTimestampMs)
	require.Equal(t, int64(10), g.StartTimeMs)

	// With a seal: nothing of the old segment is unflushed (I6).
	last := flushAt(1, 4, 5, 3, 20, 30)
	last.Seal, last.SegmentStartMs = &Seal{TimeMs: 777}, 15
	mustApply(t, s, last.Edit())
	require.True(t, g.Sealed)
	require.Equal(t, uint64(30), g.EndSequence)
	require.Equal(t, int64(777), g.SealTimeMs)
	require.Equal(t, int64(10), g.StartTimeMs, "of the first record")
	requireEqual(t, &Segment{Id: 2, FirstSequence: 30}, s.Segments[1])

	// The edit shares nothing with the state.
	s.Segments[0].Runs[2].Tables[0].Records = 12345
	require.Equal(t, uint64(10), last.Run.Tables[0].Records)
}

// Preconditions of every edit, on a tree at position (1, 3), flushed up to 10, segment
// 1 active, seq_limit 10 + 2^24.
func TestPreconditions(t *testing.T) {
	flush := func(change func(f *Flush)) Edit {
		f := flushAt(1, 3, 5, 2, 10, 20)
		change(&f)
		return f.Edit()
	}
	limit := uint64(10 + SeqReserve)
	for _, c := range []struct {
		name string
		edit Edit
		is   error  // nil: neither ErrApplied nor ErrFenced
		text string // in the error
	}{
		{"open: old epoch", OpenWriter(0, owner(1)), ErrApplied, ""},
		{"open: epoch taken by another id", OpenWriter(0, owner(9)), ErrFenced, "is 1, mine is 0"},
		{"open: epoch not reached", OpenWriter(2, owner(9)), ErrFenced, ""},
		{"open: no epochs", OpenWriter(math.MaxUint64, owner(9)), nil, "no writer epochs are left"},
		{"open compactor: applied", OpenCompactor(0, owner(2)), ErrApplied, ""},
		{"open compactor: another", OpenCompactor(0, owner(9)), ErrFenced, ""},
		{"beat: applied", Beat(1, 1), ErrApplied, ""},
		{"beat: fenced", Beat(2, 5), ErrFenced, ""},
		{"skip: applied", SkipTo(1, Pos{1, 2}, Pos{1, 4}, nil), ErrApplied, ""},
		{"skip: not there yet", SkipTo(1, Pos{1, 4}, Pos{1, 5}, nil), nil, "position is (1, 3)"},
		{"skip: backwards", SkipTo(1, Pos{1, 3}, Pos{1, 2}, nil), nil, "would not move"},
		{"skip: nowhere", SkipTo(1, Pos{1, 3}, Pos{1, 3}, nil), nil, "would not move"},
		{"skip: beyond the epoch", SkipTo(1, Pos{1, 3}, Pos{2, 1}, nil), nil, "not one that a writer of epoch 1 can reach"},
		{"skip: fenced", SkipTo(0, Pos{1, 2}, Pos{1, 4}, nil), ErrFenced, ""},
		{"limit: applied", RaiseLimit(1, limit), ErrApplied, ""},
		{"limit: fenced", RaiseLimit(3, limit+1), ErrFenced, ""},
		{"seal: other segment", SealSegment(1, 2, 10, 5), nil, "segment 1 is active, not 2"},
		{"seal: applied", SealSegment(1, 0, 10, 5), ErrApplied, ""},
		{"seal: not flushed that far", SealSegment(1, 1, 11, 5), nil, "flushed up to 10, not 11"},
		{"seal: flushed further", SealSegment(1, 1, 9, 5), nil, "flushed up to 10, not 9"},
		{"seal: fenced", SealSegment(2, 1, 10, 5), ErrFenced, ""},
		{"close: below flushed", CloseClean(1, 9, Pos{1, 3}, nil), nil, "is not within"},
		{"close: above the limit", CloseClean(1, limit+1, Pos{1, 3}, nil), nil, "is not within"},
		{"close: F9 backwards", CloseClean(1, 10, Pos{1, 2}, nil), nil, "would go back"},
		{"close: beyond the epoch", CloseClean(1, 10, Pos{2, 1}, nil), nil, "can reach"},
		{"close: fenced", CloseClean(2, 10, Pos{1, 3}, nil), ErrFenced, ""},
		{"flush: fenced", flush(func(f *Flush) { f.Epoch = 2 }), ErrFenced, ""},
		{"flush: applied", flush(func(f *Flush) { f.From = Pos{1, 2} }), ErrApplied, ""},
		{"flush: F54 too early", flush(func(f *Flush) { f.From = Pos{1, 4} }), nil, "an earlier flush is missing"},
		{"flush: F9 position back", flush(func(f *Flush) { f.To = Pos{1, 2} }), nil, "would not move forward"},
		{"flush: position stays", flush(func(f *Flush) { f.To = Pos{1, 3} }), nil, "would not move forward"},
		{"flush: beyond the epoch", flush(func(f *Flush) { f.To = Pos{2, 1} }), nil, "can reach"},
		{"flush: gap", flush(func(f *Flush) { f.Start = 11 }), nil, "flushed_end is 10"},
		{"flush: F9 overlap", flush(func(f *Flush) { f.Start = 9 }), nil, "flushed_end is 10"},
		{"flush: empty", flush(func(f *Flush) { f.End = 10 }), nil, "run is empty"},
		{"flush: next", flush(func(f *Flush) { f.Next = 19 }), nil, "below the run's end"},
		{"flush: I3 not reserved", flush(func(f *Flush) { f.End = limit + 1; f.Next = limit + 1 }), nil, "above seq_limit"},
		{"flush: no run", flush(func(f *Flush) { f.Run = nil }), nil, "without a run"},
		{"flush: I6 other segment", flush(func(f *Flush) { f.Segment = 2 }), nil, "segment 1 is active"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openState(t)
			mustApply(t, s, flushAt(1, 1, 3, 1, 0, 10).Edit())
			before := clone(s)
			err := c.edit.Apply(s)
			require.Error(t, err)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			} else {
				require.NotErrorIs(t, err, ErrApplied)
				require.NotErrorIs(t, err, ErrFenced)
			}
			require.ErrorContains(t, err, c.text)
			requireEqual(t, before, s)
		})
	}
}

func TestNothingFollowsACleanClose(t *testing.T) {
	s := openState(t)
	f := flushAt(1, 1, 3, 1, 0, 10).Edit()
	mustApply(t, s, f, CloseClean(1, 10, Pos{1, 4}, nil))
	for _, e := range []Edit{
		flushAt(1, 4, 5, 2, 10, 20).Edit(), SkipTo(1, Pos{1, 4}, Pos{1, 5}, nil), RaiseLimit(1, 1<<40),
		SealSegment(1, 1, 10, 5), CloseClean(1, 11, Pos{1, 4}, nil),
	} {
		require.ErrorIs(t, e.Apply(s), ErrCleanlyClosed, e.Name)
	}
	// What came before is still recognised.
	require.ErrorIs(t, f.Apply(s), ErrApplied)
	require.ErrorIs(t, CloseClean(1, 10, Pos{1, 4}, nil).Apply(s), ErrApplied)
}

func TestSealRefusesASegmentWithoutRecords(t *testing.T) {
	s := openState(t)
	require.ErrorContains(t, SealSegment(1, 1, 0, 5).Apply(s), "no record")
	gap := flushAt(1, 1, 2, 1, 0, 10)
	gap.Run.Tables = nil
	mustApply(t, s, gap.Edit())
	require.ErrorContains(t, SealSegment(1, 1, 10, 5).Apply(s), "no record")
	mustApply(t, s, flushAt(1, 2, 3, 2, 10, 20).Edit(), SealSegment(1, 1, 20, 5))
	require.ErrorIs(t, SealSegment(1, 1, 20, 5).Apply(s), ErrApplied)
}

func TestSequencesRunOut(t *testing.T) {
	s := openState(t)
	mustApply(t, s, RaiseLimit(1, math.MaxUint64-5))
	require.ErrorContains(t, OpenWriter(1, owner(3)).Apply(s), "no sequences are left")
	f := flushAt(1, 1, 2, 1, 0, 10)
	f.Next = math.MaxUint64 - 6
	mustApply(t, s, f.Edit())
	require.Equal(t, uint64(math.MaxUint64), s.SeqLimit)
}

// F49: a flush is recognised as applied even when its run was merged away.
func TestF49FlushWhoseRunWasMerged(t *testing.T) {
	s := openState(t)
	a, b := flushAt(1, 1, 2, 1, 0, 10), flushAt(1, 2, 3, 2, 10, 20)
	mustApply(t, s, a.Edit(), b.Edit())
	s.Segments[0].Runs = []*Run{run(3, 0, 20)}
	require.NoError(t, Validate(s))
	before := clone(s)
	require.ErrorIs(t, b.Edit().Apply(s), ErrApplied)
	require.ErrorIs(t, a.Edit().Apply(s), ErrApplied)
	requireEqual(t, before, s)
}

// F54: memtables frozen in order 1, 2 cannot be committed in order 2, 1.
func TestF54FlushesCommitInOrder(t *testing.T) {
	s := openState(t)
	first, second := flushAt(1, 1, 2, 1, 0, 10).Edit(), flushAt(1, 2, 3, 2, 10, 20).Edit()
	err := second.Apply(s)
	require.ErrorContains(t, err, "an earlier flush is missing")
	require.NotErrorIs(t, err, ErrApplied)
	mustApply(t, s, first, second)
}

// F51: an entry's stamp is a time that the store gave when the entry was already listed.
func TestF51StampsComeFromTheStore(t *testing.T) {
	s := openState(t)
	s.Obsolete = []*Obsolete{obsoleteObject(1), obsoleteObject(2)}
	s.Obsolete[1].SinceMs = 55
	require.True(t, HasUnstamped(s))
	e := StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(1000)})
	s.Obsolete = append(s.Obsolete, obsoleteObject(3)) // a later commit's
	mustApply(t, s, e)
	require.Equal(t, []int64{1000, 55, 0}, []int64{s.Obsolete[0].SinceMs, s.Obsolete[1].SinceMs, s.Obsolete[2].SinceMs})
	require.ErrorIs(t, e.Apply(s), ErrApplied)
	require.ErrorContains(t, StampObsolete(&Snapshot{State: clone(s)}).Apply(s), "no store time")
	mustApply(t, s, StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(2000)}))
	require.Equal(t, int64(2000), s.Obsolete[2].SinceMs)
	require.False(t, HasUnstamped(s))
}

func TestGuards(t *testing.T) {
	s := openState(t)
	require.NoError(t, WriterGuard(1)(s))
	require.ErrorIs(t, WriterGuard(2)(s), ErrFenced)
	require.NoError(t, CompactorGuard(1)(s))
	require.ErrorIs(t, CompactorGuard(0)(s), ErrFenced)
}

// Random sequences of edits, of the present and of passed epochs: every state is valid,
// nothing ever goes backwards, and no edit can be applied twice.
func TestRandomEdits(t *testing.T) { rapid.Check(t, randomEdits) }

func randomEdits(t *rapid.T) {
	s := emptyState(testEnv(1), 7)
	ids := 0
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		ids++
		e := drawEdit(t, s, ids)
		next := clone(s)
		if err := e.Apply(next); err != nil {
			continue
		}
		if err := Validate(next); err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
		checkForward(t, e, s, next)
		again := clone(next)
		if err := e.Apply(again); err == nil {
			t.Fatalf("%s can be applied twice", e.Name)
		}
		s = next
	}
}

// FuzzEdits is TestRandomEdits on what a fuzzer draws.
func FuzzEdits(f *testing.F) {
	draws := make([]byte, 8<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(draws) // never fails
	f.Add(draws)
	f.Fuzz(rapid.MakeFuzz(randomEdits))
}

func checkForward(t *rapid.T, e Edit, s, next *State) {
	opening := next.Writer.Epoch != s.Writer.Epoch && s.CleanNext != nil
	switch {
	case next.Position.Pos().Less(s.Position.Pos()):
		t.Fatalf("%s: position went back", e.Name)
	case next.FlushedEnd < s.FlushedEnd:
		t.Fatalf("%s: flushed_end went back", e.Name)
	case next.SeqLimit < s.SeqLimit && !opening:
		t.Fatalf("%s: seq_limit went back", e.Name)
	case next.Writer.Epoch < s.Writer.Epoch || next.Compactor.Epoch < s.Compactor.Epoch:
		t.Fatalf("%s: an epoch went back", e.Name)
	case next.CompactorBeat < s.CompactorBeat && next.CompactorBeat > 0 || next.LastTimestampMs < s.LastTimestampMs:
		t.Fatalf("%s: beat or timestamp went back", e.Name)
	}
}

// drawEdit draws an edit that fits the state most of the time.
func drawEdit(t *rapid.T, s *State, n int) Edit {
	small := rapid.Uint64Range(0, 3)
	epoch := s.Writer.Epoch - min(s.Writer.Epoch, rapid.SampledFrom([]uint64{0, 0, 0, 1}).Draw(t, "old"))
	at, active := s.Position.Pos(), activeSegment(s)
	to := Pos{at.Epoch, at.ID + small.Draw(t, "ids")}
	if rapid.Bool().Draw(t, "my epoch") {
		to = Pos{epoch, 1 + small.Draw(t, "id")}
	}
	switch rapid.IntRange(0, 8).Draw(t, "kind") {
	case 0:
		return OpenWriter(epoch, owner(n))
	case 1:
		return OpenCompactor(s.Compactor.Epoch, owner(n))
	case 2:
		if rapid.IntRange(0, 3).Draw(t, "release") == 0 {
			return ReleaseCompactor(s.Compactor.Epoch)
		}
		return Beat(s.Compactor.Epoch, s.CompactorBeat+small.Draw(t, "beat"))
	case 3:
		return SkipTo(epoch, at, to, drawUpdate(t, s, epoch, n))
	case 4:
		return RaiseLimit(epoch, s.SeqLimit+small.Draw(t, "raise"))
	case 5:
		return SealSegment(epoch, active.Id, s.FlushedEnd, int64(n))
	case 6:
		if rapid.IntRange(0, 3).Draw(t, "close") > 0 {
			return RaiseLimit(epoch, s.SeqLimit+1)
		}
		return CloseClean(epoch, s.FlushedEnd+small.Draw(t, "next"), to, drawUpdate(t, s, epoch, n))
	}
	f := Flush{Epoch: epoch, From: at, To: to, Start: s.FlushedEnd, End: s.FlushedEnd + 1 + small.Draw(t, "len"),
		Segment: active.Id, SegmentStartMs: 10, LastTimestampMs: 20}
	f.Run = run(n, f.Start, f.End)
	f.Next = f.End + small.Draw(t, "next")
	if rapid.Bool().Draw(t, "gap") {
		f.Run.Tables = nil
	}
	if rapid.Bool().Draw(t, "seal") {
		f.Seal = &Seal{TimeMs: int64(n)}
	}
	f.State = drawUpdate(t, s, epoch, n)
	return f.Edit()
}

// drawUpdate draws what becomes of the small state.
func drawUpdate(t *rapid.T, s *State, epoch uint64, n int) *StateUpdate {
	switch rapid.IntRange(0, 5).Draw(t, "state") {
	case 0:
		return stateUpdate(epoch, n, 0)
	case 1:
		if s.State != nil {
			return &StateUpdate{Base: s.State, BaseBytes: s.StateSize, Changes: stateRef(epoch, -n), ChangesBytes: 9}
		}
	case 2:
		return stateUpdate(epoch, n, -n)
	case 3:
		return &StateUpdate{}
	}
	return nil
}

// Edits must be pure: on the same state they give the same result, and they do not
// change what they were made from.
func TestEditsArePure(t *testing.T) {
	s := openState(t)
	f := flushAt(1, 1, 2, 1, 0, 10)
	f.Seal = &Seal{TimeMs: 5}
	was := proto.CloneOf(f.Run)
	for _, e := range []Edit{f.Edit(), OpenWriter(1, owner(3)), CloseClean(1, 4, Pos{1, 2}, nil), RaiseLimit(1, 1<<50),
		{Name: "own", Apply: func(s *State) error { s.Obsolete = append(s.Obsolete, obsoleteObject(9)); return nil }}} {
		a, b := clone(s), clone(s)
		mustApply(t, a, e)
		mustApply(t, b, e)
		requireEqual(t, a, b)
	}
	requireEqual(t, was, f.Run)
	require.Equal(t, base.KindSST, f.Run.Tables[0].Ref.ID().Kind)
}
