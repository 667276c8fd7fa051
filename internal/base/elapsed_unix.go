//go:build linux || darwin

package base

import (
	"time"

	"golang.org/x/sys/unix"
)

// systemElapsed reads a clock that counts suspended time, which Go's own
// monotonic clock does not on Linux.
func systemElapsed() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(bootClock, &ts); err != nil {
		panic("base: read the boot clock: " + err.Error()) // the kernels we support all have it
	}
	return time.Duration(ts.Nano())
}
