package manifest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// stateRef is a state object of the writer of an epoch.
func stateRef(epoch uint64, n int) *ObjectRef {
	return RefOf(base.ObjectID{Tree: 7, Kind: base.KindState, Role: base.RoleWriter, Epoch: epoch, ULID: base.ULID(id16(n))})
}

// stateUpdate puts state objects in force; 0: none.
func stateUpdate(epoch uint64, baseN, changesN int) *StateUpdate {
	u := &StateUpdate{}
	if baseN != 0 {
		u.Base, u.BaseBytes = stateRef(epoch, baseN), 1000
	}
	if changesN != 0 {
		u.Changes, u.ChangesBytes = stateRef(epoch, changesN), 100
	}
	return u
}

// ofTree moves an update to another tree.
func (u *StateUpdate) ofTree(tree uint32) *StateUpdate {
	for _, r := range []*ObjectRef{u.Base, u.Changes} {
		if r != nil {
			r.Tree = tree
		}
	}
	return u
}

// requireState compares what is in force, and that it is that of position.
func requireState(t testing.TB, s *State, u *StateUpdate) {
	t.Helper()
	require.True(t, proto.Equal(u.Base, s.State), "base: %v", s.State)
	require.True(t, proto.Equal(u.Changes, s.StateChanges), "changes: %v", s.StateChanges)
	require.Equal(t, u.BaseBytes, s.StateSize)
	require.Equal(t, u.ChangesBytes, s.StateChangesSize)
	if u.Base == nil {
		require.Nil(t, s.StatePosition)
	} else {
		require.Equal(t, s.Position.Pos(), s.StatePosition.Pos())
	}
}

// requireObsolete compares the obsolete list with state objects by number and size.
func requireObsolete(t testing.TB, s *State, epoch uint64, want map[int]uint64) {
	t.Helper()
	require.Len(t, s.Obsolete, len(want))
	for n, size := range want {
		found := false
		for _, o := range s.Obsolete {
			if o.Ref.ID() == stateRef(epoch, n).ID() {
				require.Equal(t, size, o.Size)
				require.Zero(t, o.SinceMs)
				found = true
			}
		}
		require.True(t, found, "object %d", n)
	}
}

// moves are the three edits that move position from (1, 3) to (1, 5), on the tree of movable.
var moves = map[string]func(u *StateUpdate) Edit{
	"flush": func(u *StateUpdate) Edit {
		f := flushAt(1, 3, 5, 2, 10, 20)
		f.State = u
		return f.Edit()
	},
	"skip":  func(u *StateUpdate) Edit { return SkipTo(1, Pos{1, 3}, Pos{1, 5}, u) },
	"close": func(u *StateUpdate) Edit { return CloseClean(1, 20, Pos{1, 5}, u) },
}

// movable is a tree at position (1, 3) with state objects 50 and 51.
func movable(t testing.TB) *State {
	s := openState(t)
	f := flushAt(1, 1, 3, 1, 0, 10)
	f.State = stateUpdate(1, 50, 51)
	mustApply(t, s, f.Edit())
	requireState(t, s, f.State)
	return s
}

// The state objects move with position in every edit that moves it, and what they replace becomes obsolete in the same
// commit (I7). The edit is recognised when it is looked for after a lost answer.
func TestStateMovesWithPosition(t *testing.T) {
	keeps := func(baseN, changesN int) *StateUpdate { return stateUpdate(1, baseN, changesN) }
	for name, move := range moves {
		for _, c := range []struct {
			name     string
			update   *StateUpdate // nil: nothing changed
			in       *StateUpdate // what is in force then
			obsolete map[int]uint64
		}{
			{"nothing changed", nil, keeps(50, 51), nil},
			{"the same again", keeps(50, 51), keeps(50, 51), nil},
			{"other changes", keeps(50, 60), keeps(50, 60), map[int]uint64{51: 100}},
			{"changes are none", keeps(50, 0), keeps(50, 0), map[int]uint64{51: 100}},
			{"new base", keeps(60, 0), keeps(60, 0), map[int]uint64{50: 1000, 51: 100}},
			{"new base and changes", keeps(60, 61), keeps(60, 61), map[int]uint64{50: 1000, 51: 100}},
			{"nothing left", keeps(0, 0), keeps(0, 0), map[int]uint64{50: 1000, 51: 100}},
		} {
			t.Run(name+": "+c.name, func(t *testing.T) {
				s := movable(t)
				e := move(c.update)
				mustApply(t, s, e)
				require.Equal(t, Pos{1, 5}, s.Position.Pos())
				requireState(t, s, c.in)
				requireObsolete(t, s, 1, c.obsolete)
				// Applied twice, also when others have followed.
				once := clone(s)
				require.ErrorIs(t, e.Apply(s), ErrApplied)
				requireEqual(t, once, s)
			})
		}
	}
}

func TestStateUpdatesThatAreRefused(t *testing.T) {
	other := func(change func(id *base.ObjectID)) *ObjectRef {
		id := stateRef(1, 60).ID()
		change(&id)
		return RefOf(id)
	}
	for name, move := range moves {
		for want, u := range map[string]*StateUpdate{
			"changes without a base":       stateUpdate(1, 0, 60),
			"are those of another base":    stateUpdate(1, 60, 51),
			"base: ULID has 0 bytes":       {Base: &ObjectRef{}},
			"changes: ULID has 0 bytes":    {Base: stateRef(1, 50), Changes: &ObjectRef{}},
			"by its writer of epoch 1":     stateUpdate(2, 60, 0),
			"base trees/00000008/":         {Base: other(func(id *base.ObjectID) { id.Tree = 8 })},
			"base trees/00000007/state/c":  {Base: other(func(id *base.ObjectID) { id.Role = base.RoleCompactor })},
			"base trees/00000007/pin/":     {Base: other(func(id *base.ObjectID) { id.Kind = base.KindPin })},
			"changes trees/00000007/pin/w": {Base: stateRef(1, 60), Changes: other(func(id *base.ObjectID) { id.Kind = base.KindPin })},
		} {
			t.Run(name+": "+want, func(t *testing.T) {
				s := movable(t)
				before := clone(s)
				err := move(u).Apply(s)
				require.ErrorContains(t, err, "update small state: ")
				require.ErrorContains(t, err, want)
				require.NotErrorIs(t, err, ErrApplied)
				requireEqual(t, before, s)
			})
		}
	}
}

// Objects of a passed epoch stay in force under the next writer, but cannot be put in force by it.
func TestStateOfAnEarlierEpoch(t *testing.T) {
	s := movable(t)
	mustApply(t, s, OpenWriter(1, owner(3)))
	requireState(t, s, stateUpdate(1, 50, 51))
	mustApply(t, s, SkipTo(2, Pos{1, 3}, Pos{2, 1}, nil))
	requireState(t, s, stateUpdate(1, 50, 51))
	u := stateUpdate(1, 50, 0)
	u.Changes, u.ChangesBytes = stateRef(2, 70), 100
	mustApply(t, s, SkipTo(2, Pos{2, 1}, Pos{2, 2}, u))
	requireState(t, s, u)
	require.ErrorContains(t, SkipTo(2, Pos{2, 2}, Pos{2, 3}, stateUpdate(1, 52, 0)).Apply(s), "by its writer of epoch 2")
	// What is obsolete cannot come back: Validate refuses it.
	u = stateUpdate(1, 50, 0)
	mustApply(t, s, SkipTo(2, Pos{2, 2}, Pos{2, 3}, u))
	u.Changes, u.ChangesBytes = stateRef(2, 70), 100
	require.NoError(t, SkipTo(2, Pos{2, 3}, Pos{2, 4}, u).Apply(s))
	require.ErrorContains(t, Validate(s), "is live")
}

// Sizes that do not fit what is there are refused before they are committed.
func TestStateUpdateWithoutSizes(t *testing.T) {
	s := movable(t)
	u := stateUpdate(1, 60, 61)
	u.ChangesBytes = 0
	require.NoError(t, SkipTo(1, Pos{1, 3}, Pos{1, 5}, u).Apply(s))
	require.ErrorContains(t, Validate(s), "state objects of 1000 and 0 bytes")
}

// The update is copied: an edit does not change what it was made from.
func TestStateUpdateIsCopied(t *testing.T) {
	u := stateUpdate(1, 60, 61)
	s := movable(t)
	mustApply(t, s, SkipTo(1, Pos{1, 3}, Pos{1, 5}, u))
	s.State.Epoch, s.StateChanges.Epoch = 9, 9
	require.True(t, proto.Equal(stateRef(1, 60), u.Base))
	require.True(t, proto.Equal(stateRef(1, 61), u.Changes))
}
