package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/annalsdb/annals/objstore/metered"
)

// Report is what a run saw. The names of its fields in JSON are stable.
type Report struct {
	Annals      string            `json:"annals"` // what was built
	Workload    string            `json:"workload"`
	Config      map[string]string `json:"config"` // all flags by name
	Seed        uint64            `json:"seed"`
	Machine     Machine           `json:"machine"`
	Started     time.Time         `json:"started"`
	Seconds     float64           `json:"seconds"` // that were measured
	Loop        string            `json:"loop"`    // "open", "closed", or "none"
	Interrupted bool              `json:"interrupted,omitempty"`
	// Failures are errors of operations, and what ended the run early; Violations are promises that the log broke.
	Failures   []string       `json:"failures,omitempty"`
	Violations []string       `json:"violations,omitempty"`
	Results    map[string]any `json:"results"`
	Timeline   []Point        `json:"timeline"`
	Log        *LogCounts     `json:"log,omitempty"`
	Store      *StoreReport   `json:"store,omitempty"`
	Cost       *Cost          `json:"cost,omitempty"`
	Memory     MemoryReport   `json:"memory"`
	CPUSeconds float64        `json:"cpu_seconds"` // of this process

	client  bool // the log is another process's
	rows    []row
	stats   metered.Stats // of the measured windows
	mallocs uint64
}

// Point is one interval of the timeline, about a second.
type Point struct {
	Second float64             `json:"second"` // its end, since the start of the program's run
	Length float64             `json:"length"` // in seconds
	Series map[string]Interval `json:"series"`
}

// Interval is what ended in an interval; latencies in microseconds.
type Interval struct {
	Operations uint64 `json:"operations"`
	Errors     uint64 `json:"errors"`
	Records    uint64 `json:"records"`
	Bytes      int64  `json:"bytes"`
	P50        int64  `json:"p50_us"`
	P99        int64  `json:"p99_us"`
	Max        int64  `json:"max_us"`
}

// StoreReport is what was asked of the store.
type StoreReport struct {
	Requests     map[string]uint64 `json:"requests"`         // by operation
	Failed       map[string]uint64 `json:"failed,omitempty"` // of them: answers that say that something is wrong
	Sent         map[string]uint64 `json:"sent,omitempty"`   // what was really sent, if the store tells
	Mean         map[string]int64  `json:"mean_us"`          // the time that one took, by operation, whatever its result
	BytesWritten uint64            `json:"bytes_written"`
	BytesRead    uint64            `json:"bytes_read"`
	DeletedNames uint64            `json:"deleted_names"`
}

// MemoryReport is the memory of this process.
type MemoryReport struct {
	PeakRSS  uint64 `json:"peak_rss_bytes"`
	PeakHeap uint64 `json:"peak_heap_bytes"`
}

// Unit says how a result is written for people.
type Unit int

// Units of results.
const (
	Plain          Unit = iota // a count, or anything that prints by itself
	Bytes                      // bytes
	BytesPerSecond             // bytes a second
	PerSecond                  // of anything
	Seconds                    // a time
	Ratio                      // one of two figures to the other
	Share                      // from 0 to 1
)

// row is one line of the text report.
type row struct {
	label string
	value any
	unit  Unit
}

func newReport(workload string, o Options) *Report {
	return &Report{
		Annals: o.Version, Workload: workload, Config: o.Config, Seed: o.Seed, Machine: thisMachine(), Started: time.Now().UTC(),
		Loop: "none", Results: make(map[string]any), Timeline: []Point{},
	}
}

// Result sets one result: by its name in JSON, and by its label for people. The value is a number, a Latency, or
// anything that encodes to JSON and prints.
func (r *Run) Result(name, label string, value any, unit Unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.report.Results[name]; known {
		panic("bench: result " + name + " is set twice")
	}
	r.report.Results[name] = value
	r.report.rows = append(r.report.rows, row{label, value, unit})
}

// Series sets the results of a recorder: its latency, and how much was done in a second.
func (r *Run) Series(rec *Recorder, label string) {
	r.Result(rec.name+"_latency", label, rec.Latency(), Plain)
}

// LoadResults sets what there is to say of a load when its window has ended: what was offered and achieved, and how
// late operations were started. name is what one operation is called.
func (r *Run) LoadResults(l Load, p Pace, name string) {
	r.setLoop(l)
	seconds := r.Elapsed()
	if seconds == 0 {
		return
	}
	t := l.Recorder.Total()
	if l.Schedule != nil {
		r.Result(name+"_offered_per_second", name+"s offered", l.Schedule.Rate(), PerSecond)
	}
	r.Result(name+"_achieved_per_second", name+"s achieved", float64(t.Operations)/seconds, PerSecond)
	if t.Records > 0 {
		r.Result(name+"_records_per_second", "records", float64(t.Records)/seconds, PerSecond)
	}
	if t.Bytes > 0 {
		r.Result(name+"_bytes_per_second", "key + value bytes", float64(t.Bytes)/seconds, BytesPerSecond)
	}
	if l.Schedule != nil {
		r.Result(name+"_behind_max_seconds", "started late, at most", p.BehindMax.Seconds(), Seconds)
		r.Result(name+"_behind_last_seconds", "started late, the last one", p.BehindLast.Seconds(), Seconds)
		r.Result(name+"_unstarted", "due and never started", p.Unstarted(), Plain)
	}
}

// setLoop lets the report say what kind of load it was.
func (r *Run) setLoop(l Load) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Loop = "closed"
	if l.Schedule != nil {
		r.report.Loop = "open"
	}
}

// Elapsed returns the seconds that were measured, in the windows that have ended.
func (r *Run) Elapsed() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report.Seconds
}

// Mallocs returns how many objects this process allocated in these seconds. Like all of these figures it is
// known when the window has ended.
func (r *Run) Mallocs() uint64 { return r.report.mallocs }

// StoreStats returns what was asked of the store in these seconds; false if that is not known.
func (r *Run) StoreStats() (metered.Stats, bool) { return r.report.stats, r.report.Store != nil }

// LogCounts returns what the log did in these seconds, or nil if that is not known.
func (r *Run) LogCounts() *LogCounts { return r.report.Log }

// Timeline returns the intervals that were measured.
func (r *Run) Timeline() []Point { return r.report.Timeline }

// add adds the figures of a measured window.
func (rep *Report) add(c counters, measured time.Duration) {
	rep.Seconds += measured.Seconds()
	rep.CPUSeconds += c.cpu.Seconds()
	rep.mallocs += c.mallocs
	rep.addLog(c.log)
	if c.store == nil {
		return
	}
	if rep.Store == nil {
		rep.Store = &StoreReport{}
	}
	addStats(&rep.stats, *c.store)
	rep.Store.set(rep.stats)
}

// addLog adds up what counts; of what does not, the last figure stays.
func (rep *Report) addLog(c *LogCounts) {
	if c == nil {
		return
	}
	if before := rep.Log; before != nil {
		of := before.metrics()
		for i, m := range c.metrics() {
			if !m.gauge {
				*m.value += *of[i].value
			}
		}
	}
	rep.Log = c
}

func addStats(sum *metered.Stats, s metered.Stats) {
	for op := range s.Ops {
		a, b := &sum.Ops[op], &s.Ops[op]
		for i := range b.Results {
			a.Results[i] += b.Results[i]
		}
		for i := range b.Buckets {
			a.Buckets[i] += b.Buckets[i]
		}
		a.Took += b.Took
		a.Bytes += b.Bytes
	}
	sum.DeletedNames += s.DeletedNames
	for _, of := range s.Sent {
		known := false
		for i := range sum.Sent {
			if sum.Sent[i].Operation == of.Operation {
				known = true
				for answer := range of.Count {
					sum.Sent[i].Count[answer] += of.Count[answer]
				}
			}
		}
		if !known {
			sum.Sent = append(sum.Sent, of)
		}
	}
}

// wrong are the results of requests that say that something is wrong.
var wrong = []metered.Result{metered.Denied, metered.NoBucket, metered.Unavailable, metered.Timeout, metered.Failed}

func (s *StoreReport) set(stats metered.Stats) {
	*s = StoreReport{Requests: make(map[string]uint64), Mean: make(map[string]int64), BytesWritten: stats.Ops[metered.Put].Bytes,
		BytesRead: stats.Ops[metered.Get].Bytes, DeletedNames: stats.DeletedNames}
	for op := range metered.Op(metered.NumOps) {
		if n := stats.Ops[op].Calls(); n > 0 {
			s.Requests[op.String()] = n
			s.Mean[op.String()] = (stats.Ops[op].Took / time.Duration(n)).Microseconds()
		}
		for _, result := range wrong {
			if n := stats.Ops[op].Results[result]; n > 0 {
				if s.Failed == nil {
					s.Failed = make(map[string]uint64)
				}
				s.Failed[fmt.Sprintf("%v %v", op, result)] += n
			}
		}
	}
	for _, of := range stats.Sent {
		var n uint64
		for _, count := range of.Count {
			n += count
		}
		if n > 0 {
			if s.Sent == nil {
				s.Sent = make(map[string]uint64)
			}
			s.Sent[of.Operation] = n
		}
	}
}

func (rep *Report) peak(u usage) {
	rep.Memory.PeakRSS = max(rep.Memory.PeakRSS, u.rss)
	rep.Memory.PeakHeap = max(rep.Memory.PeakHeap, u.heap)
}

// finish completes the report.
func (r *Run) finish(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := r.report
	rep.Interrupted = ctx.Err() != nil
	rep.client = r.Embedded() == nil
	rep.peak(r.usage()) // nothing else may have looked
	rep.Failures, rep.Violations = r.messages.list(), r.wrong.list()
	if r.fatal != nil {
		rep.Failures = append(rep.Failures, r.fatal.Error())
	}
	if err != nil && (ctx.Err() == nil || rep.Seconds == 0) {
		rep.Failures = append(rep.Failures, err.Error())
	}
	if r.o.Costs {
		rep.setCost(ListPrices)
	}
}

// Failed reports whether operations failed, or a check did.
func (rep *Report) Failed() bool { return len(rep.Failures)+len(rep.Violations) > 0 }

// WriteJSON writes the report as JSON, indented.
func (rep *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(rep)
}
