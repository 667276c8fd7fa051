package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// Regroup describes the commit of a new index: neighbouring groups and the sealed segments that follow
// them become one group. No table changes: those of the inputs stay live, named by the new index, and the inputs' indexes
// become obsolete in the same commit (I7).
//
// It needs the compactor's epoch only, so it may also be committed after the writer has closed
// cleanly. The caller must not change what it points to afterwards.
type Regroup struct {
	// Epoch is the compactor's.
	Epoch uint64
	// Groups are neighbours, in order. If there are Segments too, they are the last groups.
	Groups []GroupRef
	// Segments are the first segments that are in no group, in order, each with exactly one run.
	Segments []SegmentRef
	// Output is the line of the new group (IndexBuilder.Finish). Its index must be named by this
	// tree, the compactor's role and Epoch: one of a passed epoch may have been swept before
	// this commit (F52).
	Output *Group
}

// GroupRef names a group as it was when a job was planned.
type GroupRef struct {
	ID []byte
	// First and Last are its live range of segments.
	First, Last uint32
}

// SegmentRef names a sealed segment as it was when a job was planned.
type SegmentRef struct {
	ID uint32
	// Run is the id of its one run.
	Run []byte
}

// Edit returns it as an edit. It is already in force when a state names the output's id or index, live
// or obsolete. Inputs that are not all there as they were (dropped, trimmed, merged) give ErrGone.
func (r Regroup) Edit() Edit {
	return Edit{
		Name:  fmt.Sprintf("make %d groups and %d segments one group", len(r.Groups), len(r.Segments)),
		Apply: r.apply,
	}
}

func (r Regroup) apply(s *State) error {
	if err := checkEpoch("compactor", s.Compactor.GetEpoch(), r.Epoch); err != nil {
		return err
	}
	if err := r.check(s); err != nil {
		return err
	}
	if err := r.checkNew(s); err != nil {
		return err
	}
	at, err := r.findGroups(s)
	if err != nil {
		return err
	}
	if err := r.findSegments(s); err != nil {
		return err
	}
	groups, segments := s.Groups[at:at+len(r.Groups)], s.Segments[:len(r.Segments)]
	in, err := joined(groups, segments)
	if err != nil {
		return err
	}
	if out := liveOf(r.Output); in != out {
		return fmt.Errorf("inputs are %v, the output %v", in, out) // F27
	}
	for _, g := range groups {
		s.Obsolete = append(s.Obsolete, wholeIndex(g))
	}
	s.Groups = slices.Replace(s.Groups, at, at+len(r.Groups), proto.CloneOf(r.Output))
	s.Segments = slices.Delete(s.Segments, 0, len(r.Segments))
	return nil
}

// check refuses what no state could make right.
func (r Regroup) check(s *State) error {
	if len(r.Groups)+len(r.Segments) == 0 {
		return errors.New("group of nothing")
	}
	if r.Output == nil {
		return errors.New("regroup without an output")
	}
	id, err := r.Output.Index.parse()
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if id.Tree != s.Tree || id.Kind != base.KindIndex || id.Role != base.RoleCompactor || id.Epoch != r.Epoch {
		return fmt.Errorf("%s is not an index of tree %d by the compactor of epoch %d", id.Name(), s.Tree, r.Epoch)
	}
	for _, g := range r.Groups {
		if bytes.Equal(g.ID, r.Output.Id) {
			return fmt.Errorf("output has the id of its input %x", g.ID)
		}
	}
	return nil
}

// checkNew returns ErrApplied if the state names the output's id or index. It may have been regrouped
// or dropped since: the list of obsolete objects counts (F50).
func (r Regroup) checkNew(s *State) error {
	index := r.Output.Index.ID()
	for _, g := range s.Groups {
		switch same := g.Index.ID() == index; {
		case bytes.Equal(g.Id, r.Output.Id):
			return ErrApplied
		case same && slices.ContainsFunc(r.Groups, func(in GroupRef) bool { return bytes.Equal(in.ID, g.Id) }):
			return fmt.Errorf("output keeps the index %s of its input %x", index.Name(), g.Id)
		case same:
			return ErrApplied
		}
	}
	for _, o := range s.Obsolete {
		if o.Ref.ID() == index {
			return ErrApplied
		}
	}
	return nil
}

// findGroups returns where the inputs begin among the groups; without any, where the output goes.
func (r Regroup) findGroups(s *State) (int, error) {
	at := len(s.Groups)
	for i, in := range r.Groups {
		p := slices.IndexFunc(s.Groups, func(g *Group) bool { return bytes.Equal(g.Id, in.ID) })
		if p < 0 {
			return 0, fmt.Errorf("group %x: %w", in.ID, ErrGone)
		}
		if g := s.Groups[p]; g.FirstSegment != in.First || g.LastSegment != in.Last {
			return 0, fmt.Errorf("group %x has segments [%d, %d], had [%d, %d]: %w",
				in.ID, g.FirstSegment, g.LastSegment, in.First, in.Last, ErrGone)
		}
		if i == 0 {
			at = p
		}
		if p != at+i {
			return 0, fmt.Errorf("group %x does not follow the input before it", in.ID) // I5
		}
	}
	if len(r.Segments) > 0 && at+len(r.Groups) != len(s.Groups) {
		return 0, fmt.Errorf("groups lie between the inputs and segment %d", r.Segments[0].ID) // I5
	}
	return at, nil
}

// findSegments checks that the inputs are the first segments, as they were.
func (r Regroup) findSegments(s *State) error {
	for i, in := range r.Segments {
		p := slices.IndexFunc(s.Segments, func(g *Segment) bool { return g.Id == in.ID })
		if p < 0 {
			return fmt.Errorf("segment %d: %w", in.ID, ErrGone)
		}
		switch g := s.Segments[p]; {
		case p != i:
			return fmt.Errorf("segment %d is not the first after the inputs before it", in.ID) // I5
		case !g.Sealed:
			return fmt.Errorf("segment %d is active", in.ID)
		case len(g.Runs) != 1 || !bytes.Equal(g.Runs[0].Id, in.Run):
			return fmt.Errorf("run %x of segment %d: %w", in.Run, in.ID, ErrGone)
		}
	}
	return nil
}

// joined returns what the line of a group of all the inputs must say.
func joined(groups []*Group, segments []*Segment) (in live, err error) {
	for _, g := range groups {
		if err := in.join(liveOf(g)); err != nil {
			return in, err
		}
	}
	for _, s := range segments {
		l, err := liveOfSegment(s)
		if err != nil {
			return in, err
		}
		if err := in.join(l); err != nil {
			return in, err
		}
	}
	return in, nil
}
