package engine

import (
	"context"
	"slices"
)

// place is how far something was written: every sequence below end, and the WAL objects of
// this epoch up to id. Both only grow, so that places that this writer passed are ordered. An object
// without records moves id alone.
type place struct {
	end uint64
	id  uint64
}

// less orders places as a writer passes them.
func (p place) less(o place) bool { return p.end < o.end || p.end == o.end && p.id < o.id }

// durableWaiter waits until all up to a place is durable.
type durableWaiter struct {
	at   place
	done chan error // capacity 1, sent to once
}

// here is the place behind all that was assigned so far. Callers hold mu.
func (db *DB) here() place {
	if db.builder == nil {
		return place{db.next, db.nextID - 1}
	}
	return place{db.next, db.nextID}
}

// isDurable reports whether all up to a place is durable. Callers hold mu.
func (db *DB) isDurable(at place) bool { return at.end <= db.durable && at.id <= db.durableID }

// addWaiter adds a waiter behind those that wait for no more. Callers hold mu.
func (db *DB) addWaiter(at place) *durableWaiter {
	w, ok := db.oldWaiters.Get().(*durableWaiter)
	if !ok {
		w = &durableWaiter{done: make(chan error, 1)}
	}
	w.at = at
	db.waiters = append(db.waiters, w)
	for i := len(db.waiters) - 1; i > 0 && at.less(db.waiters[i-1].at); i-- { // rare: somebody waits for a sequence yet to come
		db.waiters[i-1], db.waiters[i] = w, db.waiters[i-1]
	}
	return w
}

// takeDurable removes and returns the waiters for what is durable by now. Callers hold mu.
func (db *DB) takeDurable() []*durableWaiter {
	n := 0
	for n < len(db.waiters) && db.isDurable(db.waiters[n].at) {
		n++
	}
	ready := db.waiters[:n:n]
	db.waiters = db.waiters[n:]
	return ready
}

// WaitDurable returns nil once nothing at or below the given sequence can still
// become durable or be lost: the record that this DB gave it, and every earlier
// one, is durable. A sequence that was not assigned yet is waited for. Errors:
// ErrFenced, ErrClosed (it may never become durable), ctx's error.
func (db *DB) WaitDurable(ctx context.Context, seq uint64) error {
	return db.waitDurable(ctx, place{end: max(seq, seq+1)}) // no record has the highest sequence
}

func (db *DB) waitDurable(ctx context.Context, at place) error {
	db.mu.Lock()
	if db.isDurable(at) {
		db.mu.Unlock()
		return nil
	}
	if db.failed != nil || db.closed {
		err := db.failed
		db.mu.Unlock()
		if err == nil {
			err = ErrClosed
		}
		return err
	}
	w := db.addWaiter(at)
	db.mu.Unlock()
	return db.await(ctx, w)
}

// await waits for a waiter's turn, or until ctx ends.
func (db *DB) await(ctx context.Context, w *durableWaiter) error {
	select {
	case err := <-w.done:
		db.oldWaiters.Put(w) // who sent to it has let go of it
		return err
	case <-ctx.Done():
		db.mu.Lock()
		if i := slices.Index(db.waiters, w); i >= 0 {
			db.waiters = slices.Delete(db.waiters, i, i+1)
		}
		db.mu.Unlock()
		return ctx.Err()
	}
}
