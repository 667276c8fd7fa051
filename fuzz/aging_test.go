package fuzz

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// agingOptions make all that happens to segments as they age happen within a few
// appends and minutes: two runs are relieved, two small segments merged, and a
// segment is full with one batch.
func agingOptions() engine.Options {
	return engine.Options{
		FlushInterval: time.Millisecond, RecentBytes: 1,
		TableBytes: 2 << 10, BlockBytes: 256, CacheBytes: 1 << 20,
		MaxRuns: 2, SegmentBytes: agingSegment, SegmentMinBytes: 1, SegmentInterval: 10 * time.Second,
		Retention: agingRetention, RetentionInterval: 17 * time.Second,
		StaleAfter: 5 * time.Second, GCGrace: agingGrace, GCInterval: 13 * time.Second,
	}
}

const (
	agingSegment   = 4 << 10
	agingRetention = 2 * time.Minute
	agingGrace     = 66 * time.Second
	// takesOver is how long a compactor's epoch outlives it, and a little more.
	takesOver = 65 * time.Second
)

// limitsOf returns the planner's limits under options.
func limitsOf(o engine.Options) compaction.Limits {
	l := compaction.Limits{SegmentBytes: o.SegmentBytes, MergeWithin: o.Retention / 10, TableBytes: o.TableBytes}
	if o.MaxRuns > 0 {
		l.FanIn = min(compaction.DefaultFanIn, max(2, o.MaxRuns))
	}
	return l
}

// agingSteps are the steps that a log goes through as its segments age.
var agingSteps = []string{
	"writer", "compactor", "beat", "flush", "seal", "clean close",
	"relieve", "consolidate", "merge", "group", "regroup",
	"drop", "partial group drop", "whole group drop", "stamp", "forget",
}

// seededEnv is an environment on simulated time whose randomness is the same in every
// run.
func seededEnv() *base.Env { return seededEnvOf(1) }

func seededEnvOf(n byte) *base.Env {
	env := simEnv()
	var mu sync.Mutex
	seed := rand.NewChaCha8([32]byte{n})
	env.Random = func(p []byte) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = seed.Read(p) // never fails
	}
	return env
}

// agingWork is a fixed workload of a few simulated minutes in which segments go
// through their whole life. Whoever runs it breaks the store at one of its
// operations. The model notes what it attempted.
type agingWork struct {
	t       *testing.T
	store   objstore.Store
	env     *base.Env
	o       engine.Options
	model   model
	durable uint64 // every sequence below was acknowledged as durable
	values  int
	dense   bool // values do not compress: tables have them as they are
	// retryOpen tries a failed open once more: the one fault is over then.
	retryOpen bool
	db        *engine.DB   // the last one that was opened
	opened    []*engine.DB // all of them
}

func newAgingWork(t *testing.T, store objstore.Store) *agingWork {
	return &agingWork{t: t, store: store, env: seededEnv(), o: agingOptions()}
}

// killAll ends all that the workload opened.
func (w *agingWork) killAll() {
	for _, db := range w.opened {
		kill(db)
	}
}

// run returns the first error.
func (w *agingWork) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		w.open, w.relieved, w.large(9), w.small, w.read, w.reopen, w.large(1), w.expire, w.read, w.tail,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// relieved makes a segment whose runs are merged while it is active, and again once
// it is sealed, because it has too many.
func (w *agingWork) relieved(ctx context.Context) error {
	for i, pause := range []time.Duration{0, 3 * time.Second, time.Second} {
		if err := w.append(ctx, engine.Durable, 300+i); err != nil {
			return err
		}
		if err := w.db.Flush(ctx); err != nil {
			return err
		}
		if err := w.sleep(ctx, pause); err != nil {
			return err
		}
	}
	if err := w.append(ctx, engine.Durable, 300); err != nil { // seals
		return err
	}
	return w.sleep(ctx, 3*time.Second)
}

// large makes segments that are full: those that are grouped.
func (w *agingWork) large(n int) func(context.Context) error {
	return func(ctx context.Context) error {
		for range n {
			if err := w.append(ctx, engine.Durable, agingSegment/len(sweepKeys)); err != nil {
				return err
			}
			if err := w.sleep(ctx, 4*time.Second); err != nil {
				return err
			}
		}
		return nil
	}
}

// small makes segments that are sealed by the clock, and merged.
func (w *agingWork) small(ctx context.Context) error {
	for range 3 {
		if err := w.append(ctx, engine.Memory, 20); err != nil {
			return err
		}
		if err := w.sleep(ctx, 11*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// reopen closes cleanly and opens again. The new process compacts a minute later.
func (w *agingWork) reopen(ctx context.Context) error {
	if err := w.db.Close(ctx); err != nil {
		return err
	}
	w.durable = w.model.next
	return w.open(ctx)
}

// expire waits until retention has dropped segments one after the other, and the
// collector has deleted what they consisted of.
func (w *agingWork) expire(ctx context.Context) error {
	if err := w.sleep(ctx, agingRetention/2); err != nil {
		return err
	}
	if err := w.append(ctx, engine.Durable, 100); err != nil {
		return err
	}
	return w.sleep(ctx, agingRetention/2-5*time.Second)
}

// tail leaves runs, records in the WAL, and some that are in memory only.
func (w *agingWork) tail(ctx context.Context) error {
	if err := w.db.Flush(ctx); err != nil {
		return err
	}
	if err := w.append(ctx, engine.Durable, 10); err != nil {
		return err
	}
	return w.append(ctx, engine.Memory, 10)
}

// sleep lets simulated time pass.
func (w *agingWork) sleep(ctx context.Context, d time.Duration) error {
	return w.env.Sleep(ctx, d)
}

func (w *agingWork) open(ctx context.Context) error {
	err := w.openOn(ctx, w.store)
	if err != nil && w.retryOpen {
		require.ErrorIs(w.t, err, errNetwork, "an open may fail because of the store only")
		w.retryOpen = false
		err = w.openOn(ctx, w.store)
	}
	return err
}

// openOn opens the log and makes the model go on from there.
func (w *agingWork) openOn(ctx context.Context, store objstore.Store) error {
	o := w.o
	o.Env = w.env
	db, err := engine.Open(ctx, store, o)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	w.db = db
	w.opened = append(w.opened, db)
	next := db.Status().Next
	require.GreaterOrEqual(w.t, next, w.model.next, "I3")
	w.model.next = next
	return nil
}

// append appends a batch of values that hardly compress.
func (w *agingWork) append(ctx context.Context, ack engine.Durability, size int) error {
	var recs []engine.Record
	for _, key := range sweepKeys {
		w.values++
		value := noise(w.values, size)
		if w.dense {
			value = string(randomBytes(w.values, size))
		}
		recs = append(recs, engine.Record{Key: []byte(key), Value: fmt.Appendf(nil, "%d %s", w.values, value)})
	}
	first := w.model.next
	res, err := w.db.Append(ctx, recs, engine.AppendOptions{Ack: ack})
	if err != nil {
		if outcome(w.t, err) == engine.Unknown {
			w.model.add(first, 0, recs)
		}
		return err
	}
	require.Equal(w.t, first, res.First)
	w.model.add(first, res.Timestamp, recs)
	if ack == engine.Durable {
		w.durable = w.model.next
	}
	return nil
}

// noise returns n characters that compress to half at best, the same for the same
// seed.
func noise(seed, n int) string { return hex.EncodeToString(randomBytes(seed, (n+1)/2))[:n] }

func randomBytes(seed, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b) // never fails
	return b
}

// read reads everything back in several ways, while nothing else happens.
func (w *agingWork) read(ctx context.Context) error {
	synctest.Wait() // what is due at this moment is done
	w.dropped(w.db)
	for _, key := range sweepKeys {
		it := w.db.Scan(ctx, []byte(key), engine.All(), engine.ScanOptions{})
		recs, err := collect(it)
		if err != nil {
			return err
		}
		want, _ := w.model.scan(key, engine.All(), it.Next(), engine.ScanOptions{})
		require.True(w.t, agree(recs, want), "key %q:\n got %s\nwant %s", key, describe(recs), describeModel(want))
		newest := engine.ScanOptions{Last: 3}
		recs, err = collect(w.db.Scan(ctx, []byte(key), engine.Between(0, it.Next()), newest))
		if err != nil {
			return err
		}
		want, _ = w.model.scan(key, engine.All(), it.Next(), newest)
		require.True(w.t, agree(recs, want), "last of key %q:\n got %s\nwant %s", key, describe(recs), describeModel(want))
		n, err := w.db.Count(ctx, []byte(key), engine.Between(0, it.Next()))
		if err != nil {
			return err
		}
		require.Equal(w.t, w.model.count(key, engine.All(), it.Next()), n)
	}
	page, err := w.db.Keys(ctx, engine.KeysOptions{})
	if err != nil {
		return err
	}
	keys, _ := w.model.keys(engine.KeysOptions{}, w.db.Frontier(), []engine.SegmentInfo{{ID: 1}})
	require.Len(w.t, page.Keys, len(keys))
	return nil
}

// dropped takes what retention dropped out of the model: nothing that is younger than
// it says.
func (w *agingWork) dropped(db *engine.DB) {
	for _, rec := range w.model.drop(db.FirstSequence()) {
		require.True(w.t, w.o.Retention > 0 && time.Since(rec.at) >= w.o.Retention, "record %d was dropped", rec.seq)
	}
}

// survived requires that a log that was just opened holds everything durable that
// retention has not dropped, else nothing but a prefix of what was attempted, whole
// batches, once, in order.
func (w *agingWork) survived(db *engine.DB) {
	ctx := w.t.Context()
	synctest.Wait()
	w.dropped(db)
	n := 0
	for _, key := range sweepKeys {
		count, err := db.Count(ctx, []byte(key), engine.All())
		require.NoError(w.t, err)
		n += int(count)
	}
	require.LessOrEqual(w.t, n, len(w.model.recs), "invented")
	require.GreaterOrEqual(w.t, n, w.model.upTo(w.durable), "lost")
	require.True(w.t, w.model.keep(n), "half a batch")
	for _, key := range sweepKeys {
		recs, err := collect(db.Scan(ctx, []byte(key), engine.All(), engine.ScanOptions{}))
		require.NoError(w.t, err)
		want, _ := w.model.scan(key, engine.All(), db.Frontier(), engine.ScanOptions{})
		require.True(w.t, agree(recs, want), "got %s\nwant %s", describe(recs), describeModel(want))
	}
}
