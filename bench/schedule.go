package bench

import (
	"math/rand/v2"
	"time"
)

// Arrivals says how operations are spread over time.
type Arrivals int

const (
	// Poisson: independently of one another, as those of many users are. Bursts happen.
	Poisson Arrivals = iota
	// Uniform: at even distances.
	Uniform
)

// Schedule says when the operations of an open loop are due, whatever becomes of those before. It belongs to one goroutine.
type Schedule struct {
	mean     float64 // nanoseconds between two operations
	arrivals Arrivals
	rnd      *rand.Rand
	at       float64
	next     func() time.Duration // if not nil, says when operations are due
}

// NewSchedule returns a schedule of rate operations a second, which must be above 0. rnd is its own.
func NewSchedule(rate float64, arrivals Arrivals, rnd *rand.Rand) *Schedule {
	if rate <= 0 {
		panic("bench: a schedule without a rate")
	}
	return &Schedule{mean: float64(time.Second) / rate, arrivals: arrivals, rnd: rnd}
}

// NewScheduleOf returns a schedule whose operations next says: about rate of them a second, each due at the time before or later.
func NewScheduleOf(rate float64, next func() time.Duration) *Schedule {
	s := NewSchedule(rate, Uniform, nil)
	s.next = next
	return s
}

// Next returns when the next operation is due, since the start.
func (s *Schedule) Next() time.Duration {
	if s.next != nil {
		return s.next()
	}
	if s.arrivals == Uniform {
		s.at += s.mean
	} else {
		s.at += s.mean * s.rnd.ExpFloat64()
	}
	return time.Duration(s.at)
}

// Rate returns how many operations a second it has.
func (s *Schedule) Rate() float64 { return float64(time.Second) / s.mean }
