package s3sim

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// draws returns the first n latencies of a kind, sorted.
func draws(l Latency, seed uint64, n int) []time.Duration {
	var d dice
	d.init(l, seed)
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = d.next()
	}
	slices.Sort(all)
	return all
}

func TestDistribution(t *testing.T) {
	const n = 100_000
	near := func(want, got time.Duration, part float64, what ...any) {
		require.InEpsilon(t, float64(want), float64(got), part, what...)
	}
	for k, l := range Default().latencies() {
		for seed := range uint64(3) {
			all := draws(l, seed, n)
			near(l.P50, all[n/2], 0.01, kind(k), seed)
			near(l.P99, all[n*99/100], 0.03, kind(k), seed)
			// Beside the two that were given, the shape: the logarithm is as far on both sides.
			near(l.P50*l.P50/l.P99, all[n/100], 0.03, kind(k), seed)
			sigma := math.Log(float64(l.P99)/float64(l.P50)) / 2.3263
			near(time.Duration(float64(l.P50)*math.Exp(sigma)), all[n*841345/1_000_000], 0.02, kind(k), seed)
			require.Positive(t, all[0])
		}
	}
}

func TestDistributionWithoutSpread(t *testing.T) {
	all := draws(Latency{time.Second, time.Second}, 1, 1000)
	require.InDelta(t, time.Second, all[0], 1000)
	require.InDelta(t, time.Second, all[999], 1000)
}

// The largest and the least of the random numbers give finite latencies.
func TestDistributionIsBounded(t *testing.T) {
	var d dice
	d.init(Latency{time.Nanosecond, MaxLatency}, 0)
	for _, bits := range []uint64{0, 1, 1<<52 - 1} {
		deviations := normal(bits)
		require.False(t, math.IsInf(deviations, 0), bits)
		require.Less(t, math.Abs(deviations), 9.)
	}
	require.Equal(t, -normal(0), normal(1<<52-1))
	all := draws(Latency{time.Nanosecond, MaxLatency}, 1, 100_000)
	require.Equal(t, MaxLatency, all[len(all)-1])
	require.GreaterOrEqual(t, all[0], time.Duration(0))
}

func TestSeeds(t *testing.T) {
	l := Default().Get
	require.Equal(t, draws(l, 7, 100), draws(l, 7, 100))
	require.NotEqual(t, draws(l, 7, 100), draws(l, 8, 100))
	s := New(nil, Default())
	require.NotEqual(t, s.dice[kindGet].at(1), s.dice[kindHead].at(1), "kinds do not go in step")
}

// However many draw at the same time, together they draw the same.
func TestDrawsOfManyGoroutines(t *testing.T) {
	const goroutines, each = 8, 1000
	var d dice
	d.init(Default().Put, 3)
	drawn := make([][]time.Duration, goroutines)
	var all sync.WaitGroup
	for g := range drawn {
		all.Go(func() {
			for range each {
				drawn[g] = append(drawn[g], d.next())
			}
		})
	}
	all.Wait()
	got := slices.Concat(drawn...)
	slices.Sort(got)
	require.Equal(t, draws(Default().Put, 3, goroutines*each), got)
}

func BenchmarkDraw(b *testing.B) {
	var d dice
	d.init(Default().Put, 1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			d.next()
		}
	})
}
