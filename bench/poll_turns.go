package bench

import (
	"math/rand/v2"
	"sync"
	"time"
)

// turns say when the next poll is due and who makes it. Next is called by one goroutine, take by any.
type turns interface {
	// next returns when the n-th poll is due, since the start: n counts calls.
	next() time.Duration
	// take returns who makes the n-th poll, once.
	take(n uint64) uint32
	// skipped is how many polls offline consumers left out.
	skipped() uint64
}

func (p *Poll) turns(r *Run) turns {
	rnd := r.Rand(streamPollConsumers)
	if p.o.Behind >= 0 {
		return &drawnTurns{
			schedule: NewSchedule(p.o.PollsPerSecond, p.o.Arrivals, r.Rand(streamPollArrivals)),
			keys:     p.o.Keys, seed: rnd.Uint64(),
		}
	}
	return &cadenceTurns{population: newPopulation(p.o.cadence(), rnd), pending: make(map[uint64]uint32)}
}

// cadenceTurns are those of a population.
type cadenceTurns struct {
	population *population

	mu      sync.Mutex
	made    uint64
	pending map[uint64]uint32 // who polls, by the number of the poll, until it is taken
}

func (t *cadenceTurns) next() time.Duration {
	v := t.population.take()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending[t.made] = v.consumer
	t.made++
	return v.due
}

func (t *cadenceTurns) take(n uint64) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	consumer := t.pending[n]
	delete(t.pending, n)
	return consumer
}

func (t *cadenceTurns) skipped() uint64 { return t.population.left() }

// drawnTurns draw a key for each poll.
type drawnTurns struct {
	schedule *Schedule
	keys     uint64
	seed     uint64
}

func (t *drawnTurns) next() time.Duration { return t.schedule.Next() }

func (t *drawnTurns) take(n uint64) uint32 {
	return uint32(rand.New(rand.NewPCG(t.seed, n)).Uint64N(t.keys))
}

func (t *drawnTurns) skipped() uint64 { return 0 }
