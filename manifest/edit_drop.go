package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
)

// DropSegments drops the oldest segments, whole, up to and including segment upTo:
// retention. No data is read or rewritten; their tables become obsolete in the same commit (I7).
// It is already in force when no segment up to upTo is left.
//
// upTo is Segment.Last of the newest segment to drop, not its Id: if that segment has been
// merged with newer ones since the drop was planned, nothing is dropped (ErrGone), as those
// are not known to be old enough. The active segment is never dropped.
//
// If upTo lies in a group, but is not its last segment, trimmed must be the group's line without the
// segments up to upTo (Index.Trim). It must not be changed afterwards. If there is none, or the segments
// were regrouped since, nothing is dropped (ErrGone).
//
// Groups that go leave two entries on the obsolete list each: the tables of their live segments,
// and the index, which must be deleted after them.
func DropSegments(epoch uint64, upTo uint32, trimmed *Group) Edit {
	return Edit{
		Name: fmt.Sprintf("drop segments up to %d", upTo),
		Apply: func(s *State) error {
			groups, cut := dropGroups(s, upTo)
			n := 0
			for n < len(s.Segments) && s.Segments[n].Id <= upTo {
				n++
			}
			if err := writerEdit(s, epoch, func() bool { return groups == 0 && cut == nil && n == 0 }); err != nil {
				return err
			}
			if cut != nil { // all segments are newer
				if err := checkTrimmed(cut, trimmed, upTo); err != nil {
					return err
				}
			}
			if n > 0 {
				if err := checkLastDropped(s.Segments[n-1], upTo); err != nil {
					return err
				}
			}
			for _, g := range s.Groups[:groups] {
				s.Obsolete = append(s.Obsolete, segmentsOf(g, g.LastSegment, g.StoredBytes), wholeIndex(g))
			}
			if cut != nil {
				s.Obsolete = append(s.Obsolete, segmentsOf(cut, trimmed.FirstSegment-1, cut.StoredBytes-trimmed.StoredBytes))
				liveOf(trimmed).set(cut)
			}
			s.Groups = slices.Delete(s.Groups, 0, groups)
			for _, g := range s.Segments[:n] {
				retire(s, g.Runs)
			}
			s.Segments = slices.Delete(s.Segments, 0, n)
			return nil
		},
	}
}

// dropGroups returns how many groups lie wholly up to segment upTo, and the group that it cuts, or nil.
func dropGroups(s *State, upTo uint32) (whole int, cut *Group) {
	for _, g := range s.Groups {
		switch {
		case g.LastSegment <= upTo:
			whole++
		case g.FirstSegment <= upTo:
			return whole, g
		}
	}
	return whole, nil
}

// checkLastDropped checks that the newest of the segments to drop ends with upTo, and has ended.
func checkLastDropped(last *Segment, upTo uint32) error {
	switch {
	case !last.Sealed:
		return fmt.Errorf("segment %d is active", last.Id)
	case last.Last() > upTo:
		return fmt.Errorf("segment %d was merged with those up to %d: %w", last.Id, last.Last(), ErrGone)
	}
	return nil
}

// checkTrimmed checks that trimmed is the line of g without the segments up to upTo.
func checkTrimmed(g, trimmed *Group, upTo uint32) error {
	if trimmed == nil || !bytes.Equal(trimmed.Id, g.Id) {
		return fmt.Errorf("segments %d to %d lie in group %x, of which no trimmed line is given: %w",
			g.FirstSegment, upTo, g.Id, ErrGone)
	}
	// What the index says of its own shape does not change.
	same := proto.CloneOf(trimmed)
	liveOf(g).set(same)
	same.ProtoReflect().SetUnknown(g.ProtoReflect().GetUnknown())
	if !proto.Equal(same, g) {
		return fmt.Errorf("trimmed line of group %x is of another index", g.Id)
	}
	was, is := liveOf(g), liveOf(trimmed)
	switch {
	case is.lastSegment != was.lastSegment || is.endSequence != was.endSequence || is.lastSeal > was.lastSeal:
		return errors.New("trimmed group ends elsewhere")
	case is.firstSegment <= upTo || is.firstSegment > is.lastSegment || is.firstSequence <= was.firstSequence:
		return fmt.Errorf("trimmed group begins with segment %d at %d", is.firstSegment, is.firstSequence)
	case is.segments >= was.segments || is.tables >= was.tables || is.records >= was.records ||
		is.bytes > was.bytes || is.storedBytes >= was.storedBytes:
		return fmt.Errorf("trimmed group has %v, the group %v", is, was)
	}
	return nil
}

// segmentsOf is the obsolete entry of a group's live segments up to last: their tables, not the index.
func segmentsOf(g *Group, last uint32, size uint64) *Obsolete {
	return &Obsolete{
		Ref: proto.CloneOf(g.Index), SegmentsOnly: true,
		FirstSegment: g.FirstSegment, LastSegment: last, Size: size,
	}
}

// wholeIndex is the obsolete entry of a group's index.
func wholeIndex(g *Group) *Obsolete { return &Obsolete{Ref: proto.CloneOf(g.Index), Size: g.IndexSize} }
