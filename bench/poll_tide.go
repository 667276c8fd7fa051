package bench

import (
	"sort"
	"sync"
	"time"
)

// tide remembers when the end of the log was where, as those who read and write saw it. So it tells how far
// behind a cursor is, in time. Safe for concurrent use.
type tide struct {
	mu    sync.RWMutex
	step  time.Duration
	marks []mark // ascending by both
}

// mark says that every sequence below end was assigned at a time, since the start.
type mark struct {
	at  time.Duration
	end uint64
}

const (
	// tideStep is the least time between two marks, and so how exact ages are at first.
	tideStep = 10 * time.Millisecond
	// maxMarks bounds the memory: with so many every second one is dropped, and the step doubles. At
	// first they are enough for eleven minutes.
	maxMarks = 1 << 16
)

func newTide(end uint64) *tide { return &tide{step: tideStep, marks: []mark{{0, end}}} }

// saw notes the end of the log at a time.
func (t *tide) saw(at time.Duration, end uint64) {
	t.mu.RLock()
	last := t.marks[len(t.marks)-1]
	known := end <= last.end || at < last.at+t.step
	t.mu.RUnlock()
	if known {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := t.marks[len(t.marks)-1]; end <= last.end || at < last.at+t.step {
		return
	}
	if len(t.marks) == maxMarks {
		for i := range maxMarks / 2 {
			t.marks[i] = t.marks[2*i]
		}
		t.marks = t.marks[:maxMarks/2]
		t.step *= 2
	}
	t.marks = append(t.marks, mark{at, end})
}

// age returns since when the log has gone on behind a cursor: 0 if it is at the end, and beyond every
// other age if it was behind at the start already.
func (t *tide) age(cursor uint64, now time.Duration) time.Duration {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i := sort.Search(len(t.marks), func(i int) bool { return t.marks[i].end > cursor })
	switch i {
	case len(t.marks):
		return 0
	case 0:
		return 1<<63 - 1
	}
	return max(0, now-t.marks[i].at)
}

// endAt returns where the log ended at a time, or the first end that is known.
func (t *tide) endAt(at time.Duration) uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i := sort.Search(len(t.marks), func(i int) bool { return t.marks[i].at > at })
	return t.marks[max(0, i-1)].end
}
