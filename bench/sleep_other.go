//go:build !linux

package bench

import "time"

// systemTimer is none: waits are as exact as the runtime's timers.
type systemTimer struct{}

func newSystemTimer() *systemTimer { return nil }

func (*systemTimer) reset(time.Duration)    {}
func (*systemTimer) ended() <-chan struct{} { return nil }
func (*systemTimer) close()                 {}
