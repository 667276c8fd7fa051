package manifest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/annalsdb/annals/internal/base"
)

// obsoleteKey identifies an entry of the obsolete list.
type obsoleteKey struct {
	id           base.ObjectID
	segmentsOnly bool
	segments     segmentRange
}

func keyOf(o *Obsolete) obsoleteKey {
	return obsoleteKey{o.Ref.ID(), o.SegmentsOnly, segmentRange{o.FirstSegment, o.LastSegment}}
}

// retire puts the tables of runs that leave the tree on the obsolete list, without a
// stamp. The caller takes the runs out of the state in the same edit (I7).
func retire(s *State, runs []*Run) {
	for _, r := range runs {
		for _, t := range r.Tables {
			s.Obsolete = append(s.Obsolete, &Obsolete{Ref: t.Ref, Size: t.Size})
		}
	}
}

// HasUnstamped reports whether the obsolete list has entries without a stamp.
func HasUnstamped(s *State) bool {
	for _, o := range s.Obsolete {
		if o.SinceMs == 0 {
			return true
		}
	}
	return false
}

// StampObsolete gives the entries of the obsolete list that snap shows without a
// stamp snap's store time. That was answered when they were already listed, so the
// grace period, which counts from the stamp, never ends early, whatever the clocks of the
// committing processes say (I7, F51). Entries that later commits add are left for
// a later stamp.
func StampObsolete(snap *Snapshot) Edit {
	named := make(map[obsoleteKey]bool)
	for _, o := range snap.State.Obsolete {
		if o.SinceMs == 0 {
			named[keyOf(o)] = true
		}
	}
	stamp := snap.StoreTime.UnixMilli()
	return Edit{
		Name: "stamp obsolete entries",
		Apply: func(s *State) error {
			if stamp <= 0 { // 0 means no stamp, and an early one would end the grace period
				return errors.New("the version has no store time")
			}
			changed := false
			for _, o := range s.Obsolete {
				if o.SinceMs == 0 && named[keyOf(o)] {
					o.SinceMs = stamp
					changed = true
				}
			}
			if !changed {
				return ErrApplied
			}
			return nil
		},
	}
}

// ForgetObsolete removes entries of whole objects from the obsolete list, after the
// objects were deleted. It is already in force when none of them is listed.
//
// It is a bug of the caller, and an error, to have deleted an object whose entry has no stamp (its grace
// period had not begun), or an index of which ranges of segments are listed still:
// only the index says which tables those are, so it goes last. The entries stay then.
//
// Unlike other edits of a writer it may follow a clean close: it takes nothing back from what
// the next open relies on.
func ForgetObsolete(epoch uint64, deleted []base.ObjectID) Edit {
	gone := make(map[base.ObjectID]bool, len(deleted))
	for _, id := range deleted {
		gone[id] = true
	}
	return Edit{
		Name: fmt.Sprintf("forget %d deleted objects", len(deleted)),
		Apply: func(s *State) error {
			if err := checkEpoch("writer", s.Writer.GetEpoch(), epoch); err != nil {
				return err
			}
			kept := make([]*Obsolete, 0, len(s.Obsolete))
			for _, o := range s.Obsolete {
				switch id := o.Ref.ID(); {
				case !gone[id]:
					kept = append(kept, o)
				case o.SegmentsOnly:
					return fmt.Errorf("%s was deleted before its segments [%d, %d]", id.Name(), o.FirstSegment, o.LastSegment)
				case o.SinceMs == 0:
					return fmt.Errorf("%s was deleted before its grace period began", id.Name())
				}
			}
			if len(kept) == len(s.Obsolete) {
				return ErrApplied
			}
			s.Obsolete = kept
			return nil
		},
	}
}

// ForgetSegments removes the entry of the segments [first, last] of an index from the obsolete list,
// after their tables were deleted. It is already in force when there is no such entry. An entry without a stamp
// is not removed: its grace period had not begun. Like ForgetObsolete it may follow a clean close.
func ForgetSegments(epoch uint64, index base.ObjectID, first, last uint32) Edit {
	key := obsoleteKey{index, true, segmentRange{first, last}}
	return Edit{
		Name: fmt.Sprintf("forget deleted segments %d to %d of %s", first, last, index.Name()),
		Apply: func(s *State) error {
			if err := checkEpoch("writer", s.Writer.GetEpoch(), epoch); err != nil {
				return err
			}
			i := slices.IndexFunc(s.Obsolete, func(o *Obsolete) bool { return keyOf(o) == key })
			if i < 0 {
				return ErrApplied
			}
			if s.Obsolete[i].SinceMs == 0 {
				return fmt.Errorf("segments %d to %d were deleted before their grace period began", first, last)
			}
			s.Obsolete = slices.Delete(s.Obsolete, i, i+1)
			return nil
		},
	}
}
