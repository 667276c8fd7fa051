package bench

import (
	"context"
	"time"
)

// fineSleep is how long before its end a wait becomes exact. Timers of the runtime are as coarse as a
// millisecond while the process is idle, which would show in latencies of less.
const fineSleep = 2 * time.Millisecond

// sleepUntil waits until a time, or returns false when ctx ends before.
func sleepUntil(ctx context.Context, at time.Time) bool {
	if wait := time.Until(at) - fineSleep; wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	for wait := time.Until(at); wait > 0 && ctx.Err() == nil; wait = time.Until(at) {
		sleepExactly(wait)
	}
	return ctx.Err() == nil
}
