package s3sim

import (
	"context"
	"time"
)

// waiter lets the time of one call pass, with one timer at most. It belongs to one goroutine.
type waiter struct {
	sleep   func(context.Context, time.Duration) error // nil: real time
	elapsed func() time.Duration
	began   time.Duration
	timer   *time.Timer
}

// until waits until d has passed since the call began, or ctx ends, whose error it then returns. What has passed
// already is not waited for: neither what the inner store needed nor a timer that was late adds up.
func (w *waiter) until(ctx context.Context, d time.Duration) error {
	d -= w.elapsed() - w.began
	switch {
	case d <= 0:
		return nil
	case w.sleep != nil:
		return w.sleep(ctx, d)
	case w.timer == nil:
		w.timer = time.NewTimer(d)
	default:
		w.timer.Reset(d)
	}
	select {
	case <-w.timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop frees the timer.
func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}
