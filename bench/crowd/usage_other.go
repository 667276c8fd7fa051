//go:build !linux

package crowd

import (
	"os"
	"time"
)

func cpuTime() time.Duration { return 0 }

func peakRSS(*os.ProcessState) int64 { return 0 }
