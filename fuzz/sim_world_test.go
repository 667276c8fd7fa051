package fuzz

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// Lanes keep the dice of one use apart from those of another.
const (
	laneStep = iota + 1
	laneProfile
	laneRandom
	laneUptime
	laneListing
	laneStart
	laneOrder
	laneEnd
)

// simWorld is a store, a clock and some processes of which one goroutine decides everything that happens. It runs
// in a bubble of testing/synctest:
//
//   - All that the engine wants from outside waits in a list: requests (ops), timers, goroutines that want to
//     start, calls of clients.
//   - A step is one event. Then the world settles: it waits until every goroutine is blocked, starts those that
//     want to start, one at a time, and takes in what came of it, in an order that does not depend on the Go
//     scheduler. Nothing else runs while the world decides.
//   - What happens in a step follows from the seed, the number of the step, and what is listed. A calm step does
//     the most ordinary thing: it serves the oldest request, or, if there is none, calls the next timer.
type simWorld struct {
	seed    uint64
	profile *simProfile
	mem     *mem.Store // what the bucket really holds
	oracle  simOracle
	trace   *simTrace
	began   time.Time

	forgets func(fault.Op) bool
	shakes  bool

	step int
	calm bool   // the step is
	hash uint64 // of the trace when the world has come to its end

	processes   []*simProcess
	lastProcess int
	ops         []*simOp // in the order in which they came
	requests    int
	timers      []*simTimer // by due time
	lastTimer   int
	calls       []*simCall // not yet answered
	lastCall    int
	deleted     []deletedEntry
	disturbed   []int           // steps that were not calm
	head        *manifest.State // as put last
	epoch       uint64          // in head

	// What clients remember.
	known     map[string]uint64 // per key, behind its last record
	highest   uint64            // sequence that was acknowledged
	producers [2]simProducer

	mu            sync.Mutex // guards what processes add to while the world settles
	arrivedOps    []*simOp
	arrivedTimers []*simTimer
	starts        []simStart
	finished      []*simCall
	draws         map[simDraw]int
	broken        error
	counts        map[string]int
}

// simRun says which run: everything else follows from it.
type simRun struct {
	seed  uint64
	steps int
	keep  map[int]bool // the steps that may disturb; nil: all
	trace bool         // keep the lines
	shake bool         // let goroutines that run at the same time overtake one another, which must make no difference
	// forgets, if not nil, is a defect of the store: it acknowledges the PUT, and does not do it.
	forgets func(fault.Op) bool
}

func newSimWorld(r simRun) *simWorld {
	w := &simWorld{
		seed: r.seed, forgets: r.forgets, shakes: r.shake, profile: newSimProfile(newDice(r.seed, laneProfile)), trace: newSimTrace(r.trace), began: time.Now(),
		known: map[string]uint64{}, draws: map[simDraw]int{}, counts: map[string]int{},
	}
	w.producers = [2]simProducer{{name: "p1"}, {name: "p2", number: 7}}
	now := time.Now
	if w.profile.coarse {
		now = func() time.Time { return time.Now().Truncate(time.Second) }
	}
	w.mem = mem.New(mem.Options{Now: now})
	w.oracle = newSimOracle(w.mem)
	return w
}

// clock is the time since the world began.
func (w *simWorld) clock() time.Duration { return time.Since(w.began) }

// count counts that something happened. Callers hold no lock.
func (w *simWorld) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.countLocked(what)
}

func (w *simWorld) countLocked(what string) { w.counts[what]++ }

// broke keeps the first reason why the run has failed. Callers hold mu.
func (w *simWorld) broke(err error) {
	if w.broken == nil {
		w.broken = err
	}
}

// note adds an event to the trace.
func (w *simWorld) note(p *simProcess, what, name string, content uint64, outcome string) {
	id := 0
	if p != nil {
		id = p.id
	}
	w.trace.add(w.step, w.calm, id, what, name, content, outcome)
}

// run is the life of a world. The first error says what was broken, and in which step.
func (w *simWorld) run(r simRun) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in step %d: %v\n%s", w.step, p, debug.Stack())
		}
		if w.hash == 0 {
			w.hash = w.trace.hash()
		}
	}()
	w.startWriter(newDice(w.seed, laneStart))
	if err := w.settle(); err != nil {
		return err
	}
	for w.step = 1; w.step <= r.steps; w.step++ {
		d := newDice(w.seed, laneStep, uint64(w.step))
		w.calm = r.keep != nil && !r.keep[w.step]
		if w.calm || !w.disturb(d) {
			w.calm = true
			w.ordinary()
		}
		if !w.calm {
			w.disturbed = append(w.disturbed, w.step)
		}
		if err := w.settle(); err != nil {
			return err
		}
	}
	return w.end()
}

// maxStarts bounds the goroutines that start because of one event.
const maxStarts = 10_000

// settle lets all that an event has made runnable run until nothing is, and tells the oracle.
func (w *simWorld) settle() error {
	for n := 0; ; n++ {
		synctest.Wait()
		s, ok := w.nextStart()
		if !ok {
			break
		}
		if n == maxStarts {
			return fmt.Errorf("step %d: %d goroutines were started, and it does not end: %s of process %d", w.step, n, s.name, s.proc.id)
		}
		w.trace.show(w.step, w.calm, s.proc.id, "go", s.name)
		go w.guarded(s.proc, s.f)
	}
	w.mu.Lock()
	opened, exited := w.adoptProcesses()
	ended := w.endCalls()
	w.listTimers()
	sent := w.listOps()
	clear(w.draws)
	broken := w.broken
	w.mu.Unlock()
	for _, p := range opened {
		w.oracle.opened(p)
	}
	for _, c := range ended {
		w.oracle.ended(c)
	}
	for _, p := range exited {
		w.note(p, "exits", "", 0, kindOf(p.startErr))
		w.gone(p)
		synctest.Wait()
	}
	for _, o := range sent {
		w.note(o.proc, "asks "+o.op.Kind.String(), o.op.Name, o.sig, "")
		w.oracle.sent(o.proc, o.op)
	}
	w.processes = w.alive()
	w.oracle.step(w.step, w.processes)
	if broken != nil {
		return fmt.Errorf("step %d: %w", w.step, broken)
	}
	return w.oracle.err()
}

// ordinary is a calm step.
func (w *simWorld) ordinary() {
	for _, o := range w.ops {
		switch {
		case o.left || o.proc.stall: // nobody waits for it
		case o.applied:
			w.reply(o, o.answer)
			return
		default:
			w.apply(o)
			w.reply(o, o.answer)
			return
		}
	}
	if !w.fireTimer(nil) {
		w.note(nil, "idle", "", 0, "")
		time.Sleep(time.Second)
	}
}

// sawManifest counts what must have been done to get from one version of MANIFEST to the next.
func (w *simWorld) sawManifest(body []byte) {
	state, err := manifest.DecodeState(manifestName, 0, body)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.broke(fmt.Errorf("a MANIFEST that cannot be read was put: %w", err))
		return
	}
	if w.head != nil {
		for _, step := range stepsBetween(w.head, state) {
			w.count("step: " + step)
		}
	}
	w.head, w.epoch = state, state.GetWriter().GetEpoch()
}

// addCounts adds the counts of a run to those of others.
func addCounts(sum, counts map[string]int) {
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		sum[what] += counts[what]
	}
}
