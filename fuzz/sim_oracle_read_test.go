package fuzz

import (
	"bytes"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/annalsdb/annals/engine"
)

// scanned looks at the answer of a scan: it has exactly the log's records of the key, from where it began to where it says
// to go on (I4), but for those that retention dropped on its way.
func (o *oracle) scanned(a *simAsked) {
	c := a.call
	if !o.checkRecords(a, c.recs) {
		return
	}
	next := c.next
	if c.err != nil { // as far as it came; the newest ones come all or not at all
		if len(c.recs) == 0 || c.scan.Last > 0 {
			return
		}
		next = c.recs[len(c.recs)-1].Sequence + 1
	} else if !o.checkNext(a) {
		return
	}
	want := between(o.log.keys[string(c.key)], engine.Between(max(c.rng.Start, o.gone(a)), min(c.rng.End, next)))
	if !c.scan.Since.IsZero() {
		since := c.scan.Since.UnixMilli()
		want = want[sort.Search(len(want), func(i int) bool { return want[i].timestamp >= since }):]
	}
	if c.scan.Last > 0 {
		want = o.newestOf(c, want)
	}
	i := 0
	for _, r := range want {
		for i < len(c.recs) && c.recs[i].Sequence < r.seq {
			i++
		}
		if i == len(c.recs) || c.recs[i].Sequence != r.seq {
			o.broke("I4: scan %d of key %q at process %d returns %d records up to sequence %d, without %d",
				c.id, c.key, c.proc.id, len(c.recs), next, r.seq)
			return
		}
	}
}

// newestOf cuts the records that a scan may return to those that it must, where it wants the newest. Others that are not durable
// may take their place.
func (o *oracle) newestOf(c *simCall, want []*simRecord) []*simRecord {
	n := c.scan.Last
	if c.scan.Limit > 0 {
		n = min(n, c.scan.Limit)
	}
	switch got := len(c.recs); {
	case got > n:
		o.broke("I9: scan %d returns the newest %d records, and was asked for %d", c.id, got, n)
	case seesMemory(c.proc) && got > 0 && (got == n || c.scan.MaxBytes > 0):
		return between(want, engine.From(c.recs[0].Sequence))
	}
	want = want[max(0, len(want)-n):]
	if c.scan.MaxBytes > 0 {
		want = want[len(want)-newestWithin(want, c.scan.MaxBytes):]
	}
	return want
}

// newestWithin returns how many of the newest records have values of so many bytes at most; one, if there is one.
func newestWithin(recs []*simRecord, most int64) (n int) {
	for i := len(recs) - 1; i >= 0; i-- {
		if most -= int64(len(recs[i].value)); n > 0 && most < 0 {
			break
		}
		n++
	}
	return n
}

// gone returns the sequence below which retention may have kept records from a call: its process knew by its end that they were dropped.
func (o *oracle) gone(a *simAsked) uint64 {
	if seen := o.procs[a.call.proc.id]; seen != nil {
		return seen.first
	}
	return o.head.first
}

// checkRecords looks at records that a process returned: in order, in their range, and each one of the log, unless reads there
// may see what is not durable.
func (o *oracle) checkRecords(a *simAsked, recs []engine.Record) bool {
	c := a.call
	next := max(c.rng.Start, a.first)
	for i := range recs {
		rec := &recs[i]
		switch {
		case rec.Sequence < next || rec.Sequence >= c.rng.End || !bytes.Equal(rec.Key, c.key):
			o.broke("I4: call %d of key %q in [%d, %d) at process %d returns sequence %d of key %q after %d; the log began at %d",
				c.id, c.key, c.rng.Start, c.rng.End, c.proc.id, rec.Sequence, rec.Key, next, a.first)
			return false
		case !c.scan.Since.IsZero() && rec.Timestamp < c.scan.Since.UnixMilli():
			o.broke("I4: scan %d since %d returns timestamp %d", c.id, c.scan.Since.UnixMilli(), rec.Timestamp)
			return false
		case !o.exists(c, rec):
			return false
		}
		next = rec.Sequence + 1
	}
	return true
}

// exists looks at one record that a process returned.
func (o *oracle) exists(c *simCall, rec *engine.Record) bool {
	r := o.log.named[rec.Sequence]
	if r == nil && seesMemory(c.proc) && o.wanted(rec) {
		r = o.log.name(rec)
	}
	switch {
	case r == nil:
		o.broke("I4: call %d at process %d returns %q of key %q at sequence %d, which was never sent", c.id, c.proc.id, rec.Value, rec.Key, rec.Sequence)
	case !r.is(rec):
		o.broke("I3: call %d at process %d returns %q of key %q at sequence %d, which names %q of key %q",
			c.id, c.proc.id, rec.Value, rec.Key, rec.Sequence, r.value, r.key)
	case !r.live && !seesMemory(c.proc):
		o.broke("I2: call %d at process %d returns sequence %d of key %q, which is not part of the log", c.id, c.proc.id, rec.Sequence, rec.Key)
	default:
		return true
	}
	return false
}

// wanted reports whether a client asked to append a record.
func (o *oracle) wanted(rec *engine.Record) bool {
	v := o.values[string(rec.Value)]
	if v == nil {
		return false
	}
	for _, c := range v.calls {
		for i := range c.records {
			if bytes.Equal(c.records[i].Value, rec.Value) && bytes.Equal(c.records[i].Key, rec.Key) {
				return true
			}
		}
	}
	return false
}

// checkNext looks at where a scan says to go on. Stopped by a limit: behind its last record. Else at the frontier that it saw, which
// is at or above all that whoever asked could know of.
func (o *oracle) checkNext(a *simAsked) bool {
	c := a.call
	if n := len(c.recs); n > 0 && c.next == c.recs[n-1].Sequence+1 && c.scan.Last == 0 {
		if n == c.scan.Limit || c.scan.MaxBytes > 0 && o.stoppedByBytes(c) {
			return true
		}
	}
	if c.scan.Limit > 0 && c.scan.Last == 0 && len(c.recs) > c.scan.Limit {
		o.broke("I9: scan %d returns %d records, the limit is %d", c.id, len(c.recs), c.scan.Limit)
	}
	if c.rng.Start >= c.rng.End {
		return len(c.recs) == 0
	}
	if c.next < c.rng.End && c.next > c.rng.Start {
		o.checkFrontier(c.proc, c.next)
	}
	if least := max(c.rng.Start, min(c.rng.End, o.least(a))); c.next < least || c.next > max(c.rng.Start, c.rng.End) {
		o.broke("I2: scan %d of key %q in [%d, %d) at process %d goes on at %d; those below %d were there before it began (the writer's epoch is %d)",
			c.id, c.key, c.rng.Start, c.rng.End, c.proc.id, c.next, least, o.head.state.GetWriter().GetEpoch())
		return false
	}
	if o.current(c.proc) && c.next > c.rng.Start && c.next < c.rng.End { // else it is not the frontier
		o.answers.floor = max(o.answers.floor, c.next)
	}
	return true
}

// least is the lowest frontier that a call may have seen: of what the process itself had shown, and at the current
// writer of all that anybody was told there, and that was acknowledged (I2).
func (o *oracle) least(a *simAsked) uint64 {
	if o.current(a.call.proc) {
		return max(a.floor, a.frontier)
	}
	return a.frontier
}

// stoppedByBytes reports whether the next record of the key has too many bytes for a scan.
func (o *oracle) stoppedByBytes(c *simCall) bool {
	var bytes int64
	for i := range c.recs {
		bytes += int64(len(c.recs[i].Value))
	}
	if bytes > c.scan.MaxBytes {
		return len(c.recs) == 1
	}
	if seesMemory(c.proc) {
		return true // the next record may be one that nobody knows yet
	}
	rest := between(o.log.keys[string(c.key)], engine.Between(c.next, c.rng.End))
	return len(rest) > 0 && bytes+int64(len(rest[0].value)) > c.scan.MaxBytes
}

// counted looks at the answer of a count: it is that of the records below some frontier, from some first sequence.
func (o *oracle) counted(a *simAsked) {
	c := a.call
	if c.err != nil {
		return
	}
	all := o.log.keys[string(c.key)]
	from, _ := slices.BinarySearch(o.head.firsts, a.first)
	for _, first := range o.head.firsts[from:] {
		recs := between(all, engine.Between(max(c.rng.Start, first), c.rng.End))
		n, least := uint64(len(recs)), uint64(len(between(recs, engine.Between(0, o.least(a)))))
		switch at := c.count; {
		case at < least:
		case seesMemory(c.proc):
			return // more are records that nobody knows yet
		case at == n || at == 0 || at < n && recs[at-1].batch != recs[at].batch: // batches are whole
			return
		}
	}
	o.broke("I4: count %d of key %q in [%d, %d) at process %d is %d; the log has %d", c.id, c.key, c.rng.Start, c.rng.End,
		c.proc.id, c.count, len(between(all, c.rng)))
}

// listed looks at a page of keys: each has records, and none that must be there is missing.
func (o *oracle) listed(a *simAsked) {
	c := a.call
	if c.err != nil {
		return
	}
	last, after := "", c.page.After != nil
	if after {
		last = string(c.page.After)
	}
	has := map[string]bool{}
	for _, key := range c.keys {
		k := string(key)
		if (after || len(has) > 0) && k <= last || !strings.HasPrefix(k, string(c.page.Prefix)) || !c.proc.keys.Contains(key) {
			o.broke("I4: page %d of keys at process %d has %q after %q", c.id, c.proc.id, k, last)
		}
		last, has[k] = k, true
		if recs := o.log.keys[k]; !seesMemory(c.proc) && (len(recs) == 0 || recs[len(recs)-1].seq < a.first) {
			o.broke("I4: page %d of keys at process %d has %q, which has no record", c.id, c.proc.id, k)
		}
	}
	if limit := c.page.Limit; limit > 0 && len(c.keys) > limit || c.more && len(c.keys) != limit {
		o.broke("I9: page %d has %d keys, the limit is %d (more: %v)", c.id, len(c.keys), limit, c.more)
	}
	if c.page.StartSegment != 0 || c.page.EndSegment != 0 {
		return // which segments it saw is not known
	}
	seen := engine.Between(o.gone(a), o.least(a))
	for _, k := range slices.Sorted(maps.Keys(o.log.keys)) {
		missed := !has[k] && strings.HasPrefix(k, string(c.page.Prefix)) && (c.page.After == nil || k > string(c.page.After)) &&
			(!c.more || k < last) && c.proc.keys.Contains([]byte(k))
		if missed && len(between(o.log.keys[k], seen)) > 0 {
			o.broke("I4: page %d of keys at process %d does not have %q, which has records below %d", c.id, c.proc.id, k, seen.End)
		}
	}
}

// followed looks at what a follow has delivered since it was looked at last: of each key the log's records in order, none missing,
// none twice (I4), but for those that retention dropped before it came to them.
func (o *oracle) followed(a *simAsked) {
	c := a.call
	for ; a.delivered < len(c.recs); a.delivered++ {
		rec := &c.recs[a.delivered]
		key := string(rec.Key)
		next, ok := a.next[key]
		if !ok {
			next = c.rng.Start
		}
		if c.key != nil && key != string(c.key) || !strings.HasPrefix(key, string(c.page.Prefix)) || rec.Sequence < next {
			o.broke("I4: follow %d at process %d delivers sequence %d of key %q, from %d on", c.id, c.proc.id, rec.Sequence, key, next)
			return
		}
		if !o.exists(c, rec) {
			return
		}
		if missed := between(o.log.keys[key], engine.Between(max(next, o.gone(a)), rec.Sequence)); len(missed) > 0 {
			o.broke("I4: follow %d at process %d delivers sequence %d of key %q, and has not delivered %d", c.id, c.proc.id, rec.Sequence, key, missed[0].seq)
			return
		}
		a.next[key] = rec.Sequence + 1
	}
}
