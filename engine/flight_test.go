package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// flying is a flight whose one range is fetched when the test says so.
type flying struct {
	flight
	env     *base.Env
	fetches int
	answer  chan error      // for the fetch under way
	ctx     context.Context // of the last fetch
}

func newFlying() *flying { return &flying{env: base.SystemEnv(), answer: make(chan error)} }

var flownRange = rangeKey{"sst/x", 0, 10}

// read starts a reader; what it returns has its result once that is there.
func (f *flying) read(ctx context.Context) <-chan error {
	got := make(chan error, 1)
	go func() {
		_, err := f.do(ctx, f.env, flownRange, func(ctx context.Context) ([]byte, error) {
			f.fetches++
			f.ctx = ctx
			select {
			case err := <-f.answer:
				return []byte("body"), err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		got <- err
	}()
	synctest.Wait()
	return got
}

// A read belongs to all who wait: the first one leaves, and the others get what it began.
func TestASharedReadOutlivesItsFirstReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlying()
		ctx, cancel := context.WithCancel(t.Context())
		first, second := f.read(ctx), f.read(t.Context())
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		synctest.Wait()
		require.NoError(t, f.ctx.Err())
		require.Len(t, f.calls[flownRange].waiters, 1, "whoever left is not remembered (I9)")
		third := f.read(t.Context())
		f.answer <- nil
		require.NoError(t, <-second)
		require.NoError(t, <-third)
		require.Equal(t, 1, f.fetches)
		require.Empty(t, f.calls)
	})
}

func TestASharedReadEndsWithItsLastReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlying()
		ctx, cancel := context.WithCancel(t.Context())
		first, second := f.read(ctx), f.read(ctx)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		require.ErrorIs(t, <-second, context.Canceled)
		synctest.Wait()
		require.Error(t, f.ctx.Err(), "nobody wants it any more")
		require.ErrorIs(t, <-f.read(ctx), context.Canceled)
		require.Equal(t, 1, f.fetches, "nothing is begun for a context that has ended")

		again := f.read(t.Context())
		f.answer <- errors.New("broken")
		require.EqualError(t, <-again, "broken")
		require.Equal(t, 2, f.fetches)
		require.Empty(t, f.calls)
	})
}

// Those who share a result are woken one at a time, each by a start of its own, and in the order in which they came.
func TestThoseWhoShareAReadGoOnOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlying()
		var starts []func()
		f.env.Go = func(_ string, g func()) { starts = append(starts, g) }
		readers := []<-chan error{f.read(t.Context()), f.read(t.Context()), f.read(t.Context())}
		require.Len(t, starts, 1, "the fetch")
		go starts[0]()
		f.answer <- nil
		synctest.Wait()
		for i, got := range readers {
			require.Len(t, got, 1, "reader %d", i)
			if i+1 < len(readers) {
				require.Empty(t, readers[i+1])
				starts[i+1]()
				synctest.Wait()
			}
		}
		require.Len(t, starts, len(readers))
	})
}
