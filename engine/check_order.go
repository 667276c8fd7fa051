package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Bounds of the memory in which the order of a run's records is checked (I9).
const (
	// maxOrdered is how many records are compared each with each: 16 bytes a record.
	maxOrdered = 4 << 20
	// maxSpans is into how many spans the interval of a larger run is divided: 16 bytes a span.
	maxSpans = 2 << 20
	// maxSeen is how many sequences the interval of a larger run may have for each of them to be
	// looked for twice: a bit a sequence.
	maxSeen = 1 << 28
)

// orderChecker checks that no sequence of a run is used twice (I3) and that timestamps do not
// fall as sequences rise. The records come in the order of keys, so all of them must be seen first.
//
// Up to maxOrdered records it knows of each of them. Of a larger run it knows which sequences
// it has seen, unless its interval is too wide, and the first and last timestamp in each of many
// spans of the interval: timestamps that fall within a span, and not within a key, are missed.
type orderChecker struct {
	start, end uint64 // the run's interval
	limit      int    // a constant, but for tests

	exact []sequenceTime

	wide  bool // there are too many for exact
	width uint64
	spans []timeSpan
	seen  []uint64 // bits; nil: the interval is too wide
	twice error    // the first sequence that was seen twice
}

type sequenceTime struct {
	seq  uint64
	time int64
}

// timeSpan is the range of timestamps in a span of sequences; last < first: none yet.
type timeSpan struct{ first, last int64 }

func newOrderChecker(start, end uint64) *orderChecker {
	return &orderChecker{start: start, end: end, limit: maxOrdered}
}

// add takes the next record.
func (o *orderChecker) add(seq uint64, time int64) {
	if !o.wide && len(o.exact) == o.limit {
		o.widen()
	}
	if o.wide {
		o.mark(seq, time)
		return
	}
	o.exact = append(o.exact, sequenceTime{seq, time})
}

func (o *orderChecker) widen() {
	n := o.end - o.start
	o.wide, o.width = true, max(1, (n-1)/maxSpans+1)
	o.spans = make([]timeSpan, (n-1)/o.width+1)
	for i := range o.spans {
		o.spans[i] = timeSpan{math.MaxInt64, math.MinInt64}
	}
	if n <= maxSeen {
		o.seen = make([]uint64, (n+63)/64)
	}
	for _, r := range o.exact {
		o.mark(r.seq, r.time)
	}
	o.exact = nil
}

func (o *orderChecker) mark(seq uint64, time int64) {
	if seq < o.start || seq >= o.end {
		return // its table is not within the run, which is reported there
	}
	at := seq - o.start
	span := &o.spans[at/o.width]
	span.first, span.last = min(span.first, time), max(span.last, time)
	if o.seen == nil {
		return
	}
	word, bit := &o.seen[at/64], uint64(1)<<(at%64)
	if *word&bit != 0 && o.twice == nil {
		o.twice = usedTwice(seq)
	}
	*word |= bit
}

func usedTwice(seq uint64) error { return fmt.Errorf("two records of the run have sequence %d", seq) }

// check returns what is wrong with the records, given the highest timestamp of earlier runs.
func (o *orderChecker) check(last int64) error {
	if o.twice != nil {
		return o.twice
	}
	slices.SortFunc(o.exact, func(a, b sequenceTime) int { return cmp.Compare(a.seq, b.seq) })
	for i, r := range o.exact {
		if i > 0 && r.seq == o.exact[i-1].seq {
			return usedTwice(r.seq)
		}
		if r.time < last {
			return fmt.Errorf("the timestamp of record %d is before that of an earlier one", r.seq)
		}
		last = r.time
	}
	for i, s := range o.spans {
		if s.first < last && s.first <= s.last {
			return fmt.Errorf("the timestamp of a record from %d on is before that of an earlier one", o.start+uint64(i)*o.width)
		}
		last = max(last, s.last)
	}
	return nil
}
