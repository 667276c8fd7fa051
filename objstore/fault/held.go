package fault

import (
	"context"
	"fmt"
	"sync"
)

// Held is one operation that stays under way until the test applies it. Make
// one with NewHeld and put it into the Plan of one operation.
//
// The caller waits. When its context ends first, it gets that error and goes on,
// and the request remains: Apply then still applies it, like a PUT that was
// delayed in the network (F5, F47). When Apply comes first, the caller gets the
// answer as usual.
type Held struct {
	answer error         // set by NewHeld
	got    chan struct{} // closed when an operation was caught
	done   chan struct{} // closed when it was applied

	mu    sync.Mutex
	what  string                      // guarded by mu; what was caught, for messages
	apply func(context.Context) error // guarded by mu; nil before it was caught and once it was applied
	used  bool                        // guarded by mu; an operation was caught
}

// NewHeld returns a Held for one operation. With an answer that is not nil the
// caller does not wait but gets this error at once, while its request remains
// under way: a client that timed out.
func NewHeld(answer error) *Held {
	return &Held{answer: answer, got: make(chan struct{}), done: make(chan struct{})}
}

// Caught is closed once an operation is held.
func (h *Held) Caught() <-chan struct{} { return h.got }

// Apply applies the operation to the inner store, with this context, and
// returns the inner store's error. It panics when there is none to apply (not yet
// caught, or already applied): wait for Caught first.
func (h *Held) Apply(ctx context.Context) error {
	h.mu.Lock()
	apply := h.apply
	h.apply = nil
	h.mu.Unlock()
	if apply == nil {
		panic("fault: Held.Apply without an operation to apply")
	}
	defer close(h.done)
	return apply(ctx)
}

// wait catches an operation and blocks its caller until it was applied (nil) or
// the caller stops waiting (why).
func (h *Held) wait(ctx context.Context, what string, apply func(context.Context) error) error {
	h.mu.Lock()
	if h.used {
		h.mu.Unlock()
		panic(fmt.Sprintf("fault: a Held for %q was used again for %q", h.what, what))
	}
	h.what, h.apply, h.used = what, apply, true
	h.mu.Unlock()
	close(h.got)
	if h.answer != nil {
		return h.answer
	}
	select {
	case <-h.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
