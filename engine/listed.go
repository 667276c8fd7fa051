package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// The tables of segments in groups are not in the MANIFEST: an index lists them. The
// collector, Check and Inspect, which must know of every table, read those lists here. What
// they rely on:
//
//   - An index is written once: what it says may be read at any time, in any order, and kept.
//   - Live segments, and dropped ones that wait for the collector, are named by ranges of segment
//     ids of an index; these ranges are disjoint. A table's name carries the id of a
//     segment within the range that names it, so that one name is looked up in one list.
//     A list that breaks this is damage.
//   - They go past the caches: each list is read once, and what is deleted on its word should
//     be on the word of the store.

// listedRange is a range of segments whose tables an index lists.
type listedRange struct {
	index       base.ObjectID
	size        int64 // of the index; 0: the state does not tell
	first, last uint32
	dropped     bool // by retention: an entry of the obsolete list
}

func (r *listedRange) String() string {
	what := "segments"
	if r.dropped {
		what = "dropped segments"
	}
	return fmt.Sprintf("%s %d to %d", what, r.first, r.last)
}

// listedRanges returns the ranges that a state names by an index: those of groups, and those on
// the obsolete list. Not among them: an index that is obsolete as a whole, since regrouping has
// copied its lists to another.
func listedRanges(s *manifest.State) (ranges []listedRange) {
	for _, g := range s.GetGroups() {
		ranges = append(ranges, liveRange(g))
	}
	sizes := sizesOfIndexes(s)
	for _, o := range s.GetObsolete() {
		if o.GetSegmentsOnly() {
			ranges = append(ranges, droppedRange(o, sizes[o.GetRef().ID()]))
		}
	}
	return ranges
}

// sizesOfIndexes returns the sizes of a state's indexes, live or obsolete. An entry that is a
// range of segments has the size of their tables, not of the index.
func sizesOfIndexes(s *manifest.State) map[base.ObjectID]int64 {
	sizes := make(map[base.ObjectID]int64)
	for _, g := range s.GetGroups() {
		sizes[g.GetIndex().ID()] = int64(g.GetIndexSize())
	}
	for _, o := range s.GetObsolete() {
		if id := o.GetRef().ID(); id.Kind == base.KindIndex && !o.GetSegmentsOnly() {
			sizes[id] = int64(o.GetSize())
		}
	}
	return sizes
}

func liveRange(g *manifest.Group) listedRange {
	return listedRange{index: g.GetIndex().ID(), size: int64(g.GetIndexSize()), first: g.GetFirstSegment(), last: g.GetLastSegment()}
}

func droppedRange(o *manifest.Obsolete, size int64) listedRange {
	return listedRange{index: o.GetRef().ID(), size: size, first: o.GetFirstSegment(), last: o.GetLastSegment(), dropped: true}
}

// isDamage reports whether an error says that an object is not what it should be, or not there,
// rather than that the store did not answer.
func isDamage(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, objstore.ErrNotFound) || errors.Is(err, manifest.ErrVersion)
}

// listReader reads the lists of one index. It belongs to one goroutine.
type listReader struct {
	tables *tables
	ref    base.ObjectID
	index  *manifest.Index

	ahead []byte // what was read last
	at    int64  // where in the index it begins
}

// listReadAhead is how much of an index is read at once for its lists, which lie side by side
// in it. A list is a few KiB; a larger one is read whole.
const listReadAhead = 1 << 20

// uncached returns tables that are read past the caches.
func uncached(store objstore.Store, env *base.Env) *tables { return &tables{store: store, env: env} }

// openLists opens the index of a range.
func openLists(ctx context.Context, ts *tables, r *listedRange) (*listReader, error) {
	if r.size <= 0 {
		return nil, base.Corruptf(base.ManifestName(tree), 0, "nothing tells the size of %s, which lists the tables of %s", r.index.Name(), r)
	}
	x, err := ts.index(ctx, r.index, r.size)
	if err != nil {
		return nil, err
	}
	return &listReader{tables: ts, ref: r.index, index: x}, nil
}

// positions returns where in the index the segments of a range are: from, and up to but not
// including to.
func (l *listReader) positions(r *listedRange) (from, to int, err error) {
	from, ok := l.index.Find(r.first)
	last, ok2 := l.index.Find(r.last)
	if !ok || !ok2 || l.index.Segment(from).GetSegment().GetId() != r.first || l.index.Segment(last).GetSegment().Last() != r.last {
		return 0, 0, base.Corruptf(l.ref.Name(), 0, "%s are not whole segments of the index", r)
	}
	return from, last + 1, nil
}

// list returns the tables of segment i of the index. They must not be changed.
func (l *listReader) list(ctx context.Context, i int) ([]*manifest.Table, error) {
	frame, err := l.frame(ctx, i)
	if err != nil {
		return nil, err
	}
	list, err := l.index.ParseList(i, frame)
	if err != nil {
		return nil, err
	}
	segment := l.index.Segment(i).GetSegment()
	for _, t := range list {
		if id := t.GetRef().ID(); id.Tree == tree && (id.Segment < segment.GetId() || id.Segment > segment.Last()) {
			off, _ := l.index.ListRange(i)
			return nil, base.Corruptf(l.ref.Name(), off, "segment %d lists %s, a table of another segment", segment.GetId(), id.Name())
		}
	}
	return list, nil
}

func (l *listReader) frame(ctx context.Context, i int) ([]byte, error) {
	if frame, ok := l.index.Inline(i); ok {
		return frame, nil
	}
	off, n := l.index.ListRange(i)
	if off < l.at || off+n > l.at+int64(len(l.ahead)) {
		last, size := l.index.ListRange(l.index.Len() - 1)
		body, err := l.tables.read(ctx, l.ref.Name(), off, min(max(n, listReadAhead), last+size-off))
		if err != nil {
			return nil, err
		}
		l.at, l.ahead = off, body
	}
	return l.ahead[off-l.at:][:n], nil
}

// namer tells which objects a version of the MANIFEST names, those that its indexes list
// included. It holds the list of one segment at a time, and costs few requests when it is asked
// in the order of names. It belongs to one goroutine.
type namer struct {
	tables  *tables
	objects map[base.ObjectID]struct{}
	ranges  []listedRange
	// damage is what kept it from knowing what a range names. Everything that the range may
	// name then counts as named.
	damage []error
	broken map[listPart]bool // what damage is about

	lists *listReader // of the index that was looked at last, or nil
	part  listPart    // what named is about
	named map[base.ObjectID]struct{}
}

// listPart is the list of one segment of an index, or the index as a whole.
type listPart struct {
	index base.ULID
	i     int // wholeIndex, or of the segment
}

const wholeIndex = -1

func newNamer(ts *tables, s *manifest.State) *namer {
	return &namer{tables: ts, objects: manifest.NamedObjects(s), ranges: listedRanges(s), broken: make(map[listPart]bool)}
}

// names reports whether the version names an object. An error says that the store did not
// tell.
func (n *namer) names(ctx context.Context, id base.ObjectID) (bool, error) {
	if _, ok := n.objects[id]; ok {
		return true, nil
	}
	if id.Kind != base.KindSST {
		return false, nil
	}
	for i := range n.ranges {
		r := &n.ranges[i]
		if id.Segment < r.first || id.Segment > r.last {
			continue
		}
		if ok, err := n.inRange(ctx, r, id); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// listsTable reports whether a table that the version names is listed by an index, not by the MANIFEST.
func (n *namer) listsTable(id base.ObjectID) bool {
	_, direct := n.objects[id]
	return id.Kind == base.KindSST && !direct
}

// inRange reports whether a range that spans the segment in a table's name names the table.
func (n *namer) inRange(ctx context.Context, r *listedRange, id base.ObjectID) (bool, error) {
	whole := listPart{r.index.ULID, wholeIndex}
	if n.broken[whole] {
		return true, nil
	}
	if n.lists == nil || n.lists.ref != r.index {
		lists, err := openLists(ctx, n.tables, r)
		if err != nil {
			return n.unknown(whole, r, err)
		}
		n.lists = lists
	}
	if _, _, err := n.lists.positions(r); err != nil {
		return n.unknown(whole, r, err)
	}
	i, ok := n.lists.index.Find(id.Segment)
	if !ok {
		return false, nil // an id between two segments, which none ever had
	}
	part := listPart{r.index.ULID, i}
	if n.broken[part] {
		return true, nil
	}
	if n.named == nil || n.part != part {
		list, err := n.lists.list(ctx, i)
		if err != nil {
			return n.unknown(part, r, err)
		}
		n.part, n.named = part, make(map[base.ObjectID]struct{}, len(list))
		for _, t := range list {
			n.named[t.GetRef().ID()] = struct{}{}
		}
	}
	_, ok = n.named[id]
	return ok, nil
}

// unknown notes damage of a part of an index.
func (n *namer) unknown(part listPart, r *listedRange, err error) (named bool, _ error) {
	if !isDamage(err) {
		return false, err
	}
	if n.broken[part] {
		return true, nil
	}
	n.broken[part] = true
	n.damage = append(n.damage, fmt.Errorf("the tables of %s cannot be told: %w", r, err))
	return true, nil
}
