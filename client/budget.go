package client

import (
	"container/list"
	"context"
	"sync"
)

// budget bounds bytes. Who waits for some gets them in the order of asking. Safe for concurrent use.
type budget struct {
	most int64

	mu      sync.Mutex
	taken   int64
	waiters list.List // of *budgetWaiter, oldest first
	closed  error     // why nothing can be taken any more
}

type budgetWaiter struct {
	n    int64
	done chan error // capacity 1
}

// take takes n bytes, waiting until they are there. More than all of it is taken when nothing else is.
func (b *budget) take(ctx context.Context, n int64) error {
	b.mu.Lock()
	switch {
	case b.closed != nil:
		defer b.mu.Unlock()
		return b.closed
	case b.waiters.Len() == 0 && b.fits(n):
		b.taken += n
		b.mu.Unlock()
		return nil
	}
	w := &budgetWaiter{n, make(chan error, 1)}
	at := b.waiters.PushBack(w)
	b.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case err := <-w.done: // it came meanwhile
		return err
	default:
	}
	b.waiters.Remove(at)
	b.admit() // the next ones may be smaller
	return ctx.Err()
}

func (b *budget) fits(n int64) bool { return b.taken == 0 || b.taken+n <= b.most }

// give gives bytes back.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
	b.admit()
}

// admit lets those go on for whom there is room. Callers hold mu.
func (b *budget) admit() {
	for e := b.waiters.Front(); e != nil && b.fits(e.Value.(*budgetWaiter).n); e = b.waiters.Front() {
		w := b.waiters.Remove(e).(*budgetWaiter)
		b.taken += w.n
		w.done <- nil
	}
}

// close makes take return err from now on, for those who wait too. Only the first call counts.
func (b *budget) close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		return
	}
	b.closed = err
	for e := b.waiters.Front(); e != nil; e = b.waiters.Front() {
		b.waiters.Remove(e).(*budgetWaiter).done <- err
	}
}
