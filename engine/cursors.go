package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/trace"
	"github.com/annalsdb/annals/wal"
)

// Cursor is where a consumer goes on with a key: Next is the first sequence that it has not
// dealt with.
type Cursor = state.Cursor

// MaxCursors is how many cursors one call sets, deletes or looks up.
const MaxCursors = 10_000

// CursorOptions of SetCursors.
type CursorOptions struct {
	// Force moves cursors backwards too.
	Force bool
}

// CursorsOptions choose cursors of a consumer. The zero value is the first page of all.
type CursorsOptions struct {
	// Keys, if not nil, are looked up: those that have a cursor, in the given order. The fields below
	// then mean nothing. At most MaxCursors.
	Keys [][]byte
	// Prefix selects the keys that begin with it.
	Prefix []byte
	// After selects the keys that sort after it; nil: from the first (the empty key is a
	// key, so After with a length of 0 skips it).
	After []byte
	// Limit is the size of the page, at most MaxPage; 0: MaxPage.
	Limit int
}

// CursorsPage is one page of cursors. When More, the next page is After the last key. A page
// holds at most about 4 MiB of keys, so it may have fewer than Limit and yet More. With a Prefix the next page
// may be empty. Keys must not be changed.
type CursorsPage struct {
	Cursors []Cursor
	More    bool
}

// ConsumersPage is one page of consumers. When More, the next page is after the last one.
type ConsumersPage struct {
	Consumers []string
	More      bool
}

// validateConsumer checks a consumer's name: it is part of a URL's path, and people read it.
func validateConsumer(name string) error {
	if len(name) == 0 || len(name) > state.MaxConsumerBytes {
		return fmt.Errorf("%w: the name of a consumer has 1 to %d bytes, not %d", ErrInvalid, state.MaxConsumerBytes, len(name))
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("%w: the name of the consumer is not UTF-8: %q", ErrInvalid, name)
	}
	for _, r := range name {
		if r == '/' || unicode.IsControl(r) {
			return fmt.Errorf("%w: the name of the consumer has a %q in it: %q", ErrInvalid, r, name)
		}
	}
	return nil
}

// cursorsAtOnce is how many cursors are looked at under the writer's lock: about a millisecond's work.
const cursorsAtOnce = 256

// validateCursors checks the arguments of a call that changes n cursors.
func (db *DB) validateCursors(consumer string, n int, key func(int) []byte) error {
	if err := validateConsumer(consumer); err != nil {
		return err
	}
	if n > MaxCursors {
		return fmt.Errorf("%w: %d cursors; at most %d are allowed", ErrInvalid, n, MaxCursors)
	}
	for i := range n {
		if l := len(key(i)); l > db.opts.MaxKeyBytes {
			return fmt.Errorf("cursor %d: key of %d bytes: %w: the limit is %d", i, l, ErrTooLarge, db.opts.MaxKeyBytes)
		}
	}
	return nil
}

// cursorBytes is at least what a change of a cursor takes in the WAL, and about what a new one takes of the heap.
func cursorBytes(consumer string, key []byte) int64 {
	return int64(len(consumer)+len(key)) + cursorOverhead
}

const cursorOverhead = 48

// SetCursors moves cursors of a consumer: forwards only, unless Force, so that a late or a
// repeated call does no harm. It returns those in force after it, one for each given one, in the same order, once
// they are durable. They are kept whether or not the log has such keys and sequences. A cursor
// that does not move costs nothing.
//
// consumer has 1 to 128 bytes of UTF-8 without control characters and '/'. At most MaxCursors. Errors: ErrInvalid,
// ErrTooLarge, ErrStateFull; ErrOverloaded, ErrFenced, ErrClosed, ctx's error. Each cursor is set or is not; where a call
// fails, and its error says so, the outcome is unknown, of each. It may be repeated. Any goroutine may call it.
func (db *DB) SetCursors(ctx context.Context, consumer string, cursors []Cursor, o CursorOptions) ([]Cursor, error) {
	key := func(i int) []byte { return cursors[i].Key }
	if err := db.validateCursors(consumer, len(cursors), key); err != nil {
		return nil, fmt.Errorf("set cursors: %w", err)
	}
	if err := db.roomForAll(consumer, cursors); err != nil {
		return nil, fmt.Errorf("set cursors of %s: %w", consumer, err)
	}
	inForce := make([]Cursor, 0, len(cursors))
	err := db.changeCursors(ctx, consumer, len(cursors), key, func(from, to int, size int64) error {
		if err := db.roomForCursors(consumer, cursors[from:to], size); err != nil {
			return err
		}
		for _, c := range cursors[from:to] {
			next, ok := db.small.tables.Cursor(consumer, c.Key)
			if !ok || next < c.Next || next > c.Next && o.Force {
				db.changeCursor(wal.CursorChange{Op: wal.CursorSet, Consumer: consumer, Key: c.Key, Next: c.Next})
				next = c.Next
			}
			inForce = append(inForce, Cursor{Key: c.Key, Next: next})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("set cursors of %s: %w", consumer, err)
	}
	return inForce, nil
}

// DeleteCursors deletes the cursors of a consumer for the given keys, or all of them, at once, if none is given, and
// returns when that is durable. Deleting what is not there is no error. Bounds and errors are those of
// SetCursors. Any goroutine may call it.
func (db *DB) DeleteCursors(ctx context.Context, consumer string, keys ...[]byte) error {
	key := func(i int) []byte { return keys[i] }
	if err := db.validateCursors(consumer, len(keys), key); err != nil {
		return fmt.Errorf("delete cursors: %w", err)
	}
	err := db.changeCursors(ctx, consumer, len(keys), key, func(from, to int, _ int64) error {
		tables := db.small.tables
		if some, _ := tables.Cursors(nil, consumer, nil, false, 1, maxKeysBytes); len(some) == 0 {
			return nil
		}
		if len(keys) == 0 {
			db.changeCursor(wal.CursorChange{Op: wal.CursorDeleteConsumer, Consumer: consumer})
		}
		for _, key := range keys[from:to] {
			if _, ok := tables.Cursor(consumer, key); ok {
				db.changeCursor(wal.CursorChange{Op: wal.CursorDelete, Consumer: consumer, Key: key})
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete cursors of %s: %w", consumer, err)
	}
	return nil
}

// changeCursors calls change under mu for one part of n cursors after the other, at least once, each when
// there is room for it, and waits until all that they saw or changed is durable. size bounds the bytes of the
// part. Where change fails it must not have changed anything.
func (db *DB) changeCursors(ctx context.Context, consumer string, n int, key func(int) []byte, change func(from, to int, size int64) error) (err error) {
	ctx, span := trace.Begin(db.tracer, ctx, trace.SetCursors)
	span.Int("cursors", int64(n))
	defer func() { span.End(err) }()
	var at place
	for from, first := 0, true; first || from < n; first = false {
		to := min(n, from+cursorsAtOnce)
		size := cursorBytes(consumer, nil)
		for i := from; i < to; i++ {
			size += cursorBytes(consumer, key(i))
		}
		err := db.enter(ctx, span, 0, size)
		if err == nil {
			if err = change(from, to, size); err == nil {
				at = db.stateAt
				db.entered()
			}
			db.mu.Unlock()
		}
		if err != nil && from > 0 {
			return fmt.Errorf("%w (the outcome is unknown)", err) // of the parts before
		}
		if err != nil {
			return err
		}
		from = to
	}
	span.Phase("assign")
	err = db.waitDurable(ctx, at)
	span.Phase("durable")
	if err != nil {
		return fmt.Errorf("%w (the outcome is unknown)", db.whyNotDurable(ctx, err))
	}
	return nil
}

// roomForCursors refuses new cursors beyond the limit (I9). Those that are there can always be moved. size is what
// they take if all are new. Callers hold mu.
func (db *DB) roomForCursors(consumer string, cursors []Cursor, size int64) error {
	have, limit := db.small.tables.Bytes(), db.opts.MaxStateBytes
	if have+size <= limit {
		return nil
	}
	var grow int64
	for i := range cursors {
		if _, ok := db.small.tables.Cursor(consumer, cursors[i].Key); !ok {
			grow += cursorBytes(consumer, cursors[i].Key)
		}
	}
	if grow > 0 && have+grow > limit {
		return fmt.Errorf("%w: they take %d bytes, %d more are asked for, the limit is %d", ErrStateFull, have, grow, limit)
	}
	return nil
}

// roomForAll refuses a call of which some would be refused, before any of it is done.
func (db *DB) roomForAll(consumer string, cursors []Cursor) error {
	if len(cursors) <= cursorsAtOnce {
		return nil
	}
	size := int64(0)
	for i := range cursors {
		size += cursorBytes(consumer, cursors[i].Key)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.roomForCursors(consumer, cursors, size)
}

// changeCursor makes one change, in memory and in the WAL object under construction. Callers hold mu.
func (db *DB) changeCursor(c wal.CursorChange) {
	db.change(func(object *wal.Builder) {
		object.AddCursor(c)
		applyCursor(db.small.tables, c)
	})
}

// cursorsPage lists cursors of a consumer.
func cursorsPage(t *state.Tables, consumer string, o *CursorsOptions) (page CursorsPage) {
	from, above := o.Prefix, false
	if o.After != nil && bytes.Compare(o.After, from) >= 0 {
		from, above = o.After, true
	}
	page.Cursors, page.More = t.Cursors(nil, consumer, from, above, pageLimit(o.Limit), maxKeysBytes)
	// Keys are in order, and from is at or above the prefix: behind one without it none has it.
	for n := len(page.Cursors); n > 0 && !bytes.HasPrefix(page.Cursors[n-1].Key, o.Prefix); n-- {
		page.Cursors, page.More = page.Cursors[:n-1], false
	}
	return page
}

// Cursors implements LogReader.
func (c *core) Cursors(ctx context.Context, consumer string, o CursorsOptions) (CursorsPage, error) {
	err := validateConsumer(consumer)
	if len(o.Keys) > MaxCursors {
		err = errors.Join(err, fmt.Errorf("%w: %d keys; at most %d are allowed", ErrInvalid, len(o.Keys), MaxCursors))
	}
	for i := 0; i < len(o.Keys) && err == nil; i++ {
		err = c.checkKey(o.Keys[i])
	}
	if err != nil {
		return CursorsPage{}, fmt.Errorf("read cursors: %w", err)
	}
	t, err := c.tracedState(ctx)
	if err != nil {
		return CursorsPage{}, fmt.Errorf("read cursors of %s: %w", consumer, err)
	}
	var page CursorsPage
	if o.Keys == nil {
		return cursorsPage(t, consumer, &o), nil
	}
	for _, key := range o.Keys {
		if next, ok := t.Cursor(consumer, key); ok {
			page.Cursors = append(page.Cursors, Cursor{Key: key, Next: next})
		}
	}
	return page, nil
}

// tracedState is readState for those who read cursors: waiting for it is what takes time.
func (c *core) tracedState(ctx context.Context) (*state.Tables, error) {
	ctx, span := trace.Begin(c.tracer, ctx, trace.Cursors)
	t, err := c.readState(ctx)
	span.End(err)
	return t, err
}

// Consumers implements LogReader.
func (c *core) Consumers(ctx context.Context, after string, limit int) (ConsumersPage, error) {
	t, err := c.tracedState(ctx)
	if err != nil {
		return ConsumersPage{}, fmt.Errorf("list consumers: %w", err)
	}
	var page ConsumersPage
	page.Consumers, page.More = t.Consumers(nil, after, pageLimit(limit))
	return page, nil
}
