package bench

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// What a latency may be, in microseconds, and how exactly it is kept. What is outside counts as the nearest, and as clamped.
const (
	minLatencyUs  = 1
	maxLatencyUs  = int64(time.Hour / time.Microsecond)
	latencyDigits = 3
)

// maxShards bounds how many parts a Recorder has: each takes about 400 KiB.
const maxShards = 8

// Recorder is one series of latencies, with what was done by the operations. All methods may be called from any
// goroutine. What is outside of a run's measured window shows in the live line only.
type Recorder struct {
	name   string
	run    *Run
	shards []shard
}

// shard is a part of a Recorder, so that its users seldom wait for one another.
type shard struct {
	mu        sync.Mutex
	measured  *hdrhistogram.Histogram // operations that were due within the window
	clamped   uint64
	total     tally                   // of what ended within the window
	interval  *hdrhistogram.Histogram // what ended since the last tick, whenever it was due
	intervals tally
	_         [64]byte // no two shards in one cache line
}

// tally counts operations.
type tally struct {
	ops, errors, records uint64
	bytes                int64
}

func (t *tally) add(o tally) {
	t.ops += o.ops
	t.errors += o.errors
	t.records += o.records
	t.bytes += o.bytes
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(minLatencyUs, maxLatencyUs, latencyDigits)
}

func newRecorder(name string, run *Run) *Recorder {
	rec := &Recorder{name: name, run: run, shards: make([]shard, min(runtime.GOMAXPROCS(0), maxShards))}
	for i := range rec.shards {
		rec.shards[i].measured, rec.shards[i].interval = newHistogram(), newHistogram()
	}
	return rec
}

func (rec *Recorder) shard() *shard {
	return &rec.shards[rand.IntN(len(rec.shards))]
}

// Observe records an operation that succeeded: its latency is from when it was due to its end. Its records and
// bytes are for the rates.
func (rec *Recorder) Observe(due, end time.Time, records int, bytes int64) {
	us, clamped := end.Sub(due).Microseconds(), uint64(0)
	if us < minLatencyUs || us > maxLatencyUs {
		us, clamped = min(max(us, minLatencyUs), maxLatencyUs), 1
	}
	done := tally{ops: 1, records: uint64(records), bytes: bytes}
	latency, rate := rec.run.within(due), rec.run.within(end)
	s := rec.shard()
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.interval.RecordValue(us) // it is within the bounds
	s.intervals.add(done)
	if latency {
		_ = s.measured.RecordValue(us)
		s.clamped += clamped
	}
	if rate {
		s.total.add(done)
	}
}

// Fail counts an operation that failed at a time, and keeps the error for the report.
func (rec *Recorder) Fail(end time.Time, err error) {
	rec.run.failed(rec.name, err)
	rate := rec.run.within(end)
	s := rec.shard()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intervals.errors++
	if rate {
		s.total.errors++
	}
}

// Latency is a distribution of latencies, in microseconds.
type Latency struct {
	Count   int64   `json:"count"`
	Min     int64   `json:"min_us"`
	Mean    float64 `json:"mean_us"`
	P50     int64   `json:"p50_us"`
	P90     int64   `json:"p90_us"`
	P99     int64   `json:"p99_us"`
	P999    int64   `json:"p999_us"`
	Max     int64   `json:"max_us"`
	Clamped uint64  `json:"clamped"` // of them: below 1 us or above 1 h, and counted as that
	// Distribution has pairs of a percentile and the latency that it has: what figures are drawn from.
	Distribution [][2]float64 `json:"distribution,omitempty"`
}

// distributionTicks is how many steps the distribution has for each halving of what is above.
const distributionTicks = 5

func latencyOf(h *hdrhistogram.Histogram, clamped uint64, distribution bool) Latency {
	l := Latency{Count: h.TotalCount(), Clamped: clamped}
	if l.Count == 0 {
		return l
	}
	l.Min, l.Mean, l.Max = h.Min(), h.Mean(), h.Max()
	l.P50, l.P90 = h.ValueAtQuantile(50), h.ValueAtQuantile(90)
	l.P99, l.P999 = h.ValueAtQuantile(99), h.ValueAtQuantile(99.9)
	if distribution {
		for _, b := range h.CumulativeDistributionWithTicks(distributionTicks) {
			l.Distribution = append(l.Distribution, [2]float64{b.Quantile, float64(b.ValueAt)})
		}
	}
	return l
}

// Latency returns what was measured so far.
func (rec *Recorder) Latency() Latency {
	all, clamped := newHistogram(), uint64(0)
	for i := range rec.shards {
		s := &rec.shards[i]
		s.mu.Lock()
		all.Merge(s.measured)
		clamped += s.clamped
		s.mu.Unlock()
	}
	return latencyOf(all, clamped, true)
}

// Total counts what ended within the measured window.
func (rec *Recorder) Total() (t Total) {
	var sum tally
	for i := range rec.shards {
		s := &rec.shards[i]
		s.mu.Lock()
		sum.add(s.total)
		s.mu.Unlock()
	}
	return Total{sum.ops, sum.errors, sum.records, sum.bytes}
}

// Total counts operations.
type Total struct {
	Operations, Errors, Records uint64
	Bytes                       int64
}

// tick ends an interval and returns what was done in it.
func (rec *Recorder) tick() (Latency, tally) {
	all := newHistogram()
	var sum tally
	for i := range rec.shards {
		s := &rec.shards[i]
		s.mu.Lock()
		all.Merge(s.interval)
		s.interval.Reset()
		sum.add(s.intervals)
		s.intervals = tally{}
		s.mu.Unlock()
	}
	return latencyOf(all, 0, false), sum
}
