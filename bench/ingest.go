package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Streams of random numbers, one for each use in the package: do not use a number twice.
const (
	streamIngestBatches uint64 = iota + 1
	streamIngestSchedule
	// Streams of other workloads begin at 100, 200, ...: each has a hundred.
)

// IngestOptions of NewIngest.
type IngestOptions struct {
	BatchOptions
	Appenders int
	InFlight  int64   // key and value bytes that one appender has unacknowledged at the same time, in at most maxPerAppender appends
	Rate      float64 // key and value bytes a second of all; 0: as fast as possible, in a closed loop
	Arrivals  Arrivals
	Ack       Ack
	Total     int64 // ends after that many bytes; 0: when the time is over
}

// Ingest appends batches.
type Ingest struct {
	o       IngestOptions
	retries atomic.Uint64 // appends that were refused as overloaded, and sent again
	runs    int           // the most that the active segment had
	acked   atomic.Pointer[acknowledged]
}

// acknowledged is an append that was answered from memory.
type acknowledged struct {
	last uint64
	at   time.Time
}

// NewIngest returns the workload.
func NewIngest(o IngestOptions) *Ingest { return &Ingest{o: o} }

// Name implements Workload.
func (w *Ingest) Name() string { return "ingest" }

// Faults implements Workload.
func (w *Ingest) Faults() []string {
	faults := w.o.BatchOptions.Faults()
	if w.o.Appenders < 1 {
		faults = append(faults, faultf("--appenders is %d; it must be at least 1", w.o.Appenders))
	}
	if len(faults) == 0 && w.o.workers() > MaxWorkers {
		faults = append(faults, faultf("--appenders, each with as many batches under way as --in-flight allows, make %d appends at the same time; there may be %d", w.o.workers(), MaxWorkers))
	}
	return faults
}

// maxPerAppender bounds the appends that one appender has under way at the same time, however small they are.
const maxPerAppender = 1024

// workers returns how many appends are under way at most.
func (o *IngestOptions) workers() int64 {
	return int64(o.Appenders) * min(max(1, o.InFlight/o.Bytes()), maxPerAppender)
}

// load returns the load, for a run.
func (w *Ingest) load(r *Run) Load {
	l := Load{Workers: int(w.o.workers()), Recorder: r.Recorder("append")}
	if w.o.Rate > 0 {
		l.Schedule = NewSchedule(w.o.Rate/float64(w.o.Bytes()), w.o.Arrivals, r.Rand(streamIngestSchedule))
	}
	if w.o.Total > 0 {
		l.Limit = uint64((w.o.Total + w.o.Bytes() - 1) / w.o.Bytes())
	}
	return l
}

// Run implements Workload.
func (w *Ingest) Run(ctx context.Context, r *Run) error {
	load := w.load(r)
	batches := r.Batches(streamIngestBatches, w.o.BatchOptions)
	makers := make([]*BatchMaker, load.Workers)
	for i := range makers {
		makers[i] = batches.Maker()
	}
	e := r.Embedded()
	if e != nil {
		r.OnTick(func() { w.runs = max(w.runs, activeRuns(e)) })
	}
	ctx = r.Begin(ctx)
	stopLag := w.measureLag(ctx, r, e)
	pace := r.Loop(ctx, load, func(ctx context.Context, op Op) (Done, error) {
		recs, size := makers[op.Worker].Make(op.N)
		first, retries, err := AppendRetrying(ctx, r.Target, recs, w.o.Ack)
		if retries > 0 && r.Measured() {
			w.retries.Add(retries)
		}
		if err != nil {
			return Done{}, err
		}
		if w.o.Ack == Memory {
			w.acked.Store(&acknowledged{first + uint64(len(recs)) - 1, time.Now()})
		}
		return Done{len(recs), size}, nil
	})
	r.End()
	stopLag()
	w.results(r, load, pace)
	return nil
}

// How long to wait before an append that was refused as overloaded is sent again, if the server does not say.
const overloadedWait = 50 * time.Millisecond

// AppendRetrying appends a batch, again for as long as it is refused because the log is overloaded.
func AppendRetrying(ctx context.Context, t Target, recs []Record, ack Ack) (first, retries uint64, err error) {
	for {
		first, err = t.Append(ctx, recs, ack)
		wait, again := Overloaded(err)
		if !again || ctx.Err() != nil {
			return first, retries, err
		}
		retries++
		timer := time.NewTimer(max(wait, overloadedWait))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return first, retries, err
		}
	}
}

// activeRuns returns how many runs the segment has that is written to.
func activeRuns(e *Embedded) int {
	segments := e.DB.Head().GetSegments()
	if n := len(segments); n > 0 && !segments[n-1].GetSealed() {
		return len(segments[n-1].GetRuns())
	}
	return 0
}

// measureLag measures, one append after another, how long after its acknowledgement from memory an append is durable. It
// returns what stops it.
func (w *Ingest) measureLag(ctx context.Context, r *Run, e *Embedded) (stop func()) {
	if w.o.Ack != Memory || e == nil {
		return func() {}
	}
	lag := r.Recorder("durable_lag")
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		poll := time.NewTicker(overloadedWait)
		defer poll.Stop()
		for {
			select {
			case <-poll.C:
			case <-ctx.Done():
				return
			}
			if a := w.acked.Swap(nil); a != nil && e.DB.WaitDurable(ctx, a.last) == nil {
				lag.Observe(a.at, time.Now(), 0, 0)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// results sets what is reported.
func (w *Ingest) results(r *Run, load Load, pace Pace) {
	if w.o.Rate > 0 {
		r.Result("offered_bytes_per_second", "offered", w.o.Rate, BytesPerSecond)
	}
	r.LoadResults(load, pace, "append")
	r.Series(load.Recorder, "append latency")
	w.worst(r)
	if w.o.Ack == Memory && r.Embedded() != nil {
		r.Series(r.Recorder("durable_lag"), "memory to durable")
	}
	r.Result("retries", "refused as overloaded, repeated", w.retries.Load(), Plain)
	total := load.Recorder.Total()
	if r.Embedded() != nil {
		r.Result("active_runs_max", "active segment's runs, at most", w.runs, Plain)
		if total.Records > 0 {
			r.Result("allocations_per_record", "allocations a record", float64(r.Mallocs())/float64(total.Records), Ratio)
		}
	}
	if c := r.LogCounts(); c != nil {
		r.Result("wal_objects", "WAL objects", c.WALObjects, Plain)
		r.Result("flushes", "flushes", c.Flushes, Plain)
		r.Result("compacted_bytes", "written by compactions", c.CompactionOut, Bytes)
	}
	if s := r.report.Store; s != nil && total.Bytes > 0 {
		r.Result("write_amplification", "bytes put / record bytes", float64(s.BytesWritten)/float64(total.Bytes), Ratio)
	}
	if total.Bytes > 0 {
		r.Result("cpu_seconds_per_gb", "processor seconds a GB", r.report.CPUSeconds/(float64(total.Bytes)/1e9), Ratio)
	}
}

// WorstSecond are the worst figures that any second of a run had.
type WorstSecond struct {
	BytesPerSecond float64 `json:"bytes_per_second"`
	P99            int64   `json:"p99_us"`
}

// String writes it for people.
func (s WorstSecond) String() string {
	if s.P99 == 0 { // nothing was acknowledged
		return fmt.Sprintf("%.2f MB/s", s.BytesPerSecond/1e6)
	}
	return fmt.Sprintf("%.2f MB/s; p99 %s", s.BytesPerSecond/1e6, formatMicros(s.P99))
}

// leastInterval is how long an interval must be to be judged as a second.
const leastInterval = 0.5

// worst says how steady it was.
func (w *Ingest) worst(r *Run) {
	var worst WorstSecond
	seconds := 0
	for _, p := range r.Timeline() {
		i := p.Series["append"]
		if p.Length < leastInterval {
			continue
		}
		rate := float64(i.Bytes) / p.Length
		if seconds == 0 || rate < worst.BytesPerSecond {
			worst.BytesPerSecond = rate
		}
		worst.P99 = max(worst.P99, i.P99)
		seconds++
	}
	if seconds > 0 {
		r.Result("worst_second", "worst second", worst, Plain)
	}
}
