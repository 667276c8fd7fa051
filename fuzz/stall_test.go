package fuzz

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	walfile "github.com/annalsdb/annals/wal"
)

// Processes that stall, or die, at any of their requests: before it is applied, or after that
// and before its answer comes.

// freezer is what a process sees of its store: it stands still at one of its requests, and with
// that request everything else that it asks for, until it is woken.
type freezer struct {
	store   *fault.Store
	n       int // the request
	applied bool
	held    *fault.Held // that request, if it is not to be applied before

	caught chan struct{} // closed when the process stands still
	awake  chan struct{} // closed when it goes on

	mu   sync.Mutex
	seen int      // guarded by mu
	at   fault.Op // guarded by mu: the request
}

func newFreezer(r *rig, n int, applied bool) *freezer {
	f := &freezer{n: n, applied: applied, held: fault.NewHeld(nil), caught: make(chan struct{}), awake: make(chan struct{})}
	f.store = fault.New(r.store, f.hook)
	return f
}

func (f *freezer) hook(_ context.Context, op fault.Op) fault.Plan {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	// A frozen process does not look at its contexts.
	wait := func(context.Context) error { <-f.awake; return nil }
	switch {
	case f.seen <= f.n:
		return fault.Plan{}
	case f.seen == f.n+1:
		f.at = op
		close(f.caught)
		if f.applied {
			return fault.Plan{After: wait}
		}
		return fault.Plan{Held: f.held, After: wait}
	}
	return fault.Plan{Before: wait}
}

// wake lets the request and all that follows go on.
func (f *freezer) wake(ctx context.Context) {
	close(f.awake)
	f.mu.Lock()
	f.n = math.MaxInt // it may not have come that far
	f.mu.Unlock()
	select {
	case <-f.held.Caught():
		_ = f.held.Apply(ctx) // what it depends on may be gone by now
	default:
	}
}

// opening is an open under way.
type opening struct {
	done chan struct{}
	db   *engine.DB
	err  error
}

func startOpen(t *testing.T, f *freezer, o engine.Options) *opening {
	p := &opening{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.db, p.err = engine.Open(t.Context(), f.store, o)
	}()
	return p
}

// TestF45OpenerStallsAnywhere: A stalls at each request of its open while B opens the log, recovers, serves,
// flushes and collects, past every grace. A, woken, either finds that it was passed, or takes over in order.
func TestF45OpenerStallsAnywhere(t *testing.T) {
	for i := range 4 {
		applied, replays := i%2 == 1, i/2 == 1
		failure(t, fmt.Sprintf("applied=%v, something to replay=%v", applied, replays), func(t *testing.T) {
			passed, tookOver := 0, 0
			for n := 0; ; n++ {
				a := stalledOpen(t, n, applied, replays)
				if !a.stalled {
					break
				}
				if a.passed {
					passed++
				} else {
					tookOver++
				}
			}
			require.Greater(t, passed, 10, "stalled when it had looked")
			require.Equal(t, !applied, tookOver > 0, "its first request tells it")
		})
	}
}

// stalledOutcome is what became of an open: whether it has the request at which it is to stall, and whether
// the log was another writer's in the end.
type stalledOutcome struct{ stalled, passed bool }

// stalledOpen stalls an open at its request n.
func stalledOpen(t *testing.T, n int, applied, replays bool) stalledOutcome {
	r := newRig(t)
	o := options()
	o.GCInterval = time.Hour // B is told when to collect
	w0 := r.open(o)
	acked := []string{"1", "2", "3"}
	mustAppend(t, w0, acked[0], acked[1])
	if replays {
		require.NoError(t, w0.Flush(t.Context()))
	}
	mustAppend(t, w0, acked[2])
	if !replays {
		require.NoError(t, w0.Flush(t.Context()))
	}
	f := newFreezer(r, n, applied)
	a := startOpen(t, f, o)
	synctest.Wait()
	select {
	case <-a.done: // it has fewer requests
		f.wake(t.Context())
		require.NoError(t, a.err)
		require.Equal(t, acked, read(t, a.db))
		kill(a.db)
		kill(w0)
		return stalledOutcome{}
	default:
		<-f.caught
	}
	b := r.open(o)
	require.Equal(t, acked, read(t, b), "request %d", n)
	mustAppend(t, b, "b")
	require.NoError(t, b.Flush(t.Context()))
	mustAppend(t, b, "c")
	time.Sleep(20 * time.Minute)
	_, err := b.CollectGarbage(t.Context())
	require.NoError(t, err)
	acked = append(acked, "b", "c")

	f.wake(t.Context())
	<-a.done
	serves, zombie := b, a.db
	switch {
	case a.err != nil:
		require.ErrorIs(t, a.err, engine.ErrFenced, "request %d", n)
	case epochOf(a.db) > epochOf(b):
		serves, zombie = a.db, b
	default: // the last commit of its open was applied when it stalled, and B came later
		require.True(t, applied && putOf(manifestName)(f.at), "request %d, %s: it serves, passed", n, f.at)
		_, err := tryRead(a.db)
		require.ErrorIs(t, err, engine.ErrStale, "request %d", n)
	}
	if zombie != nil {
		_, err := zombie.Append(t.Context(), batch("lost"), engine.AppendOptions{})
		require.ErrorIs(t, err, engine.ErrFenced, "request %d: two serve", n)
		kill(zombie)
	}
	mustAppend(t, serves, "d")
	acked = append(acked, "d")
	require.Equal(t, acked, read(t, serves), "request %d", n)
	kill(w0)
	kill(serves)
	next := r.open(o)
	require.Equal(t, acked, read(t, next), "request %d", n)
	kill(next)
	check(t, r.mem)
	return stalledOutcome{stalled: true, passed: serves == b}
}

func epochOf(db *engine.DB) uint64 { return db.Head().GetWriter().GetEpoch() }

// TestF46OpenersDieAnywhere: of openers in a row each dies at one of its requests, applied or not, or
// opens and gives sequences away from memory alone. No sequence is given away twice.
func TestF46OpenersDieAnywhere(t *testing.T) {
	for _, applied := range []bool{false, true} {
		failure(t, fmt.Sprintf("applied=%v", applied), func(t *testing.T) {
			r := newRig(t)
			o := options()
			o.Ack, o.ReadVisibility = engine.Memory, engine.Memory
			used := map[uint64]bool{}
			serve := func() {
				db := r.open(o)
				r.rule(fault.OnKind(fault.Put, fault.Always(fault.Refuse(errNetwork))))
				for range 3 {
					res := mustAppend(t, db, "v")
					require.False(t, used[res.First], "sequence %d", res.First)
					used[res.First] = true
				}
			}
			serve()
			n := 0
			for hit := true; hit; n++ {
				r = r.crashed()
				rule := fault.FailNth(n, applied, nil)
				r.rule(func(ctx context.Context, op fault.Op) fault.Plan {
					if rule.Hit() {
						return fault.Refuse(errNetwork) // the process is gone
					}
					return rule.Hook(ctx, op)
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				db, err := engine.Open(ctx, r.store, o)
				cancel()
				if hit = rule.Hit(); err == nil {
					kill(db)
				}
				r = r.crashed()
				serve()
			}
			require.Greater(t, n, 10, "requests of an open")
		})
	}
}

// TestF5ZombieBehindCollection: a writer stalls with a PUT on its way, past every grace; what it had written before is
// flushed and collected by another one meanwhile. The PUT is refused whenever it comes.
func TestF5ZombieBehindCollection(t *testing.T) {
	failure(t, "the fence is still there", func(t *testing.T) {
		r := newRig(t)
		old := r.open(options())
		mustAppend(t, old, "a")
		records := func(op fault.Op) bool { return putOf(wal(1, 2))(op) && len(op.Body) > walfile.FenceSize }
		f := r.hold(records, nil)
		r.rule(fault.On(records, fault.Always(fault.Refuse(errNetwork)))) // its later tries
		p := start(t.Context(), old, "zombie")
		<-f.Caught()
		next := r.open(options())
		mustAppend(t, next, "b")
		require.NoError(t, next.Flush(t.Context()))
		mustAppend(t, next, "c")
		for range 3 {
			time.Sleep(20 * time.Minute)
			_, err := next.CollectGarbage(t.Context())
			require.NoError(t, err)
		}
		_, err := r.mem.Head(t.Context(), wal(1, 1))
		require.ErrorIs(t, err, objstore.ErrNotFound, "it was collected")
		require.ErrorIs(t, f.Apply(t.Context()), objstore.ErrPrecondition)
		require.ErrorIs(t, p.wait(), engine.ErrFenced)
		require.Equal(t, []string{"a", "b", "c"}, read(t, next))
		require.Equal(t, []string{"a", "b", "c"}, read(t, r.crashed().open(options())))
	})
}

// TestF12NothingIsToldBeforeTheAnswer: of an object that is on its way, or applied and not answered, nobody
// hears: neither who appended, nor who waits, follows or reads.
func TestF12NothingIsToldBeforeTheAnswer(t *testing.T) {
	for _, applied := range []bool{false, true} {
		failure(t, fmt.Sprintf("applied=%v", applied), func(t *testing.T) {
			r := newRig(t)
			db := r.open(options())
			mustAppend(t, db, "a")
			answer := make(chan struct{})
			wait := func(context.Context) error { <-answer; return nil }
			plan := fault.Plan{Before: wait}
			if applied {
				plan = fault.Plan{After: wait}
			}
			r.rule(fault.On(putOf(wal(1, 2)), fault.Always(plan))) // hedges too
			p := start(t.Context(), db, "b")
			woken := make(chan error, 2)
			go func() { woken <- db.Wait(context.Background(), []byte("k"), engine.From(1)) }()
			go func() { woken <- db.WaitDurable(context.Background(), 1) }()
			f, err := db.Follow(t.Context(), engine.Stream{Key: []byte("k"), From: 1})
			require.NoError(t, err)
			followed := make(chan string, 1)
			go func() {
				for rec := range f.All() {
					followed <- string(rec.Value)
					return
				}
			}()
			time.Sleep(10 * time.Second) // simulated
			require.True(t, p.pending())
			require.Empty(t, woken)
			require.Empty(t, followed)
			require.Equal(t, []string{"a"}, read(t, db))
			require.Equal(t, uint64(1), db.Frontier())
			close(answer)
			require.NoError(t, p.wait())
			require.NoError(t, <-woken)
			require.NoError(t, <-woken)
			require.Equal(t, "b", <-followed)
			require.Equal(t, []string{"a", "b"}, read(t, db))
			f.Close()
		})
	}
}

// TestF51WriterStaleness: the writer's own view goes stale too, by a clock that counts suspended time, from when
// its last good poll was sent; it polls by itself, and recovers.
func TestF51WriterStaleness(t *testing.T) {
	failure(t, "suspended, and without an answer", func(t *testing.T) {
		var suspended atomic.Int64 // nanoseconds
		r := newRig(t)
		o := options()
		o.RecentBytes, o.CacheBytes = 1, 1
		elapsed := o.Env.Elapsed
		o.Env.Elapsed = func() time.Duration { return elapsed() + time.Duration(suspended.Load()) }
		db := r.open(o)
		mustAppend(t, db, "a")
		require.NoError(t, db.Flush(t.Context()))
		require.Equal(t, []string{"a"}, read(t, db))

		suspended.Store(int64(engine.DefaultStaleAfter + time.Second))
		_, err := tryRead(db)
		require.ErrorIs(t, err, engine.ErrStale, "nobody knows what was collected meanwhile")
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"a"}, read(t, db), "it has polled")

		// Answers that take long say little: they count from when they were asked for.
		head := func(op fault.Op) bool { return op.Kind == fault.Get && op.Name == manifestName }
		answer := make(chan struct{})
		r.rule(fault.On(head, fault.Always(fault.Plan{After: func(ctx context.Context) error {
			<-answer
			return ctx.Err()
		}})))
		time.Sleep(engine.DefaultStaleAfter - 5*time.Second)
		require.Equal(t, []string{"a"}, read(t, db))
		time.Sleep(10 * time.Second)
		_, err = tryRead(db)
		require.ErrorIs(t, err, engine.ErrStale)
		require.NoError(t, db.Err())
		r.heal()
		close(answer)
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"a"}, read(t, db))
	})
}
