package engine

import (
	"sync"
	"sync/atomic"

	"github.com/annalsdb/annals/internal/base"
)

// followers are the reads that wait for a record. A commit that makes records
// readable wakes those that wait for their keys, and no others; waiting costs
// no timer. Safe for concurrent use.
//
// A follower adds itself first and looks for records second, so that a commit
// between the two wakes it (no lost wake-up).
type followers struct {
	waiting atomic.Int64 // followers registered; lets a commit skip all work when there are none

	mu     sync.Mutex
	byKey  map[string][]*follower
	ending map[*follower]struct{} // those whose range has an end: the frontier alone can finish them
}

// follower is one waiting read.
type follower struct {
	key  string
	end  uint64
	wake chan struct{} // capacity 1: a wake-up is never lost and never blocks
}

func (f *followers) add(key []byte, r Range) *follower {
	w := &follower{key: string(key), end: r.End, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey == nil {
		f.byKey = make(map[string][]*follower)
		f.ending = make(map[*follower]struct{})
	}
	f.byKey[w.key] = append(f.byKey[w.key], w)
	if w.end != base.MaxSequence {
		f.ending[w] = struct{}{}
	}
	f.waiting.Add(1)
	return w
}

func (f *followers) remove(w *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.byKey[w.key]
	for i, x := range list {
		if x == w {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			list = list[:len(list)-1]
			break
		}
	}
	if len(list) == 0 {
		delete(f.byKey, w.key)
	} else {
		f.byKey[w.key] = list
	}
	delete(f.ending, w)
	f.waiting.Add(-1)
}

// none reports whether nobody waits. A commit asks after it moved the frontier;
// whoever registers later sees that frontier.
func (f *followers) none() bool { return f.waiting.Load() == 0 }

// wakeRecords wakes the followers of the records' keys.
func (f *followers) wakeRecords(recs []Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range recs {
		for _, w := range f.byKey[string(recs[i].Key)] {
			w.signal()
		}
	}
}

// wakeEnded wakes the followers whose range ends at or below the frontier.
func (f *followers) wakeEnded(frontier uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.ending {
		if w.end <= frontier {
			w.signal()
		}
	}
}

// wakeAll wakes everybody: the log stopped.
func (f *followers) wakeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, list := range f.byKey {
		for _, w := range list {
			w.signal()
		}
	}
}

func (w *follower) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
