package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// traffic counts what goes to a store, by what the objects are.
type traffic struct {
	objstore.Store

	wal, flush, compacted, index, head atomic.Int64 // bytes of PUTs

	mu   sync.Mutex
	meta map[string]int64 // guarded by mu: where the metadata of a table begins

	dataGets, metaGets atomic.Int64 // of tables and indexes
}

func (s *traffic) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	id, ok := base.ParseObjectName(name)
	n := &s.head
	switch {
	case strings.HasPrefix(name, base.WALPrefix(tree)):
		n = &s.wal
	case ok && id.Kind == base.KindIndex:
		n = &s.index
	case ok && id.Role == base.RoleCompactor:
		n = &s.compacted
	case ok:
		n = &s.flush
	}
	n.Add(int64(len(body)))
	return s.Store.Put(ctx, name, body, o)
}

func (s *traffic) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	if id, ok := base.ParseObjectName(name); ok {
		s.mu.Lock()
		at, table := s.meta[name]
		s.mu.Unlock()
		if id.Kind == base.KindSST && table && o.Offset < at {
			s.dataGets.Add(1)
		} else {
			s.metaGets.Add(1)
		}
	}
	return s.Store.Get(ctx, name, o)
}

// learn notes where the metadata of every table begins.
func (s *traffic) learn(b *testing.B, db *DB) (tables int, stored int64) {
	meta := make(map[string]int64)
	for _, line := range allTables(b, db) { // reads indexes: not under the lock
		meta[line.GetRef().ID().Name()] = int64(line.GetMetaOffset())
		stored += int64(line.GetSize())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meta = meta
	return len(meta), stored
}

// gets returns the requests that read makes, for data and for metadata.
func (s *traffic) gets(read func()) (data, meta int64) {
	d, m := s.dataGets.Load(), s.metaGets.Load()
	read()
	return s.dataGets.Load() - d, s.metaGets.Load() - m
}

// historyKeys keys have historyPerKey records each.
func historyKeys() int { return sized(1_000_000, 10_000) }

const (
	historyPerKey = 10
	historyValue  = 184 // with a key of 16 bytes: 200
)

// historyOptions are the defaults made smaller, so that a log of 2 GB has several
// segments, and a segment as many flushes as one of 16 GiB has with the defaults.
func historyOptions() Options {
	return Options{
		FlushInterval: 2 * time.Millisecond,
		MemtableBytes: int64(sized(16<<20, 160<<10)),
		SegmentBytes:  int64(sized(512<<20, 5<<20)),
		TableBytes:    int64(sized(64<<20, 640<<10)),
	}
}

// BenchmarkHistory builds a log of 10 million records of 200 bytes over a million keys, in
// segments of 512 MiB, as fast as it takes them, compacts, groups and collects it, and reports
// what that cost and what reads of it cost then. Run it with -benchtime 1x.
//
//   - write-amp: bytes that were PUT per record byte, and without the WAL. Values do not
//     compress, so that stored bytes compare with record bytes.
//   - space-amp: bytes in the store, after collection, per byte of live tables.
//   - per read of one key (10 records), with nothing in the cache, and again: requests for data and metadata, time.
func BenchmarkHistory(b *testing.B) {
	for b.Loop() {
		var ahead atomic.Int64
		store := &traffic{Store: mem.New(mem.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})}
		db, err := Open(b.Context(), store, historyOptions())
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		record := fillHistory(b, db)
		ingested := time.Since(began)
		settle(b, db)
		if err := db.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		settle(b, db)
		compactions := db.Status().Compaction
		collectAll(b, db, &ahead)

		total := float64(store.wal.Load() + store.flush.Load() + store.compacted.Load() + store.index.Load() + store.head.Load())
		b.ReportMetric(total/record, "write-amp")
		b.ReportMetric((total-float64(store.wal.Load()))/record, "write-amp-no-wal")
		tables, live := store.learn(b, db)
		var bucket int64
		if err := objstore.ListAll(b.Context(), store, "", "", func(e objstore.Entry) (bool, error) {
			bucket += e.Size
			return true, nil
		}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(bucket)/float64(live), "space-amp")
		s := db.Status()
		b.Logf("ingest %.0f MB/s; %d segments, %d runs, %d tables, %.0f MB live, %.0f MB in the store, index objects %.1f MB, compaction: %d jobs, %.0f MB in, %.0f MB out",
			record/1e6/ingested.Seconds(), s.Segments, s.Runs, tables, float64(live)/1e6, float64(bucket)/1e6, float64(store.index.Load())/1e6,
			compactions.Jobs, float64(compactions.BytesIn)/1e6, float64(compactions.BytesOut)/1e6)
		if err := db.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		readHistory(b, store, s.Segments)
	}
}

// fillHistory appends the records, every key as often, and returns their bytes.
func fillHistory(b *testing.B, db *DB) float64 {
	rnd := rand.New(rand.NewPCG(5, 5))
	pool := make([]byte, 1<<20)
	for i := range pool {
		pool[i] = byte(rnd.Uint32())
	}
	const batch = 1000
	recs := make([]Record, batch)
	keys := historyKeys()
	for i := 0; i < keys*historyPerKey; i += batch {
		for j := range recs {
			at := rnd.IntN(len(pool) - historyValue)
			// A step that has no factor in common with the number of keys goes through all of them.
			recs[j] = Record{Key: benchKey((i + j) * 611_953 % keys), Value: pool[at : at+historyValue]}
		}
		for {
			_, err := db.Append(b.Context(), recs, AppendOptions{Ack: Memory})
			if err == nil {
				break
			}
			if !errors.Is(err, ErrOverloaded) {
				b.Fatal(err)
			}
		}
	}
	return float64(keys * historyPerKey * (historyValue + 16))
}

// settle waits until there is nothing left to compact.
func settle(b *testing.B, db *DB) {
	limits := db.opts.compactionLimits()
	for idle := 0; idle < 3; {
		if err := b.Context().Err(); err != nil {
			b.Fatal(err)
		}
		if len(compaction.Plan(db.Head(), limits)) == 0 && db.Status().UnflushedBytes < db.opts.MemtableBytes {
			idle++
		} else {
			idle = 0
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// collectAll lets the grace of everything obsolete pass by the store's clock and collects it.
func collectAll(b *testing.B, db *DB, ahead *atomic.Int64) {
	for range 3 {
		if _, err := db.CollectGarbage(b.Context()); err != nil {
			b.Fatal(err)
		}
		ahead.Add(int64(2 * DefaultGCGrace))
	}
}

// readHistory reads keys of a log that was just opened.
func readHistory(b *testing.B, store *traffic, segments int) {
	db, err := Open(b.Context(), store, historyOptions())
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	const reads = 200
	read := func(key []byte, want int) {
		n := 0
		it := db.Scan(b.Context(), key, All(), ScanOptions{})
		for range it.All() {
			n++
		}
		if n != want || it.Err() != nil {
			b.Fatal(n, it.Err())
		}
	}
	measure := func(name string, key func(i int) []byte, want int) {
		var took []time.Duration
		var data, meta int64
		for i := range reads {
			d, m := store.gets(func() {
				began := time.Now()
				read(key(i), want)
				took = append(took, time.Since(began))
			})
			data, meta = data+d, meta+m
		}
		slices.Sort(took)
		b.Logf("%s: %d reads over %d segments: %.2f data GETs and %.2f metadata GETs a read, p50 %v, max %v", name, reads, segments,
			float64(data)/reads, float64(meta)/reads, took[reads/2], took[reads-1])
		b.ReportMetric(float64(data)/reads, name+"-data-gets")
		b.ReportMetric(float64(meta)/reads, name+"-meta-gets")
	}
	key := func(i int) []byte { return benchKey(i * 4_973 % historyKeys()) }
	measure("cold", key, historyPerKey)
	measure("warm", key, historyPerKey)
	measure("absent", func(i int) []byte { return fmt.Appendf(nil, "key-%012d-", i*4_973%historyKeys()) }, 0)
}

// BenchmarkCountMillion counts the records of a key that has a million of them, in
// compacted segments, with the index in the cache.
func BenchmarkCountMillion(b *testing.B) {
	o := historyOptions()
	o.SegmentBytes = int64(sized(64<<20, 640<<10))
	batches := sized(1000, 10)
	db, err := Open(b.Context(), mem.New(mem.Options{}), o)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	hot, value := benchKey(0), halfRandom(rand.New(rand.NewPCG(1, 2)), historyValue)
	recs := make([]Record, 1000)
	for i := range batches {
		for j := range recs {
			recs[j] = Record{Key: hot, Value: value}
		}
		recs = append(recs[:1000], Record{Key: benchKey(1 + i%100), Value: value})
		if _, err := db.Append(b.Context(), recs, AppendOptions{Ack: Memory}); err != nil {
			b.Fatal(err)
		}
		recs = recs[:1000]
	}
	if err := db.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	settle(b, db)
	b.ReportAllocs()
	for b.Loop() {
		n, err := db.Count(b.Context(), hot, All())
		if err != nil || n != uint64(batches)*1000 {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(db.Status().Segments), "segments")
}

// BenchmarkTip ingests 25 MB/s of 1 KiB records over a million keys, compaction on, while
// readers poll keys that are written, from where they read last. It reports the requests for
// tables and indexes that their reads caused, and how long a poll took. An iteration is a second.
func BenchmarkTip(b *testing.B) {
	for _, keys := range []int{1000, historyKeys()} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) { benchmarkTip(b, keys) })
	}
}

func benchmarkTip(b *testing.B, keys int) {
	store := &traffic{Store: mem.New(mem.Options{})}
	db, err := Open(b.Context(), store, Options{MemtableBytes: 32 << 20, SegmentBytes: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	const rate, valueSize, readers = 25_000_000, 1 << 10, 8
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { ingestAt(ctx, b, db, rate, valueSize, keys) })
	var records atomic.Int64
	took := make([][]time.Duration, readers)
	for r := range readers {
		wg.Go(func() { took[r] = pollTip(ctx, b, db, r, keys, &records) })
	}
	for records.Load() == 0 { // readers have nothing to read for a second
		time.Sleep(10 * time.Millisecond)
	}
	before, read := db.Status().Counters, records.Load()
	seconds := 0
	for b.Loop() {
		time.Sleep(time.Second)
		seconds++
	}
	stop()
	wg.Wait()
	after := db.Status()
	b.ReportMetric(float64(after.TableReads-before.TableReads), "GETs")
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/float64(seconds), "polls/s")
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1e3, "p99-us")
	b.ReportMetric(float64(all[len(all)*999/1000].Nanoseconds())/1e3, "p999-us")
	b.ReportMetric(float64(records.Load()-read)/float64(seconds), "records/s")
	b.ReportMetric(float64(after.AppendedBytes-before.AppendedBytes)/1e6/float64(seconds), "MB/s-in")
	b.ReportMetric(float64(after.Flushes-before.Flushes), "flushes")
	b.ReportMetric(float64(after.Compaction.Jobs), "compactions")
}

// ingestAt appends bytes at a rate, to so many keys.
func ingestAt(ctx context.Context, b *testing.B, db *DB, rate, valueSize, keys int) {
	const batch = 100
	rnd := rand.New(rand.NewPCG(8, 8))
	value := halfRandom(rnd, valueSize)
	began, sent := time.Now(), 0
	for ctx.Err() == nil {
		recs := make([]Record, batch)
		for i := range recs {
			recs[i] = Record{Key: benchKey(rnd.IntN(keys)), Value: value}
		}
		if _, err := db.Append(ctx, recs, AppendOptions{Ack: Memory}); err != nil && ctx.Err() == nil {
			b.Error(err)
			return
		}
		sent += batch * valueSize
		if due := time.Duration(float64(sent) / float64(rate) * float64(time.Second)); time.Since(began) < due {
			time.Sleep(due - time.Since(began))
		}
	}
}

// pollTip reads keys from where the frontier was about a second ago on: what a reader at the tip that comes
// back does. (From the frontier on there is nothing, and a poll that finds only that tells nothing.) It
// returns how long each took.
func pollTip(ctx context.Context, b *testing.B, db *DB, seed, keys int, records *atomic.Int64) (took []time.Duration) {
	rnd := rand.New(rand.NewPCG(9, uint64(seed)))
	const rounds = 100 // a second
	var frontiers [rounds]uint64
	for round := 0; ctx.Err() == nil; round++ {
		cursor := frontiers[round%rounds]
		frontiers[round%rounds] = db.Frontier()
		for range 100 {
			if cursor == 0 {
				break // it has not gone on for a second
			}
			key, began := benchKey(rnd.IntN(keys)), time.Now()
			it := db.Scan(ctx, key, From(cursor), ScanOptions{Limit: 100})
			for range it.All() {
				records.Add(1)
			}
			took = append(took, time.Since(began))
			if it.Err() != nil && ctx.Err() == nil {
				b.Error(it.Err())
				return took
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return took
}

// allTables returns the lines of all tables of the log, those of its groups too.
func allTables(b *testing.B, db *DB) (lines []*manifest.Table) {
	s := db.Head()
	for _, segment := range s.GetSegments() {
		for _, run := range segment.GetRuns() {
			lines = append(lines, run.GetTables()...)
		}
	}
	for _, g := range s.GetGroups() {
		ref := g.GetIndex().ID()
		x, err := db.tables.index(b.Context(), ref, int64(g.GetIndexSize()))
		if err != nil {
			b.Fatal(err)
		}
		for i, to := x.Live(g); i < to; i++ {
			list, err := db.tables.indexTables(b.Context(), x, ref, i)
			if err != nil {
				b.Fatal(err)
			}
			lines = append(lines, list...)
		}
	}
	return lines
}
