package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// takeCompactor takes the next epoch of the compactor for the test, which then does its work
// step by step.
func (r *garbageRig) takeCompactor(db *DB) {
	r.t.Helper()
	epoch := db.committer.Current().State.GetCompactor().GetEpoch()
	_, err := db.committer.Commit(r.t.Context(), manifest.OpenCompactor(epoch, newOwner(db.env)))
	require.NoError(r.t, err)
}

// groupJob makes one group of some of the state's groups, and of its first segments.
func groupJob(groups []*manifest.Group, segments []*manifest.Segment) compaction.Job {
	j := compaction.Job{Kind: compaction.Group, Groups: groups, Segments: segments}
	for _, g := range groups {
		j.Records, j.Bytes, j.Stored = j.Records+g.GetRecords(), j.Bytes+g.GetBytes(), j.Stored+g.GetStoredBytes()
	}
	for _, s := range segments {
		for _, t := range s.GetRuns()[0].GetTables() {
			j.Records, j.Bytes, j.Stored = j.Records+t.GetRecords(), j.Bytes+t.GetBytes(), j.Stored+t.GetSize()
		}
	}
	return j
}

// build does a job by the compactor's current epoch, on the store without faults, and returns
// the edit to commit.
func (r *garbageRig) build(db *DB, job compaction.Job) *compaction.Result {
	r.t.Helper()
	runner := compaction.Runner{
		Store: r.witness, Env: db.env, Tree: tree, Epoch: db.committer.Current().State.GetCompactor().GetEpoch(),
		Limits: db.opts.compactionLimits(),
	}
	res, err := runner.Run(context.Background(), job)
	require.NoError(r.t, err)
	return res
}

func (r *garbageRig) do(db *DB, job compaction.Job) {
	r.t.Helper()
	_, err := db.committer.Commit(r.t.Context(), r.build(db, job).Edit)
	require.NoError(r.t, err)
}

// group moves the first n segments to a group.
func (r *garbageRig) group(db *DB, n int) {
	r.t.Helper()
	r.do(db, groupJob(nil, db.Head().GetSegments()[:n]))
}

// regroup makes one group of the groups [from, to).
func (r *garbageRig) regroup(db *DB, from, to int) {
	r.t.Helper()
	r.do(db, groupJob(db.Head().GetGroups()[from:to], nil))
}

// elsewhere commits an edit as another process does, past the faults.
func (r *garbageRig) elsewhere(db *DB, edit manifest.Edit) {
	snap, err := manifest.Load(context.Background(), r.witness, db.env, tree)
	require.NoError(r.t, err)
	_, err = manifest.CommitOne(context.Background(), manifest.CommitterOptions{Store: r.witness, Env: db.env, Start: snap}, edit)
	require.NoError(r.t, err)
}

// contents is what a version of the MANIFEST names, indexes read.
type contents struct {
	live     map[string]bool // tables and indexes
	obsolete map[string]bool // whole objects
	dropped  map[string]bool // tables of dropped segments that an index lists
	lists    map[string]bool // indexes that list those
}

// contentsOf reads all that a version names. It has nothing in common with how the engine
// does it: each index whole. An error says what could not be read; the rest is there.
func contentsOf(store objstore.Store, s *manifest.State) (contents, error) {
	c := contents{live: live(s), obsolete: map[string]bool{}, dropped: map[string]bool{}, lists: map[string]bool{}}
	var errs []error
	list := func(into map[string]bool, ref *manifest.ObjectRef, first, last uint32) {
		tables, err := tablesOf(store, ref.ID(), first, last)
		maps.Copy(into, tables)
		errs = append(errs, err)
	}
	for _, g := range s.GetGroups() {
		c.live[g.GetIndex().ID().Name()] = true
		list(c.live, g.GetIndex(), g.GetFirstSegment(), g.GetLastSegment())
	}
	for _, o := range s.GetObsolete() {
		name := o.GetRef().ID().Name()
		if !o.GetSegmentsOnly() {
			c.obsolete[name] = true
			continue
		}
		c.lists[name] = true
		list(c.dropped, o.GetRef(), o.GetFirstSegment(), o.GetLastSegment())
	}
	return c, errors.Join(errs...)
}

// tablesOf returns the names of the tables of segments of an index.
func tablesOf(store objstore.Store, index base.ObjectID, first, last uint32) (map[string]bool, error) {
	obj, err := store.Get(context.Background(), index.Name(), objstore.GetOptions{})
	if err != nil {
		return nil, err
	}
	x, err := manifest.ParseIndex(index, obj.Size, obj.Body)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i := range x.Len() {
		if s := x.Segment(i).GetSegment(); s.GetId() < first || s.Last() > last {
			continue
		}
		off, n := x.ListRange(i)
		list, err := x.ParseList(i, obj.Body[off:off+n])
		if err != nil {
			return nil, err
		}
		for _, t := range list {
			names[t.GetRef().ID().Name()] = true
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s lists no table of segments %d to %d", index.Name(), first, last)
	}
	return names, nil
}

// orphanOf returns the name of a table of a segment, by a passed epoch, that nothing names.
func orphanOf(role base.Role, epoch uint64, segment uint32) base.ObjectID {
	id := orphan(role, epoch)
	id.Segment = segment
	return id
}

// orphanIndex returns the name of an index that nothing names.
func orphanIndex(epoch uint64) base.ObjectID {
	return base.ObjectID{Tree: tree, Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: epoch, ULID: base.SystemEnv().NewULID()}
}

// damage changes the byte at so many bytes from an object's end, and returns what it was. The witness
// looks away from now on.
func (r *garbageRig) damage(name string, fromEnd int) (body []byte) {
	r.t.Helper()
	obj, err := r.witness.Store.Get(context.Background(), name, objstore.GetOptions{})
	require.NoError(r.t, err)
	body = obj.Body
	wrong := append([]byte(nil), body...)
	wrong[len(wrong)-fromEnd] ^= 1
	r.mend(name, wrong)
	r.witness.mu.Lock()
	r.witness.damaged = true
	r.witness.mu.Unlock()
	return body
}

// mend puts an object with this body in the place of what is there.
func (r *garbageRig) mend(name string, body []byte) {
	r.t.Helper()
	require.NoError(r.t, r.witness.Store.Delete(context.Background(), []string{name}))
	_, err := r.witness.Store.Put(context.Background(), name, body, objstore.PutOptions{})
	require.NoError(r.t, err)
	r.witness.mu.Lock()
	defer r.witness.mu.Unlock()
	head := &r.witness.heads[len(r.witness.heads)-1]
	head.contents, _ = contentsOf(r.witness.Store, head.state)
}
