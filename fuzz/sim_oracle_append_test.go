package fuzz

import (
	"errors"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/state"
)

// refusedAppend reports whether a client was told that nothing was appended.
func refusedAppend(c *simCall) bool {
	var failed *engine.AppendError
	return c.ended != 0 && errors.As(c.err, &failed) && failed.Outcome == engine.NotAppended
}

// appended looks at the answer of an append.
func (o *oracle) appended(c *simCall) {
	switch {
	case c.err != nil:
		o.notAppended(c)
	case len(c.records) == 0:
		if c.res != (engine.AppendResult{}) {
			o.broke("I3: the empty append %d was given %+v", c.id, c.res)
		}
	case c.res.Repeated:
		o.repeated(c)
	case o.assigned(c) && c.ack != engine.Memory:
		o.acknowledged(c)
	}
	if c.err == nil && c.ack != engine.Memory && len(c.records) > 0 {
		o.answers.floor = max(o.answers.floor, c.res.Last+1)
	}
	o.keepAnswer(c)
}

// notAppended looks at an append that failed. If nothing was appended, none of it was sent, nor ever will be.
func (o *oracle) notAppended(c *simCall) {
	var failed *engine.AppendError
	if !errors.As(c.err, &failed) {
		o.broke("append %d of process %d ends with an error that does not say its outcome: %w", c.id, c.proc.id, c.err)
	}
	if !refusedAppend(c) {
		return
	}
	o.answers.asked -= sizeOf(c.records)
	for i := range c.records {
		v := o.valueOf(string(c.records[i].Value))
		others := 0
		for _, call := range v.calls {
			if !refusedAppend(call) {
				others++
			}
		}
		if v.sent && others == 0 {
			o.broke("F48: process %d says that append %d had no effect, and its value %q was sent: %w", c.proc.id, c.id, c.records[i].Value, c.err)
		}
	}
	var conflict *engine.ConditionError
	if errors.As(c.err, &conflict) {
		o.refusedFor(c, conflict)
	}
	var producer *engine.ProducerError
	if errors.As(c.err, &producer) {
		o.refusedNumber(c, producer)
	}
}

// refusedFor looks at why a conditional append was refused: the key has such a record.
func (o *oracle) refusedFor(c *simCall, e *engine.ConditionError) {
	expected := false
	for _, x := range c.append.ExpectedNext {
		expected = expected || string(x.Key) == string(e.Key) && x.Next <= e.Last
	}
	if r := o.log.named[e.Last]; !expected || r != nil && r.key != string(e.Key) {
		o.broke("I4: append %d of process %d was refused for a record %d of key %q, which it does not expect (%v) or which is of another key",
			c.id, c.proc.id, e.Last, e.Key, expected)
	}
}

// refusedNumber looks at why an append of a producer was refused: it leaves others out, or is too old to be remembered.
func (o *oracle) refusedNumber(c *simCall, e *engine.ProducerError) {
	n := c.append.ProducerSequence
	if e.Sequence != n || e.Producer != c.append.Producer || n == e.Last+1 || n <= e.Last && e.Last-n < state.ProducerWindow && o.remembered(e) {
		o.broke("I3: process %d refuses append %d of producer %q: its last is %d", c.proc.id, n, e.Producer, e.Last)
	}
}

// remembered reports whether the log has the mark of the refused append, and no writer may have forgotten it.
func (o *oracle) remembered(e *engine.ProducerError) bool {
	_, ok := o.small.marks[simMarkKey{e.Producer, e.Sequence}]
	return ok && !o.small.forgets()
}

// assigned looks at the sequences that an append was given: they name its records for ever (I3).
func (o *oracle) assigned(c *simCall) bool {
	n, e := uint64(len(c.records)), o.log.epochs[c.proc.epoch]
	switch {
	case c.res.Last-c.res.First+1 != n:
		o.broke("I3: append %d of %d records was given sequences %d to %d", c.id, n, c.res.First, c.res.Last)
		return false
	case e == nil || c.res.First < e.begins || c.res.Last >= e.limit:
		o.broke("I3: append %d at process %d of epoch %d was given sequences %d to %d, which that epoch may not assign",
			c.id, c.proc.id, c.proc.epoch, c.res.First, c.res.Last)
		return false
	case c.res.Last >= o.head.state.GetSeqLimit():
		o.broke("I3: append %d was given sequences up to %d, the limit is %d", c.id, c.res.Last, o.head.state.GetSeqLimit())
	}
	for i := range c.records {
		rec := c.records[i]
		rec.Sequence, rec.Timestamp = c.res.First+uint64(i), c.res.Timestamp
		o.log.name(&rec)
	}
	return true
}

// acknowledged looks at an append that is durable by what its client was told: its batch is part of the log (I1), which it never is
// if its object came behind a fence or a gap (I2, F5).
func (o *oracle) acknowledged(c *simCall) {
	r := o.log.named[c.res.First]
	switch b := r.batch; {
	case !r.live:
		o.broke("I1: append %d [%d, %d] is acknowledged by process %d of epoch %d, and not in the log",
			c.id, c.res.First, c.res.Last, c.proc.id, c.proc.epoch)
	case b.first != c.res.First || b.end != c.res.Last+1:
		o.broke("I1: append %d [%d, %d] is in the log as a part of [%d, %d)", c.id, c.res.First, c.res.Last, b.first, b.end)
	case b.epoch != c.proc.epoch:
		o.broke("I2: append %d of epoch %d is in the log by epoch %d", c.id, c.proc.epoch, b.epoch)
	}
	if c.append.Producer == "" {
		return
	}
	if m, ok := o.small.marks[markOf(c)]; (!ok || !m.is(&c.res)) && !o.small.forgets() {
		o.broke("I1: append %d, number %d of producer %q, is acknowledged at %+v; its mark in the log is %+v (there: %v)",
			c.id, c.append.ProducerSequence, c.append.Producer, c.res, m, ok)
	}
}

// repeated looks at the answer to a repeat: it is that of the first. A writer that was passed may say from memory what it
// gave itself. What has been forgotten since, because others appended, tells nothing.
func (o *oracle) repeated(c *simCall) {
	m, ok := o.small.marks[markOf(c)]
	if c.append.Producer == "" || ok && !m.is(&c.res) && o.binding(c) || !ok && c.ack != engine.Memory && !o.small.forgets() {
		o.broke("I3: append %d, number %d of producer %q, is a repeat of what was given %+v; by the log that was %+v (there: %v)",
			c.id, c.append.ProducerSequence, c.append.Producer, c.res, m, ok)
	}
}

// binding reports whether an answer holds whatever happens later, or is that of the current writer, who knows all such
// answers, unless it has forgotten the producer.
func (o *oracle) binding(c *simCall) bool {
	return c.ack != engine.Memory || o.current(c.proc) && !o.small.forgets()
}

func markOf(c *simCall) simMarkKey { return simMarkKey{c.append.Producer, c.append.ProducerSequence} }

func (m simMark) is(res *engine.AppendResult) bool {
	return m.first == res.First && m.end == res.Last+1 && m.timestamp == res.Timestamp
}

// keepAnswer notes what an append of a producer was given, once it is durable: any later answer gives the same, unless
// the producer may have been forgotten in between.
func (o *oracle) keepAnswer(c *simCall) {
	if c.err != nil || c.append.Producer == "" {
		return
	}
	res := c.res
	res.Repeated = false
	first, ok := o.answers.durable[markOf(c)]
	switch {
	case ok && first != res && o.binding(c) && !o.small.forgets():
		o.broke("I3: append %d of producer %q was given %+v, and before %+v", c.append.ProducerSequence, c.append.Producer, res, first)
	case c.ack != engine.Memory:
		o.answers.durable[markOf(c)] = res
	}
}

// checkExpected looks at what the client of a batch expected of the log, when it becomes part of it: no record
// of those keys lies between.
func (o *oracle) checkExpected(b *simBatch) {
	var broken *simRecord
	for _, c := range b.calls {
		against := o.against(c, b.first)
		if against == nil {
			return
		}
		broken = against
	}
	if broken != nil {
		o.broke("I4: the batch [%d, %d) was accepted, and key %q has a record %d that its client did not expect", b.first, b.end, broken.key, broken.seq)
	}
}

// against returns a record before a sequence that a call does not expect, or nil.
func (o *oracle) against(c *simCall, first uint64) *simRecord {
	for _, x := range c.append.ExpectedNext {
		if recs := between(o.log.keys[string(x.Key)], engine.Between(max(x.Next, o.head.first), first)); len(recs) > 0 {
			return recs[0]
		}
	}
	return nil
}
