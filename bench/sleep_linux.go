package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleepExactly sleeps in a thread of the system: exact to some 60 us.
func sleepExactly(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // sleepUntil looks at the clock again
}
