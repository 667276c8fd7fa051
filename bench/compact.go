package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

const (
	streamCompactBatches uint64 = iota + 400
	streamCompactHot
)

const (
	// compactTree is the only tree of a log.
	compactTree = 0
	// MinCompactRuns and MaxCompactRuns bound the runs of a segment: the planner gives no job more inputs.
	MinCompactRuns, MaxCompactRuns = 2, 64
	// maxCompactRunBytes bounds a run: it is made in memory.
	maxCompactRunBytes = 2 << 30
	// maxCompactParts bounds the parts of a job.
	maxCompactParts = 16
	// maxCompactTimes bounds how often it is done.
	maxCompactTimes = 1000
	// compactBatch is how many bytes one append of the preparation has.
	compactBatch = 1 << 20
	// memtableFactor times the bytes of a run is the memtable that takes it: of records of a few bytes most is overhead.
	memtableFactor, memtableSlack = 8, 64 << 20
)

// CompactOptions of NewCompact.
type CompactOptions struct {
	KeyOptions
	ValueOptions
	Records  uint64  // of the segment; 0: as many as Bytes justifies
	Bytes    int64   // key and value bytes of the segment, on average
	HotShare float64 // of the records, that key 0 has beside what the distribution gives it
	Runs     int     // that the segment has before it is compacted
	Kind     compaction.Kind
	Parallel int // key ranges that are merged at the same time; 0: what the job justifies
	Times    int // how often it is done
	// StoreInMemory: objects lie in this process's memory, and do not count as what the compaction needs.
	StoreInMemory bool
}

// Compact builds a segment of several runs and merges them, several times. It commits nothing: what it wrote is deleted again.
type Compact struct {
	o    CompactOptions
	runs CompactTimes
}

// NewCompact returns the workload.
func NewCompact(o CompactOptions) *Compact { return &Compact{o: o} }

// Name implements Workload.
func (w *Compact) Name() string { return "compact" }

// Faults implements Workload.
func (w *Compact) Faults() []string {
	faults := append(w.o.KeyOptions.Faults(), w.o.ValueOptions.Faults()...)
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, faultf(format, args...))
		}
	}
	o := &w.o
	fault(o.Runs < MinCompactRuns || o.Runs > MaxCompactRuns, "--runs is %d; it must be from %d to %d", o.Runs, MinCompactRuns, MaxCompactRuns)
	fault(!(o.HotShare >= 0 && o.HotShare <= 1), "--hot-share is %v; it must be from 0 to 1", o.HotShare)
	fault(o.Parallel < 0 || o.Parallel > maxCompactParts, "--parallel is %d; it must be from 0 to %d", o.Parallel, maxCompactParts)
	fault(o.Times < 1 || o.Times > maxCompactTimes, "--times is %d; it must be from 1 to %d", o.Times, maxCompactTimes)
	if len(faults) > 0 {
		return faults
	}
	n := o.records()
	fault(n < uint64(o.Runs), "--bytes or --records make %d records; there must be one for each of %d runs", n, o.Runs)
	perRun := float64(n) / float64(o.Runs) * float64(o.Size+KeySize)
	fault(perRun > maxCompactRunBytes, "a run would have %.0f bytes; it is made in memory and may have %d: raise --runs (to at most %d) or make the segment smaller",
		perRun, int64(maxCompactRunBytes), MaxCompactRuns)
	return faults
}

// records returns how many the segment gets.
func (o *CompactOptions) records() uint64 {
	if o.Records > 0 {
		return o.Records
	}
	return uint64(o.Bytes) / uint64(o.Size+KeySize)
}

// MemtableBytes returns the memtable that an engine must have so that the segment gets the runs that were asked for,
// and no others.
func (o *CompactOptions) MemtableBytes() int64 {
	perRun := int64(o.records()/uint64(o.Runs)+1) * int64(o.Size+KeySize)
	return min(memtableFactor*perRun+memtableSlack, memtableFactor*maxCompactRunBytes)
}

// Run implements Workload.
func (w *Compact) Run(ctx context.Context, r *Run) error {
	e := r.Embedded()
	if e == nil {
		return errors.New("a compaction needs the log's store: use --store")
	}
	appended, err := w.fill(ctx, r, e)
	if err != nil {
		return err
	}
	job, err := w.job(e)
	if err != nil {
		return err
	}
	if job.Records != appended {
		r.Violation("%d records were appended, the runs have %d", appended, job.Records)
	}
	var last *compaction.Result
	for range w.o.Times {
		res, err := w.once(ctx, r, e, job)
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			break // interrupted: what was measured before is reported
		}
		if last = res; res.RecordsOut != job.Records {
			r.Violation("the job has %d records, %d were written", job.Records, res.RecordsOut)
		}
	}
	if last != nil {
		w.results(r, job, last)
	}
	return nil
}

// fill appends the records to an empty log, run by run.
func (w *Compact) fill(ctx context.Context, r *Run, e *Embedded) (appended uint64, err error) {
	if s := e.DB.Status(); s.Next > 0 || s.Runs > 0 {
		return 0, fmt.Errorf("the log in %s has records; a segment of a given shape needs an empty one", e.Store)
	}
	total := w.o.records()
	perBatch := min(max(1, compactBatch/(w.o.Size+KeySize)), MaxBatch)
	maker := r.Batches(streamCompactBatches, BatchOptions{KeyOptions: w.o.KeyOptions, ValueOptions: w.o.ValueOptions, Records: perBatch}).Maker()
	hot, hotKey := r.Rand(streamCompactHot), AppendKey(nil, 0)
	batch := uint64(0)
	for run := range uint64(w.o.Runs) {
		for end := total * (run + 1) / uint64(w.o.Runs); appended < end; batch++ {
			recs, _ := maker.Make(batch)
			recs = recs[:min(uint64(len(recs)), end-appended)]
			w.heat(recs, hot, hotKey)
			if _, _, err := AppendRetrying(ctx, e, recs, Memory); err != nil {
				return appended, fmt.Errorf("append: %w", err)
			}
			appended += uint64(len(recs))
			r.Progress("%d of %d records are appended, %d of %d runs written", appended, total, run, w.o.Runs)
		}
		if err := e.DB.Flush(ctx); err != nil {
			return appended, fmt.Errorf("flush run %d: %w", run+1, err)
		}
		if _, err := e.DB.CollectGarbage(ctx); err != nil { // the WAL: it may lie in memory
			return appended, fmt.Errorf("collect what run %d left: %w", run+1, err)
		}
	}
	return appended, nil
}

// heat gives the hot key its share of the records.
func (w *Compact) heat(recs []Record, rnd *rand.Rand, key []byte) {
	if w.o.HotShare == 0 {
		return
	}
	for i := range recs {
		if rnd.Float64() < w.o.HotShare {
			recs[i].Key = key
		}
	}
}

// job merges the runs of the only segment.
func (w *Compact) job(e *Embedded) (compaction.Job, error) {
	segments := e.DB.Head().GetSegments()
	if len(segments) != 1 || len(segments[0].GetRuns()) != w.o.Runs {
		runs := 0
		for _, s := range segments {
			runs += len(s.GetRuns())
		}
		return compaction.Job{}, fmt.Errorf("there are %d segments with %d runs, and not one with %d: raise --memtable-bytes, --segment-bytes or --segment-interval, or leave them out",
			len(segments), runs, w.o.Runs)
	}
	s := segments[0]
	job := compaction.Job{Kind: w.o.Kind, First: s.GetId(), Last: s.GetId(), Inputs: s.GetRuns()}
	for _, t := range tablesOf(s.GetRuns()...) {
		job.Records, job.Bytes, job.Stored = job.Records+t.GetRecords(), job.Bytes+t.GetBytes(), job.Stored+t.GetSize()
	}
	return job, nil
}

func tablesOf(runs ...*manifest.Run) (tables []*manifest.Table) {
	for _, run := range runs {
		tables = append(tables, run.GetTables()...)
	}
	return tables
}

// CompactTime is what one compaction took.
type CompactTime struct {
	Seconds           float64 `json:"seconds"`
	CPUSeconds        float64 `json:"cpu_seconds"` // of the whole process meanwhile
	BytesPerSecond    float64 `json:"bytes_per_second"`
	BytesPerCPUSecond float64 `json:"bytes_per_cpu_second"`
	PeakMemory        uint64  `json:"peak_memory_bytes"` // above the start
	Gets              uint64  `json:"gets"`
	Puts              uint64  `json:"puts"`
}

// CompactTimes are what each of several took.
type CompactTimes []CompactTime

// String writes them for people, a line each.
func (all CompactTimes) String() string {
	var b strings.Builder
	for _, t := range all {
		fmt.Fprintf(&b, "%s: %.2f MB/s, %.2f MB a processor second, %s\n", formatSeconds(t.Seconds), t.BytesPerSecond/1e6,
			t.BytesPerCPUSecond/1e6, formatBytes(float64(t.PeakMemory)))
	}
	return b.String()
}

// once does the job, measures it, and deletes what it wrote.
func (w *Compact) once(ctx context.Context, r *Run, e *Embedded, job compaction.Job) (*compaction.Result, error) {
	head := e.DB.Head()
	runner := &compaction.Runner{
		Store: e.Store, Env: base.SystemEnv(), Tree: compactTree, Epoch: head.GetCompactor().GetEpoch() + 1, Parts: w.o.Parallel,
	}
	rec := r.Recorder("compaction")
	restore := limitGarbage()
	defer restore()
	window := r.Begin(ctx)
	memory := watchMemory(e.Store, w.o.StoreInMemory)
	cpu, began := CPUTime(), time.Now()
	res, err := runner.Run(window, job)
	took, used := time.Since(began), CPUTime()-cpu
	peak := memory.stop()
	if err == nil {
		rec.Observe(began, began.Add(took), int(job.Records), int64(job.Bytes))
		w.runs = append(w.runs, CompactTime{
			Seconds: took.Seconds(), CPUSeconds: used.Seconds(), BytesPerSecond: float64(job.Bytes) / took.Seconds(),
			BytesPerCPUSecond: float64(job.Bytes) / max(used.Seconds(), minCPU), PeakMemory: peak, Gets: res.Gets, Puts: res.Puts,
		})
	}
	r.End()
	return res, errors.Join(err, w.discard(e, res))
}

// minCPU is the least processor time that is divided by, in seconds: that of a tiny job may be below what the system counts.
const minCPU = 1e-4

// discardTimeout bounds the deletion of what a compaction wrote.
const discardTimeout = time.Minute

// discard deletes what a compaction wrote: nothing names it, and nothing will, for its edit was not committed.
func (w *Compact) discard(e *Embedded, res *compaction.Result) error {
	ctx, cancel := context.WithTimeout(context.Background(), discardTimeout) // after an interruption too
	defer cancel()
	names := make([]string, 0, len(res.Outputs))
	for _, id := range res.Outputs {
		names = append(names, id.Name())
	}
	for part := range slices.Chunk(names, objstore.MaxDeleteBatch) {
		if err := e.Store.Delete(ctx, part); err != nil {
			return fmt.Errorf("delete what the compaction wrote: %w", err)
		}
	}
	return nil
}

// results sets what is reported.
func (w *Compact) results(r *Run, job compaction.Job, last *compaction.Result) {
	record := float64(job.Bytes)
	median := func(of func(CompactTime) float64) float64 {
		all := make([]float64, len(w.runs))
		for i := range w.runs {
			all[i] = of(w.runs[i])
		}
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	r.Result("records", "records", job.Records, Plain)
	r.Result("record_bytes", "key + value bytes", job.Bytes, Bytes)
	r.Result("tables_in", "tables read", len(tablesOf(job.Inputs...)), Plain)
	r.Result("tables_out", "tables written", len(last.Output.GetTables()), Plain)
	r.Result("bytes_in", "stored bytes read", last.BytesIn, Bytes)
	r.Result("bytes_out", "stored bytes written", last.BytesOut, Bytes)
	r.Result("space_before", "stored / record bytes, before", float64(last.BytesIn)/record, Ratio)
	r.Result("space_after", "stored / record bytes, after", float64(last.BytesOut)/record, Ratio)
	r.Result("write_amplification", "written / record, with flushes", float64(last.BytesIn+last.BytesOut)/record, Ratio)
	r.Result("times", "compactions", len(w.runs), Plain)
	r.Result("seconds", "seconds, median", median(func(t CompactTime) float64 { return t.Seconds }), Seconds)
	r.Result("bytes_per_second", "record bytes a second, median", median(func(t CompactTime) float64 { return t.BytesPerSecond }), BytesPerSecond)
	r.Result("bytes_per_cpu_second", "a processor second, median", median(func(t CompactTime) float64 { return t.BytesPerCPUSecond }), BytesPerSecond)
	r.Result("gets", "GETs of one", last.Gets, Plain)
	r.Result("puts", "PUTs of one", last.Puts, Plain)
	var peak uint64
	for _, t := range w.runs {
		peak = max(peak, t.PeakMemory)
	}
	r.Result("peak_memory_bytes", "memory above the start", peak, Bytes)
	r.Result("repetitions", "each", w.runs, Plain)
}

// garbageRoom is how much garbage the collector leaves between two of its cycles while a compaction runs. It is about what the
// memory limit of "annals compact" leaves it, whatever else this process has in memory.
const garbageRoom = 128 << 20

// limitGarbage collects what the preparation left, and makes the collector as eager as where nothing but the
// compaction is in memory. It returns what undoes that.
func limitGarbage() (restore func()) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	percent := min(100, max(1, int(100*garbageRoom/(m.HeapAlloc+1))))
	was := debug.SetGCPercent(percent)
	return func() { debug.SetGCPercent(was) }
}
