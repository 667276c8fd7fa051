package server

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waits returns how many wait in line.
func (b *budget) waits() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.line.Len()
}

// claims asks in the background, and returns when the claim stands in line.
func (b *budget) claims(t *testing.T, ctx context.Context, n int64) <-chan error {
	out, before := make(chan error, 1), b.waits()
	go func() {
		_, err := b.await(ctx, n)
		out <- err
	}()
	require.Eventually(t, func() bool { return b.waits() == before+1 }, patience, time.Millisecond)
	return out
}

func TestBudgetServesTheLineInOrder(t *testing.T) {
	b := newBudget(10)
	require.True(t, b.take(8))
	require.False(t, b.take(3))
	large := b.claims(t, t.Context(), 10)
	small := b.claims(t, t.Context(), 1)
	require.False(t, b.take(1), "nobody passes the line")
	b.give(7)
	require.Empty(t, small, "nor within it")
	b.give(1)
	require.NoError(t, <-large)
	require.Empty(t, small)
	b.give(10)
	require.NoError(t, <-small)
	b.give(1)
	require.Zero(t, b.used())
	require.Equal(t, int64(10), b.peak)
	require.Panics(t, func() { b.give(1) })
}

func TestBudgetOfAWaiterThatLeaves(t *testing.T) {
	b := newBudget(10)
	require.True(t, b.take(8))
	ctx, cancel := context.WithCancel(t.Context())
	large := b.claims(t, ctx, 5)
	small := b.claims(t, t.Context(), 2)
	cancel()
	require.ErrorIs(t, <-large, context.Canceled)
	require.NoError(t, <-small, "the one behind it is served")
	require.Equal(t, int64(10), b.used())
}

func TestBudgetTakesTheWholeAtMost(t *testing.T) {
	b := newBudget(10)
	n, err := b.await(t.Context(), 1000)
	require.NoError(t, err)
	require.Equal(t, int64(10), n)
}

// Many at once, of which some give up: never too much, and nothing is lost.
func TestBudgetAtRandom(t *testing.T) {
	b := newBudget(100)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(1000))*time.Microsecond)
				if n, err := b.await(ctx, 1+rand.Int64N(60)); err == nil {
					if b.take(5) {
						b.give(5)
					}
					b.give(n)
				}
				cancel()
			}
		})
	}
	all.Wait()
	require.Zero(t, b.used())
	require.Zero(t, b.waits())
	require.LessOrEqual(t, b.peak, int64(100))
}
