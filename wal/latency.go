package wal

import (
	"slices"
	"time"
)

const (
	// latencySamples is how many of the last PUTs the hedging delay is taken from.
	latencySamples = 64
	// minLatencySamples is how many must be known before they count.
	minLatencySamples = 8
)

// latencies remembers how long the last PUTs took. Its owner guards it.
type latencies struct {
	ring [latencySamples]time.Duration
	n    int // samples ever added
}

func (l *latencies) add(d time.Duration) {
	l.ring[l.n%latencySamples] = d
	l.n++
}

// p95 returns the 95th percentile of the samples, or false while there are too few.
func (l *latencies) p95() (time.Duration, bool) {
	n := min(l.n, latencySamples)
	if n < minLatencySamples {
		return 0, false
	}
	sorted := l.ring
	slices.Sort(sorted[:n])
	return sorted[(n*95+99)/100-1], true
}
