package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// KeySequence expects of a key that it has no record with a sequence at or above Next.
type KeySequence struct {
	Key  []byte
	Next uint64
}

// MaxExpected is how many keys an append may expect something of.
const MaxExpected = 10_000

// ConditionError says why a conditional append was refused. It matches ErrConflict; nothing
// was appended.
type ConditionError struct {
	Key  []byte // it has a record that the append does not expect
	Last uint64 // the sequence of its newest record
}

// Error implements error.
func (e *ConditionError) Error() string {
	return fmt.Sprintf("key %.64q has a record with sequence %d: %v", e.Key, e.Last, ErrConflict)
}

// Is makes it match ErrConflict.
func (e *ConditionError) Is(target error) bool { return target == ErrConflict }

// condition is what an append expects of the log: of each key, that no record has a sequence at or above
// Next, whether it is retained or was just assigned.
//
// It is decided under the lock under which sequences are assigned, so that appends with conditions are
// linearizable: of several that expect the same of a key to which they append, one wins. Tables
// cannot be read there. So what was assigned before is looked at without the lock, in memory
// and tables, and under it only what was assigned since; that is in memory, unless it was flushed
// and dropped from memory meanwhile: then it is looked at again.
//
// It belongs to one goroutine.
type condition struct {
	expected []KeySequence
	upTo     uint64          // the sequences below were looked at
	conflict *ConditionError // why it does not hold; that does not change any more, but by retention
}

// validate checks the condition itself.
func (c *condition) validate(maxKeyBytes int) error {
	if len(c.expected) > MaxExpected {
		return fmt.Errorf("%w: ExpectedNext has %d keys; at most %d are allowed", ErrInvalid, len(c.expected), MaxExpected)
	}
	for i := range c.expected {
		if n := len(c.expected[i].Key); n > maxKeyBytes {
			return fmt.Errorf("expected key %d: key of %d bytes: %w: the limit is %d", i, n, ErrTooLarge, maxKeyBytes)
		}
	}
	return nil
}

// look looks at all that was assigned when it began, and notes a conflict. The error says why it
// could not look.
func (c *condition) look(ctx context.Context, db *DB) error {
	if len(c.expected) == 0 || c.conflict != nil {
		return nil
	}
	db.mu.Lock()
	upTo := db.next
	db.mu.Unlock()
	p := parallel{c: &db.core}
	err := p.each(ctx, len(c.expected), func(ctx context.Context, i int, reads *atomic.Uint32) error {
		e := &c.expected[i]
		last, ok, err := db.lastWithin(ctx, e.Key, Between(max(e.Next, c.upTo), upTo), reads)
		if err == nil && ok {
			err = conflictOf(e.Key, last)
		}
		return err
	})
	if errors.As(err, &c.conflict) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at what is expected: %w", err)
	}
	c.upTo = upTo
	return nil
}

// decide looks at what was assigned since, and notes a conflict; or it reports that some of that is no
// longer in memory. Callers hold mu.
func (c *condition) decide(db *DB) (lookAgain bool) {
	if len(c.expected) == 0 || c.conflict != nil || c.upTo == db.next {
		return false
	}
	v := db.view.Load() // under mu: it has all that was assigned
	if v.memStart > c.upTo {
		return true
	}
	for i := range c.expected {
		e := &c.expected[i]
		if last, ok := v.lastInMemory(e.Key, From(max(e.Next, c.upTo))); ok {
			c.conflict = conflictOf(e.Key, last)
			return false
		}
	}
	c.upTo = db.next
	return false
}

func conflictOf(key []byte, last uint64) *ConditionError {
	return &ConditionError{Key: bytes.Clone(key), Last: last}
}

// lastInMemory returns the sequence of the key's newest record within r, as far as memories
// have it, readable or not.
func (v *view) lastInMemory(key []byte, r Range) (seq uint64, ok bool) {
	for i := len(v.memories) - 1; i >= v.memoriesFrom(r.Start); i-- {
		if mr := v.memoryRange(i, r); !mr.Empty() {
			if seq, ok = v.memories[i].table.LastSequenceOf(key, mr); ok {
				return seq, true
			}
		}
	}
	return 0, false
}

// lastWithin returns the sequence of the key's newest record within r: of all that is in memory,
// readable or not, and of what tables hold. It counts in reads that it read tables.
func (c *core) lastWithin(ctx context.Context, key []byte, r Range, reads *atomic.Uint32) (seq uint64, ok bool, err error) {
	if r.Empty() {
		return 0, false, nil
	}
	v := c.view.Load()
	if seq, ok = v.lastInMemory(key, r); ok {
		return seq, true, nil
	}
	onDisk := v.onDisk(r)
	if len(v.runsIn(onDisk)) == 0 && len(v.groupsIn(onDisk)) == 0 {
		return 0, false, nil
	}
	reads.Add(1)
	it := c.Scan(ctx, key, onDisk, ScanOptions{Last: 1})
	it.quiet = true
	for rec := range it.All() {
		return rec.Sequence, true, nil
	}
	return 0, false, it.Err()
}
