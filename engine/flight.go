package engine

import (
	"context"
	"errors"
	"sync"
)

// flight makes concurrent reads of the same range one request. The first caller
// does the work in its own goroutine; the others wait for it, each no longer
// than its own context allows.
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
	done chan struct{} // closed when body and err are set
	body []byte
	err  error
}

func (f *flight) do(ctx context.Context, k rangeKey, fetch func() ([]byte, error)) ([]byte, error) {
	for {
		f.mu.Lock()
		call, ok := f.calls[k]
		if !ok {
			return f.lead(k, fetch) // unlocks
		}
		f.mu.Unlock()
		select {
		case <-call.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// The request ran under its first caller's context: if only that one ended,
		// the range is still wanted here.
		if errors.Is(call.err, context.Canceled) || errors.Is(call.err, context.DeadlineExceeded) {
			continue
		}
		return call.body, call.err
	}
}

// lead registers a call, unlocks, fetches and releases the callers that wait.
func (f *flight) lead(k rangeKey, fetch func() ([]byte, error)) ([]byte, error) {
	call := &flightCall{done: make(chan struct{})}
	if f.calls == nil {
		f.calls = make(map[rangeKey]*flightCall)
	}
	f.calls[k] = call
	f.mu.Unlock()
	call.err = errFlightPanicked
	defer func() {
		f.mu.Lock()
		delete(f.calls, k)
		f.mu.Unlock()
		close(call.done)
	}()
	call.body, call.err = fetch()
	return call.body, call.err
}

// errFlightPanicked is what waiting callers get when the fetching one panicked.
var errFlightPanicked = errors.New("the shared read did not finish")
