package fuzz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// stateWork is a fixed workload of cursors, producers and appends that expect something, with flushes, a seal, a flush of cursors
// alone, a clean close and an unclean end. The model notes what it attempted.
type stateWork struct {
	t         *testing.T
	store     objstore.Store
	model     model
	ledger    *ledger
	retryOpen bool // a failed open is tried once more
	db        *engine.DB
	number    uint64 // of the producer's last append
	last      uint64 // the sequence after the last record of key k
}

func (w *stateWork) run(ctx context.Context) error {
	steps := []func(context.Context) error{
		w.open, w.set, w.produce, w.set, w.flush, w.set, w.flush, w.produce, w.expect, w.remove,
		w.large, w.large, w.large, w.produce, w.set, w.large, w.large, w.large, w.set, w.close,
		w.open, w.produce, w.set, w.close,
		w.open, w.set, w.expect, w.produce, w.flush, w.remove, w.set, w.produce,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *stateWork) open(ctx context.Context) error {
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
	require.GreaterOrEqual(w.t, db.Status().Next, w.model.next, "I3")
	w.model.next = db.Status().Next
	w.verifyCursors(db, w.ledger.now)
	return nil
}

func (w *stateWork) verifyCursors(db *engine.DB, want *smallModel) {
	for _, consumer := range modelConsumers {
		page, err := db.Cursors(context.Background(), consumer, engine.CursorsOptions{})
		require.NoError(w.t, err)
		require.Len(w.t, page.Cursors, len(want.cursors[consumer]))
		for _, c := range page.Cursors {
			require.Equal(w.t, want.cursors[consumer][string(c.Key)], c.Next)
		}
	}
}

func (w *stateWork) close(ctx context.Context) error {
	err := w.db.Close(ctx)
	if err == nil {
		w.ledger.allDurable()
	}
	return err
}

func (w *stateWork) flush(ctx context.Context) error {
	err := w.db.Flush(ctx)
	if err == nil {
		w.ledger.allDurable()
	}
	return err
}

// set moves cursors forwards, and one backwards.
func (w *stateWork) set(ctx context.Context) error {
	for i, force := range []bool{false, true} {
		n := uint64(len(w.ledger.events))
		cursors := []engine.Cursor{{Key: []byte("k"), Next: 100 + n}, {Key: []byte{byte(n)}, Next: n}}
		if force {
			cursors = []engine.Cursor{{Key: []byte("back"), Next: 1000 - n}}
		}
		consumer := modelConsumers[i]
		_, err := w.db.SetCursors(ctx, consumer, cursors, engine.CursorOptions{Force: force})
		if err == nil || strings.Contains(err.Error(), "unknown") {
			w.ledger.change(err == nil, func(s *smallModel) { s.set(consumer, cursors, force) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *stateWork) remove(ctx context.Context) error {
	for _, keys := range [][][]byte{{[]byte("k")}, nil} {
		err := w.db.DeleteCursors(ctx, "c", keys...)
		if err == nil || strings.Contains(err.Error(), "unknown") {
			w.ledger.change(err == nil, func(s *smallModel) { s.remove("c", keys) })
		}
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			if err := w.set(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// produce is the producer's next append, and the same again.
func (w *stateWork) produce(ctx context.Context) error {
	w.number++
	for range 2 {
		res, err := w.append(ctx, 10, engine.AppendOptions{Producer: "p", ProducerSequence: w.number})
		if err != nil {
			return err
		}
		marks := w.ledger.now.producers["p"]
		require.Equal(w.t, marks[len(marks)-1].first, res.First)
	}
	return nil
}

// expect appends what must be the next record of the key.
func (w *stateWork) expect(ctx context.Context) error {
	o := engine.AppendOptions{ExpectedNext: []engine.KeySequence{{Key: []byte("k"), Next: w.last}}}
	if _, err := w.append(ctx, 10, o); err != nil {
		return err
	}
	_, err := w.append(ctx, 10, o)
	require.Error(w.t, err)
	if outcome(w.t, err) == engine.NotAppended && ctx.Err() == nil && w.db.Err() == nil {
		require.ErrorIs(w.t, err, engine.ErrConflict)
		return nil
	}
	return err
}

// large fills a memory, and, repeated, a segment.
func (w *stateWork) large(ctx context.Context) error {
	_, err := w.append(ctx, 2000, engine.AppendOptions{Ack: engine.Memory})
	return err
}

func (w *stateWork) append(ctx context.Context, size int, o engine.AppendOptions) (engine.AppendResult, error) {
	value := fmt.Sprintf("%s %d: %d%s", o.Producer, o.ProducerSequence, len(w.model.recs), strings.Repeat("x", size))
	recs := []engine.Record{{Key: []byte("k"), Value: []byte(value)}}
	first := w.model.next
	_, found := w.ledger.now.find(o.Producer, o.ProducerSequence)
	res, err := w.db.Append(ctx, recs, o)
	if err != nil && outcome(w.t, err) == engine.NotAppended {
		return res, err
	}
	if repeat := o.Producer != "" && found != 0; repeat {
		require.True(w.t, err != nil || res.Repeated)
		return res, err
	}
	if err == nil {
		require.Equal(w.t, first, res.First)
	}
	w.model.add(first, res.Timestamp, recs)
	w.last = w.model.next
	rec := w.model.recs[len(w.model.recs)-1]
	w.ledger.add(event{end: w.model.next, state: o.Producer != "", apply: func(s *smallModel) {
		if o.Producer != "" {
			s.mark(o.Producer, modelMark{number: o.ProducerSequence, first: rec.seq, count: 1, rec: rec})
		}
	}})
	if err == nil && o.Ack != engine.Memory {
		w.ledger.allDurable()
	}
	return res, err
}

// recovered opens what the store holds now with a healthy store, and requires that what is there is a prefix of what was
// attempted, with all that was acknowledged; and that a producer that repeats what it does not know
// has each append in the log once.
func (w *stateWork) recovered(store *mem.Store) {
	ctx := w.t.Context()
	db, err := engine.Open(ctx, store, tinyOptions())
	require.NoError(w.t, err)
	defer kill(db)
	n, err := db.Count(ctx, []byte("k"), engine.All())
	require.NoError(w.t, err)
	require.LessOrEqual(w.t, int(n), len(w.model.recs), "invented")
	require.True(w.t, w.model.keep(int(n)), "half a batch")
	var end uint64
	if n > 0 {
		end = w.model.recs[n-1].seq + 1
	}
	require.True(w.t, w.ledger.restart(end, false, func(s *smallModel) bool {
		return slices.IndexFunc(modelConsumers, func(consumer string) bool {
			page, err := db.Cursors(ctx, consumer, engine.CursorsOptions{})
			require.NoError(w.t, err)
			of := map[string]uint64{}
			for _, c := range page.Cursors {
				of[string(c.Key)] = c.Next
			}
			return !equalCursors(of, s.cursors[consumer])
		}) < 0
	}), "not a prefix of what was done")
	w.db, w.store = db, store
	w.model.next = db.Status().Next
	for number := w.number - min(w.number, 3) + 1; number <= w.number; number++ {
		_, found := w.ledger.now.find("p", number)
		if len(w.ledger.now.producers["p"]) == 0 && number < w.number {
			continue // it would begin there
		}
		res, err := w.append(ctx, 10, engine.AppendOptions{Producer: "p", ProducerSequence: number})
		require.NoError(w.t, err)
		require.Equal(w.t, found != 0, res.Repeated)
	}
	require.NoError(w.t, w.set(ctx))
	recs, err := collect(db.Scan(ctx, []byte("k"), engine.All(), engine.ScanOptions{}))
	require.NoError(w.t, err)
	want, _ := w.model.scan("k", engine.All(), db.Frontier(), engine.ScanOptions{})
	require.True(w.t, agree(recs, want), "got %s\nwant %s", describe(recs), describeModel(want))
	w.verifyCursors(db, w.ledger.now)
	check(w.t, store)
}

func equalCursors(a, b map[string]uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || w != v {
			return false
		}
	}
	return true
}

func newStateWork(t *testing.T, store objstore.Store) *stateWork {
	return &stateWork{t: t, store: store, ledger: newLedger()}
}

// TestSweepStateOneFault breaks each store operation of the workload, one a run: nothing but an open fails.
func TestSweepStateOneFault(t *testing.T) {
	sweep(t, func(t *testing.T, rule *fault.Nth) {
		r := newRig(t)
		r.rule(rule.Hook)
		w := newStateWork(t, r.store)
		w.retryOpen = true
		defer func() { kill(w.db) }() // of a run that failed
		require.NoError(t, w.run(t.Context()))
		require.NoError(t, w.db.Err())
		left := r.mem.Clone()
		kill(w.db)
		w.recovered(left)
		require.NoError(t, r.witness.err())
	})
}

// TestSweepStateDeath ends the process at each store operation of the workload.
func TestSweepStateDeath(t *testing.T) {
	sweep(t, func(t *testing.T, rule *fault.Nth) {
		r := newRig(t)
		ctx, die := context.WithCancel(t.Context())
		defer die()
		r.rule(dieAt(rule, die))
		w := newStateWork(t, r.store)
		err := w.run(ctx)
		if !rule.Hit() {
			require.NoError(t, err)
		}
		left := r.mem.Clone()
		if w.db != nil {
			kill(w.db)
		}
		w.recovered(left)
		require.NoError(t, r.witness.err())
	})
}

// TestSweepStateTakeover lets a writer change cursors, append as a producer, flush or close just before, or just after, store
// operation 0, 1, 2, ... of the open that passes it.
func TestSweepStateTakeover(t *testing.T) {
	steps := map[string]func(context.Context, *stateWork) error{
		"sets":     func(ctx context.Context, w *stateWork) error { return w.set(ctx) },
		"removes":  func(ctx context.Context, w *stateWork) error { return w.remove(ctx) },
		"produces": func(ctx context.Context, w *stateWork) error { return w.produce(ctx) },
		"expects":  func(ctx context.Context, w *stateWork) error { return w.expect(ctx) },
		"flushes":  func(ctx context.Context, w *stateWork) error { return w.flush(ctx) },
		"closes":   func(ctx context.Context, w *stateWork) error { return w.close(ctx) },
	}
	for name, step := range steps {
		for _, after := range []bool{false, true} {
			failure(t, fmt.Sprintf("%s, after=%v", name, after), func(t *testing.T) {
				n := 0
				for stateTakeover(t, n, after, step) {
					n++
				}
				require.Greater(t, n, 12, "the open was swept whole")
			})
		}
	}
}

// stateTakeover is one of these takeovers. It reports whether the open came as far as operation n.
func stateTakeover(t *testing.T, n int, after bool, step func(context.Context, *stateWork) error) bool {
	r := newRig(t)
	old := newStateWork(t, r.store)
	defer func() { kill(old.db) }()
	for _, begin := range []func(context.Context) error{old.open, old.set, old.produce, old.flush, old.expect, old.set, old.produce} {
		require.NoError(t, begin(t.Context()))
	}
	stepped := make(chan error, 1)
	var opened, hit atomic.Bool
	act := func(context.Context) error {
		stepped <- step(t.Context(), old)
		return nil
	}
	store := fault.New(r.mem, func(_ context.Context, op fault.Op) fault.Plan { // what the new writer asks for
		if op.Number != n || opened.Load() {
			return fault.Plan{}
		}
		hit.Store(true)
		if after {
			return fault.Plan{After: act}
		}
		return fault.Plan{Before: act}
	})
	next, err := engine.Open(t.Context(), store, tinyOptions())
	require.NoError(t, err, "operation %d", n)
	opened.Store(true)
	begun := hit.Load()
	if begun {
		if err := <-stepped; err != nil {
			require.ErrorIs(t, err, engine.ErrFenced, "operation %d", n)
		}
	}
	_, err = old.db.SetCursors(t.Context(), "c", []engine.Cursor{{Key: []byte("zombie"), Next: 1}}, engine.CursorOptions{})
	require.True(t, errors.Is(err, engine.ErrFenced) || errors.Is(err, engine.ErrClosed), "operation %d: %v", n, err)
	left := r.mem.Clone()
	kill(next)
	kill(old.db)
	old.recovered(left)
	return begun
}
