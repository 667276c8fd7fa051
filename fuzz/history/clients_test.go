package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

var (
	worldKeys      = []string{"a", "b", "ba", "c", "d"}
	worldConsumers = []string{"u", "v"}
)

// The clients of a world have so many requests in flight at most.
const mostInFlight = 8

// clients are what the clients of a world know.
type clients struct {
	values    int
	producers []*worldProducer
	followers []*worldFollower
}

// worldProducer numbers its appends and sends each until there is an answer.
type worldProducer struct {
	name    string
	next    uint64
	busy    bool
	pending []KeyValue // nil: none
}

// worldFollower is one connection after the other.
type worldFollower struct {
	op     int
	server *server
	follow *Follow
	at     map[string]uint64
	whole  uint64
}

func (c *clients) init(w *world) {
	for i := range 2 {
		c.producers = append(c.producers, &worldProducer{name: fmt.Sprint("p", i), next: uint64(i)})
	}
	for i, s := range [][]Stream{{{Key: "a"}}, {{Key: "b"}, {Key: "c"}}, {{Prefix: true}}, {{Key: "b", Prefix: true}, {Key: "a"}}} {
		f := &worldFollower{at: make(map[string]uint64)}
		w.connect(f, fmt.Sprint("f", i), s)
		c.followers = append(c.followers, f)
	}
}

func (w *world) key() string { return worldKeys[w.rng.IntN(len(worldKeys))] }

func (w *world) batch() []KeyValue {
	var out []KeyValue
	for range 1 + w.rng.IntN(3) {
		w.values++
		out = append(out, KeyValue{w.key(), fmt.Sprint("v", w.values)})
	}
	return out
}

// alive returns a process to ask: mostly the writer, any writer if it is to be one.
func (w *world) alive(role Role) *server {
	for {
		if s := w.servers[w.rng.IntN(len(w.servers))]; !s.ended && (role == "" || s.role == role) {
			return s
		} else if !w.writer.ended && w.chance(2) {
			return w.writer
		} else if w.writer.ended {
			w.open(w.start(Writer))
		}
	}
}

// begin takes down an operation that begins.
func (w *world) begin(s *server, o Operation, look func(*inFlight)) {
	o.Client, o.Process, o.Call = "c", s.id, w.tick()
	w.h.Operations = append(w.h.Operations, o)
	c := &inFlight{op: len(w.h.Operations) - 1, server: s}
	c.answer = func(*Operation) bool {
		look(c)
		return false
	}
	w.calls = append(w.calls, c)
}

// ask begins a request.
func (w *world) ask() {
	if len(w.calls) >= mostInFlight {
		return
	}
	switch n := w.rng.IntN(20); {
	case n < 8:
		w.askAppend()
	case n < 10:
		w.askProducer()
	case n < 12:
		w.askCursors()
	default:
		w.askRead()
	}
}

// look has the process of a request look at it: that is when it takes effect.
func (w *world) look() {
	if len(w.calls) == 0 {
		return
	}
	if c := w.calls[w.rng.IntN(len(w.calls))]; !c.began && !c.server.ended {
		c.began = true
		c.answer(nil)
	}
	w.forget()
}

// reply answers a request, if its answer is ready.
func (w *world) reply() {
	if len(w.calls) == 0 {
		return
	}
	c := w.calls[w.rng.IntN(len(w.calls))]
	o := &w.h.Operations[c.op]
	if !c.began || c.given || !c.answer(o) {
		return
	}
	o.Return = w.tick()
	if o.Outcome == Pending {
		o.Outcome = OK
	}
	c.given = true
	w.forget()
}

// giveUp has a client go away: its request may be looked at later, or never.
func (w *world) giveUp() {
	if len(w.calls) > 0 {
		w.unknown(w.calls[w.rng.IntN(len(w.calls))])
	}
}

// unknown ends a request for its client.
func (w *world) unknown(c *inFlight) {
	if o := &w.h.Operations[c.op]; !c.given {
		o.Outcome, o.Return = Unknown, w.tick()
		c.given = true
		if a := o.Append; a != nil && a.Producer != "" {
			w.settle(a, false)
		}
	}
}

// forget drops requests that nobody waits for and that cannot take effect any more.
func (w *world) forget() {
	w.calls = slices.DeleteFunc(w.calls, func(c *inFlight) bool { return c.given && (c.began || c.server.ended) })
}

// askAppend appends, with a condition or without.
func (w *world) askAppend() {
	a := &Append{Records: w.batch(), Memory: w.chance(2)}
	s := w.alive(Writer)
	if w.chance(3) {
		key := w.key()
		var next uint64
		if recs := w.shownOf(s, key, 0, top); len(recs) > 0 {
			next = recs[len(recs)-1].Sequence + 1
		}
		if w.chance(3) {
			key = a.Records[0].Key
		}
		a.ExpectedNext = []KeySequence{{key, next}}
	}
	w.begin(s, Operation{Append: a}, func(c *inFlight) { w.lookAppend(c, a) })
}

// askProducer goes on with a producer: with the append that has no answer yet, if there is one.
func (w *world) askProducer() {
	p := w.producers[w.rng.IntN(len(w.producers))]
	if p.busy {
		return
	}
	if p.pending == nil {
		p.pending = w.batch()
	}
	p.busy = true
	a := &Append{Records: p.pending, Producer: p.name, Number: p.next}
	w.begin(w.alive(Writer), Operation{Append: a}, func(c *inFlight) { w.lookAppend(c, a) })
}

// settle ends an attempt of a producer.
func (w *world) settle(a *Append, done bool) {
	for _, p := range w.producers {
		if p.name == a.Producer && p.next == a.Number {
			p.busy = false
			if done {
				p.next, p.pending = p.next+1, nil
			}
		}
	}
}

// lookAppend decides an append.
func (w *world) lookAppend(c *inFlight, a *Append) {
	s := c.server
	var mine *change
	for _, g := range w.given(s) {
		if a.Producer != "" && g.producer == a.Producer && g.number == a.Number {
			mine = g
		}
	}
	if mine == nil {
		for _, e := range a.ExpectedNext {
			if recs := recordsOf(w.given(s), e.Key, e.Sequence, top); len(recs) > 0 {
				w.refuse(c, KeySequence{e.Key, recs[len(recs)-1].Sequence})
				return
			}
		}
		if a.Producer != "" && s.passed {
			c.answer = func(*Operation) bool { return false } // it is never durable
			return
		}
		mine = &change{records: a.Records, producer: a.Producer, number: a.Number}
		w.assign(s, mine)
	}
	c.answer = func(o *Operation) bool {
		if !a.Memory && !w.isShown(s, mine) {
			return false
		}
		o.Append.First, o.Append.Timestamp = mine.first, mine.stamp
		if a.Producer != "" {
			w.settle(a, true)
		}
		return true
	}
}

// refuse answers for a condition when the record that refuses is shown.
func (w *world) refuse(c *inFlight, last KeySequence) {
	c.answer = func(o *Operation) bool {
		if len(w.shownOf(c.server, last.Key, last.Sequence, last.Sequence+1)) == 0 {
			return false
		}
		o.Outcome, o.Append.Conflict = Refused, &last
		return true
	}
}

// askCursors moves a cursor, or reads some.
func (w *world) askCursors() {
	consumer := worldConsumers[w.rng.IntN(len(worldConsumers))]
	if w.chance(2) {
		s := w.alive("")
		w.begin(s, Operation{GetCursors: &GetCursors{Consumer: consumer, Keys: worldKeys}}, func(c *inFlight) {
			at := cursorsOf(w.durable[:s.shown], consumer)
			c.answer = func(o *Operation) bool {
				for _, key := range slices.Sorted(maps.Keys(at)) {
					o.GetCursors.Answer = append(o.GetCursors.Answer, KeySequence{key, at[key]})
				}
				return true
			}
		})
		return
	}
	s := w.alive(Writer)
	set := &SetCursors{Consumer: consumer, Cursors: []KeySequence{{w.key(), w.rng.Uint64N(50)}}}
	w.begin(s, Operation{SetCursors: set}, func(c *inFlight) {
		mine := &change{consumer: consumer, cursors: set.Cursors, first: s.next}
		s.assigned = append(s.assigned, mine)
		value := cursorsOf(w.given(s), consumer)[set.Cursors[0].Key]
		c.answer = func(o *Operation) bool {
			o.SetCursors.Answer = []KeySequence{{set.Cursors[0].Key, value}}
			return w.isShown(s, mine)
		}
	})
}

// askRead reads of some process.
func (w *world) askRead() {
	s, key := w.alive(""), w.key()
	if w.chance(2) {
		s = w.writer
	}
	if s.ended {
		return
	}
	start, end := uint64(0), uint64(0)
	if w.chance(3) {
		start = w.rng.Uint64N(w.frontier(s) + 2)
	}
	if w.chance(5) {
		end = start + w.rng.Uint64N(20)
	}
	switch w.rng.IntN(4) {
	case 0:
		w.begin(s, Operation{Count: &Count{Key: key, Start: start, End: end}}, func(c *inFlight) {
			n := len(w.shownOf(s, key, start, orTop(end)))
			c.answer = func(o *Operation) bool { o.Count.Count = uint64(n); return true }
		})
	case 1:
		prefix := []string{"", "b", "x"}[w.rng.IntN(3)]
		w.begin(s, Operation{Keys: &Keys{Prefix: prefix}}, func(c *inFlight) {
			keys := slices.DeleteFunc(slices.Clone(worldKeys), func(key string) bool {
				return !strings.HasPrefix(key, prefix) || len(w.shownOf(s, key, 0, top)) == 0
			})
			c.answer = func(o *Operation) bool { o.Keys.Keys = keys; return true }
		})
	default:
		scan := Scan{Key: key, Start: start, End: end, Limit: 1 + w.rng.IntN(20)}
		if w.chance(4) {
			scan.Last = scan.Limit
		}
		w.begin(s, Operation{Scan: &scan}, func(c *inFlight) {
			page := scan
			w.fill(s, &page)
			c.answer = func(o *Operation) bool { *o.Scan = page; return true }
		})
	}
}

func orTop(end uint64) uint64 {
	if end == 0 {
		return top
	}
	return end
}

// fill reads a page.
func (w *world) fill(s *server, p *Scan) {
	p.Records = w.shownOf(s, p.Key, p.Start, orTop(p.End))
	p.Next = max(p.Start, min(orTop(p.End), w.frontier(s)))
	n := len(p.Records)
	switch {
	case p.Last > 0 && n > p.Last:
		p.Records = p.Records[n-p.Last:]
	case p.Last == 0 && n >= p.Limit:
		p.Records = p.Records[:p.Limit]
		p.Next = p.Records[p.Limit-1].Sequence + 1
	}
}

// connect opens a connection of a follower, to anybody, from where it was.
func (w *world) connect(f *worldFollower, name string, streams []Stream) {
	f.server = w.alive("")
	f.follow = &Follow{Name: name}
	f.at = maps.Clone(f.at)
	for _, s := range streams {
		s.Start = f.whole
		if !s.Prefix {
			s.Start = max(f.whole, f.at[s.Key])
		}
		f.follow.Streams = append(f.follow.Streams, s)
	}
	for _, key := range worldKeys { // what a prefix covers begins at what is complete
		for _, s := range f.follow.Streams {
			if s.Prefix && strings.HasPrefix(key, s.Key) {
				f.at[key] = f.whole
			}
		}
	}
	w.h.Operations = append(w.h.Operations, Operation{Client: name, Process: f.server.id, Call: w.tick(), Follow: f.follow})
	f.op = len(w.h.Operations) - 1
}

// deliver sends followers what there is, in part, and cuts connections.
func (w *world) deliver() {
	for _, f := range w.followers {
		if f.server.ended || w.chance(4) {
			o := &w.h.Operations[f.op]
			o.Outcome, o.Return = Unknown, w.tick()
			w.connect(f, f.follow.Name, f.follow.Streams)
		}
		frontier := w.frontier(f.server)
		if frontier < f.whole { // it is behind: it waits
			continue
		}
		all := true
		for _, key := range worldKeys {
			if !f.covers(key) {
				continue
			}
			for _, r := range w.shownOf(f.server, key, max(f.at[key], f.whole), top) {
				if all = all && !w.chance(6); !all {
					break
				}
				f.at[key] = r.Sequence + 1
				f.follow.Items = append(f.follow.Items, Item{Key: key, Record: r, Next: r.Sequence + 1, At: w.tick()})
			}
		}
		if all && w.chance(2) {
			f.whole = frontier
			f.follow.Items = append(f.follow.Items, Item{Complete: true, Next: frontier, At: w.tick()})
		}
	}
}

func (f *worldFollower) covers(key string) bool {
	return slices.ContainsFunc(f.follow.Streams, func(s Stream) bool { return s.Key == key || s.Prefix && strings.HasPrefix(key, s.Key) })
}
