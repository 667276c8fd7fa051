package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// ReadMode is one way to read a log.
type ReadMode string

// The ways, in the order in which they are measured.
const (
	// ColdReads read keys that nobody has read since the log was opened, each once.
	ColdReads ReadMode = "cold"
	// WarmReads read a few keys that were read before.
	WarmReads ReadMode = "warm"
	// Replay reads all of one large key, from a log that was just opened.
	Replay ReadMode = "replay"
	// LastReads read the newest records of keys, from a log that was just opened.
	LastReads ReadMode = "last"
	// Counts count the records of keys, in a log that was just opened.
	Counts ReadMode = "count"
	// KeyPages list keys, from a log that was just opened.
	KeyPages ReadMode = "keys"
)

// ReadModes are all modes, in order.
var ReadModes = []ReadMode{ColdReads, WarmReads, Replay, LastReads, Counts, KeyPages}

// HotKey is the large key of this workload. It is none of the numbered ones.
const HotKey = "hot-key"

// ReadsOptions say what log is read, and how.
type ReadsOptions struct {
	// BatchOptions: the keys, and what is appended to build the log.
	BatchOptions
	Records     uint64 // of all keys together, beside the large one
	HotBytes    int64  // of the large key's values, spread over the whole log; 0: it is not written
	Appenders   int    // batches under way while it is built
	Reuse       bool   // the log is there already: nothing is appended
	Consolidate bool   // waits until compaction has nothing left to do

	Modes        []ReadMode
	OpsPerSecond float64 // of each mode but Replay; 0: a closed loop
	Arrivals     Arrivals
	Readers      int // reads under way at the same time
	Limit        int // records of a cold or warm read
	Last         int // records of LastReads
	Page         int // keys of a page
	Replays      int // how often the large key is read
	// StoreBandwidth is what one request transfers in a second, if that is known: replays are compared with it.
	StoreBandwidth float64
}

// Reads is the workload of reads of a log that nobody writes to.
type Reads struct {
	o       ReadsOptions
	hot     []byte
	settled time.Duration // how long nothing must change until compaction counts as done
}

// NewReads returns the workload.
func NewReads(o ReadsOptions) *Reads {
	return &Reads{o: o, hot: []byte(HotKey), settled: settledFor}
}

// Name implements Workload.
func (s *Reads) Name() string { return "scan" }

const (
	// maxRead bounds the records of a read, and the keys of a page: what a server gives at once.
	maxRead = 10_000
	// maxReplays bounds how often the large key is read.
	maxReplays = 1000
	// warmKeys is how many keys warm reads use: few enough that their blocks stay in the cache.
	warmKeys = 1000
)

// Faults implements Workload.
func (s *Reads) Faults() []string {
	o := &s.o
	faults := o.BatchOptions.Faults()
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, faultf(format, args...))
		}
	}
	between := func(name string, v, lo, hi int) {
		fault(v < lo || v > hi, "--%s is %d; it must be from %d to %d", name, v, lo, hi)
	}
	for _, m := range o.Modes {
		fault(!slices.Contains(ReadModes, m), "--mode %q is none of %s", m, modeNames())
	}
	fault(len(o.Modes) == 0, "--mode names none of %s", modeNames())
	fault(o.HotBytes < 0, "--hot-bytes is %d; it must be 0 (none) or above", o.HotBytes)
	fault(o.HotBytes == 0 && !o.Reuse && slices.Equal(o.Modes, []ReadMode{Replay}), "--hot-bytes is 0: there is no large key to replay")
	fault(o.OpsPerSecond < 0, "--ops-per-second is %v; it must be above 0", o.OpsPerSecond)
	between("appenders", o.Appenders, 1, MaxWorkers)
	between("readers", o.Readers, 1, MaxWorkers)
	between("limit", o.Limit, 1, maxRead)
	between("last", o.Last, 1, maxRead)
	between("page", o.Page, 1, maxRead)
	between("replays", o.Replays, 1, maxReplays)
	return faults
}

func modeNames() string {
	names := make([]string, len(ReadModes))
	for i, m := range ReadModes {
		names[i] = string(m)
	}
	return strings.Join(names, ", ")
}

// Streams of random numbers of this workload.
const (
	streamScanBatches = iota
	streamScanReads
	streamScanArrivals
)

// Run implements Workload.
func (s *Reads) Run(ctx context.Context, r *Run) error {
	if err := s.prepare(ctx, r); err != nil {
		return err
	}
	for _, m := range ReadModes {
		if !slices.Contains(s.o.Modes, m) {
			continue
		}
		if err := s.measure(ctx, r, m); err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// measure measures one mode.
func (s *Reads) measure(ctx context.Context, r *Run, m ReadMode) error {
	switch m {
	case ColdReads:
		if err := s.reopen(ctx, r); err != nil {
			return err
		}
		return s.each(ctx, r, m, s.o.Keys, s.read)
	case WarmReads:
		few := min(s.o.Keys, warmKeys)
		for n := range few {
			if _, err := s.read(ctx, r, s.keyAt(n), nil); err != nil {
				return err
			}
		}
		return s.each(ctx, r, m, 0, func(ctx context.Context, r *Run, _ uint64, rnd *rand.Rand) (int, error) {
			return s.read(ctx, r, s.keyAt(rnd.Uint64N(few)), nil)
		})
	case Replay:
		return s.replay(ctx, r)
	case LastReads:
		return s.coldEach(ctx, r, m, func(ctx context.Context, r *Run, key uint64, _ *rand.Rand) (int, error) {
			return s.scan(ctx, r, key, ScanOptions{Last: s.o.Last})
		})
	case Counts:
		return s.coldEach(ctx, r, m, func(ctx context.Context, r *Run, key uint64, _ *rand.Rand) (int, error) {
			n, err := r.Target.Count(ctx, AppendKey(nil, key))
			return int(n), err
		})
	default: // KeyPages
		return s.coldEach(ctx, r, m, func(ctx context.Context, r *Run, key uint64, _ *rand.Rand) (int, error) {
			keys, _, err := r.Target.Keys(ctx, nil, AppendKey(nil, key), s.o.Page)
			if err == nil && !slices.IsSortedFunc(keys, slices.Compare) {
				r.Violation("keys behind key %d come out of order", key)
			}
			return len(keys), err
		})
	}
}

// readOne reads something of a key and returns how many records, or keys, that gave.
type readOne func(ctx context.Context, r *Run, key uint64, rnd *rand.Rand) (int, error)

// coldEach is each on a log that was just opened.
func (s *Reads) coldEach(ctx context.Context, r *Run, m ReadMode, read readOne) error {
	if err := s.reopen(ctx, r); err != nil {
		return err
	}
	return s.each(ctx, r, m, 0, read)
}

// each makes reads of keys, one after another of the order of keyAt, at most limit of them (0: no limit), and sets the
// mode's results.
func (s *Reads) each(ctx context.Context, r *Run, m ReadMode, limit uint64, read readOne) error {
	load := Load{Workers: s.o.Readers, Limit: limit, Recorder: r.Recorder(string(m))}
	if s.o.OpsPerSecond > 0 {
		load.Schedule = NewSchedule(s.o.OpsPerSecond, s.o.Arrivals, r.Rand(streamScanArrivals))
	}
	seed := r.Rand(streamScanReads).Uint64()
	var costs readCosts
	before := r.Elapsed()
	r.Show(load.Recorder)
	window := r.Begin(ctx)
	pace := r.Loop(window, load, func(ctx context.Context, o Op) (Done, error) {
		ctx, asked := r.attribute(ctx)
		n, err := read(ctx, r, s.keyAt(o.N), rand.New(rand.NewPCG(seed, o.N)))
		if err == nil && r.within(o.Due) {
			costs.count(asked, n)
		}
		return Done{Records: n}, err
	})
	r.End()
	r.setLoop(load)
	r.Result(string(m), string(m), costs.cost(load.Recorder, r.attributed()), Plain)
	achieved := ratio(float64(load.Recorder.Total().Operations), r.Elapsed()-before)
	r.Result(string(m)+"_per_second", string(m)+", achieved", achieved, PerSecond)
	if load.Schedule != nil {
		r.Result(string(m)+"_behind_max_seconds", string(m)+", started late, at most", pace.BehindMax.Seconds(), Seconds)
		r.Result(string(m)+"_unstarted", string(m)+", due and never started", pace.Unstarted(), Plain)
	}
	return nil
}

// read reads the first page of a key.
func (s *Reads) read(ctx context.Context, r *Run, key uint64, _ *rand.Rand) (int, error) {
	return s.scan(ctx, r, key, ScanOptions{Limit: s.o.Limit})
}

func (s *Reads) scan(ctx context.Context, r *Run, key uint64, o ScanOptions) (int, error) {
	got, err := r.Target.Scan(ctx, AppendKey(nil, key), o)
	if err != nil {
		return 0, err
	}
	checkOrder(r, fmt.Sprintf("key %d", key), got, 0)
	return len(got.Records), nil
}

// checkOrder checks that a page's sequences rise from a cursor on, and returns the next one.
func checkOrder(r *Run, key string, p Page, next uint64) uint64 {
	for _, got := range p.Records {
		if got.Seq < next {
			r.Violation("%s: sequence %d came at or after cursor %d", key, got.Seq, next)
		}
		next = got.Seq + 1
	}
	return max(next, p.Next)
}

// keyAt is the n-th key of an order that goes through all keys before it comes to one again, and in which keys
// that follow one another lie far apart.
func (s *Reads) keyAt(n uint64) uint64 {
	const golden = 0.6180339887498949
	step := uint64(golden * float64(s.o.Keys))
	for step = max(1, step); gcd(step, s.o.Keys) != 1; step++ {
	}
	return (n % s.o.Keys) * step % s.o.Keys
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// reopener is a log that can be opened again, with empty caches.
type reopener interface {
	Reopen(ctx context.Context) error
}

// reopen empties the caches of the engine, if it runs here.
func (s *Reads) reopen(ctx context.Context, r *Run) error {
	if r.Embedded() == nil {
		return nil // the report says so
	}
	target, ok := r.Target.(reopener)
	if !ok {
		return errors.New("this log cannot be opened again")
	}
	return target.Reopen(ctx)
}
