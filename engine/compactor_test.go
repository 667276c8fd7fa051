package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// simulatedOptions are smallOptions on synctest's clock.
func simulatedOptions() Options {
	o := smallOptions()
	o.Env = simulatedEnv()
	return o
}

func simulatedEnv() *base.Env {
	env := base.SystemEnv()
	start := time.Now()
	env.Elapsed = func() time.Duration { return time.Hour + time.Since(start) }
	return env
}

func appendRandom(t *testing.T, db *DB, m *model, rnd *rand.Rand, batches int) {
	t.Helper()
	for range batches {
		recs := randomBatch(rnd, 50)
		m.add(mustAppend(t, db, recs...), recs)
	}
}

// A log that is compacted while it is written holds exactly what was appended;
// sealed segments end as one run each, and small ones are merged.
func TestCompactionKeepsEveryRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		o := simulatedOptions()
		o.RecentBytes = 1
		var m model
		rnd := rand.New(rand.NewPCG(5, 6))
		for range 2 {
			db := openTest(t, store, o)
			for range 5 {
				appendRandom(t, db, &m, rnd, 60)
				time.Sleep(10 * time.Second) // simulated
			}
			m.require(t, db)
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			m.require(t, db)
			s := db.Status()
			require.NotZero(t, s.Compaction.Jobs)
			require.Zero(t, s.Compaction.Failures)
			require.Zero(t, s.Compaction.Debt)
			for _, g := range db.Head().GetSegments() {
				if g.GetSealed() {
					require.Len(t, g.GetRuns(), 1, "segment %d", g.GetId())
				}
			}
			require.NotEmpty(t, db.Head().GetGroups(), "finished segments are grouped")
			require.NoError(t, db.Close(t.Context()))
			checkStore(t, store)
		}
	})
}

// Several compactors without a writer: one works, and another takes over when it
// is gone.
func TestCompactorsStandByAndTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		o := simulatedOptions()
		o.DisableCompaction = true
		db := openTest(t, store, o)
		var m model
		rnd := rand.New(rand.NewPCG(7, 8))
		appendRandom(t, db, &m, rnd, 300)
		require.NoError(t, db.Flush(t.Context()))
		require.Greater(t, db.Status().Runs, db.Status().Segments)

		var logged logLines
		done := make(chan error, 2)
		start := func() context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				done <- Compact(ctx, store, CompactOptions{
					SegmentBytes: o.SegmentBytes, TableBytes: o.TableBytes, BlockBytes: o.BlockBytes, Env: simulatedEnv(), Logger: logged.logger(),
				})
			}()
			return cancel
		}
		epoch := func() uint64 {
			s, err := manifest.Load(t.Context(), store, simulatedEnv(), tree)
			require.NoError(t, err)
			return s.State.GetCompactor().GetEpoch()
		}
		stopFirst := start()
		time.Sleep(10 * time.Second)
		stopSecond := start()
		time.Sleep(5 * time.Minute)
		require.Equal(t, uint64(1), epoch(), "the second stands by while the first beats")
		m.require(t, db)

		stopFirst()
		require.NoError(t, <-done)
		appendRandom(t, db, &m, rnd, 300)
		require.NoError(t, db.Flush(t.Context()))
		time.Sleep(2 * watchEvery)
		require.Equal(t, uint64(2), epoch(), "the first has said that it stops")
		time.Sleep(5 * time.Minute)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for _, g := range db.Head().GetSegments() {
			if g.GetSealed() {
				require.Len(t, g.GetRuns(), 1, "segment %d", g.GetId())
			}
		}
		m.require(t, db)
		stopSecond()
		require.NoError(t, <-done)
		require.Regexp(t, `level=INFO msg=compacted job=.* bytes_in=\d+ bytes_out=\d+ records=\d+ took=\d`, logged.buf.String(), "each job that is done is told of")
	})
}

// A compactor that dies says nothing: the next one waits for a beat. One that is closed is followed at once.
func TestCompactorOfAWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		store := fault.New(newStore(), func(context.Context, fault.Op) fault.Plan {
			if dead.Load() {
				return fault.Refuse(errors.New("the process is dead"))
			}
			return fault.Plan{}
		})
		o := simulatedOptions()
		takesOver := func(epoch uint64, after time.Duration) {
			began := time.Now()
			db := openTest(t, store, o)
			for !db.Status().Compaction.Working {
				time.Sleep(time.Second)
			}
			require.Equal(t, epoch, db.Status().Compaction.Epoch)
			require.InDelta(t, after.Seconds(), time.Since(began).Seconds(), (2 * watchEvery).Seconds())
			if epoch == 2 {
				dead.Store(true) // a context that has ended would leave it the time to say so
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				require.Error(t, db.Close(ctx))
				dead.Store(false)
				return
			}
			require.NoError(t, db.Close(t.Context()))
			require.Zero(t, db.Head().GetCompactorBeat())
		}
		takesOver(1, 0)
		takesOver(2, 0)
		takesOver(3, takeOverAfter)
	})
}

// A writer leaves the work to a compactor that lives elsewhere.
func TestWriterLeavesCompactionToALiveCompactor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		require.ErrorIs(t, Compact(t.Context(), store, CompactOptions{}), manifest.ErrNoLog)
		o := simulatedOptions()
		o.DisableCompaction = true
		require.NoError(t, openTest(t, store, o).Close(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Compact(ctx, store, CompactOptions{SegmentBytes: o.SegmentBytes, Env: simulatedEnv()}) }()
		time.Sleep(time.Minute)
		o.DisableCompaction = false
		db := openTest(t, store, o)
		time.Sleep(10 * time.Minute)
		require.False(t, db.Status().Compaction.Working)
		cancel()
		require.NoError(t, <-done)
		time.Sleep(2 * time.Minute)
		require.True(t, db.Status().Compaction.Working)
		require.Equal(t, uint64(2), db.Status().Compaction.Epoch)
	})
}

// A job that fails backs off and says so; it neither stops other jobs nor leaves
// garbage (F27, F29).
func TestFailingCompactionBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		o := simulatedOptions()
		o.RecentBytes = 1 << 30 // reads need no table
		o.DisableCompaction = true
		db := openTest(t, store, o)
		var m model
		appendRandom(t, db, &m, rand.New(rand.NewPCG(9, 10)), 900)
		require.NoError(t, db.Flush(t.Context()))
		require.Greater(t, len(db.Head().GetSegments()), 3)
		bad := db.Head().GetSegments()[1].GetRuns()[0].GetTables()[0].GetRef().ID().Name()
		obj, err := store.Get(t.Context(), bad, objstore.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, db.Close(t.Context()))
		require.NoError(t, store.Delete(t.Context(), []string{bad}))
		damaged := append([]byte(nil), obj.Body...)
		damaged[10] ^= 1
		_, err = store.Put(t.Context(), bad, damaged, objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)

		o.DisableCompaction = false
		db, err = Open(t.Context(), store, o)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		synctest.Wait() // a try may begin at this very moment
		s := db.Status()
		require.NotZero(t, s.Compaction.Jobs, "other segments are compacted")
		require.Greater(t, s.Compaction.Failures, uint64(5))
		require.Less(t, s.Compaction.Failures, uint64(60), "it backs off")
		in, err := Inspect(t.Context(), store)
		require.NoError(t, err)
		require.Zero(t, in.Totals.Unnamed, "outputs of failed jobs are deleted")
		require.NoError(t, db.Close(t.Context()))

		require.NoError(t, store.Delete(t.Context(), []string{bad}))
		_, err = store.Put(t.Context(), bad, obj.Body, objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)
		db = openTest(t, store, o)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, db.Status().Compaction.Debt, "mended: it goes on")
		m.require(t, db)
	})
}
