package manifest

import (
	"errors"
	"fmt"
	"math"
)

// SkipTo moves position from one place to another when no record between them needs
// replay, such as empty epochs of a crash loop (F56). With state, the small state is that at to; without,
// nothing of it changed between them. Nothing else changes.
func SkipTo(epoch uint64, from, to Pos, state *StateUpdate) Edit {
	return Edit{
		Name: fmt.Sprintf("skip from %v to %v", from, to),
		Apply: func(s *State) error {
			at := s.Position.Pos()
			if err := writerEdit(s, epoch, func() bool { return from.Less(at) }); err != nil {
				return err
			}
			if at != from {
				return fmt.Errorf("position is %v", at)
			}
			if !from.Less(to) {
				return fmt.Errorf("position %v would not move", from)
			}
			if err := checkMove(s, to); err != nil {
				return err
			}
			return moveTo(s, epoch, to, state)
		},
	}
}

// RaiseLimit raises seq_limit, so that sequences below to may be assigned (I3).
func RaiseLimit(epoch, to uint64) Edit {
	return Edit{
		Name: fmt.Sprintf("raise seq_limit to %d", to),
		Apply: func(s *State) error {
			if err := writerEdit(s, epoch, func() bool { return s.SeqLimit >= to }); err != nil {
				return err
			}
			s.SeqLimit = to
			return nil
		},
	}
}

// SealSegment ends the active segment at end and starts the next one there. For a segment
// of which nothing is unflushed (I6): end must be flushed_end, and no record of the segment
// may be in memory, which only the caller knows. A segment without a record is not sealed.
// sealTimeMs is the store's time.
func SealSegment(epoch uint64, segment uint32, end uint64, sealTimeMs int64) Edit {
	return Edit{
		Name: fmt.Sprintf("seal segment %d at %d", segment, end),
		Apply: func(s *State) error {
			if err := writerEdit(s, epoch, func() bool { return activeSegment(s).Id > segment }); err != nil {
				return err
			}
			return sealActive(s, segment, end, sealTimeMs)
		},
	}
}

func sealActive(s *State, segment uint32, end uint64, sealTimeMs int64) error {
	g := activeSegment(s)
	if g.Id != segment {
		return fmt.Errorf("segment %d is active, not %d", g.Id, segment)
	}
	if s.FlushedEnd != end {
		return fmt.Errorf("segment %d is flushed up to %d, not %d", segment, s.FlushedEnd, end)
	}
	if !hasTables(g) {
		return fmt.Errorf("segment %d has no record", segment)
	}
	if g.Id == math.MaxUint32 {
		return errors.New("no segment ids are left")
	}
	g.Sealed, g.EndSequence, g.SealTimeMs = true, end, sealTimeMs
	s.Segments = append(s.Segments, &Segment{Id: segment + 1, FirstSequence: end})
	return nil
}

// CloseClean is a writer's last edit: nothing is unflushed, next is the sequence that
// it would have assigned next, and replay has nothing to do before to. The next open
// starts at next instead of at seq_limit. With state, the small state is that at to; without, nothing of it
// changed since position.
func CloseClean(epoch, next uint64, to Pos, state *StateUpdate) Edit {
	return Edit{
		Name: fmt.Sprintf("close at sequence %d, position %v", next, to),
		Apply: func(s *State) error {
			err := writerEdit(s, epoch, func() bool {
				return s.CleanNext != nil && *s.CleanNext == next && s.Position.Pos() == to
			})
			if err != nil {
				return err
			}
			if next < s.FlushedEnd || next > s.SeqLimit {
				return fmt.Errorf("next sequence %d is not within flushed_end %d and seq_limit %d", next, s.FlushedEnd, s.SeqLimit)
			}
			if err := checkMove(s, to); err != nil {
				return err
			}
			if err := moveTo(s, epoch, to, state); err != nil {
				return err
			}
			s.CleanNext = &next
			return nil
		},
	}
}
