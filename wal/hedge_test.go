package wal

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

func TestHedge(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		answers []putAnswer
		after   time.Duration
		puts    int
	}{
		{"the second lands first", []putAnswer{hangs, slow(30 * ms)}, 530 * ms, 2},
		{"the first lands first", []putAnswer{slow(520 * ms), hangs}, 520 * ms, 2},
		{"at most one", []putAnswer{slow(5000 * ms), hangs}, 5000 * ms, 2},
		{"the second is refused because the first has landed", []putAnswer{func(ctx context.Context, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
			_, _ = apply()
			return hangs(ctx, apply)
		}}, 500 * ms, 2},
		{"the second meets the first: 409", []putAnswer{slow(700 * ms), refused(objstore.ErrConflict), refused(objstore.ErrConflict), hangs}, 700 * ms, 4},
		{"fast enough", []putAnswer{slow(499 * ms)}, 499 * ms, 1},
	} {
		uploadTest(t, c.name, func(t *testing.T) {
			u := newUploading(t, map[uint64][]putAnswer{20: c.answers}, func(o *UploaderOptions) { o.HedgeMin = 500 * ms })
			for id := uint64(1); id < 20; id++ { // until latencies are known
				u.submit(id, id)
				settle(0)
			}
			require.Len(t, u.ids(), 19)
			begun := time.Now()
			u.submit(20, 20)
			settle(c.after - ms)
			require.Len(t, u.ids(), 19)
			settle(ms)
			require.Len(t, u.ids(), 20)
			require.Equal(t, c.after, time.Since(begun))
			settle(time.Hour)
			require.Len(t, u.ids(), 20)
			require.Empty(t, u.failures())
			now, most := u.store.parallel()
			require.LessOrEqual(t, most, maxPuts)
			require.Zero(t, now)
			require.LessOrEqual(t, u.store.putsOf(20), c.puts)
			require.GreaterOrEqual(t, u.store.putsOf(20), min(c.puts, 2))
		})
	}
}

// The delay of a hedge follows the latencies.
func TestHedgeFollowsLatency(t *testing.T) {
	uploadTest(t, "", func(t *testing.T) {
		script := map[uint64][]putAnswer{}
		for id := uint64(1); id <= 100; id++ {
			script[id] = []putAnswer{slow(2 * time.Second), slow(2 * time.Second)}
		}
		u := newUploading(t, script, func(o *UploaderOptions) { o.HedgeMin = 500 * time.Millisecond })
		for id := uint64(1); id <= 100; id++ {
			u.submit(id, id)
			settle(2 * time.Second)
		}
		require.Len(t, u.ids(), 100)
		require.EqualValues(t, minLatencySamples, u.Stats().Hedges, "a slow store is not sent everything twice")
	})
	var l latencies
	for i := range 8 {
		_, ok := l.p95()
		require.False(t, ok)
		l.add(time.Duration(i))
	}
	for i := range latencySamples {
		l.add(time.Duration(i))
	}
	got, ok := l.p95()
	require.True(t, ok)
	require.EqualValues(t, 60, got) // 61 of 64 samples are at most this
}
