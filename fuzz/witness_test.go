package fuzz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	walfile "github.com/annalsdb/annals/wal"
)

// witness is the store beneath all faults: what it sees has really happened. It reads
// every MANIFEST that is put, notes which steps of a log's life led to it from the one
// before, and finds what breaks I7: see references.
type witness struct {
	*mem.Store

	mu    sync.Mutex
	refs  *references
	steps map[string]int // how often each step was seen
}

func newWitness(store *mem.Store) *witness {
	w := &witness{Store: store, refs: newReferences(store), steps: map[string]int{}}
	if snap, err := manifest.Load(context.Background(), store, base.SystemEnv(), 0); err == nil {
		w.refs.adopt(snap.State, time.Now())
	}
	return w
}

// Put implements objstore.Store.
func (w *witness) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	res, err := w.Store.Put(ctx, name, body, o)
	if err != nil || name != manifestName {
		return res, err
	}
	state, err := manifest.DecodeState(name, 0, body)
	if err != nil {
		w.refs.broke("a MANIFEST that cannot be read was put: %w", err)
		return res, nil
	}
	if before := w.refs.state; before != nil {
		for _, step := range stepsBetween(before, state) {
			w.steps[step]++
		}
	}
	w.refs.adopt(state, time.Now())
	return res, nil
}

// Delete implements objstore.Store.
func (w *witness) Delete(ctx context.Context, names []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		at, err := w.Head(ctx, name)
		w.refs.deleted(name, err == nil && walfile.IsFence(at.Size), time.Now())
	}
	return w.Store.Delete(ctx, names)
}

// err joins all that must not have happened.
func (w *witness) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.refs.broken...)
}

// setStale says how long the process that opens the log may rely on a passed version.
func (w *witness) setStale(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refs.setStale(d)
}

// unnamed returns what the bucket holds and no part of the log refers to: neither
// MANIFEST, nor replay, nor the obsolete list. Fences stay for ever.
func (w *witness) unnamed() ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refs.unnamed()
}

// stepsBetween returns what must have been done to get from one version to a later one.
func stepsBetween(a, b *manifest.State) []string {
	steps := map[string]bool{
		"flush":              b.GetFlushedEnd() > a.GetFlushedEnd(),
		"writer":             b.GetWriter().GetEpoch() > a.GetWriter().GetEpoch(),
		"compactor":          b.GetCompactor().GetEpoch() > a.GetCompactor().GetEpoch(),
		"beat":               b.GetCompactorBeat() > a.GetCompactorBeat(),
		"clean close":        a.CleanNext == nil && b.CleanNext != nil,
		"stamp":              manifest.HasUnstamped(a) && !manifest.HasUnstamped(b),
		"forget":             forgot(a, b),
		"drop":               firstSequence(b) > firstSequence(a),
		"group":              len(b.GetGroups()) > len(a.GetGroups()),
		"seal":               lastSealed(b) > lastSealed(a),
		"partial group drop": partialDrop(a, b),
	}
	compactionSteps(a, b, steps)
	groupSteps(a, b, steps)
	var seen []string
	for step, done := range steps {
		if done {
			seen = append(seen, step)
		}
	}
	return seen
}

// firstSequence returns where a log begins.
func firstSequence(s *manifest.State) uint64 {
	if groups := s.GetGroups(); len(groups) > 0 {
		return groups[0].GetFirstSequence()
	}
	return s.GetSegments()[0].GetFirstSequence()
}

func lastSealed(s *manifest.State) uint32 { return s.GetSegments()[len(s.GetSegments())-1].GetId() }

// forgot reports whether an entry left the obsolete list.
func forgot(a, b *manifest.State) bool {
	key := func(o *manifest.Obsolete) string {
		return fmt.Sprint(o.GetRef().ID().Name(), o.GetSegmentsOnly(), o.GetFirstSegment(), o.GetLastSegment())
	}
	left := map[string]bool{}
	for _, o := range a.GetObsolete() {
		left[key(o)] = true
	}
	for _, o := range b.GetObsolete() {
		delete(left, key(o))
	}
	return len(left) > 0
}

// partialDrop reports whether a group lost segments and stayed.
func partialDrop(a, b *manifest.State) bool {
	for _, g := range a.GetGroups() {
		for _, h := range b.GetGroups() {
			if string(g.GetId()) == string(h.GetId()) && h.GetFirstSegment() > g.GetFirstSegment() {
				return true
			}
		}
	}
	return false
}

// compactionSteps adds what compaction did to segments that are in both versions.
func compactionSteps(a, b *manifest.State, steps map[string]bool) {
	after := map[uint32]*manifest.Segment{}
	for _, g := range b.GetSegments() {
		after[g.GetId()] = g
	}
	for _, g := range a.GetSegments() {
		h := after[g.GetId()]
		switch {
		case h == nil:
		case h.Last() > g.Last():
			steps["merge"] = true
		case lostRun(g, h) && !g.GetSealed():
			steps["relieve"] = true
		case lostRun(g, h):
			steps["consolidate"] = true
		}
	}
}

func lostRun(a, b *manifest.Segment) bool {
	ids := map[string]bool{}
	for _, run := range b.GetRuns() {
		ids[string(run.GetId())] = true
	}
	return slices.ContainsFunc(a.GetRuns(), func(r *manifest.Run) bool { return !ids[string(r.GetId())] })
}

// groupSteps adds what happened to groups.
func groupSteps(a, b *manifest.State, steps map[string]bool) {
	before, after := map[string]bool{}, map[string]bool{}
	for _, g := range a.GetGroups() {
		before[string(g.GetId())] = true
	}
	for _, g := range b.GetGroups() {
		after[string(g.GetId())] = true
		if !before[string(g.GetId())] && g.GetLastSegment() > g.GetFirstSegment() && groupsWithin(a, g) > 1 {
			steps["regroup"] = true
		}
	}
	first := firstSequence(b)
	for _, g := range a.GetGroups() {
		if !after[string(g.GetId())] && g.GetEndSequence() <= first {
			steps["whole group drop"] = true
		}
	}
}

// groupsWithin counts the groups of a version that lie in the window of a group.
func groupsWithin(s *manifest.State, of *manifest.Group) (n int) {
	for _, g := range s.GetGroups() {
		if g.GetFirstSequence() >= of.GetFirstSequence() && g.GetEndSequence() <= of.GetEndSequence() {
			n++
		}
	}
	return n
}

// missing returns the steps that were not seen.
func (w *witness) missing(steps []string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(steps), func(step string) bool { return w.steps[step] > 0 })
}
