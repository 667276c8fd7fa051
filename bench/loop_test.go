package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// stall is how long the store of TestStallShows answers nothing.
const stall = 300 * time.Millisecond

// stallingPuts is a store that lets no PUT through for a while, from the fifth on.
type stallingPuts struct {
	objstore.Store
	armed atomic.Bool
	puts  atomic.Int32
	until atomic.Pointer[time.Time]
}

func (s *stallingPuts) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	if s.armed.Load() && s.puts.Add(1) == 5 {
		until := time.Now().Add(stall)
		s.until.Store(&until)
	}
	if until := s.until.Load(); until != nil {
		timer := time.NewTimer(time.Until(*until))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return s.Store.Put(ctx, name, body, o)
}

// In an open loop a stall of the store hits every append that was due meanwhile, though only two can be under way: it shows
// in the percentiles.
func TestStallShows(t *testing.T) {
	store := &stallingPuts{Store: mem.New(mem.Options{})}
	o := small()
	o.Appenders, o.InFlight, o.Total = 2, 1, 200*o.Bytes()
	o.Rate = 200 * float64(o.Bytes())
	e := openEmbedded(t, store, engine.Options{})
	store.armed.Store(true)
	rep := Execute(t.Context(), e, NewIngest(o), Options{})
	require.Empty(t, rep.Failures)
	l := rep.Results["append_latency"].(Latency)
	require.Equal(t, "open", rep.Loop)
	require.Equal(t, int64(200), l.Count)
	require.Greater(t, l.P90, (stall / 4).Microseconds(), "%v", l)
	require.Greater(t, l.P99, (stall / 2).Microseconds(), "%v", l)
	require.Greater(t, rep.Results["append_behind_max_seconds"], (stall / 2).Seconds())
}

// A closed loop hides it, and the report says so.
func TestClosedLoopIsTold(t *testing.T) {
	o := small()
	o.Total = o.Bytes()
	rep := Execute(t.Context(), openEmbedded(t, mem.New(mem.Options{}), engine.Options{}), NewIngest(o), Options{})
	require.Equal(t, "closed", rep.Loop)
	require.Contains(t, textOf(t, rep), "hide stalls")
}

// What was due and never started is counted.
func TestOverloadIsTold(t *testing.T) {
	release := make(chan struct{})
	var pace Pace
	rep := Execute(t.Context(), nil, workload{func(ctx context.Context, r *Run) error {
		load := Load{Schedule: NewSchedule(1000, Uniform, r.Rand(1)), Workers: 3, Recorder: r.Recorder("op")}
		ctx = r.Begin(ctx)
		context.AfterFunc(ctx, func() { close(release) })
		pace = r.Loop(ctx, load, func(context.Context, Op) (Done, error) { <-release; return Done{Records: 1}, nil })
		r.End()
		r.LoadResults(load, pace, "op")
		return nil
	}}, Options{Duration: 200 * time.Millisecond})
	require.False(t, rep.Failed())
	require.Equal(t, uint64(3), pace.Started)
	require.Greater(t, pace.Due, uint64(50))
	require.LessOrEqual(t, pace.Due, uint64(201))
	require.Equal(t, pace.Due-3, rep.Results["op_unstarted"])
	require.Greater(t, pace.BehindMax, 50*time.Millisecond)
	require.Zero(t, rep.Results["op_achieved_per_second"], "they ended when it was over")
}

func TestLimitEndsALoad(t *testing.T) {
	for _, closed := range []bool{false, true} {
		seen := make([]atomic.Int32, 100)
		rep := Execute(t.Context(), nil, workload{func(ctx context.Context, r *Run) error {
			load := Load{Workers: 7, Limit: uint64(len(seen)), Recorder: r.Recorder("op")}
			if !closed {
				load.Schedule = NewSchedule(10_000, Poisson, r.Rand(1))
			}
			ctx = r.Begin(ctx)
			pace := r.Loop(ctx, load, func(_ context.Context, op Op) (Done, error) {
				seen[op.N].Add(1)
				require.Less(t, op.Worker, 7)
				return Done{}, nil
			})
			r.End()
			require.Equal(t, Pace{Due: 100, Started: 100, BehindMax: pace.BehindMax, BehindLast: pace.BehindLast}, pace)
			r.Series(load.Recorder, "latency")
			return nil
		}}, Options{})
		require.False(t, rep.Failed())
		require.Equal(t, int64(100), rep.Results["op_latency"].(Latency).Count)
		for n := range seen {
			require.Equal(t, int32(1), seen[n].Load(), n)
		}
	}
}

// Errors that cannot go away end the run, as do too many.
func TestHopelessRunsEnd(t *testing.T) {
	for _, err := range []error{fmt.Errorf("append: %w", engine.ErrFenced), engine.ErrClosed, errors.New("no route")} {
		rep := Execute(t.Context(), nil, workload{func(ctx context.Context, r *Run) error {
			load := Load{Workers: 2, Recorder: r.Recorder("op")}
			ctx = r.Begin(ctx)
			r.Loop(ctx, load, func(context.Context, Op) (Done, error) { return Done{}, err })
			r.End()
			return nil
		}}, Options{})
		require.True(t, rep.Failed())
		require.False(t, rep.Interrupted)
		require.Len(t, rep.Failures, 2)
		require.ErrorContains(t, errors.New(rep.Failures[1]), "gave up after")
		require.Contains(t, textOf(t, rep), "FAILED")
	}
}

// What a workload does before Begin is not measured, and fails the run if it fails.
func TestPreparation(t *testing.T) {
	for _, err := range []error{nil, errors.New("disk full")} {
		done := 0
		rep := Execute(t.Context(), nil, workload{func(ctx context.Context, r *Run) error {
			r.Loop(ctx, Load{Workers: 1, Limit: 5}, func(context.Context, Op) (Done, error) { done++; return Done{Records: 1}, err })
			return nil
		}}, Options{})
		require.Equal(t, 5, done)
		require.Equal(t, err != nil, rep.Failed())
		require.Zero(t, rep.Seconds)
	}
}

func TestViolationsFail(t *testing.T) {
	rep := Execute(t.Context(), nil, workload{func(_ context.Context, r *Run) error {
		for i := range 2 * maxMessages {
			r.Violation("record %d is missing", i)
		}
		return nil
	}}, Options{})
	require.True(t, rep.Failed())
	require.Len(t, rep.Violations, maxMessages+1)
	require.Contains(t, textOf(t, rep), "VIOLATION")
}

// A wait ends when it should, or with its context.
func TestSleeper(t *testing.T) {
	s := newSleeper()
	defer s.close()
	for _, d := range []time.Duration{0, 20 * time.Microsecond, 3 * time.Millisecond} {
		at := time.Now().Add(d)
		require.True(t, s.until(t.Context(), at))
		require.False(t, time.Now().Before(at))
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	require.False(t, s.until(ctx, time.Now().Add(time.Hour)))
	require.False(t, s.until(ctx, time.Now().Add(-time.Hour)))
}

// BenchmarkSleeper reports how late waits of an idle process end.
func BenchmarkSleeper(b *testing.B) {
	s := newSleeper()
	defer s.close()
	var late time.Duration
	for b.Loop() {
		at := time.Now().Add(2500 * time.Microsecond)
		s.until(b.Context(), at)
		late += time.Since(at)
	}
	b.ReportMetric(float64(late.Microseconds())/float64(b.N), "us-late")
}

// A rate that nothing can do is no reason to count for ever what was not started.
func TestAbsurdRateEnds(t *testing.T) {
	const rate = 1e15
	var pace Pace
	rep := Execute(t.Context(), nil, workload{func(ctx context.Context, r *Run) error {
		load := Load{Schedule: NewSchedule(rate, Poisson, r.Rand(1)), Workers: 1, Recorder: r.Recorder("op")}
		pace = r.Loop(r.Begin(ctx), load, func(context.Context, Op) (Done, error) { return Done{}, nil })
		r.End()
		return nil
	}}, Options{Duration: 20 * time.Millisecond})
	require.False(t, rep.Failed())
	require.NotZero(t, rep.Memory.PeakHeap)
	require.InEpsilon(t, rate*0.02, float64(pace.Due), 0.1)

	// A limit bounds what was due all the same.
	Execute(t.Context(), nil, workload{func(ctx context.Context, r *Run) error {
		load := Load{Schedule: NewSchedule(rate, Poisson, r.Rand(1)), Workers: 1, Limit: 3 * maxOverdue, Recorder: r.Recorder("op")}
		ctx = r.Begin(ctx)
		pace = r.Loop(ctx, load, func(context.Context, Op) (Done, error) { <-ctx.Done(); return Done{}, nil })
		r.End()
		return nil
	}}, Options{Duration: 20 * time.Millisecond})
	require.EqualValues(t, 3*maxOverdue, pace.Due)
}
