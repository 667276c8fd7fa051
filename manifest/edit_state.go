package manifest

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// StateUpdate says which state objects are in force from an edit on: the snapshot of the small state at
// the position to which that edit moves. The zero value says that nothing of the small state is left.
//
// An object that is not in force already must be the writer's own, written in its epoch: an object of a passed
// epoch may have been swept as an orphan. Objects that are in force no longer go to the obsolete list (I7).
// The caller must not change what an update points to afterwards.
type StateUpdate struct {
	// Base holds everything. It may stay the one in force.
	Base *ObjectRef
	// BaseBytes is the size of the object.
	BaseBytes uint64
	// Changes holds what changed since Base was written; nil: nothing did. It must not outlive its base.
	Changes *ObjectRef
	// ChangesBytes is the size of the object; 0 without Changes.
	ChangesBytes uint64
}

// moveTo moves position, and the small state with it. All edits of position end here, so that the state in force
// is always exactly that of position: replay applies what comes after, once.
func moveTo(s *State, epoch uint64, to Pos, u *StateUpdate) error {
	if u != nil {
		if err := u.apply(s, epoch); err != nil {
			return fmt.Errorf("update small state: %w", err)
		}
	}
	s.Position = to.Proto()
	s.StatePosition = nil
	if s.State != nil {
		s.StatePosition = to.Proto()
	}
	return nil
}

func (u *StateUpdate) apply(s *State, epoch uint64) error {
	if u.Base == nil && u.Changes != nil {
		return errors.New("changes without a base")
	}
	newBase, err := u.replaces(s, epoch, "base", s.State, u.Base)
	if err != nil {
		return err
	}
	newChanges, err := u.replaces(s, epoch, "changes", s.StateChanges, u.Changes)
	if err != nil {
		return err
	}
	if newBase && u.Changes != nil && !newChanges {
		return fmt.Errorf("changes %s are those of another base", u.Changes.ID().Name())
	}
	if newBase && s.State != nil {
		s.Obsolete = append(s.Obsolete, &Obsolete{Ref: s.State, Size: s.StateSize})
	}
	if newChanges && s.StateChanges != nil {
		s.Obsolete = append(s.Obsolete, &Obsolete{Ref: s.StateChanges, Size: s.StateChangesSize})
	}
	s.State, s.StateSize = proto.CloneOf(u.Base), u.BaseBytes
	s.StateChanges, s.StateChangesSize = proto.CloneOf(u.Changes), u.ChangesBytes
	return nil
}

// replaces reports whether next is another object than is, and checks that it may be put in force.
func (u *StateUpdate) replaces(s *State, epoch uint64, what string, is, next *ObjectRef) (bool, error) {
	if next == nil {
		return is != nil, nil
	}
	id, err := next.parse()
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	if is != nil && is.ID() == id {
		return false, nil
	}
	if id.Kind != base.KindState || id.Tree != s.Tree || id.Role != base.RoleWriter || id.Epoch != epoch {
		return false, fmt.Errorf("%s %s is not a state object of tree %d by its writer of epoch %d", what, id.Name(), s.Tree, epoch)
	}
	return true, nil
}
