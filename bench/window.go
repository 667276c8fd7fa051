package bench

import (
	"context"
	"errors"
	"math"
	"time"
)

// tickEvery is how long an interval of the timeline and of the live line is.
const tickEvery = time.Second

// window is the time from Begin to End.
type window struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// errEnded is why the context of a window ends in the end.
var errEnded = errors.New("the benchmark's time is over")

// Begin starts the clock: first the warm-up, then what is measured. The context that it returns ends when
// the duration is over, when ctx ends, or when the run cannot go on: then operations under way are finished and no more begun. A workload
// may begin and end several times; what is measured adds up.
func (r *Run) Begin(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &window{cancel: cancel, done: make(chan struct{})}
	r.mu.Lock()
	if r.window != nil {
		panic("bench: Begin without End")
	}
	r.window, r.abort = w, cancel
	if r.fatal != nil {
		cancel(r.fatal)
	}
	r.mu.Unlock()
	var before *counters
	if r.o.Warmup == 0 { // nothing may happen before they are taken
		c := r.counters()
		before = &c
	}
	from := time.Since(r.began) + r.o.Warmup
	to := time.Duration(math.MaxInt64)
	if r.o.Duration > 0 {
		to = from + r.o.Duration
	}
	r.from.Store(int64(from))
	r.to.Store(int64(to))
	go func() {
		defer close(w.done)
		r.watch(ctx, from, to, before)
	}()
	return ctx
}

// End stops the clock, if the duration is not over. Call it when the operations have ended.
func (r *Run) End() {
	r.mu.Lock()
	w := r.window
	r.window = nil
	r.mu.Unlock()
	if w == nil {
		return
	}
	w.cancel(errEnded)
	<-w.done
}

// watch takes the figures at both ends of the measured window, unless those of its beginning were, and ticks.
func (r *Run) watch(ctx context.Context, from, to time.Duration, before *counters) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	wait := func(at time.Duration) bool {
		timer.Reset(at - time.Since(r.began))
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	r.ticked = time.Since(r.began)
	for at := r.ticked; at < from; {
		at = min(at+tickEvery, from)
		if !wait(at) {
			r.to.Store(r.from.Load()) // nothing was measured
			return
		}
		r.tick(false)
	}
	if before == nil {
		c := r.counters()
		before = &c
	}
	for last := from; last < to; {
		next := min(last+tickEvery, to)
		if !wait(next) {
			next = max(last, min(to, time.Since(r.began)))
			r.to.Store(int64(next))
			to = next
		}
		if next == to {
			break
		}
		r.tick(true)
		last = next
	}
	after := r.counters()
	r.tick(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.add(after.since(*before), to-from)
	r.abort(errEnded) // operations under way go on, and no others begin
}

// tick ends an interval: it keeps its figures, if measured, and shows them.
func (r *Run) tick(measured bool) {
	at := time.Since(r.began)
	seconds := (at - r.ticked).Seconds()
	r.ticked = at
	r.mu.Lock()
	recorders, hooks := r.recorders, r.hooks
	r.mu.Unlock()
	for _, f := range hooks {
		f()
	}
	point := Point{Second: at.Seconds(), Length: seconds, Series: make(map[string]Interval)}
	var first *Interval
	for _, rec := range recorders {
		l, t := rec.tick()
		i := Interval{Operations: t.ops, Errors: t.errors, Records: t.records, Bytes: t.bytes, P50: l.P50, P99: l.P99, Max: l.Max}
		point.Series[rec.name] = i
		if first == nil {
			first = &i
		}
	}
	usage := r.usage()
	r.report.peak(usage)
	if measured && seconds > 0 && len(r.report.Timeline) < maxTimeline {
		r.report.Timeline = append(r.report.Timeline, point)
	}
	r.live.tick(r, at, seconds, measured, first, usage)
}
