package fuzz

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/annalsdb/annals/objstore/fault"
)

// weather is what a store does to requests.
type weather struct {
	mu      sync.Mutex
	down    bool          // PUTs never arrive
	nth     *fault.Nth    // fails one request
	latency time.Duration // at most, of every request
	random  *rand.Rand
}

func (w *weather) hook(ctx context.Context, op fault.Op) fault.Plan {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down && op.Kind == fault.Put {
		return fault.Refuse(errNetwork)
	}
	if w.nth != nil {
		if p := w.nth.Hook(ctx, op); !isZero(p) {
			return p
		}
	}
	if w.latency == 0 {
		return fault.Plan{}
	}
	half := time.Duration(w.random.Int64N(int64(w.latency))) / 2
	pause := func(ctx context.Context) error {
		select {
		case <-time.After(half):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fault.Plan{Before: pause, After: pause}
}

func (w *weather) isDown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down
}

// hit reports whether the one fault came.
func (w *weather) hit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nth != nil && w.nth.Hit()
}

func (w *weather) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down, w.nth = false, nil
}

// calm ends the latencies too.
func (w *weather) calm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down, w.nth, w.latency = false, nil, 0
}
