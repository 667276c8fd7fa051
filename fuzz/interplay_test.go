package fuzz

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// Compaction, grouping, retention, collection and reads in each other's way.

// madeBy matches operations of a kind on objects of a kind that a role wrote.
func madeBy(op fault.Kind, kind base.Kind, role base.Role) func(fault.Op) bool {
	return func(o fault.Op) bool {
		id, ok := base.ParseObjectName(o.Name)
		return o.Kind == op && ok && id.Kind == kind && id.Role == role
	}
}

// outputs are what jobs write.
var outputs = map[string]base.Kind{"tables": base.KindSST, "indexes": base.KindIndex}

// agedRig opens a log whose segments are of every age, with options that are changed.
func agedRig(t *testing.T, compacted bool, change func(o *engine.Options)) (*rig, *agingWork) {
	store, w := agedLog(t, compacted)
	r := rigOn(t, store)
	r.witness.setStale(w.o.StaleAfter)
	w.store = r.store
	t.Cleanup(func() {
		w.killAll()
		require.NoError(t, r.witness.err())
		check(t, r.mem)
	})
	change(&w.o)
	return r, w
}

func compacting(o *engine.Options) { o.DisableCompaction = false }

// TestF23DropWhileCompacting: retention drops what a job is at work on. The drop wins, and
// what the job wrote does not stay.
func TestF23DropWhileCompacting(t *testing.T) {
	t.Parallel()
	for name, kind := range outputs {
		failure(t, name, func(t *testing.T) {
			r, w := agedRig(t, false, func(o *engine.Options) {
				compacting(o)
				o.Retention, o.RetentionInterval = time.Hour, time.Minute
			})
			held := r.hold(madeBy(fault.Put, kind, base.RoleCompactor), nil)
			require.NoError(t, w.open(t.Context()))
			<-held.Caught()
			time.Sleep(2 * time.Hour)
			require.NotZero(t, w.db.Status().SegmentsDropped)
			require.NoError(t, held.Apply(t.Context()))
			time.Sleep(time.Minute)
			require.NoError(t, w.read(t.Context()))
			require.Zero(t, w.db.Status().Compaction.Failures, "that is no failure")
			time.Sleep(2 * agingGrace)
			names, err := r.witness.unnamed()
			require.NoError(t, err)
			require.Empty(t, names)
		})
	}
}

// TestF24CollectBetweenUploadAndCommit: the collector walks over the bucket while what a job
// wrote is not yet part of the log.
func TestF24CollectBetweenUploadAndCommit(t *testing.T) {
	for name, kind := range outputs {
		failure(t, name, func(t *testing.T) {
			r, w := agedRig(t, false, compacting)
			wrote := madeBy(fault.Put, kind, base.RoleCompactor)
			var uploaded atomic.Bool
			r.rule(func(_ context.Context, op fault.Op) fault.Plan {
				if wrote(op) {
					uploaded.Store(true)
				}
				return fault.Plan{}
			})
			held := r.hold(func(op fault.Op) bool { return uploaded.Load() && putOf(manifestName)(op) }, nil)
			require.NoError(t, w.open(t.Context()))
			<-held.Caught()
			got, err := w.db.CollectGarbage(t.Context())
			require.NoError(t, err)
			require.Zero(t, got.Orphans)
			_ = held.Apply(t.Context()) // refused if it was sent again meanwhile
			w.compacted()
			require.NoError(t, w.read(t.Context()))
		})
	}
}

// TestF25OldViewWhileSegmentsAge holds up each request of a scan, for a while or until everything
// that it saw is deleted.
func TestF25OldViewWhileSegmentsAge(t *testing.T) {
	t.Parallel()
	for _, compacted := range []bool{false, true} {
		for _, stall := range []time.Duration{time.Minute, 20 * time.Minute} {
			failure(t, fmt.Sprintf("compacted before=%v, %v", compacted, stall), func(t *testing.T) {
				n := 0
				for stallScan(t, compacted, stall, n) {
					n = sampled(n, 4)
				}
				require.Greater(t, n, 10, "requests of the scan")
			})
		}
	}
}

// stallScan holds up request n of a scan while the log ages, and reports whether there was one.
func stallScan(t *testing.T, compacted bool, stall time.Duration, n int) bool {
	r, w := agedRig(t, compacted, compacting)
	defer w.killAll()
	w.o.CacheBytes = 1
	require.NoError(t, w.open(t.Context()))
	type answer struct {
		recs []engine.Record
		err  error
	}
	read := make(chan answer, 1)
	type scan struct{} // marks the requests of the scan
	var seen atomic.Int64
	held := fault.NewHeld(nil)
	r.rule(func(ctx context.Context, op fault.Op) fault.Plan {
		if ctx.Value(scan{}) == nil || !rangeOf(op) || seen.Add(1)-1 != int64(n) {
			return fault.Plan{}
		}
		return fault.Plan{Held: held}
	})
	go func() {
		ctx := context.WithValue(t.Context(), scan{}, true)
		recs, err := collect(w.db.Scan(ctx, []byte("k"), engine.All(), engine.ScanOptions{}))
		read <- answer{recs, err}
	}()
	synctest.Wait()
	want, _ := w.model.scan("k", engine.All(), base.MaxSequence, engine.ScanOptions{})
	if len(read) == 0 {
		// Compaction and grouping go on, and the collector behind them.
		for range 9 {
			require.NoError(t, w.append(t.Context(), engine.Durable, agingSegment))
			time.Sleep(stall / 9)
		}
		_ = held.Apply(t.Context()) // the object may be gone
	}
	a := <-read // else it was fetched ahead, and not needed then
	require.NoError(t, a.err, "request %d", n)
	require.True(t, agree(a.recs, want), "request %d: got %s\nwant %s", n, describe(a.recs), describeModel(want))
	require.NoError(t, w.read(t.Context()))
	require.NoError(t, r.witness.err())
	return seen.Load() > int64(n)
}

// TestF28KeyLargerThanTables: one key fills many tables of a run, of a segment, of a group.
func TestF28KeyLargerThanTables(t *testing.T) {
	failure(t, "read in every way", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.TableBytes, o.BlockBytes, o.CacheBytes, o.RecentBytes = 1<<10, 256, 1, 1
		o.SegmentBytes, o.SegmentMinBytes, o.MemtableBytes, o.DisableCompaction = 60<<10, 1, 1<<30, false
		db := r.open(o)
		_, err := db.Append(t.Context(), []engine.Record{{Key: []byte("a")}, {Key: []byte("z")}}, engine.AppendOptions{})
		require.NoError(t, err)
		var want []string
		for i := range 400 {
			want = append(want, noise(i, 300))
			mustAppend(t, db, want[i])
			if i%30 == 0 {
				require.NoError(t, db.Flush(t.Context()))
			}
		}
		time.Sleep(3 * time.Minute)
		require.NotEmpty(t, db.Head().GetGroups())
		require.Greater(t, db.Head().GetGroups()[0].GetTables(), uint32(20))
		require.Equal(t, want, read(t, db))
		for _, last := range []int{1, 7, 100, 399} {
			recs, err := collect(db.Scan(t.Context(), []byte("k"), engine.All(), engine.ScanOptions{Last: last}))
			require.NoError(t, err)
			require.Len(t, recs, last)
			require.Equal(t, want[len(want)-last], string(recs[0].Value))
		}
		for from := uint64(2); from < 400; from += 37 { // "k" begins at 2
			n, err := db.Count(t.Context(), []byte("k"), engine.From(from))
			require.NoError(t, err)
			require.Equal(t, 402-from, n)
			recs, err := collect(db.Scan(t.Context(), []byte("k"), engine.From(from), engine.ScanOptions{Limit: 1}))
			require.NoError(t, err)
			require.Equal(t, from, recs[0].Sequence)
		}
	})
}

// TestF29JobsThatCannotWrite: the store takes no outputs of a kind for an hour. Jobs back off, say so,
// leave nothing behind, and are done when it does again; the writer does not notice.
func TestF29JobsThatCannotWrite(t *testing.T) {
	t.Parallel()
	for name, kind := range outputs {
		failure(t, name, func(t *testing.T) {
			r, w := agedRig(t, false, compacting)
			var tries atomic.Int64
			r.rule(func(_ context.Context, op fault.Op) fault.Plan {
				if !madeBy(fault.Put, kind, base.RoleCompactor)(op) {
					return fault.Plan{}
				}
				if tries.Add(1)%2 == 0 {
					return fault.Lose(errNetwork) // it is there, and nobody knows
				}
				return fault.Refuse(objstore.ErrDenied)
			})
			require.NoError(t, w.open(t.Context()))
			time.Sleep(time.Hour)
			require.NoError(t, w.append(t.Context(), engine.Durable, 10))
			s := w.db.Status()
			require.Greater(t, s.Compaction.Failures, uint64(5))
			require.Less(t, s.Compaction.Failures, uint64(200), "less and less often")
			r.heal()
			time.Sleep(10 * time.Minute)
			w.compacted()
			require.NoError(t, w.read(t.Context()))
			require.NoError(t, w.db.Close(t.Context()))
			require.NoError(t, w.open(t.Context()))
			time.Sleep(takesOver)
			w.collected(r.witness)
		})
	}
}

// TestF39Followers: whoever waits hears of the end, and of what comes behind what was dropped.
func TestF39Followers(t *testing.T) {
	failure(t, "dropped, closed, fenced", func(t *testing.T) {
		r, w := agedRig(t, true, func(o *engine.Options) {
			o.Retention, o.RetentionInterval, o.SegmentInterval = time.Hour, time.Minute, time.Minute
		})
		require.NoError(t, w.open(t.Context()))
		wait := func(rng engine.Range) <-chan error {
			done := make(chan error, 1)
			db := w.db
			go func() { done <- db.Wait(context.Background(), []byte("new"), rng) }()
			synctest.Wait()
			return done
		}
		behind := wait(engine.From(3)) // its segment is about to be dropped
		time.Sleep(3 * time.Hour)
		require.Greater(t, w.db.FirstSequence(), uint64(3))
		require.Empty(t, behind)
		require.NoError(t, <-wait(engine.Between(0, w.db.FirstSequence())), "nothing can come")
		_, err := w.db.Append(t.Context(), []engine.Record{{Key: []byte("new")}}, engine.AppendOptions{})
		require.NoError(t, err)
		require.NoError(t, <-behind)
		w.model.next++

		last := wait(engine.From(w.db.Frontier()))
		old := w.db
		require.NoError(t, w.open(t.Context()))
		time.Sleep(3 * time.Second)
		require.ErrorIs(t, <-last, engine.ErrFenced)
		require.ErrorIs(t, old.Err(), engine.ErrFenced)
		last = wait(engine.From(w.db.Frontier()))
		require.NoError(t, w.db.Close(t.Context()))
		require.ErrorIs(t, <-last, engine.ErrClosed)
		require.NoError(t, r.witness.err())
	})
}

// TestF49CompactedBeforeTheAnswer: a flush is committed, and its run already merged by a compactor
// elsewhere, when the writer learns that the answer was lost.
func TestF49CompactedBeforeTheAnswer(t *testing.T) {
	failure(t, "added once", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		require.NoError(t, db.Flush(t.Context()))
		mustAppend(t, db, "b")
		r.rule(once(putOf(manifestName), fault.Plan{After: func(ctx context.Context) error {
			commit := committer(ctx, t, r.mem)
			commit(manifest.OpenCompactor(0, [16]byte{1}))
			snap, err := manifest.Load(ctx, r.mem, simEnv(), 0)
			require.NoError(t, err)
			jobs := compaction.Plan(snap.State, compaction.Limits{FanIn: 2})
			require.Len(t, jobs, 1)
			runner := compaction.Runner{Store: r.mem, Env: simEnv(), Epoch: 1, Limits: compaction.Limits{FanIn: 2}}
			res, err := runner.Run(ctx, jobs[0])
			require.NoError(t, err)
			commit(res.Edit)
			return errNetwork
		}}))
		require.NoError(t, db.Flush(t.Context()))
		require.Len(t, db.Head().GetSegments()[0].GetRuns(), 1)
		require.Equal(t, []string{"a", "b"}, read(t, db))
		mustAppend(t, db, "c")
		require.NoError(t, db.Close(t.Context()))
		require.Equal(t, []string{"a", "b", "c"}, read(t, r.open(options())))
	})
}

// committer commits edits like another process.
func committer(ctx context.Context, t *testing.T, store objstore.Store) func(manifest.Edit) {
	return func(edit manifest.Edit) {
		snap, err := manifest.Load(ctx, store, simEnv(), 0)
		require.NoError(t, err)
		_, err = manifest.CommitOne(ctx, manifest.CommitterOptions{Store: store, Env: simEnv(), Start: snap}, edit)
		require.NoError(t, err)
	}
}

// TestF50OthersCommitBeforeTheAnswer: each commit of a compactor is applied, its answer lost, and
// another process has committed since. What it wrote is live, and stays.
func TestF50OthersCommitBeforeTheAnswer(t *testing.T) {
	failure(t, "outputs stay", func(t *testing.T) {
		r, w := agedRig(t, false, func(*engine.Options) {})
		require.NoError(t, w.open(t.Context())) // it writes only
		var lost atomic.Int64
		elsewhere := fault.New(r.witness, func(_ context.Context, op fault.Op) fault.Plan {
			if !putOf(manifestName)(op) {
				return fault.Plan{}
			}
			return fault.Plan{After: func(ctx context.Context) error {
				snap, err := manifest.Load(ctx, r.witness, simEnv(), 0)
				require.NoError(t, err)
				if epoch := snap.State.GetCompactor().GetEpoch(); epoch > 0 {
					committer(ctx, t, r.witness)(manifest.Beat(epoch, snap.State.GetCompactorBeat()+1))
				}
				lost.Add(1)
				return errNetwork
			}}
		})
		ctx, stop := context.WithCancel(t.Context())
		done := w.compactElsewhere(ctx, elsewhere)
		time.Sleep(10 * time.Minute)
		limits := limitsOf(w.o)
		limits.FanIn = 0
		require.Empty(t, compaction.Plan(w.db.Head(), limits))
		require.Greater(t, lost.Load(), int64(20))
		require.NoError(t, w.read(t.Context()))
		stop()
		require.NoError(t, <-done)
		require.NotEmpty(t, w.db.Head().GetGroups())
		require.False(t, strings.Contains(fmt.Sprint(r.witness.err()), "deleted"))
	})
}
