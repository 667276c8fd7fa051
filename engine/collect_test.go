package engine

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wal"
)

// afterGrace lets the grace of everything that is obsolete begin and end.
func afterGrace(t *testing.T, db *DB) {
	t.Helper()
	_, err := db.CollectGarbage(t.Context()) // stamps
	require.NoError(t, err)
	elapse(db.opts.GCGrace)
}

func mustCollect(t *testing.T, db *DB) Collected {
	t.Helper()
	got, err := db.CollectGarbage(t.Context())
	require.NoError(t, err)
	return got
}

// manualOptions leave retention and collection to the test.
func (r *garbageRig) manualOptions() Options {
	o := r.options()
	o.Retention, o.RetentionInterval, o.SegmentInterval = 1000*time.Hour, 1000*time.Hour, 1000*time.Hour
	o.GCInterval = 1000 * time.Hour
	return o
}

// garbage makes a log with garbage of every kind: WAL objects below position, in a past
// epoch too, with dead ones behind its fence, obsolete tables whose grace is over,
// tables of passed epochs of both roles, and an old probe object.
func (r *garbageRig) garbage(o Options) (db *DB, obsolete, walObjects, orphans int) {
	r.t.Helper()
	old := r.open(o)
	mustAppend(r.t, old, record("k", "lost with its writer?"))
	old.crash()
	r.put(base.ProbeName(tree, base.SystemEnv().NewULID()), 10)
	db = r.open(o) // recovers object (1, 1), fences (1, 2)
	r.put(base.WALName(tree, 1, 3), 100)
	r.segment(db, "a", "b")
	r.segment(db, "c")
	r.segment(db, "d")
	mustAppend(r.t, db, record("k", "e")) // remains: it is not flushed
	_, err := db.committer.Commit(r.t.Context(), manifest.DropSegments(db.epoch, 2, nil))
	require.NoError(r.t, err)
	_, err = db.committer.Commit(r.t.Context(), manifest.OpenCompactor(0, [16]byte{1}))
	require.NoError(r.t, err)
	r.put(orphan(base.RoleWriter, 1).Name(), 10)
	r.put(orphan(base.RoleCompactor, 0).Name(), 10)
	r.put(base.ObjectID{Tree: tree, Kind: base.KindState, Role: base.RoleWriter, Epoch: 1, ULID: base.SystemEnv().NewULID()}.Name(), 10)
	require.NoError(r.t, db.collector.stamp(r.t.Context(), true, nil))
	elapse(DefaultGCGrace)
	r.old(leftoverAge)
	return db, 3, 5, 3 // of segment 1: the recovered run, a and b; 1/1, 1/3, 2/1 to 2/3
}

func TestCollectEverything(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db, obsolete, walObjects, orphans := r.garbage(r.manualOptions())
		before := db.Status()
		require.Equal(t, obsolete, before.ObsoleteObjects)
		got := mustCollect(t, db)
		require.Equal(t, Collected{
			Obsolete: uint64(obsolete), Bytes: before.ObsoleteBytes, WALObjects: uint64(walObjects), Orphans: uint64(orphans), Probes: 1,
		}, got)
		r.requireClean()
		require.Equal(t, []string{base.WALName(tree, 1, 2), base.WALName(tree, 2, 4)}, r.names(base.WALPrefix(tree)), "the fence and what is not flushed")
		requireHolds(t, db, db.FirstSequence(), "d", "e")
		after := db.Status()
		require.Equal(t, got, after.Collected)
		require.Zero(t, after.ObsoleteObjects+int(after.ObsoleteBytes)+int(after.CollectFailures))
		require.Equal(t, uint64(1), after.Sweeps)

		require.Equal(t, Collected{}, mustCollect(t, db))
		requireHolds(t, r.open(r.manualOptions()), db.FirstSequence(), "d", "e")
	})
}

// The loops do all of it by themselves, beside appends, through an outage.
func TestCollectByItself(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention = time.Hour
		db := r.open(o)
		r.put(orphan(base.RoleWriter, 0).Name(), 10)
		for i := range 30 {
			r.segment(db, fmt.Sprint(i))
			elapse(6 * time.Minute)
			switch i {
			case 10:
				r.rule(fault.On(func(op fault.Op) bool { return op.Kind == fault.Delete || op.Kind == fault.List }, fault.Always(fault.Refuse(fault.ErrInjected))))
			case 20:
				r.rule(nil)
			}
		}
		require.Greater(t, db.Status().CollectFailures, uint64(3))
		require.Less(t, len(r.names(base.ObjectPrefix(tree, base.KindSST))), 17, "an hour, the grace, and what comes between")
		elapse(2 * time.Hour)
		require.Empty(t, r.names(base.ObjectPrefix(tree, base.KindSST)))
		require.Equal(t, uint64(30), db.Status().Collected.Obsolete)
		r.requireClean()
	})
}

// Compaction, retention and collection work on the same log at the same time, and a
// reader that follows them misses nothing that is still there.
func TestCompactDropCollect(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.DisableCompaction, o.RecentBytes, o.Retention = false, 1, 2*time.Hour
		db := r.open(o)
		var m model
		for i := range 60 {
			recs := []Record{record("k", fmt.Sprint("k", i)), record(fmt.Sprint("other", i%7), strings.Repeat("v", 500))}
			m.add(mustAppend(t, db, recs...), recs)
			require.NoError(t, db.Flush(t.Context()))
			if i%4 == 3 {
				db.mu.Lock()
				db.rotate(true)
				db.mu.Unlock()
			}
			elapse(5 * time.Minute)
			first := db.FirstSequence()
			want := []string{}
			for _, rec := range m.byKey["k"] {
				if rec.Sequence >= first {
					want = append(want, string(rec.Value))
				}
			}
			require.Equal(t, want, values(t, db, "k", All(), ScanOptions{}))
		}
		s := db.Status()
		require.Greater(t, s.Compaction.Jobs, uint64(3))
		require.NotZero(t, s.SegmentsDropped)
		require.NotZero(t, s.Collected.Obsolete)
		require.Zero(t, s.CollectFailures+s.RetentionFailures)
		db.crash()
		o.DisableCompaction = true
		db = r.open(o)
		elapse(5 * time.Hour)
		r.requireClean()
		require.Equal(t, uint64(120), db.FirstSequence())
	})
}

// A log at rest costs no request but the walk.
func TestCollectorAtRest(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		r.segment(db, "a")
		elapse(10 * time.Minute) // a first walk, and the WAL
		var counter fault.Counter
		r.rule(counter.Hook)
		elapse(walkInterval + 10*time.Minute)
		counts := counter.Take()
		// Four kinds, probes, and the WAL once more.
		require.Equal(t, fault.Counts{Get: counts.Get, List: 6, Time: 1}, counts)
		require.InDelta(t, counts.Get, int((walkInterval+10*time.Minute)/pollInterval), 1, "the poll alone")
	})
}

// withoutWAL leaves out the count that depends on how often the WAL was cut.
func (c Collected) withoutWAL() Collected {
	c.WALObjects = 0
	return c
}

// manyObsolete puts n tables on the obsolete list, stamped now.
func (r *garbageRig) manyObsolete(db *DB, n int) []string {
	r.t.Helper()
	stamp := time.Now().UnixMilli()
	var names []string
	var entries []*manifest.Obsolete
	for range n {
		id := orphan(base.RoleWriter, 1)
		r.put(id.Name(), 3)
		names = append(names, id.Name())
		entries = append(entries, &manifest.Obsolete{Ref: manifest.RefOf(id), Size: 3, SinceMs: stamp})
	}
	_, err := db.committer.Commit(r.t.Context(), manifest.Edit{Name: "test", Apply: func(s *manifest.State) error {
		s.Obsolete = append(s.Obsolete, entries...)
		return nil
	}})
	require.NoError(r.t, err)
	return names
}

// F31: deleting 10,000 objects stops half-way, and single names fail.
func TestF31DeletingStopsHalfWay(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		names := r.manyObsolete(db, 10_000)
		require.Equal(t, Collected{}, mustCollect(t, db), "the grace is not over")
		elapse(DefaultGCGrace)
		denied := map[string]bool{names[1500]: true, names[1700]: true, names[8000]: true}
		deletes := 0
		inner := r.store
		db.store = &pickyStore{Store: inner, denied: denied, fail: func() error {
			if deletes++; deletes == 6 {
				return fault.ErrInjected
			}
			return nil
		}}
		got, err := db.CollectGarbage(t.Context())
		require.ErrorIs(t, err, fault.ErrInjected)
		require.ErrorContains(t, err, names[1500])
		require.Equal(t, Collected{Obsolete: 4998, Bytes: 3 * 4998}, got)
		require.Len(t, r.names(base.ObjectPrefix(tree, base.KindSST)), 5002)
		require.Equal(t, 5002, db.Status().ObsoleteObjects, "what is gone is forgotten, nothing else")

		// Applied and then failed: forgotten in the next round.
		lost := fault.FailNth(2, true, nil)
		db.store = &pickyStore{Store: inner, denied: denied}
		r.rule(fault.OnKind(fault.Delete, lost.Hook))
		_, err = db.CollectGarbage(t.Context())
		require.True(t, lost.Hit())
		require.ErrorIs(t, err, fault.ErrInjected)
		require.Equal(t, 5002-1998, db.Status().ObsoleteObjects)
		_, err = db.CollectGarbage(t.Context())
		require.ErrorContains(t, err, "denied")
		require.Equal(t, 3, db.Status().ObsoleteObjects)
		db.store = inner
		require.Equal(t, Collected{Obsolete: 3, Bytes: 9}, mustCollect(t, db))
		r.requireClean()
	})
}

// pickyStore refuses to delete some names, and fails some batches.
type pickyStore struct {
	objstore.Store
	denied map[string]bool
	fail   func() error
}

func (s *pickyStore) Delete(ctx context.Context, names []string) error {
	if s.fail != nil {
		if err := s.fail(); err != nil {
			return err
		}
	}
	var failed objstore.DeleteError
	var rest []string
	for _, name := range names {
		if s.denied[name] {
			failed.Failed = append(failed.Failed, objstore.NameError{Name: name, Err: objstore.ErrDenied})
			continue
		}
		rest = append(rest, name)
	}
	if err := s.Store.Delete(ctx, rest); err != nil || len(failed.Failed) == 0 {
		return err
	}
	return fmt.Errorf("denied: %w", &failed)
}

// A name that cannot be deleted holds up neither the WAL nor the walk.
func TestUndeletableNames(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db, _, walObjects, orphans := r.garbage(r.manualOptions())
		denied := map[string]bool{base.WALName(tree, 1, 1): true}
		for _, name := range r.names(base.ObjectPrefix(tree, base.KindSST)) {
			if id, _ := base.ParseObjectName(name); id.Role == base.RoleCompactor {
				denied[name] = true
			}
		}
		inner := db.store
		db.store = &pickyStore{Store: inner, denied: denied}
		for _, want := range []Collected{{WALObjects: uint64(walObjects - 1), Orphans: uint64(orphans - 1)}, {}} {
			got, err := db.CollectGarbage(t.Context())
			require.ErrorIs(t, err, objstore.ErrDenied)
			require.Equal(t, want.WALObjects, got.WALObjects)
			require.Equal(t, want.Orphans, got.Orphans)
		}
		_, err := db.collector.round(t.Context(), false)
		require.ErrorIs(t, err, objstore.ErrDenied)
		db.store = inner
		got, err := db.collector.round(t.Context(), false)
		require.NoError(t, err)
		require.Equal(t, Collected{WALObjects: 1}, got, "it was not passed by")
		require.Equal(t, Collected{Orphans: 1}, mustCollect(t, db))
		r.requireClean()
	})
}

// F51: the grace is the store's time against the store's, whatever this machine's
// clocks do, and counts from when the object left the log.
func TestF51GraceByTheStoresClock(t *testing.T) {
	for name, c := range map[string]struct{ wall, boot time.Duration }{
		"forward": {wall: 10000 * time.Hour}, "back": {wall: -10000 * time.Hour}, "slept": {wall: time.Hour, boot: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				db := r.open(r.manualOptions())
				r.segment(db, "a")
				_, err := db.committer.Commit(t.Context(), manifest.DropSegments(db.epoch, 1, nil))
				require.NoError(t, err)
				collected := func(after time.Duration) uint64 {
					elapse(after)
					return mustCollect(t, db).Obsolete
				}
				require.Zero(t, collected(0))
				r.wall.Store(int64(c.wall))
				r.boot.Store(int64(c.boot))
				require.Zero(t, collected(DefaultGCGrace/2))
				r.wall.Store(int64(-c.wall))
				require.Zero(t, collected(DefaultGCGrace/2-time.Second))
				require.Equal(t, uint64(1), collected(time.Second))
			})
		})
	}
}

// The WAL is cleaned below position and nowhere else, by what was written since only;
// what an old writer's delayed PUT brings back goes with the next walk.
func TestCollectWAL(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		for range 3 {
			r.open(o).crash()
		}
		db := r.open(o)
		elapse(2 * DefaultGCInterval)
		require.Len(t, r.names(base.WALPrefix(tree)), 3, "fences")
		mustAppend(t, db, record("k", "a"))
		mustAppend(t, db, record("k", "b"))
		require.NoError(t, db.Flush(t.Context()))
		mustAppend(t, db, record("k", "c"))
		var after []string
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.List && strings.Contains(op.Name, "/wal/") {
				after = append(after, op.StartAfter)
			}
			return fault.Plan{}
		})
		elapse(2 * DefaultGCInterval)
		require.Equal(t, []string{base.WALName(tree, 4, 0)}, after)
		require.Equal(t, []string{base.WALName(tree, 1, 1), base.WALName(tree, 2, 1), base.WALName(tree, 3, 1), base.WALName(tree, 4, 3)}, r.names(base.WALPrefix(tree)))
		r.put(base.WALName(tree, 1, 2), 100) // dead, behind the fence
		r.put(base.WALName(tree, 4, 1), 100) // a PUT of our own that was sent twice
		r.put(base.WALName(tree, 4, 2), wal.FenceSize)
		elapse(walkInterval + DefaultGCInterval)
		require.Equal(t, []string{base.WALName(tree, 1, 1), base.WALName(tree, 2, 1), base.WALName(tree, 3, 1), base.WALName(tree, 4, 2), base.WALName(tree, 4, 3)}, r.names(base.WALPrefix(tree)))
		r.rule(nil)
		require.Equal(t, []string{"a", "b", "c"}, values(t, r.open(o), "k", All(), ScanOptions{}))
	})
}

// A writer that was passed collects nothing more, and says so.
func TestCollectWhenFenced(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		old, _, _, _ := r.garbage(o)
		r.open(o)
		before := r.names("")
		_, err := old.CollectGarbage(t.Context())
		require.ErrorIs(t, err, ErrFenced)
		<-old.Failed()
		require.Equal(t, len(before), len(r.names("")))
		_, err = old.CollectGarbage(t.Context())
		require.ErrorIs(t, err, ErrFenced)
	})
}

// Closing does not wait for a store that hangs in a round.
func TestCloseWhileCollecting(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db, _, _, _ := r.garbage(r.manualOptions())
		hangs := make(chan struct{})
		r.rule(fault.OnKind(fault.Delete, func(context.Context, fault.Op) fault.Plan {
			return fault.Plan{Before: func(ctx context.Context) error {
				close(hangs)
				<-ctx.Done()
				return ctx.Err()
			}}
		}))
		collected := make(chan error, 1)
		go func() {
			_, err := db.CollectGarbage(context.Background())
			collected <- err
		}()
		<-hangs
		require.NoError(t, db.Close(t.Context()))
		require.ErrorIs(t, <-collected, ErrClosed)
		_, err := db.CollectGarbage(t.Context())
		require.ErrorIs(t, err, ErrClosed)
	})
}

// Whatever operation of a round fails, applied or not, nothing is lost, and a later round
// finishes the work, in the same process or the next.
func TestCollectFaultSweep(t *testing.T) {
	for _, applied := range []bool{false, true} {
		reported := 0 // the committer resolves others by itself
		i, hit := 0, true
		for ; hit; i++ {
			simulated(t, func(t *testing.T, r *garbageRig) {
				db, _, _, _ := r.garbage(r.manualOptions())
				first := db.FirstSequence()
				nth := fault.FailNth(i, applied, nil)
				r.rule(nth.Hook)
				_, err := db.CollectGarbage(t.Context())
				r.rule(nil)
				if hit = nth.Hit(); err != nil {
					require.ErrorIs(t, err, fault.ErrInjected)
					require.True(t, hit)
					require.NotZero(t, db.Status().CollectFailures)
					reported++
				}
				checkStore(t, r.witness.Store)
				requireHolds(t, db, first, "d", "e")
				if i%2 == 0 { // the process dies in between
					db.crash()
					db = r.open(r.manualOptions())
				}
				mustCollect(t, db)
				r.requireClean()
				requireHolds(t, db, first, "d", "e")
			})
		}
		// Lists, deletions, looks at the head and at the clock, of four steps.
		require.Greater(t, i, 15)
		require.Greater(t, reported, 12)
	}
}

// Check beside retention and collection: what is gone since it began is no damage.
func TestCheckBesideTheCollector(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		db := r.open(o)
		r.segment(db, "a")
		r.segment(db, "b")
		var gone atomic.Bool // Check reads ahead, from other goroutines
		beside := fault.New(r.witness, func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind != fault.Get || !strings.Contains(op.Name, "/sst/0000000001/") || !gone.CompareAndSwap(false, true) {
				return fault.Plan{}
			}
			return fault.Plan{Before: func(context.Context) error {
				_, err := db.committer.Commit(t.Context(), manifest.DropSegments(db.epoch, 1, nil))
				require.NoError(t, err)
				afterGrace(t, db)
				mustCollect(t, db)
				return nil
			}}
		})
		report, err := Check(t.Context(), beside, CheckOptions{})
		require.NoError(t, err)
		require.NoError(t, report.Err())
		require.True(t, gone.Load())

		// A table that is live and missing is damage still.
		names := sortedKeys(live(db.Head()))
		damaged := r.witness.Store.(*mem.Store).Clone()
		require.NoError(t, damaged.Delete(t.Context(), names))
		report, err = Check(t.Context(), damaged, CheckOptions{})
		require.NoError(t, err)
		require.ErrorContains(t, report.Err(), names[0])
	})
}

// The same for the WAL: a writer opens, recovers and collects while Check looks.
func TestCheckBesideAnOpening(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		old := r.open(o)
		mustAppend(t, old, record("k", "a"))
		mustAppend(t, old, record("k", "b"))
		old.crash()
		var opened atomic.Bool // Check reads ahead, from other goroutines
		beside := fault.New(r.witness, func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind != fault.Get || op.Name != base.WALName(tree, 1, 2) || !opened.CompareAndSwap(false, true) {
				return fault.Plan{}
			}
			return fault.Plan{Before: func(context.Context) error {
				require.Equal(t, uint64(2), mustCollect(t, r.open(o)).WALObjects)
				return nil
			}}
		})
		report, err := Check(t.Context(), beside, CheckOptions{})
		require.NoError(t, err)
		require.NoError(t, report.Err())
		require.True(t, opened.Load())
		require.Equal(t, 1, report.WALObjects, "the other was gone, below the fence 1/3")
	})
}
