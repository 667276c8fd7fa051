package manifest

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// Index is the opened table of contents of an index. It is immutable and safe for concurrent use.
type Index struct {
	id       base.ObjectID
	size     int64
	footer   indexFooter
	segments []*IndexedSegment
	// The table lists that the tail held, as they lie in the index from inlineAt to its table of contents.
	inline   []byte
	inlineAt int64
}

// ParseIndex opens the index id of size bytes by its last bytes: at least min(size, IndexTailBytes) of
// them. It keeps nothing of tail. Errors: base.ErrCorrupt, ErrVersion.
func ParseIndex(id base.ObjectID, size int64, tail []byte) (*Index, error) {
	name := id.Name()
	if size < minShardBytes+2*minPartBytes+footerBytes {
		return nil, base.Corruptf(name, 0, "%d bytes are no index", size)
	}
	if n := int64(len(tail)); n < min(size, IndexTailBytes) || n > size {
		return nil, base.Corruptf(name, size-n, "%d of the last bytes of %d", n, size)
	}
	start, footerAt := size-int64(len(tail)), size-footerBytes
	footer, err := openFooter(id, footerAt, tail[footerAt-start:])
	if err != nil {
		return nil, err
	}
	x := &Index{id: id, size: size, footer: footer}
	toc := int64(footer.tocOffset) // in the tail: it is small and ends at the footer
	contents := &IndexContents{}
	if err := openPart(id, toc, tail[toc-start:footerAt-start], contents); err != nil {
		return nil, err
	}
	x.segments = contents.Segments
	if err := x.check(); err != nil {
		return nil, base.Corruptf(name, toc, "%v", err)
	}
	x.inlineAt = toc
	for _, s := range slices.Backward(x.segments) {
		if int64(s.ListOffset) < start {
			break
		}
		x.inlineAt = int64(s.ListOffset)
	}
	x.inline = bytes.Clone(tail[x.inlineAt-start : toc-start])
	return x, nil
}

// check checks the structure of the table of contents: what a group's line and MANIFEST say of
// segments must follow from it.
func (x *Index) check() error {
	if n := x.footer.shape.Segments; len(x.segments) != n {
		return fmt.Errorf("%d segments, the footer says %d", len(x.segments), n)
	}
	var all live
	at := x.footer.shape.bytes() // where the next list begins
	for i, s := range x.segments {
		if err := checkIndexed(s); err != nil {
			return fmt.Errorf("segment %d of the index: %w", i, err)
		}
		if s.ListOffset != at || s.ListSize < minPartBytes || uint64(s.ListSize) > x.footer.tocOffset-at {
			return fmt.Errorf("segment %d: list of %d bytes at %d, want it at %d", s.Segment.Id, s.ListSize, s.ListOffset, at)
		}
		at += uint64(s.ListSize)
		if err := all.join(liveOfIndexed(s)); err != nil {
			return fmt.Errorf("segment %d: %w", s.Segment.Id, err)
		}
	}
	if at != x.footer.tocOffset {
		return fmt.Errorf("lists end at %d, not at the table of contents", at)
	}
	return nil
}

// checkIndexed checks one line of a table of contents: a sealed segment with one run whose tables are elsewhere.
func checkIndexed(x *IndexedSegment) error {
	s := x.GetSegment()
	switch {
	case s.GetId() < 1 || s.LastId != 0 && s.LastId <= s.Id:
		return fmt.Errorf("ids %d to %d", s.GetId(), s.GetLastId())
	case !s.Sealed || s.FirstSequence >= s.EndSequence:
		return fmt.Errorf("sealed is %t, window [%d, %d)", s.Sealed, s.FirstSequence, s.EndSequence)
	case len(s.Runs) != 1:
		return fmt.Errorf("%d runs", len(s.Runs))
	case len(s.Runs[0].Id) != idBytes || len(s.Runs[0].Tables) != 0:
		return fmt.Errorf("run with an id of %d bytes and %d tables", len(s.Runs[0].Id), len(s.Runs[0].Tables))
	case s.Runs[0].Start != s.FirstSequence || s.Runs[0].End != s.EndSequence:
		return fmt.Errorf("run of [%d, %d), window [%d, %d)", s.Runs[0].Start, s.Runs[0].End, s.FirstSequence, s.EndSequence)
	case x.Tables < 1 || x.Records < uint64(x.Tables) || x.StoredBytes < uint64(x.Tables):
		return fmt.Errorf("%d tables of %d bytes with %d records", x.Tables, x.StoredBytes, x.Records)
	case x.Records > s.EndSequence-s.FirstSequence || x.Keys < 1 || x.Keys > x.Records:
		return fmt.Errorf("%d keys, %d records, window [%d, %d)", x.Keys, x.Records, s.FirstSequence, s.EndSequence)
	}
	return nil
}

// Check compares a group's line with the index. The error matches base.ErrCorrupt.
func (x *Index) Check(g *Group) error {
	want := &Group{Index: RefOf(x.id), IndexSize: uint64(x.size), Keys: x.footer.keys,
		TocOffset: x.footer.tocOffset, Shards: x.footer.shape.Shards, ShardBytes: x.footer.shape.ShardBytes}
	from, to := x.Live(g)
	l, err := x.liveFrom(from, to)
	if err == nil && to != x.Len() { // retention drops the oldest
		err = fmt.Errorf("only the first %d of %d segments are live", to, x.Len())
	}
	if err == nil {
		err = x.checkRef(g.Index)
	}
	if err != nil {
		return base.Corruptf(x.id.Name(), int64(x.footer.tocOffset), "group %x: %v", g.Id, err)
	}
	l.set(want)
	if liveOf(g) != l || g.Shape() != want.Shape() || g.IndexSize != want.IndexSize || g.TocOffset != want.TocOffset || g.Keys != want.Keys {
		return base.Corruptf(x.id.Name(), int64(x.footer.tocOffset), "MANIFEST's line is {%v}, the index gives {%v}", g, want)
	}
	return nil
}

func (x *Index) checkRef(ref *ObjectRef) error {
	id, err := ref.parse()
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if id != x.id {
		return fmt.Errorf("index is %s", id.Name())
	}
	return nil
}

// Live returns the positions [from, to) of the group's live segments. The line must be one that Check accepts.
func (x *Index) Live(g *Group) (from, to int) {
	from = sort.Search(len(x.segments), func(i int) bool { return x.segments[i].Segment.Last() >= g.FirstSegment })
	to = sort.Search(len(x.segments), func(i int) bool { return x.segments[i].Segment.Id > g.LastSegment })
	return from, to
}

// liveFrom returns what a line says of the segments [from, to).
func (x *Index) liveFrom(from, to int) (l live, err error) {
	if from >= to {
		return l, fmt.Errorf("no segment is live of %d", len(x.segments))
	}
	for _, s := range x.segments[from:to] {
		if err := l.join(liveOfIndexed(s)); err != nil {
			return l, err
		}
	}
	return l, nil
}

// Trim returns the group's line without the segments up to upTo: Segment.Last of a live segment
// that is not the last one. A line that is not of this index gives an error that matches base.ErrCorrupt.
func (x *Index) Trim(g *Group, upTo uint32) (*Group, error) {
	if err := x.Check(g); err != nil {
		return nil, err
	}
	from, to := x.Live(g)
	cut := from
	for cut < to && x.segments[cut].Segment.Last() <= upTo {
		cut++
	}
	if cut == from || cut == to || x.segments[cut-1].Segment.Last() != upTo {
		return nil, fmt.Errorf("segments up to %d cannot be cut from group %x of segments %d to %d", upTo, g.Id, g.FirstSegment, g.LastSegment)
	}
	l, err := x.liveFrom(cut, to)
	if err != nil {
		return nil, err
	}
	trimmed := proto.CloneOf(g)
	l.set(trimmed)
	return trimmed, nil
}

// Shape returns how the key shards lie.
func (x *Index) Shape() Shape { return x.footer.shape }

// Len returns the number of segments, live or not.
func (x *Index) Len() int { return len(x.segments) }

// Segment returns what the table of contents says of segment i, in order. It must not be changed.
func (x *Index) Segment(i int) *IndexedSegment { return x.segments[i] }

// Find returns the position of the segment that spans an id.
func (x *Index) Find(segmentID uint32) (i int, ok bool) {
	i = sort.Search(len(x.segments), func(i int) bool { return x.segments[i].Segment.Last() >= segmentID })
	return i, i < len(x.segments) && x.segments[i].Segment.Id <= segmentID
}

// ListRange returns where the frame of segment i's table list lies.
func (x *Index) ListRange(i int) (off, n int64) {
	return int64(x.segments[i].ListOffset), int64(x.segments[i].ListSize)
}

// Inline returns the frame of segment i's table list if it was in the tail. It must not be changed.
func (x *Index) Inline(i int) ([]byte, bool) {
	off, n := x.ListRange(i)
	if off < x.inlineAt {
		return nil, false
	}
	return x.inline[off-x.inlineAt:][:n:n], true
}

// ParseList reads the table list of segment i from its frame. The tables are checked as those of a
// run in MANIFEST, and against the table of contents. It keeps nothing of frame. Errors match base.ErrCorrupt.
func (x *Index) ParseList(i int, frame []byte) ([]*Table, error) {
	off, n := x.ListRange(i)
	if int64(len(frame)) != n {
		return nil, base.Corruptf(x.id.Name(), off, "table list has %d bytes, want %d", len(frame), n)
	}
	list := &TableList{}
	if err := openPart(x.id, off, frame, list); err != nil {
		return nil, err
	}
	if err := checkTables(x.segments[i], list.Tables); err != nil {
		return nil, base.Corruptf(x.id.Name(), off, "segment %d: %v", x.segments[i].Segment.Id, err)
	}
	return list.Tables, nil
}

// checkTables checks the tables of a segment as those of a run in MANIFEST, and compares
// them with its line.
func checkTables(x *IndexedSegment, tables []*Table) error {
	v := newValidator(&State{LastTimestampMs: math.MaxInt64})
	r := x.Segment.Runs[0]
	if err := v.run(&Run{Id: r.Id, Start: r.Start, End: r.End, Tables: tables}, x.Segment.FirstSequence); err != nil {
		return err
	}
	var l live
	var keys uint64 // at most the records, of which there are fewer than sequences
	for _, t := range tables {
		if err := l.count(1, t.Records, t.Bytes, t.Size); err != nil {
			return err
		}
		keys += t.Keys
	}
	if l.tables != x.Tables || l.records != x.Records || l.bytes != x.Bytes || l.storedBytes != x.StoredBytes {
		return fmt.Errorf("%d tables of %d bytes with %d records of %d bytes, want %d of %d with %d of %d",
			l.tables, l.storedBytes, l.records, l.bytes, x.Tables, x.StoredBytes, x.Records, x.Bytes)
	}
	// A key that ends one table and begins the next is counted in both.
	if x.Keys > keys || keys-x.Keys > uint64(len(tables)-1) {
		return fmt.Errorf("%d keys in %d tables with %d together", x.Keys, len(tables), keys)
	}
	return nil
}

// Full returns segment i with its tables, as it was in MANIFEST. It shares the tables.
func (x *Index) Full(i int, tables []*Table) *Segment {
	s := proto.CloneOf(x.segments[i].Segment)
	s.Runs[0].Tables = tables
	return s
}

// MemoryBytes returns about how much memory the index keeps.
func (x *Index) MemoryBytes() int { return 256 + cap(x.inline) + 512*len(x.segments) }
