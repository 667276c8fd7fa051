package history

import "math"

// checkLog judges the final log by itself, and against what was said of appends: acknowledged ones are there
// once and whole, where their answers say; refused ones are not; unknown ones are there once and whole, or not
// at all; and nothing else is.
func (c *checker) checkLog() {
	for i, e := range c.log.entries {
		switch {
		case e.batch == nil:
			c.v.failf(Violation{Rule: RuleInvented, Key: e.key, Sequence: e.Sequence}, "the final log has %q with sequence %d in %q, which nobody appended", e.Value, e.Sequence, e.key)
		case e.batch.call == never:
			c.v.failf(Violation{Rule: RuleInvented, Operations: e.batch.attempts, Key: e.key, Sequence: e.Sequence},
				"the final log has %q with sequence %d in %q, whose append was refused", e.Value, e.Sequence, e.key)
		}
		if e.Sequence >= c.log.frontier {
			c.v.failf(Violation{Rule: RulePrefix, Key: e.key, Sequence: e.Sequence}, "the final log has sequence %d in %q, and its frontier is %d", e.Sequence, e.key, c.log.frontier)
		}
		if i == 0 {
			continue
		}
		prev := c.log.entries[i-1]
		if prev.Sequence == e.Sequence {
			c.v.failf(Violation{Rule: RuleReused, Operations: appendsOf(prev, e), Key: e.key, Sequence: e.Sequence},
				"the final log has sequence %d twice: %q in %q and %q in %q", e.Sequence, prev.Value, prev.key, e.Value, e.key)
		}
		if e.Timestamp < prev.Timestamp {
			c.v.failf(Violation{Rule: RuleOrder, Operations: appendsOf(prev, e), Key: e.key, Sequence: e.Sequence},
				"timestamps go back from %d (sequence %d) to %d (sequence %d)", prev.Timestamp, prev.Sequence, e.Timestamp, e.Sequence)
		}
	}
	c.checkKeysInOrder()
	for _, b := range c.log.batches {
		c.checkBatch(b)
	}
}

// checkKeysInOrder: the final log was read key by key, in the order in which it must be.
func (c *checker) checkKeysInOrder() {
	for key, recs := range c.h.Final.Records {
		for i := 1; i < len(recs); i++ {
			if recs[i].Sequence <= recs[i-1].Sequence {
				c.v.failf(Violation{Rule: RulePrefix, Key: key, Sequence: recs[i].Sequence},
					"the final log's key %q has sequence %d behind %d", key, recs[i].Sequence, recs[i-1].Sequence)
			}
		}
	}
}

// checkBatch holds one append against the final log.
func (c *checker) checkBatch(b *batch) {
	if !b.final() {
		if b.acked != never {
			c.v.failf(Violation{Rule: RuleLost, Operations: b.attempts, Key: b.records[0].Key, Sequence: c.h.Operations[b.claim].Append.First},
				"an append that was acknowledged as durable is not in the final log")
		}
		return
	}
	x := Violation{Operations: b.attempts, Key: b.found[0].key, Sequence: b.first}
	switch {
	case len(b.found) > len(b.records):
		x.Rule = RuleInvented
		c.v.failf(x, "an append of %d records is in the final log with %d: %v", len(b.records), len(b.found), sequences(b.found))
		return
	case len(b.found) < len(b.records):
		x.Rule = RuleAtomic
		if b.acked != never {
			x.Rule = RuleLost
		}
		c.v.failf(x, "of an append of %d records the final log has only %d: %v", len(b.records), len(b.found), sequences(b.found))
		return
	}
	for i, e := range b.found {
		x.Key, x.Sequence = e.key, e.Sequence
		switch {
		case e.key != b.records[i].Key || e.Value != b.records[i].Value:
			x.Rule = RuleAtomic
			c.v.failf(x, "record %d of an append is in the final log as %q in %q", i, e.Value, e.key)
			return
		case e.Sequence != b.first+uint64(i):
			x.Rule = RuleAtomic
			c.v.failf(x, "the sequences of an append are not consecutive: %v", sequences(b.found))
			return
		case e.Timestamp != b.found[0].Timestamp:
			x.Rule = RuleAtomic
			c.v.failf(x, "the records of an append have timestamps %d and %d", b.found[0].Timestamp, e.Timestamp)
			return
		}
	}
	for _, i := range b.attempts {
		a := c.h.Operations[i].Append
		if c.h.Operations[i].Outcome == OK && (a.First != b.first || a.Timestamp != b.found[0].Timestamp) {
			x.Rule, x.Key, x.Sequence = RuleReused, b.found[0].key, a.First
			c.v.failf(x, "an append was acknowledged with sequence %d and timestamp %d, and is in the final log with %d and %d",
				a.First, a.Timestamp, b.first, b.found[0].Timestamp)
		}
	}
}

// sighting is a record that a client was told of, one way or the other.
type sighting struct {
	key   string
	rec   Record
	op    int
	known bool // it was read: it is durable
}

// checkSightings: a sequence names the same record for everyone for ever, and what was read stays.
func (c *checker) checkSightings() {
	claims := make(map[uint64]sighting) // of sequences that the final log does not have
	for i := range c.h.Operations {
		c.h.Operations[i].sightings(i, func(s sighting) { c.sight(s, claims) })
	}
}

// sight compares one sighting with the final log, and with others if that does not have it.
func (c *checker) sight(s sighting, claims map[uint64]sighting) {
	x := Violation{Rule: RuleReused, Operations: []int{s.op}, Key: s.key, Sequence: s.rec.Sequence}
	if e, ok := c.log.at(s.rec.Sequence); ok {
		if e.key != s.key || e.Record != s.rec {
			x.Operations = unique(append(appendsOf(e), s.op)...)
			c.v.failf(x, "sequence %d is %q in %q with timestamp %d here, and %q in %q with %d in the final log", s.rec.Sequence,
				s.rec.Value, s.key, s.rec.Timestamp, e.Value, e.key, e.Timestamp)
		}
		return
	}
	if s.known {
		y := x
		y.Rule = RuleLost
		c.v.failf(y, "sequence %d of %q was read as %q, and is not in the final log", s.rec.Sequence, s.key, s.rec.Value)
	}
	other, seen := claims[s.rec.Sequence]
	if !seen {
		claims[s.rec.Sequence] = s
		return
	}
	if other.key != s.key || other.rec != s.rec {
		x.Operations = unique(other.op, s.op)
		c.v.failf(x, "sequence %d is %q in %q for one, and %q in %q for another", s.rec.Sequence, other.rec.Value, other.key, s.rec.Value, s.key)
	}
}

// sightings yields the records that an operation's answer tells of.
func (o *Operation) sightings(op int, yield func(sighting)) {
	if o.Follow != nil { // whatever its end was, what came came
		for _, it := range o.Follow.Items {
			if !it.Complete {
				yield(sighting{it.Key, it.Record, op, true})
			}
		}
		return
	}
	if o.Outcome != OK {
		return
	}
	switch {
	case o.Append != nil:
		for i, r := range o.Append.Records {
			yield(sighting{r.Key, Record{o.Append.First + uint64(i), o.Append.Timestamp, r.Value}, op, false})
		}
	case o.Scan != nil:
		for _, r := range o.Scan.Records {
			yield(sighting{o.Scan.Key, r, op, true})
		}
	}
}

// checkConditions: an append that was accepted found no record that its conditions exclude, of those that came before
// it; one that was refused names one.
func (c *checker) checkConditions() {
	for _, b := range c.log.batches {
		switch {
		case b.final():
			c.checkAccepted(b, b.first)
		case b.claim >= 0:
			c.checkAccepted(b, c.h.Operations[b.claim].Append.First)
		}
	}
	for i := range c.h.Operations {
		o := &c.h.Operations[i]
		if o.Append == nil || o.Outcome != Refused || o.Append.Conflict == nil {
			continue
		}
		if last := *o.Append.Conflict; !excludes(o.Append.ExpectedNext, last) {
			c.v.failf(Violation{Rule: RuleOrder, Operations: []int{i}, Key: last.Key, Sequence: last.Sequence}, "an append was refused for what it does not exclude")
		}
	}
}

// checkAccepted holds the conditions of an append whose first sequence is given against what came before it.
func (c *checker) checkAccepted(b *batch, first uint64) {
	for _, e := range b.expected {
		if between := c.log.within(e.Key, e.Sequence, first); len(between) > 0 {
			c.v.failf(Violation{Rule: RuleOrder, Operations: unique(append(appendsOf(between[0]), b.attempts...)...), Key: e.Key, Sequence: between[0].Sequence},
				"an append that expects nothing of %q at or above %d was accepted with sequence %d, behind %d", e.Key, e.Sequence, first, between[0].Sequence)
		}
	}
}

func excludes(conditions []KeySequence, last KeySequence) bool {
	for _, e := range conditions {
		if e.Key == last.Key && last.Sequence >= e.Sequence {
			return true
		}
	}
	return false
}

// appendsOf returns the attempts of the appends of some records.
func appendsOf(entries ...entry) []int {
	var ops []int
	for _, e := range entries {
		if e.batch != nil {
			ops = append(ops, e.batch.attempts...)
		}
	}
	return unique(ops...)
}

func sequences(entries []entry) []uint64 {
	var seqs []uint64
	for _, e := range entries {
		seqs = append(seqs, e.Sequence)
	}
	return seqs
}

// top is a frontier above everything.
const top = uint64(math.MaxUint64)
