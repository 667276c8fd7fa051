package fuzz

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// LOG, MANIFEST and opening.

func TestF11CrashInTheMiddleOfReplay(t *testing.T) {
	failure(t, "every store operation of the open fails once, before and after it is applied", func(t *testing.T) {
		r := newRig(t)
		var want []string
		o := options()
		o.WALObjectBytes = 1 // an object a batch
		db := r.open(o)
		for i := range 40 {
			v := fmt.Sprint(i, string(bytes.Repeat([]byte{'x'}, 600)))
			want = append(want, v)
			mustAppend(t, db, v)
		}
		kill(db)
		for _, applied := range []bool{false, true} {
			for n := 0; ; n++ {
				// The open dies at its operation n and is tried again on what it left.
				dead := r.crashed()
				rule := fault.FailNth(n, applied, nil)
				dead.rule(func(ctx context.Context, op fault.Op) fault.Plan {
					if rule.Hit() {
						return fault.Refuse(errNetwork) // the process is gone
					}
					return rule.Hook(ctx, op)
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				first, err := engine.Open(ctx, dead.store, tinyOptions())
				cancel()
				if err == nil {
					kill(first)
				}
				next := dead.crashed().open(tinyOptions())
				require.Equal(t, want, read(t, next), "n=%d applied=%v", n, applied)
				kill(next)
				if !rule.Hit() {
					require.Greater(t, n, 20, "the open was swept whole")
					break
				}
			}
		}
	})
}

func TestF18LostAnswerOfACommit(t *testing.T) {
	for name, plan := range map[string]fault.Plan{
		"applied, answer lost":  fault.Lose(errNetwork),
		"applied, then refused": fault.Lose(objstore.ErrPrecondition),
		"not applied":           fault.Refuse(errNetwork),
		"conflict":              fault.Refuse(objstore.ErrConflict),
	} {
		failure(t, name, func(t *testing.T) {
			r := newRig(t)
			db := r.open(options())
			mustAppend(t, db, "a")
			r.rule(once(putOf(manifestName), plan))
			require.NoError(t, db.Flush(t.Context()))
			head := db.Head()
			require.Len(t, head.GetSegments()[0].GetRuns(), 1, "added once")
			require.Equal(t, uint64(1), head.GetFlushedEnd())
			mustAppend(t, db, "b")
			require.NoError(t, db.Close(t.Context()))
			require.Equal(t, []string{"a", "b"}, read(t, r.open(options())))
		})
	}
}

func TestF20StoreIgnoresConditions(t *testing.T) {
	for _, which := range []string{"all", "IfAbsent", "IfMatch"} {
		failure(t, which, func(t *testing.T) {
			r := newRig(t)
			r.rule(func(_ context.Context, op fault.Op) fault.Plan {
				hit := op.Kind == fault.Put && (which == "all" ||
					which == "IfAbsent" && op.PutOptions.IfAbsent || which == "IfMatch" && op.PutOptions.IfMatch != "")
				return fault.Plan{IgnoreConditions: hit}
			})
			_, err := engine.Open(t.Context(), r.store, options())
			require.ErrorIs(t, err, objstore.ErrNoConditionalWrites)
			page, err := r.mem.List(t.Context(), "", "", 0)
			require.NoError(t, err)
			require.Empty(t, page.Entries, "no log was created, the probe was removed")
		})
	}
}

func TestF35F37ReadsOfTables(t *testing.T) {
	failure(t, "a failed read is tried again; a short body is never believed", func(t *testing.T) {
		r := newRig(t)
		o := tinyOptions()
		db := r.open(o)
		values := numbered("v", 200)
		for _, v := range values {
			mustAppend(t, db, v)
		}
		require.NoError(t, db.Flush(t.Context()))
		sst := func(op fault.Op) bool {
			id, ok := base.ParseObjectName(op.Name)
			return op.Kind == fault.Get && ok && id.Kind == base.KindSST
		}
		r.rule(once(sst, fault.Refuse(errNetwork)))
		require.Equal(t, values, read(t, db))
		r.heal()

		r.rule(once(sst, fault.Truncate(10)))
		require.Equal(t, values, read(t, db), "it is read again")
		r.heal()
		_ = db.Close(t.Context())
		db = r.open(o) // nothing is in a cache
		r.rule(fault.On(sst, fault.Always(fault.Truncate(10))))
		_, err := tryRead(db)
		require.ErrorIs(t, err, engine.ErrCorrupt)
		r.heal()
		require.Equal(t, values, read(t, db), "nothing wrong was kept in a cache")

		noticed := 0
		for at := range 300 {
			r.rule(once(sst, fault.FlipByte(at)))
			got, err := tryRead(db)
			if err != nil {
				require.ErrorIs(t, err, engine.ErrCorrupt)
				noticed++
			} else {
				require.Equal(t, values, got, "the byte belongs to a part that was not needed")
			}
			r.heal()
			require.Equal(t, values, read(t, db))
		}
		require.Greater(t, noticed, 10)

		page, err := r.mem.List(t.Context(), base.ObjectPrefix(0, base.KindSST), "", 1)
		require.NoError(t, err)
		gone := page.Entries[0].Name
		obj, err := r.mem.Get(t.Context(), gone, objstore.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, r.mem.Delete(t.Context(), []string{gone}))
		_, err = tryRead(db)
		require.ErrorIs(t, err, objstore.ErrNotFound)
		require.ErrorContains(t, err, gone)
		_, err = r.mem.Put(t.Context(), gone, obj.Body, objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)
	})
}

func TestF38MoreThanAThousandWALObjects(t *testing.T) {
	failure(t, "the listing is paged", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		values := numbered("v", 2500)
		for _, v := range values {
			_, err := db.Append(t.Context(), batch(v), engine.AppendOptions{Ack: engine.Memory})
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, db.WaitDurable(t.Context(), 2499))
		kill(db)
		page, err := r.mem.List(t.Context(), base.WALEpochPrefix(0, 1), "", 0)
		require.NoError(t, err)
		require.True(t, page.More)
		next := r.open(options())
		require.Equal(t, values, read(t, next))
		require.Equal(t, uint64(2500), next.Status().Recovered)
	})
}

func TestF38MoreThanAThousandOfEverything(t *testing.T) {
	failure(t, "recovery and collection read all pages", func(t *testing.T) {
		const many = objstore.MaxListPage + 500
		r := newRig(t)
		o := tinyOptions()
		o.TableBytes, o.SegmentBytes, o.MemtableBytes = 1, 1<<30, 1<<30 // a table a key
		db := r.open(o)
		var recs []engine.Record
		for i := range many {
			recs = append(recs, engine.Record{Key: fmt.Appendf(nil, "key %d", i), Value: []byte("v")})
		}
		_, err := db.Append(t.Context(), recs, engine.AppendOptions{})
		require.NoError(t, err)
		require.NoError(t, db.Flush(t.Context()))
		for i := range many { // in the WAL when the process dies
			_, err := db.Append(t.Context(), batch(fmt.Sprint(i)), engine.AppendOptions{Ack: engine.Memory})
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, db.WaitDurable(t.Context(), 2*many-1))
		kill(db)
		kill(r.open(o))
		put := func(name string) {
			_, err := r.mem.Put(t.Context(), name, make([]byte, 100), objstore.PutOptions{IfAbsent: true})
			require.NoError(t, err)
		}
		for i := range uint64(many) { // what crashes have left
			for _, kind := range []base.Kind{base.KindSST, base.KindIndex, base.KindState, base.KindPin} {
				id := base.ObjectID{Kind: kind, Role: base.RoleWriter, Epoch: 1, ULID: base.SystemEnv().NewULID()}
				if kind == base.KindSST {
					id.Segment = 1
				}
				put(id.Name())
			}
			put(wal(2, 2+i)) // behind a fence
			put(base.ProbeName(0, base.SystemEnv().NewULID()))
		}
		time.Sleep(25 * time.Hour) // simulated: probe objects are old
		db = r.open(o)
		require.Equal(t, numbered("", many), read(t, db))
		got, err := db.CollectGarbage(t.Context())
		require.NoError(t, err)
		require.Equal(t, uint64(4*many), got.Orphans)
		require.Greater(t, got.WALObjects, uint64(many+many/2), "those that were replayed, and the dead ones")
		require.Equal(t, uint64(many), got.Probes)
		names, err := r.witness.unnamed()
		require.NoError(t, err)
		require.Empty(t, names)
		n := 0
		for o := (engine.KeysOptions{Prefix: []byte("key"), Limit: 400}); ; {
			page, err := db.Keys(t.Context(), o)
			require.NoError(t, err)
			if n += len(page.Keys); !page.More {
				break
			}
			o.After = page.Keys[len(page.Keys)-1]
		}
		require.Equal(t, many, n)
	})
}

func TestF43SequencesAbove32Bits(t *testing.T) {
	failure(t, "64 bits everywhere", func(t *testing.T) {
		r := newRig(t)
		o := tinyOptions()
		db := r.open(o)
		require.NoError(t, db.Close(t.Context()))
		const far = uint64(1) << 40
		snap, err := manifest.Load(t.Context(), r.mem, simEnv(), 0)
		require.NoError(t, err)
		_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: r.mem, Env: simEnv(), Start: snap}, manifest.Edit{
			Name: "pretend that many sequences were used",
			Apply: func(s *manifest.State) error {
				next := far
				s.CleanNext, s.SeqLimit = &next, far+1
				return nil
			},
		})
		require.NoError(t, err)
		next := r.open(o)
		values := numbered("v", 300)
		for i, v := range values {
			require.Equal(t, far+uint64(i), mustAppend(t, next, v).First)
		}
		kill(next)
		again := r.open(o)
		require.Equal(t, values, read(t, again))
		it := again.Scan(t.Context(), []byte("k"), engine.From(far+299), engine.ScanOptions{})
		n := 0
		for rec := range it.All() {
			require.Equal(t, far+299, rec.Sequence)
			n++
		}
		require.NoError(t, it.Err())
		require.Equal(t, 1, n)
		count, err := again.Count(t.Context(), []byte("k"), engine.Between(far+10, far+20))
		require.NoError(t, err)
		require.Equal(t, uint64(10), count)
	})
}

func TestF45StalledOpener(t *testing.T) {
	failure(t, "finds out that it was passed before it serves", func(t *testing.T) {
		r := newRig(t)
		w0 := r.open(options())
		mustAppend(t, w0, "acked")
		// A raises the epoch to 2 and stalls at its listing of epoch 1.
		isList := func(op fault.Op) bool { return op.Kind == fault.List && op.Name == base.WALEpochPrefix(0, 1) }
		stalled := r.hold(isList, nil)
		opened := make(chan error, 1)
		go func() {
			db, err := engine.Open(t.Context(), r.store, options())
			if err == nil {
				kill(db)
			}
			opened <- err
		}()
		<-stalled.Caught()
		// B raises it to 3, fences, recovers, serves and flushes; what is below
		// position is collected.
		b := r.open(options())
		mustAppend(t, b, "b")
		require.NoError(t, b.Flush(t.Context()))
		require.NoError(t, r.mem.Delete(t.Context(), []string{wal(1, 1)}))
		require.NoError(t, stalled.Apply(t.Context()))
		require.ErrorIs(t, <-opened, engine.ErrFenced)
		require.Equal(t, []string{"acked", "b"}, read(t, b))
		mustAppend(t, b, "c")
		require.NoError(t, b.Err())
	})
}

func TestF46TwoUncleanOpensWithoutADurableRecord(t *testing.T) {
	failure(t, "no sequence is used twice", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.Ack, o.ReadVisibility = engine.Memory, engine.Memory
		used := map[uint64]bool{}
		for range 5 {
			db := r.open(o)
			r.rule(fault.On(func(op fault.Op) bool { return op.Kind == fault.Put }, fault.Always(fault.Refuse(errNetwork))))
			for range 3 {
				res := mustAppend(t, db, "v")
				require.False(t, used[res.First], "sequence %d", res.First)
				used[res.First] = true
			}
			r.heal()
			r = r.crashed()
		}
	})
}

func TestF48FencedBehindALandedObjectWhoseAnswerIsOut(t *testing.T) {
	failure(t, "the caller hears unknown", func(t *testing.T) {
		r := newRig(t)
		old := r.open(options())
		answer := make(chan struct{})
		r.rule(once(putOf(wal(1, 1)), fault.Plan{After: func(ctx context.Context) error {
			select {
			case <-answer:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}))
		p := start(t.Context(), old, "landed")
		require.True(t, p.pending())
		next := r.open(options()) // fences 1/2, replays 1/1
		q := start(t.Context(), old, "fenced")
		require.ErrorIs(t, q.wait(), engine.ErrFenced)
		require.ErrorIs(t, p.wait(), engine.ErrFenced)
		require.Equal(t, engine.Unknown, outcome(t, p.err))
		close(answer)
		require.Equal(t, []string{"landed"}, read(t, next))
	})
}

func TestF53CleanMarkIsDroppedByTheOpen(t *testing.T) {
	failure(t, "an open that crashes is unclean", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		require.NoError(t, db.Close(t.Context()))
		o := options()
		o.Ack, o.ReadVisibility = engine.Memory, engine.Memory
		second := r.open(o)
		require.Equal(t, uint64(1), second.Frontier(), "a clean close skips nothing")
		require.Nil(t, second.Head().CleanNext)
		r.rule(fault.On(func(op fault.Op) bool { return op.Kind == fault.Put }, fault.Always(fault.Refuse(errNetwork))))
		seen := mustAppend(t, second, "seen")
		third := r.crashed().open(options())
		require.Greater(t, third.Frontier(), seen.Last)
		r.heal()
	})
	failure(t, "an open whose commit was applied, and that never heard of it, has used the mark up", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		require.NoError(t, db.Close(t.Context()))
		limit := db.Head().GetSeqLimit()
		var dead atomic.Bool
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			switch {
			case dead.Load():
				return fault.Refuse(errNetwork)
			case putOf(manifestName)(op):
				dead.Store(true)
				return fault.Lose(errNetwork)
			}
			return fault.Plan{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := engine.Open(ctx, r.store, options())
		require.Error(t, err)
		next := r.crashed().open(options())
		require.GreaterOrEqual(t, next.Frontier(), limit, "the dead one might have served")
		require.Equal(t, []string{"a"}, read(t, next))
	})
}

func TestF54FlushesCommitInOrder(t *testing.T) {
	for _, applied := range []bool{false, true} {
		failure(t, fmt.Sprintf("the second waits for the first, applied=%v", applied), func(t *testing.T) {
			r := newRig(t)
			db := r.open(options())
			caught, answer := make(chan struct{}), make(chan struct{})
			wait := func(context.Context) error { close(caught); <-answer; return nil }
			plan := fault.Plan{Before: wait}
			if applied {
				plan = fault.Plan{After: wait}
			}
			r.rule(once(func(op fault.Op) bool {
				id, ok := base.ParseObjectName(op.Name)
				return op.Kind == fault.Put && ok && id.Kind == base.KindSST
			}, plan))
			mustAppend(t, db, "1")
			flushed := make(chan error, 2)
			go func() { flushed <- db.Flush(t.Context()) }()
			<-caught
			mustAppend(t, db, "2")
			go func() { flushed <- db.Flush(t.Context()) }()
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Zero(t, db.Head().GetFlushedEnd())
			require.Equal(t, []string{"1", "2"}, read(t, db), "what is frozen stays readable")
			require.Equal(t, []string{"1", "2"}, read(t, r.crashed().open(options())))
			close(answer)
			require.NoError(t, <-flushed)
			require.NoError(t, <-flushed)
			runs := db.Head().GetSegments()[0].GetRuns()
			require.Len(t, runs, 2)
			require.Equal(t, runs[0].GetEnd(), runs[1].GetStart())
			require.Equal(t, []string{"1", "2"}, read(t, db))
		})
	}
}

func TestF55LogWithoutManifest(t *testing.T) {
	failure(t, "damage; nothing is created", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		require.NoError(t, db.Close(t.Context()))
		lost := r.crashed()
		require.NoError(t, lost.mem.Delete(t.Context(), []string{manifestName}))
		before := lost.mem.Len()
		_, err := engine.Open(t.Context(), lost.store, options())
		require.ErrorIs(t, err, manifest.ErrMissingManifest)
		require.ErrorContains(t, err, manifestName)
		require.Equal(t, before, lost.mem.Len())

		lost = r.crashed()
		require.NoError(t, lost.mem.Delete(t.Context(), []string{base.LogName}))
		_, err = engine.Open(t.Context(), lost.store, options())
		require.ErrorIs(t, err, manifest.ErrMissingLog)
	})
}

// A log that has lost both heads looks like none. A new one in its place would sweep what is left of it.
func TestF55BothHeadsAreLost(t *testing.T) {
	failure(t, "damage; nothing is created", func(t *testing.T) {
		r := newRig(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		require.NoError(t, db.Close(t.Context()))
		lost := r.crashed()
		require.NoError(t, lost.mem.Delete(t.Context(), []string{manifestName, base.LogName}))
		before := lost.mem.Len()
		_, err := engine.Open(t.Context(), lost.store, options())
		require.ErrorIs(t, err, manifest.ErrMissingHeads)
		require.Equal(t, before, lost.mem.Len())
		report, err := engine.Check(t.Context(), lost.mem, engine.CheckOptions{})
		require.NoError(t, err)
		require.Len(t, report.Damage, 1)
		require.Equal(t, engine.DamageMissing, report.Damage[0].Kind)
		require.Equal(t, manifestName, report.Damage[0].Object)
	})
}

func TestF56CrashLoop(t *testing.T) {
	failure(t, "opening stays as fast as it was", func(t *testing.T) {
		for _, records := range []int{0, 1} {
			r := newRig(t)
			var counter fault.Counter
			var first, last fault.Counts
			// Opens that die before they can tidy up: everything but the epoch's commit fails.
			for i := range 120 {
				r.rule(counter.Hook)
				db, err := engine.Open(t.Context(), r.store, options())
				require.NoError(t, err)
				last = counter.Take().Requests()
				if i == 2 {
					first = last
				}
				for range records {
					mustAppend(t, db, "v")
				}
				kill(db)
				r.heal()
			}
			// The collector's first round may or may not have begun when it was killed.
			total := func(c fault.Counts) int { return c.Put + c.Get + c.List + c.Delete }
			require.InDelta(t, total(first), total(last), 5, "records=%d", records)
			check(t, r.mem)
		}
	})
	for _, flushed := range []bool{false, true} {
		failure(t, fmt.Sprintf("opens that die before they serve, flushed before=%v", flushed), func(t *testing.T) {
			r := newRig(t)
			db := r.open(options())
			mustAppend(t, db, "a")
			if flushed {
				require.NoError(t, db.Flush(t.Context()))
			}
			kill(db)
			// Each takes an epoch and dies at the first listing of one that it fences.
			for range 200 {
				dieAtListing(t, r, 1)
			}
			dieAtListing(t, r, 150)
			var counter fault.Counter
			r.rule(counter.Hook)
			next := r.open(options())
			require.Equal(t, []string{"a"}, read(t, next))
			if lists := counter.Take().List; flushed {
				require.Less(t, lists, 100, "one that dies half-way notes which epochs were empty")
			} else {
				require.Less(t, lists, 250, "what comes before them is still to be replayed")
			}
			kill(next)
			again := r.open(options())
			require.Less(t, counter.Take().List, 5, "the next one need not look at them again")
			require.Equal(t, []string{"a"}, read(t, again))
		})
	}
}

// dieAtListing opens the log in a process that is gone when it asks for its nth listing of an epoch.
func dieAtListing(t *testing.T, r *rig, n int64) {
	var listings atomic.Int64
	r.rule(func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind == fault.List && op.Name != base.WALPrefix(0) {
			listings.Add(1)
		}
		if listings.Load() >= n {
			return fault.Refuse(errNetwork)
		}
		return fault.Plan{}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := engine.Open(ctx, r.store, options())
	require.Error(t, err)
	r.heal()
}
