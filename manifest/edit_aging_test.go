package manifest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// aging is the life of a tree's tables and indexes, checked after every edit.
type aging struct {
	s     *State
	n     int    // ids so far
	past  []Edit // every edit that was made, applied or not
	shelf shelf  // every index that was written
	// What became of every object that a commit ever named. It only rises.
	life    map[base.ObjectID]lifeStage
	dropped uint64 // records that retention took
}

func newAging(t *rapid.T) *aging {
	a := &aging{s: emptyState(testEnv(1), 7), shelf: shelf{}, life: map[base.ObjectID]lifeStage{}}
	a.do(t, OpenWriter(0, owner(1)))
	a.do(t, OpenCompactor(0, owner(2)))
	return a
}

type lifeStage int

const (
	stageLive lifeStage = iota
	stageObsolete
	stageStamped
	stageForgotten
)

// Random sequences of flush, seal, compaction, merge, regroup, drop, stamp and forget, some of them made
// on an older state: every state is valid, no record goes but by retention, no object is ever live and
// obsolete, none leaves the state but from a stamped entry by a forget, none comes back, an index stays for as long as
// only it tells which tables are meant, and no edit can be applied twice, at any later time.
func TestRandomAging(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newAging(t)
		var late []Edit // made, not yet tried
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			a.n++
			switch rapid.IntRange(0, 9).Draw(t, "when") {
			case 0: // delayed, like a job's commit
				late = append(late, a.draw(t))
			case 1:
				if len(late) > 0 {
					a.do(t, late[0])
					late = late[1:]
				}
			default:
				a.do(t, a.draw(t))
			}
		}
	})
}

// do applies an edit, if it applies, and checks what it did.
func (a *aging) do(t *rapid.T, e Edit) {
	next := clone(a.s)
	if err := e.Apply(next); err != nil {
		return
	}
	if err := Validate(next); err != nil {
		t.Fatalf("%s: %v", e.Name, err)
	}
	checkForward(t, e, a.s, next)
	if (a.s.CleanNext == nil) != (next.CleanNext == nil) {
		t.Fatalf("%s: clean_next changed", e.Name)
	}
	a.checkLife(t, e, next)
	a.checkRecords(t, e, next)
	a.s = next
	a.past = append(a.past, e)
	for _, old := range a.past {
		if err := old.Apply(clone(next)); err == nil {
			t.Fatalf("%s can be applied again after %s", old.Name, e.Name)
		}
	}
}

// checkLife compares where every object is with where it was.
func (a *aging) checkLife(t *rapid.T, e Edit, next *State) {
	now := a.objects(t, e, next)
	for id, was := range a.life {
		is, ok := now[id]
		if !ok {
			is = stageForgotten
		}
		if is < was || is > was+1 {
			t.Fatalf("%s: %s went from stage %d to %d", e.Name, id.Name(), was, is)
		}
		a.life[id] = is
	}
	for id, is := range now {
		if _, known := a.life[id]; !known && is != stageLive {
			t.Fatalf("%s: %s was never live", e.Name, id.Name())
		}
		a.life[id] = is
	}
}

// objects returns where every object is that a state names, itself or by an index that it names.
func (a *aging) objects(t *rapid.T, e Edit, s *State) map[base.ObjectID]lifeStage {
	now := make(map[base.ObjectID]lifeStage)
	put := func(id base.ObjectID, stage lifeStage) {
		if was, twice := now[id]; twice {
			t.Fatalf("%s: %s is at stages %d and %d", e.Name, id.Name(), was, stage)
		}
		now[id] = stage
	}
	putAll := func(tables []*Table, stage lifeStage) {
		for _, tb := range tables {
			put(tb.Ref.ID(), stage)
		}
	}
	for _, g := range s.Segments {
		for _, r := range g.Runs {
			putAll(r.Tables, stageLive)
		}
	}
	for _, g := range s.Groups {
		index := g.Index.ID()
		if err := a.shelf[index].opened.Check(g); err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
		put(index, stageLive)
		putAll(a.shelf.tables(index, g.FirstSegment, g.LastSegment), stageLive)
	}
	for _, o := range s.Obsolete {
		stage := stageObsolete
		if o.SinceMs != 0 {
			stage = stageStamped
		}
		if o.SegmentsOnly {
			putAll(a.shelf.tables(o.Ref.ID(), o.FirstSegment, o.LastSegment), stage)
		} else {
			put(o.Ref.ID(), stage)
		}
	}
	// What is named is there, and the rest of what is there is a listed table.
	named := NamedObjects(s)
	for id := range named {
		if _, ok := now[id]; !ok {
			t.Fatalf("%s: %s is named", e.Name, id.Name())
		}
	}
	for id := range now {
		if _, ok := named[id]; !ok && id.Kind != base.KindSST {
			t.Fatalf("%s: %s is not named", e.Name, id.Name())
		}
	}
	return now
}

// checkRecords checks that the records of the tree change by flushes and drops only.
func (a *aging) checkRecords(t *rapid.T, e Edit, next *State) {
	count := func(s *State) (n uint64) {
		for _, g := range s.Groups {
			n += g.Records
		}
		for _, g := range s.Segments {
			n += extentOf(g.Runs...).records
		}
		return n
	}
	first := func(s *State) uint64 {
		if len(s.Groups) > 0 {
			return s.Groups[0].FirstSequence
		}
		return s.Segments[0].FirstSequence
	}
	was, is := count(a.s), count(next)
	dropped := first(next) > first(a.s)
	switch {
	case dropped:
		a.dropped += was - is
	case next.FlushedEnd > a.s.FlushedEnd:
		was += is - was // the flush's own
	}
	if !dropped && was != is {
		t.Fatalf("%s: %d records became %d", e.Name, was, is)
	}
	if is+a.dropped > next.FlushedEnd {
		t.Fatalf("%s: more records than sequences", e.Name)
	}
}

// draw makes an edit from the present state.
func (a *aging) draw(t *rapid.T) Edit {
	s := a.s
	switch rapid.IntRange(0, 13).Draw(t, "kind") {
	case 0:
		return SealSegment(1, activeSegment(s).Id, s.FlushedEnd, int64(a.n))
	case 1, 2:
		return a.drawCompaction(t)
	case 3:
		return a.drawMerge(t)
	case 4:
		return a.drawDrop(t)
	case 5:
		return StampObsolete(&Snapshot{State: clone(s), StoreTime: time.UnixMilli(int64(a.n))})
	case 6:
		var ids []base.ObjectID
		for _, o := range s.Obsolete {
			// Now and then one that has no stamp, or of which ranges are listed: the edit refuses it.
			if o.SinceMs != 0 && !o.SegmentsOnly && rapid.Bool().Draw(t, "deleted") || rapid.IntRange(0, 30).Draw(t, "bug") == 0 {
				ids = append(ids, o.Ref.ID())
			}
		}
		return ForgetObsolete(1, ids)
	case 7:
		for _, o := range s.Obsolete {
			if o.SegmentsOnly && rapid.Bool().Draw(t, "deleted") {
				return ForgetSegments(1, o.Ref.ID(), o.FirstSegment, o.LastSegment)
			}
		}
	case 8, 9:
		return a.drawRegroup(t)
	}
	size := rapid.Uint64Range(1, 4).Draw(t, "size")
	at := s.Position.Pos()
	f := flushAt(1, at.ID, at.ID+1, a.n, s.FlushedEnd, s.FlushedEnd+size)
	f.Segment = activeSegment(s).Id
	if rapid.IntRange(0, 5).Draw(t, "gap") == 0 {
		f.Run.Tables = nil
	}
	if rapid.Bool().Draw(t, "seal") {
		f.Seal = &Seal{TimeMs: int64(a.n)}
	}
	return f.Edit()
}

// drawDrop draws a drop of some segments or groups, now and then one that nothing allows.
func (a *aging) drawDrop(t *rapid.T) Edit {
	s := a.s
	if len(s.Groups) > 0 && rapid.Bool().Draw(t, "groups") {
		g := s.Groups[rapid.IntRange(0, len(s.Groups)-1).Draw(t, "group")]
		index := a.shelf[g.Index.ID()]
		from, to := index.opened.Live(g)
		upTo := index.segments[rapid.IntRange(from, to-1).Draw(t, "drop")].Last()
		if upTo == g.LastSegment {
			return DropSegments(1, upTo, nil)
		}
		trimmed, err := index.opened.Trim(g, upTo)
		if err != nil {
			t.Fatal(err)
		}
		return DropSegments(1, upTo, trimmed)
	}
	i := rapid.IntRange(0, len(s.Segments)-1).Draw(t, "drop")
	if rapid.IntRange(0, 4).Draw(t, "blindly") == 0 {
		return DropSegments(1, s.Segments[i].Id, nil)
	}
	return DropSegments(1, s.Segments[i].Last(), nil)
}

// drawRegroup draws a regrouping of some neighbouring groups and of the segments that follow them, if they have one
// run each.
func (a *aging) drawRegroup(t *rapid.T) Edit {
	s := a.s
	ready := 0
	for ready < len(s.Segments)-1 && len(s.Segments[ready].Runs) == 1 {
		ready++
	}
	from := rapid.IntRange(0, len(s.Groups)).Draw(t, "from")
	to := rapid.IntRange(from, len(s.Groups)).Draw(t, "to")
	segments := 0
	if to == len(s.Groups) {
		segments = rapid.IntRange(0, ready).Draw(t, "segments")
	}
	if to-from+segments == 0 {
		return SealSegment(1, activeSegment(s).Id, s.FlushedEnd, int64(a.n))
	}
	return a.shelf.regroup(t, s, a.n, from, to, segments).Edit()
}

func (a *aging) drawCompaction(t *rapid.T) Edit {
	g := a.s.Segments[rapid.IntRange(0, len(a.s.Segments)-1).Draw(t, "segment")]
	if len(g.Runs) == 0 {
		return Beat(1, a.s.CompactorBeat+1)
	}
	from := rapid.IntRange(0, len(g.Runs)-1).Draw(t, "from")
	to := rapid.IntRange(from+1, len(g.Runs)).Draw(t, "to")
	return compact(a.s, a.n, g.Id, g.Id, from, to).Edit()
}

func (a *aging) drawMerge(t *rapid.T) Edit {
	sealed := a.s.Segments[:len(a.s.Segments)-1]
	if len(sealed) < 2 {
		return SealSegment(1, activeSegment(a.s).Id, a.s.FlushedEnd, int64(a.n))
	}
	from := rapid.IntRange(0, len(sealed)-2).Draw(t, "first")
	to := rapid.IntRange(from+1, len(sealed)-1).Draw(t, "last")
	runs := 0
	for _, g := range sealed[from : to+1] {
		runs += len(g.Runs)
	}
	return compact(a.s, a.n, sealed[from].Id, sealed[to].Id, 0, runs).Edit()
}

// A merge changes nothing that the outside of the segments can see: the windows, and the runs before and
// after, stay, and of the many only the newest seal time counts.
func TestRandomMerges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newAging(t)
		for range rapid.IntRange(1, 20).Draw(t, "flushes") {
			a.n++
			at := a.s.Position.Pos()
			f := flushAt(1, at.ID, at.ID+1, a.n, a.s.FlushedEnd, a.s.FlushedEnd+2)
			f.Segment, f.SegmentStartMs = activeSegment(a.s).Id, int64(a.n)
			if rapid.Bool().Draw(t, "seal") {
				f.Seal = &Seal{TimeMs: int64(a.n)}
			}
			a.do(t, f.Edit())
		}
		for len(a.s.Segments) > 2 {
			a.n++
			before := a.s
			a.do(t, a.drawMerge(t))
			checkMerge(t, before, a.s)
		}
	})
}

func checkMerge(t *rapid.T, before, after *State) {
	old := make(map[uint32]*Segment)
	for _, g := range before.Segments {
		old[g.Last()] = g
	}
	if len(after.Segments) >= len(before.Segments) {
		t.Fatal("nothing was merged")
	}
	for i, g := range after.Segments {
		last, ok := old[g.Last()]
		if !ok || last.EndSequence != g.EndSequence || last.SealTimeMs != g.SealTimeMs || last.Sealed != g.Sealed {
			t.Fatalf("segment %v ends as none did", g)
		}
		first := before.Segments[0]
		if i > 0 { // the one that followed what ends before g
			for j, o := range before.Segments {
				if o.Last() == after.Segments[i-1].Last() {
					first = before.Segments[j+1]
				}
			}
		}
		if first.Id != g.Id || first.FirstSequence != g.FirstSequence || first.StartTimeMs != g.StartTimeMs {
			t.Fatalf("segment %v begins as none did", g)
		}
		if first == last && len(g.Runs) != len(first.Runs) {
			t.Fatalf("segment %d was not merged, its runs changed", g.Id)
		}
		for k, r := range g.Runs {
			if first == last && !bytes.Equal(r.Id, first.Runs[k].Id) {
				t.Fatalf("segment %d was not merged, its runs changed", g.Id)
			}
		}
	}
}

// The edits of this part are pure: they give the same on the same state, and do not share
// with it what they were made from.
func TestAgingEditsArePure(t *testing.T) {
	s := stamped(t)
	c := compact(s, 20, 2, 3, 0, 4)
	x := shelf{}
	grouped := clone(s)
	mustApply(t, grouped, compact(s, 21, 2, 2, 0, 2).Edit(), compact(s, 22, 3, 3, 0, 2).Edit())
	r := x.regroup(t, grouped, 23, 0, 0, 2)
	for _, e := range []Edit{r.Edit(), DropSegments(1, 2, x.trim(t, r.Output, 2))} {
		one, two := clone(grouped), clone(grouped)
		if err := e.Apply(one); err != nil {
			t.Fatal(err)
		}
		if err := e.Apply(two); err != nil {
			t.Fatal(err)
		}
		requireEqual(t, one, two)
		one.Groups[0].Records, one.Groups[0].Index.Epoch = 0, 0
		for _, o := range one.Obsolete {
			o.Ref.Epoch = 0
		}
		mustApply(t, grouped, e)
		requireEqual(t, two, grouped)
	}
	was := clone(&State{Segments: []*Segment{{Runs: []*Run{c.Output}}}})
	for _, e := range []Edit{c.Edit(), DropSegments(1, 2, nil), ForgetObsolete(1, obsoleteIDs(s)),
		StampObsolete(&Snapshot{State: s, StoreTime: time.UnixMilli(5)})} {
		x, y := clone(s), clone(s)
		errX, errY := e.Apply(x), e.Apply(y)
		if !errors.Is(errX, ErrApplied) && errX != nil || errors.Is(errX, ErrApplied) != errors.Is(errY, ErrApplied) {
			t.Fatal(errX, errY)
		}
		requireEqual(t, x, y)
		for _, g := range x.Segments {
			for _, r := range g.Runs {
				r.Tables = append(r.Tables[:0:0], r.Tables...)
				for _, tb := range r.Tables {
					tb.Records += 1000
				}
			}
		}
		requireEqual(t, was, &State{Segments: []*Segment{{Runs: []*Run{c.Output}}}})
	}
}
