package history

import (
	"cmp"
	"slices"
)

// checkFrontiers makes the observations of all operations and compares them.
func (c *checker) checkFrontiers() {
	var all []observation
	for i := range c.h.Operations {
		all = append(all, c.observe(i)...)
	}
	for _, b := range c.log.batches {
		all = append(all, c.observeAppend(b)...)
	}
	for i := range all {
		c.checkWhole(&all[i])
	}
	// What the current writer answered, and acknowledged, binds all that it answers later.
	c.compare(RuleStale, "the current writer shows less than was acknowledged, or read there, before", all,
		func(x *observation) bool { return x.strong && !x.onlyAssigned }, func(y *observation) bool { return y.strong && !y.bound })
	// What anybody saw, or was told, was given its sequence before; what is appended later comes behind it.
	c.compare(RuleOrder, "an append got a sequence below what was seen or acknowledged before it began", all,
		func(*observation) bool { return true }, func(y *observation) bool { return y.bound })
	// Of the current writer that is said already.
	byProcess := make([][]observation, len(c.h.Processes)+1)
	for _, o := range all {
		if o.process > 0 && !o.onlyAssigned {
			byProcess[o.process] = append(byProcess[o.process], o)
		}
	}
	for _, of := range byProcess {
		c.compare(RuleBack, "a process shows less than it showed before", of,
			func(*observation) bool { return true }, func(y *observation) bool { return !y.bound && !y.strong })
	}
}

// checkWhole: no frontier lies inside a batch, beyond the final one, or shows what is not there.
func (c *checker) checkWhole(o *observation) {
	x := Violation{Operations: []int{o.op}, Key: o.key, Sequence: o.low}
	switch {
	case o.low > o.high:
		x.Rule = RuleAtomic
		if b := c.log.inside(o.high + 1); b != nil {
			x.Operations = unique(append(b.attempts, o.op)...)
		}
		c.v.failf(x, "a read shows a part of a batch: what it has is readable from frontier %d on, what it lacks up to %d only", o.low, o.high)
	case o.low > c.log.frontier && c.log.byOp[o.op] == nil: // checkLog looks at appends
		x.Rule = RuleBack
		c.v.failf(x, "a read saw the frontier at %d, and in the end it is %d", o.low, c.log.frontier)
	}
}

// compare finds later observations that allow only less than earlier ones saw. earlier and later choose them.
func (c *checker) compare(rule Rule, what string, all []observation, earlier, later func(*observation) bool) {
	var seen, bound []*observation
	for i := range all {
		if o := &all[i]; earlier(o) && o.ret != never {
			seen = append(seen, o)
		}
		if o := &all[i]; later(o) {
			bound = append(bound, o)
		}
	}
	slices.SortFunc(seen, func(a, b *observation) int { return cmp.Compare(a.ret, b.ret) })
	slices.SortFunc(bound, func(a, b *observation) int { return cmp.Compare(a.call, b.call) })
	var most *observation
	for _, o := range bound {
		for len(seen) > 0 && seen[0].ret < o.call {
			if most == nil || seen[0].low > most.low {
				most = seen[0]
			}
			seen = seen[1:]
		}
		if most != nil && most.low > o.high {
			c.v.failf(Violation{Rule: rule, Operations: unique(most.op, o.op), Key: o.key, Sequence: o.high},
				"%s: operation %d proves that the frontier was at least %d, and operation %d, which began later, that it was at most %d", what, most.op, most.low, o.op, o.high)
		}
	}
}
