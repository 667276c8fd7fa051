package base

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"
)

// fixedEnv gives the same random bytes every time.
func fixedEnv(random byte) *Env {
	env := SystemEnv()
	env.Random = func(p []byte) {
		for i := range p {
			p[i] = random
		}
	}
	return env
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := SystemEnv()
		start := time.Now()
		require.NoError(t, env.Sleep(t.Context(), time.Minute))
		require.Equal(t, time.Minute, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, env.Sleep(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Minute+time.Second, time.Since(start))
		require.NoError(t, env.Sleep(t.Context(), 0))
	})
}

func TestJitterAndBackoffStayInBounds(t *testing.T) {
	for _, random := range []byte{0, 1, 0x7F, 0x80, 0xFF} {
		env := fixedEnv(random)
		for _, d := range []time.Duration{0, 1, 2, 3, time.Second, 1<<63 - 1} {
			j := env.Jitter(d)
			require.GreaterOrEqual(t, j, d/2)
			require.LessOrEqual(t, j, d)
		}
		for attempt := range 100 {
			want := min(10*time.Millisecond<<min(attempt, 20), time.Second)
			got := env.Backoff(10*time.Millisecond, time.Second, attempt)
			require.GreaterOrEqual(t, got, want/2, "attempt %d", attempt)
			require.LessOrEqual(t, got, want, "attempt %d", attempt)
		}
		require.LessOrEqual(t, env.Backoff(time.Hour, time.Second, 0), time.Second)
		require.LessOrEqual(t, env.Backoff(1, 1<<63-1, 1000), time.Duration(1<<63-1))
	}
}

func TestSystemEnv(t *testing.T) {
	env := SystemEnv()
	before := env.Elapsed()
	started := time.Now()
	ran := make(chan string, 2)
	env.Go("test", func() { ran <- "go" })
	require.Equal(t, "go", <-ran)
	stop := env.AfterFunc(time.Hour, func() { ran <- "late" })
	require.True(t, stop())
	require.False(t, stop())
	env.AfterFunc(time.Millisecond, func() { ran <- "timer" })
	require.Equal(t, "timer", <-ran)
	require.GreaterOrEqual(t, env.Elapsed()-before, time.Since(started)/2, "elapsed time goes on")
	require.WithinDuration(t, time.Now(), env.Now(), time.Minute)
	require.NotEqual(t, env.Uint64(), env.Uint64())
}

func TestNewULID(t *testing.T) {
	env := fixedEnv(0xAB)
	env.Now = func() time.Time { return time.UnixMilli(1_700_000_000_123) }
	id := env.NewULID()
	require.Equal(t, uint64(1_700_000_000_123), ulid.ULID(id).Time())
	require.Equal(t, []byte{0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB}, id[6:])
	sys := SystemEnv()
	require.NotEqual(t, sys.NewULID(), sys.NewULID())
}
