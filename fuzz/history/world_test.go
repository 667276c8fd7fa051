package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// world is a correct log, at random: writers that take over from each other, some of which go on as zombies, replicas
// that are behind, and requests that are answered late, or never. It does what its seed says, in logical
// time, and makes the history of what clients saw.
type world struct {
	rng  *rand.Rand
	now  time.Duration
	h    History
	seed uint64

	durable []*change // in the store, in the order of sequences
	limit   uint64    // no sequence at or above it was given
	stamp   int64
	servers []*server
	writer  *server // the one that opened last
	calls   []*inFlight
	clients
}

// change is a batch, or some cursors that move.
type change struct {
	records  []KeyValue
	first    uint64
	stamp    int64
	producer string
	number   uint64
	cursors  []KeySequence
	consumer string
}

func (c *change) end() uint64 { return c.first + uint64(len(c.records)) }

// server is one process.
type server struct {
	id       int
	role     Role
	shown    int       // how many of the durable changes it shows
	seen     int       // of a writer that was passed: it knows of no more
	assigned []*change // of a writer: given sequences, and not durable
	base     uint64    // of a writer: where its sequences began
	next     uint64
	passed   bool
	ended    bool
}

// inFlight is a request that has not been answered.
type inFlight struct {
	op     int
	server *server
	began  bool // the server has looked at it
	given  bool // the client has given up: it is not answered any more
	// answer says whether the answer is ready, and fills it in; once it was looked at.
	answer func(*Operation) bool
}

// newWorld lives for so many steps and returns the history.
func newWorld(seed uint64, steps int) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 5)), seed: seed, stamp: 1}
	w.start(Writer)
	w.open(w.servers[0])
	w.start(Replica)
	w.start(Replica)
	w.clients.init(w)
	for range steps {
		w.step()
	}
	w.finish()
	return w
}

// chance is true once in n times.
func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

func (w *world) tick() time.Duration {
	w.now++
	return w.now
}

// step does one thing.
func (w *world) step() {
	switch n := w.rng.IntN(100); {
	case n < 25:
		w.ask()
	case n < 45:
		w.look()
	case n < 65:
		w.reply()
	case n < 75:
		w.land(1 + w.rng.IntN(3))
	case n < 85: // the writer hears of what landed
		w.show(w.writer)
	case n < 93:
		w.show(w.servers[w.rng.IntN(len(w.servers))])
	case n < 97:
		w.giveUp()
	case n < 99:
		w.deliver()
	case w.chance(5):
		w.change()
	}
}

// start makes a process. A writer does not open yet.
func (w *world) start(role Role) *server {
	s := &server{id: len(w.servers) + 1, role: role}
	w.servers = append(w.servers, s)
	w.h.Processes = append(w.h.Processes, Process{ID: s.id, Name: fmt.Sprint(role, s.id), Role: role, Started: w.tick()})
	if role == Replica {
		w.h.Processes[s.id-1].Ready = w.tick()
	}
	return s
}

// open makes a process the writer: it takes what landed from the one before, and passes it.
func (w *world) open(s *server) {
	if old := w.writer; old != nil {
		w.land(w.rng.IntN(3)) // was on its way, and got there before the fence
		old.passed, old.seen = true, len(w.durable)
	}
	s.base, s.next = w.limit, w.limit
	w.limit += 1000
	s.shown = len(w.durable)
	w.writer = s
	w.h.Processes[s.id-1].Ready = w.tick()
}

// change ends a process, or has another writer take over.
func (w *world) change() {
	s := w.servers[w.rng.IntN(len(w.servers))]
	switch {
	case s == w.writer || w.chance(3):
		if w.chance(2) {
			w.end(w.writer)
		}
		w.open(w.start(Writer))
	case !s.ended:
		w.end(s)
		if s.role == Replica {
			w.start(Replica)
		}
	}
}

// end kills a process: nobody gets an answer of it any more.
func (w *world) end(s *server) {
	s.ended = true
	w.h.Processes[s.id-1].Ended = w.tick()
	for _, c := range w.calls {
		if c.server == s {
			w.unknown(c)
		}
	}
}

// land makes the first n assigned changes of the writer durable.
func (w *world) land(n int) {
	s := w.writer
	n = min(n, len(s.assigned))
	w.durable = append(w.durable, s.assigned[:n]...)
	s.assigned = slices.Clone(s.assigned[n:])
}

// show moves what a process shows.
func (w *world) show(s *server) {
	most := len(w.durable)
	if s.passed {
		most = s.seen
	}
	if s.shown < most {
		s.shown += 1 + w.rng.IntN(most-s.shown)
	}
}

// frontier is the first sequence that a process does not show.
func (w *world) frontier(s *server) uint64 {
	f := s.base
	for _, c := range w.durable[:s.shown] {
		if len(c.records) > 0 {
			f = max(f, c.end())
		}
	}
	return f
}

// shownOf returns the records of a key that a process shows, within a range.
func (w *world) shownOf(s *server, key string, start, end uint64) []Record {
	return recordsOf(w.durable[:s.shown], key, start, end)
}

func recordsOf(changes []*change, key string, start, end uint64) []Record {
	var out []Record
	for _, c := range changes {
		for i, r := range c.records {
			if seq := c.first + uint64(i); r.Key == key && seq >= start && seq < end {
				out = append(out, Record{seq, c.stamp, r.Value})
			}
		}
	}
	return out
}

// given returns all changes that a writer has given sequences, or found.
func (w *world) given(s *server) []*change {
	found := w.durable
	if s.passed {
		found = w.durable[:s.seen]
	}
	return slices.Concat(found, s.assigned)
}

// assign gives a batch its sequences. What a writer that was passed assigns goes nowhere.
func (w *world) assign(s *server, c *change) {
	if w.chance(3) {
		w.stamp += 1 + w.rng.Int64N(5)
	}
	c.stamp = w.stamp
	c.first = s.next
	s.next += uint64(len(c.records))
	s.assigned = append(s.assigned, c)
}

// isShown reports whether a process shows a change.
func (w *world) isShown(s *server, c *change) bool { return slices.Contains(w.durable[:s.shown], c) }

// cursorsOf returns the cursors of a consumer after some changes.
func cursorsOf(changes []*change, consumer string) map[string]uint64 {
	out := make(map[string]uint64)
	for _, c := range changes {
		for _, k := range c.cursors {
			if c.consumer == consumer {
				out[k.Key] = max(out[k.Key], k.Sequence)
			}
		}
	}
	return out
}

// finish ends everything, and has a fresh writer read what there is.
func (w *world) finish() {
	for _, s := range w.servers {
		if !s.ended {
			w.end(s)
		}
	}
	last := w.start(Writer)
	w.open(last)
	f := &Final{Records: make(map[string][]Record), Cursors: make(map[string]map[string]uint64), Frontier: w.frontier(last)}
	for _, key := range worldKeys {
		if recs := w.shownOf(last, key, 0, top); len(recs) > 0 {
			f.Records[key] = recs
		}
	}
	for _, consumer := range worldConsumers {
		f.Cursors[consumer] = cursorsOf(w.durable, consumer)
	}
	w.h.Final = f
}
