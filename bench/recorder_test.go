package bench

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRecorder(t *testing.T) {
	r := testRun()
	rec := r.Recorder("op")
	require.Same(t, rec, r.Recorder("op"))
	now := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 1000 {
				rec.Observe(now, now.Add(time.Duration(i+1)*time.Millisecond), 2, 10)
			}
		})
	}
	wg.Wait()
	rec.Observe(now, now, 0, 0)                  // below 1 us
	rec.Observe(now, now.Add(2*time.Hour), 0, 0) // above 1 h
	rec.Fail(now, errors.New("broken"))
	rec.Fail(now, errors.New("broken"))
	l := rec.Latency()
	require.Equal(t, int64(4002), l.Count)
	require.Equal(t, uint64(2), l.Clamped)
	require.Equal(t, int64(1), l.Min)
	require.InEpsilon(t, time.Hour.Microseconds(), l.Max, 0.001)
	require.InEpsilon(t, 500_000, l.P50, 0.002)
	require.InEpsilon(t, 900_000, l.P90, 0.002)
	require.InEpsilon(t, 990_000, l.P99, 0.002)
	last := [2]float64{}
	for _, point := range l.Distribution {
		require.GreaterOrEqual(t, point[0], last[0])
		require.GreaterOrEqual(t, point[1], last[1])
		last = point
	}
	require.Equal(t, 100.0, last[0])
	require.Equal(t, Total{4002, 2, 8000, 40_000}, rec.Total())
	require.Equal(t, []string{"op: broken (2 times)"}, r.messages.list())

	interval, done := rec.tick()
	require.Equal(t, int64(4002), interval.Count)
	require.Equal(t, tally{ops: 4002, errors: 2, records: 8000, bytes: 40_000}, done)
	interval, done = rec.tick()
	require.Zero(t, interval.Count)
	require.Zero(t, done)
	require.Equal(t, int64(4002), rec.Latency().Count, "a tick takes nothing from what is measured")
}

// Latencies count by when operations were due, rates by when they ended.
func TestRecorderWindow(t *testing.T) {
	r := testRun()
	rec := r.Recorder("op")
	at := func(s int) time.Time { return r.began.Add(time.Duration(s) * time.Second) }
	r.from.Store(int64(10 * time.Second))
	r.to.Store(int64(20 * time.Second))
	rec.Observe(at(5), at(12), 1, 1)  // due in the warm-up, ended within
	rec.Observe(at(12), at(13), 1, 1) // within
	rec.Observe(at(19), at(25), 1, 1) // due within, ended behind
	rec.Observe(at(21), at(25), 1, 1) // behind
	require.Equal(t, int64(2), rec.Latency().Count)
	require.InEpsilon(t, (6 * time.Second).Microseconds(), rec.Latency().Max, 0.001)
	require.Equal(t, uint64(2), rec.Total().Operations)
}

func BenchmarkObserve(b *testing.B) {
	rec := testRun().Recorder("op")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		due := time.Now()
		for pb.Next() {
			rec.Observe(due, due.Add(3*time.Millisecond), 100, 100<<10)
		}
	})
}

func BenchmarkTick(b *testing.B) {
	rec := testRun().Recorder("op")
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		for i := range 1000 {
			rec.Observe(now, now.Add(time.Duration(i)*time.Millisecond), 1, 1)
		}
		rec.tick()
	}
}
