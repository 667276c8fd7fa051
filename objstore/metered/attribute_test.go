package metered

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

func TestAttribute(t *testing.T) {
	s := New(&scripted{body: []byte("seven b")}, Options{})
	other := New(&scripted{err: objstore.ErrNotFound, body: []byte("no")}, Options{})
	outerCtx, outer := Attribute(t.Context())
	innerCtx, inner := Attribute(context.WithoutCancel(outerCtx))
	derived, cancel := context.WithCancel(innerCtx)
	defer cancel()

	for op := range Op(NumOps) {
		require.NoError(t, calls[op](t.Context(), s))
		require.Zero(t, outer.Calls(op), "of nobody")
		require.NoError(t, calls[op](outerCtx, s))
		require.NoError(t, calls[op](derived, s))
		require.Error(t, calls[op](innerCtx, other))
		require.Equal(t, uint64(3), outer.Calls(op), op)
		require.Equal(t, uint64(2), inner.Calls(op), op)
	}
	require.Equal(t, []uint64{8, 14, 0}, []uint64{outer.Bytes(Put), outer.Bytes(Get), outer.Bytes(List)})
	require.Equal(t, []uint64{4, 7, 0}, []uint64{inner.Bytes(Put), inner.Bytes(Get), inner.Bytes(List)})
}

// What sends nothing is nobody's.
func TestAttributeWhatSendsNothing(t *testing.T) {
	s := New(mem.New(mem.Options{}), Options{})
	ctx, asked := Attribute(t.Context())
	_, err := s.Get(ctx, "", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrName)
	require.NoError(t, s.Delete(ctx, nil))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for op := range AbortUploads {
		require.Error(t, calls[op](ended, s))
	}
	for op := range Op(NumOps) {
		require.Zero(t, asked.Calls(op), op)
	}
}

// A call counts while it is under way, its bytes when they have come.
func TestAttributeUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := fault.New(mem.New(mem.Options{}), func(context.Context, fault.Op) fault.Plan {
			return fault.Plan{After: func(context.Context) error { <-time.After(time.Second); return nil }}
		})
		s := New(slow, Options{})
		ctx, asked := Attribute(t.Context())
		go func() { _ = calls[Put](ctx, s) }()
		synctest.Wait()
		require.Equal(t, uint64(1), asked.Calls(Put))
		require.Zero(t, asked.Bytes(Put))
		require.Zero(t, s.Stats().Ops[Put].Calls())
		<-time.After(2 * time.Second)
		require.Equal(t, uint64(1), asked.Calls(Put))
		require.Equal(t, uint64(4), asked.Bytes(Put))
	})
}

func TestAttributeManyGoroutines(t *testing.T) {
	const goroutines, rounds = 8, 100
	s := New(&scripted{body: []byte("seven b")}, Options{})
	all, total := Attribute(t.Context())
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			ctx, mine := Attribute(all)
			for range rounds {
				_ = calls[Get](ctx, s)
			}
			if mine.Calls(Get) != rounds {
				t.Errorf("%d calls", mine.Calls(Get))
			}
		})
	}
	wg.Wait()
	require.Equal(t, uint64(goroutines*rounds), total.Calls(Get))
	require.Equal(t, uint64(7*goroutines*rounds), total.Bytes(Get))
}
