package fuzz

// ended looks at the answer of a call about cursors.
func (s *simSmall) ended(a *simAsked) {
	c := a.call
	if c.err != nil {
		return
	}
	switch c.kind {
	case simSetCursors:
		s.set(a)
	case simDeleteCursors:
		if s.o.current(c.proc) && s.since(a, 0, func(of map[string]uint64) bool { _, ok := of[string(c.key)]; return !ok }) < 0 {
			s.o.broke("I1: process %d says that the cursor of %s for %q is deleted, and it is not", c.proc.id, c.consumer, c.key)
		}
	case simCursors:
		s.listed(a)
	}
}

// set looks at the cursors in force that a client was told of: they are durable.
func (s *simSmall) set(a *simAsked) {
	c := a.call
	if len(c.found) != len(c.cursors) {
		s.o.broke("I1: call %d sets %d cursors, %d are in force", c.id, len(c.cursors), len(c.found))
		return
	}
	for i, is := range c.found {
		want := c.cursors[i]
		if string(is.Key) != string(want.Key) || is.Next < want.Next || c.force && is.Next != want.Next {
			s.o.broke("I1: call %d sets the cursor of %s for %q to %d (forced %v), in force is %d for %q",
				c.id, c.consumer, want.Key, want.Next, c.force, is.Next, is.Key)
		}
		if s.since(a, 0, func(of map[string]uint64) bool { next, ok := of[string(is.Key)]; return ok && next == is.Next }) < 0 {
			s.o.broke("I1: process %d says that the cursor of %s for %q is durable at %d, and it is not, or was not then",
				c.proc.id, c.consumer, is.Key, is.Next)
		}
	}
}

// listed looks at the cursors that a client read: they are a version of the consumer's, none that the process had passed, and at the
// current writer one that was in force at some time since the call began (I2).
func (s *simSmall) listed(a *simAsked) {
	c := a.call
	got := map[string]uint64{}
	for _, cursor := range c.found {
		got[string(cursor.Key)] = cursor.Next
	}
	if seesMemory(c.proc) {
		for _, cursor := range c.found {
			if _, ok := s.asked[simCursorKey{c.consumer, string(cursor.Key), cursor.Next}]; !ok {
				s.o.broke("I4: process %d has a cursor of %s for %q at %d, which nobody set", c.proc.id, c.consumer, cursor.Key, cursor.Next)
			}
		}
		return
	}
	at := s.since(a, a.cursors, func(of map[string]uint64) bool { return sameCursors(c, got, of) })
	if at < 0 {
		s.o.broke("I2: process %d has cursors %v of %s; they were %v (of %d versions it had shown number %d)",
			c.proc.id, got, c.consumer, s.now.cursors[c.consumer], len(s.versionsOf(c.consumer)), a.cursors)
		return
	}
	if seen := s.o.procs[c.proc.id]; seen != nil {
		seen.cursors[c.consumer] = max(seen.cursors[c.consumer], at)
	}
}

// sameCursors compares what a client read with a version: all of it, or of the keys that it asked for, and of those that a scoped replica keeps.
func sameCursors(c *simCall, got, of map[string]uint64) bool {
	n := 0
	wanted := func(key string) bool {
		for _, cursor := range c.cursors {
			if string(cursor.Key) == key {
				return true
			}
		}
		return len(c.cursors) == 0
	}
	for key, next := range of {
		if !c.proc.keys.Contains([]byte(key)) || !wanted(key) {
			continue
		}
		if is, ok := got[key]; !ok || is != next {
			return false
		}
		n++
	}
	return n == len(got)
}

// since returns the first version of the consumer's cursors, from one on, that fits; at the current writer only those count that were in
// force at some time since the call began. None: -1.
func (s *simSmall) since(a *simAsked, from int, fits func(map[string]uint64) bool) int {
	versions := s.versionsOf(a.call.consumer)
	for i := from; i < len(versions); i++ {
		over := i+1 < len(versions) && versions[i+1].step < a.call.began
		if over && s.o.current(a.call.proc) {
			continue
		}
		if fits(versions[i].of) {
			return i
		}
	}
	return -1
}
