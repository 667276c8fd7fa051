package state

import (
	"slices"
	"strings"
	"unsafe"
)

// producer is what is remembered of one producer: its last appends, oldest first. Their sequences ascend by one.
type producer struct {
	owner *owner
	stamp uint64
	last  uint64 // sequence of its last append
	marks []appended
}

// appended is a Mark without its sequence.
type appended struct {
	first     uint64
	timestamp int64
	count     uint32
}

type producerItem struct {
	name     string
	producer *producer
}

// ageItem is a producer by its last append. Log sequences ascend, whatever the clock does.
type ageItem struct {
	first uint64
	name  string
}

func (a ageItem) less(b ageItem) bool {
	if a.first != b.first {
		return a.first < b.first
	}
	return a.name < b.name
}

func (i producerItem) heap() int64 {
	return stringHeap(i.name) + allocated(int(unsafe.Sizeof(*i.producer))) +
		int64(cap(i.producer.marks))*int64(unsafe.Sizeof(appended{}))
}

func (i producerItem) age() ageItem {
	return ageItem{i.producer.marks[len(i.producer.marks)-1].first, i.name}
}

// Mark notes an append that was applied. A sequence that does not follow the producer's last begins anew, and what
// was remembered of the producer is forgotten: it had been forgotten before, under a lower limit, when the append was accepted.
func (t *Tables) Mark(name string, m Mark) {
	if t.limits.Producers < 1 {
		return
	}
	item, ok := t.takeProducer(name)
	if !ok {
		t.trim(1)
		item = producerItem{name: strings.Clone(name)}
	}
	p := t.ownProducer(item.producer)
	if m.Sequence != p.last+1 {
		p.marks = p.marks[:0]
	}
	if len(p.marks) == ProducerWindow {
		p.marks = slices.Delete(p.marks, 0, 1)
	}
	p.marks = append(roomFor(p.marks, 1), appended{m.First, m.Timestamp, m.Count})
	p.last, p.stamp = m.Sequence, t.change()
	item.producer = p
	t.putProducer(item)
}

// Lookup says what an append with a sequence of a producer is. For a Repeat, m says what the first was assigned.
func (t *Tables) Lookup(name string, sequence uint64) (m Mark, found Found) {
	item, ok := t.producers.Get(producerItem{name: name})
	if !ok {
		return Mark{}, Fresh
	}
	p := item.producer
	switch {
	case sequence > p.last && sequence-p.last == 1:
		return Mark{}, Fresh
	case sequence > p.last:
		return Mark{}, Gap
	case p.last-sequence >= uint64(len(p.marks)):
		return Mark{}, TooOld
	}
	a := p.marks[len(p.marks)-1-int(p.last-sequence)]
	return Mark{Sequence: sequence, First: a.first, Count: a.count, Timestamp: a.timestamp}, Repeat
}

// LastOf returns the sequence of a producer's last append; false if none is remembered.
func (t *Tables) LastOf(name string) (sequence uint64, ok bool) {
	item, ok := t.producers.Get(producerItem{name: name})
	if !ok {
		return 0, false
	}
	return item.producer.last, true
}

// ownProducer returns a producer that these tables may change: a copy if it is shared, a new one for nil.
func (t *Tables) ownProducer(p *producer) *producer {
	switch {
	case p == nil:
		return &producer{owner: t.owner}
	case p.owner != t.owner:
		return &producer{owner: t.owner, stamp: p.stamp, last: p.last, marks: append([]appended(nil), p.marks...)}
	}
	return p
}

// setProducer puts everything that is remembered of a producer in the place of what was. The caller trims.
func (t *Tables) setProducer(name string, last uint64, marks []appended) {
	if t.limits.Producers < 1 {
		return
	}
	t.takeProducer(name)
	t.putProducer(producerItem{name, &producer{owner: t.owner, stamp: t.change(), last: last, marks: append([]appended(nil), marks...)}})
}

// deleteProducer forgets a producer.
func (t *Tables) deleteProducer(name string) {
	if item, ok := t.takeProducer(name); ok {
		t.remember(goneItem{producer: true, name: item.name, stamp: t.change()})
	}
}

// trim forgets producers until so many more are within the limit: those that appended longest ago.
func (t *Tables) trim(more int) {
	for t.producers.Len()+more > t.limits.Producers && t.producers.Len() > 0 {
		oldest, _ := t.oldest.Min()
		t.deleteProducer(oldest.name)
	}
}

// takeProducer takes a producer out of the trees, to be changed and put back or to be gone.
func (t *Tables) takeProducer(name string) (producerItem, bool) {
	item, ok := t.producers.Delete(producerItem{name: name})
	if ok {
		t.oldest.Delete(item.age())
		t.heap -= item.heap()
	}
	return item, ok
}

func (t *Tables) putProducer(item producerItem) {
	t.producers.ReplaceOrInsert(item)
	t.oldest.ReplaceOrInsert(item.age())
	t.heap += item.heap()
	t.restore(item.name)
}
