package fuzz

import (
	"context"
	"fmt"
	"strings"
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

// Replicas: failure cases by number.

// replicaRig is a rig with a replica whose requests can be broken apart from the writers'.
type replicaRig struct {
	*rig
	reader *engine.Reader

	mu    sync.Mutex
	rules []fault.Hook
}

func newReplicaRig(t *testing.T) *replicaRig { return &replicaRig{rig: newRig(t)} }

func (r *replicaRig) replica(o engine.ReaderOptions) *engine.Reader {
	r.t.Helper()
	if o.Env == nil {
		o.Env = simEnv()
	}
	store := fault.New(r.mem, func(ctx context.Context, op fault.Op) fault.Plan {
		if op.Kind != fault.Get {
			r.t.Errorf("a replica asked for %s", op)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rule := range r.rules {
			if p := rule(ctx, op); !isZero(p) {
				return p
			}
		}
		return fault.Plan{}
	})
	reader, err := engine.OpenReader(r.t.Context(), store, o)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = reader.Close(context.Background()) }) // or the test did
	r.reader = reader
	return reader
}

// breaks fails the replica's requests for names that contain part.
func (r *replicaRig) breaks(part string) {
	r.addRule(func(_ context.Context, op fault.Op) fault.Plan {
		if strings.Contains(op.Name, part) {
			return fault.Refuse(errNetwork)
		}
		return fault.Plan{}
	})
}

func (r *replicaRig) addRule(rule fault.Hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = append(r.rules, rule)
}

func (r *replicaRig) healReplica() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = nil
}

// later lets time pass and what is due be done.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// collectWAL deletes the WAL objects below position.
func collectWAL(t *testing.T, r *rig, db *engine.DB, names ...string) {
	t.Helper()
	_, err := db.CollectGarbage(t.Context())
	require.NoError(t, err)
	for _, name := range names {
		_, err := r.mem.Head(t.Context(), name)
		require.ErrorIs(t, err, objstore.ErrNotFound, name)
	}
}

func TestF32ReplicaWithoutAStoreForTenMinutes(t *testing.T) {
	failure(t, "stale and not ready, and recovers by itself", func(t *testing.T) {
		r := newReplicaRig(t)
		db := r.open(options())
		mustAppend(t, db, numbered("old", 10)...)
		require.NoError(t, db.Flush(t.Context()))
		mustAppend(t, db, "tail")
		reader := r.replica(engine.ReaderOptions{})
		require.NoError(t, reader.Ready(t.Context()))
		frontier := reader.Frontier()

		r.breaks("")
		later(3 * time.Second)
		require.NoError(t, reader.Ready(t.Context()), "a few seconds do not matter")
		later(4 * time.Second)
		require.ErrorIs(t, reader.Ready(t.Context()), errNetwork)
		later(10 * time.Minute)
		mustAppend(t, db, "more")
		require.NoError(t, db.Flush(t.Context()))
		require.ErrorIs(t, reader.Ready(t.Context()), errNetwork)
		require.Greater(t, reader.Status().LagTime, 10*time.Minute)
		require.NoError(t, reader.Err(), "it waits")
		_, err := tryRead(reader)
		require.ErrorIs(t, err, engine.ErrStale)
		it := reader.Scan(t.Context(), []byte("k"), engine.From(frontier-1), engine.ScanOptions{})
		recs, err := collect(it)
		require.NoError(t, err, "the tip is in memory")
		require.Len(t, recs, 1)
		require.Equal(t, frontier, reader.Frontier())

		r.healReplica()
		later(2 * time.Second)
		require.NoError(t, reader.Ready(t.Context()))
		require.Equal(t, append(numbered("old", 10), "tail", "more"), read(t, reader))
		require.Zero(t, reader.Status().LagTime)
	})
}

func TestF33WantedObjectIsCollected(t *testing.T) {
	for _, broken := range []string{"/wal/", ""} {
		failure(t, fmt.Sprintf("without %q for a while", broken), func(t *testing.T) {
			r := newReplicaRig(t)
			db := r.open(options())
			mustAppend(t, db, "a")
			reader := r.replica(engine.ReaderOptions{})
			r.breaks(broken)
			want := []string{"a"}
			for i := range 5 {
				mustAppend(t, db, fmt.Sprint(i))
				want = append(want, fmt.Sprint(i))
			}
			later(time.Second)
			require.Equal(t, []string{"a"}, read(t, reader))
			require.NoError(t, db.Flush(t.Context()))
			collectWAL(t, r.rig, db, wal(1, 2), wal(1, 6))
			mustAppend(t, db, "behind")
			later(3 * time.Second)
			r.healReplica()
			later(3 * time.Second)
			require.Equal(t, append(want, "behind"), read(t, reader))
			require.Equal(t, uint64(1), reader.Status().Jumps)
			require.NoError(t, reader.Ready(t.Context()))
		})
	}
	failure(t, "it is deleted between the poll of the MANIFEST and the read", func(t *testing.T) {
		r := newReplicaRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		reader := r.replica(engine.ReaderOptions{})
		later(20 * time.Second) // idle
		var once sync.Once
		r.addRule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Name != wal(1, 2) {
				return fault.Plan{}
			}
			return fault.Plan{Before: func(context.Context) error {
				once.Do(func() {
					mustAppend(t, db, "b", "c")
					require.NoError(t, db.Flush(context.Background()))
					_, err := db.CollectGarbage(context.Background())
					require.NoError(t, err)
					mustAppend(t, db, "d")
				})
				return nil
			}}
		})
		later(3 * time.Second)
		require.Equal(t, []string{"a", "b", "c", "d"}, read(t, reader))
		require.Equal(t, uint64(1), reader.Status().Jumps)
	})
	failure(t, "it was read, and the answer comes when a MANIFEST has passed it", func(t *testing.T) {
		r := newReplicaRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		reader := r.replica(engine.ReaderOptions{})
		later(20 * time.Second) // idle
		answer := make(chan struct{})
		var once sync.Once
		r.addRule(func(ctx context.Context, op fault.Op) (plan fault.Plan) {
			if _, err := r.mem.Head(ctx, wal(1, 2)); op.Name != wal(1, 2) || err != nil {
				return plan
			}
			once.Do(func() { plan.After = func(context.Context) error { <-answer; return nil } })
			return plan
		})
		// An object without records fits wherever the sequences do.
		_, err := db.SetCursors(t.Context(), "c", []engine.Cursor{{Key: []byte("k"), Next: 1}}, engine.CursorOptions{})
		require.NoError(t, err)
		later(2 * time.Second)
		require.NoError(t, db.Flush(t.Context()))
		later(2 * time.Second)
		close(answer)
		later(2 * time.Second)
		mustAppend(t, db, "b")
		later(3 * time.Second)
		require.Equal(t, []string{"a", "b"}, read(t, reader), "no id is skipped")
		page, err := reader.Cursors(t.Context(), "c", engine.CursorsOptions{})
		require.NoError(t, err)
		require.Equal(t, []engine.Cursor{{Key: []byte("k"), Next: 1}}, page.Cursors)
	})
}

func TestF34SegmentEpochAndRunBetweenTwoPolls(t *testing.T) {
	for _, tail := range []int64{0, 1} {
		failure(t, fmt.Sprintf("all are seen, tail of %d", tail), func(t *testing.T) {
			r := newReplicaRig(t)
			o := tinyOptions()
			db := r.open(o)
			var want []string
			add := func(n int) {
				for range n {
					v := fmt.Sprint(len(want), strings.Repeat("x", 500))
					mustAppend(t, db, v)
					want = append(want, v)
				}
			}
			add(3)
			reader := r.replica(engine.ReaderOptions{PollInterval: 30 * time.Second, TailBytes: tail})
			for range 4 {
				segments := db.Status().Segments
				add(20)
				require.NoError(t, db.Flush(t.Context()))
				require.Greater(t, db.Status().Segments, segments)
				add(2)
				kill(db)
				db = r.open(o)
				add(1)
				require.NoError(t, db.Flush(t.Context()))
				add(1)
				later(2 * time.Minute)
				if tail == 0 {
					require.Equal(t, want, read(t, reader))
				}
			}
			require.NoError(t, db.Flush(t.Context()))
			later(2 * time.Minute)
			require.Equal(t, want, read(t, reader))
			require.NoError(t, reader.Ready(t.Context()))
			segments := func(log engine.LogReader) []engine.SegmentInfo {
				page, err := log.Segments(t.Context(), engine.SegmentsOptions{})
				require.NoError(t, err)
				return page.Segments
			}
			require.Equal(t, segments(db), segments(reader))
		})
	}
}

func TestF39ReplicaClosesOrRestarts(t *testing.T) {
	failure(t, "who waits hears of it, and goes on elsewhere at the same cursor", func(t *testing.T) {
		r := newReplicaRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		reader := r.replica(engine.ReaderOptions{})
		cursor := reader.Frontier()
		errs := make(chan error, 100)
		for range cap(errs) {
			go func() { errs <- reader.Wait(context.Background(), []byte("k"), engine.From(cursor)) }()
		}
		later(time.Second)
		require.Empty(t, errs)
		require.NoError(t, reader.Close(t.Context()))
		for range cap(errs) {
			require.ErrorIs(t, <-errs, engine.ErrClosed)
		}
		mustAppend(t, db, "b")
		require.NoError(t, db.Flush(t.Context()))
		next := r.replica(engine.ReaderOptions{})
		require.NoError(t, next.Wait(t.Context(), []byte("k"), engine.From(cursor)))
		recs, err := collect(next.Scan(t.Context(), []byte("k"), engine.From(cursor), engine.ScanOptions{}))
		require.NoError(t, err)
		require.Len(t, recs, 1)
		require.Equal(t, "b", string(recs[0].Value))
	})
	failure(t, "a follower ends, and another one of the next replica goes on", func(t *testing.T) {
		r := newReplicaRig(t)
		db := r.open(options())
		reader := r.replica(engine.ReaderOptions{})
		f, err := reader.Follow(t.Context(), engine.Stream{Key: []byte("k")}, engine.Stream{Prefix: true, Key: []byte("other")})
		require.NoError(t, err)
		var got []string
		ended := make(chan error, 1)
		follow := func(f *engine.Follower) {
			for rec := range f.All() {
				got = append(got, string(rec.Value))
			}
			ended <- f.Err()
		}
		go follow(f)
		var want []string
		for i := range 20 {
			if i == 7 { // over a jump
				r.breaks("/wal/")
			}
			want = append(want, fmt.Sprint(i))
			mustAppend(t, db, want[i])
			if i == 12 {
				require.NoError(t, db.Flush(t.Context()))
				later(2 * time.Second)
				r.healReplica()
			}
			later(200 * time.Millisecond)
		}
		require.Equal(t, want, got)
		require.Equal(t, uint64(1), reader.Status().Jumps)
		require.NoError(t, reader.Close(t.Context()))
		require.ErrorIs(t, <-ended, engine.ErrClosed)

		want = append(want, "last")
		mustAppend(t, db, "last")
		next := r.replica(engine.ReaderOptions{})
		f, err = next.Follow(t.Context(), engine.Stream{Key: []byte("k"), From: f.Cursor()})
		require.NoError(t, err)
		go follow(f)
		later(time.Second)
		require.Equal(t, want, got)
		f.Close()
		<-ended
	})
	failure(t, "the segment is dropped", func(t *testing.T) {
		r := newReplicaRig(t)
		o := options()
		o.SegmentBytes, o.SegmentMinBytes, o.Retention, o.RetentionInterval = 100, 1, time.Minute, time.Second
		db := r.open(o)
		mustAppend(t, db, strings.Repeat("x", 200))
		reader := r.replica(engine.ReaderOptions{})
		done := make(chan error, 2)
		go func() { done <- reader.Wait(context.Background(), []byte("other"), engine.Between(0, 2)) }()
		go func() { done <- reader.Wait(context.Background(), []byte("k"), engine.From(1)) }()
		later(3 * time.Minute)
		require.Empty(t, done)
		mustAppend(t, db, "b")
		later(3 * time.Second)
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, uint64(1), reader.FirstSequence())
		require.Equal(t, []string{"b"}, read(t, reader))
	})
}

// delayedFence brings about what F47 is: the fence of epoch 1 goes to (1, 4), is delayed on the way, and
// a record lands there first, which the writer of epoch 2 then flushes and collects. Then the fence lands.
// Before all of that the replica is opened, and stuck is called: it must keep the replica from reading on.
func delayedFence(t *testing.T, stuck func(r *replicaRig)) (*replicaRig, *engine.DB) {
	r := newReplicaRig(t)
	old := r.open(options())
	for _, v := range []string{"a", "b", "c"} {
		mustAppend(t, old, v)
	}
	fence := fault.NewHeld(errNetwork)
	r.rule(once(putOf(wal(1, 4)), fault.Plan{Held: fence, Before: func(context.Context) error {
		r.replica(engine.ReaderOptions{})
		stuck(r)
		mustAppend(t, old, "d")
		later(1500 * time.Millisecond)
		return nil
	}}))
	db := r.open(options())
	require.Equal(t, []string{"a", "b", "c", "d"}, read(t, db))
	mustAppend(t, db, "e")
	collectWAL(t, r.rig, db, wal(1, 3), wal(1, 4))
	require.NoError(t, fence.Apply(t.Context()))
	at, err := r.mem.Head(t.Context(), wal(1, 4))
	require.NoError(t, err)
	require.Equal(t, int64(walfile.FenceSize), at.Size)
	later(3 * time.Second)
	require.Equal(t, []string{"a", "b", "c"}, read(t, r.reader))
	return r, db
}

func TestF47DelayedFenceAtAReplica(t *testing.T) {
	want := []string{"a", "b", "c", "d", "e"}
	down := func(r *replicaRig) { r.breaks("") }
	failure(t, "the MANIFEST has passed it", func(t *testing.T) {
		r, _ := delayedFence(t, down)
		r.healReplica()
		later(3 * time.Second)
		require.Equal(t, want, read(t, r.reader))
		require.Equal(t, uint64(1), r.reader.Status().Jumps)
	})
	failure(t, "while the MANIFEST cannot be read it does not count", func(t *testing.T) {
		r, db := delayedFence(t, down)
		r.healReplica()
		r.breaks("MANIFEST")
		later(time.Minute)
		require.Equal(t, uint64(3), r.reader.Frontier())
		require.ErrorIs(t, r.reader.Ready(t.Context()), errNetwork)
		mustAppend(t, db, "f")
		later(time.Minute)
		require.Equal(t, uint64(3), r.reader.Frontier())
		r.healReplica()
		later(3 * time.Second)
		require.Equal(t, append(want, "f"), read(t, r.reader))
	})
	failure(t, "an answer to a request for the MANIFEST that was sent before says nothing", func(t *testing.T) {
		answer := make(chan struct{})
		r, _ := delayedFence(t, func(r *replicaRig) {
			r.addRule(once(func(op fault.Op) bool { return op.Name == manifestName }, fault.Plan{After: func(context.Context) error {
				<-answer
				return nil
			}}))
			r.breaks("")
		})
		r.healReplica()
		r.breaks("MANIFEST")
		later(3 * time.Second) // the fence was read
		close(answer)          // old as it is, the MANIFEST in it has a position below the cursor
		later(20 * time.Second)
		require.Equal(t, uint64(3), r.reader.Frontier())
		r.healReplica()
		later(3 * time.Second)
		require.Equal(t, want, read(t, r.reader))
	})
	failure(t, "damage in a name that was filled again does not matter", func(t *testing.T) {
		r, _ := delayedFence(t, down)
		r.healReplica()
		r.addRule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Name == wal(1, 4) {
				return fault.FlipByte(50)
			}
			return fault.Plan{}
		})
		later(3 * time.Second)
		require.Equal(t, want, read(t, r.reader))
		require.NoError(t, r.reader.Ready(t.Context()))
	})
}

// TestF51ReplicaStaleness: how old a replica's view may be counts from when the request was sent, on a clock
// that counts suspended time, whatever the wall clock does.
func TestF51ReplicaStaleness(t *testing.T) {
	failure(t, "suspended, slow, and on a wall clock that jumps", func(t *testing.T) {
		var boot, wall atomic.Int64 // nanoseconds
		env := simEnv()
		now, elapsed := env.Now, env.Elapsed
		env.Now = func() time.Time { return now().Add(time.Duration(wall.Load())) }
		env.Elapsed = func() time.Duration { return elapsed() + time.Duration(boot.Load()) }
		r := newReplicaRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		require.NoError(t, db.Flush(t.Context()))
		reader := r.replica(engine.ReaderOptions{Env: env, CacheBytes: 1})
		require.Equal(t, []string{"a"}, read(t, reader))

		wall.Store(int64(-1000 * time.Hour))
		later(time.Minute)
		require.Equal(t, []string{"a"}, read(t, reader))
		wall.Store(int64(1000 * time.Hour))
		require.Equal(t, []string{"a"}, read(t, reader))
		require.NoError(t, reader.Ready(t.Context()))

		boot.Store(int64(6 * time.Minute)) // nobody knows what was collected meanwhile
		_, err := tryRead(reader)
		require.ErrorIs(t, err, engine.ErrStale)
		later(2 * time.Second)
		require.Equal(t, []string{"a"}, read(t, reader))

		r.addRule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Name != manifestName {
				return fault.Plan{}
			}
			return fault.Plan{After: func(context.Context) error { time.Sleep(20 * time.Second); return nil }}
		})
		later(2 * time.Minute)
		require.GreaterOrEqual(t, reader.Status().HeadAge, 18*time.Second)
		require.Less(t, reader.Status().HeadAge, 42*time.Second)
	})
}

func TestReplicaBesideAZombie(t *testing.T) {
	failure(t, "what lies behind a gap, or behind a fence, is never read", func(t *testing.T) {
		r := newReplicaRig(t)
		zombie := r.open(options())
		mustAppend(t, zombie, "a")
		mustAppend(t, zombie, "b")
		reader := r.replica(engine.ReaderOptions{})
		held := r.hold(putOf(wal(1, 3)), nil)
		r.rule(fault.On(putOf(wal(1, 3)), fault.Always(fault.Refuse(errNetwork)))) // its later tries
		c := start(t.Context(), zombie, "c")
		later(10 * time.Millisecond) // it is cut
		require.True(t, c.pending())
		d := start(t.Context(), zombie, "d")
		later(10 * time.Millisecond)
		require.True(t, d.pending())
		_, err := r.mem.Head(t.Context(), wal(1, 4))
		require.NoError(t, err, "it landed behind the gap")
		later(3 * time.Second)
		require.Equal(t, []string{"a", "b"}, read(t, reader))

		r.rig.heal()
		db := r.open(options())
		require.ErrorIs(t, held.Apply(context.Background()), objstore.ErrPrecondition)
		later(3 * time.Second)
		mustAppend(t, db, "new")
		later(3 * time.Second)
		require.Equal(t, []string{"a", "b", "new"}, read(t, reader))
		require.Equal(t, db.Frontier(), reader.Frontier())
		for _, p := range []*pendingAppend{c, d} {
			require.ErrorIs(t, p.wait(), engine.ErrFenced)
		}
	})
}
