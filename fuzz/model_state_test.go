package fuzz

import (
	"maps"
	"reflect"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/state"
)

// smallModel is what a log's small state must look like from outside.
type smallModel struct {
	cursors   map[string]map[string]uint64 // consumer, key
	producers map[string][]modelMark       // the last appends of each, oldest first
}

// modelMark is an append of a producer.
type modelMark struct {
	number, first uint64
	count         int
	rec           *modelRecord // its first record, which knows the timestamp
}

func newSmallModel() *smallModel {
	return &smallModel{cursors: map[string]map[string]uint64{}, producers: map[string][]modelMark{}}
}

func (s *smallModel) clone() *smallModel {
	c := newSmallModel()
	for consumer, of := range s.cursors {
		c.cursors[consumer] = maps.Clone(of)
	}
	for name, marks := range s.producers {
		c.producers[name] = append([]modelMark(nil), marks...)
	}
	return c
}

// set moves cursors and returns those in force.
func (s *smallModel) set(consumer string, cursors []engine.Cursor, force bool) []engine.Cursor {
	var inForce []engine.Cursor
	for _, c := range cursors {
		of := s.cursors[consumer]
		if of == nil {
			of = map[string]uint64{}
			s.cursors[consumer] = of
		}
		if next, ok := of[string(c.Key)]; !ok || force || next < c.Next {
			of[string(c.Key)] = c.Next
		}
		inForce = append(inForce, engine.Cursor{Key: c.Key, Next: of[string(c.Key)]})
	}
	return inForce
}

// remove deletes cursors, all of them if there are no keys.
func (s *smallModel) remove(consumer string, keys [][]byte) {
	for _, key := range keys {
		delete(s.cursors[consumer], string(key))
	}
	if len(keys) == 0 || len(s.cursors[consumer]) == 0 {
		delete(s.cursors, consumer)
	}
}

func (s *smallModel) countCursors() (n int) {
	for _, of := range s.cursors {
		n += len(of)
	}
	return n
}

// find says what an append of a producer is.
func (s *smallModel) find(name string, number uint64) (modelMark, state.Found) {
	marks := s.producers[name]
	if len(marks) == 0 {
		return modelMark{}, state.Fresh
	}
	last := marks[len(marks)-1].number
	switch {
	case number == last+1:
		return modelMark{}, state.Fresh
	case number > last:
		return modelMark{}, state.Gap
	case number < marks[0].number:
		return modelMark{}, state.TooOld
	}
	return marks[number-marks[0].number], state.Repeat
}

func (s *smallModel) mark(name string, m modelMark) {
	marks := append(s.producers[name], m)
	s.producers[name] = marks[max(0, len(marks)-state.ProducerWindow):]
}

// ledger is the order in which batches and changes of cursors were assigned. A reopening leaves a prefix of it:
// they share the WAL, and its objects become durable in order.
type ledger struct {
	now    *smallModel // with all events
	before *smallModel // without them
	events []event
}

// event is one change.
type event struct {
	end     uint64 // of a batch; 0: a change of cursors
	state   bool   // it changed cursors or producers
	apply   func(*smallModel)
	durable bool
}

func newLedger() *ledger { return &ledger{now: newSmallModel(), before: newSmallModel()} }

func (l *ledger) add(e event) {
	e.apply(l.now)
	l.events = append(l.events, e)
}

// allDurable notes that all that was assigned so far is durable.
func (l *ledger) allDurable() {
	for i := range l.events {
		l.events[i].durable = true
	}
}

// stateDurable notes that all of the small state that was assigned so far is durable, and so is what came before it.
func (l *ledger) stateDurable() {
	durable := false
	for i := len(l.events) - 1; i >= 0; i-- {
		durable = durable || l.events[i].state
		l.events[i].durable = l.events[i].durable || durable
	}
}

// change adds a change of cursors, if it is one.
func (l *ledger) change(durable bool, apply func(*smallModel)) {
	changed := l.now.clone()
	apply(changed)
	if !reflect.DeepEqual(changed.cursors, l.now.cursors) {
		l.add(event{state: true, apply: apply})
	}
	if durable {
		l.stateDurable()
	}
}

// restart goes on from what a reopening left: all batches up to end, and of the changes of cursors a prefix, which holds the
// durable ones and gives the cursors that were found. It reports whether there is one.
func (l *ledger) restart(end uint64, clean bool, fits func(*smallModel) bool) bool {
	least, most := 0, len(l.events)
	for i, e := range l.events {
		if e.durable || clean || e.end > 0 && e.end <= end {
			least = i + 1
		}
		if e.end > end {
			most = min(most, i)
		}
	}
	found := l.before.clone()
	for i := 0; i <= most; i++ {
		if i >= least && fits(found) {
			*l = ledger{now: found, before: found.clone()}
			return true
		}
		if i < most {
			l.events[i].apply(found)
		}
	}
	return false
}
