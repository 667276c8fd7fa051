package manifest

import (
	"fmt"
	"math"
)

// Edit is one change of a tree's state.
//
// Apply must be a pure function of the state that it is given: it may be called
// several times, on different states, on the committer's goroutine. It either changes next
// and returns nil, or returns an error, after which next is thrown away:
//
//   - ErrApplied (also wrapped): next shows that this very edit is in force;
//   - any other error: it does not apply and never will.
//
// An edit that was made from a version must only be given to a committer that knows that
// version or a newer one (Committer.Current): an older state may lack what it names, and its
// error is final.
//
// Its own effect must falsify its precondition, so that a second application is
// impossible. It names runs, segments and groups by id, never by their place. It must
// not touch version and commit_id.
type Edit struct {
	// Name says what the edit does, for errors ("flush to (3, 7)").
	Name string
	// Apply changes next, a private clone.
	Apply func(next *State) error
}

// WriterGuard returns a CommitterOptions.Guard that fails with ErrFenced once the
// writer's epoch is not the given one (invariant I2).
func WriterGuard(epoch uint64) func(*State) error {
	return func(s *State) error { return checkEpoch("writer", s.Writer.GetEpoch(), epoch) }
}

// CompactorGuard is WriterGuard for the compactor's epoch.
func CompactorGuard(epoch uint64) func(*State) error {
	return func(s *State) error { return checkEpoch("compactor", s.Compactor.GetEpoch(), epoch) }
}

// checkEpoch returns ErrFenced unless the state's epoch is mine. A lower one is impossible
// in a state that was read after mine was taken; it is refused the same way.
func checkEpoch(who string, is, mine uint64) error {
	if is != mine {
		return fmt.Errorf("%s epoch is %d, mine is %d: %w", who, is, mine, ErrFenced)
	}
	return nil
}

// writerEdit checks what every edit of an open writer needs. The check for "already
// applied" comes first, in applied, because a clean close may have followed this edit.
func writerEdit(s *State, epoch uint64, applied func() bool) error {
	if err := checkEpoch("writer", s.Writer.GetEpoch(), epoch); err != nil {
		return err
	}
	if applied() {
		return ErrApplied
	}
	if s.CleanNext != nil {
		return fmt.Errorf("writer of epoch %d: %w", epoch, ErrCleanlyClosed)
	}
	return nil
}

// checkMove checks that a writer may move position to a place: forward (F9), and
// not beyond its own epoch, whose WAL ids start at 1.
func checkMove(s *State, to Pos) error {
	if at := s.Position.Pos(); to.Less(at) {
		return fmt.Errorf("position would go back from %v to %v", at, to)
	}
	if to.Epoch > s.Writer.GetEpoch() || to.ID < 1 {
		return fmt.Errorf("position %v is not one that a writer of epoch %d can reach", to, s.Writer.GetEpoch())
	}
	return nil
}

// activeSegment returns the segment that takes new runs.
func activeSegment(s *State) *Segment { return s.Segments[len(s.Segments)-1] }

// addSaturating returns a + b, or the largest uint64.
func addSaturating(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
