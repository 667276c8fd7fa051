package state

import "bytes"

// SetCursor sets where a consumer goes on with a key. A cursor that is there already with the same next sequence
// does not change.
func (t *Tables) SetCursor(consumer string, key []byte, next uint64) {
	if t.limits.Keep != nil && !t.limits.Keep(key) {
		return
	}
	name, was := t.cursors.set(consumer, key, next, t.version+1)
	if was == setSame {
		return
	}
	t.change()
	if was == setAdded {
		c, ok := t.consumers.Get(consumerItem{name: name})
		if !ok {
			c.name = name
		}
		t.count(c, 1)
		t.goneCursors.delete(name, key)
	}
}

// DeleteCursor removes the cursor of a consumer for a key, if there is one.
func (t *Tables) DeleteCursor(consumer string, key []byte) {
	c, ok := t.consumers.Get(consumerItem{name: consumer})
	if !ok || !t.cursors.delete(consumer, key) {
		return
	}
	if t.count(c, -1) > 0 {
		t.goneCursors.set(c.name, key, 0, t.change())
	} else {
		t.consumerGone(c.name)
	}
}

// DeleteConsumer removes all cursors of a consumer.
func (t *Tables) DeleteConsumer(consumer string) {
	c, ok := t.consumers.Get(consumerItem{name: consumer})
	if !ok {
		return
	}
	t.cursors.deleteAll(consumer)
	t.count(c, -c.cursors)
	t.consumerGone(c.name)
}

// Cursor returns where a consumer goes on with a key; false if it has no cursor for it.
func (t *Tables) Cursor(consumer string, key []byte) (next uint64, ok bool) {
	s, ok := t.cursors.get(consumer, key)
	return s.next, ok
}

// Cursors appends cursors of a consumer to dst, in key order: those with keys at or above from, or only above it. At
// most limit, and of keys that have together at most maxBytes, but one at least if there is one and limit is not 0.
// More says that others follow. The keys are copies.
func (t *Tables) Cursors(dst []Cursor, consumer string, from []byte, above bool, limit, maxBytes int) (list []Cursor, more bool) {
	n, size := 0, 0
	t.cursors.ascend(consumer, from, func(item blockItem) bool {
		b := item.block
		i, found := b.find(from)
		if found && above {
			i++
		}
		for ; i < len(b.slots); i++ {
			key := b.key(i)
			if n >= limit || n > 0 && size+len(key) > maxBytes {
				more = true
				return false
			}
			dst = append(dst, Cursor{Key: bytes.Clone(key), Next: b.slots[i].next})
			n, size = n+1, size+len(key)
		}
		return true
	})
	return dst, more
}

// Consumers appends the names of consumers that have cursors to dst, in order: those above after, at most limit. More
// says that others follow.
func (t *Tables) Consumers(dst []string, after string, limit int) (list []string, more bool) {
	n := 0
	t.consumers.AscendGreaterOrEqual(consumerItem{name: after}, func(c consumerItem) bool {
		if c.name == after {
			return true
		}
		if n >= limit {
			more = true
			return false
		}
		dst, n = append(dst, c.name), n+1
		return true
	})
	return dst, more
}

// count changes the number of a consumer's cursors. One that has none left is forgotten. Its name is that of its first
// block.
func (t *Tables) count(c consumerItem, by int) (left int) {
	c.cursors += by
	t.total += by
	if c.cursors == 0 {
		t.consumers.Delete(c)
	} else {
		t.consumers.ReplaceOrInsert(c)
	}
	return c.cursors
}
