package fuzz

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/fault"
)

// TestSweepTakeover lets the old writer do something just before (or just after) store
// operation 0, 1, 2, ... of the new writer's open.
func TestSweepTakeover(t *testing.T) {
	steps := map[string]func(ctx context.Context, old *oldWriter) error{
		"appends":             func(ctx context.Context, old *oldWriter) error { return old.append(ctx, engine.Durable) },
		"appends from memory": func(ctx context.Context, old *oldWriter) error { return old.append(ctx, engine.Memory) },
		"flushes":             func(ctx context.Context, old *oldWriter) error { return old.db.Flush(ctx) },
		"closes":              func(ctx context.Context, old *oldWriter) error { return old.db.Close(ctx) },
		"seals": func(ctx context.Context, old *oldWriter) error {
			for range 10 {
				if err := old.append(ctx, engine.Durable); err != nil {
					return err
				}
			}
			return old.db.Flush(ctx)
		},
	}
	for name, step := range steps {
		for _, after := range []bool{false, true} {
			failure(t, fmt.Sprintf("%s, after=%v", name, after), func(t *testing.T) {
				n := 0
				for takeover(t, n, after, step) {
					n++
				}
				require.Greater(t, n, 12, "the open was swept whole")
			})
		}
	}
}

// oldWriter is the writer that is passed.
type oldWriter struct {
	t         *testing.T
	db        *engine.DB
	attempted []string // in sequence order: without those that were refused
	acked     int      // so many of them are durable
}

func (o *oldWriter) append(ctx context.Context, ack engine.Durability) error {
	v := fmt.Sprint(len(o.attempted), strings.Repeat("x", 700))
	_, err := o.db.Append(ctx, batch(v), engine.AppendOptions{Ack: ack})
	if err == nil || outcome(o.t, err) == engine.Unknown {
		o.attempted = append(o.attempted, v)
	}
	if err == nil && ack == engine.Durable {
		o.acked = len(o.attempted)
	}
	return err
}

// takeover opens the log beside an old writer that does its step around operation n
// of the open, and reports whether the open came so far.
func takeover(t *testing.T, n int, after bool, step func(context.Context, *oldWriter) error) bool {
	r := newRig(t)
	db, err := engine.Open(t.Context(), r.store, tinyOptions())
	require.NoError(t, err)
	defer kill(db)
	old := &oldWriter{t: t, db: db}
	for range 4 {
		require.NoError(t, old.append(t.Context(), engine.Durable))
	}
	// The new writer's requests only: the old one uses the rig's store. A request that
	// the open made and did not wait for may still run when it returns.
	stepped := make(chan error, 1)
	var mu sync.Mutex
	opened, hit := false, false // guarded by mu
	act := func(context.Context) error {
		stepped <- step(t.Context(), old)
		return nil
	}
	store := fault.New(r.mem, func(_ context.Context, op fault.Op) fault.Plan {
		mu.Lock()
		defer mu.Unlock()
		if op.Number != n || opened {
			return fault.Plan{}
		}
		hit = true
		if after {
			return fault.Plan{After: act}
		}
		return fault.Plan{Before: act}
	})
	next, err := engine.Open(t.Context(), store, tinyOptions())
	require.NoError(t, err, "operation %d", n)
	defer kill(next)
	mu.Lock()
	opened = true
	begun := hit
	mu.Unlock()
	if begun {
		if err := <-stepped; err != nil {
			require.ErrorIs(t, err, engine.ErrFenced, "operation %d", n)
		}
	}
	got := read(t, next)
	require.LessOrEqual(t, len(got), len(old.attempted), "operation %d: invented", n)
	require.GreaterOrEqual(t, len(got), old.acked, "operation %d: lost", n)
	require.Equal(t, old.attempted[:len(got)], got, "operation %d", n)
	mustAppend(t, next, "new")
	err = old.append(t.Context(), engine.Durable)
	require.True(t, errors.Is(err, engine.ErrFenced) || errors.Is(err, engine.ErrClosed), "operation %d: %v", n, err)
	require.NoError(t, next.Flush(t.Context()))
	require.Equal(t, append(got, "new"), read(t, next), "operation %d", n)
	check(t, r.mem)
	return begun
}
