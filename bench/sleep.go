package bench

import (
	"context"
	"time"
)

// sleeper waits for moments, to some 100 us. It belongs to one goroutine.
//
// A timer of the runtime is exact while the process is busy, and up to a millisecond late while it is idle: then it
// waits in the system for whole milliseconds. That would show in latencies that are shorter. A timer of the system
// is exact while the process is idle, since its end is an event, which is looked for seldom while it is busy. So it waits for
// whichever comes first.
type sleeper struct {
	timer  *time.Timer
	system *systemTimer
}

func newSleeper() *sleeper {
	return &sleeper{timer: time.NewTimer(time.Hour), system: newSystemTimer()}
}

func (s *sleeper) close() {
	s.timer.Stop()
	s.system.close()
}

// until waits until a time, or returns false when ctx ends before.
func (s *sleeper) until(ctx context.Context, at time.Time) bool {
	for {
		wait := time.Until(at)
		if wait <= 0 || ctx.Err() != nil {
			return ctx.Err() == nil
		}
		s.timer.Reset(wait)
		s.system.reset(wait)
		select {
		case <-s.timer.C:
		case <-s.system.ended(): // perhaps of an earlier wait: so it looks again
		case <-ctx.Done():
		}
	}
}
