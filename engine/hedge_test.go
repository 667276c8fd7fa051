package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// bubbleEnv is an environment whose clocks are the bubble's.
func bubbleEnv() *base.Env {
	env := base.SystemEnv()
	start := time.Now()
	env.Elapsed = func() time.Duration { return time.Since(start) }
	return env
}

// answer is what one GET does: it takes a time, or hangs, and then fails or not.
type answer struct {
	after time.Duration // 0: until its context ends
	err   error
}

// getter answers the GETs of one read in order; the last answer repeats.
type getter struct {
	mu      sync.Mutex
	answers []answer
	sent    int
	ended   []string // how each GET ended, in order of the ends
}

func (g *getter) fetch(ctx context.Context) (objstore.Object, error) {
	g.mu.Lock()
	i := g.sent
	g.sent++
	a := g.answers[min(i, len(g.answers)-1)]
	g.mu.Unlock()
	var timer <-chan time.Time
	if a.after > 0 {
		timer = time.After(a.after)
	}
	var err error
	how := "answered"
	select {
	case <-timer:
		if err = a.err; err != nil {
			how = "failed"
		}
	case <-ctx.Done():
		err, how = fmt.Errorf("get x: %w", ctx.Err()), "cancelled"
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = append(g.ended, fmt.Sprint(i, " ", how))
	return objstore.Object{Body: []byte{byte(i)}}, err
}

// learn gives a hedger samples of one size.
func learn(t *testing.T, h *hedger, env *base.Env, n int64, samples int, d time.Duration) {
	t.Helper()
	for range samples {
		_, err := h.get(t.Context(), env, n, (&getter{answers: []answer{{after: d}}}).fetch)
		require.NoError(t, err)
	}
}

func TestHedgedRead(t *testing.T) {
	const ms = time.Millisecond
	boom := errors.New("boom")
	missing := fmt.Errorf("get x: %w", objstore.ErrNotFound)
	hang := answer{}
	for _, c := range []struct {
		name    string
		usual   time.Duration // of the reads before
		samples int
		answers []answer
		cancel  time.Duration // when the caller gives up; 0: never
		took    time.Duration
		won     int // which GET's body it got
		err     error
		ended   []string
	}{
		{name: "fast enough", usual: 10 * ms, samples: 32, answers: []answer{{after: 49 * ms}}, took: 49 * ms, ended: []string{"0 answered"}},
		{name: "too few samples", usual: 10 * ms, samples: 31, answers: []answer{{after: time.Hour}}, took: time.Hour, ended: []string{"0 answered"}},
		{name: "the second answers first", usual: 10 * ms, samples: 32, answers: []answer{hang, {after: 5 * ms}}, took: 55 * ms, won: 1, ended: []string{"1 answered", "0 cancelled"}},
		{name: "the first answers first", usual: 10 * ms, samples: 32, answers: []answer{{after: 60 * ms}, hang}, took: 60 * ms, ended: []string{"0 answered", "1 cancelled"}},
		{name: "at most one", usual: 10 * ms, samples: 32, answers: []answer{{after: time.Minute}, {after: time.Hour}}, took: time.Minute, ended: []string{"0 answered", "1 cancelled"}},
		{name: "slower than p95", usual: 200 * ms, samples: 32, answers: []answer{hang, {after: 10 * ms}}, took: 210 * ms, won: 1, ended: []string{"1 answered", "0 cancelled"}},
		{name: "the second fails", usual: 10 * ms, samples: 32, answers: []answer{{after: 5 * time.Second}, {after: 10 * ms, err: boom}}, took: 5 * time.Second, ended: []string{"1 failed", "0 answered"}},
		{name: "the first fails, the second is under way", usual: 10 * ms, samples: 32, answers: []answer{{after: 60 * ms, err: boom}, {after: 100 * ms}}, took: 150 * ms, won: 1, ended: []string{"0 failed", "1 answered"}},
		{name: "both fail", usual: 10 * ms, samples: 32, answers: []answer{{after: 60 * ms, err: boom}, {after: 100 * ms, err: errors.New("other")}}, took: 150 * ms, err: boom, ended: []string{"0 failed", "1 failed"}},
		{name: "it fails fast", usual: 10 * ms, samples: 32, answers: []answer{{after: 20 * ms, err: boom}}, took: 20 * ms, err: boom, ended: []string{"0 failed"}},
		{name: "no repetition helps", usual: 10 * ms, samples: 32, answers: []answer{{after: 60 * ms, err: missing}, hang}, took: 60 * ms, err: missing, ended: []string{"0 failed", "1 cancelled"}},
		{name: "the caller gives up before", usual: 10 * ms, samples: 32, answers: []answer{hang}, cancel: 20 * ms, took: 20 * ms, err: context.Canceled, ended: []string{"0 cancelled"}},
		{name: "the caller gives up both", usual: 10 * ms, samples: 32, answers: []answer{hang}, cancel: 70 * ms, took: 70 * ms, err: context.Canceled, ended: []string{"0 cancelled", "1 cancelled"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h hedger
				env := bubbleEnv()
				learn(t, &h, env, 1000, c.samples, c.usual)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				g := &getter{answers: c.answers}
				began := time.Now()
				obj, err := h.get(ctx, env, 1000, g.fetch)
				require.Equal(t, c.took, time.Since(began))
				if c.err != nil {
					require.ErrorIs(t, err, c.err)
				} else {
					require.NoError(t, err)
					require.Equal(t, []byte{byte(c.won)}, obj.Body)
				}
				synctest.Wait()
				require.ElementsMatch(t, c.ended, g.ended)
				require.EqualValues(t, len(c.ended)-1, h.sent.Load())
				time.Sleep(2 * time.Hour) // of the bubble: nothing comes later
				require.Len(t, g.ended, len(c.ended))
			})
		})
	}
}

// Reads of one size say nothing about those of another.
func TestHedgeBySize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hedger
		env := bubbleEnv()
		learn(t, &h, env, 1000, 64, time.Millisecond)
		learn(t, &h, env, 2<<20, 32, time.Second)
		for n, sent := range map[int64]int{smallRead: 2, mediumRead: 1, mediumRead + 1: 1} {
			g := &getter{answers: []answer{{after: 900 * time.Millisecond}}}
			_, err := h.get(t.Context(), env, n, g.fetch)
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, sent, g.sent, n)
		}
	})
}

// A store that becomes slow for everybody is not sent everything twice, however
// many read at once, and its new latency is learned.
func TestHedgeBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hedger
		env := bubbleEnv()
		learn(t, &h, env, 1000, 128, time.Millisecond)
		var wg sync.WaitGroup
		var sent atomic.Int64
		for range 400 {
			wg.Go(func() {
				g := &getter{answers: []answer{{after: 3 * time.Second}}}
				_, err := h.get(t.Context(), env, 1000, g.fetch)
				require.NoError(t, err)
				sent.Add(int64(g.sent))
			})
		}
		wg.Wait()
		synctest.Wait()
		// The reads all began before the first hedge was due: nothing but the burst.
		require.EqualValues(t, hedgeBurst, h.sent.Load())
		require.EqualValues(t, 400+hedgeBurst, sent.Load())
		p95, ok := h.classes[0].p95()
		require.True(t, ok)
		require.Equal(t, 3*time.Second, p95)

		// One after another, each slower than what was usual: 1 in 20.
		h.classes[0] = latencies{}
		learn(t, &h, env, 1000, 128, time.Millisecond)
		before, reads := h.sent.Load(), 0
		for range 2000 {
			h.classes[0].high = time.Millisecond // as if it were never learned
			_, err := h.get(t.Context(), env, 1000, (&getter{answers: []answer{{after: time.Second}}}).fetch)
			require.NoError(t, err)
			reads++
		}
		require.InDelta(t, reads/readsPerHedge, h.sent.Load()-before, hedgeBurst)
	})
}

func TestLatencies(t *testing.T) {
	var l latencies
	for i := range minLatencySamples {
		_, ok := l.p95()
		require.False(t, ok, i)
		l.add(time.Duration(i))
	}
	p95, ok := l.p95()
	require.True(t, ok)
	require.Equal(t, time.Duration(30), p95)
	for i := range 10 * latencySamples {
		l.add(time.Duration(i % 100))
	}
	p95, _ = l.p95()
	require.InDelta(t, 95, int(p95), 3)
	for range latencySamples {
		l.add(7)
	}
	p95, _ = l.p95()
	require.Equal(t, time.Duration(7), p95, "only the last ones count")
}

func BenchmarkHedge(b *testing.B) {
	var h hedger
	env := base.SystemEnv()
	fetch := func(context.Context) (objstore.Object, error) { return objstore.Object{}, nil }
	b.ReportAllocs()
	for b.Loop() {
		_, _ = h.get(b.Context(), env, 1000, fetch)
	}
}
