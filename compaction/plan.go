package compaction

import (
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// Kind says why runs are merged.
type Kind uint8

const (
	// Relieve merges small neighbouring runs of the active segment, so that their
	// number stays bounded.
	Relieve Kind = iota + 1
	// Consolidate brings a sealed segment towards one run.
	Consolidate
	// Merge makes one segment of small sealed neighbours.
	Merge
	// Group moves the table lists of consolidated segments out of the MANIFEST into an
	// index, or makes one index of those of neighbouring groups. No record is rewritten.
	Group
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	names := [...]string{Relieve: "relieve", Consolidate: "consolidate", Merge: "merge", Group: "group"}
	if k < Relieve || k > Group {
		return fmt.Sprintf("Kind(%d)", k)
	}
	return names[k]
}

// Job is one compaction to do: Inputs, in sequence order, become one run. Or, if Kind is
// Group, Groups and the Segments behind them become one group.
type Job struct {
	Kind Kind
	// First and Last are ids of segments, as the state names them; the same unless
	// Kind is Merge. If it is Group they are the first and the last id that the inputs
	// span.
	First, Last uint32
	// Inputs, Groups and Segments are the state's own: not to be changed.
	Inputs   []*manifest.Run
	Groups   []*manifest.Group
	Segments []*manifest.Segment
	// Records, Bytes (keys and values) and Stored (the tables' sizes) are the sums of
	// the inputs by the manifest.
	Records, Bytes, Stored uint64
}

// String describes the job in one line.
func (j Job) String() string {
	where := fmt.Sprintf("segment %d", j.First)
	if j.First != j.Last {
		where = fmt.Sprintf("segments %d to %d", j.First, j.Last)
	}
	what := fmt.Sprintf("%d runs", len(j.Inputs))
	if j.Kind == Group {
		what = fmt.Sprintf("%d groups, %d segments", len(j.Groups), len(j.Segments))
	}
	return fmt.Sprintf("%s %s: %s, %d records, %d bytes, %d stored", j.Kind, where, what, j.Records, j.Bytes, j.Stored)
}

func newJob(kind Kind, first, last uint32, inputs []*manifest.Run) Job {
	j := Job{Kind: kind, First: first, Last: last, Inputs: inputs}
	for _, r := range inputs {
		for _, t := range r.Tables {
			j.addSums(t.Records, t.Bytes, t.Size)
		}
	}
	return j
}

// compression is what suits the outputs of a job: those of the active segment are merged again when it
// is sealed.
func (j *Job) compression() sst.Compression {
	if j.Kind == Relieve {
		return sst.Fast
	}
	return sst.Dense
}

func (j *Job) addSums(records, bytes, stored uint64) {
	j.Records = addSaturating(j.Records, records)
	j.Bytes = addSaturating(j.Bytes, bytes)
	j.Stored = addSaturating(j.Stored, stored)
}

// Plan returns the compactions that the state calls for, most urgent first: relief
// of the active segment, then consolidations, then merges, then groups, each oldest
// first. No two of them touch the same segment, so they may run at the same time. It is a pure
// function: the same state and limits give the same jobs. It does not change the
// state, but the jobs share its runs. When there is nothing to do it returns nil, and
// doing what it says over and over gets there.
func Plan(s *manifest.State, l Limits) []Job {
	l = l.checked()
	var jobs []Job
	for _, g := range s.Segments {
		if !g.Sealed {
			jobs = appendRelief(jobs, g, l)
		}
	}
	for _, g := range s.Segments {
		if g.Sealed && len(g.Runs) > 1 {
			w := pickCheapest(runSizes(g.Runs), inputsPerFanIn*l.FanIn)
			jobs = append(jobs, newJob(Consolidate, g.Id, g.Id, g.Runs[w.from:w.to]))
		}
	}
	series := cutSeries(s, l)
	for i := range series {
		jobs = series[i].appendMerge(jobs, l)
	}
	return appendGroups(jobs, s, series, l)
}

// appendRelief adds the relief of the active segment, if it needs one.
func appendRelief(jobs []Job, g *manifest.Segment, l Limits) []Job {
	settled := 0
	for settled < len(g.Runs) && isSettled(g.Runs[settled], l) {
		settled++
	}
	runs := g.Runs[settled:]
	w := pickTier(runSizes(runs), l.settledBytes(), l.FanIn)
	if w.len() == 0 {
		return jobs
	}
	return append(jobs, newJob(Relieve, g.Id, g.Id, runs[w.from:w.to]))
}

// isSettled reports whether a run is the product of a merge and large.
func isSettled(r *manifest.Run, l Limits) bool {
	for _, t := range r.Tables {
		if t.Ref.GetRole() != manifest.Role(base.RoleCompactor) {
			return false
		}
	}
	return runBytes(r) >= l.settledBytes()
}

func runBytes(r *manifest.Run) (n uint64) {
	for _, t := range r.Tables {
		n = addSaturating(n, t.Bytes)
	}
	return n
}

func runSizes(runs []*manifest.Run) []uint64 {
	sizes := make([]uint64, len(runs))
	for i, r := range runs {
		sizes[i] = runBytes(r)
	}
	return sizes
}

// neighbours is a series of small sealed segments that may become one, or one large
// segment.
type neighbours struct {
	segments []*manifest.Segment
	sizes    []uint64
	total    uint64
	begin    int64 // the first seal time in it, milliseconds
	closed   bool  // no segment will be added to it
}

// cutSeries cuts the sealed segments into series that may become one segment each,
// oldest first. All but the last are closed: what comes next is too large, too late, or
// would make the series larger than a segment should be. A closed series stays as it is
// until a segment of it is merged, grouped or dropped.
func cutSeries(s *manifest.State, l Limits) []neighbours {
	var all []neighbours
	var before int64 // seal time of the segment before
	if n := len(s.Groups); n > 0 {
		before = s.Groups[n-1].LastSealTimeMs
	}
	open := false // there is a last series to which more may be added
	closeSeries := func() {
		if open {
			all[len(all)-1].closed, open = true, false
		}
	}
	for _, g := range s.Segments {
		if !g.Sealed {
			break
		}
		var size uint64
		for _, r := range g.Runs {
			size = addSaturating(size, runBytes(r))
		}
		begin := firstSeal(g, before)
		before = g.SealTimeMs
		full := size >= l.fullBytes()
		if full || open && g.SealTimeMs-all[len(all)-1].begin > int64(l.MergeWithin/time.Millisecond) {
			closeSeries()
		}
		if !open {
			all, open = append(all, neighbours{begin: begin}), true
		}
		cur := &all[len(all)-1]
		cur.segments, cur.sizes = append(cur.segments, g), append(cur.sizes, size)
		if cur.total = addSaturating(cur.total, size); full || cur.total >= uint64(l.SegmentBytes) {
			closeSeries()
		}
	}
	return all
}

// firstSeal returns the time at which the first of the segments that were merged
// into g was sealed, or an earlier one: the state has no longer the exact one. That
// was after the segment before g was sealed, and after its own first record came.
func firstSeal(g *manifest.Segment, before int64) int64 {
	if g.LastId == 0 {
		return g.SealTimeMs
	}
	return min(g.SealTimeMs, max(before, g.StartTimeMs))
}

// pick returns the segments to merge next.
func (n *neighbours) pick(l Limits) window {
	if n.closed {
		return pickClosed(n.sizes, l.FanIn)
	}
	return pickTier(n.sizes, l.fullBytes(), l.FanIn)
}

// appendMerge adds the merge of a part of the series, unless there is nothing to merge or
// a segment in it has to be consolidated first.
func (n *neighbours) appendMerge(jobs []Job, l Limits) []Job {
	w := n.pick(l)
	if w.len() < 2 {
		return jobs
	}
	var inputs []*manifest.Run
	for _, g := range n.segments[w.from:w.to] {
		if len(g.Runs) != 1 {
			return jobs
		}
		inputs = append(inputs, g.Runs[0])
	}
	return append(jobs, newJob(Merge, n.segments[w.from].Id, n.segments[w.to-1].Id, inputs))
}
