//go:build !linux

package bench

import "time"

func sleepExactly(d time.Duration) { time.Sleep(d) }
