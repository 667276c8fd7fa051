package manifest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// outputOf is a run with the records of the inputs, in one table or, if split, in two,
// written by the compactor of an epoch.
func outputOf(s *State, epoch uint64, n int, split bool, inputs ...*Run) *Run {
	out := &Run{Id: id16(n)}
	e := extentOf(inputs...)
	if e.records == 0 {
		return out
	}
	whole := &Table{
		Ref: RefOf(base.ObjectID{Tree: s.Tree, Kind: base.KindSST, Role: base.RoleCompactor, Epoch: epoch,
			Segment: 1, ULID: base.ULID(id16(n))}),
		Size: 1000, MetaOffset: 900, LowerKey: []byte("k1"), UpperKey: []byte("k9"),
		FirstSequence: e.firstSequence, LastSequence: e.lastSequence,
		FirstTimestampMs: e.firstTimestamp, LastTimestampMs: e.lastTimestamp,
		Records: e.records, Keys: 1, Bytes: e.bytes,
	}
	out.Tables = []*Table{whole}
	if split && e.records > 1 {
		rest := proto.CloneOf(whole)
		rest.Ref.Ulid[0] ^= 0xFF
		whole.UpperKey, rest.LowerKey = []byte("k5"), []byte("k5")
		whole.Records, whole.Bytes = e.records-1, e.bytes-1
		rest.Records, rest.Bytes, rest.FirstSequence = 1, 1, e.lastSequence
		out.Tables = append(out.Tables, rest)
	}
	return out
}

// compact is the compaction of runs [from, to) of all runs of the segments [first, last].
func compact(s *State, n int, first, last uint32, from, to int) Compaction {
	var runs []*Run
	for _, g := range s.Segments {
		if g.Id >= first && g.Id <= last {
			runs = append(runs, g.Runs...)
		}
	}
	c := Compaction{Epoch: s.Compactor.Epoch, First: first, Last: last}
	for _, r := range runs[from:to] {
		c.Inputs = append(c.Inputs, r.Id)
	}
	c.Output = outputOf(s, c.Epoch, n, true, runs[from:to]...)
	return c
}

// agedState has sealed segments 1 to 3, of runs 1 to 6 in pairs, and the active segment 4 with
// runs 7 to 9: each run of ten records, in order. Run 3 is a gap.
func agedState(t testing.TB) *State {
	s := openState(t)
	for n := 1; n <= 9; n++ {
		f := flushAt(1, uint64(n), uint64(n+1), n, uint64(n-1)*10, uint64(n)*10)
		f.Segment, f.SegmentStartMs = uint32(n-1)/2+1, int64(10+n)
		if n == 3 {
			f.Run.Tables = nil
		}
		if n%2 == 0 && n < 8 {
			f.Seal = &Seal{TimeMs: int64(100 + n)}
		}
		if n > 8 {
			f.Segment = 4
		}
		mustApply(t, s, f.Edit())
	}
	require.Len(t, s.Segments, 4)
	return s
}

func runIDs(g *Segment) (ids [][]byte) {
	for _, r := range g.Runs {
		ids = append(ids, r.Id)
	}
	return ids
}

func obsoleteIDs(s *State) (ids []base.ObjectID) {
	for _, o := range s.Obsolete {
		ids = append(ids, o.Ref.ID())
	}
	return ids
}

func TestCompactionOfTheActiveSegment(t *testing.T) {
	s := agedState(t)
	old := clone(s)
	c := compact(s, 20, 4, 4, 0, 2)
	// A flush and a seal come in between.
	f := flushAt(1, 10, 11, 10, 90, 100)
	f.Segment, f.Seal = 4, &Seal{TimeMs: 200}
	mustApply(t, s, f.Edit())
	before := clone(s)
	mustApply(t, s, c.Edit())

	want := clone(before)
	output := proto.CloneOf(c.Output)
	output.Start, output.End = 60, 80
	want.Segments[3].Runs = append([]*Run{output}, want.Segments[3].Runs[2:]...)
	for _, r := range old.Segments[3].Runs[:2] {
		want.Obsolete = append(want.Obsolete, &Obsolete{Ref: r.Tables[0].Ref, Size: 1000})
	}
	requireEqual(t, want, s)
	require.Zero(t, c.Output.End, "the edit shares nothing with what it was made from")
	require.ErrorIs(t, c.Edit().Apply(s), ErrApplied)
}

func TestCompactionMergesSegments(t *testing.T) {
	s := agedState(t)
	old := clone(s)
	mustApply(t, s, compact(s, 20, 2, 3, 0, 4).Edit())
	require.Len(t, s.Segments, 3)
	g := s.Segments[1]
	require.Equal(t, [][]byte{id16(20)}, runIDs(g))
	g = proto.CloneOf(g)
	g.Runs = nil
	requireEqual(t, &Segment{Id: 2, LastId: 3, FirstSequence: 20, EndSequence: 60, Sealed: true,
		StartTimeMs: 14, SealTimeMs: 106}, g) // the first record came with run 4
	requireEqual(t, old.Segments[0], s.Segments[0])
	requireEqual(t, old.Segments[3], s.Segments[2])
	require.Len(t, s.Obsolete, 3, "the gap has no table")

	// A merged one is merged again, with the one before.
	mustApply(t, s, compact(s, 21, 1, 2, 0, 3).Edit())
	require.Equal(t, []uint32{1, 3}, []uint32{s.Segments[0].Id, s.Segments[0].LastId})
	require.Equal(t, uint64(60), s.Segments[0].EndSequence)
	require.Equal(t, int64(11), s.Segments[0].StartTimeMs)
	require.Equal(t, uint32(3), s.Segments[0].Last())
	require.Equal(t, uint32(4), s.Segments[1].Last())
}

func TestCompactionOfAGap(t *testing.T) {
	s := agedState(t)
	c := compact(s, 20, 2, 2, 0, 1)
	require.Empty(t, c.Output.Tables)
	mustApply(t, s, c.Edit())
	require.Empty(t, s.Obsolete)
	require.ErrorIs(t, c.Edit().Apply(s), ErrApplied)
	mustApply(t, s, compact(s, 21, 2, 2, 0, 2).Edit())
	require.ErrorIs(t, c.Edit().Apply(s), ErrGone)
}

// What a compaction refuses leaves the state as it was.
func TestCompactionPreconditions(t *testing.T) {
	for _, x := range []struct {
		name        string
		first, last uint32
		from, to    int
		change      func(s *State, c *Compaction)
		is          error // nil: none of the errors that callers tell apart
		text        string
	}{
		{"passed epoch", 4, 4, 0, 2, func(s *State, c *Compaction) { s.Compactor.Epoch++ }, ErrFenced, "compactor epoch is 2, mine is 1"},
		{"no inputs", 4, 4, 0, 0, func(_ *State, c *Compaction) {}, nil, "without inputs"},
		{"no output", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output = nil }, nil, "without an output"},
		{"segments in wrong order", 2, 3, 0, 4, func(_ *State, c *Compaction) { c.First, c.Last = 3, 2 }, nil, "segments 3 to 2"},
		{"output has an input's id", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Id = id16(8) }, nil, "id of its input"},
		{"output without a reference", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Tables[1].Ref = nil }, nil, "output table 1: reference is missing"},
		{"F52 output of a passed epoch", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Tables[0].Ref.Epoch = 0 }, nil, "by the compactor of epoch 1"},
		{"output by a writer", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Tables[0].Ref.Role = Role_ROLE_WRITER }, nil, "by the compactor of"},
		{"output of another tree", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Tables[0].Ref.Tree++ }, nil, "SST of tree 7"},
		{"output keeps a table", 4, 4, 0, 2, func(s *State, c *Compaction) {
			s.Segments[3].Runs[1].Tables[0].Ref = c.Output.Tables[0].Ref
		}, nil, "of its input"},
		{"F23 segment is gone", 1, 1, 0, 2, func(s *State, c *Compaction) { s.Segments = s.Segments[1:] }, ErrGone, "segments 1 to 1"},
		{"F23 first segment is gone", 1, 3, 0, 6, func(s *State, c *Compaction) { s.Segments = s.Segments[1:] }, ErrGone, "segments 1 to 3"},
		{"last segment is gone", 1, 2, 0, 4, func(s *State, c *Compaction) { s.Segments = slices.Delete(s.Segments, 1, 2) }, ErrGone, "segments 1 to 2"},
		{"active segment in a merge", 3, 4, 0, 5, func(_ *State, c *Compaction) {}, nil, "segment 4 is active"},
		{"F21 first input is gone", 4, 4, 0, 2, func(s *State, c *Compaction) { s.Segments[3].Runs[0].Id = id16(99) }, ErrGone, "run "},
		{"F21 last input is gone", 4, 4, 0, 3, func(s *State, c *Compaction) { s.Segments[3].Runs[2].Id = id16(99) }, ErrGone, "run "},
		{"inputs of another segment", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.First, c.Last = 3, 3 }, ErrGone, "run "},
		{"I5 not neighbours", 4, 4, 0, 3, func(_ *State, c *Compaction) { c.Inputs = [][]byte{id16(7), id16(9)} }, nil, "does not follow"},
		{"I5 not in order", 4, 4, 0, 2, func(_ *State, c *Compaction) { slices.Reverse(c.Inputs) }, nil, "does not follow"},
		{"input named twice", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Inputs[1] = c.Inputs[0] }, nil, "does not follow"},
		{"merge without a run", 2, 3, 0, 3, func(_ *State, c *Compaction) {}, nil, "3 of the 4 runs"},
		{"F27 a record is missing", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Tables[0].Records-- }, nil, "inputs hold 20 records"},
		{"F27 nothing came out", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Tables = nil }, nil, "the output 0 records"},
		{"F27 something came of a gap", 2, 2, 0, 1, func(s *State, c *Compaction) {
			c.Output = outputOf(s, 1, 20, false, run(20, 20, 21))
		}, nil, "inputs hold 0 records"},
		{"F27 other bytes", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Tables[0].Bytes++ }, nil, "of 1000 bytes"},
		{"F27 first record is missing", 4, 4, 0, 2, func(_ *State, c *Compaction) { c.Output.Tables[0].FirstSequence++ }, nil, "sequences 61 to 79"},
		{"F27 other timestamps", 4, 4, 0, 2, func(_ *State, c *Compaction) {
			c.Output.Tables[0].FirstTimestampMs++
			c.Output.Tables[1].FirstTimestampMs++
		}, nil, "timestamps 11 to 20"},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := agedState(t)
			c := compact(s, 20, x.first, x.last, x.from, x.to)
			x.change(s, &c)
			before := clone(s)
			err := c.Edit().Apply(s)
			require.ErrorContains(t, err, x.text)
			for _, e := range []error{ErrGone, ErrFenced, ErrApplied} {
				require.Equal(t, e == x.is, errors.Is(err, e), "%v", err)
			}
			requireEqual(t, before, s)
		})
	}
}

// A compactor elsewhere goes on after the writer has closed cleanly, and the next
// open still starts where the writer ended.
func TestCompactionAfterACleanClose(t *testing.T) {
	s := agedState(t)
	mustApply(t, s, CloseClean(1, 95, Pos{1, 11}, nil), compact(s, 20, 2, 3, 0, 4).Edit(), Beat(1, 9), OpenCompactor(1, owner(5)))
	mustApply(t, s, compact(s, 21, 4, 4, 0, 3).Edit())
	require.Equal(t, uint64(95), s.GetCleanNext())
	mustApply(t, s, OpenWriter(1, owner(6)))
	require.Equal(t, uint64(95), OpenedNext(s))
}

// F22: a job's result is committed twice: in force is what the state names, under the run's id or another, live
// or obsolete, for as long as one of its tables is listed.
func TestF22ResultCommittedTwice(t *testing.T) {
	s := agedState(t)
	c := compact(s, 20, 4, 4, 0, 2)
	resumed := c // the same tables, under the id of a new run
	resumed.Output = proto.CloneOf(c.Output)
	resumed.Output.Id = id16(21)
	both := func(want error) {
		t.Helper()
		for _, c := range []Compaction{c, resumed} {
			before := clone(s)
			require.ErrorIs(t, c.Edit().Apply(s), want)
			requireEqual(t, before, s)
		}
	}
	mustApply(t, s, c.Edit())
	both(ErrApplied)
	// Compacted again: its tables are obsolete now.
	mustApply(t, s, compact(s, 22, 4, 4, 0, 2).Edit())
	both(ErrApplied)
	mustApply(t, s, StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(1000)}))
	mustApply(t, s, ForgetObsolete(1, []base.ObjectID{c.Output.Tables[0].Ref.ID()}))
	both(ErrApplied)
	// Collected: of no use, and it harms nothing.
	mustApply(t, s, ForgetObsolete(1, []base.ObjectID{c.Output.Tables[1].Ref.ID()}))
	both(ErrGone)
}

// F23: a segment is dropped while it is being compacted, alone or with others: the drop
// wins, and the outputs are named nowhere.
func TestF23DropWins(t *testing.T) {
	for _, last := range []uint32{1, 2} {
		s := agedState(t)
		c := compact(s, 20, 1, last, 0, 2*int(last))
		mustApply(t, s, DropSegments(1, 1, nil))
		before := clone(s)
		require.ErrorIs(t, c.Edit().Apply(s), ErrGone)
		requireEqual(t, before, s)
		for _, tb := range c.Output.Tables {
			require.NotContains(t, NamedObjects(s), tb.Ref.ID())
		}
	}
}

// pair is a writer's process and a compactor's over one store, each with its committer.
type pair struct {
	writer, compactor *Committer
}

func openPair(t testing.TB, env *base.Env, inner, store objstore.Store, onCommit func(*Snapshot)) pair {
	t.Helper()
	openWriter(t, inner, env, 1)
	start, err := CommitOne(t.Context(), CommitterOptions{Store: inner, Env: env, Start: load(t, inner, env)}, OpenCompactor(0, owner(2)))
	require.NoError(t, err)
	p := pair{
		NewCommitter(CommitterOptions{Store: store, Env: env, Start: start, Guard: WriterGuard(1)}),
		NewCommitter(CommitterOptions{Store: store, Env: env, Start: start, Guard: CompactorGuard(1), OnCommit: onCommit}),
	}
	t.Cleanup(func() { p.writer.Close(); p.compactor.Close() })
	return p
}

// refresh is a process's poll of MANIFEST.
func refresh(t testing.TB, c *Committer) *Snapshot {
	t.Helper()
	snap, err := c.Refresh(t.Context())
	require.NoError(t, err)
	return snap
}

// F19: the writer flushes and a compactor elsewhere compacts what it flushed; they conflict
// all the time, both make progress, and no record is lost.
func TestF19WriterAndCompactorInConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		var count fault.Counter
		store := fault.New(inner, fault.Chain(count.Hook, fault.Latency(0, 4*time.Millisecond, env.Sleep)))
		var seen []uint64
		p := openPair(t, env, inner, store, func(s *Snapshot) { seen = append(seen, s.State.Version) })
		start := p.compactor.Current().State.Version
		const flushes, width = 64, 4
		merges, beats := 0, 0 // the compactor's
		var merging atomic.Int64
		pause := func() { _ = env.Sleep(t.Context(), time.Duration(env.Uint64()%10)*time.Millisecond) }
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range flushes {
				f := flushAt(1, uint64(i+1), uint64(i+2), i, uint64(i)*10, uint64(i)*10+10)
				commit(t, p.writer, f.Edit())
				pause()
			}
			require.Positive(t, merging.Load(), "the compactor was not kept out")
		})
		wg.Go(func() {
			for merges < flushes/width {
				beats++
				pause()
				snap := commit(t, p.compactor, Beat(1, uint64(beats+1)))
				if len(snap.State.Segments[0].Runs) < merges+width {
					continue
				}
				c := compact(snap.State, 1000+merges, 1, 1, merges, merges+width)
				now := commit(t, p.compactor, c.Edit())
				require.Equal(t, c.Output.Id, now.State.Segments[0].Runs[merges].Id)
				require.Equal(t, now.State.Version, seen[len(seen)-1], "OnCommit comes before Commit returns")
				merges++
				merging.Add(1)
			}
		})
		wg.Wait()
		s := load(t, inner, env).State
		require.Equal(t, start+uint64(flushes+merges+beats), s.Version, "every commit counts once")
		require.Len(t, s.Segments[0].Runs, flushes/width)
		require.Equal(t, uint64(flushes*10), extentOf(s.Segments[0].Runs...).records)
		require.Len(t, s.Obsolete, flushes)
		require.True(t, slices.IsSorted(seen) && len(slices.Compact(slices.Clone(seen))) == len(seen))
		refused := count.Counts().Put - flushes - merges - beats
		require.Greater(t, refused, flushes/2, "they were in each other's way")
	})
}

// F21: a compaction that was planned on an old state keeps the run that was flushed
// meanwhile, and fails when an input is gone.
func TestF21CompactionOnOldState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		store, _ := newLog(t, env)
		p := openPair(t, env, store, store, nil)
		commit(t, p.writer, flushAt(1, 1, 2, 1, 0, 10).Edit())
		old := commit(t, p.writer, flushAt(1, 2, 3, 2, 10, 20).Edit()).State
		requireEqual(t, old, refresh(t, p.compactor).State)
		first, second := compact(old, 20, 1, 1, 0, 2), compact(old, 21, 1, 1, 0, 2)
		commit(t, p.writer, flushAt(1, 3, 4, 3, 20, 30).Edit())

		snap := commit(t, p.compactor, first.Edit())
		require.Equal(t, [][]byte{id16(20), id16(3)}, runIDs(snap.State.Segments[0]))

		_, err := p.compactor.Commit(t.Context(), second.Edit())
		require.ErrorIs(t, err, ErrGone)
		require.NotErrorIs(t, err, ErrUnknown, "it was never sent")
		require.Equal(t, snap.ETag, load(t, store, env).ETag)
	})
}

// F50: a compaction's commit is applied, its answer lost, and other commits have followed: the
// outputs, live or already obsolete, are reported as committed and named by the state.
func TestF50LostAnswerAndALaterCommit(t *testing.T) {
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
			commit(t, p.writer, flushAt(1, 1, 2, 1, 0, 10).Edit())
			c := compact(commit(t, p.writer, flushAt(1, 2, 3, 2, 10, 20).Edit()).State, 20, 1, 1, 0, 2)
			refresh(t, p.compactor)
			follow = func() {
				opts := CommitterOptions{Store: inner, Env: env, Start: load(t, inner, env)}
				next := flushAt(1, 3, 4, 3, 20, 30).Edit()
				if again {
					next = compact(opts.Start.State, 21, 1, 1, 0, 1).Edit()
				}
				_, err := CommitOne(t.Context(), opts, next)
				require.NoError(t, err)
			}
			snap := commit(t, p.compactor, c.Edit())
			for _, tb := range c.Output.Tables {
				require.Contains(t, NamedObjects(snap.State), tb.Ref.ID())
				require.Equal(t, again, slices.Contains(obsoleteIDs(snap.State), tb.Ref.ID()))
			}
		})
	}
}

// F50: a compactor that was passed while its commit was under way learns which ETags it
// was sent with: its outputs are not to be deleted before MANIFEST has another one.
func TestF50PassedCompactor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		lost := true
		store := fault.New(inner, fault.OnKind(fault.Put, func(context.Context, fault.Op) fault.Plan {
			if !lost {
				return fault.Plan{}
			}
			return fault.Plan{Before: func(ctx context.Context) error {
				opts := CommitterOptions{Store: inner, Env: env, Start: load(t, inner, env)}
				_, err := CommitOne(ctx, opts, OpenCompactor(1, owner(3)))
				require.NoError(t, err)
				return fault.ErrInjected
			}}
		}))
		lost = false
		p := openPair(t, env, inner, store, nil)
		snap := commit(t, p.writer, flushAt(1, 1, 2, 1, 0, 10).Edit())
		refresh(t, p.compactor)
		lost = true
		_, err := p.compactor.Commit(t.Context(), compact(snap.State, 20, 1, 1, 0, 1).Edit())
		require.ErrorIs(t, err, ErrFenced)
		require.ErrorIs(t, err, ErrUnknown)
		var ee *EditError
		require.ErrorAs(t, err, &ee)
		require.Equal(t, []string{snap.ETag}, ee.SentETags)
		lost = false

		// The writer is not concerned; a committer with its guard refuses the passed compactor's edits alone.
		refresh(t, p.writer)
		late := compact(snap.State, 21, 1, 1, 0, 1)
		_, err = p.writer.Commit(t.Context(), late.Edit())
		require.ErrorIs(t, err, ErrFenced)
		require.NotErrorIs(t, err, ErrUnknown)
		now := commit(t, p.writer, flushAt(1, 2, 3, 2, 10, 20).Edit())
		commit(t, p.writer, compact(now.State, 22, 1, 1, 0, 2).Edit())
	})
}
