package manifest

import (
	"bytes"
	"fmt"
	"math"
)

// OpenWriter makes owner (16 fresh random bytes) the tree's writer with epoch
// oldEpoch + 1. It drops clean_next (F53) and raises seq_limit, so that the sequences
// that this writer will assign are reserved before it assigns one (I3): OpenedNext of the
// state that this edit's commit wrote is the first of them.
//
// It is in force only in a state that carries both the epoch and the id: another
// process may have taken the same epoch. Then the edit fails with ErrFenced.
func OpenWriter(oldEpoch uint64, owner [16]byte) Edit {
	return Edit{
		Name: fmt.Sprintf("open writer epoch %d", oldEpoch+1),
		Apply: func(s *State) error {
			if err := takeEpoch("writer", s.Writer, oldEpoch, owner); err != nil {
				return err
			}
			next := s.SeqLimit
			if s.CleanNext != nil {
				next = *s.CleanNext
			}
			if next > math.MaxUint64-SeqReserve {
				return fmt.Errorf("no sequences are left after %d", next)
			}
			s.Writer = &Owner{Epoch: oldEpoch + 1, Id: owner[:]}
			s.CleanNext = nil
			s.SeqLimit = next + SeqReserve
			return nil
		},
	}
}

// OpenedNext returns the first sequence that a new writer may assign, from the
// state that the commit of its OpenWriter wrote: not from any later one.
func OpenedNext(s *State) uint64 { return s.SeqLimit - SeqReserve }

// OpenCompactor makes owner (16 fresh random bytes) the tree's compactor with epoch
// oldEpoch + 1, and raises the beat as a sign of life. What OpenWriter says of epoch
// and id holds here too.
func OpenCompactor(oldEpoch uint64, owner [16]byte) Edit {
	return Edit{
		Name: fmt.Sprintf("open compactor epoch %d", oldEpoch+1),
		Apply: func(s *State) error {
			if err := takeEpoch("compactor", s.Compactor, oldEpoch, owner); err != nil {
				return err
			}
			s.Compactor = &Owner{Epoch: oldEpoch + 1, Id: owner[:]}
			s.CompactorBeat++
			return nil
		},
	}
}

// takeEpoch checks the precondition of an opening edit.
func takeEpoch(who string, is *Owner, oldEpoch uint64, owner [16]byte) error {
	if is.GetEpoch() == oldEpoch+1 && bytes.Equal(is.GetId(), owner[:]) {
		return ErrApplied
	}
	if oldEpoch == math.MaxUint64 {
		return fmt.Errorf("no %s epochs are left", who)
	}
	return checkEpoch("old "+who, is.GetEpoch(), oldEpoch)
}

// Beat raises compactor_beat to a value: the sign of life of the compactor at work.
func Beat(epoch, to uint64) Edit {
	return Edit{
		Name: fmt.Sprintf("beat %d", to),
		Apply: func(s *State) error {
			if err := checkEpoch("compactor", s.Compactor.GetEpoch(), epoch); err != nil {
				return err
			}
			if s.CompactorBeat >= to {
				return ErrApplied
			}
			s.CompactorBeat = to
			return nil
		},
	}
}

// ReleaseCompactor says that the compactor of an epoch has stopped: a beat of 0, which none has that
// lives. Another may take the next epoch at once.
func ReleaseCompactor(epoch uint64) Edit {
	return Edit{
		Name: fmt.Sprintf("release compactor epoch %d", epoch),
		Apply: func(s *State) error {
			if err := checkEpoch("compactor", s.Compactor.GetEpoch(), epoch); err != nil {
				return err
			}
			if s.CompactorBeat == 0 {
				return ErrApplied
			}
			s.CompactorBeat = 0
			return nil
		},
	}
}
