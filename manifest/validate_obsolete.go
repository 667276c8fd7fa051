package manifest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/annalsdb/annals/internal/base"
)

// segmentRange is an inclusive range of segment ids.
type segmentRange struct{ first, last uint32 }

// obsoleteRange is the range of an entry that means the tables of segments of an index.
type obsoleteRange struct {
	segmentRange
	index base.ObjectID
}

// obsolete checks that nothing is both live and obsolete (I7) and nothing obsolete
// twice.
func (v *validator) obsolete() error {
	gone := make(map[base.ObjectID]bool, len(v.state.Obsolete))
	var ranges []obsoleteRange
	for i, o := range v.state.Obsolete {
		id, err := o.Ref.parse()
		if err != nil {
			return fmt.Errorf("obsolete entry %d: %w", i, err)
		}
		switch {
		case o.SinceMs < 0:
			return fmt.Errorf("obsolete entry %d: since %d", i, o.SinceMs)
		case o.SegmentsOnly && (id.Kind != base.KindIndex || o.FirstSegment < 1 || o.FirstSegment > o.LastSegment):
			return fmt.Errorf("obsolete entry %d: segments [%d, %d] of %s", i, o.FirstSegment, o.LastSegment, id.Name())
		case o.SegmentsOnly:
			ranges = append(ranges, obsoleteRange{segmentRange{o.FirstSegment, o.LastSegment}, id})
		case o.FirstSegment != 0 || o.LastSegment != 0:
			return fmt.Errorf("obsolete entry %d: whole object %s with segments", i, id.Name())
		case gone[id]:
			return fmt.Errorf("obsolete entry %d: %s is listed twice", i, id.Name())
		case v.live[id]:
			return fmt.Errorf("obsolete entry %d: %s is live", i, id.Name())
		default:
			gone[id] = true
		}
	}
	return v.obsoleteRanges(ranges, gone)
}

// obsoleteRanges checks the entries that mean the tables of some segments of an index. Each segment was
// dropped once, when it was the oldest, whichever index it was listed in then: so the ranges of all indexes are
// disjoint, and below what is live. A table that was moved on to a newer index is in none of them.
func (v *validator) obsoleteRanges(ranges []obsoleteRange, gone map[base.ObjectID]bool) error {
	slices.SortFunc(ranges, func(a, b obsoleteRange) int { return cmp.Compare(a.first, b.first) })
	for i, r := range ranges {
		if i > 0 && r.first <= ranges[i-1].last {
			return fmt.Errorf("obsolete segments [%d, %d] and [%d, %d] of %s overlap",
				ranges[i-1].first, ranges[i-1].last, r.first, r.last, r.index.Name())
		}
		if first := v.firstLive(); r.last >= first {
			return fmt.Errorf("obsolete segments [%d, %d] of %s, segment %d is live", r.first, r.last, r.index.Name(), first)
		}
		if !v.live[r.index] && !gone[r.index] {
			return fmt.Errorf("obsolete segments [%d, %d] of %s, which is neither live nor obsolete: it goes last",
				r.first, r.last, r.index.Name())
		}
	}
	return nil
}

// firstLive returns the id of the oldest segment.
func (v *validator) firstLive() uint32 {
	if len(v.state.Groups) > 0 {
		return v.state.Groups[0].FirstSegment
	}
	return v.state.Segments[0].Id
}
