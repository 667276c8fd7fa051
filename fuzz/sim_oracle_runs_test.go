package fuzz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// simKnownRun is a run that was compared with the log: it holds exactly the log's records in [start, end).
type simKnownRun struct {
	start, end uint64
	tables     []base.ObjectID
}

// checkRuns compares runs that are new with the log. Where they come from does not matter: a flush writes what the WAL
// has, a compaction what its inputs have, and that is the same. So runs that are known and lie side by side
// hold the whole log up to flushed_end.
func (h *simHead) checkRuns(s *manifest.State) {
	for _, g := range s.GetSegments() {
		for _, r := range g.GetRuns() {
			known := h.runs[string(r.GetId())]
			if known != nil {
				if !known.same(r.GetStart(), r.GetEnd(), r.GetTables()) {
					h.o.broke("I5: version %d changes the run %x [%d, %d)", s.GetVersion(), r.GetId(), r.GetStart(), r.GetEnd())
				}
				continue
			}
			h.runs[string(r.GetId())] = newKnownRun(r)
			if err := h.compareRun(r); err != nil {
				h.o.broke("I4: version %d, segment %d: the run [%d, %d) is not what the log has: %w",
					s.GetVersion(), g.GetId(), r.GetStart(), r.GetEnd(), err)
			}
		}
	}
}

func newKnownRun(r *manifest.Run) *simKnownRun {
	run := &simKnownRun{start: r.GetStart(), end: r.GetEnd()}
	for _, t := range r.GetTables() {
		run.tables = append(run.tables, t.GetRef().ID())
	}
	return run
}

func (r *simKnownRun) same(start, end uint64, tables []*manifest.Table) bool {
	return r.start == start && r.end == end &&
		slices.EqualFunc(r.tables, tables, func(id base.ObjectID, t *manifest.Table) bool { return id == t.GetRef().ID() })
}

// compareRun reads the tables of a run and compares them with the log's records in its interval.
func (h *simHead) compareRun(r *manifest.Run) error {
	want := slices.Clone(between(h.o.log.records, engine.Between(r.GetStart(), r.GetEnd())))
	slices.SortFunc(want, func(a, b *simRecord) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.seq, b.seq))
	})
	for _, t := range r.GetTables() {
		rest, err := h.compareTable(t, want)
		if err != nil {
			return err
		}
		want = rest
	}
	if len(want) > 0 {
		return fmt.Errorf("%d records are missing from sequence %d of key %q on", len(want), want[0].seq, want[0].key)
	}
	return nil
}

// compareTable compares a table with the first of the records that are left, and returns those behind them.
func (h *simHead) compareTable(t *manifest.Table, want []*simRecord) (rest []*simRecord, err error) {
	id := t.GetRef().ID()
	body, err := h.o.object(id)
	if err != nil {
		return nil, err
	}
	name := id.Name()
	table, err := sst.Open(context.Background(), sst.ReaderOptions{
		Name: name, ID: id.ULID, Size: int64(t.GetSize()), MetaOffset: int64(t.GetMetaOffset()), Source: wholeObject(body),
	})
	if err != nil {
		return nil, err
	}
	n := 0
	err = table.Verify(context.Background(), func(rec *base.Record) error {
		if n == len(want) || !want[n].is(rec) {
			return fmt.Errorf("%s has %q of key %q at sequence %d, which is not next", name, rec.Value, rec.Key, rec.Sequence)
		}
		n++
		return nil
	})
	if err == nil {
		err = checkLine(t, want[:n])
	}
	if err != nil {
		return nil, err
	}
	return want[n:], nil
}

// checkLine compares what MANIFEST says of a table with its records.
func checkLine(t *manifest.Table, recs []*simRecord) error {
	if uint64(len(recs)) != t.GetRecords() || len(recs) == 0 {
		return fmt.Errorf("%s has %d records, the manifest says %d", t.GetRef().ID().Name(), len(recs), t.GetRecords())
	}
	lower, upper := t.GetLowerKey(), t.UpperKey
	first, last := base.MaxSequence, uint64(0)
	for _, r := range recs {
		first, last = min(first, r.seq), max(last, r.seq)
		if r.key < string(lower) || upper != nil && r.key > string(upper) {
			return fmt.Errorf("%s has key %q, the manifest says %q to %q", t.GetRef().ID().Name(), r.key, lower, upper)
		}
	}
	if first != t.GetFirstSequence() || last != t.GetLastSequence() {
		return fmt.Errorf("%s has sequences %d to %d, the manifest says %d to %d",
			t.GetRef().ID().Name(), first, last, t.GetFirstSequence(), t.GetLastSequence())
	}
	return nil
}

// wholeObject is a table in memory.
type wholeObject []byte

// ReadRange implements sst.RangeReader.
func (b wholeObject) ReadRange(_ context.Context, off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off+n > int64(len(b)) {
		return nil, errors.New("the range is not within the table")
	}
	return slices.Clone(b[off : off+n]), nil
}

// checkFlushed looks at what was flushed: the records of an object come into one run of its segment (I6).
func (h *simHead) checkFlushed(a, b *manifest.State) {
	if a.GetFlushedEnd() == b.GetFlushedEnd() {
		return
	}
	for i := h.flushed - 1; i >= 0 && h.o.log.objects[i].End > a.GetFlushedEnd(); i-- {
		x := h.o.log.objects[i]
		if x.count() == 0 {
			continue
		}
		g, run := holder(b, x.First)
		if g == nil || x.Segment < g.GetId() || x.Segment > g.Last() || x.End > run.GetEnd() {
			h.o.broke("I6: object (%d, %d) of segment %d with sequences [%d, %d) was not flushed into one run of that segment by version %d",
				x.Epoch, x.ID, x.Segment, x.First, x.End, b.GetVersion())
		}
	}
}

// holder returns the run, and its segment, whose interval has a sequence.
func holder(s *manifest.State, seq uint64) (*manifest.Segment, *manifest.Run) {
	for _, g := range slices.Backward(s.GetSegments()) {
		for _, r := range slices.Backward(g.GetRuns()) {
			if r.GetStart() <= seq && seq < r.GetEnd() {
				return g, r
			}
		}
	}
	return nil, nil
}

// checkGroups looks at groups that are new, or were cut: their segments lie side by side, and each has a run that is known, with
// its tables.
func (h *simHead) checkGroups(a, b *manifest.State) {
	was := map[string]uint32{}
	for _, g := range a.GetGroups() {
		was[string(g.GetId())] = g.GetFirstSegment()
	}
	for _, g := range b.GetGroups() {
		if first, ok := was[string(g.GetId())]; ok && first == g.GetFirstSegment() {
			continue
		}
		at := g.GetFirstSequence()
		for _, s := range h.o.refs.indexes[g.GetIndex().ID()] {
			if s.last() < g.GetFirstSegment() || s.first() > g.GetLastSegment() {
				continue
			}
			run := s.segment.GetRuns()[0]
			known := h.runs[string(run.GetId())]
			if s.segment.GetFirstSequence() != at || known == nil || !known.same(at, s.segment.GetEndSequence(), s.tables) {
				h.o.broke("I5: version %d has segment %d with sequences [%d, %d) in a group, after sequence %d, and that is not what was consolidated",
					b.GetVersion(), s.first(), s.segment.GetFirstSequence(), s.segment.GetEndSequence(), at)
			}
			at = s.segment.GetEndSequence()
		}
		if at != g.GetEndSequence() {
			h.o.broke("I5: version %d has a group up to sequence %d, its segments end at %d", b.GetVersion(), g.GetEndSequence(), at)
		}
	}
}
