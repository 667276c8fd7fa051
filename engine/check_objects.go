package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/wal"
)

// objects lists the store and sorts everything in it by what the log has to do with it. It holds what the MANIFEST
// names, and the table list of one segment at a time.
func (c *checker) objects(s *manifest.State) error {
	l := &objectLister{c: c, s: s, names: newNamer(c.tables, s), obsolete: make(map[base.ObjectID]uint64)}
	l.firstLive = firstSegment(s)
	for _, o := range s.GetObsolete() {
		if !o.GetSegmentsOnly() {
			l.obsolete[o.GetRef().ID()] = o.GetSize()
		}
	}
	probe := base.ProbeName(tree, base.ULID{})
	l.probes = strings.TrimSuffix(probe, base.ULID{}.String())
	if err := objstore.ListAll(c.ctx, c.store, "", "", l.entry); err != nil {
		return err
	}
	return l.older()
}

// firstSegment returns the id of the oldest live segment.
func firstSegment(s *manifest.State) uint32 {
	if groups := s.GetGroups(); len(groups) > 0 {
		return groups[0].GetFirstSegment()
	}
	return s.GetSegments()[0].GetId()
}

// objectLister sorts the objects of a listing. What the namer cannot tell counts as named: that was reported where the
// index was looked at.
type objectLister struct {
	c         *checker
	s         *manifest.State
	names     *namer
	obsolete  map[base.ObjectID]uint64 // whole objects, with their sizes
	firstLive uint32
	probes    string // how their names begin

	// The highest epochs of the objects that there are.
	writer, compactor, records epochSeen
}

// epochSeen is the highest epoch that names of some objects carry, and such an object.
type epochSeen struct {
	epoch uint64
	name  string
}

func (e *epochSeen) see(epoch uint64, name string) {
	if epoch > e.epoch {
		e.epoch, e.name = epoch, name
	}
}

func (l *objectLister) entry(e objstore.Entry) (bool, error) {
	r := l.c.report
	if t, epoch, id, ok := base.ParseWALName(e.Name); ok && t == tree {
		l.wal(e, manifest.Pos{Epoch: epoch, ID: id})
		return true, nil
	}
	if id, ok := base.ParseObjectName(e.Name); ok && id.Tree == tree {
		return true, l.object(e, id)
	}
	switch {
	case e.Name == base.LogName, e.Name == base.ManifestName(tree):
	case strings.HasPrefix(e.Name, l.probes):
		r.Waiting.add(e.Name, e.Size)
	default:
		r.Foreign.add(e.Name, e.Size)
	}
	return true, nil
}

// wal sorts a WAL object. Fences stay for ever.
func (l *objectLister) wal(e objstore.Entry, at manifest.Pos) {
	r := l.c.report
	if wal.IsFence(e.Size) {
		return
	}
	l.records.see(at.Epoch, e.Name)
	switch {
	case at.Less(l.s.GetPosition().Pos()):
		r.Waiting.add(e.Name, e.Size)
	case !at.Less(l.c.walEnd):
		r.Uncommitted.add(e.Name, e.Size)
	}
}

// object sorts an object that is written once.
func (l *objectLister) object(e objstore.Entry, id base.ObjectID) error {
	r := l.c.report
	if id.Role == base.RoleWriter {
		l.writer.see(id.Epoch, e.Name)
	} else {
		l.compactor.see(id.Epoch, e.Name)
	}
	if size, ok := l.obsolete[id]; ok {
		if size != uint64(e.Size) {
			l.c.damaged(e.Name, nil, newSizeError(id, e.Size, size))
		}
		r.Waiting.add(e.Name, e.Size)
		return nil
	}
	named, err := l.names.names(l.c.ctx, id)
	switch {
	case err != nil:
		return err
	case named && id.Kind == base.KindSST && id.Segment < l.firstLive:
		r.Waiting.add(e.Name, e.Size) // of a dropped segment, by its index
	case named:
	case passed(l.s, id) && len(l.s.GetPins()) == 0:
		r.Orphans.add(e.Name, e.Size)
	default:
		r.Uncommitted.add(e.Name, e.Size)
	}
	return nil
}

// older checks that the MANIFEST is not older than the objects: an epoch is taken by a commit before an object of it
// is written, and position is in the epoch of a writer before that puts its first record. A MANIFEST that breaks this was put
// back from a copy: what was committed after the copy is not in it, and sequences would be used again (I3).
func (l *objectLister) older() error {
	c := l.c
	n := &c.newest
	above := func() bool {
		return l.writer.epoch > n.writer || l.compactor.epoch > n.compactor || l.records.epoch > n.position
	}
	if !above() {
		return nil
	}
	if _, err := c.load(); err != nil { // whoever took those epochs may have done so since the walk began
		return c.found(base.ManifestName(tree), everything(), err)
	}
	name := base.ManifestName(tree)
	for _, o := range []struct {
		what string
		seen epochSeen
		mine uint64
	}{{"writer", l.writer, n.writer}, {"compactor", l.compactor, n.compactor}, {"replay position's", l.records, n.position}} {
		if o.seen.epoch > o.mine {
			c.contradicts(name, 0, everything(), "it is older than the log: its %s epoch is %d, and there is %s", o.what, o.mine, o.seen.name)
		}
	}
	return nil
}

// maxPinBytes is the largest pin that is read: what a MANIFEST may have, and its frame.
const maxPinBytes = manifest.MaxManifestBytes + 1<<10

// pins checks that each pin is the MANIFEST of an earlier version of this log, and that everything it names is there.
func (c *checker) pins(s *manifest.State) error {
	named := manifest.NamedObjects(s)
	for _, p := range s.GetPins() {
		id := p.GetRef().ID()
		c.taken(id, nil)
		err := c.pin(s, id, named)
		still := func(now *manifest.State) (bool, error) {
			_, ok := manifest.NamedObjects(now)[id]
			return ok, nil
		}
		if err := c.absent(id.Name(), nil, err, still); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) pin(s *manifest.State, id base.ObjectID, named map[base.ObjectID]struct{}) error {
	obj, err := c.store.Get(c.ctx, id.Name(), objstore.GetOptions{MaxBytes: maxPinBytes})
	switch {
	case errors.Is(err, objstore.ErrTooLarge):
		return base.Corruptf(id.Name(), 0, "no manifest is so large: %v", err)
	case err != nil:
		return fmt.Errorf("read %s: %w", id.Name(), err)
	}
	defer c.looked(id.Name(), uint64(obj.Size))
	pinned, err := manifest.DecodeState(id.Name(), tree, obj.Body)
	if err != nil {
		return err
	}
	if string(pinned.GetLogId()) != string(s.GetLogId()) || pinned.GetVersion() > s.GetVersion() {
		c.contradicts(id.Name(), 0, nil, "it is version %d of log %x, the MANIFEST is version %d of log %x",
			pinned.GetVersion(), pinned.GetLogId(), s.GetVersion(), s.GetLogId())
	}
	for _, o := range slices.SortedFunc(maps.Keys(newPresence(pinned).sizes), func(a, b base.ObjectID) int { return strings.Compare(a.Name(), b.Name()) }) {
		if _, ok := named[o]; ok {
			continue // looked at there
		}
		if _, err := c.store.Head(c.ctx, o.Name()); err != nil {
			return fmt.Errorf("look at %s, which is pinned: %w", o.Name(), err)
		}
	}
	return nil
}
