package engine

import (
	"bytes"
	"sort"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/memtable"
	"github.com/annalsdb/annals/state"
)

// memory is a memtable and the interval of sequences and WAL objects that it
// covers. From and to bound WAL objects, start and end sequences.
//
// The table has its own lock. The other fields are guarded by DB.mu until the
// table is frozen, and constant afterwards.
type memory struct {
	table   *memtable.Table
	segment uint32
	start   uint64        // every earlier sequence is in an older memory or a run
	end     uint64        // set when frozen
	from    manifest.Pos  // WAL position at which its records begin
	to      manifest.Pos  // set when frozen: WAL position after its last record
	seal    bool          // set when frozen: the segment ends with it
	heap    int64         // set when frozen: what the table occupies
	bytes   int64         // record bytes, and changes
	changes int64         // bytes of the changes of the small state in its WAL objects; 0: none
	state   *state.Tables // set when frozen, if there are changes: the small state at to
	marks   *marks        // of a replica's memory; nil: it is the writer's
}

// empty reports whether nothing was added: then no WAL object is its own.
func (m *memory) empty() bool { return m.table.Empty() && m.changes == 0 }

// view is one consistent state of the log: the groups and runs of a manifest version
// and the memories that continue them. It is immutable (the active memory's table
// grows, but only above any frontier that was read before the view).
//
// Invariants: groups, then runs, are in sequence order and disjoint (I5); memories are in
// sequence order, adjacent, and together cover [memStart, infinity); every
// sequence below memStart that is readable is in a segment of a group or in a run of the
// view. No group, no run and no memory reaches below first: reads never return what
// retention dropped.
type view struct {
	snap     *manifest.Snapshot
	groups   []viewGroup
	runs     []viewRun
	segments []*manifest.Segment // those that are not in groups
	memories []*memory
	memStart uint64
	first    uint64 // the oldest sequence that the log still holds
}

// viewRun is a run with what a read needs to decide whether to open its tables.
type viewRun struct {
	segment, lastSegment uint32 // the ids that its segment spans
	start, end           uint64
	tables               []viewTable
}

// viewTable is a table as the manifest lists it.
type viewTable struct {
	id          base.ObjectID
	name        string
	size        int64
	metaOffset  int64
	lower       []byte
	upper       []byte
	bounded     bool // upper is a bound
	first, last uint64
	firstTime   int64
	lastTime    int64
	grouped     uint32 // its segment, if an index lists it, not the manifest; else 0
}

// newView derives a view. The memories are those that cover what the snapshot
// does not, and any older ones that are adjacent to them.
func newView(snap *manifest.Snapshot, memories []*memory) *view {
	v := &view{
		snap: snap, groups: newViewGroups(snap.State.GetGroups()),
		segments: snap.State.GetSegments(), memories: memories,
	}
	for _, s := range v.segments {
		for _, r := range s.GetRuns() {
			v.runs = append(v.runs, newViewRun(s, r))
		}
	}
	v.first = firstSequence(snap.State)
	v.memStart = memories[0].start
	return v
}

// withMemories returns a view of the same manifest version with other memories.
func (v *view) withMemories(memories []*memory) *view {
	w := *v
	w.memories = memories
	w.memStart = memories[0].start
	return &w
}

func newViewRun(s *manifest.Segment, r *manifest.Run) viewRun {
	run := viewRun{segment: s.GetId(), lastSegment: s.Last(), start: r.GetStart(), end: r.GetEnd()}
	for _, t := range r.GetTables() {
		run.tables = append(run.tables, viewTable{
			id:         t.GetRef().ID(),
			name:       t.GetRef().ID().Name(),
			size:       int64(t.GetSize()),
			metaOffset: int64(t.GetMetaOffset()),
			lower:      t.GetLowerKey(),
			upper:      t.UpperKey,
			bounded:    t.UpperKey != nil,
			first:      t.GetFirstSequence(),
			last:       t.GetLastSequence(),
			firstTime:  t.GetFirstTimestampMs(),
			lastTime:   t.GetLastTimestampMs(),
		})
	}
	return run
}

// firstSequence returns the start of the oldest segment.
func firstSequence(s *manifest.State) uint64 {
	if groups := s.GetGroups(); len(groups) > 0 {
		return groups[0].GetFirstSequence()
	}
	return s.GetSegments()[0].GetFirstSequence()
}

// covering returns the tables that can hold the key by their bounds. They are
// neighbours, usually one or none: tables of a run ascend by both bounds.
func (r *viewRun) covering(key []byte) []viewTable {
	from := sort.Search(len(r.tables), func(i int) bool {
		return !r.tables[i].bounded || bytes.Compare(key, r.tables[i].upper) <= 0
	})
	n := sort.Search(len(r.tables)-from, func(i int) bool { return bytes.Compare(key, r.tables[from+i].lower) < 0 })
	return r.tables[from : from+n]
}

// overlaps reports whether the table can hold a sequence of r.
func (t *viewTable) overlaps(r Range) bool { return t.first < r.End && r.Start <= t.last }

// onDisk returns the part of r that groups and runs serve; memories serve the rest.
func (v *view) onDisk(r Range) Range { return Between(r.Start, min(r.End, v.memStart)) }

// runsIn returns the runs that cover a sequence of r.
func (v *view) runsIn(r Range) []viewRun {
	if r.Empty() {
		return nil
	}
	from := sort.Search(len(v.runs), func(i int) bool { return v.runs[i].end > r.Start })
	to := sort.Search(len(v.runs), func(i int) bool { return v.runs[i].start >= r.End })
	return v.runs[from:to]
}

// groupsIn returns the groups that cover a sequence of r.
func (v *view) groupsIn(r Range) []viewGroup {
	if r.Empty() {
		return nil
	}
	from := sort.Search(len(v.groups), func(i int) bool { return v.groups[i].end > r.Start })
	to := sort.Search(len(v.groups), func(i int) bool { return v.groups[i].start >= r.End })
	return v.groups[from:to]
}

// names reports whether the view's manifest needs the object: it lists it, or a group holds the
// segment in whose table list it is. Which index that list is in does not matter: it is
// copied from one to the next.
func (v *view) names(m *missingError) bool {
	for i := range v.groups {
		if v.groups[i].index == m.id || m.segment != 0 && v.groups[i].holdsSegment(m.segment) {
			return true
		}
	}
	for i := range v.runs {
		for j := range v.runs[i].tables {
			if v.runs[i].tables[j].id == m.id {
				return true
			}
		}
	}
	return false
}

// memoriesFrom returns the index of the first memory that can hold a sequence
// at or above seq.
func (v *view) memoriesFrom(seq uint64) int {
	i := sort.Search(len(v.memories), func(i int) bool { return v.memories[i].start > seq })
	return max(0, i-1)
}

// memoryRange returns the sequences that memory i serves, cut to r.
func (v *view) memoryRange(i int, r Range) Range {
	end := uint64(base.MaxSequence)
	if i+1 < len(v.memories) {
		end = v.memories[i+1].start
	}
	return Range{Start: v.memories[i].start, End: end}.Intersect(r)
}

// millis converts a record timestamp.
func millis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
