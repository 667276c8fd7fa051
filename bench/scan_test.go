package bench

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

func smallReads() ReadsOptions {
	return ReadsOptions{
		BatchOptions: BatchOptions{KeyOptions: KeyOptions{Keys: 100}, ValueOptions: ValueOptions{Size: 100, Compress: 2}, Records: 50},
		Records:      3000, HotBytes: 100e3, Appenders: 4,
		Modes: ReadModes, OpsPerSecond: 1000, Readers: 8, Limit: 10, Last: 3, Page: 20, Replays: 2, StoreBandwidth: 1e6,
	}
}

// smallTables makes a log of several runs of even so few records.
var smallTables = engine.Options{MemtableBytes: 100 << 10, DisableCompaction: true}

func TestScan(t *testing.T) {
	for name, http := range map[string]bool{"embedded": false, "http": true} {
		t.Run(name, func(t *testing.T) {
			o := smallReads()
			w := NewReads(o)
			require.Empty(t, w.Faults())
			rep := Execute(t.Context(), openMem(t, smallTables, http), w, Options{Seed: 1, Duration: 250 * time.Millisecond})
			require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
			require.Equal(t, "open", rep.Loop)
			requireParses(t, rep)
			require.EqualValues(t, 4000, rep.Results["built_records"])
			require.Greater(t, rep.Results["runs"], 3)

			of := func(m ReadMode) ReadCost { return rep.Results[string(m)].(ReadCost) }
			for _, m := range ReadModes {
				if m != Replay {
					require.NotZero(t, of(m).Reads, m)
					require.EqualValues(t, of(m).Reads, of(m).Latency.Count, m)
				}
			}
			require.LessOrEqual(t, of(ColdReads).Reads, o.Keys, "each once")
			require.InDelta(t, o.Limit, of(ColdReads).RecordsPerRead, 0.1)
			require.InDelta(t, o.Last, of(LastReads).RecordsPerRead, 0.1)
			require.InDelta(t, 30, of(Counts).RecordsPerRead, 10)
			require.Greater(t, of(KeyPages).RecordsPerRead, 1.0)
			require.LessOrEqual(t, of(KeyPages).RecordsPerRead, float64(o.Page))
			replay := rep.Results["replay"].(ReplayResult)
			require.EqualValues(t, 1000, replay.Records)
			require.EqualValues(t, 100e3, replay.Bytes)
			require.Equal(t, o.Replays, replay.Replays)
			if http {
				require.Nil(t, of(ColdReads).GetsPerRead)
				require.Zero(t, replay.Runs)
				return
			}
			require.NotZero(t, *of(ColdReads).GetsPerRead)
			require.Zero(t, *of(WarmReads).GetsPerRead)
			require.NotZero(t, *of(LastReads).Cold, "the log was opened again")
			require.NotZero(t, *of(Counts).Cold, "the log was opened again")
			require.NotZero(t, *of(KeyPages).Cold, "the log was opened again")
			require.Equal(t, rep.Results["runs"], replay.Runs, "the large key is everywhere")
			require.Equal(t, replay.Runs, replay.Tables)
			require.EqualValues(t, replay.Runs, replay.DataGets, "one for each run: they are small")
			require.EqualValues(t, 1, replay.GetsPerRun)
			require.NotZero(t, replay.MetaGets)
			require.Greater(t, replay.Stored, 40e3)
			require.InEpsilon(t, replay.StoredPerSec/1e6, replay.OfStore, 1e-9)
		})
	}
}

// What one run built the next can read.
func TestScanReuse(t *testing.T) {
	target := openMem(t, smallTables, false)
	o := smallReads()
	o.Modes = []ReadMode{Counts}
	first := Execute(t.Context(), target, NewReads(o), Options{Seed: 1, Duration: 50 * time.Millisecond})
	require.False(t, first.Failed(), "%v %v", first.Failures, first.Violations)
	o.Reuse, o.OpsPerSecond = true, 0
	o.Modes = []ReadMode{WarmReads, Replay}
	again := Execute(t.Context(), target, NewReads(o), Options{Seed: 2, Duration: 50 * time.Millisecond})
	require.False(t, again.Failed(), "%v %v", again.Failures, again.Violations)
	require.Equal(t, "closed", again.Loop)
	require.NotContains(t, again.Results, "built_records")
	require.EqualValues(t, 1000, again.Results["replay"].(ReplayResult).Records)
}

func TestScanReuseNeedsALog(t *testing.T) {
	o := smallReads()
	o.Reuse = true
	rep := Execute(t.Context(), openMem(t, smallTables, false), NewReads(o), Options{Seed: 1, Duration: time.Second})
	require.True(t, rep.Failed())
	require.Contains(t, rep.Failures[0], "build it first")
}

// With Consolidate it reads when compaction has nothing left to do.
func TestScanConsolidated(t *testing.T) {
	t.Parallel()
	o := smallReads()
	o.Consolidate = true
	o.Modes = []ReadMode{Replay}
	w := NewReads(o)
	w.settled = 3 * time.Second // above the time between two looks of the compactor
	target := openMem(t, engine.Options{MemtableBytes: 50 << 10, SegmentBytes: 100 << 10}, false).(*Embedded)
	rep := Execute(t.Context(), target, w, Options{Seed: 1, Duration: time.Second})
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	replay := rep.Results["replay"].(ReplayResult)
	require.EqualValues(t, 1000, replay.Records)
	require.Greater(t, rep.Results["segments"], 1)
	segments := target.DB.Head().GetSegments()
	for _, segment := range segments[:len(segments)-1] {
		require.Len(t, segment.GetRuns(), 1, "a sealed segment")
	}
}

// Records that are out of order, or lost, fail the run.
func TestScanNoticesWhatIsWrong(t *testing.T) {
	o := smallReads()
	for name, c := range map[string]struct {
		mode ReadMode
		lie  func(key []byte, p *Page)
	}{
		"out of order": {WarmReads, func(_ []byte, p *Page) { slices.Reverse(p.Records) }},
		"lost": {Replay, func(key []byte, p *Page) {
			if string(key) == HotKey && len(p.Records) > 0 {
				p.Records = p.Records[1:]
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.Modes = []ReadMode{c.mode}
			target := &reopening{&liar{openMem(t, smallTables, false), func(key []byte, _ ScanOptions, p *Page) { c.lie(key, p) }}}
			rep := Execute(t.Context(), target, NewReads(o), Options{Seed: 1, Duration: 50 * time.Millisecond})
			require.NotEmpty(t, rep.Violations)
		})
	}
}

// reopening is a liar whose log can be opened again.
type reopening struct{ *liar }

func (r *reopening) Reopen(ctx context.Context) error { return r.Target.(reopener).Reopen(ctx) }

func TestScanInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	target := &reopening{&liar{openMem(t, smallTables, false), func([]byte, ScanOptions, *Page) {
		if n++; n == 20 {
			cancel()
		}
	}}}
	o := smallReads()
	o.OpsPerSecond, o.Readers = 0, 1
	rep := Execute(ctx, target, NewReads(o), Options{Seed: 1, Duration: time.Hour})
	require.True(t, rep.Interrupted)
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	require.NotZero(t, rep.Results["cold"].(ReadCost).Reads)
	require.NotContains(t, rep.Results, "count")
	requireParses(t, rep)
}

// The order of keys has each of them once before it begins again.
func TestScanKeyAt(t *testing.T) {
	for _, keys := range []uint64{1, 2, 3, 10, 97, 1000} {
		s := NewReads(ReadsOptions{BatchOptions: BatchOptions{KeyOptions: KeyOptions{Keys: keys}}})
		seen := map[uint64]bool{}
		for n := range keys {
			seen[s.keyAt(n)] = true
			require.Less(t, s.keyAt(n), keys)
		}
		require.Len(t, seen, int(keys))
		require.Equal(t, s.keyAt(0), s.keyAt(keys))
	}
}

func TestScanFaults(t *testing.T) {
	o := smallReads()
	o.Modes = []ReadMode{"some"}
	o.Readers, o.Limit, o.Last, o.Page, o.Replays = 0, 0, maxRead+1, 0, 0
	require.Len(t, NewReads(o).Faults(), 6)
	o = smallReads()
	o.Modes, o.HotBytes = []ReadMode{Replay}, 0
	require.Len(t, NewReads(o).Faults(), 1)
}

// measuredGets calls hook for each GET within what is measured.
type measuredGets struct {
	objstore.Store
	run  atomic.Pointer[Run]
	hook func()
}

func (s *measuredGets) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	if r := s.run.Load(); r != nil && r.Measured() {
		s.hook()
	}
	return s.Store.Get(ctx, name, o)
}

// Ending a replay early is no failure of the log.
func TestInterruptedReplay(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store := &measuredGets{Store: mem.New(mem.Options{}), hook: cancel}
	o := smallReads()
	o.Modes = []ReadMode{Replay}
	w := NewReads(o)
	rep := Execute(ctx, openEmbedded(t, store, smallTables), workload{func(ctx context.Context, r *Run) error {
		store.run.Store(r)
		return w.Run(ctx, r)
	}}, Options{Seed: 1})
	require.True(t, rep.Interrupted)
	require.NotZero(t, rep.Seconds, "a replay had begun")
	require.Empty(t, rep.Failures)
}
