package engine

import (
	"container/heap"
	"context"

	"github.com/annalsdb/annals/internal/base"
)

// waiter is a Wait: one that waits for a record of one key, or for the frontier to reach an
// end. It uses a Follower for its subscription, and returns no records.
type waiter struct {
	Follower
	end uint64
	at  int // its place in the hub's heap of ends; -1: none
}

// Wait implements LogReader.
func (c *core) Wait(ctx context.Context, key []byte, r Range) error {
	if err := c.checkKey(key); err != nil || r.Empty() {
		return err
	}
	w := &waiter{end: r.End, at: -1}
	roots := []root{{Stream: Stream{Key: key, From: r.Start}}}
	w.init(c, ctx, roots)
	c.followers.enter(&w.Follower, roots)
	defer c.followers.giveUp(w)
	for {
		// First this, then the look: a commit in between wakes it.
		c.followers.await(w)
		if err := c.stopped(); err != nil {
			return err
		}
		frontier := c.frontier.Load()
		it := c.Scan(ctx, key, Between(r.Start, min(r.End, frontier)), ScanOptions{Limit: 1})
		it.quiet = true
		for range it.All() {
			return nil
		}
		if err := it.Err(); err != nil {
			return err
		}
		if frontier >= r.End {
			return nil
		}
		r.Start = max(r.Start, frontier)
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await makes the next record that the waiter wants wake it, or the frontier that ends it.
func (h *followers) await(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := &w.subs[0]; s.state == ready {
		w.first, w.last = nil, nil
		s.topic.arm(s)
	}
	if w.waiting = true; w.at < 0 && w.end > h.seen && w.end != base.MaxSequence {
		heap.Push(&h.ends, w)
	}
}

// giveUp removes a waiter.
func (h *followers) giveUp(w *waiter) {
	h.mu.Lock()
	if w.at >= 0 {
		heap.Remove(&h.ends, w.at)
	}
	h.mu.Unlock()
	h.leave(&w.Follower)
}

// endHeap orders waiters by their end. It implements heap.Interface.
type endHeap []*waiter

func (h endHeap) Len() int           { return len(h) }
func (h endHeap) Less(i, j int) bool { return h[i].end < h[j].end }
func (h endHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *endHeap) Push(x any) {
	w := x.(*waiter)
	w.at = len(*h)
	*h = append(*h, w)
}

func (h *endHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.at = -1
	return w
}
