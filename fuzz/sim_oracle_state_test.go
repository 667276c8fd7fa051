package fuzz

import (
	"fmt"
	"maps"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/state"
	walfile "github.com/annalsdb/annals/wal"
)

// simSmall is the small state by the log: cursors and producers.
type simSmall struct {
	o        *oracle
	now      *smallModel // by all of the log
	flushed  *smallModel // by what lies before position
	dirty    bool        // flushed has changed since it was compared with the state objects
	versions map[string][]simVersion
	marks    map[simMarkKey]simMark
	asked    map[simCursorKey]simWish // what clients wanted cursors to be

	producers int             // that are remembered at most
	names     map[string]bool // of all producers
	forgotten map[string]bool // those that were forgotten once: their appends may come again
}

// simVersion is one version of a consumer's cursors.
type simVersion struct {
	step int // since when it is durable
	of   map[string]uint64
}

// simMarkKey is an append of a producer.
type simMarkKey struct {
	producer string
	number   uint64
}

// simMark is what it was assigned.
type simMark struct {
	first, end uint64
	timestamp  int64
}

// simCursorKey is a value of a cursor.
type simCursorKey struct {
	consumer, key string
	next          uint64
}

type simWish struct{ forced bool }

func newSimSmall(o *oracle) *simSmall {
	return &simSmall{
		o: o, now: newSmallModel(), flushed: newSmallModel(),
		versions: map[string][]simVersion{}, marks: map[simMarkKey]simMark{}, asked: map[simCursorKey]simWish{},
		producers: engine.DefaultMaxProducers, names: map[string]bool{}, forgotten: map[string]bool{},
	}
}

// limit says how many producers the writers of the log remember; 0: the default.
func (s *simSmall) limit(producers int) {
	if producers > 0 {
		s.producers = producers
	}
}

// forgets reports whether there are more producers than are remembered.
func (s *simSmall) forgets() bool { return len(s.names) > s.producers }

// wanted notes what a client wants of cursors.
func (s *simSmall) wanted(c *simCall) {
	for _, cursor := range c.cursors {
		key := simCursorKey{c.consumer, string(cursor.Key), cursor.Next}
		s.asked[key] = simWish{s.asked[key].forced || c.force}
	}
}

// add takes in the changes of an object that became part of the log.
func (s *simSmall) add(at manifest.Pos, x *simObject) {
	marked := map[uint64]bool{}
	for i := range x.changes {
		e := &x.changes[i]
		switch e.Type {
		case walfile.EntryCursor:
			s.checkCursor(at, &e.Cursor)
		case walfile.EntryProducer:
			s.checkMark(at, x, &e.Producer)
			marked[e.Producer.First] = true
		}
		if gone := s.apply(s.now, e); gone != "" {
			s.forget(gone)
		}
		if e.Type == walfile.EntryProducer {
			s.marks[simMarkKey{e.Producer.Producer, e.Producer.Sequence}] = simMark{e.Producer.First, e.Producer.End(), e.Producer.Timestamp}
		}
		if e.Type == walfile.EntryCursor {
			consumer := e.Cursor.Consumer
			s.versions[consumer] = append(s.versionsOf(consumer), simVersion{s.o.now, maps.Clone(s.now.cursors[consumer])})
		}
	}
	for _, b := range x.batches {
		if !marked[b.first] && len(b.calls) > 0 && b.calls[0].append.Producer != "" {
			s.o.broke("I1: object %v has the batch [%d, %d) without the mark of its producer %q", at, b.first, b.end, b.calls[0].append.Producer)
		}
	}
}

// versionsOf returns all versions of a consumer's cursors, oldest first: the first is that it has none.
func (s *simSmall) versionsOf(consumer string) []simVersion {
	if v := s.versions[consumer]; len(v) > 0 {
		return v
	}
	return []simVersion{{}}
}

// checkCursor looks at a change of a cursor: somebody wanted it, and only by force it goes back.
func (s *simSmall) checkCursor(at manifest.Pos, c *walfile.CursorChange) {
	if c.Op != walfile.CursorSet {
		return
	}
	wish, ok := s.asked[simCursorKey{c.Consumer, string(c.Key), c.Next}]
	was := s.now.cursors[c.Consumer][string(c.Key)]
	if !ok || c.Next < was && !wish.forced {
		s.o.broke("I4: object %v sets the cursor of %s for %q from %d to %d, and nobody wanted that (asked %v, forced %v)",
			at, c.Consumer, c.Key, was, c.Next, ok, wish.forced)
	}
}

// checkMark looks at a producer's mark: it is of a batch of its object, that a client asked for, and the next one.
func (s *simSmall) checkMark(at manifest.Pos, x *simObject, p *walfile.ProducerMark) {
	var batch *simBatch
	for _, b := range x.batches {
		if b.first == p.First && b.end == p.End() && b.timestamp == p.Timestamp {
			batch = b
		}
	}
	asked := false
	if batch != nil {
		for _, c := range batch.calls {
			asked = asked || c.append.Producer == p.Producer && c.append.ProducerSequence == p.Sequence
		}
	}
	if _, found := s.now.find(p.Producer, p.Sequence); !asked || found != state.Fresh {
		s.o.broke("I3: object %v has append %d of producer %q at [%d, %d): a client asked for it: %v; it is %v by what is before it",
			at, p.Sequence, p.Producer, p.First, p.End(), asked, found)
	}
}

// forget notes that a producer is not remembered any more: its appends may come again, and are others then.
func (s *simSmall) forget(producer string) {
	s.forgotten[producer] = true
	for key := range s.marks {
		if key.producer == producer {
			delete(s.marks, key)
		}
	}
	for key := range s.o.answers.durable {
		if key.producer == producer {
			delete(s.o.answers.durable, key)
		}
	}
}

// apply makes a change of the small state, and returns the producer that is forgotten because of it.
func (s *simSmall) apply(m *smallModel, e *walfile.Entry) (gone string) {
	switch e.Type {
	case walfile.EntryProducer:
		p := &e.Producer
		if len(m.producers[p.Producer]) == 0 && len(m.producers) >= s.producers {
			gone = m.oldestProducer()
			delete(m.producers, gone)
		}
		m.mark(p.Producer, modelMark{
			number: p.Sequence, first: p.First, count: int(p.Count), rec: &modelRecord{timestamp: p.Timestamp},
		})
	case walfile.EntryCursor:
		c := &e.Cursor
		switch c.Op {
		case walfile.CursorSet:
			m.set(c.Consumer, []engine.Cursor{{Key: c.Key, Next: c.Next}}, true)
		case walfile.CursorDelete:
			m.remove(c.Consumer, [][]byte{c.Key})
		case walfile.CursorDeleteConsumer:
			m.remove(c.Consumer, nil)
		}
	}
	return gone
}

// oldestProducer returns the one that appended longest ago.
func (m *smallModel) oldestProducer() (oldest string) {
	least := base.MaxSequence
	for name, marks := range m.producers {
		if first := marks[len(marks)-1].first; first < least {
			oldest, least = name, first
		}
	}
	return oldest
}

// flush takes in the changes of an object that position has passed.
func (s *simSmall) flush(x *simObject) {
	for i := range x.changes {
		s.apply(s.flushed, &x.changes[i])
		s.dirty = true
	}
}

// moved compares the state objects of a version with the log, if either has changed.
func (s *simSmall) moved(a, b *manifest.State) {
	if !s.dirty && sameRef(a.GetState(), b.GetState()) && sameRef(a.GetStateChanges(), b.GetStateChanges()) {
		return
	}
	s.dirty = false
	if err := s.compare(b); err != nil {
		s.o.broke("I1: version %d does not have the small state at %v: %w", b.GetVersion(), b.GetPosition().Pos(), err)
	}
}

func sameRef(a, b *manifest.ObjectRef) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID() == b.ID()
}

func (s *simSmall) compare(m *manifest.State) error {
	t, err := s.read(m)
	if err != nil {
		return err
	}
	consumers, cursors, producers := t.Counts()
	if consumers != len(s.flushed.cursors) || cursors != s.flushed.countCursors() || producers != len(s.flushed.producers) {
		return fmt.Errorf("it has %d consumers, %d cursors and %d producers; the log %d, %d and %d",
			consumers, cursors, producers, len(s.flushed.cursors), s.flushed.countCursors(), len(s.flushed.producers))
	}
	for consumer, of := range s.flushed.cursors {
		for key, want := range of {
			if got, ok := t.Cursor(consumer, []byte(key)); !ok || got != want {
				return fmt.Errorf("the cursor of %s for %q is %d (there: %v), not %d", consumer, key, got, ok, want)
			}
		}
	}
	for name, marks := range s.flushed.producers {
		for _, want := range marks {
			got, found := t.Lookup(name, want.number)
			if found != state.Repeat || got != (state.Mark{Sequence: want.number, First: want.first, Count: uint32(want.count), Timestamp: want.rec.timestamp}) {
				return fmt.Errorf("append %d of producer %q is %+v (%v), not at %d", want.number, name, got, found, want.first)
			}
		}
	}
	return nil
}

// read reads the state objects of a version.
func (s *simSmall) read(m *manifest.State) (*state.Tables, error) {
	limits := state.Limits{Producers: engine.DefaultMaxProducers}
	if m.GetState() == nil {
		return state.New(limits), nil
	}
	id := m.GetState().ID()
	body, err := s.o.object(id)
	if err != nil {
		return nil, err
	}
	t, err := state.DecodeBase(id.Name(), id.ULID, body, limits)
	if err != nil || m.GetStateChanges() == nil {
		return t, err
	}
	changes := m.GetStateChanges().ID()
	if body, err = s.o.object(changes); err != nil {
		return nil, err
	}
	return t, t.DecodeChanges(changes.Name(), changes.ULID, id.ULID, body)
}
