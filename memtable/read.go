package memtable

import "github.com/annalsdb/annals/internal/base"

// key returns the bytes of a key.
func (t *Table) key(k *keyState) []byte { return piece(t.keys.blocks, k.key, k.keyLength) }

// record makes the record of an entry. It aliases the arenas (M2).
func (t *Table) record(key []byte, e *entry) base.Record {
	return base.Record{
		Key:       key,
		Value:     piece(t.valueBlocks, e.value, e.length),
		Sequence:  e.sequence,
		Timestamp: e.timestamp,
	}
}

// Scan appends the records of key within rng to dst, oldest first, until
// maxRecords were appended or their values have maxBytes bytes or more; but one
// record at least if maxRecords allows it. So when fewer than maxRecords with
// fewer than maxBytes bytes of values were appended, rng is exhausted.
//
// The appended records stay valid for ever and must not be written to; dst's
// growth is all that is allocated. Any goroutine may call it.
func (t *Table) Scan(dst []base.Record, key []byte, rng base.Range, maxRecords int, maxBytes int64) []base.Record {
	if rng.Empty() {
		return dst
	}
	hash := t.hash(key)
	locked := t.rlock()
	defer func() { t.runlock(locked) }()
	state, ok := t.find(t.index, key, hash)
	if !ok {
		return dst
	}
	k := t.states.at(state)
	key = t.key(k)
	for i := t.seek(k, rng.Start); i < k.count && maxRecords > 0; {
		entries := t.stretch(k, i)
		for j := range entries {
			e := &entries[j]
			if maxRecords <= 0 || e.sequence >= rng.End {
				return dst
			}
			dst = append(dst, t.record(key, e))
			maxRecords--
			if maxBytes -= int64(e.length); maxBytes <= 0 {
				return dst
			}
		}
		before := i
		i += uint64(len(entries))
		if locked && before/readRecords != i/readRecords {
			k, locked = t.pause(state) // M3
		}
	}
	return dst
}

// ScanBackward appends the records of key within rng to dst, newest first.
// Limits and the rest are as in Scan.
func (t *Table) ScanBackward(dst []base.Record, key []byte, rng base.Range, maxRecords int, maxBytes int64) []base.Record {
	if rng.Empty() {
		return dst
	}
	hash := t.hash(key)
	locked := t.rlock()
	defer func() { t.runlock(locked) }()
	state, ok := t.find(t.index, key, hash)
	if !ok {
		return dst
	}
	k := t.states.at(state)
	key = t.key(k)
	for i := t.seek(k, rng.End); i > 0 && maxRecords > 0; {
		entries := t.stretchBack(k, i-1)
		for j := len(entries) - 1; j >= 0; j-- {
			e := &entries[j]
			if maxRecords <= 0 || e.sequence < rng.Start {
				return dst
			}
			dst = append(dst, t.record(key, e))
			maxRecords--
			if maxBytes -= int64(e.length); maxBytes <= 0 {
				return dst
			}
		}
		before := i
		i -= uint64(len(entries))
		if locked && before/readRecords != i/readRecords {
			k, locked = t.pause(state) // M3
		}
	}
	return dst
}

// pause lets a waiting writer in and returns the key's state as it is then: it
// may have moved. Numbers of records stay what they were.
func (t *Table) pause(state uint32) (k *keyState, locked bool) {
	t.mu.RUnlock()
	locked = t.rlock()
	return t.states.at(state), locked
}

// Count returns how many records key has within rng. Any goroutine may call it.
func (t *Table) Count(key []byte, rng base.Range) uint64 {
	if rng.Empty() {
		return 0
	}
	hash := t.hash(key)
	locked := t.rlock()
	defer t.runlock(locked)
	state, ok := t.find(t.index, key, hash)
	if !ok {
		return 0
	}
	k := t.states.at(state)
	return t.seek(k, rng.End) - t.seek(k, rng.Start)
}

// SeekTimestamp returns the sequence of the key's first record within rng
// whose timestamp is at least ts. Any goroutine may call it.
func (t *Table) SeekTimestamp(key []byte, rng base.Range, ts int64) (seq uint64, ok bool) {
	if rng.Empty() {
		return 0, false
	}
	hash := t.hash(key)
	locked := t.rlock()
	defer t.runlock(locked)
	state, ok := t.find(t.index, key, hash)
	if !ok {
		return 0, false
	}
	k := t.states.at(state)
	i := t.search(k, func(e *entry) bool { return e.timestamp >= ts && e.sequence >= rng.Start })
	if i == k.count {
		return 0, false
	}
	seq = t.entryAt(k, i).sequence
	return seq, seq < rng.End
}

// HasKey reports whether key has a record within rng. Any goroutine may call it.
func (t *Table) HasKey(key []byte, rng base.Range) bool {
	_, ok := t.LastSequenceOf(key, rng)
	return ok
}

// LastSequenceOf returns the sequence of the key's newest record within rng.
// Any goroutine may call it.
func (t *Table) LastSequenceOf(key []byte, rng base.Range) (seq uint64, ok bool) {
	hash := t.hash(key)
	locked := t.rlock()
	defer t.runlock(locked)
	state, ok := t.find(t.index, key, hash)
	if !ok {
		return 0, false
	}
	return t.lastWithin(t.states.at(state), rng)
}

// lastWithin returns the sequence of the key's newest record within rng.
func (t *Table) lastWithin(k *keyState, rng base.Range) (seq uint64, ok bool) {
	if rng.Empty() || rng.End <= k.first[0].sequence || rng.Start > k.last {
		return 0, false
	}
	if k.last < rng.End {
		return k.last, true
	}
	seq = t.entryAt(k, t.seek(k, rng.End)-1).sequence
	return seq, seq >= rng.Start
}
