package manifest

import (
	"errors"

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
