package fuzz

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	walfile "github.com/annalsdb/annals/wal"
)

// references is what the versions of MANIFEST name, those that somebody may still rely on and the one in force. It finds
// what breaks I7: a version that names an object that is not there, or forgets one that it no longer
// needs, or the deletion of something that a process may still need.
//
// It is told of versions and deletions in the order in which they happen; it has no lock.
type references struct {
	store   objstore.Store
	stale   time.Duration // how long a process may rely on a version that was passed
	state   *manifest.State
	live    map[base.ObjectID]bool      // in the version in force
	passed  map[base.ObjectID]time.Time // no longer live, since when; those that no process relies on any more left out
	indexes map[base.ObjectID][]indexedSegment
	broken  []error
}

func newReferences(store objstore.Store) *references {
	return &references{
		store: store, stale: engine.DefaultStaleAfter,
		passed: map[base.ObjectID]time.Time{}, indexes: map[base.ObjectID][]indexedSegment{},
	}
}

// setStale says how long processes may rely on a passed version; 0: the default.
func (r *references) setStale(d time.Duration) {
	if d == 0 {
		d = engine.DefaultStaleAfter
	}
	r.stale = d
}

// broke notes what must not happen.
func (r *references) broke(format string, args ...any) {
	r.broken = append(r.broken, fmt.Errorf("I7: "+format, args...))
}

// adopt looks at what came into the log with a version: it must be there; and at what left
// it: that must be on the obsolete list.
func (r *references) adopt(next *manifest.State, now time.Time) {
	before := r.live
	r.state, r.live = next, r.liveIn(next)
	for id := range r.live {
		if before[id] {
			continue
		}
		if _, err := r.store.Head(context.Background(), id.Name()); err != nil {
			r.broke("version %d names what is not there: %w", next.GetVersion(), err)
		}
		if _, was := r.passed[id]; was {
			r.broke("version %d brings back %s", next.GetVersion(), id.Name())
		}
	}
	for id, since := range r.passed {
		if now.Sub(since) > r.stale {
			delete(r.passed, id)
		}
	}
	var named map[base.ObjectID]bool
	for id := range before {
		if r.live[id] {
			continue
		}
		r.passed[id] = now
		if named == nil {
			named = r.namedIn(next)
		}
		if !named[id] {
			r.broke("version %d neither has %s nor calls it obsolete", next.GetVersion(), id.Name())
		}
	}
}

// deleted looks at a deletion.
func (r *references) deleted(name string, fence bool, now time.Time) {
	if err := r.needed(name, fence, now); err != nil {
		r.broke("%s was deleted: %w", name, err)
	}
}

// needed returns why an object must not be deleted now.
func (r *references) needed(name string, fence bool, now time.Time) error {
	if strings.Contains(name, "/probe/") || r.state == nil {
		return nil
	}
	if _, epoch, id, ok := base.ParseWALName(name); ok {
		if at := r.state.GetPosition().Pos(); !(manifest.Pos{Epoch: epoch, ID: id}).Less(at) {
			return fmt.Errorf("replay starts at %v", at)
		}
		if fence {
			return errors.New("it is a fence")
		}
		return nil
	}
	id, ok := base.ParseObjectName(name)
	if !ok {
		return errors.New("nobody collects such an object")
	}
	if r.live[id] {
		return fmt.Errorf("version %d names it", r.state.GetVersion())
	}
	if since, ok := r.passed[id]; ok && now.Sub(since) <= r.stale {
		return fmt.Errorf("it left the log %v ago, and a process may rely on an old version for %v", now.Sub(since), r.stale)
	}
	// Of the epoch in force only a compactor deletes, outputs of a job that failed. That
	// they do not become live nevertheless is seen when a version names them.
	if id.Role == base.RoleWriter && id.Epoch >= r.state.GetWriter().GetEpoch() && !r.namedIn(r.state)[id] {
		return errors.New("it may be about to be committed")
	}
	return nil
}

// liveIn returns what a version consists of.
func (r *references) liveIn(s *manifest.State) map[base.ObjectID]bool {
	live := make(map[base.ObjectID]bool, len(r.live)+1)
	for _, g := range s.GetSegments() {
		for _, run := range g.GetRuns() {
			for _, t := range run.GetTables() {
				live[t.GetRef().ID()] = true
			}
		}
	}
	for _, g := range s.GetGroups() {
		live[g.GetIndex().ID()] = true
		r.addTables(live, g.GetIndex().ID(), g.GetFirstSegment(), g.GetLastSegment())
	}
	for _, ref := range []*manifest.ObjectRef{s.GetState(), s.GetStateChanges()} {
		if ref != nil {
			live[ref.ID()] = true
		}
	}
	for _, p := range s.GetPins() {
		live[p.GetRef().ID()] = true
	}
	return live
}

// namedIn returns what a version consists of and what it lists as obsolete.
func (r *references) namedIn(s *manifest.State) map[base.ObjectID]bool {
	named := r.liveIn(s)
	for _, o := range s.GetObsolete() {
		named[o.GetRef().ID()] = true
		if o.GetSegmentsOnly() {
			r.addTables(named, o.GetRef().ID(), o.GetFirstSegment(), o.GetLastSegment())
		}
	}
	return named
}

// unnamed returns what the bucket holds and no part of the log refers to: neither
// MANIFEST, nor replay, nor the obsolete list. Fences stay for ever.
func (r *references) unnamed() ([]string, error) {
	ctx := context.Background()
	snap, err := manifest.Load(ctx, r.store, base.SystemEnv(), 0)
	if err != nil {
		return nil, err
	}
	live, named := r.liveIn(snap.State), r.namedIn(snap.State)
	var names []string
	err = objstore.ListAll(ctx, r.store, "", "", func(e objstore.Entry) (bool, error) {
		if e.Name == base.LogName || e.Name == manifestName {
			return true, nil
		}
		if _, epoch, id, ok := base.ParseWALName(e.Name); ok {
			if walfile.IsFence(e.Size) || !(manifest.Pos{Epoch: epoch, ID: id}).Less(snap.State.GetPosition().Pos()) {
				return true, nil
			}
		}
		if id, ok := base.ParseObjectName(e.Name); ok && named[id] {
			delete(named, id)
			return true, nil
		}
		names = append(names, e.Name)
		return true, nil
	})
	for id := range named {
		if !live[id] {
			continue // obsolete: deleted, and not yet forgotten
		}
		err = errors.Join(err, fmt.Errorf("%s is named and not there", id.Name()))
	}
	return names, err
}
