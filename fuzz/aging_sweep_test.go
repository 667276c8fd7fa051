package fuzz

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// The aging sweeps run a workload in which segments are flushed, relieved, sealed,
// consolidated, merged, grouped, dropped and collected, again and again; each time something
// happens to another store operation. Nothing may be lost, and nothing may be left in
// the bucket that is not collected later.

// agingSweep is one sweep.
type agingSweep struct {
	name  string
	match func(fault.Op) bool // the operations to break
	first int64               // of these, the first to break
	// stride is how far it is from one that is broken to the next, unless all are to be.
	stride int64
	least  int64 // so many operations there are at least
	// run runs the workload, breaks operation n of those that match, and reports whether it came.
	run agingRun
}

type agingRun func(t *testing.T, n int64, match func(fault.Op) bool) (hit bool)

// sweep runs the workload for one operation after the other, each in a world of its own.
func (s agingSweep) sweep(t *testing.T) {
	stride := s.stride
	switch env := os.Getenv("ANNALS_FUZZ_SWEEP"); {
	case env == "all":
		stride = 1
	case env != "":
		t.Fatalf("ANNALS_FUZZ_SWEEP is %q; it may be \"all\"", env)
	case testing.Short() || raceEnabled:
		stride *= 11
	}
	t.Run(s.name, func(t *testing.T) {
		t.Parallel()
		n := s.first
		for hit := true; hit; n += stride {
			synctest.Test(t, func(t *testing.T) {
				defer func() {
					if t.Failed() {
						t.Logf("this was at operation %d of those that are swept", n)
					}
				}()
				hit = s.run(t, n, s.match)
			})
			if t.Failed() {
				return
			}
		}
		require.Greater(t, n, s.least, "the workload was swept whole")
	})
}

// anyButPolls matches all operations but the looks whether MANIFEST has changed: the process that
// runs the workload does little else most of the time.
func anyButPolls(op fault.Op) bool { return !isPoll(op) }

func isPoll(op fault.Op) bool {
	return op.Kind == fault.Get && op.Name == manifestName && op.GetOptions.IfNoneMatch != ""
}

// written matches the operations that change the bucket.
func written(op fault.Op) bool { return op.Kind == fault.Put || op.Kind == fault.Delete }

// agingFault is what happens to operation number n of those that match.
type agingFault struct {
	n     int64
	match func(fault.Op) bool
	plan  func(fault.Op) fault.Plan
	seen  atomic.Int64
	hit   atomic.Bool
}

func (f *agingFault) hook(_ context.Context, op fault.Op) fault.Plan {
	if !f.match(op) || f.seen.Add(1)-1 != f.n {
		return fault.Plan{}
	}
	f.hit.Store(true)
	return f.plan(op)
}

// samePlan is one plan for every operation.
func samePlan(plan fault.Plan) func(fault.Op) fault.Plan {
	return func(fault.Op) fault.Plan { return plan }
}

// TestAgingSweepOneFault: one operation fails, or is applied and its answer lost.
func TestAgingSweepOneFault(t *testing.T) {
	t.Parallel()
	for _, s := range []agingSweep{
		{"not applied", anyButPolls, 0, 1, 200, oneFault(fault.Refuse(errNetwork))},
		{"answer lost", anyButPolls, 0, 1, 200, oneFault(fault.Lose(errNetwork))},
		{"poll fails", isPoll, 0, 20, 150, oneFault(fault.Refuse(errNetwork))},
	} {
		s.sweep(t)
	}
}

// oneFault returns a run in which a plan befalls one operation.
func oneFault(plan fault.Plan) agingRun {
	return func(t *testing.T, n int64, match func(fault.Op) bool) bool {
		f := &agingFault{n: n, match: match, plan: samePlan(plan)}
		store := newAgingWitness(mem.New(mem.Options{}))
		w := newAgingWork(t, fault.New(store, f.hook))
		w.retryOpen = true
		defer w.killAll()
		require.NoError(t, w.run(t.Context()), "one fault may fail an open only")
		require.NoError(t, w.db.Err())
		require.Zero(t, w.db.Status().Compaction.Failures, "a request of a job is tried again")
		require.NoError(t, store.err())
		if !f.hit.Load() {
			require.Empty(t, store.missing(agingSteps), "steps that the workload lacks")
		}
		store = newAgingWitness(store.Clone())
		w.killAll()
		w.recovered(store, lateRequest{})
		return f.hit.Load()
	}
}

// TestAgingSweepDeath: the process dies with one operation, before or after that is
// applied, or while it is under way, to arrive when another process has taken over.
func TestAgingSweepDeath(t *testing.T) {
	t.Parallel()
	agingSweep{"not applied", anyButPolls, 0, 1, 200, death(diesBefore, 0)}.sweep(t)
	agingSweep{"applied", anyButPolls, 0, 1, 200, death(diesAfter, 0)}.sweep(t)
	for moment := range int64(lateMoments) {
		agingSweep{fmt.Sprint("arrives late ", moment), written, moment, lateMoments, 100, death(diesMeanwhile, moment)}.sweep(t)
	}
}

// A dying is how the process dies with an operation: die ends it.
type dying func(ctx context.Context, die func() error) fault.Plan

func diesBefore(_ context.Context, die func() error) fault.Plan {
	return fault.Plan{Before: func(context.Context) error { return die() }}
}

func diesAfter(_ context.Context, die func() error) fault.Plan {
	return fault.Plan{After: func(context.Context) error { return die() }}
}

func diesMeanwhile(ctx context.Context, die func() error) fault.Plan {
	held := fault.NewHeld(errNetwork)
	go func() {
		select {
		case <-held.Caught():
			_ = die()
		case <-ctx.Done():
		}
	}()
	return fault.Plan{Held: held}
}

// death returns a run whose process dies with an operation, which arrives at a moment of the
// recovery if it was under way.
func death(plan dying, moment int64) agingRun {
	return func(t *testing.T, n int64, match func(fault.Op) bool) bool {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		dies := plan(ctx, func() error { end(); return errNetwork })
		f := &agingFault{n: n, match: match, plan: samePlan(dies)}
		store := newAgingWitness(mem.New(mem.Options{}))
		w := newAgingWork(t, fault.New(store, func(ctx context.Context, op fault.Op) fault.Plan {
			if f.hit.Load() {
				return fault.Refuse(errNetwork) // the process is gone
			}
			return f.hook(ctx, op)
		}))
		defer w.killAll()
		err := w.run(ctx)
		if !f.hit.Load() {
			require.NoError(t, err)
		}
		require.NoError(t, store.err())
		var late lateRequest
		if dies.Held == nil {
			store = newAgingWitness(store.Clone())
		} else if f.hit.Load() {
			late = lateRequest{dies.Held, moment}
		}
		w.killAll()
		w.recovered(store, late)
		return f.hit.Load()
	}
}
