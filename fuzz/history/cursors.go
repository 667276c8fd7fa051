package history

import (
	"cmp"
	"slices"
	"time"
)

// cursor names a cursor.
type cursor struct{ consumer, key string }

// A cursorSight is a cursor that an answer tells of: it had this value at some time between call and return.
type cursorSight struct {
	op        int
	value     uint64
	call, ret time.Duration
	process   int
	strong    bool
	set       bool // the answer to a request that moves it
}

// checkCursors: a cursor has values that were asked for, and only rises; what was acknowledged is there for whoever asks
// the current writer later, and in the end.
func (c *checker) checkCursors() {
	asked := make(map[cursor]map[uint64]time.Duration) // since when
	sights := make(map[cursor][]cursorSight)
	for i := range c.h.Operations {
		o := &c.h.Operations[i]
		if s := o.SetCursors; s != nil && o.Outcome != Refused {
			for _, w := range s.Cursors {
				id := cursor{s.Consumer, w.Key}
				if asked[id] == nil {
					asked[id] = make(map[uint64]time.Duration)
				}
				if at, ok := asked[id][w.Sequence]; !ok || o.Call < at {
					asked[id][w.Sequence] = o.Call
				}
			}
		}
		if o.Outcome == OK {
			c.seeCursors(i, o, sights)
		}
	}
	c.finalCursors(sights)
	for id, of := range sights {
		for _, s := range of {
			if at, ok := asked[id][s.value]; s.value > 0 && (!ok || at > s.ret) {
				c.failCursor(id, s.value, []int{s.op}, "the cursor of %q at %q is %d, which nobody had asked for", id.consumer, id.key, s.value)
			}
		}
		c.compareCursors(id, of)
	}
}

func (c *checker) failCursor(id cursor, value uint64, ops []int, format string, args ...any) {
	ops = slices.DeleteFunc(unique(ops...), func(i int) bool { return i < 0 })
	c.v.failf(Violation{Rule: RuleCursors, Operations: ops, Key: id.key, Sequence: value}, format, args...)
}

// seeCursors takes in the answer to one operation.
func (c *checker) seeCursors(i int, o *Operation, sights map[cursor][]cursorSight) {
	see := cursorSight{op: i, call: o.Call, ret: o.Return, process: o.Process, strong: c.strong(o)}
	add := func(id cursor, value uint64) {
		see.value = value
		sights[id] = append(sights[id], see)
	}
	switch {
	case o.SetCursors != nil:
		s := o.SetCursors
		see.strong, see.set = true, true
		if len(s.Answer) != len(s.Cursors) {
			c.failCursor(cursor{consumer: s.Consumer}, 0, []int{i}, "%d cursors were set and %d are answered", len(s.Cursors), len(s.Answer))
			return
		}
		for k, w := range s.Cursors {
			id := cursor{s.Consumer, w.Key}
			if s.Answer[k].Key != w.Key || s.Answer[k].Sequence < w.Sequence {
				c.failCursor(id, w.Sequence, []int{i}, "the cursor of %q at %q was set to %d, and the answer is %v", id.consumer, id.key, w.Sequence, s.Answer[k])
			}
			add(id, s.Answer[k].Sequence)
		}
	case o.GetCursors != nil:
		got := make(map[string]uint64)
		for _, a := range o.GetCursors.Answer {
			got[a.Key] = a.Sequence
		}
		for _, key := range o.GetCursors.Keys {
			add(cursor{o.GetCursors.Consumer, key}, got[key])
		}
	}
}

// finalCursors adds what there is in the end: also of cursors that are not there.
func (c *checker) finalCursors(sights map[cursor][]cursorSight) {
	for consumer, of := range c.h.Final.Cursors {
		for key := range of {
			id := cursor{consumer, key}
			sights[id] = sights[id][:len(sights[id]):len(sights[id])]
		}
	}
	for id := range sights {
		value := c.h.Final.Cursors[id.consumer][id.key]
		sights[id] = append(sights[id], cursorSight{op: -1, value: value, call: never, ret: never, strong: true})
	}
}

// compareCursors finds answers that are below what had been answered before they were asked for.
func (c *checker) compareCursors(id cursor, of []cursorSight) {
	seen := slices.SortedFunc(slices.Values(of), func(a, b cursorSight) int { return cmp.Compare(a.ret, b.ret) })
	slices.SortFunc(of, func(a, b cursorSight) int { return cmp.Compare(a.call, b.call) })
	var anybody, writer *cursorSight // the highest that was seen, of all and of what the current writer answered
	processes := make(map[int]*cursorSight)
	for i := range of {
		y := &of[i]
		for ; len(seen) > 0 && seen[0].ret < y.call; seen = seen[1:] {
			x := &seen[0]
			anybody, processes[x.process] = higher(anybody, x), higher(processes[x.process], x)
			if x.strong {
				writer = higher(writer, x)
			}
		}
		// The current writer has all that is durable; a request that moves a cursor finds whatever
		// anybody has seen of it, as does who looks in the end; and no process goes back.
		var most *cursorSight
		switch {
		case y.set || y.op < 0:
			most = anybody
		case y.strong:
			most = writer
		}
		if y.process > 0 {
			most = higher(most, processes[y.process])
		}
		if most != nil && most.value > y.value {
			c.failCursor(id, y.value, []int{most.op, y.op}, "the cursor of %q at %q was %d, and later %d", id.consumer, id.key, most.value, y.value)
			return
		}
	}
}

// higher returns the one with the higher value; either may be nil.
func higher(a, b *cursorSight) *cursorSight {
	if a == nil || b != nil && b.value > a.value {
		return b
	}
	return a
}
