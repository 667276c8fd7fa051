package trace

import "time"

// maxPhases bounds the phases of one operation that are told apart; what comes in
// others beyond it is taken together in the last.
const maxPhases = 8

// Phases adds up what an operation's time was spent on. The zero value has none. It
// belongs to one goroutine at a time.
type Phases struct {
	names [maxPhases]string
	took  [maxPhases]time.Duration
	n     int
}

// Add adds time to a phase.
func (p *Phases) Add(name string, took time.Duration) {
	i := 0
	for i < p.n && p.names[i] != name {
		i++
	}
	if i == p.n {
		if p.n == maxPhases {
			i--
		} else {
			p.names[i] = name
			p.n++
		}
	}
	p.took[i] += took
}

// Len returns the number of phases.
func (p *Phases) Len() int { return p.n }

// At returns a phase, in the order in which they first came.
func (p *Phases) At(i int) (name string, took time.Duration) { return p.names[i], p.took[i] }

// Of returns the time of a phase, or 0.
func (p *Phases) Of(name string) time.Duration {
	for i := range p.n {
		if p.names[i] == name {
			return p.took[i]
		}
	}
	return 0
}
