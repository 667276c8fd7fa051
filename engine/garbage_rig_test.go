package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wal"
)

// garbageRig is a store on simulated time that a test can break, under a witness of
// what is really deleted. All clocks are the simulation's, and can be set off.
type garbageRig struct {
	t       *testing.T
	witness *witness
	store   *fault.Store
	ahead   atomic.Int64 // how far the store's clock is ahead, in ns
	wall    atomic.Int64 // how far the process's wall clock is off
	boot    atomic.Int64 // how far its clock that never steps is ahead

	mu   sync.Mutex
	hook fault.Hook
}

// simulated runs a test on simulated time.
func simulated(t *testing.T, f func(t *testing.T, r *garbageRig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &garbageRig{t: t}
		now := func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }
		r.witness = &witness{Store: mem.New(mem.Options{Now: now}), t: t, stale: DefaultStaleAfter}
		r.store = fault.New(r.witness, func(ctx context.Context, op fault.Op) fault.Plan {
			r.mu.Lock()
			hook := r.hook
			r.mu.Unlock()
			if hook == nil {
				return fault.Plan{}
			}
			return hook(ctx, op)
		})
		f(t, r)
	})
}

// elapse lets time pass, and waits until all that was due is done.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *garbageRig) rule(hook fault.Hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hook = hook
}

// options keep every flushed memory and no block: a test sees at once whether
// memory serves what it must not, and every other read reaches the store.
func (r *garbageRig) options() Options {
	o := smallOptions()
	env := base.SystemEnv()
	start := time.Now()
	env.Now = func() time.Time { return time.Now().Add(time.Duration(r.wall.Load())) }
	env.Elapsed = func() time.Duration { return time.Hour + time.Since(start) + time.Duration(r.boot.Load()) }
	o.Env, o.RecentBytes, o.CacheBytes = env, 1<<30, 1
	o.DisableCompaction = true // else the bucket also holds what it makes, when it likes
	return o
}

// open opens the log; when the test ends it is checked and killed.
func (r *garbageRig) open(o Options) *DB {
	r.t.Helper()
	db, err := Open(r.t.Context(), r.store, o)
	require.NoError(r.t, err)
	r.t.Cleanup(func() {
		db.mu.Lock()
		killed := db.closed
		db.mu.Unlock()
		if !killed {
			db.crash()
		}
		checkStore(r.t, r.witness.Store)
	})
	return db
}

// segment appends values as one segment, and seals it.
func (r *garbageRig) segment(db *DB, values ...string) AppendResult {
	r.t.Helper()
	var recs []Record
	for _, v := range values {
		recs = append(recs, record("k", v))
	}
	res := mustAppend(r.t, db, recs...)
	db.mu.Lock()
	db.rotate(true)
	db.mu.Unlock()
	require.NoError(r.t, db.waitFlushed(r.t.Context(), base.MaxSequence))
	return res
}

// names lists the bucket.
func (r *garbageRig) names(prefix string) []string {
	r.t.Helper()
	names := []string{}
	require.NoError(r.t, objstore.ListAll(context.Background(), r.witness.Store, prefix, "", func(e objstore.Entry) (bool, error) {
		names = append(names, e.Name)
		return true, nil
	}))
	return names
}

// old makes what the store holds older by its clock. The process does not notice.
func (r *garbageRig) old(d time.Duration) { r.ahead.Add(int64(d)) }

func (r *garbageRig) put(name string, size int) {
	r.t.Helper()
	_, err := r.witness.Store.Put(context.Background(), name, make([]byte, size), objstore.PutOptions{})
	require.NoError(r.t, err)
}

// requireClean fails unless the bucket holds what the MANIFEST refers to, fences, and the
// WAL from where replay starts, and nothing else.
func (r *garbageRig) requireClean() {
	r.t.Helper()
	snap, err := manifest.Load(context.Background(), r.witness.Store, base.SystemEnv(), tree)
	require.NoError(r.t, err)
	want := []string{base.LogName, base.ManifestName(tree)}
	for id := range manifest.NamedObjects(snap.State) {
		want = append(want, id.Name())
	}
	c, err := contentsOf(r.witness.Store, snap.State)
	require.NoError(r.t, err)
	for _, names := range []map[string]bool{c.live, c.dropped} {
		want = slices.AppendSeq(want, maps.Keys(names))
	}
	require.NoError(r.t, objstore.ListAll(context.Background(), r.witness.Store, base.WALPrefix(tree), "", func(e objstore.Entry) (bool, error) {
		_, epoch, id, ok := base.ParseWALName(e.Name)
		require.True(r.t, ok)
		if wal.IsFence(e.Size) || !(manifest.Pos{Epoch: epoch, ID: id}).Less(snap.State.GetPosition().Pos()) {
			want = append(want, e.Name)
		}
		return true, nil
	}))
	slices.Sort(want)
	require.Equal(r.t, slices.Compact(want), r.names(""))
}

// live returns the names of the tables of a state's own runs.
func live(s *manifest.State) map[string]bool {
	names := map[string]bool{}
	for _, g := range s.GetSegments() {
		for _, run := range g.GetRuns() {
			for _, t := range run.GetTables() {
				names[t.GetRef().ID().Name()] = true
			}
		}
	}
	return names
}

// witness is the innermost store: it sees what is applied, and fails the test when
// something is deleted that somebody may still need (I7).
type witness struct {
	objstore.Store
	t       *testing.T
	stale   time.Duration
	damaged bool // by the test
	// discards: a compactor is at work, which deletes what a job wrote that came too late. Should it be
	// committed after all, Put finds that it is not there.
	discards bool

	mu      sync.Mutex
	heads   []witnessed
	deleted int
}

// witnessed is a version of the MANIFEST that was in force until a time.
type witnessed struct {
	state *manifest.State
	contents
	until time.Time // zero: it still is
}

func (w *witness) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	res, err := w.Store.Put(ctx, name, body, o)
	if err == nil && name == base.ManifestName(tree) {
		state, derr := manifest.DecodeState(name, tree, body)
		require.NoError(w.t, derr)
		if n := len(w.heads); n > 0 {
			w.heads[n-1].until = time.Now()
		}
		c, cerr := contentsOf(w.Store, state)
		if cerr != nil && !w.damaged {
			w.t.Errorf("version %d names what is not there: %v", state.GetVersion(), cerr)
		}
		w.heads = append(w.heads, witnessed{state: state, contents: c})
	}
	return res, err
}

func (w *witness) Delete(ctx context.Context, names []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		if err := w.needed(ctx, name); err != nil {
			w.t.Errorf("deleted %s: %v", name, err)
		}
	}
	w.deleted += len(names)
	return w.Store.Delete(ctx, names)
}

func (w *witness) needed(ctx context.Context, name string) error {
	if strings.Contains(name, "/probe/") {
		return nil
	}
	for _, h := range w.heads {
		// A poll answered while this version was in force may be relied on until it is stale.
		if h.live[name] && (h.until.IsZero() || time.Since(h.until) <= w.stale) {
			return fmt.Errorf("version %d names it", h.state.GetVersion())
		}
	}
	head := w.heads[len(w.heads)-1]
	now := head.state
	if _, epoch, id, ok := base.ParseWALName(name); ok {
		if !(manifest.Pos{Epoch: epoch, ID: id}).Less(now.GetPosition().Pos()) {
			return fmt.Errorf("replay starts at %v", now.GetPosition().Pos())
		}
		if head, err := w.Store.Head(ctx, name); err == nil && wal.IsFence(head.Size) {
			return fmt.Errorf("it is a fence")
		}
		return nil
	}
	id, ok := base.ParseObjectName(name)
	if !ok {
		return fmt.Errorf("it is nothing that is collected")
	}
	if head.lists[name] {
		return fmt.Errorf("it lists dropped segments that are not forgotten")
	}
	obsolete := head.obsolete[name] || head.dropped[name]
	current := map[base.Role]uint64{base.RoleWriter: now.GetWriter().GetEpoch(), base.RoleCompactor: now.GetCompactor().GetEpoch()}[id.Role]
	if !obsolete && id.Epoch >= current && !(w.discards && id.Role == base.RoleCompactor && id.Epoch == current) {
		return fmt.Errorf("it may be about to be committed")
	}
	return nil
}

// orphan returns the name of a table that nothing names.
func orphan(role base.Role, epoch uint64) base.ObjectID {
	return base.ObjectID{Tree: tree, Kind: base.KindSST, Role: role, Epoch: epoch, Segment: 1, ULID: base.SystemEnv().NewULID()}
}

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }
