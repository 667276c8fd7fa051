package fuzz

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// TestAgingSweepCompactorElsewhere: a process that only compacts meets a fault, or dies, at each of its
// operations, while a writer lives elsewhere. Another compactor takes over.
func TestAgingSweepCompactorElsewhere(t *testing.T) {
	t.Parallel()
	lives := func(plan fault.Plan) dying {
		return func(context.Context, func() error) fault.Plan { return plan }
	}
	for _, s := range []agingSweep{
		{"not applied", anyButPolls, 0, 3, 50, compactorElsewhere(lives(fault.Refuse(errNetwork)))},
		{"answer lost", written, 0, 1, 50, compactorElsewhere(lives(fault.Lose(errNetwork)))},
		{"dies, not applied", written, 0, 1, 50, compactorElsewhere(diesBefore)},
		{"dies, applied", written, 0, 1, 50, compactorElsewhere(diesAfter)},
		{"dies, arrives late", written, 0, 1, 50, compactorElsewhere(diesMeanwhile)},
	} {
		s.sweep(t)
	}
}

// compactorElsewhere returns a run in which the first of two compactors meets a plan.
func compactorElsewhere(plan dying) agingRun {
	var from *mem.Store // the log, made once
	var aged *agingWork
	return func(t *testing.T, n int64, match func(fault.Op) bool) bool {
		if from == nil {
			from, aged = agedLog(t, false)
		} else {
			time.Sleep(time.Hour) // each world begins at the same time; the log was made later
		}
		store := newAgingWitness(from.Clone())
		w := newAgingWork(t, store)
		w.model, w.o = aged.model, aged.o
		defer w.killAll()
		require.NoError(t, w.open(t.Context()))

		ctx, die := context.WithCancel(t.Context())
		defer die()
		p := plan(ctx, func() error { die(); return errNetwork })
		f := &agingFault{n: n, match: match, plan: samePlan(p)}
		first := w.compactElsewhere(ctx, fault.New(store, func(opCtx context.Context, op fault.Op) fault.Plan {
			if ctx.Err() != nil {
				return fault.Refuse(errNetwork) // the process is gone
			}
			return f.hook(opCtx, op)
		}))
		time.Sleep(time.Minute)
		if f.hit.Load() && p.Held != nil && n%2 == 0 { // before another compactor works, or after
			_ = p.Held.Apply(t.Context())
		}
		ctx2, stop := context.WithCancel(t.Context())
		defer stop()
		second := w.compactElsewhere(ctx2, store)
		limits := limitsOf(w.o)
		limits.FanIn = 0
		time.Sleep(2 * takesOver)
		require.Empty(t, compaction.Plan(w.db.Head(), limits), "all is done")
		if f.hit.Load() && p.Held != nil && n%2 == 1 {
			_ = p.Held.Apply(t.Context())
		}
		die()
		if err := <-first; err != nil {
			require.ErrorIs(t, err, errNetwork, "it could not open the log")
		}
		time.Sleep(2 * takesOver) // the other one works if the first has not died
		w.collected(store)
		require.NoError(t, w.read(t.Context()))
		require.NoError(t, w.db.Err())
		stop()
		require.NoError(t, <-second)
		require.NoError(t, w.db.Close(t.Context()))
		require.Equal(t, uint64(len(w.model.recs)), check(t, store.Store).TableRecords)
		require.NoError(t, store.err())
		require.Empty(t, store.missing([]string{"consolidate", "group", "regroup"}))
		return f.hit.Load()
	}
}

// compactElsewhere starts a process that only compacts. Its error comes when it ends.
func (w *agingWork) compactElsewhere(ctx context.Context, store objstore.Store) <-chan error {
	done := make(chan error, 1)
	o := engine.CompactOptions{
		SegmentBytes: w.o.SegmentBytes, TableBytes: w.o.TableBytes, BlockBytes: w.o.BlockBytes, Retention: w.o.Retention, Env: w.env,
	}
	go func() { done <- engine.Compact(ctx, store, o) }()
	return done
}
