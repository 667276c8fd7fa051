package history

import (
	"slices"
	"strings"
	"time"
)

// An observation is what an answer says of a frontier: at some time between call and return it was at least low
// and at most high. With the final log at hand every read says that: it has all of a key below the frontier, and nothing else.
//
// Frontiers only rise. So the frontier of one process fits all its observations exactly if none that
// began after another had ended allows only less than the other saw; and that of the log (what is durable, in the order of sequences) if
// the same holds for all processes together, of those that are bound to show all of it.
type observation struct {
	op           int
	key          string // for people
	low, high    uint64
	call, ret    time.Duration
	process      int
	strong       bool // of all that is durable: by the current writer
	bound        bool // of an append: what is not yet there when it begins
	onlyAssigned bool // low is of sequences that were given, and need not be readable
}

// observeAppend returns what is known of one append: when it began the frontier was at most its first sequence, and when
// its answer was there it had passed it.
func (c *checker) observeAppend(b *batch) []observation {
	var all []observation
	if b.final() && b.call != never {
		all = append(all, observation{op: b.attempts[0], key: b.found[0].key, high: b.first, call: b.call, ret: never, strong: true, bound: true})
	}
	for _, i := range b.attempts {
		o := &c.h.Operations[i]
		if o.Outcome != OK {
			continue
		}
		end := o.Append.First + uint64(len(b.records))
		all = append(all, observation{op: i, key: b.records[0].Key, low: end, high: top, call: o.Call, ret: o.Return, process: o.Process,
			strong: true, onlyAssigned: o.Append.Memory})
	}
	return all
}

// observe returns what the answer to one operation, not an append with records that was accepted, says.
func (c *checker) observe(i int) []observation {
	o := &c.h.Operations[i]
	base := observation{op: i, high: top, call: o.Call, ret: o.Return, process: o.Process, strong: c.strong(o)}
	switch {
	case o.Follow != nil:
		return c.observeStream(base, o.Follow)
	case o.Append != nil && o.Outcome == Refused && o.Append.Conflict != nil:
		base.key = o.Append.Conflict.Key
		c.observeNewest(&base, *o.Append.Conflict)
	case o.Outcome != OK:
		return nil
	case o.Append != nil && len(o.Append.Records) == 0:
		for _, e := range o.Append.ExpectedNext {
			base.key = e.Key
			c.limit(&base, c.log.within(e.Key, e.Sequence, top))
		}
	case o.Scan != nil:
		base.key = o.Scan.Key
		c.observeScan(&base, o.Scan)
	case o.Count != nil:
		base.key = o.Count.Key
		c.observeCount(&base, o.Count)
	case o.Keys != nil:
		c.observeKeys(&base, o.Keys)
	default:
		return nil
	}
	c.v.Reads++
	if base.strong {
		c.v.StrongReads++
	}
	return []observation{base}
}

// reach raises the low end behind a record that was seen.
func (o *observation) reach(e entry) { o.low = max(o.low, e.Sequence+1) }

// limit lowers the high end to the first of records that were not seen: to the start of its batch, which is visible as a whole.
func (c *checker) limit(o *observation, unseen []entry) {
	if len(unseen) > 0 {
		o.high = min(o.high, c.log.down(unseen[0].Sequence))
	}
}

// observeNewest: the key's newest record is that of a conflict.
func (c *checker) observeNewest(o *observation, last KeySequence) {
	e, ok := c.log.at(last.Sequence)
	if !ok || e.key != last.Key {
		c.v.failf(Violation{Rule: RuleLost, Operations: []int{o.op}, Key: last.Key, Sequence: last.Sequence},
			"an append was refused for sequence %d of %q, which is not in the final log", last.Sequence, last.Key)
		return
	}
	o.reach(e)
	c.limit(o, c.log.within(last.Key, last.Sequence+1, top))
}

// observeScan holds a page against the final log: it has exactly the key's records from where it began up to where it
// ended, or the newest of them.
func (c *checker) observeScan(o *observation, s *Scan) {
	end := s.End
	if end == 0 {
		end = top
	}
	if s.Next < s.Start || s.Next > max(s.Start, end) {
		c.v.failf(Violation{Rule: RulePrefix, Operations: []int{o.op}, Key: s.Key, Sequence: s.Next}, "a scan of %q from %d to %d goes on at %d", s.Key, s.Start, end, s.Next)
		return
	}
	want := c.log.within(s.Key, s.Start, min(s.Next, end))
	if s.Last > 0 && len(want) > s.Last {
		want = want[len(want)-s.Last:]
	}
	if !slices.EqualFunc(want, s.Records, func(e entry, r Record) bool { return e.Record == r }) {
		e := differs(want, s.Records)
		c.v.failf(Violation{Rule: RulePrefix, Operations: []int{o.op}, Key: s.Key, Sequence: e},
			"a scan of %q from %d to %d has %d records and the final log has %d there; they differ from sequence %d on", s.Key, s.Start, s.Next, len(s.Records), len(want), e)
		return
	}
	n := len(s.Records)
	if n > 0 {
		o.reach(want[n-1])
	}
	// A page that ended before the frontier says nothing of where that was.
	drained := s.Last > 0 || n < s.Limit || n == 0 || s.Next > want[n-1].Sequence+1
	switch {
	case s.Start >= end:
	case !drained:
	case s.Next == s.Start: // the frontier may be anywhere below
		o.high = c.log.down(s.Next)
	case s.Next == end:
		o.low = max(o.low, s.Next)
	default:
		o.low, o.high = max(o.low, s.Next), c.log.down(s.Next)
	}
}

// differs returns the first sequence in which two ranges of records differ.
func differs(want []entry, got []Record) uint64 {
	for i := range min(len(want), len(got)) {
		if want[i].Record != got[i] {
			return min(want[i].Sequence, got[i].Sequence)
		}
	}
	switch {
	case len(want) > len(got):
		return want[len(got)].Sequence
	case len(got) > len(want):
		return got[len(want)].Sequence
	}
	return 0
}

// observeCount: so many of the key's records in the range were readable, and not one more.
func (c *checker) observeCount(o *observation, n *Count) {
	end := n.End
	if end == 0 {
		end = top
	}
	all := c.log.within(n.Key, n.Start, end)
	if n.Count > uint64(len(all)) {
		c.v.failf(Violation{Rule: RulePrefix, Operations: []int{o.op}, Key: n.Key}, "%q has %d records there, and the final log has %d", n.Key, n.Count, len(all))
		return
	}
	if n.Count > 0 {
		o.reach(all[n.Count-1])
	}
	c.limit(o, all[n.Count:])
}

// observeKeys: of each key that is listed a record was readable, and none of those that are not.
func (c *checker) observeKeys(o *observation, k *Keys) {
	listed := make(map[string]bool, len(k.Keys))
	for i, key := range k.Keys {
		if i > 0 && key <= k.Keys[i-1] || !strings.HasPrefix(key, k.Prefix) || k.After != nil && key <= *k.After {
			c.v.failf(Violation{Rule: RulePrefix, Operations: []int{o.op}, Key: key}, "a list of keys has %q, out of order or unasked", key)
		}
		recs := c.log.byKey[key]
		if len(recs) == 0 {
			c.v.failf(Violation{Rule: RulePrefix, Operations: []int{o.op}, Key: key}, "a list of keys has %q, which has no record in the final log", key)
			continue
		}
		listed[key] = true
		o.reach(recs[0])
	}
	for key, recs := range c.log.byKey {
		asked := strings.HasPrefix(key, k.Prefix) && (k.After == nil || key > *k.After)
		if k.More && (len(k.Keys) == 0 || key > k.Keys[len(k.Keys)-1]) {
			asked = false
		}
		if asked && !listed[key] {
			c.limit(o, recs)
		}
	}
}

// observeStream: a process that sent a record had it readable, and when it says that all is complete up to somewhere, then that.
// What it has not sent says nothing: a stream may be behind. Neither does that all is complete below where all streams begin.
func (c *checker) observeStream(base observation, f *Follow) []observation {
	least := top
	for _, s := range f.Streams {
		least = min(least, s.Start)
	}
	all := make([]observation, 0, len(f.Items))
	for _, it := range f.Items {
		o := base
		o.ret, o.key = it.At, it.Key
		o.strong = o.process > 0 && it.At < c.passed[o.process-1]
		if e, ok := c.log.at(it.Sequence); ok && !it.Complete {
			o.reach(e)
		}
		if it.Complete && it.Next > least {
			o.low = it.Next
		}
		all = append(all, o)
	}
	return all
}
