package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/engine"
)

// Workload is one kind of load.
type Workload interface {
	// Name is that of its command.
	Name() string
	// Faults returns everything that is wrong with its options, by the names of their flags.
	Faults() []string
	// Run prepares, calls Begin, loads the target, calls End, and sets results. It returns an error only when it cannot go on: what
	// operations fail with goes to a Recorder, and a check that fails to Violation.
	Run(ctx context.Context, r *Run) error
}

// Options of Execute.
type Options struct {
	Seed     uint64
	Duration time.Duration // of what is measured; 0: until the workload is done
	Warmup   time.Duration // before it

	Config  map[string]string // all flags by name, for the report
	Version string            // of the program, for the report
	// Costs makes the report say what the requests would cost at S3's list prices.
	Costs bool
	// Live gets the line that says how it goes, rewritten in place if it is a terminal. nil: nobody.
	Live     io.Writer
	Terminal bool
}

const (
	// maxFailures ends a run that makes no sense any more.
	maxFailures = 10_000
	// maxMessages bounds the different errors, and violations, that a report quotes.
	maxMessages = 10
	// maxTimeline bounds the seconds that a report has one by one: two days.
	maxTimeline = 172_800
)

// Run is one benchmark run: the log under test, the clock of what is measured, and the report under construction. All methods
// but Begin and End may be called from any goroutine.
type Run struct {
	Target Target

	o     Options
	began time.Time
	// The measured window, in nanoseconds since began: [from, to).
	from, to atomic.Int64

	mu        sync.Mutex
	recorders []*Recorder
	hooks     []func()
	window    *window
	report    *Report
	failures  uint64
	messages  messages
	wrong     messages
	abort     context.CancelCauseFunc // of the window's context
	fatal     error
	live      liveLine
	ticked    time.Duration // when the interval began; of the window's goroutine
}

// Execute runs the workload on the target and reports what was seen, also when it failed, or when ctx ended early. The
// target stays open.
func Execute(ctx context.Context, t Target, w Workload, o Options) *Report {
	r := &Run{Target: t, o: o, began: time.Now(), live: liveLine{out: o.Live, terminal: o.Terminal}}
	r.from.Store(math.MaxInt64)
	r.report = newReport(w.Name(), o)
	err := w.Run(ctx, r)
	r.End()
	r.live.end()
	r.finish(ctx, err)
	return r.report
}

// Rand returns random numbers that the seed and the stream decide.
func (r *Run) Rand(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(r.o.Seed, stream)) }

// Duration returns how long it measures; 0: until the workload is done.
func (r *Run) Duration() time.Duration { return r.o.Duration }

// Embedded returns the log's engine if it runs in this process, be it behind HTTP, or nil.
func (r *Run) Embedded() *Embedded {
	switch t := r.Target.(type) {
	case *Embedded:
		return t
	case *Remote:
		return t.Beside
	}
	return nil
}

// Recorder returns the series with a name. The first one that is asked for is what the live line shows.
func (r *Run) Recorder(name string) *Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.recorders {
		if rec.name == name {
			return rec
		}
	}
	rec := newRecorder(name, r)
	r.recorders = append(r.recorders, rec)
	return rec
}

// Show makes the live line show this series from now on.
func (r *Run) Show(rec *Recorder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(r.recorders), func(o *Recorder) bool { return o == rec })
	r.recorders = append([]*Recorder{rec}, others...)
}

// OnTick calls f every second of a window, and at its end.
func (r *Run) OnTick(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hooks = append(r.hooks, f)
}

// Progress shows how a preparation goes, now and then.
func (r *Run) Progress(format string, args ...any) { r.live.showNowAndThen(format, args...) }

// within reports whether a time is in the measured window.
func (r *Run) within(t time.Time) bool {
	at := int64(t.Sub(r.began))
	return at >= r.from.Load() && at < r.to.Load()
}

// Measured reports whether what happens now is measured: it is not during the warm-up, nor after the end.
func (r *Run) Measured() bool { return r.within(time.Now()) }

// Violation reports that the log broke a promise: the run has failed.
func (r *Run) Violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong.add(fmt.Sprintf(format, args...))
}

// failed keeps the error of an operation. Errors that cannot go away, or too many, end the window.
func (r *Run) failed(series string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures++
	r.messages.add(series + ": " + err.Error())
	if r.fatal == nil && (r.failures > maxFailures || errors.Is(err, engine.ErrFenced) || errors.Is(err, engine.ErrClosed)) {
		r.fatal = fmt.Errorf("gave up after %d failures: %w", r.failures, err)
		if r.abort != nil {
			r.abort(r.fatal)
		}
	}
}

// messages are different texts, with how often each came.
type messages struct {
	texts  []string
	counts []uint64
	others uint64
}

func (m *messages) add(text string) {
	for i := range m.texts {
		if m.texts[i] == text {
			m.counts[i]++
			return
		}
	}
	if len(m.texts) == maxMessages {
		m.others++
		return
	}
	m.texts, m.counts = append(m.texts, text), append(m.counts, 1)
}

func (m *messages) list() (all []string) {
	for i, text := range m.texts {
		if m.counts[i] > 1 {
			text = fmt.Sprintf("%s (%d times)", text, m.counts[i])
		}
		all = append(all, text)
	}
	if m.others > 0 {
		all = append(all, fmt.Sprintf("and %d others", m.others))
	}
	return all
}

func faultf(format string, args ...any) string { return fmt.Sprintf(format, args...) }
