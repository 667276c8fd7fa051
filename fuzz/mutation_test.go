package fuzz

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/annalsdb/annals/internal/base"
)

// A mutation is one change to the objects of a log: what damage, a wrong copy or a broken tool
// may do to them. Any 8 bytes are one, so that a fuzzer can make them.
type mutation struct {
	op     byte   // which of mutators
	class  byte   // which kind of object
	object byte   // which object of the kind
	other  byte   // which object the bytes come from; above 127: of another log
	at, to uint16 // two places in the object, in parts of 65,536
}

const (
	mutationBytes = 8
	maxMutations  = 4 // of one run
)

// parseMutations reads as many mutations as there are, up to the bound.
func parseMutations(data []byte) (all []mutation) {
	for len(data) >= mutationBytes && len(all) < maxMutations {
		d := data[:mutationBytes]
		all = append(all, mutation{
			op: d[0], class: d[1], object: d[2], other: d[3],
			at: uint16(d[4])<<8 | uint16(d[5]), to: uint16(d[6])<<8 | uint16(d[7]),
		})
		data = data[mutationBytes:]
	}
	return all
}

func (m mutation) bytes() []byte {
	return []byte{m.op, m.class, m.object, m.other, byte(m.at >> 8), byte(m.at), byte(m.to >> 8), byte(m.to)}
}

// String is the input of FuzzMutatedLog that makes this mutation.
func (m mutation) String() string { return hex.EncodeToString(m.bytes()) }

// A mutator returns what becomes of b. at <= to are places in it, o is the other object. Only b
// may be written to.
type mutator struct {
	name  string
	apply func(b, o []byte, at, to int) []byte
}

var mutators = []mutator{
	{"flip a bit", func(b, _ []byte, at, to int) []byte {
		if at < len(b) {
			b[at] ^= 1 << (to % 8)
		}
		return b
	}},
	{"change a byte", func(b, _ []byte, at, to int) []byte {
		if at < len(b) {
			b[at] = byte(to)
		}
		return b
	}},
	{"zero a stretch", func(b, _ []byte, at, to int) []byte { clear(b[at:to]); return b }},
	{"truncate", func(b, _ []byte, at, _ int) []byte { return b[:at] }},
	{"extend", func(b, o []byte, at, _ int) []byte { return append(b, o[:min(len(o), at%100)]...) }},
	{"cut a stretch out", func(b, _ []byte, at, to int) []byte { return slices.Delete(b, at, to) }},
	{"insert a stretch", func(b, o []byte, at, to int) []byte {
		return slices.Insert(b, at, o[min(at, len(o)):min(to, len(o))]...)
	}},
	{"copy a stretch over", func(b, o []byte, at, to int) []byte {
		copy(b[at:to], o[min(at, len(o)):])
		return b
	}},
	{"end as the other", func(b, o []byte, at, _ int) []byte { return append(b[:at], o[min(at, len(o)):]...) }},
	{"reorder stretches", func(b, _ []byte, at, to int) []byte {
		return slices.Concat(b[:at], b[to:], b[at:to])
	}},
	{"replace", func(_, o []byte, _, _ int) []byte { return slices.Clone(o) }},
	{swapObjects, func(_, o []byte, _, _ int) []byte { return slices.Clone(o) }}, // and the other way
}

// swapObjects is the mutator that changes two objects.
const swapObjects = "swap two objects"

func (m mutation) mutator() mutator { return mutators[int(m.op)%len(mutators)] }

// classOf is the kind of an object, as far as mutations are concerned.
func classOf(name string, body []byte) string {
	switch parts := strings.Split(name, "/"); {
	case len(parts) < 4:
		return parts[len(parts)-1] // LOG, MANIFEST
	case parts[2] == "wal" && len(body) == fenceBytes:
		return "fence"
	default:
		return parts[2]
	}
}

// fenceBytes is the size of a fence (docs/format/wal.md).
const fenceBytes = 64

// objects are the bodies of a log by name.
type objects map[string][]byte

// classes returns the names by kind, both sorted.
func (o objects) classes() (kinds []string, names map[string][]string) {
	names = make(map[string][]string)
	for _, name := range slices.Sorted(maps.Keys(o)) {
		class := classOf(name, o[name])
		names[class] = append(names[class], name)
	}
	return slices.Sorted(maps.Keys(names)), names
}

// mutate applies a mutation and returns a description of it. foreign is another log.
func (o objects) mutate(m mutation, foreign objects) string {
	kinds, names := o.classes()
	class := kinds[int(m.class)%len(kinds)]
	name := names[class][int(m.object)%len(names[class])]
	from, others := o, names[class]
	// With another LOG and another MANIFEST it would be another log.
	if _, there := foreign.classes(); m.other > 127 && len(there[class]) > 0 && class != base.LogName {
		from, others = foreign, there[class]
	}
	other := others[int(m.other)%len(others)]
	body := o[name]
	at, to := int(m.at)*(len(body)+1)>>16, int(m.to)*(len(body)+1)>>16
	by := m.mutator()
	changed := by.apply(bytes.Clone(body), from[other], min(at, to), max(at, to))
	if by.name == swapObjects {
		o[other] = bytes.Clone(body) // of another log too: then it is one object more
	}
	o[name] = changed
	return fmt.Sprintf("%v: %s %s (%d bytes, %d of it to %d) with %s", m, by.name, name, len(body), min(at, to), max(at, to), other)
}
