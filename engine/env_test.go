package engine

import (
	"sync"
	"time"

	"github.com/annalsdb/annals/internal/base"
)

// testEnv is the system's environment with clocks that a test can move on. Timers
// run on real time.
type testEnv struct {
	*base.Env
	mu   sync.Mutex
	wall time.Duration // how far the wall clock is off
	boot time.Duration // how far the clock that never steps is ahead
}

func newTestEnv() *testEnv {
	e := &testEnv{Env: base.SystemEnv()}
	now, elapsed := e.Env.Now, e.Env.Elapsed
	e.Env.Now = func() time.Time {
		e.mu.Lock()
		defer e.mu.Unlock()
		return now().Add(e.wall)
	}
	e.Env.Elapsed = func() time.Duration {
		e.mu.Lock()
		defer e.mu.Unlock()
		return elapsed() + e.boot
	}
	return e
}

// advance lets time pass on both clocks.
func (e *testEnv) advance(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wall += d
	e.boot += d
}
