package history

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearModel steps through the lengths of a key's list, from one on.
func linearModel(from int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return from },
		Step: func(state, input, _ any) (bool, any) {
			n, o := state.(int), input.(*linearOp)
			if o.append {
				return n == o.from, o.to
			}
			return o.low <= n && n <= o.high, n
		},
	}
}

const (
	// A piece of a key's history is searched by itself if it has so many operations at least, which makes it worth while.
	leastPiece = 500
	// The search takes memory with the square of a piece's operations: 60 MB for so many. Larger ones stay
	// undecided.
	mostPiece = 20_000
)

// checkLinear has porcupine search for a linear order of each key.
func (c *checker) checkLinear(timeout time.Duration) {
	byKey := c.linearKeys()
	deadline := time.Now().Add(timeout)
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		ops := byKey[key]
		if x := tighten(ops); x != nil {
			x.Rule, x.Key = RuleLinear, key
			c.v.failf(*x, "no linear order of the %d operations on %q exists, because of these", len(ops), key)
			continue
		}
		switch searchKey(ops, deadline) {
		case porcupine.Ok:
			c.v.Linearized++
		case porcupine.Unknown:
			c.v.Undecided = append(c.v.Undecided, key)
		case porcupine.Illegal:
			c.v.failf(Violation{Rule: RuleLinear, Key: key}, "no linear order of the %d operations on %q exists", len(ops), key)
		}
	}
}

// tighten narrows the times in which operations can have taken effect, by one another: an append did after the one
// before it in the list, and after all reads that do not see it; and before the one behind it, and before all reads that do. No order is
// lost by that. It is what keeps the search short: an append cannot be tried before a read that it would make
// impossible, and one whose outcome is unknown is not under way for ever. Where no time is left, it returns why.
//
// It sorts the operations by their calls.
func tighten(ops []linearOp) *Violation {
	var appends, reads []*linearOp
	for i := range ops {
		if o := &ops[i]; o.append {
			appends = append(appends, o)
		} else {
			reads = append(reads, o)
		}
	}
	slices.SortFunc(appends, func(a, b *linearOp) int { return cmp.Compare(a.from, b.from) })
	for _, o := range reads {
		if o.whole(appends); o.low > o.high {
			return &Violation{Operations: []int{o.op}}
		}
	}
	begun := tightenCalls(appends, reads)
	if x := tightenReturns(appends, reads, begun); x != nil {
		return x
	}
	slices.SortStableFunc(ops, func(a, b linearOp) int {
		switch {
		case a.call != b.call:
			return cmp.Compare(a.call, b.call)
		case a.append && b.append:
			return cmp.Compare(a.from, b.from)
		case a.append:
			return 1
		case b.append:
			return -1
		}
		return 0
	})
	return nil
}

// whole narrows a read to lengths that are not inside an append.
func (o *linearOp) whole(appends []*linearOp) {
	inside := func(length int) *linearOp {
		i, _ := slices.BinarySearchFunc(appends, length, func(a *linearOp, length int) int { return cmp.Compare(a.to, length) })
		if i < len(appends) && appends[i].from < length && length < appends[i].to {
			return appends[i]
		}
		return nil
	}
	if a := inside(o.low); a != nil {
		o.low = a.to
	}
	if a := inside(o.high); a != nil {
		o.high = a.from
	}
}

// tightenCalls lets no append begin before what must come before it, and returns for each the operation that it waits for.
func tightenCalls(appends, reads []*linearOp) []int {
	slices.SortFunc(reads, func(a, b *linearOp) int { return cmp.Compare(a.high, b.high) })
	var latest time.Duration
	because := -1
	begun := make([]int, len(appends))
	for i, o := range appends {
		for ; len(reads) > 0 && reads[0].high <= o.from; reads = reads[1:] {
			if reads[0].call > latest {
				latest, because = reads[0].call, reads[0].op
			}
		}
		if o.call >= latest {
			latest, because = o.call, o.op
		}
		o.call, begun[i] = latest, because
	}
	return begun
}

// tightenReturns lets no append take effect after what must come after it. Where that leaves no time, it returns the operations
// that leave none.
func tightenReturns(appends, reads []*linearOp, begun []int) *Violation {
	slices.SortFunc(reads, func(a, b *linearOp) int { return cmp.Compare(b.low, a.low) })
	earliest := never
	because := -1
	for i, o := range slices.Backward(appends) {
		for ; len(reads) > 0 && reads[0].low >= o.to; reads = reads[1:] {
			if reads[0].ret < earliest {
				earliest, because = reads[0].ret, reads[0].op
			}
		}
		if o.ret <= earliest {
			earliest, because = o.ret, o.op
		}
		if o.ret = earliest; o.ret < o.call {
			return &Violation{Operations: unique(begun[i], because)}
		}
	}
	return nil
}

// searchKey searches piece by piece: where no operation is under way the length is that of all appends before.
func searchKey(ops []linearOp, deadline time.Time) porcupine.CheckResult {
	result := porcupine.Ok
	for length := 0; len(ops) > 0; {
		n := piece(ops)
		left := time.Until(deadline)
		if n > mostPiece || left <= 0 {
			return porcupine.Unknown
		}
		switch porcupine.CheckEventsTimeout(linearModel(length), events(ops[:n]), left) {
		case porcupine.Illegal:
			return porcupine.Illegal
		case porcupine.Unknown:
			result = porcupine.Unknown // a later piece may yet be illegal
		}
		for _, o := range ops[:n] {
			if o.append {
				length += o.to - o.from
			}
		}
		ops = ops[n:]
	}
	return result
}

// piece returns how many of the operations, by the time of their calls, come before a moment at which none is
// under way.
func piece(ops []linearOp) int {
	var busy time.Duration
	for i := range ops {
		if i >= leastPiece && ops[i].call > busy {
			return i
		}
		busy = max(busy, ops[i].ret)
	}
	return len(ops)
}

// events returns the calls and returns of operations, which are sorted by their calls, in the order of time. What ends when
// something else begins counts as under way with it.
func events(ops []linearOp) []porcupine.Event {
	returns := make([]int, len(ops))
	for i := range ops {
		returns[i] = i
	}
	slices.SortStableFunc(returns, func(a, b int) int { return cmp.Compare(ops[a].ret, ops[b].ret) })
	out := make([]porcupine.Event, 0, 2*len(ops))
	for i := range ops {
		for ; len(returns) > 0 && ops[returns[0]].ret < ops[i].call; returns = returns[1:] {
			out = append(out, porcupine.Event{Kind: porcupine.ReturnEvent, Id: returns[0]})
		}
		out = append(out, porcupine.Event{Kind: porcupine.CallEvent, Id: i, Value: &ops[i]})
	}
	for _, i := range returns {
		out = append(out, porcupine.Event{Kind: porcupine.ReturnEvent, Id: i})
	}
	return out
}
