package base

import "golang.org/x/sys/unix"

// On macOS the monotonic clock goes on while the machine sleeps.
const bootClock = unix.CLOCK_MONOTONIC
