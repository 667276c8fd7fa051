package history

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// batch is one append: all attempts of it, if it is idempotent.
type batch struct {
	records  []KeyValue
	expected []KeySequence
	attempts []int
	// call is when the first attempt that may have taken effect began; never: none may have.
	call time.Duration
	// acked is when the first answer that says that it is durable was there; never: none did.
	acked time.Duration
	// claim is an attempt that was answered OK, durable or from memory; -1: none was.
	claim int

	// In the final log its records, as far as they are there, in the order of the batch.
	found       []entry
	first, last uint64
}

func (b *batch) final() bool { return len(b.found) > 0 }

// entry is a record of the final log.
type entry struct {
	Record
	key   string
	batch *batch // nil: nobody appended it
}

// log is the final log, with who appended what.
type log struct {
	batches  []*batch // by their first attempts
	byOp     map[int]*batch
	byValue  map[string]*batch
	entries  []entry            // by sequence
	byKey    map[string][]entry // by sequence
	frontier uint64
}

// number names an idempotent append.
type number struct {
	producer string
	number   uint64
}

// buildLog puts the attempts of appends together, and finds their records in the final log.
func buildLog(h *History, v *Verdict) *log {
	l := &log{byOp: make(map[int]*batch), byValue: make(map[string]*batch), byKey: make(map[string][]entry), frontier: h.Final.Frontier}
	numbers := make(map[number]*batch)
	for i := range h.Operations {
		o := &h.Operations[i]
		if o.Append == nil || len(o.Append.Records) == 0 {
			continue
		}
		v.Appends++
		if o.Outcome == Unknown || o.Outcome == Pending {
			v.Unknown++
		}
		l.attempt(i, o, numbers, v)
	}
	for key, recs := range h.Final.Records {
		for _, r := range recs {
			l.entries = append(l.entries, entry{Record: r, key: key, batch: l.byValue[r.Value]})
		}
	}
	slices.SortStableFunc(l.entries, func(a, b entry) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, e := range l.entries {
		l.byKey[e.key] = append(l.byKey[e.key], e)
		if e.batch != nil {
			e.batch.found = append(e.batch.found, e)
		}
	}
	for _, b := range l.batches {
		if b.final() {
			b.first, b.last = b.found[0].Sequence, b.found[len(b.found)-1].Sequence
		}
	}
	return l
}

// attempt takes in one append that has records.
func (l *log) attempt(i int, o *Operation, numbers map[number]*batch, v *Verdict) {
	a := o.Append
	n := number{a.Producer, a.Number}
	b := numbers[n]
	same := b != nil && slices.Equal(a.Records, b.records) && slices.Equal(a.ExpectedNext, b.expected)
	if a.Producer == "" || b == nil || !same && b.call == never { // a number whose appends were refused is free again
		b = &batch{records: a.Records, expected: a.ExpectedNext, call: never, acked: never, claim: -1}
		l.batches = append(l.batches, b)
		for _, r := range a.Records {
			if other := l.byValue[r.Value]; other != nil {
				v.failf(Violation{Rule: RuleWellFormed, Operations: unique(append(other.attempts, i)...), Key: r.Key}, "value %q is used twice", r.Value)
			}
			l.byValue[r.Value] = b
		}
		if a.Producer != "" {
			numbers[n] = b
		}
	} else if !same {
		v.failf(Violation{Rule: RuleWellFormed, Operations: []int{b.attempts[0], i}}, "two attempts of one number are not the same")
	}
	l.byOp[i] = b
	b.attempts = append(b.attempts, i)
	if o.Outcome == Refused {
		return
	}
	b.call = min(b.call, o.Call)
	if o.Outcome != OK {
		return
	}
	if b.claim < 0 {
		b.claim = i
	}
	if !a.Memory {
		v.Acknowledged++
		b.acked = min(b.acked, o.Return)
	}
}

// at returns the final log's record with a sequence.
func (l *log) at(seq uint64) (entry, bool) {
	i, ok := slices.BinarySearchFunc(l.entries, seq, func(e entry, seq uint64) int { return cmp.Compare(e.Sequence, seq) })
	if !ok {
		return entry{}, false
	}
	return l.entries[i], true
}

// from returns the index of a key's first record at or above a sequence.
func (l *log) from(key string, seq uint64) int {
	recs := l.byKey[key]
	return sort.Search(len(recs), func(i int) bool { return recs[i].Sequence >= seq })
}

// within returns a key's records from start up to, but not including, end.
func (l *log) within(key string, start, end uint64) []entry {
	i, j := l.from(key, start), l.from(key, end)
	return l.byKey[key][i:max(i, j)]
}

// inside returns the batch that has records on both sides of a frontier, or nil.
func (l *log) inside(frontier uint64) *batch {
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].Sequence >= frontier })
	if i == len(l.entries) || l.entries[i].batch == nil || l.entries[i].batch.first >= frontier {
		return nil
	}
	return l.entries[i].batch
}

// down returns the highest frontier at or below one that splits no batch.
func (l *log) down(frontier uint64) uint64 {
	if b := l.inside(frontier); b != nil {
		return b.first
	}
	return frontier
}
