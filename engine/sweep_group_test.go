package engine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// F24, F52: an index that is about to be committed stays, however old, and so do the tables that it
// is about to list; that of a passed epoch goes, and can no longer be committed.
func TestF52SweepMeetsARegrouping(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		db := r.open(o)
		values := r.grouped(db, time.Second, 2, 2)
		db.crash()
		db = r.open(o) // all tables are of a passed epoch now
		r.takeCompactor(db)
		before := r.names("trees/")
		res := r.build(db, groupJob(db.Head().GetGroups(), nil))
		r.old(1000 * time.Hour)
		require.Equal(t, Collected{}, mustCollect(t, db).withoutWAL())
		require.Contains(t, r.names(""), res.Outputs[0].Name())
		requireHolds(t, db, 0, values...)

		r.takeCompactor(db)
		require.Equal(t, uint64(1), mustCollect(t, db).Orphans)
		_, err := db.committer.Commit(t.Context(), res.Edit)
		require.ErrorIs(t, err, manifest.ErrFenced)
		require.Subset(t, before, r.names(base.ObjectPrefix(tree, base.KindIndex)))
		requireHolds(t, db, 0, values...)
	})
}

// Regrouping, dropping and forgetting happen at every moment of a walk: behind any of its requests. The
// witness sees that nothing goes that is needed.
func TestF52SweepWhileGroupsChange(t *testing.T) {
	at, met := 0, true
	for ; met; at++ {
		simulated(t, func(t *testing.T, r *garbageRig) {
			o := r.manualOptions()
			db := r.open(o)
			values := r.grouped(db, time.Second, 2, 2, 2)
			db.crash()
			db = r.open(o)
			r.takeCompactor(db)
			for segment := range uint32(9) {
				r.put(orphanOf(base.RoleCompactor, 1, segment).Name(), 10)
			}
			i, changing := 0, false
			met = false
			r.rule(func(_ context.Context, op fault.Op) fault.Plan {
				if changing || op.Kind == fault.Put {
					return fault.Plan{}
				}
				if i++; i <= at {
					return fault.Plan{}
				}
				met, changing = true, true
				return fault.Plan{After: func(context.Context) error {
					r.regroup(db, 0, 2)
					g := db.Head().GetGroups()[0]
					x, err := db.indexOfGroup(t.Context(), g)
					require.NoError(t, err)
					trimmed, err := x.Trim(g, 1)
					require.NoError(t, err)
					r.elsewhere(db, manifest.DropSegments(db.epoch, 1, trimmed))
					return nil
				}}
			})
			got := mustCollect(t, db)
			require.Equal(t, uint64(9), got.Orphans)
			r.rule(nil)
			require.NoError(t, db.poll(t.Context()))
			first := 0
			if met {
				first = 1
			}
			requireHolds(t, db, uint64(first), values[first:]...)
			afterGrace(t, db)
			mustCollect(t, db)
			r.requireClean()
			require.Len(t, r.names(base.ObjectPrefix(tree, base.KindSST)), 6-first)
		})
	}
	require.Greater(t, at, 10)
}

// What a walk costs: it reads the tail of each index, and the lists that do not fit in there, once.
func TestSweepReadsEachIndexOnce(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		db := r.open(o)
		r.grouped(db, time.Second, 5, 4, 6)
		var counter fault.Counter
		indexes := fault.On(func(op fault.Op) bool { return strings.HasSuffix(op.Name, ".idx") }, counter.Hook)
		r.rule(indexes)
		mustCollect(t, db)
		require.Equal(t, fault.Counts{}, requests(&counter), "nothing is of a passed epoch")
		r.rule(nil)
		db.crash()
		db = r.open(o)
		r.rule(indexes)
		mustCollect(t, db)
		require.Equal(t, fault.Counts{Get: 3}, requests(&counter))
	})
}

// An index that cannot be read protects what it may list, and nothing else.
func TestSweepWithADamagedIndex(t *testing.T) {
	for name, gone := range map[string]bool{"damaged": false, "gone": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				o := r.manualOptions()
				db := r.open(o)
				values := r.grouped(db, time.Second, 2, 3)
				db.crash()
				db = r.open(o)
				for segment := range uint32(8) {
					r.put(orphanOf(base.RoleWriter, 1, segment).Name(), 10)
				}
				index := db.Head().GetGroups()[1].GetIndex().ID().Name()
				body := r.damage(index, 1)
				if gone {
					require.NoError(t, r.witness.Store.Delete(t.Context(), []string{index}))
				}
				for _, want := range []uint64{5, 0} { // not those of segments 3 to 5
					got, err := db.CollectGarbage(t.Context())
					require.ErrorContains(t, err, "the tables of segments 3 to 5 cannot be told")
					require.ErrorContains(t, err, index)
					require.Equal(t, want, got.Orphans)
				}
				require.Equal(t, uint64(2), db.Status().Sweeps, "the walk came to its end")
				r.mend(index, body)
				require.Equal(t, uint64(3), mustCollect(t, db).Orphans)
				requireHolds(t, db, 0, values...)
				r.requireClean()
			})
		})
	}
}

// A list that cannot be read protects its segment only. One that names tables of other
// segments is damage: the walk looks each table up in one list.
func TestListReader(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		r.grouped(db, time.Second, 4)
		g := db.Head().GetGroups()[0]
		obj, err := r.witness.Store.Get(t.Context(), g.GetIndex().ID().Name(), objstore.GetOptions{})
		require.NoError(t, err)
		x, err := manifest.ParseIndex(g.GetIndex().ID(), obj.Size, obj.Body)
		require.NoError(t, err)
		var segments []*manifest.Segment
		for i := range x.Len() {
			off, n := x.ListRange(i)
			list, err := x.ParseList(i, obj.Body[off:off+n])
			require.NoError(t, err)
			segments = append(segments, x.Full(i, list))
		}
		one, two := segments[1].GetRuns()[0].GetTables()[0], segments[2].GetRuns()[0].GetTables()[0]
		ids := []base.ObjectID{one.GetRef().ID(), two.GetRef().ID()}

		off, _ := x.ListRange(1)
		r.damage(g.GetIndex().ID().Name(), len(obj.Body)-int(off)-2)
		n := newNamer(uncached(r.store, db.env), db.Head())
		for _, segment := range []uint32{1, 2, 3, 4, 5} {
			named, err := n.names(t.Context(), orphanOf(base.RoleWriter, 1, segment))
			require.NoError(t, err)
			require.Equal(t, segment == 2, named)
		}
		require.Len(t, n.damage, 1)
		named, err := n.names(t.Context(), ids[1])
		require.NoError(t, err)
		require.True(t, named)

		one.Ref, two.Ref = two.Ref, one.Ref
		b := manifest.NewIndexBuilder(segments)
		for i := range segments {
			b.SetKeys(i, 1)
		}
		b.Add(manifest.HashKey([]byte("k")), 15)
		body, line, err := b.Finish(g.GetIndex().ID())
		require.NoError(t, err)
		require.Equal(t, g.GetIndexSize(), line.GetIndexSize())
		r.mend(g.GetIndex().ID().Name(), body)
		n = newNamer(uncached(r.store, db.env), db.Head())
		for _, id := range append(ids, orphanOf(base.RoleWriter, 1, 2), orphanOf(base.RoleWriter, 1, 3)) {
			named, err := n.names(t.Context(), id)
			require.NoError(t, err)
			require.True(t, named)
		}
		require.Len(t, n.damage, 2)
		require.ErrorContains(t, n.damage[0], "a table of another segment")
		r.mend(g.GetIndex().ID().Name(), obj.Body)
	})
}

// Ranges that are not whole segments of the index are damage, whatever the index says.
func TestListedRanges(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		r.grouped(db, time.Second, 4)
		whole := liveRange(db.Head().GetGroups()[0])
		lists, err := openLists(t.Context(), uncached(r.store, db.env), &whole)
		require.NoError(t, err)
		for _, c := range []struct {
			first, last uint32
			from, to    int
			bad         bool
		}{
			{first: 1, last: 4, from: 0, to: 4}, {first: 2, last: 3, from: 1, to: 3}, {first: 4, last: 4, from: 3, to: 4},
			{first: 1, last: 5, bad: true}, {first: 5, last: 6, bad: true},
		} {
			from, to, err := lists.positions(&listedRange{index: whole.index, first: c.first, last: c.last})
			if c.bad {
				require.ErrorIs(t, err, ErrCorrupt, "%d to %d", c.first, c.last)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, []int{c.from, c.to}, []int{from, to})
		}
		whole.size = 0
		_, err = openLists(t.Context(), uncached(r.store, db.env), &whole)
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "nothing tells the size")
	})
}
