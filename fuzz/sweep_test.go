package fuzz

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

var sweepKeys = []string{"", "k", "z"}

// sweepWork is a fixed workload that meets every kind of store operation: it
// creates a log, rotates, flushes, seals, reads tables, closes, reopens, and is left
// with records in the WAL. The model notes what it attempted.
type sweepWork struct {
	t       *testing.T
	store   objstore.Store
	model   model
	durable uint64 // every sequence below was acknowledged as durable
	values  int
	// retryOpen tries a failed open once more: the one fault is over then.
	retryOpen bool
	db        *engine.DB // the last one that was opened
}

// run returns the first error.
func (w *sweepWork) run(ctx context.Context) error {
	if err := w.open(ctx); err != nil {
		return err
	}
	for range 8 {
		if err := w.append(ctx, engine.Durable, 500); err != nil {
			return err
		}
	}
	if err := w.read(ctx); err != nil {
		return err
	}
	if err := w.append(ctx, engine.Memory, 100); err != nil {
		return err
	}
	if err := w.db.Close(ctx); err != nil {
		return err
	}
	w.durable = w.model.next
	if err := w.open(ctx); err != nil {
		return err
	}
	if err := w.append(ctx, engine.Memory, 10); err != nil {
		return err
	}
	if err := w.db.Flush(ctx); err != nil {
		return err
	}
	w.durable = w.model.next
	if err := w.append(ctx, engine.Durable, 10); err != nil {
		return err
	}
	if err := w.read(ctx); err != nil {
		return err
	}
	return w.append(ctx, engine.Memory, 10)
}

func (w *sweepWork) open(ctx context.Context) error {
	db, err := engine.Open(ctx, w.store, tinyOptions())
	if err != nil && w.retryOpen {
		require.ErrorIs(w.t, err, errNetwork, "an open may fail because of the store only")
		w.retryOpen = false
		db, err = engine.Open(ctx, w.store, tinyOptions())
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	w.db = db
	next := db.Status().Next
	require.GreaterOrEqual(w.t, next, w.model.next, "I3")
	w.model.next = next
	return nil
}

func (w *sweepWork) append(ctx context.Context, ack engine.Durability, size int) error {
	var recs []engine.Record
	for _, key := range sweepKeys {
		w.values++
		recs = append(recs, engine.Record{Key: []byte(key), Value: fmt.Appendf(nil, "%d%s", w.values, strings.Repeat("x", size))})
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

// read reads everything back in several ways.
func (w *sweepWork) read(ctx context.Context) error {
	for _, key := range sweepKeys {
		it := w.db.Scan(ctx, []byte(key), engine.All(), engine.ScanOptions{})
		recs, err := collect(it)
		if err != nil {
			return err
		}
		want, _ := w.model.scan(key, engine.All(), it.Next(), engine.ScanOptions{})
		require.True(w.t, agree(recs, want), "got %s\nwant %s", describe(recs), describeModel(want))
		n, err := w.db.Count(ctx, []byte(key), engine.Between(0, it.Next()))
		if err != nil {
			return err
		}
		require.Equal(w.t, uint64(len(want)), n)
	}
	page, err := w.db.Keys(ctx, engine.KeysOptions{})
	if err != nil {
		return err
	}
	require.Len(w.t, page.Keys, len(sweepKeys))
	return nil
}

// recovered opens what the store holds now with a healthy store, and requires that
// everything durable is there, nothing else but a prefix of what was attempted, and
// no sequence is used again.
func (w *sweepWork) recovered(store *mem.Store) {
	// What the dead process left.
	if report, err := engine.Check(w.t.Context(), store, engine.CheckOptions{}); err != nil {
		require.ErrorIs(w.t, err, manifest.ErrNoLog)
		require.Zero(w.t, w.durable)
	} else {
		require.NoError(w.t, report.Err())
	}
	db, err := engine.Open(w.t.Context(), store, tinyOptions())
	require.NoError(w.t, err)
	defer kill(db)
	require.GreaterOrEqual(w.t, db.Status().Next, w.model.next, "I3")
	n := 0
	for _, key := range sweepKeys {
		count, err := db.Count(w.t.Context(), []byte(key), engine.All())
		require.NoError(w.t, err)
		n += int(count)
	}
	require.LessOrEqual(w.t, n, len(w.model.recs), "invented")
	require.GreaterOrEqual(w.t, n, w.model.upTo(w.durable), "lost")
	require.True(w.t, w.model.keep(n), "half a batch")
	for _, key := range sweepKeys {
		recs, err := collect(db.Scan(w.t.Context(), []byte(key), engine.All(), engine.ScanOptions{}))
		require.NoError(w.t, err)
		want, _ := w.model.scan(key, engine.All(), db.Frontier(), engine.ScanOptions{})
		require.True(w.t, agree(recs, want), "got %s\nwant %s", describe(recs), describeModel(want))
	}
	report := check(w.t, store)
	require.Equal(w.t, uint64(n), report.TableRecords)
}

// sweep runs the workload with a fault at store operation 0, 1, 2, ... until a run
// does not reach it.
func sweep(t *testing.T, run func(t *testing.T, rule *fault.Nth)) {
	for _, applied := range []bool{false, true} {
		failure(t, map[bool]string{false: "not applied", true: "applied"}[applied], func(t *testing.T) {
			for n := 0; ; n++ {
				rule := fault.FailNth(n, applied, errNetwork)
				run(t, rule)
				if t.Failed() {
					t.Fatalf("at store operation %d", n)
				}
				if !rule.Hit() {
					require.Greater(t, n, 60, "the workload was swept whole")
					return
				}
			}
		})
	}
}

func TestSweepOneFault(t *testing.T) {
	sweep(t, func(t *testing.T, rule *fault.Nth) {
		r := newRig(t)
		r.rule(rule.Hook)
		w := &sweepWork{t: t, store: r.store, retryOpen: true}
		defer func() { kill(w.db) }()
		require.NoError(t, w.run(t.Context()), "one fault of the store may fail an open only")
		require.NoError(t, w.db.Err())
		w.recovered(r.mem.Clone())
	})
}

// dieAt ends the process at the operation of a rule, before or after it was applied.
func dieAt(rule *fault.Nth, die func()) fault.Hook {
	return func(ctx context.Context, op fault.Op) fault.Plan {
		if rule.Hit() {
			return fault.Refuse(errNetwork) // the process is gone
		}
		plan := rule.Hook(ctx, op)
		if plan.Before != nil {
			plan.Before = func(context.Context) error { die(); return errNetwork }
		}
		if plan.After != nil {
			plan.After = func(context.Context) error { die(); return errNetwork }
		}
		return plan
	}
}

func TestSweepDeath(t *testing.T) {
	sweep(t, func(t *testing.T, rule *fault.Nth) {
		r := newRig(t)
		ctx, die := context.WithCancel(t.Context())
		defer die()
		r.rule(dieAt(rule, die))
		w := &sweepWork{t: t, store: r.store}
		err := w.run(ctx)
		if !rule.Hit() {
			require.NoError(t, err)
		}
		left := r.mem.Clone()
		if w.db != nil {
			kill(w.db)
		}
		w.recovered(left)
	})
}
