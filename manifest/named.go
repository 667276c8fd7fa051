package manifest

import "github.com/annalsdb/annals/internal/base"

// NamedObjects returns every written-once object that the state itself refers to: tables of its
// runs, indexes of groups, its state objects, pins, and what its obsolete list names. An object
// that is not among them may be an orphan.
//
// It does not read objects: the tables that are listed in an index, and what a pinned manifest
// names, belong to the tree too. Whoever deletes unnamed objects adds those first, or deletes none:
//
//   - of each of Groups, the tables of its live segments (Index.Live, Index.ParseList);
//   - of each entry of Obsolete with SegmentsOnly, the tables of those segments of its index, which is named too;
//   - of each of Pins, what this function gives for the pinned state, and the same of that.
//
// An index that is obsolete as a whole adds nothing: its tables are live in a newer one, or in a range. The
// state must be valid.
func NamedObjects(s *State) map[base.ObjectID]struct{} {
	n := len(s.Obsolete) + len(s.Groups) + len(s.Pins) + 2
	for _, g := range s.Segments {
		for _, r := range g.Runs {
			n += len(r.Tables)
		}
	}
	named := make(map[base.ObjectID]struct{}, n)
	add := func(ref *ObjectRef) { named[ref.ID()] = struct{}{} }
	for _, g := range s.Segments {
		for _, r := range g.Runs {
			for _, t := range r.Tables {
				add(t.Ref)
			}
		}
	}
	for _, g := range s.Groups {
		add(g.Index)
	}
	if s.State != nil {
		add(s.State)
	}
	if s.StateChanges != nil {
		add(s.StateChanges)
	}
	for _, p := range s.Pins {
		add(p.Ref)
	}
	for _, o := range s.Obsolete {
		add(o.Ref)
	}
	return named
}
