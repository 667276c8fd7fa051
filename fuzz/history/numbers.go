package history

import (
	"cmp"
	"maps"
	"slices"
)

// remembered is how many appends of a producer the log knows again.
const remembered = 64

// checkNumbers: a producer's numbers are taken one after the other, in the order of sequences, and refused
// only if they leave a gap or are too old.
func (c *checker) checkNumbers() {
	byProducer := make(map[string]map[uint64]*batch)
	for _, b := range c.log.batches {
		if a := c.h.Operations[b.attempts[0]].Append; a.Producer != "" {
			if byProducer[a.Producer] == nil {
				byProducer[a.Producer] = make(map[uint64]*batch)
			}
			byProducer[a.Producer][a.Number] = b
		}
	}
	for producer, batches := range byProducer {
		c.checkProducer(producer, batches)
	}
	for i := range c.h.Operations {
		if o := &c.h.Operations[i]; o.Append != nil && o.Outcome == Refused && o.Append.LastNumber != nil {
			c.checkRefusedNumber(i, o, byProducer[o.Append.Producer])
		}
	}
}

// checkProducer holds the numbers of one producer that are in the final log against one another.
func (c *checker) checkProducer(producer string, batches map[uint64]*batch) {
	var prev *batch
	var last uint64
	for _, n := range slices.SortedFunc(maps.Keys(batches), cmp.Compare[uint64]) {
		b := batches[n]
		if !b.final() {
			continue
		}
		x := Violation{Rule: RuleNumbers, Operations: b.attempts, Key: b.found[0].key, Sequence: b.first}
		switch {
		case prev == nil:
		case n != last+1:
			c.v.failf(x, "number %d of producer %q was taken, and the one before it that is in the final log is %d", n, producer, last)
		case b.first <= prev.last:
			c.v.failf(x, "number %d of producer %q has sequence %d, and the one before it %d", n, producer, b.first, prev.first)
		}
		prev, last = b, n
	}
}

// checkRefusedNumber: the last number that was taken is one that was sent, and not below one that was acknowledged, as far as the
// process must know.
func (c *checker) checkRefusedNumber(i int, o *Operation, batches map[uint64]*batch) {
	last, n := *o.Append.LastNumber, o.Append.Number
	x := Violation{Rule: RuleNumbers, Operations: []int{i}}
	if b := batches[last]; b == nil || b.call > o.Return {
		c.v.failf(x, "number %d was refused because the last one is %d, which nobody had sent", n, last)
		return
	}
	for m, b := range batches {
		if b.acked < o.Call && m > last && c.strong(o) {
			x.Operations = unique(append(b.attempts, i)...)
			c.v.failf(x, "number %d was refused because the last one is %d, after %d had been acknowledged", n, last, m)
			return
		}
	}
	if n == last+1 {
		c.v.failf(x, "number %d was refused, which is the one after %d", n, last)
	}
	if b := batches[n]; n <= last && last-n < remembered && b.acked < o.Call {
		x.Operations = unique(append(b.attempts, i)...)
		c.v.failf(x, "number %d was not known again, though it was acknowledged and the last one is %d", n, last)
	}
}
