package state

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/annalsdb/annals/internal/base"
)

// EncodeBase returns the base object of everything. The id is that of the object: its checksums are seeded with it.
func (t *Tables) EncodeBase(id base.ULID) []byte {
	e := t.newEncoder(id, kindBase, base.ULID{})
	t.consumers.Ascend(func(c consumerItem) bool {
		e.cursors(t, c.name, 0)
		return true
	})
	t.producers.Ascend(func(p producerItem) bool {
		e.producer(p.name, p.producer)
		return true
	})
	return e.finish()
}

// EncodeChanges returns the object of what changed since a base: the one with the id of, which is in force. The id is that
// of the new object. It takes time for each block of cursors and each producer, and for each cursor of the blocks that changed.
func (t *Tables) EncodeChanges(id, of base.ULID) []byte {
	e := t.newEncoder(id, kindChanges, of)
	for _, name := range t.changedConsumers() {
		if t.gone.Has(goneItem{name: name}) {
			e.consumerAnew(name)
		}
		e.cursors(t, name, t.base)
	}
	e.changedProducers(t)
	return e.finish()
}

// changedConsumers returns the names of consumers of which something changed since the base, in order.
func (t *Tables) changedConsumers() (names []string) {
	for _, m := range []*blocks{&t.cursors, &t.goneCursors} {
		m.tree.Ascend(func(item blockItem) bool {
			if item.block.stamp > t.base && (len(names) == 0 || names[len(names)-1] != item.consumer) {
				names = append(names, item.consumer)
			}
			return true
		})
	}
	t.gone.Ascend(func(g goneItem) bool {
		if !g.producer {
			names = append(names, g.name)
		}
		return true
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// encoder builds a state object.
type encoder struct {
	id       base.ULID
	out      []byte
	frame    []byte // the payload of the frame at hand
	consumer string // whose cursors come
	opened   bool   // the consumer is in the object
	changes  bool
	counts   Counts
}

func (t *Tables) newEncoder(id base.ULID, kind byte, of base.ULID) *encoder {
	if t.limits.Keep != nil {
		panic("state: tables that leave cursors out are not a snapshot")
	}
	header := make([]byte, headerBytes-sumBytes, headerBytes)
	copy(header, magic)
	le.PutUint32(header[offVersion:], FormatVersion)
	header[offKind] = kind
	copy(header[offBase:], of[:])
	return &encoder{id: id, changes: kind == kindChanges, out: appendSum(header, id, 0)}
}

// cursors writes the cursors of a consumer with stamps above since, and, in changes, those that are gone.
func (e *encoder) cursors(t *Tables, consumer string, since uint64) {
	e.opened = e.opened && e.consumer == consumer
	e.consumer = consumer
	var gone [][]byte
	if e.changes {
		t.goneCursors.ascend(consumer, nil, func(item blockItem) bool {
			for i := range item.block.slots {
				gone = append(gone, item.block.key(i))
			}
			return true
		})
	}
	t.cursors.ascend(consumer, nil, func(item blockItem) bool {
		b := item.block
		if b.stamp <= since {
			return true
		}
		for i, s := range b.slots {
			if s.stamp <= since {
				continue
			}
			for len(gone) > 0 && bytes.Compare(gone[0], b.key(i)) < 0 {
				e.cursorGone(gone[0])
				gone = gone[1:]
			}
			e.cursor(b.key(i), s.next)
		}
		return true
	})
	for _, key := range gone {
		e.cursorGone(key)
	}
}

// changedProducers writes the producers that changed since the base, and those that are gone.
func (e *encoder) changedProducers(t *Tables) {
	var gone []string
	t.gone.Ascend(func(g goneItem) bool {
		if g.producer {
			gone = append(gone, g.name)
		}
		return true
	})
	t.producers.Ascend(func(p producerItem) bool {
		if p.producer.stamp <= t.base {
			return true
		}
		for len(gone) > 0 && gone[0] < p.name {
			e.producerGone(gone[0])
			gone = gone[1:]
		}
		e.producer(p.name, p.producer)
		return true
	})
	for _, name := range gone {
		e.producerGone(name)
	}
}

// consumerAnew writes that the cursors that a consumer has in the base are gone.
func (e *encoder) consumerAnew(name string) {
	e.consumer = name
	e.open(tagConsumerAnew)
}

// open writes whose cursors come.
func (e *encoder) open(tag byte) {
	e.add(appendName([]byte{tag}, e.consumer))
	e.opened = true
	e.counts.Consumers++
}

func (e *encoder) cursor(key []byte, next uint64) {
	entry := appendName([]byte{tagCursor}, key)
	e.addCursor(binary.AppendUvarint(entry, next))
	e.counts.Cursors++
}

func (e *encoder) cursorGone(key []byte) {
	e.addCursor(appendName([]byte{tagCursorGone}, key))
	e.counts.CursorsGone++
}

// addCursor adds an entry that needs to follow its consumer, in the same frame.
func (e *encoder) addCursor(entry []byte) {
	switch {
	case !e.opened:
		e.open(tagConsumer)
		if len(e.frame)+len(entry) <= frameTarget {
			break
		}
		fallthrough
	case len(e.frame)+len(entry) > frameTarget:
		e.cut()
		e.frame = appendName(append(e.frame, tagConsumer), e.consumer)
	}
	e.frame = append(e.frame, entry...)
}

func (e *encoder) producer(name string, p *producer) {
	entry := binary.AppendUvarint(appendName([]byte{tagProducer}, name), p.last)
	entry = binary.AppendUvarint(entry, uint64(len(p.marks)))
	var before appended
	for _, a := range p.marks {
		entry = binary.AppendUvarint(entry, a.first-before.first)
		entry = binary.AppendVarint(entry, a.timestamp-before.timestamp)
		entry = binary.AppendUvarint(entry, uint64(a.count))
		before = a
	}
	e.add(entry)
	e.counts.Producers++
}

func (e *encoder) producerGone(name string) {
	e.add(appendName([]byte{tagProducerGone}, name))
	e.counts.ProducersGone++
}

// add adds an entry, to a new frame if it does not fit into the one at hand.
func (e *encoder) add(entry []byte) {
	if len(e.frame)+len(entry) > frameTarget {
		e.cut()
	}
	e.frame = append(e.frame, entry...)
}

// cut ends the frame at hand, unless it is empty.
func (e *encoder) cut() {
	if len(e.frame) > 0 {
		e.out = appendFrame(e.out, e.id, e.frame)
		e.frame = e.frame[:0]
		e.counts.Frames++
	}
}

func (e *encoder) finish() []byte {
	e.cut()
	at := len(e.out)
	for _, n := range e.counts.list() {
		e.out = le.AppendUint64(e.out, *n)
	}
	return appendSum(e.out, e.id, at)
}

func appendName[T string | []byte](out []byte, name T) []byte {
	return append(binary.AppendUvarint(out, uint64(len(name))), name...)
}
