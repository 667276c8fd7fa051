package history

import (
	"math"
	"slices"
	"time"
)

// Each key is a list that appends make longer and that reads see the whole of. Of a list that only grows, and whose
// end is known, the length says everything: the model's state is the number of the key's records, and where a read's records lie
// in the list is found once, before the search.
//
// An append is possible at one length only. One whose outcome is unknown and that is in the final log may have taken
// effect at any time since it began; one that is not there never did (that it was read all the same is found by
// checkSightings).

// linearOp is one operation on one key.
type linearOp struct {
	op        int
	call, ret time.Duration
	append    bool
	// An append is possible at length from, and makes it to.
	from, to int
	// A read is possible at lengths from low to high.
	low, high int
}

// impossible is a read that is right at no length.
var impossible = linearOp{low: 1, high: 0}

// linearKeys returns the operations on each key that must have one linear order: appends, and reads at the current writer.
func (c *checker) linearKeys() map[string][]linearOp {
	byKey := make(map[string][]linearOp)
	c.linearAppends(byKey)
	c.linearReads(byKey)
	return byKey
}

// linearAppends adds the appends that are in the final log: one operation for each key of a batch, and one for
// each key of which it only expects something.
func (c *checker) linearAppends(byKey map[string][]linearOp) {
	for _, b := range c.log.batches {
		if !b.final() || b.call == never {
			continue
		}
		lens := make(map[string]*linearOp)
		for _, e := range b.found {
			if o := lens[e.key]; o != nil {
				o.to++
			} else {
				at := c.log.from(e.key, e.Sequence)
				lens[e.key] = &linearOp{append: true, from: at, to: at + 1}
			}
		}
		for _, e := range b.expected {
			most := c.log.from(e.Key, e.Sequence)
			switch o := lens[e.Key]; {
			case o == nil:
				lens[e.Key] = &linearOp{high: most}
			case o.append && o.from > most: // it cannot have been accepted there
				byKey[e.Key] = append(byKey[e.Key], linearOp{op: b.attempts[0], call: b.call, ret: b.acked, low: o.from, high: most})
			case !o.append:
				o.high = min(o.high, most)
			}
		}
		for key, o := range lens {
			o.op, o.call, o.ret = b.attempts[0], b.call, b.acked
			byKey[key] = append(byKey[key], *o)
		}
	}
}

// linearReads adds what the current writer answered.
func (c *checker) linearReads(byKey map[string][]linearOp) {
	for i := range c.h.Operations {
		o := &c.h.Operations[i]
		if o.Return == 0 || !c.strong(o) {
			continue
		}
		add := func(key string, l linearOp) {
			l.op, l.call, l.ret = i, o.Call, o.Return
			byKey[key] = append(byKey[key], l)
		}
		switch {
		case o.Append != nil && o.Outcome == Refused && o.Append.Conflict != nil:
			n := c.log.from(o.Append.Conflict.Key, o.Append.Conflict.Sequence) + 1
			add(o.Append.Conflict.Key, linearOp{low: n, high: n})
		case o.Outcome != OK:
		case o.Append != nil && len(o.Append.Records) == 0:
			for _, e := range o.Append.ExpectedNext {
				add(e.Key, linearOp{high: c.log.from(e.Key, e.Sequence)})
			}
		case o.Scan != nil:
			add(o.Scan.Key, c.linearScan(o.Scan))
		case o.Count != nil:
			n := int(min(o.Count.Count, math.MaxInt32))
			add(o.Count.Key, c.lengths(o.Count.Key, o.Count.Start, o.Count.End, n))
		}
	}
}

// lengths returns the lengths of a key's list at which n of its records lie between start and end.
func (c *checker) lengths(key string, start, end uint64, n int) linearOp {
	if end == 0 {
		end = top
	}
	i, j := c.log.from(key, start), c.log.from(key, end)
	j = max(i, j)
	l := linearOp{low: i + n, high: i + n}
	if n == 0 {
		l.low = 0
	}
	switch {
	case i+n > j:
		return impossible // there are not so many
	case i+n == j:
		l.high = math.MaxInt // others come behind the range
	}
	return l
}

// linearScan returns the lengths at which a page is right.
func (c *checker) linearScan(s *Scan) linearOp {
	n := len(s.Records)
	if n == 0 {
		return c.lengths(s.Key, s.Start, s.End, 0)
	}
	at := c.log.from(s.Key, s.Records[0].Sequence)
	recs := c.log.byKey[s.Key]
	if at+n > len(recs) || !slices.EqualFunc(recs[at:at+n], s.Records, func(e entry, r Record) bool { return e.Record == r }) {
		return impossible
	}
	start := c.log.from(s.Key, s.Start)
	switch {
	case at < start, s.Last == 0 && at > start, s.Last > 0 && at > start && n < s.Last:
		return impossible
	case s.Last == 0 && n >= s.Limit: // more may have been there
		return linearOp{low: at + n, high: math.MaxInt}
	}
	return c.lengths(s.Key, s.Start, s.End, at-start+n)
}
