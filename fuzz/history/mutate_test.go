package history

import (
	"math/rand/v2"
	"slices"
)

// A mutation makes one thing of a right history wrong, so that it breaks one of its rules; or reports that there is
// nothing to be made wrong so.
type mutation struct {
	rules []Rule
	apply func(h *History, rng *rand.Rand) bool
}

var mutations = map[string]mutation{
	"an acknowledged batch is missing in the end": {[]Rule{RuleLost}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, durable, func(o *Operation) bool { return drop(h, o.Append.Records...) })
	}},
	"a record of an acknowledged batch is missing in the end": {[]Rule{RuleLost}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, durable, func(o *Operation) bool {
			return len(o.Append.Records) > 1 && drop(h, o.Append.Records[rng.IntN(len(o.Append.Records))])
		})
	}},
	"a batch is there twice in the end": {[]Rule{RuleInvented}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, durable, func(o *Operation) bool {
			for _, r := range o.Append.Records {
				h.Final.Records[r.Key] = append(h.Final.Records[r.Key], Record{h.Final.Frontier, 1 << 40, r.Value})
				h.Final.Frontier++
			}
			return true
		})
	}},
	"a refused append is there in the end": {[]Rule{RuleInvented}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, func(o *Operation) bool { return o.Append != nil && o.Outcome == Refused }, func(o *Operation) bool {
			for _, r := range o.Append.Records {
				h.Final.Records[r.Key] = append(h.Final.Records[r.Key], Record{h.Final.Frontier, 1 << 40, r.Value})
				h.Final.Frontier++
			}
			return true
		})
	}},
	"two records have each other's sequence in the end": {[]Rule{RuleAtomic, RuleReused}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, durable, func(o *Operation) bool {
			recs := h.Final.Records[o.Append.Records[0].Key]
			i := slices.IndexFunc(recs, func(r Record) bool { return r.Value == o.Append.Records[0].Value })
			if i < 1 {
				return false
			}
			recs[i].Value, recs[i-1].Value = recs[i-1].Value, recs[i].Value
			return true
		})
	}},
	"a record is older than the one before it": {[]Rule{RuleOrder}, func(h *History, rng *rand.Rand) bool {
		for _, recs := range h.Final.Records {
			if n := len(recs); n > 1 && recs[n-1].Timestamp > 1 {
				recs[n-1].Timestamp = 0
				return true
			}
		}
		return false
	}},
	"an append that was lost is acknowledged": {[]Rule{RuleLost}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, func(o *Operation) bool { return o.Append != nil && o.Outcome == Unknown && !inFinal(h, o) }, func(o *Operation) bool {
			o.Outcome, o.Append.First, o.Append.Timestamp, o.Append.Memory = OK, 1<<40, 1<<40, false
			return true
		})
	}},
	"a lost append was told a sequence that another has": {[]Rule{RuleReused}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, func(o *Operation) bool { return o.Append != nil && o.Outcome == Unknown && !inFinal(h, o) }, func(o *Operation) bool {
			for _, recs := range h.Final.Records {
				o.Outcome, o.Append.Memory, o.Append.First = OK, true, recs[rng.IntN(len(recs))].Sequence
				return true
			}
			return false
		})
	}},
	"an append is answered with the sequence behind its own": {[]Rule{RuleReused}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, durable, func(o *Operation) bool { o.Append.First++; return true })
	}},
	"an append that is acknowledged expects what is not so": {[]Rule{RuleOrder}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, durable, func(o *Operation) bool {
			key := o.Append.Records[0].Key
			recs := h.Final.Records[key]
			if o.Append.Producer != "" || recs[0].Sequence >= o.Append.First {
				return false
			}
			o.Append.ExpectedNext = []KeySequence{{key, recs[0].Sequence}}
			return true
		})
	}},
	"a page lacks a record in its middle": {[]Rule{RulePrefix}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, page(3), func(o *Operation) bool {
			i := 1 + rng.IntN(len(o.Scan.Records)-2)
			o.Scan.Records = slices.Delete(slices.Clone(o.Scan.Records), i, i+1)
			return true
		})
	}},
	"a page has a record twice": {[]Rule{RulePrefix}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, page(1), func(o *Operation) bool {
			i := rng.IntN(len(o.Scan.Records))
			o.Scan.Records = slices.Insert(slices.Clone(o.Scan.Records), i, o.Scan.Records[i])
			return true
		})
	}},
	"a page has two records in the wrong order": {[]Rule{RulePrefix}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, page(2), func(o *Operation) bool {
			o.Scan.Records = slices.Clone(o.Scan.Records)
			slices.Reverse(o.Scan.Records)
			return true
		})
	}},
	"a page has another value": {[]Rule{RuleReused}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, page(1), func(o *Operation) bool {
			o.Scan.Records = slices.Clone(o.Scan.Records)
			o.Scan.Records[0].Value = "x"
			return true
		})
	}},
	"the writer's count is from before what was acknowledged": {[]Rule{RuleStale}, func(h *History, rng *rand.Rand) bool {
		return staleCount(h, rng)
	}},
	"the writer's count is from before, for porcupine": {[]Rule{RuleLinear}, func(h *History, rng *rand.Rand) bool {
		return staleCount(h, rng)
	}},
	"a process counts less than before": {[]Rule{RuleBack, RuleStale}, func(h *History, rng *rand.Rand) bool {
		counts := func(o *Operation) bool {
			return o.Count != nil && o.Outcome == OK && o.Count.Start == 0 && o.Count.End == 0
		}
		return alter(h, rng, counts, func(a *Operation) bool {
			return alter(h, rng, counts, func(b *Operation) bool {
				if b.Process != a.Process || b.Count.Key != a.Count.Key || b.Call <= a.Return || a.Count.Count == 0 {
					return false
				}
				b.Count.Count = a.Count.Count - 1
				return true
			})
		})
	}},
	"a stream lacks a record": {[]Rule{RuleStream}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, func(o *Operation) bool { return o.Follow != nil && len(o.Follow.Items) > 1 }, func(o *Operation) bool {
			items := o.Follow.Items
			i := rng.IntN(len(items) - 1)
			last := items[len(items)-1]
			if items[i].Complete || !last.Complete && last.Key != items[i].Key {
				return false // it could come yet
			}
			o.Follow.Items = slices.Delete(slices.Clone(items), i, i+1)
			return true
		})
	}},
	"a stream has a record twice": {[]Rule{RuleStream}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, func(o *Operation) bool { return o.Follow != nil && len(o.Follow.Items) > 0 }, func(o *Operation) bool {
			items := o.Follow.Items
			i := rng.IntN(len(items))
			if items[i].Complete {
				return false
			}
			o.Follow.Items = slices.Insert(slices.Clone(items), i, items[i])
			return true
		})
	}},
	"a stream is complete too early": {[]Rule{RuleStream}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, func(o *Operation) bool { return o.Follow != nil && len(o.Follow.Items) > 0 }, func(o *Operation) bool {
			items := o.Follow.Items
			i := rng.IntN(len(items))
			if items[i].Complete {
				return false
			}
			o.Follow.Items = slices.Insert(slices.Clone(items), i, Item{Complete: true, Next: items[i].Next, At: items[i].At})
			return true
		})
	}},
	"a cursor was higher once": {[]Rule{RuleCursors}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, func(o *Operation) bool { return o.GetCursors != nil && len(o.GetCursors.Answer) > 0 }, func(o *Operation) bool {
			o.GetCursors.Answer = slices.Clone(o.GetCursors.Answer)
			o.GetCursors.Answer[0].Sequence += 50
			return true
		})
	}},
	"an acknowledged cursor is not there in the end": {[]Rule{RuleCursors}, func(h *History, rng *rand.Rand) bool {
		return alter(h, rng, func(o *Operation) bool {
			return o.SetCursors != nil && o.Outcome == OK && o.SetCursors.Cursors[0].Sequence > 0
		}, func(o *Operation) bool {
			delete(h.Final.Cursors[o.SetCursors.Consumer], o.SetCursors.Cursors[0].Key)
			return true
		})
	}},
}

// alter finds an operation that f can change, from a random one on.
func alter(h *History, rng *rand.Rand, which, f func(*Operation) bool) bool {
	from := rng.IntN(len(h.Operations))
	for i := range h.Operations {
		if o := &h.Operations[(from+i)%len(h.Operations)]; which(o) && f(o) {
			return true
		}
	}
	return false
}

// durable is an append that was acknowledged as durable.
func durable(o *Operation) bool { return o.Append != nil && o.Outcome == OK && !o.Append.Memory }

// page is a page with n records at least.
func page(n int) func(*Operation) bool {
	return func(o *Operation) bool { return o.Scan != nil && o.Outcome == OK && len(o.Scan.Records) >= n }
}

// drop takes records out of the final log.
func drop(h *History, records ...KeyValue) bool {
	for _, r := range records {
		h.Final.Records[r.Key] = slices.DeleteFunc(h.Final.Records[r.Key], func(f Record) bool { return f.Value == r.Value })
	}
	return true
}

// inFinal reports whether an append, or a repeat of it, is in the final log, or was told its sequence.
func inFinal(h *History, o *Operation) bool {
	if o.Append.Producer != "" {
		return true // it may have other attempts
	}
	return slices.ContainsFunc(h.Final.Records[o.Append.Records[0].Key], func(r Record) bool { return r.Value == o.Append.Records[0].Value })
}

// staleCount makes a count at the current writer what it was before an append that had been acknowledged.
func staleCount(h *History, rng *rand.Rand) bool {
	gone := passed(h.Processes)
	strong := func(o *Operation) bool {
		return o.Count != nil && o.Outcome == OK && o.Return < gone[o.Process-1] && o.Count.Start == 0 && o.Count.End == 0
	}
	return alter(h, rng, strong, func(o *Operation) bool {
		return alter(h, rng, durable, func(a *Operation) bool {
			if a.Return >= o.Call || a.Append.Records[0].Key != o.Count.Key {
				return false
			}
			recs := h.Final.Records[o.Count.Key]
			o.Count.Count = uint64(slices.IndexFunc(recs, func(r Record) bool { return r.Sequence == a.Append.First }))
			return true
		})
	})
}
