package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// hedger sends a GET that is slow a second time and takes the first good
// answer: most slow requests of a store are slow for a reason that the next one
// does not meet (Dean and Barroso, "The Tail at Scale", 2013: hedged requests).
//
// Slow means: slower than 95 of 100 recent reads of about this size. When all
// reads become slow it is not the request that is unlucky, so the budget bounds
// what hedging adds to the store's load whatever the latencies are. The zero
// value is ready; safe for concurrent use.
type hedger struct {
	sent atomic.Uint64 // second requests

	mu      sync.Mutex
	classes [sizeClasses]latencies
	debt    int // hedges not yet paid for, times readsPerHedge
}

const (
	// hedgeMin is the least time after which a read is sent again: below it a
	// second request costs more than it can win.
	hedgeMin = 50 * time.Millisecond
	// readsPerHedge: one read in so many may be hedged, and hedgeBurst more.
	readsPerHedge = 20
	hedgeBurst    = 8
)

// Reads are compared with reads of about their size: a whole read-ahead is not
// slow only because it takes longer than a block.
const (
	smallRead   = 128 << 10
	mediumRead  = 1 << 20
	sizeClasses = 3
)

func sizeClass(n int64) int {
	switch {
	case n <= smallRead:
		return 0
	case n <= mediumRead:
		return 1
	default:
		return 2
	}
}

// get calls fetch, and once more if the first call is slow. The calls differ in
// their context only, which ends when an answer is no longer wanted; fetch must
// return soon after that (objstore.Store says so). The second call may outlive
// get by as much.
//
// An error that a repetition would not change is an answer too; any other error
// of the first call waits for the second, if that is under way.
func (h *hedger) get(ctx context.Context, env *base.Env, n int64, fetch func(context.Context) (objstore.Object, error)) (objstore.Object, error) {
	delay, ok := h.begin(n)
	began := env.Elapsed()
	if !ok {
		obj, err := fetch(ctx)
		if err == nil {
			h.took(n, env.Elapsed()-began)
		}
		return obj, err
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	second := struct {
		done chan struct{} // closed when obj and err are set
		obj  objstore.Object
		err  error
	}{done: make(chan struct{})}
	stop := env.AfterFunc(delay, func() {
		defer close(second.done)
		if second.err = both.Err(); second.err != nil {
			return
		}
		if second.err = h.spend(); second.err != nil {
			return
		}
		if second.obj, second.err = fetch(both); second.err == nil {
			cancel() // ends the first
		}
	})
	obj, err := fetch(both)
	if !stop() && err != nil && worthRetrying(err) {
		select {
		case <-second.done:
			if second.err == nil {
				obj, err = second.obj, nil
			}
		case <-ctx.Done():
		}
	}
	if err == nil {
		// Of a first request that was given up: a lower bound of what it takes, so
		// that hedging never makes the store look faster than hedgeMin and p95.
		h.took(n, env.Elapsed()-began)
	}
	return obj, err
}

// begin counts a read of n bytes and returns after what time it is slow, or
// false while too little is known.
func (h *hedger) begin(n int64) (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.debt = max(0, h.debt-1)
	p95, ok := h.classes[sizeClass(n)].p95()
	return max(hedgeMin, p95), ok
}

// took records how long a read of n bytes took.
func (h *hedger) took(n int64, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.classes[sizeClass(n)].add(d)
}

// spend takes one hedge from the budget, or returns errHedgeBudget.
func (h *hedger) spend() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.debt+readsPerHedge > hedgeBurst*readsPerHedge {
		return errHedgeBudget
	}
	h.debt += readsPerHedge
	h.sent.Add(1)
	return nil
}

// errHedgeBudget never leaves the hedger.
var errHedgeBudget = errors.New("no hedge is left")

// latencies holds the last few latencies.
type latencies struct {
	ring [latencySamples]time.Duration
	n    int // ever added
	high time.Duration
}

const (
	latencySamples    = 128
	minLatencySamples = 32 // below, a percentile says nothing
	// latencyRefresh: the percentile is found anew once in so many samples. It
	// divides minLatencySamples.
	latencyRefresh = 16
)

func (l *latencies) add(d time.Duration) {
	l.ring[l.n%latencySamples] = d
	l.n++
	if l.n >= minLatencySamples && l.n%latencyRefresh == 0 {
		sorted := l.ring
		known := sorted[:min(l.n, latencySamples)]
		slices.Sort(known)
		l.high = known[len(known)*95/100]
	}
}

// p95 returns the 95th percentile, or false while there are too few samples.
func (l *latencies) p95() (time.Duration, bool) { return l.high, l.n >= minLatencySamples }
