package engine

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/state"
)

// F24, F52: the collector runs between an upload and its commit.
func TestF24CollectBeforeTheCommit(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		held := fault.NewHeld(nil)
		var uploaded atomic.Bool
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.Put && strings.Contains(op.Name, "/sst/") {
				uploaded.Store(true)
			}
			if op.Kind == fault.Put && op.Name == base.ManifestName(tree) && uploaded.CompareAndSwap(true, false) {
				return fault.Plan{Held: held}
			}
			return fault.Plan{}
		})
		mustAppend(t, db, record("k", "a"))
		flushed := make(chan error, 1)
		go func() { flushed <- db.Flush(t.Context()) }()
		<-held.Caught()
		require.Equal(t, Collected{}, mustCollect(t, db))
		require.NoError(t, held.Apply(t.Context()))
		require.NoError(t, <-flushed)
		requireHolds(t, db, 0, "a")
	})
}

// F52: what a process of the current epoch uploaded stays, however old; that of a passed
// epoch goes, however new, and can no longer be committed.
func TestF52SweepByEpoch(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		db := r.open(o)
		r.segment(db, "a")
		commit := func(e manifest.Edit) error {
			_, err := db.committer.Commit(t.Context(), e)
			return err
		}
		require.NoError(t, commit(manifest.OpenCompactor(0, [16]byte{1})))
		run := db.Head().GetSegments()[0].GetRuns()[0]
		output := orphan(base.RoleCompactor, 1)
		body, err := r.store.Get(t.Context(), run.GetTables()[0].GetRef().ID().Name(), objstore.GetOptions{})
		require.NoError(t, err)
		r.put(output.Name(), len(body.Body))
		r.put(orphan(base.RoleWriter, 1).Name(), 10)
		r.old(1000 * time.Hour)
		require.Equal(t, Collected{}, mustCollect(t, db).withoutWAL())
		require.Contains(t, r.names(""), output.Name())

		// Another compactor takes over while the walk is under way, right behind the listing.
		took := false
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind != fault.List || !strings.Contains(op.Name, "/sst/") || took {
				return fault.Plan{}
			}
			took = true
			return fault.Plan{After: func(context.Context) error { return commit(manifest.OpenCompactor(1, [16]byte{2})) }}
		})
		require.Equal(t, uint64(1), mustCollect(t, db).Orphans)
		require.NotContains(t, r.names(""), output.Name())
		table := tableOf(run, output)
		err = commit(manifest.Compaction{
			Epoch: 1, First: 1, Last: 1, Inputs: [][]byte{run.GetId()},
			Output: &manifest.Run{Id: make([]byte, 16), Tables: []*manifest.Table{table}},
		}.Edit())
		require.ErrorIs(t, err, manifest.ErrFenced)

		// A new writer sweeps after the old one.
		db.crash()
		next := r.open(o)
		require.Equal(t, uint64(1), mustCollect(t, next).Orphans)
		r.requireClean()
	})
}

func tableOf(run *manifest.Run, id base.ObjectID) *manifest.Table {
	like := run.GetTables()[0]
	return &manifest.Table{
		Ref: manifest.RefOf(id), Size: like.Size, MetaOffset: like.MetaOffset, LowerKey: like.LowerKey, UpperKey: like.UpperKey,
		FirstSequence: like.FirstSequence, LastSequence: like.LastSequence,
		FirstTimestampMs: like.FirstTimestampMs, LastTimestampMs: like.LastTimestampMs,
		Records: like.Records, Keys: like.Keys, Bytes: like.Bytes,
	}
}

// The sweep goes by a MANIFEST that was read behind the listing, not by what it knew.
func TestF52SweepReadsTheHeadBehindTheListing(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		r.open(r.manualOptions()).crash()
		db := r.open(r.manualOptions())
		id := base.ObjectID{Tree: tree, Kind: base.KindState, Role: base.RoleWriter, Epoch: 1, ULID: base.SystemEnv().NewULID()}
		body := state.New(state.Limits{}).EncodeBase(id.ULID)
		_, err := r.witness.Put(t.Context(), id.Name(), body, objstore.PutOptions{})
		require.NoError(t, err)
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind != fault.List || op.Name != base.ObjectPrefix(tree, base.KindState) {
				return fault.Plan{}
			}
			return fault.Plan{After: func(context.Context) error {
				snap, err := manifest.Load(t.Context(), r.witness, db.env, tree)
				require.NoError(t, err)
				_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: r.witness, Env: db.env, Start: snap},
					manifest.Edit{Name: "name it", Apply: func(s *manifest.State) error {
						s.State, s.StatePosition, s.StateSize = manifest.RefOf(id), s.Position, uint64(len(body))
						return nil
					}})
				return err
			}}
		})
		require.Equal(t, Collected{}, mustCollect(t, db))
		require.Contains(t, r.names(""), id.Name())
	})
}

// F26: unfinished uploads are aborted when they are a day old by the store's time.
func TestF26UnfinishedUploads(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		uploads := &uploadStore{Store: r.store, began: []time.Time{time.Now().Add(-25 * time.Hour), time.Now().Add(-23 * time.Hour)}}
		o := r.options()
		r.wall.Store(int64(-1000 * time.Hour))
		db, err := Open(t.Context(), uploads, o)
		require.NoError(t, err)
		defer db.crash()
		require.Equal(t, uint64(1), mustCollect(t, db).Uploads)
		require.Len(t, uploads.began, 1)
		elapse(3 * time.Hour)
		require.Empty(t, uploads.began)
		require.Equal(t, uint64(2), db.Status().Collected.Uploads)
		uploads.err = fault.ErrInjected
		_, err = db.CollectGarbage(t.Context())
		require.ErrorIs(t, err, fault.ErrInjected)
	})
}

// uploadStore is a store with unfinished multipart uploads.
type uploadStore struct {
	objstore.Store
	began []time.Time
	err   error
}

func (s *uploadStore) AbortUploads(_ context.Context, before time.Time) (int, error) {
	var left []time.Time
	for _, b := range s.began {
		if !b.Before(before) {
			left = append(left, b)
		}
	}
	n := len(s.began) - len(left)
	s.began = left
	return n, s.err
}

// F38: more than a page of everything, and more than a round of the walk looks at.
func TestF38ManyNames(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		r.open(o).crash()
		r.open(o).crash()
		db := r.open(o) // fences 1/1 and 2/1
		const objects = maxWalkPages*objstore.MaxListPage + 2500
		for i := range uint64(objects) {
			r.put(orphan(base.RoleWriter, i%3).Name(), 1)
		}
		for i := range uint64(2500) {
			r.put(base.WALName(tree, 1, i+2), 100)
			r.put(base.ProbeName(tree, base.SystemEnv().NewULID()), 1)
		}
		r.put(base.ObjectPrefix(tree, base.KindSST)+"README", 1)
		elapse(DefaultGCInterval + time.Second)
		require.Equal(t, uint64(maxWalkPages*objstore.MaxListPage), db.Status().Collected.Orphans)
		require.Equal(t, uint64(2500), db.Status().Collected.WALObjects)
		require.Zero(t, db.Status().Sweeps)
		elapse(DefaultGCInterval)
		require.Equal(t, uint64(objects), db.Status().Collected.Orphans)
		require.Equal(t, uint64(1), db.Status().Sweeps)
		require.Zero(t, db.Status().Collected.Probes, "a probe may be at work")
		r.old(leftoverAge)
		elapse(walkInterval)
		require.Equal(t, uint64(2500), db.Status().Collected.Probes)
		require.Equal(t, []string{base.ObjectPrefix(tree, base.KindSST) + "README"}, r.names(base.ObjectPrefix(tree, base.KindSST)), "not ours")
		require.NoError(t, r.witness.Store.Delete(t.Context(), []string{base.ObjectPrefix(tree, base.KindSST) + "README"}))
		r.requireClean()
	})
}

// What a pin may name, and objects of other trees, are not taken for garbage. An index of which no segment
// is listed goes like any other object.
func TestPinsAndOtherTreesAreLeftAlone(t *testing.T) {
	index := base.ObjectID{Tree: tree, Kind: base.KindIndex, Role: base.RoleCompactor, ULID: base.SystemEnv().NewULID()}
	pin := base.ObjectID{Tree: tree, Kind: base.KindPin, Role: base.RoleWriter, Epoch: 1, ULID: base.SystemEnv().NewULID()}
	for name, c := range map[string]struct {
		change func(s *manifest.State)
		want   Collected
	}{
		"pin": {func(s *manifest.State) { s.Pins = []*manifest.Pin{{Ref: manifest.RefOf(pin)}} }, Collected{Probes: 1}},
		"index": {func(s *manifest.State) {
			s.Obsolete = append(s.Obsolete, &manifest.Obsolete{Ref: manifest.RefOf(index), SinceMs: 1})
		}, Collected{Obsolete: 4, Orphans: 3, Probes: 1}},
		"another tree": {func(s *manifest.State) {
			id := orphan(base.RoleWriter, 1)
			id.Tree = 7
			s.Obsolete = append(s.Obsolete, &manifest.Obsolete{Ref: manifest.RefOf(id), SinceMs: 1})
		}, Collected{Obsolete: 3, Orphans: 3, Probes: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				db, _, _, _ := r.garbage(r.manualOptions())
				if name == "pin" {
					head, err := r.store.Get(t.Context(), base.ManifestName(tree), objstore.GetOptions{})
					require.NoError(t, err)
					_, err = r.store.Put(t.Context(), pin.Name(), head.Body, objstore.PutOptions{})
					require.NoError(t, err)
				}
				_, err := db.committer.Commit(t.Context(), manifest.Edit{Name: "test", Apply: func(s *manifest.State) error {
					c.change(s)
					return nil
				}})
				require.NoError(t, err)
				got := mustCollect(t, db).withoutWAL()
				got.Bytes = 0
				require.Equal(t, c.want, got)
			})
		})
	}
}
