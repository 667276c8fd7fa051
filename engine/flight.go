package engine

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/annalsdb/annals/internal/base"
)

// flight makes concurrent reads of the same range one request. It belongs to all who wait for it, none of whom waits
// longer than its own context allows: it goes on while anybody waits, and is cancelled when the last one has left. So
// nobody's request depends on who came first.
type flight struct {
	mu    sync.Mutex
	calls map[rangeKey]*flightCall
}

// rangeKey names the n bytes of an object from off on.
type rangeKey struct {
	name   string
	off, n int64
}

type flightCall struct {
	body    []byte // set, as is err, before the channels of those who wait are closed
	err     error
	cancel  context.CancelFunc
	waiters []chan struct{} // of all who wait; guarded by flight.mu
}

func (f *flight) do(ctx context.Context, env *base.Env, k rangeKey, fetch func(context.Context) ([]byte, error)) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	call, ok := f.calls[k]
	if !ok {
		call = f.begin(ctx, env, k, fetch)
	}
	done := make(chan struct{})
	call.waiters = append(call.waiters, done)
	f.mu.Unlock()
	select {
	case <-done:
		return call.body, call.err
	case <-ctx.Done():
		f.leave(env, k, call, done)
		return nil, ctx.Err()
	}
}

// begin starts a call, with the values of the first caller's context. Callers hold mu.
func (f *flight) begin(ctx context.Context, env *base.Env, k rangeKey, fetch func(context.Context) ([]byte, error)) *flightCall {
	call := &flightCall{err: errNoResult}
	ctx, call.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if f.calls == nil {
		f.calls = make(map[rangeKey]*flightCall)
	}
	f.calls[k] = call
	env.Go("read "+k.name, func() {
		defer f.finish(env, k, call)
		call.body, call.err = fetch(ctx)
	})
	return call
}

// finish lets everybody have the result. Each but the first is woken by a start of its own: they do the same with
// it, and one may find in a cache what another has just put there, so that a simulation must be able to say who is first.
func (f *flight) finish(env *base.Env, k rangeKey, call *flightCall) {
	f.mu.Lock()
	f.forget(k, call)
	waiters := call.waiters
	call.waiters = nil
	f.mu.Unlock()
	call.cancel()
	for i, done := range waiters {
		if i == 0 {
			close(done)
			continue
		}
		env.Go("share "+k.name, func() { close(done) })
	}
}

// leave ends a caller's wait, and the call if nobody else waits for it. That is a start of its own: whoever was woken with the
// one that leaves, and wants the same, still finds it.
func (f *flight) leave(env *base.Env, k rangeKey, call *flightCall, done chan struct{}) {
	env.Go("leave "+k.name, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		i := slices.Index(call.waiters, done)
		if i < 0 {
			return // the call has ended
		}
		if call.waiters = slices.Delete(call.waiters, i, i+1); len(call.waiters) == 0 {
			f.forget(k, call) // whoever comes later needs one that is not cancelled
			call.cancel()
		}
	})
}

// forget removes a call, unless another one has its place. Callers hold mu.
func (f *flight) forget(k rangeKey, call *flightCall) {
	if f.calls[k] == call {
		delete(f.calls, k)
	}
}

// errNoResult is what callers get when the fetching goroutine ends without a result (runtime.Goexit; a panic ends the process).
var errNoResult = errors.New("the shared read did not finish")
