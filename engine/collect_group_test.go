package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/fault"
)

// groupGarbage makes a log with garbage of every kind that groups leave behind, its grace over, and
// returns the values of key k that are left: a dropped group, a dropped part of a group, the same
// of one that was regrouped afterwards, indexes that were regrouped, and orphans of passed epochs
// among live, dropped and no tables, under segments that others were merged into too.
func (r *garbageRig) groupGarbage(o Options) (db *DB, left []string, obsolete, orphans int) {
	r.t.Helper()
	db = r.open(o)
	values := r.grouped(db, time.Minute, 2, 3, 2, 3) // epoch 1 of the compactor
	drop := func(upTo uint32) {
		lines := db.Head().GetGroups()
		var trimmed *manifest.Group
		for _, g := range lines {
			if g.GetFirstSegment() <= upTo && upTo < g.GetLastSegment() {
				x, err := db.indexOfGroup(r.t.Context(), g)
				require.NoError(r.t, err)
				trimmed, err = x.Trim(g, upTo)
				require.NoError(r.t, err)
			}
		}
		_, err := db.committer.Commit(r.t.Context(), manifest.DropSegments(db.epoch, upTo, trimmed))
		require.NoError(r.t, err)
	}
	drop(3)             // the first group, and one segment of the second
	r.regroup(db, 0, 2) // 4 to 7
	drop(4)             // of the new one
	r.segment(db, "plain")
	left = append(values[4:], "plain")
	r.takeCompactor(db)
	for segment := range uint32(14) {
		r.put(orphanOf(base.RoleCompactor, 1, segment).Name(), 10)
		r.put(orphanOf(base.RoleWriter, 0, segment).Name(), 10)
	}
	r.put(orphanIndex(1).Name(), 10)
	require.NoError(r.t, db.collector.stamp(r.t.Context(), true, nil))
	elapse(DefaultGCGrace)
	// Tables of segments 1 to 4; the indexes of the first, second and third group.
	return db, left, 4 + 3, 2*14 + 1
}

func TestCollectGroups(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db, left, obsolete, orphans := r.groupGarbage(r.manualOptions())
		before := db.Status()
		require.Equal(t, 3+3, before.ObsoleteObjects, "three ranges of segments, three indexes")
		got := mustCollect(t, db).withoutWAL()
		require.Equal(t, Collected{Obsolete: uint64(obsolete), Bytes: before.ObsoleteBytes, Orphans: uint64(orphans)}, got)
		r.requireClean()
		require.Len(t, r.names(base.ObjectPrefix(tree, base.KindIndex)), 2)
		require.Len(t, r.names(base.ObjectPrefix(tree, base.KindSST)), len(left))
		require.Zero(t, db.Status().ObsoleteObjects)
		requireHolds(t, db, 4, left...)
		require.Equal(t, Collected{}, mustCollect(t, db))
		requireHolds(t, r.open(r.manualOptions()), 4, left...)
	})
}

// Whatever operation of a round fails, applied or not, nothing is lost, and a later round
// finishes the work, in the same process or the next (F31).
func TestCollectGroupsFaultSweep(t *testing.T) {
	for _, applied := range []bool{false, true} {
		reported := 0
		i, hit := 0, true
		for ; hit; i++ {
			simulated(t, func(t *testing.T, r *garbageRig) {
				db, left, _, _ := r.groupGarbage(r.manualOptions())
				nth := fault.FailNth(i, applied, nil)
				r.rule(nth.Hook)
				_, err := db.CollectGarbage(t.Context())
				r.rule(nil)
				if hit = nth.Hit(); err != nil {
					require.ErrorIs(t, err, fault.ErrInjected)
					require.True(t, hit)
					reported++
				}
				checkStore(t, r.witness.Store)
				requireHolds(t, db, 4, left...)
				if i%2 == 0 { // the process dies in between
					db.crash()
					db = r.open(r.manualOptions())
				}
				mustCollect(t, db)
				r.requireClean()
				requireHolds(t, db, 4, left...)
			})
		}
		require.Greater(t, i, 25)
		require.Greater(t, reported, 12)
	}
}

// dropAll makes one group of n segments and drops all of it, its grace over.
func (r *garbageRig) dropAll(db *DB, n int) {
	r.t.Helper()
	r.grouped(db, time.Second, n)
	_, err := db.committer.Commit(r.t.Context(), manifest.DropSegments(db.epoch, uint32(n), nil))
	require.NoError(r.t, err)
	afterGrace(r.t, db)
}

// F31: names that the store refuses to delete hold their range up, and nothing else; each table
// counts once, however often it is deleted.
func TestF31UndeletableTablesOfAGroup(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		r.dropAll(db, 5)
		names := r.names(base.ObjectPrefix(tree, base.KindSST))
		require.Len(t, names, 5)
		inner := db.store
		db.store = &pickyStore{Store: inner, denied: map[string]bool{names[2]: true}}
		for range 2 {
			got, err := db.CollectGarbage(t.Context())
			require.ErrorContains(t, err, "delete the tables of dropped segments 1 to 5")
			require.ErrorContains(t, err, names[2])
			require.Zero(t, got.Obsolete)
			require.Equal(t, names[2:3], r.names(base.ObjectPrefix(tree, base.KindSST)))
			require.Equal(t, 2, db.Status().ObsoleteObjects, "the range, and the index, which goes last")
		}
		db.store = inner
		require.Equal(t, uint64(6), mustCollect(t, db).Obsolete)
		r.requireClean()
	})
}

// A range of thousands of tables goes in batches, by few requests for the index.
func TestCollectManyTablesOfAGroup(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		o.SegmentBytes, o.SegmentMinBytes, o.MemtableBytes, o.TableBytes = 64<<20, 64<<20, 64<<20, 1
		db := r.open(o)
		const segments, keys = 3, 600
		rnd := rand.New(rand.NewPCG(1, 2)) // lists that do not compress, and so do not fit in the tail
		for i := range segments {
			var recs []Record
			for k := range keys { // a table each
				recs = append(recs, record(fmt.Sprintf("%016x%016x%d", rnd.Uint64(), rnd.Uint64(), k), fmt.Sprint(i)))
			}
			mustAppend(t, db, recs...)
			r.segment(db)
		}
		r.takeCompactor(db)
		r.group(db, segments)
		require.Equal(t, uint32(segments*keys), db.Head().GetGroups()[0].GetTables())
		_, err := db.committer.Commit(t.Context(), manifest.DropSegments(db.epoch, segments, nil))
		require.NoError(t, err)
		afterGrace(t, db)
		var counter fault.Counter
		r.rule(fault.On(func(op fault.Op) bool { return strings.HasSuffix(op.Name, ".idx") || op.Kind == fault.Delete }, counter.Hook))
		require.Equal(t, uint64(segments*keys+1), mustCollect(t, db).Obsolete)
		require.Equal(t, fault.Counts{Get: 2, Delete: 2 + 1}, requests(&counter), "the tail and the lists; batches of a thousand, and the index")
		r.requireClean()
	})
}

// A range whose index is missing or damaged is reported, and does not hold up other ranges. It is
// not looked at again with every round.
func TestCollectWithADamagedIndex(t *testing.T) {
	for name, c := range map[string]struct {
		fromEnd int // the byte that is changed; 0: the index is gone
		want    string
	}{
		"gone":     {0, "object not found"},
		"footer":   {1, "corrupt object"},
		"contents": {80, "corrupt object"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				o := r.manualOptions()
				o.GCInterval = time.Minute
				db := r.open(o)
				r.grouped(db, time.Second, 2, 3)
				lines := db.Head().GetGroups()
				index := lines[0].GetIndex().ID().Name()
				body := r.damage(index, max(1, c.fromEnd))
				if c.fromEnd == 0 {
					require.NoError(t, r.witness.Store.Delete(t.Context(), []string{index}))
				}
				_, err := db.committer.Commit(t.Context(), manifest.DropSegments(db.epoch, 5, nil))
				require.NoError(t, err)
				var counter fault.Counter
				r.rule(fault.On(func(op fault.Op) bool { return op.Name == index && op.Kind == fault.Get }, counter.Hook))
				elapse(DefaultGCGrace + 10*time.Minute)
				require.Len(t, r.names(base.ObjectPrefix(tree, base.KindSST)), 2, "the other group's are gone")
				require.Equal(t, 2, db.Status().ObsoleteObjects)
				looks := counter.Take().Get
				require.Positive(t, looks)
				elapse(10 * time.Hour)
				require.InDelta(t, 10, counter.Take().Get, 1, "once an hour")
				require.NoError(t, db.Err())

				_, err = db.CollectGarbage(t.Context())
				require.ErrorContains(t, err, "delete the tables of dropped segments 1 to 2, listed in "+index)
				require.ErrorContains(t, err, c.want)
				report, err := Check(t.Context(), r.witness.Store, CheckOptions{})
				require.NoError(t, err)
				require.ErrorContains(t, report.Err(), "the tables of dropped segments 1 to 2 cannot be collected")

				r.rule(nil)
				r.mend(index, body)
				require.Equal(t, uint64(3), mustCollect(t, db).Obsolete)
				r.requireClean()
			})
		})
	}
}

// A collector that was passed, or whose requests were delayed, meets ranges that another has dealt
// with: nothing of it is damage.
func TestCollectGroupsTwice(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		old := r.open(o)
		r.dropAll(old, 3)
		var next *DB
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if next != nil || op.Kind != fault.Get || !strings.HasSuffix(op.Name, ".idx") {
				return fault.Plan{}
			}
			return fault.Plan{Before: func(context.Context) error {
				if next == nil {
					next = r.open(o)
					require.Equal(t, uint64(4), mustCollect(t, next).Obsolete)
				}
				return nil
			}}
		})
		_, err := old.CollectGarbage(t.Context())
		require.ErrorIs(t, err, ErrFenced)
		require.NotErrorIs(t, err, ErrCorrupt)
		r.requireClean()
	})
}

// A reader that looked a key up in a group which is then regrouped, dropped and collected
// goes on with what is there (F25).
func TestF25GroupsUnderARead(t *testing.T) {
	for _, stall := range []time.Duration{time.Minute, time.Hour} {
		simulated(t, func(t *testing.T, r *garbageRig) {
			o := r.options()
			o.Retention, o.RetentionInterval, o.RecentBytes = 10*time.Hour, 20*time.Minute, 1
			db := r.open(o)
			values := r.grouped(db, time.Minute, 3, 3)
			mustAppend(t, db, record("k", "tip"))
			require.NoError(t, db.Flush(t.Context()))
			values = append(values, "tip")
			held := fault.NewHeld(nil)
			caught := false
			r.rule(func(_ context.Context, op fault.Op) fault.Plan {
				if op.Kind != fault.Get || !strings.Contains(op.Name, "/sst/0000000002/") || caught {
					return fault.Plan{}
				}
				caught = true
				return fault.Plan{Held: held}
			})
			type answer struct {
				values []string
				err    error
			}
			got := make(chan answer, 1)
			go func() {
				var a answer
				it := db.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
				for rec := range it.All() {
					a.values = append(a.values, string(rec.Value))
				}
				a.err = it.Err()
				got <- a
			}()
			<-held.Caught()
			r.old(o.Retention) // before anything begins its grace
			r.regroup(db, 0, 2)
			elapse(21 * time.Minute)
			require.Equal(t, uint64(6), db.FirstSequence())
			elapse(stall)
			_ = held.Apply(t.Context())
			a := <-got
			require.NoError(t, a.err)
			// What was read already, and what remains.
			n := len(a.values) - 1
			require.Equal(t, append(values[:n:n], "tip"), a.values)
			elapse(time.Hour)
			r.requireClean()
		})
	}
}

// What a bucket holds once retention and grace have done their work is what the log needs: compaction, groups,
// retention and collection at work by themselves, for more than twice the retention.
func TestBytesAfterRetention(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		r.witness.discards = true
		o.DisableCompaction, o.RecentBytes = false, 1
		o.Retention, o.SegmentInterval, o.SegmentBytes, o.SegmentMinBytes = 3*time.Hour, 4*time.Minute, 8<<10, 4<<10
		db := r.open(o)
		var m model
		rnd := rand.New(rand.NewPCG(7, 8))
		most := 0
		for range 7 * 60 / 4 {
			recs := randomBatch(rnd, 20)
			for i := range recs {
				recs[i].Value = append(recs[i].Value, make([]byte, 400)...)
			}
			m.add(mustAppend(t, db, recs...), recs)
			elapse(4 * time.Minute)
			most = max(most, segmentsOfGroups(db.Head()))
		}
		s := db.Status()
		require.Greater(t, most, 30, "segments in groups")
		require.Greater(t, s.SegmentsDropped, uint64(20))
		require.Zero(t, s.CollectFailures+s.RetentionFailures+s.Compaction.Failures)
		require.NoError(t, db.Close(t.Context()))

		o.Retention, o.DisableCompaction = 0, true
		db = r.open(o)
		elapse(2 * time.Hour)
		r.requireClean()
		in, err := Inspect(t.Context(), r.witness.Store)
		require.NoError(t, err)
		require.NotEmpty(t, in.Groups)
		require.Zero(t, in.Totals.Unnamed+in.Obsolete.Objects)
		require.Less(t, in.Totals.SpaceAmplification, 1.1)
		first := db.FirstSequence()
		for key, recs := range m.byKey {
			var want []string
			for _, rec := range recs {
				if rec.Sequence >= first {
					want = append(want, string(rec.Value))
				}
			}
			require.Equal(t, append([]string{}, want...), values(t, db, key, All(), ScanOptions{}))
		}
	})
}
