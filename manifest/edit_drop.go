package manifest

import (
	"fmt"
	"slices"
)

// DropSegments drops the oldest segments, whole, up to and including segment upTo:
// retention. No data is read or rewritten; their tables become obsolete in the same commit (I7).
// It is already in force when no segment up to upTo is left.
//
// upTo is Segment.Last of the newest segment to drop, not its Id: if that segment has been
// merged with newer ones since the drop was planned, nothing is dropped (ErrGone), as those
// are not known to be old enough. The active segment is never dropped, and a segment that lies
// in a group is refused, not passed over: windows must stay adjacent (I5).
func DropSegments(epoch uint64, upTo uint32) Edit {
	return Edit{
		Name: fmt.Sprintf("drop segments up to %d", upTo),
		Apply: func(s *State) error {
			grouped := len(s.Groups) > 0 && s.Groups[0].FirstSegment <= upTo
			n := 0
			for n < len(s.Segments) && s.Segments[n].Id <= upTo {
				n++
			}
			if err := writerEdit(s, epoch, func() bool { return n == 0 && !grouped }); err != nil {
				return err
			}
			if grouped {
				return fmt.Errorf("segment %d lies in group %x", s.Groups[0].FirstSegment, s.Groups[0].Id)
			}
			switch last := s.Segments[n-1]; {
			case !last.Sealed:
				return fmt.Errorf("segment %d is active", last.Id)
			case last.Last() > upTo:
				return fmt.Errorf("segment %d was merged with those up to %d: %w", last.Id, last.Last(), ErrGone)
			}
			for _, g := range s.Segments[:n] {
				retire(s, g.Runs)
			}
			s.Segments = slices.Delete(s.Segments, 0, n)
			return nil
		},
	}
}
