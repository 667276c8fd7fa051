package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// maxAbsent bounds the objects that an inspection names as damaged one by one.
const maxAbsent = 20

// presence compares what a state needs with what a listing of the store shows: names and sizes. It costs no
// request. Tables of groups are counted, since only their index knows their names.
type presence struct {
	sizes  map[base.ObjectID]uint64 // of what was not yet listed
	groups []groupPresence
	wrong  []absent // not there, or of another size
}

type groupPresence struct {
	line          *manifest.Group
	tables, bytes uint64
}

type absent struct {
	id   base.ObjectID
	what string
}

func newPresence(s *manifest.State) *presence {
	p := &presence{sizes: make(map[base.ObjectID]uint64)}
	for _, g := range s.GetGroups() {
		p.groups = append(p.groups, groupPresence{line: g})
		p.sizes[g.GetIndex().ID()] = g.GetIndexSize()
	}
	for _, g := range s.GetSegments() {
		for _, r := range g.GetRuns() {
			for _, t := range r.GetTables() {
				p.sizes[t.GetRef().ID()] = t.GetSize()
			}
		}
	}
	if s.GetState() != nil {
		p.sizes[s.GetState().ID()] = s.GetStateSize()
	}
	if s.GetStateChanges() != nil {
		p.sizes[s.GetStateChanges().ID()] = s.GetStateChangesSize()
	}
	return p
}

// listed notes an object that the store has. Grouped says that an index lists it.
func (p *presence) listed(id base.ObjectID, size int64, grouped bool) {
	if want, ok := p.sizes[id]; ok {
		if want != uint64(size) {
			p.wrong = append(p.wrong, absent{id, fmt.Sprintf("%s has %d bytes, not %d", id.Name(), size, want)})
		}
		delete(p.sizes, id)
		return
	}
	if !grouped {
		return
	}
	for i := range p.groups {
		g := &p.groups[i]
		if g.line.GetFirstSegment() <= id.Segment && id.Segment <= g.line.GetLastSegment() {
			g.tables++
			g.bytes += uint64(size)
		}
	}
}

// damage says what is not as it should be, and still needed by a state that was read after the listing.
func (p *presence) damage(now *manifest.State) (damage []string) {
	still := newPresence(now)
	var wrong []absent
	for id := range p.sizes {
		wrong = append(wrong, absent{id, id.Name() + " is not there"})
	}
	wrong = slices.DeleteFunc(append(wrong, p.wrong...), func(a absent) bool {
		_, needed := still.sizes[a.id]
		return !needed
	})
	slices.SortFunc(wrong, func(a, b absent) int { return strings.Compare(a.what, b.what) })
	for i, a := range wrong {
		if i == maxAbsent {
			damage = append(damage, fmt.Sprintf("and %d more objects", len(wrong)-i))
			break
		}
		damage = append(damage, a.what)
	}
	for _, g := range p.groups {
		l := g.line
		if g.tables == uint64(l.GetTables()) && g.bytes == l.GetStoredBytes() || !slices.ContainsFunc(now.GetGroups(), func(n *manifest.Group) bool {
			return string(n.GetId()) == string(l.GetId()) && n.GetFirstSegment() == l.GetFirstSegment()
		}) {
			continue
		}
		damage = append(damage, fmt.Sprintf("segments %d to %d have %d tables of %d bytes in the store, not %d of %d",
			l.GetFirstSegment(), l.GetLastSegment(), g.tables, g.bytes, l.GetTables(), l.GetStoredBytes()))
	}
	return damage
}

// present adds to the damage what the listing did not show.
func (i *inspector) present(store objstore.Store, p *presence) error {
	if len(i.names.damage) > 0 {
		p.groups = nil // which tables they have is not known
	}
	if len(p.damage(i.snap.State)) == 0 {
		return nil
	}
	now, err := manifest.Load(i.ctx, store, i.tables.env, tree)
	if err != nil {
		return err
	}
	i.in.Damage = append(i.in.Damage, p.damage(now.State)...)
	return nil
}
