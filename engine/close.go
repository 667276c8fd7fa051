package engine

import (
	"context"
	"fmt"
	"math"

	"github.com/annalsdb/annals/manifest"
)

// Close refuses new appends, makes everything durable and flushed, marks the
// shutdown as clean, and ends all background work. After it nothing of the DB
// can be used. Close again returns ErrClosed.
//
// When ctx ends first (or has ended already), or the DB has failed, it stops at once and returns an
// error that says which sequences are not known to be durable (F15). What was
// acknowledged as durable is safe in any case.
func (db *DB) Close(ctx context.Context) error {
	db.mu.Lock()
	if db.closing {
		db.mu.Unlock()
		return ErrClosed
	}
	db.closing = true
	db.allInLine()
	err := db.failed
	if err == nil {
		err = ctx.Err() // with a context that has ended it stops at once
	}
	if err == nil && !db.active.empty() {
		db.rotate(false)
	}
	end := db.next
	db.mu.Unlock()

	if err == nil {
		err = db.closeCleanly(ctx, end)
	}
	db.mu.Lock()
	durable, lost := db.durable, db.durableID < db.stateAt.id
	db.closed = true
	closed := error(ErrClosed)
	db.unreadable.CompareAndSwap(nil, &closed) // a failure is the better reason
	db.stopTimers()
	waiters := db.waiters
	db.waiters = nil
	db.flushes.signal()
	db.mu.Unlock()

	db.end()
	for _, w := range waiters {
		w.done <- ErrClosed
	}
	db.followers.wakeAll()
	db.uploader.Stop()
	db.committer.Close()
	db.background.Wait()
	switch {
	case err == nil:
		return nil
	case durable < end:
		if last := db.uploader.Stats().LastError; last != nil {
			err = fmt.Errorf("%w (the store's last answer: %w)", err, last)
		}
		return fmt.Errorf("close: sequences [%d, %d) are not known to be durable: %w", durable, end, err)
	case lost:
		return fmt.Errorf("close: changes of cursors are not known to be durable: %w", err)
	default:
		return fmt.Errorf("close: everything is durable, but the shutdown is not marked clean: %w", err)
	}
}

func (db *DB) closeCleanly(ctx context.Context, end uint64) error {
	if err := db.waitDurable(ctx, place{end: end}); err != nil {
		return err
	}
	// Nothing is frozen any more from here on. All that is must be committed, a
	// seal without records too: no edit of this writer may follow the last one.
	if err := db.waitFlushed(ctx, math.MaxUint64); err != nil {
		return err
	}
	if db.compactor != nil { // before the last commit, while it can still release its epoch
		select {
		case <-db.stopCompactor():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	db.mu.Lock()
	to := manifest.Pos{Epoch: db.epoch, ID: db.nextID}
	db.mu.Unlock()
	_, err := db.committer.Commit(ctx, manifest.CloseClean(db.epoch, end, to, nil))
	return translate(err)
}
