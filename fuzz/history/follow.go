package history

import (
	"strings"
)

// stream is what a connection has delivered so far.
type stream struct {
	c       *checker
	op      int
	streams []Stream
	keys    map[string]uint64 // of the keys that it follows and that have records: where it is
	newest  map[string]uint64 // behind the newest record of a key that was delivered by this follower
	whole   uint64            // complete for all keys
}

// checkStreams replays what every follower was sent: of each key the records of the final log from its start on, none
// missing, none twice, none out of order, and each before the word that it is complete. Over several connections of one
// follower nothing is left out.
func (c *checker) checkStreams() {
	before := make(map[string]*stream) // by name of the follower
	for i := range c.h.Operations {
		f := c.h.Operations[i].Follow
		if f == nil {
			continue
		}
		s := c.newStream(i, f)
		if f.Name != "" {
			s.goesOn(before[f.Name])
			before[f.Name] = s
		}
		for _, it := range f.Items {
			if !s.item(it) {
				break
			}
			c.v.Followed++
		}
	}
}

// newStream finds the keys that a follower follows, each from the lowest start of all that cover it.
func (c *checker) newStream(op int, f *Follow) *stream {
	s := &stream{c: c, op: op, streams: f.Streams, keys: make(map[string]uint64), newest: make(map[string]uint64)}
	for key := range c.log.byKey {
		if start, ok := s.start(key); ok {
			s.keys[key] = start
		}
	}
	return s
}

// start returns where a key was to begin.
func (s *stream) start(key string) (start uint64, covered bool) {
	start = top
	for _, w := range s.streams {
		if w.Key == key || w.Prefix && strings.HasPrefix(key, w.Key) {
			start, covered = min(start, w.Start), true
		}
	}
	return start, covered
}

// byName reports whether a key is followed by itself, not by a prefix.
func (s *stream) byName(key string) bool {
	for _, w := range s.streams {
		if w.Prefix && strings.HasPrefix(key, w.Key) {
			return false
		}
	}
	return true
}

// goesOn takes over from the connection before: what lies between where that was and where this one
// starts would never come.
func (s *stream) goesOn(before *stream) {
	if before == nil {
		return
	}
	s.newest = before.newest
	for key, start := range s.keys {
		was, ok := before.keys[key]
		if missed := s.c.log.within(key, was, start); ok && len(missed) > 0 {
			s.fail(key, missed[0].Sequence, "a follower that was at %d of %q goes on at %d, and misses sequence %d", was, key, start, missed[0].Sequence)
		}
	}
}

func (s *stream) fail(key string, seq uint64, format string, args ...any) {
	s.c.v.failf(Violation{Rule: RuleStream, Operations: []int{s.op}, Key: key, Sequence: seq}, format, args...)
}

// item takes in what came, and reports whether it makes sense to go on.
func (s *stream) item(it Item) bool {
	if it.Complete {
		return s.complete(it.Next)
	}
	at, ok := s.keys[it.Key]
	if !ok { // the final log has no record of it
		at, ok = s.start(it.Key)
	}
	if !ok {
		s.fail(it.Key, it.Sequence, "a follower was sent sequence %d of %q, which it does not follow", it.Sequence, it.Key)
		return false
	}
	switch want := s.c.log.within(it.Key, at, top); {
	case it.Sequence < at:
		s.fail(it.Key, it.Sequence, "a follower was sent sequence %d of %q again, or late: it was at %d", it.Sequence, it.Key, at)
		return false
	case len(want) == 0:
		s.fail(it.Key, it.Sequence, "a follower was sent sequence %d of %q, and the final log has none there", it.Sequence, it.Key)
		return false
	case want[0].Sequence != it.Sequence:
		s.fail(it.Key, want[0].Sequence, "a follower was sent sequence %d of %q and misses %d", it.Sequence, it.Key, want[0].Sequence)
		return false
	case it.Next <= it.Sequence || len(s.c.log.within(it.Key, it.Sequence+1, it.Next)) > 0:
		s.fail(it.Key, it.Sequence, "a follower was told to go on with %q at %d behind sequence %d", it.Key, it.Next, it.Sequence)
		return false
	}
	if it.Sequence < s.newest[it.Key] && s.byName(it.Key) {
		s.fail(it.Key, it.Sequence, "a follower was sent sequence %d of %q by an earlier connection already", it.Sequence, it.Key)
		return false
	}
	s.newest[it.Key] = max(s.newest[it.Key], it.Sequence+1)
	s.keys[it.Key] = it.Next
	return true
}

// complete takes in that every record below next came.
func (s *stream) complete(next uint64) bool {
	if next < s.whole {
		s.fail("", next, "a follower was complete up to %d and is now up to %d", s.whole, next)
		return false
	}
	s.whole = next
	for key, at := range s.keys {
		if missed := s.c.log.within(key, at, next); len(missed) > 0 {
			s.fail(key, missed[0].Sequence, "a follower is complete up to %d, and sequence %d of %q did not come", next, missed[0].Sequence, key)
			return false
		}
	}
	return true
}
