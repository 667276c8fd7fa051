package bench

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Cadences says how the cadences of consumers differ.
type Cadences string

const (
	// ZipfCadences: the consumer of rank i polls i times more seldom than the first. So every
	// decade of cadences, from tenths of a second to hours, has as many polls.
	ZipfCadences Cadences = "zipf"
	// EvenCadences: all poll equally often.
	EvenCadences Cadences = "even"
)

// population is when each of many consumers polls. Consumer k reads key k. A consumer polls at a
// cadence of its own, from a phase of its own, and is offline for a while in every so many.
// Everything follows from the random source. Safe for concurrent use.
type population struct {
	period  func(rank uint32) time.Duration
	offline time.Duration // how long a consumer is offline at a time; 0: never
	cycle   time.Duration // the time from one such while to the next

	mu      sync.Mutex
	next    visits // all consumers, by when they poll next
	skipped uint64 // polls that offline consumers left out
}

// visit is the next poll of a consumer.
type visit struct {
	due      time.Duration // since the start
	consumer uint32
	rank     uint32 // by cadence, from 0
}

// cadence is what a population is made of.
type cadence struct {
	consumers  int
	perSecond  float64       // polls of all together
	fastest    time.Duration // no consumer polls more often
	shape      Cadences
	offline    float64       // the share that is offline at any time
	offlineFor time.Duration // how long each is
}

// faults returns what is wrong with it.
func (c *cadence) faults() (faults []string) {
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(c.perSecond <= 0, "--polls-per-second is %v; it must be above 0", c.perSecond)
	fault(c.fastest <= 0, "--fastest is %v; it must be above 0", c.fastest)
	fault(c.shape != ZipfCadences && c.shape != EvenCadences, "--cadences is %q; it must be zipf or even", c.shape)
	fault(c.offline < 0 || c.offline >= 1, "--offline is %v; it must be from 0 to below 1", c.offline)
	fault(c.offline > 0 && c.offlineFor <= 0, "--offline-for is %v; it must be above 0", c.offlineFor)
	if most := float64(c.consumers) / c.fastest.Seconds(); c.fastest > 0 {
		fault(c.perSecond > most, "--polls-per-second %v is more than %d consumers make that poll every %v at most: %.0f",
			c.perSecond, c.consumers, c.fastest, most)
	}
	return faults
}

func newPopulation(c cadence, rnd *rand.Rand) *population {
	p := &population{period: c.periods(), next: make(visits, c.consumers)}
	if c.offline > 0 {
		p.offline = c.offlineFor
		p.cycle = time.Duration(float64(c.offlineFor) / c.offline)
	}
	for i := range p.next {
		p.next[i].rank = uint32(i)
		p.next[i].consumer = uint32(i)
	}
	for i := len(p.next) - 1; i > 0; i-- { // who polls often is not who is written to often
		j := rnd.IntN(i + 1)
		p.next[i].rank, p.next[j].rank = p.next[j].rank, p.next[i].rank
	}
	for i := range p.next {
		p.next[i].due = time.Duration(rnd.Float64() * float64(p.period(p.next[i].rank)))
	}
	heap.Init(&p.next)
	return p
}

// periods returns the cadence of each rank, such that all together poll as often as asked.
func (c *cadence) periods() func(rank uint32) time.Duration {
	n, fastest := float64(c.consumers), c.fastest.Seconds()
	if c.shape == EvenCadences {
		every := time.Duration(n / c.perSecond * float64(time.Second))
		return func(uint32) time.Duration { return every }
	}
	// Rank i (from 1) polls a/i times a second, but at most 1/fastest: the first a*fastest ranks do. The sum
	// of these rates rises with a.
	total := func(a float64) float64 {
		capped := min(max(a*fastest, 1), n)
		return min(capped/fastest, a*capped) + a*math.Log(n/capped)
	}
	lo, hi := 0.0, n/fastest
	for range 100 {
		if mid := (lo + hi) / 2; total(mid) < c.perSecond {
			lo = mid
		} else {
			hi = mid
		}
	}
	return func(rank uint32) time.Duration {
		return time.Duration(max(fastest, float64(rank+1)/hi) * float64(time.Second))
	}
}

// take returns the next poll that is due of a consumer that is not offline then. Polls come in the order
// in which they are due.
func (p *population) take() visit {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		v := &p.next[0]
		back, off := p.offlineUntil(v.consumer, v.due)
		taken := *v
		if off { // it polls as soon as it is back
			p.skipped += uint64((back-v.due)/p.period(v.rank)) + 1
			v.due = back
		} else {
			v.due += p.period(v.rank)
		}
		heap.Fix(&p.next, 0)
		if !off {
			return taken
		}
	}
}

// offlineUntil returns when a consumer that is offline at a time is back.
func (p *population) offlineUntil(consumer uint32, at time.Duration) (time.Duration, bool) {
	if p.offline == 0 {
		return 0, false
	}
	// A hash spreads the consumers over the cycle.
	const golden = 0x9e3779b97f4a7c15
	phase := time.Duration((uint64(consumer) + 1) * golden % uint64(p.cycle))
	into := (at + phase) % p.cycle
	return at + p.offline - into, into < p.offline
}

// left returns how many polls offline consumers left out.
func (p *population) left() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.skipped
}

// visits implements heap.Interface.
type visits []visit

func (v visits) Len() int { return len(v) }

func (v visits) Less(i, j int) bool {
	if v[i].due != v[j].due {
		return v[i].due < v[j].due
	}
	return v[i].consumer < v[j].consumer
}

func (v visits) Swap(i, j int) { v[i], v[j] = v[j], v[i] }

// Push and Pop are of no use: no consumer comes or goes.
func (v *visits) Push(any) { panic("a population has always the same consumers") }
func (v *visits) Pop() any { panic("a population has always the same consumers") }
