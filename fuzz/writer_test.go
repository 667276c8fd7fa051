package fuzz

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	walfile "github.com/annalsdb/annals/wal"
)

// Writer, WAL and ambiguity.

func TestF1LostAnswerOfAWALPut(t *testing.T) {
	failure(t, "read back", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		r.rule(once(putOf(wal(1, 1)), fault.Lose(errNetwork)))
		mustAppend(t, db, "a", "b")
		mustAppend(t, db, "c")
		require.Equal(t, []string{"a", "b", "c"}, read(t, db))
		next := r.crashed().open(options())
		require.Equal(t, []string{"a", "b", "c"}, read(t, next))
	})
}

func TestF2RefusedByAFenceOrAnotherWriter(t *testing.T) {
	failure(t, "fence", func(t *testing.T) {
		r := newRig(t)
		old := r.open(options())
		mustAppend(t, old, "a")
		next := r.open(options())
		_, err := old.Append(t.Context(), batch("lost"), engine.AppendOptions{})
		require.ErrorIs(t, err, engine.ErrFenced)
		require.Equal(t, engine.Unknown, outcome(t, err))
		<-old.Failed()
		require.ErrorIs(t, old.Err(), engine.ErrFenced)
		_, err = old.Append(t.Context(), batch("late"), engine.AppendOptions{})
		require.ErrorIs(t, err, engine.ErrFenced)
		require.Equal(t, engine.NotAppended, outcome(t, err))
		_, err = tryRead(old)
		require.ErrorIs(t, err, engine.ErrFenced)
		require.Error(t, old.Ready(t.Context()))
		require.Equal(t, []string{"a"}, read(t, next))
	})
	failure(t, "another writer's record", func(t *testing.T) {
		r := newRig(t)
		db, err := engine.Open(t.Context(), r.store, options())
		require.NoError(t, err)
		defer kill(db)
		head := db.Head()
		other := walfile.NewBuilder(walfile.Header{
			Identity: walfile.Identity{LogID: [16]byte(head.GetLogId())}, Writer: walfile.WriterID{1}, Epoch: 1, ID: 1, Segment: 1,
		}, nil)
		other.AddBatch(0, 1, batch("other"))
		_, err = r.mem.Put(t.Context(), wal(1, 1), other.Finish(), objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)
		_, err = db.Append(t.Context(), batch("mine"), engine.AppendOptions{})
		require.ErrorIs(t, err, engine.ErrFenced)
		require.Equal(t, engine.Unknown, outcome(t, err))
		<-db.Failed()
		require.Equal(t, []string{"other"}, read(t, r.crashed().open(options())))
	})
}

func TestF3ConflictAnswer(t *testing.T) {
	failure(t, "409", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		r.rule(once(putOf(wal(1, 1)), fault.Refuse(objstore.ErrConflict)))
		mustAppend(t, db, "a")
		require.Equal(t, []string{"a"}, read(t, db))
		require.NoError(t, db.Err())
	})
}

func TestF4TransientErrorOnAPut(t *testing.T) {
	failure(t, "retried; the caller's context bounds the caller's wait only", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		r.rule(fault.On(putOf(wal(1, 1)), fault.Always(fault.Refuse(errNetwork))))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p := start(ctx, db, "a")
		require.ErrorIs(t, p.wait(), context.DeadlineExceeded)
		require.Equal(t, engine.Unknown, outcome(t, p.err))
		require.Empty(t, read(t, db))
		r.heal()
		require.NoError(t, db.WaitDurable(t.Context(), 0))
		require.Equal(t, []string{"a"}, read(t, db))
		mustAppend(t, db, "b")
	})
}

func TestF5ZombieWakesWithAPreparedPut(t *testing.T) {
	for _, landsBehind := range []bool{false, true} {
		failure(t, map[bool]string{false: "at the fence", true: "behind the fence"}[landsBehind], func(t *testing.T) {
			r := newRig(t)
			old := r.open(options())
			mustAppend(t, old, "a")
			first := r.hold(putOf(wal(1, 2)), nil)
			p := start(t.Context(), old, "zombie")
			<-first.Caught()
			var second *fault.Held
			var q *pendingAppend
			if landsBehind {
				second = r.hold(putOf(wal(1, 3)), nil)
				q = start(t.Context(), old, "zombie 2")
				<-second.Caught()
			}
			next := r.open(options()) // fences 1/2
			mustAppend(t, next, "b")
			if landsBehind {
				require.NoError(t, second.Apply(t.Context()), "nothing is in its way behind the fence")
				require.True(t, q.pending(), "landed behind a gap: not durable")
			}
			require.ErrorIs(t, first.Apply(t.Context()), objstore.ErrPrecondition)
			require.ErrorIs(t, p.wait(), engine.ErrFenced)
			require.Equal(t, engine.Unknown, outcome(t, p.err))
			if q != nil {
				require.ErrorIs(t, q.wait(), engine.ErrFenced)
			}
			require.Equal(t, []string{"a", "b"}, read(t, next))
			require.Equal(t, []string{"a", "b"}, read(t, r.crashed().open(options())))
		})
	}
}

func TestF6LaterObjectsLandAnEarlierOneDoesNot(t *testing.T) {
	failure(t, "none is acknowledged, none is read", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		held := r.hold(putOf(wal(1, 2)), nil)
		one := start(t.Context(), db, "1")
		<-held.Caught()
		var rest []*pendingAppend
		for _, v := range []string{"2", "3"} {
			rest = append(rest, start(t.Context(), db, v))
			time.Sleep(5 * time.Millisecond) // simulated: another object
		}
		synctest.Wait()
		_, err := r.mem.Head(t.Context(), wal(1, 4))
		require.NoError(t, err, "1/3 and 1/4 have landed")
		require.True(t, one.pending() && rest[0].pending() && rest[1].pending())
		require.Equal(t, []string{"a"}, read(t, db))
		next := r.crashed().open(options())
		require.Equal(t, []string{"a"}, read(t, next))
		mustAppend(t, next, "b")
		require.Equal(t, []string{"a", "b"}, read(t, next))

		// Without a crash: once the first one lands, all are acknowledged.
		require.NoError(t, held.Apply(t.Context()))
		for _, p := range append(rest, one) {
			require.NoError(t, p.wait())
		}
		require.Equal(t, []string{"a", "1", "2", "3"}, read(t, db))
	})
}

func TestF7ManyOpenAtOnce(t *testing.T) {
	failure(t, "one serves, nothing acknowledged is lost", func(t *testing.T) {
		r := newRig(t)
		var acked []string
		for round := range 5 {
			const racers = 6
			dbs := make(chan *engine.DB, racers)
			for range racers {
				go func() {
					db, err := engine.Open(t.Context(), r.store, options())
					if err != nil {
						db = nil
					}
					dbs <- db
				}()
			}
			type result struct {
				value string
				err   error
			}
			results := make(chan result, racers)
			var open []*engine.DB
			for i := range racers {
				db := <-dbs
				if db == nil {
					results <- result{err: engine.ErrFenced}
					continue
				}
				open = append(open, db)
				go func() {
					value := string(rune('a'+round)) + string(rune('0'+i))
					_, err := db.Append(t.Context(), batch(value), engine.AppendOptions{})
					results <- result{value, err}
				}()
			}
			for range racers {
				if res := <-results; res.err == nil {
					acked = append(acked, res.value)
				}
			}
			time.Sleep(3 * time.Second) // simulated: everybody polls
			serving := 0
			for _, db := range open {
				if db.Err() == nil {
					serving++
				}
			}
			require.Equal(t, 1, serving)
			for _, db := range open {
				kill(db)
			}
		}
		db := r.open(options())
		require.Subset(t, read(t, db), acked)
		require.NotEmpty(t, acked)
	})
}

func TestF8AmbiguousFence(t *testing.T) {
	for name, plan := range map[string]fault.Plan{
		"applied, answer lost": fault.Lose(errNetwork),
		"not applied":          fault.Refuse(errNetwork),
		"conflict":             fault.Refuse(objstore.ErrConflict),
	} {
		failure(t, name, func(t *testing.T) {
			r := newRig(t)
			old := r.open(options())
			mustAppend(t, old, "a")
			r.rule(once(putOf(wal(1, 2)), plan))
			next := r.open(options())
			require.Equal(t, []string{"a"}, read(t, next))
			_, err := old.Append(t.Context(), batch("lost"), engine.AppendOptions{})
			require.ErrorIs(t, err, engine.ErrFenced)
			require.Equal(t, []string{"a"}, read(t, next))
		})
	}
}

func TestF9F10FlushNeverOvertakesTheWAL(t *testing.T) {
	failure(t, "the commit waits until the records are durable", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		r.rule(fault.On(putOf(wal(1, 2)), fault.Always(fault.Refuse(errNetwork))))
		p := start(t.Context(), db, "b")
		require.True(t, p.pending())
		flushed := make(chan error, 1)
		go func() { flushed <- db.Flush(t.Context()) }()
		time.Sleep(time.Minute) // simulated
		synctest.Wait()
		head := db.Head()
		require.Equal(t, uint64(1), head.GetPosition().GetId(), "position did not move")
		require.Zero(t, head.GetFlushedEnd())
		page, err := r.mem.List(t.Context(), base.ObjectPrefix(0, base.KindSST), "", 0)
		require.NoError(t, err)
		require.Len(t, page.Entries, 1, "the table is there already")
		require.Empty(t, flushed)
		r.heal()
		require.NoError(t, <-flushed)
		require.NoError(t, p.wait())
		require.Equal(t, uint64(3), db.Head().GetPosition().GetId())
		require.Equal(t, uint64(2), db.Head().GetFlushedEnd())
	})
}

func TestF12AcknowledgedIsReadableAtOnce(t *testing.T) {
	failure(t, "acknowledge after the commit point", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		for i := range 50 {
			woken := make(chan []string, 1)
			from := uint64(i)
			go func() {
				if err := db.Wait(context.Background(), []byte("k"), engine.From(from)); err != nil {
					woken <- nil
					return
				}
				values, _ := tryRead(db)
				woken <- values
			}()
			synctest.Wait()
			res := mustAppend(t, db, "v")
			require.Equal(t, from, res.First)
			require.Len(t, read(t, db), i+1)
			require.Len(t, <-woken, i+1)
			_, err := r.mem.Head(t.Context(), wal(1, from+1))
			require.NoError(t, err, "its object is in the store")
		}
	})
}

func TestF14DamagedWALObject(t *testing.T) {
	for name, damage := range map[string]func(body []byte) []byte{
		"flipped bit":      func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"truncated":        func(b []byte) []byte { return b[:len(b)-1] },
		"truncated to 0":   func([]byte) []byte { return nil },
		"cut to a fence's": func(b []byte) []byte { return b[:64] },
	} {
		failure(t, name, func(t *testing.T) {
			r := newRig(t)
			db := r.open(options())
			mustAppend(t, db, "a")
			mustAppend(t, db, "b")
			mustAppend(t, db, "c")
			after := r.crashed()
			name := wal(1, 2)
			obj, err := after.mem.Get(t.Context(), name, objstore.GetOptions{})
			require.NoError(t, err)
			_, err = after.mem.Put(t.Context(), name, damage(obj.Body), objstore.PutOptions{})
			require.NoError(t, err)
			_, err = engine.Open(t.Context(), after.store, options())
			require.ErrorIs(t, err, engine.ErrCorrupt)
			require.ErrorContains(t, err, name)
			report, err := engine.Check(t.Context(), after.mem, engine.CheckOptions{})
			require.NoError(t, err)
			require.ErrorContains(t, report.Err(), name)
		})
	}
	failure(t, "missing", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		mustAppend(t, db, "b")
		after := r.crashed()
		next := after.open(options())
		mustAppend(t, next, "c")
		// 1/1 is below position now; 2/1 is needed.
		again := after.crashed()
		require.NoError(t, again.mem.Delete(t.Context(), []string{wal(2, 1)}))
		db2, err := engine.Open(t.Context(), again.store, options())
		require.NoError(t, err, "the last object that is gone whole looks like one that was never written")
		require.Equal(t, []string{"a", "b"}, read(t, db2))
		kill(db2)
	})
	failure(t, "missing in the middle", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		for _, v := range []string{"a", "b", "c"} {
			mustAppend(t, db, v)
		}
		after := r.crashed()
		require.NoError(t, after.mem.Delete(t.Context(), []string{wal(1, 2)}))
		_, err := engine.Open(t.Context(), after.store, options())
		require.ErrorIs(t, err, engine.ErrCorrupt, "1/3 was made when 1/2 was in the store")
		require.ErrorContains(t, err, wal(1, 2))
		report, err := engine.Check(t.Context(), after.mem, engine.CheckOptions{})
		require.NoError(t, err)
		require.ErrorContains(t, report.Err(), wal(1, 2))
	})
}

func TestF15CloseWithTheStoreDown(t *testing.T) {
	failure(t, "returns within its context and says what is not durable", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		r.rule(fault.Always(fault.Refuse(errNetwork)))
		p := start(t.Context(), db, "b", "c")
		require.True(t, p.pending())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		err := db.Close(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "[1, 3)")
		require.Less(t, time.Since(began), 11*time.Second)
		require.ErrorIs(t, p.wait(), engine.ErrClosed)
		require.Equal(t, engine.Unknown, outcome(t, p.err))
		r.heal()
		require.Equal(t, []string{"a"}, read(t, r.open(options())))
	})
}

func TestF16VisibleInMemoryThenLost(t *testing.T) {
	failure(t, "those sequences are never used again", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.Ack, o.ReadVisibility = engine.Memory, engine.Memory
		db := r.open(o)
		mustAppend(t, db, "a")
		require.NoError(t, db.WaitDurable(t.Context(), 0))
		r.rule(fault.On(func(op fault.Op) bool { return op.Kind == fault.Put }, fault.Always(fault.Refuse(errNetwork))))
		seen := mustAppend(t, db, "seen", "seen too")
		require.Equal(t, []string{"a", "seen", "seen too"}, read(t, db))
		next := r.crashed().open(options())
		require.Equal(t, []string{"a"}, read(t, next))
		res := mustAppend(t, next, "b")
		require.Greater(t, res.First, seen.Last)
		require.Equal(t, []string{"a", "b"}, read(t, next))
	})
}

func TestF17ClockSteps(t *testing.T) {
	failure(t, "timestamps never fall and never run away; sealing goes on", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.SegmentInterval = time.Hour
		o.SegmentMinBytes = 1
		var off time.Duration
		o.Env.Now = func() time.Time { return time.Now().Add(off) }
		db := r.open(o)
		last := mustAppend(t, db, "0").Timestamp
		storeTime := func() int64 {
			now, err := r.mem.ServerTime(t.Context())
			require.NoError(t, err)
			return now.UnixMilli()
		}
		for _, step := range []time.Duration{-time.Hour, 365 * 24 * time.Hour, -2 * 365 * 24 * time.Hour, time.Minute, 0} {
			off = step
			for range 3 {
				time.Sleep(time.Second)
				res := mustAppend(t, db, "x")
				require.GreaterOrEqual(t, res.Timestamp, last, "step %v", step)
				require.LessOrEqual(t, res.Timestamp, storeTime()+int64(5*time.Minute/time.Millisecond), "step %v", step)
				last = res.Timestamp
			}
		}
		off = 365 * 24 * time.Hour
		page, err := db.Segments(t.Context(), engine.SegmentsOptions{})
		require.NoError(t, err)
		require.Len(t, page.Segments, 1, "age is elapsed time, not what the clock says")
		off = -time.Hour
		time.Sleep(time.Hour)
		mustAppend(t, db, "y")
		require.NoError(t, db.Flush(t.Context()))
		page, err = db.Segments(t.Context(), engine.SegmentsOptions{})
		require.NoError(t, err)
		require.Len(t, page.Segments, 2)
		require.InDelta(t, storeTime(), page.Segments[0].SealedAt.UnixMilli(), 60_000, "sealed at store time")
	})
	failure(t, "a store whose answers take long does not move the bound", func(t *testing.T) {
		r := newRig(t)
		slow := fault.Plan{Before: func(ctx context.Context) error { return simEnv().Sleep(ctx, 30*time.Second) }}
		r.rule(fault.On(putOf(manifestName), fault.Always(slow)))
		o := options()
		o.Env.Now = func() time.Time { return time.Now().Add(365 * 24 * time.Hour) }
		db := r.open(o)
		r.heal()
		res := mustAppend(t, db, "x")
		now, err := r.mem.ServerTime(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, res.Timestamp, now.Add(5*time.Minute).UnixMilli())
	})
}
