package fuzz

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/state"
)

// defaultRuns is the number of random histories for each set of options.
const defaultRuns = 10

// setRuns makes rapid run ANNALS_FUZZ_RUNS histories (or so many) instead of its
// own number. A -rapid.checks on the command line wins.
func setRuns(t *testing.T, runs int) {
	t.Helper()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if given {
		return
	}
	if s := os.Getenv("ANNALS_FUZZ_RUNS"); s != "" {
		var err error
		runs, err = strconv.Atoi(s)
		require.NoError(t, err, "ANNALS_FUZZ_RUNS")
	}
	old := flag.Lookup("rapid.checks").Value.String()
	require.NoError(t, flag.Set("rapid.checks", strconv.Itoa(runs)))
	t.Cleanup(func() { require.NoError(t, flag.Set("rapid.checks", old)) })
}

// optionSets are the extremes under which a history must look the same.
func optionSets() map[string]engine.Options {
	tiny := tinyOptions()
	tiny.Env = nil
	recent := tiny
	recent.RecentBytes = 1 << 30
	// What ages fast: reads must not see it.
	compacted := tiny
	compacted.DisableCompaction, compacted.MaxRuns, compacted.SegmentInterval, compacted.SegmentMinBytes = false, 2, time.Millisecond, 1
	kept := compacted
	kept.StaleAfter, kept.GCGrace, kept.GCInterval = 5*time.Second, 65*time.Second, time.Second
	expiring := kept
	expiring.Retention, expiring.RetentionInterval = time.Minute, 5*time.Second
	bounded := kept
	bounded.SegmentInterval, bounded.RetentionBytes, bounded.RetentionInterval = time.Hour, 20<<10, time.Second
	return map[string]engine.Options{
		"two runs, two segments":   compacted,
		"collected at once":        kept,
		"kept for a minute":        expiring,
		"20 KiB are kept":          bounded,
		"grouped and kept a while": {SegmentBytes: 1, RecentBytes: 1, CacheBytes: 1, Retention: 10 * time.Minute, GCInterval: time.Second},
		"defaults":                 {},
		"tiny everything":          tiny,
		"all flushed is kept":      recent,
		"a run a batch":            {MemtableBytes: 1, RecentBytes: 1, FlushInterval: time.Millisecond},
		"a WAL object a batch":     {WALObjectBytes: 1},
		"one WAL PUT at a time":    {WALInFlight: 1, WALObjectBytes: 1},
		"a table a key":            {MemtableBytes: 16 << 10, RecentBytes: 1, TableBytes: 256, BlockBytes: 1, CacheBytes: 1},
		"a segment a batch":        {SegmentBytes: 1, RecentBytes: 1},
		"segments by the clock":    {SegmentInterval: time.Second, SegmentMinBytes: 1, RecentBytes: 1},
		"room for one batch":       {MaxKeyBytes: 200, MaxValueBytes: 300, MaxUnflushedBytes: 600, RecentBytes: 1},
		"acknowledged by memory":   {Ack: engine.Memory, ReadVisibility: engine.Memory, MemtableBytes: 16 << 10, RecentBytes: 1},
	}
}

// TestRandomHistories runs random operations on the engine and on a map, with
// crashes, takeovers, store faults and time passing in between, and requires that
// both agree. A failure prints how to run it again (-rapid.seed or -rapid.failfile).
func TestRandomHistories(t *testing.T) {
	setRuns(t, defaultRuns)
	sets := optionSets()
	names := make([]string, 0, len(sets))
	for name := range sets {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range append(names, anyOptions) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				rapid.SyncTest(t, func(t *rapid.T) { history(t, optionsOf(sets, names, name)) })
			})
		})
	}
}

// anyOptions is the name of a test whose histories take other options at each open.
const anyOptions = "other options at each open"

// optionsOf returns what draws the options of an open in the test of a name.
func optionsOf(sets map[string]engine.Options, names []string, name string) func(*rapid.T) engine.Options {
	return func(t *rapid.T) engine.Options {
		if name == anyOptions {
			return sets[rapid.SampledFrom(names).Draw(t, "options")]
		}
		return sets[name]
	}
}

// history is one run.
func history(t *rapid.T, options func(*rapid.T) engine.Options) {
	m := &machine{model: &model{}, ledger: newLedger(), options: options}
	defer m.killAll()
	m.seed = rand.NewChaCha8([32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "randomness")))
	m.moveTo(t, rigOn(nil, mem.New(mem.Options{})))
	m.open(t, 0, true)
	t.Repeat(map[string]func(*rapid.T){
		"append":        m.append,
		"append more":   m.append,
		"scan":          m.scan,
		"scan again":    m.scan,
		"scan by pages": m.scanPages,
		"count":         m.count,
		"keys":          m.keys,
		"segments":      m.segments,
		"flush":         m.flush,
		"wait":          m.wait,
		"time passes":   m.timePasses,
		"store fault":   m.storeFault,
		"clean reopen":  m.reopen,
		"crash":         m.crash,
		"takeover":      m.takeover,
		"store is back": m.storeBack,
		"append again":  m.append,
		"set cursors":   m.setCursors,
		"set more":      m.setCursors,
		"drop cursors":  m.deleteCursors,
		"read cursors":  m.readCursors,
		"collect":       m.collect,
		"compactor":     m.compactor,
		"":              m.invariants,
	})
	m.weather.heal()
	m.readAll(t)
	m.reopen(t)
	m.readAll(t)
	m.settle(t)
}

// machine runs one history.
type machine struct {
	model   *model
	ledger  *ledger
	options func(*rapid.T) engine.Options

	rig       *rig
	weather   *weather
	db        *engine.DB
	o, last   engine.Options       // of db, and of the one before
	alive     []*engine.DB         // all that must be killed at the end
	replicas  []*replica           // that read along
	cursors   []cursorChange       // that were made
	unsure    bool                 // whether those are all
	elsewhere *elsewhere           // nil, or a compactor of its own
	windows   []engine.SegmentInfo // last seen
	frontier  uint64               // last seen of db
	values    int                  // values made so far

	seedMu sync.Mutex
	seed   *rand.ChaCha8 // guarded by seedMu: what all processes of the history draw from
}

func (m *machine) random(p []byte) {
	m.seedMu.Lock()
	defer m.seedMu.Unlock()
	_, _ = m.seed.Read(p) // never fails
}

func (m *machine) killAll() {
	m.elsewhere.stop()
	m.elsewhere = nil
	for _, db := range m.alive {
		kill(db)
	}
	m.alive = nil
}

// moveTo makes the machine use a store.
func (m *machine) moveTo(t *rapid.T, r *rig) {
	m.rig = r
	m.weather = &weather{
		latency: rapid.SampledFrom([]time.Duration{0, 5 * time.Millisecond, 300 * time.Millisecond}).Draw(t, "latency"),
		random:  rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "latencies"), 0)),
	}
	r.rule(m.weather.hook)
}

// patient is a context for what must succeed, or, with the store down, must end.
func (m *machine) patient() (context.Context, context.CancelFunc) {
	if m.weather.isDown() {
		return context.WithTimeout(context.Background(), 3*time.Second)
	}
	return context.WithTimeout(context.Background(), time.Hour)
}

// allowed requires that an operation succeeded or that the store was down.
func (m *machine) allowed(t *rapid.T, err error) bool {
	if err != nil {
		require.True(t, m.weather.isDown(), "failed on a store that works: %v", err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	return err == nil
}

// open opens the log anew. Every record below durable must be there; after a clean
// close all are, and no sequence is skipped. An open may fail because of one fault; it
// is then tried again.
func (m *machine) open(t *rapid.T, durable uint64, clean bool) {
	m.last, m.o = m.o, m.options(t)
	m.o.Env = m.env()
	m.rig.witness.setStale(m.o.StaleAfter)
	var db *engine.DB
	for try := 0; ; try++ {
		var err error
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		db, err = engine.Open(ctx, m.rig.store, m.o)
		cancel()
		if err == nil {
			break
		}
		require.True(t, m.weather.hit() && try == 0, "open: %v", err)
	}
	clean = clean && !m.weather.hit() // the fault may have hit the close or a failed try
	m.alive = append(m.alive, db)
	m.db = db
	durable = max(durable, m.shown())
	next := db.Status().Next
	require.Equal(t, next, db.Frontier())
	if clean {
		require.Equal(t, m.model.next, next, "a clean close skips no sequence")
	}
	require.GreaterOrEqual(t, next, m.model.next, "a sequence would be used again (I3)")
	m.survivors(t, durable, clean)
	m.model.next = next
	m.frontier = next
	require.Zero(t, m.check(t).WALRecords, "a new writer has nothing left in the WAL")
}

// survivors finds out which batches a reopening left: a prefix of them, which holds
// all that were durable. What retention dropped is not among them.
func (m *machine) survivors(t *rapid.T, durable uint64, clean bool) {
	n := 0
	m.unchanged(t, m.db.FirstSequence, func() {
		m.dropped(t)
		n = 0
		for _, key := range modelKeys {
			count, err := m.db.Count(context.Background(), []byte(key), engine.All())
			require.NoError(t, err)
			n += int(count)
		}
	})
	require.LessOrEqual(t, n, len(m.model.recs), "records were invented")
	require.GreaterOrEqual(t, n, m.model.upTo(durable), "records below %d were durable", durable)
	if clean {
		require.Len(t, m.model.recs, n)
	}
	require.True(t, m.model.keep(n), "half a batch survived: %d records", n)
	m.stateSurvivors(t, clean)
	m.readAll(t)
}

// check runs the checker on what the store holds now: of the model, what is not
// dropped there and flushed, and in the WAL at most the rest.
func (m *machine) check(t *rapid.T) *engine.CheckReport {
	store := m.rig.mem.Clone()
	report, err := engine.Check(context.Background(), store, engine.CheckOptions{})
	require.NoError(t, err)
	require.NoError(t, report.Err())
	snap, err := manifest.Load(context.Background(), store, base.SystemEnv(), 0)
	require.NoError(t, err)
	first, flushed := firstSequence(snap.State), snap.State.GetFlushedEnd()
	require.Equal(t, uint64(len(m.model.from(first))-len(m.model.from(flushed))), report.TableRecords)
	require.LessOrEqual(t, report.WALRecords, uint64(len(m.model.from(flushed))))
	return report
}

// invariants hold after every operation.
func (m *machine) invariants(t *rapid.T) {
	require.NoError(t, m.db.Err())
	require.NoError(t, m.rig.witness.err())
	m.dropped(t)
	frontier := m.db.Frontier()
	require.GreaterOrEqual(t, frontier, m.frontier, "the frontier fell")
	m.frontier = frontier
	s := m.db.Status()
	require.Equal(t, m.model.next, s.Next)
	require.LessOrEqual(t, s.Durable, s.Next)
	require.Equal(t, len(m.ledger.now.cursors), s.Consumers)
	require.Equal(t, m.ledger.now.countCursors(), s.Cursors)
	if m.o.ReadVisibility != engine.Memory {
		require.LessOrEqual(t, frontier, s.Durable, "readable and not durable")
	}
	require.LessOrEqual(t, s.FlushedEnd, s.Durable)
	require.Less(t, s.Next, m.db.Head().GetSeqLimit()+1, "I3")
}

// modelKeys are all keys: short ones, the empty one, and those that the manifest's
// bounds of 32 bytes cannot tell apart.
var modelKeys = []string{
	"", "a", "ab", "b", "\x00", "\xff",
	strings.Repeat("p", 32), strings.Repeat("p", 32) + "1", strings.Repeat("p", 32) + "2", strings.Repeat("p", 31) + "q",
	strings.Repeat("\xff", 32), strings.Repeat("\xff", 40), strings.Repeat("long", 60),
}

func drawKey(t *rapid.T) []byte { return []byte(rapid.SampledFrom(modelKeys).Draw(t, "key")) }

// drawBatch makes a batch of values that all differ (but the empty ones).
func (m *machine) drawBatch(t *rapid.T) []engine.Record {
	var recs []engine.Record
	for range rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3, 8, 30}).Draw(t, "records") {
		size := rapid.SampledFrom([]int{0, 8, 8, 50, 200, 400, 3000}).Draw(t, "size")
		m.values++
		value := fmt.Sprintf("%08d", m.values) + strings.Repeat("x", size)
		recs = append(recs, engine.Record{Key: drawKey(t), Value: []byte(value[:size])})
	}
	return recs
}

// tooLarge reports whether the options refuse an append.
func (m *machine) tooLarge(recs []engine.Record, o engine.AppendOptions) bool {
	if m.o.MaxUnflushedBytes == 0 {
		return false
	}
	total := 0
	for i := range recs {
		total += recs[i].Size()
		if len(recs[i].Key) > m.o.MaxKeyBytes || len(recs[i].Value) > m.o.MaxValueBytes {
			return true
		}
	}
	return int64(total) > m.o.MaxUnflushedBytes || slices.ContainsFunc(o.ExpectedNext, func(e engine.KeySequence) bool {
		return len(e.Key) > m.o.MaxKeyBytes
	})
}

func (m *machine) append(t *rapid.T) {
	recs := m.drawBatch(t)
	_, _ = m.appendThis(t, recs, m.drawAppend(t)) // it has judged the answer
}

// appendThis appends a batch and judges the answer.
func (m *machine) appendThis(t *rapid.T, recs []engine.Record, o engine.AppendOptions) (engine.AppendResult, error) {
	ctx, cancel := m.patient()
	defer cancel()
	mark, found := m.ledger.now.find(o.Producer, o.ProducerSequence)
	first := m.model.next
	res, err := m.db.Append(ctx, recs, o)
	ack := o.Ack
	if ack == engine.Default {
		ack = max(m.o.Ack, engine.Durable)
	}
	var failed *engine.AppendError
	if errors.As(err, &failed) && failed.Outcome == engine.NotAppended {
		m.refused(t, err, recs, o)
		return res, err
	}
	if err != nil {
		require.ErrorAs(t, err, &failed)
		require.Equal(t, engine.Durable, ack)
		m.allowed(t, err)
	}
	if found == state.Repeat { // whatever it expects
		if err == nil {
			m.isRepeat(t, res, mark)
		}
		return res, err
	}
	m.acceptable(t, recs, o)
	require.Equal(t, state.Fresh, found)
	if len(recs) == 0 {
		require.NoError(t, err)
		require.Zero(t, res)
		return res, nil
	}
	m.model.add(first, res.Timestamp, recs)
	m.ledger.add(m.eventOf(recs, o))
	if err != nil {
		return res, err
	}
	require.Equal(t, engine.AppendResult{First: first, Last: m.model.next - 1, Timestamp: res.Timestamp}, res)
	if ack == engine.Durable {
		m.ledger.allDurable()
		require.Greater(t, m.db.Status().Durable, res.Last, "I1")
		require.Greater(t, m.db.Frontier(), res.Last, "acknowledged and not readable")
	}
	return res, nil
}

// eventOf is the event of a batch that was just added.
func (m *machine) eventOf(recs []engine.Record, o engine.AppendOptions) event {
	rec := m.model.recs[len(m.model.recs)-len(recs)]
	return event{end: m.model.next, state: o.Producer != "", apply: func(s *smallModel) {
		if o.Producer != "" {
			s.mark(o.Producer, modelMark{number: o.ProducerSequence, first: rec.seq, count: len(recs), rec: rec})
		}
	}}
}

func (m *machine) flush(t *rapid.T) {
	ctx, cancel := m.patient()
	defer cancel()
	if m.allowed(t, m.db.Flush(ctx)) && len(m.model.recs) > 0 {
		require.Greater(t, m.db.Head().GetFlushedEnd(), m.model.recs[len(m.model.recs)-1].seq)
	}
}

// wait waits for what is there already, and for a range that has ended.
func (m *machine) wait(t *rapid.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	frontier := m.db.Frontier()
	require.NoError(t, m.db.Wait(ctx, drawKey(t), engine.Between(0, frontier)))
	if n := m.model.upTo(frontier); n > 0 {
		rec := m.model.recs[rapid.IntRange(0, n-1).Draw(t, "record")]
		if err := m.db.Wait(ctx, []byte(rec.key), engine.From(rec.seq)); err != nil {
			require.Less(t, rec.seq, m.db.FirstSequence(), "%v", err)
		}
	}
}

// timePasses moves the simulated time on: segments seal, intervals end, polls run.
func (m *machine) timePasses(t *rapid.T) {
	time.Sleep(rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond, 3 * time.Second, 20 * time.Second, 2 * time.Minute,
	}).Draw(t, "time"))
}

// storeFault fails one of the next requests, or takes the store down for PUTs.
func (m *machine) storeFault(t *rapid.T) {
	what := rapid.SampledFrom([]string{"not applied", "applied", "conflict", "down"}).Draw(t, "fault")
	n := rapid.IntRange(0, 20).Draw(t, "request")
	m.weather.mu.Lock()
	defer m.weather.mu.Unlock()
	switch what {
	case "down":
		m.weather.down = true
	case "conflict":
		m.weather.nth = fault.FailNth(n, false, objstore.ErrConflict)
	default:
		m.weather.nth = fault.FailNth(n, what == "applied", errNetwork)
	}
}

func (m *machine) storeBack(*rapid.T) { m.weather.heal() }

// reopen closes cleanly (if the store lets it) and opens again.
func (m *machine) reopen(t *rapid.T) {
	durable := m.db.Status().Durable
	ctx, cancel := m.patient()
	defer cancel()
	clean := m.allowed(t, m.db.Close(ctx))
	if clean {
		durable = m.model.next
		require.Zero(t, m.check(t).WALRecords)
	}
	_, err := m.db.Append(ctx, batch("late"), engine.AppendOptions{})
	require.ErrorIs(t, err, engine.ErrClosed)
	m.weather.mu.Lock()
	m.weather.down = false
	m.weather.mu.Unlock()
	m.open(t, durable, clean)
}

// crash leaves the process and its requests behind and goes on with what the store
// held at that moment.
func (m *machine) crash(t *rapid.T) {
	durable := m.db.Status().Durable
	m.detachReplicas()
	next := rigOn(nil, m.rig.mem.Clone())
	require.NoError(t, m.rig.witness.err())
	m.killAll()
	m.moveTo(t, next)
	m.attachReplicas()
	m.open(t, durable, false)
}

// takeover opens the log while another writer has it, which must then be fenced.
func (m *machine) takeover(t *rapid.T) {
	old := m.db
	m.weather.mu.Lock()
	m.weather.down = false
	m.weather.mu.Unlock()
	durable := old.Status().Durable
	m.open(t, durable, false)
	ctx, cancel := m.patient()
	defer cancel()
	_, err := old.Append(ctx, []engine.Record{{Key: []byte("a"), Value: []byte("zombie")}}, engine.AppendOptions{Ack: engine.Durable})
	require.ErrorIs(t, err, engine.ErrFenced)
	require.ErrorIs(t, old.Err(), engine.ErrFenced)
	_, err = collect(old.Scan(ctx, []byte("a"), engine.All(), engine.ScanOptions{}))
	require.ErrorIs(t, err, engine.ErrFenced)
	kill(old)
	m.alive = []*engine.DB{m.db}
}
