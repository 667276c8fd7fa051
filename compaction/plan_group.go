package compaction

import (
	"slices"

	"github.com/annalsdb/annals/manifest"
)

// Groups
//
// A segment that no job will change any more is *finished* and becomes a group of its
// own: its table list moves from the MANIFEST to an index. Neighbouring groups are then
// regrouped: groupFanIn of them into one, and each of those into the one before it, up to
// manifest.MaxGroupSegments in one. So a key's look-up in a long log costs one request for 64
// segments, and few more for the newest. Only indexes are rewritten, each segment's entries
// about six times when all is regular: an entry has 13 bytes at most, whatever the
// segment holds of its key.
//
// Finished segments. Groups lie before all segments, so only the oldest segment can be
// finished. It is when it has one run and its series (cutSeries) is closed and has
// nothing to merge. When it has left, the series of the next one is cut anew: it may then
// reach further, and that segment may still be merged; a merge never needs a segment that
// has left. Bound: when Plan finds nothing, all sealed segments belong to one open series,
// of which tiers.go says that it has at most (F-1) * tiers(SegmentBytes/2, F).
//
// Regrouping. A group is of class 0 with 1 to 7 live segments, 1 with 8 to 63, and 2,
// full, with 64. Full groups are left alone and separate the others into stretches, in
// practice one, at the end. In a stretch a group counts as of the highest class among
// itself and those after it, so that groups of one class are neighbours (as with runs;
// the oldest group may have been trimmed by retention, and one whose keys are many
// stays small). groupFanIn of class 0, or two of class 1, become one group: of the
// oldest of them as many as fit, at most groupFanIn. One that does not fit together with the
// next is passed over.
//
// What fits. At most 64 segments, and an index that is small enough even if no key
// occurs twice: at most manifest.MaxEntryBytes of entries and manifest.MaxGroupTables
// tables. Where keys recur, the union shows in the `keys` of the result, and the next
// regrouping goes on from there.
//
// Bound. Let the weight of a group be
//
//	segments / MaxGroupSegments + keys * EntryBytes(64) / MaxEntryBytes + tables / MaxGroupTables
//
// A full group weighs at least 1, and so do two neighbours together of which the first was
// passed over. When Plan finds nothing, the last stretch has at most 7 groups of class 0 and
// one of class 1 beside those that were passed over, and before it are only full groups,
// passed ones and perhaps one that retention trimmed. These are at most
//
//	2 * (weight of all groups) + 10
//
// groups, and if all are small and none was trimmed, segments/64 + 8.

// groupFanIn groups of the low class become one.
const groupFanIn = 8

// Classes of groups by their live segments.
const (
	lowClass = iota
	middleClass
	fullClass
)

func classOf(g *manifest.Group) int {
	switch {
	case g.Segments >= manifest.MaxGroupSegments:
		return fullClass
	case g.Segments >= groupFanIn:
		return middleClass
	}
	return lowClass
}

// appendGroups adds the regroupings, and the group of the oldest segment if that is
// finished.
func appendGroups(jobs []Job, s *manifest.State, series []neighbours, l Limits) []Job {
	from := 0
	for i, g := range s.Groups {
		if classOf(g) == fullClass {
			jobs = appendStretch(jobs, s.Groups[from:i])
			from = i + 1
		}
	}
	jobs = appendStretch(jobs, s.Groups[from:])
	if len(series) > 0 && series[0].finished(l) {
		jobs = append(jobs, newGroupJob(nil, series[0].segments[:1]))
	}
	return jobs
}

// finished reports whether the first segment of the series, which is the state's first,
// will not be changed any more.
func (n *neighbours) finished(l Limits) bool {
	return n.closed && len(n.segments[0].Runs) == 1 && n.pick(l).len() < 2
}

// appendStretch adds the regroupings of neighbours that are not full.
func appendStretch(jobs []Job, groups []*manifest.Group) []Job {
	low := len(groups) // where those of the low class begin
	for low > 0 && classOf(groups[low-1]) == lowClass {
		low--
	}
	jobs = appendRegroups(jobs, groups[:low], 2)
	return appendRegroups(jobs, groups[low:], groupFanIn)
}

// appendRegroups adds the regroupings of neighbours that count as of one class, if there are
// enough of them.
func appendRegroups(jobs []Job, groups []*manifest.Group, enough int) []Job {
	for len(groups) >= enough {
		n := fitting(groups[:min(len(groups), groupFanIn)])
		if n >= 2 {
			jobs = append(jobs, newGroupJob(groups[:n], nil))
		}
		groups = groups[n:]
	}
	return jobs
}

// fitting returns how many of the groups, from the first on, fit in one: at least one.
func fitting(groups []*manifest.Group) int {
	var segments, keys, tables uint64
	for i, g := range groups {
		segments, tables = segments+uint64(g.Segments), tables+uint64(g.Tables)
		keys = addSaturating(keys, g.Keys)
		if i > 0 && (segments > manifest.MaxGroupSegments || tables > manifest.MaxGroupTables ||
			keys > manifest.MaxEntryBytes/uint64(manifest.EntryBytes(int(segments)))) {
			return i
		}
	}
	return len(groups)
}

// newGroupJob makes the job that puts groups and the segments behind them into one group.
func newGroupJob(groups []*manifest.Group, segments []*manifest.Segment) Job {
	j := Job{Kind: Group, Groups: slices.Clone(groups), Segments: slices.Clone(segments)}
	for _, g := range segments {
		for _, r := range g.Runs {
			for _, t := range r.Tables {
				j.addSums(t.Records, t.Bytes, t.Size)
			}
		}
		j.Last = g.Last()
	}
	for i := len(groups) - 1; i >= 0; i-- {
		g := groups[i]
		j.addSums(g.Records, g.Bytes, g.StoredBytes)
		j.First, j.Last = g.FirstSegment, max(j.Last, g.LastSegment)
	}
	if len(groups) == 0 {
		j.First = segments[0].Id
	}
	return j
}
