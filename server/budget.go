package server

import (
	"container/list"
	"context"
	"sync"
)

// budget bounds the bytes that requests hold together (invariant I9). Those who
// wait for a share get it in the order in which they came, and nobody takes
// anything past them: a large share is not starved by small ones. Whoever waits
// must hold nothing, or all could wait for each other. Safe for concurrent use.
type budget struct {
	total int64

	mu   sync.Mutex
	held int64
	peak int64      // the most that was ever held
	line *list.List // of *claim, the first to be served at the front
}

// claim is a share that somebody waits for.
type claim struct {
	bytes   int64
	granted chan struct{} // closed when the bytes are the claimant's
}

func newBudget(total int64) *budget { return &budget{total: total, line: list.New()} }

// take takes n bytes and reports whether they were there, with nobody in line.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.line.Len() > 0 || !b.fits(n) {
		return false
	}
	b.add(n)
	return true
}

// await takes n bytes, or the whole budget if that is less, as soon as they are
// there, and returns how many it took; or ctx's error. The caller holds nothing.
func (b *budget) await(ctx context.Context, n int64) (int64, error) {
	n = min(n, b.total)
	if b.take(n) {
		return n, nil
	}
	c := &claim{bytes: n, granted: make(chan struct{})}
	b.mu.Lock()
	place := b.line.PushBack(c)
	b.grant() // what was given back since take looked
	b.mu.Unlock()
	select {
	case <-c.granted:
		return n, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-c.granted: // in the meantime
		return n, nil
	default:
	}
	b.line.Remove(place)
	b.grant() // the next one may want less
	return 0, ctx.Err()
}

// give gives n bytes back.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if b.held < 0 {
		panic("server: more was given back to a budget than was taken")
	}
	b.grant()
}

// used returns the bytes that are held.
func (b *budget) used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// grant serves the line as far as the budget goes. The caller holds mu.
func (b *budget) grant() {
	for first := b.line.Front(); first != nil; first = b.line.Front() {
		c := first.Value.(*claim)
		if !b.fits(c.bytes) {
			return
		}
		b.add(c.bytes)
		b.line.Remove(first)
		close(c.granted)
	}
}

func (b *budget) fits(n int64) bool { return n <= b.total-b.held }

func (b *budget) add(n int64) {
	b.held += n
	b.peak = max(b.peak, b.held)
}
