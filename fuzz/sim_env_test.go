package fuzz

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/annalsdb/annals/internal/base"
)

// simTimer is a call of a process's Env.AfterFunc. All fields but due, proc, site and f are guarded by simWorld.mu.
type simTimer struct {
	proc    *simProcess
	due     time.Duration // by the world's clock
	site    simSite
	number  int // of the world, once it is listed
	f       func()
	stopped bool // or fired
}

// simStart is a goroutine that a process wants to start.
type simStart struct {
	proc *simProcess
	name string
	rank uint64 // whoever has the lowest is next
	f    func()
}

// newEnv makes the environment of a process: whatever it wants of clock, timers, goroutines and chance is the
// world's to decide.
func (w *simWorld) newEnv(p *simProcess) *base.Env {
	began := time.Now()
	uptime := time.Duration(newDice(w.seed, uint64(p.id), laneUptime).below(1<<20)) * time.Millisecond
	return &base.Env{
		Now: func() time.Time {
			w.mu.Lock()
			defer w.mu.Unlock()
			return time.Now().Add(p.skew).Round(0)
		},
		// It goes on while the process is stopped.
		Elapsed: func() time.Duration { return time.Hour + uptime + time.Since(began) },
		AfterFunc: func(d time.Duration, f func()) func() bool {
			w.overtake()
			t := &simTimer{proc: p, due: w.clock() + max(0, d), site: callSite(), f: f}
			w.mu.Lock()
			defer w.mu.Unlock()
			if p.dead {
				w.bequeath(t)
			} else {
				w.arrivedTimers = append(w.arrivedTimers, t)
			}
			return func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				was := !t.stopped
				t.stopped = true
				return was
			}
		},
		Go: func(name string, f func()) {
			w.overtake()
			w.mu.Lock()
			defer w.mu.Unlock()
			if p.dead {
				go w.guarded(p, f)
			} else {
				w.starts = append(w.starts, simStart{p, name, w.rank(p, name), f})
			}
		},
		Random: func(b []byte) { w.random(p, b) },
	}
}

// overtake, in a world that is shaken, lets other goroutines go first, or not.
func (w *simWorld) overtake() {
	if w.shakes {
		for range rand.IntN(4) {
			runtime.Gosched()
		}
	}
}

// bequeath lets the bubble call a timer of a process that is dead: what it still runs has no effect, but must come to
// its end. Callers hold mu.
func (w *simWorld) bequeath(t *simTimer) {
	time.AfterFunc(t.due-w.clock(), func() {
		w.mu.Lock()
		was := t.stopped
		t.stopped = true
		w.mu.Unlock()
		if !was {
			w.guarded(t.proc, t.f)
		}
	})
}

// random depends on the process, the step, and the place of the call: goroutines that run at the same time do
// not take one another's numbers, unless they do the same thing.
func (w *simWorld) random(p *simProcess, b []byte) {
	w.overtake()
	at := simDraw{p.id, callSite()}
	w.mu.Lock()
	n := w.draws[at]
	w.draws[at] = n + 1
	step := 0
	if !p.dead { // what a dead process still runs does so beside the world
		step = w.step
	}
	w.mu.Unlock()
	newDice(w.seed, laneRandom, uint64(p.id), uint64(step), at.site.hash, uint64(n)).fill(b)
}

// simDraw is who drew random bytes within a step.
type simDraw struct {
	proc int
	site simSite
}

// simSite is a place in the code, as the names of the functions that led to it.
type simSite struct{ hash uint64 }

// knownSites has what was found out about stacks: [16]uintptr -> simSite.
var knownSites sync.Map

// callSite returns where the caller's caller was called from.
func callSite() simSite {
	var pcs [16]uintptr
	n := runtime.Callers(3, pcs[:])
	if site, ok := knownSites.Load(pcs); ok {
		return site.(simSite)
	}
	h := xxhash.New()
	frames := runtime.CallersFrames(pcs[:n])
	for {
		frame, more := frames.Next()
		if strings.Contains(frame.Function, "annalsdb/annals/") && !strings.Contains(frame.Function, "annals/fuzz.") {
			_, _ = h.WriteString(frame.Function)
		}
		if !more {
			break
		}
	}
	site := simSite{h.Sum64()}
	knownSites.Store(pcs, site)
	return site
}

// guarded runs a part of a process. What panics there has broken something.
func (w *simWorld) guarded(p *simProcess, f func()) {
	defer func() {
		if r := recover(); r != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.broke(fmt.Errorf("process %d panics: %v\n%s", p.id, r, debug.Stack()))
		}
	}()
	f()
}

// nextStart takes the goroutine that starts next, if there is one that can. In a calm step that is the first by process and name.
// Otherwise the seed ranks each by its name alone: where a context ends, the order in which its children hear of it
// is the runtime's, and one more of them may still start something, which comes to nothing. Those that start in either
// case must do so in the same order.
func (w *simWorld) nextStart() (simStart, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := -1
	for i, s := range w.starts {
		if !s.proc.stall && (next < 0 || s.before(w.starts[next])) {
			next = i
		}
	}
	if next < 0 {
		return simStart{}, false
	}
	s := w.starts[next]
	w.starts = slices.Delete(w.starts, next, next+1)
	return s, true
}

// before orders goroutines that want to start; those that are equal start in the order in which they asked.
func (s simStart) before(o simStart) bool {
	return cmp.Or(cmp.Compare(s.rank, o.rank), cmp.Compare(s.proc.id, o.proc.id), strings.Compare(s.name, o.name)) < 0
}

// rank draws the place of a start among others: 0 in a calm step.
func (w *simWorld) rank(p *simProcess, name string) uint64 {
	if w.calm {
		return 0
	}
	return newDice(w.seed, laneOrder, uint64(w.step), uint64(p.id), xxhash.Sum64String(name)).next()
}

// listTimers takes in the timers that were made since the last event, and forgets those that were stopped. Callers
// hold mu.
func (w *simWorld) listTimers() {
	gone := func(t *simTimer) bool {
		if !t.stopped && t.proc.dead {
			w.bequeath(t)
		}
		return t.stopped || t.proc.dead
	}
	w.timers = slices.DeleteFunc(w.timers, gone)
	fresh := slices.DeleteFunc(w.arrivedTimers, gone)
	slices.SortStableFunc(fresh, func(a, b *simTimer) int {
		return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.proc.id, b.proc.id), cmp.Compare(a.site.hash, b.site.hash))
	})
	for _, t := range fresh {
		w.lastTimer++
		t.number = w.lastTimer
		at, _ := slices.BinarySearchFunc(w.timers, t, func(a, b *simTimer) int {
			return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.number, b.number))
		})
		w.timers = slices.Insert(w.timers, at, t)
	}
	w.arrivedTimers = w.arrivedTimers[:0]
}

// fireTimer advances the clock to the first timer of a process that is not stopped, and calls it, or, where several are
// due, one of them. It reports whether there was one.
func (w *simWorld) fireTimer(d *dice) bool {
	var able []int
	for i, t := range w.timers {
		if !t.proc.stall && (len(able) == 0 || t.due <= w.clock()) {
			able = append(able, i)
		}
	}
	if len(able) == 0 {
		return false
	}
	at := able[0]
	if d != nil {
		at = able[d.early(len(able))]
	}
	t := w.timers[at]
	w.timers = slices.Delete(w.timers, at, at+1)
	if wait := t.due - w.clock(); wait > 0 {
		time.Sleep(wait)
	}
	w.mu.Lock()
	t.stopped = true
	w.mu.Unlock()
	w.note(t.proc, "timer", "", t.site.hash, "")
	go w.guarded(t.proc, t.f)
	return true
}
