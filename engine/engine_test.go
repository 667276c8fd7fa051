package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// patience is how long tests wait for what takes a moment, on the slowest machine too.
const patience = time.Minute

// smallOptions make every mechanism work on little data.
func smallOptions() Options {
	return Options{
		FlushInterval:   time.Millisecond,
		WALObjectBytes:  4 << 10,
		MemtableBytes:   64 << 10,
		RecentBytes:     64 << 10,
		TableBytes:      32 << 10,
		BlockBytes:      1 << 10,
		CacheBytes:      1 << 20,
		SegmentBytes:    256 << 10,
		SegmentMinBytes: 1 << 10,
	}
}

func newStore() *mem.Store { return mem.New(mem.Options{}) }

// openTest opens a log whose store is checked when the test ends.
func openTest(t *testing.T, store objstore.Store, o Options) *DB {
	t.Helper()
	db, err := Open(t.Context(), store, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = db.Close(context.Background()) // ErrClosed where the test closed it
		checkStore(t, store)
	})
	return db
}

// crash ends a DB the way a killed process does: what it knew is gone.
func (db *DB) crash() {
	db.mu.Lock()
	db.closing, db.closed = true, true
	closed := error(ErrClosed)
	db.unreadable.CompareAndSwap(nil, &closed)
	db.stopTimers()
	db.mu.Unlock()
	db.end()
	db.uploader.Stop()
	db.committer.Close()
	db.background.Wait()
}

func checkStore(t *testing.T, store objstore.Store) *CheckReport {
	t.Helper()
	report, err := Check(context.Background(), store, CheckOptions{})
	require.NoError(t, err)
	require.NoError(t, report.Err())
	return report
}

func record(key, value string) Record { return Record{Key: []byte(key), Value: []byte(value)} }

func mustAppend(t *testing.T, db *DB, recs ...Record) AppendResult {
	t.Helper()
	res, err := db.Append(t.Context(), recs, AppendOptions{})
	require.NoError(t, err)
	return res
}

// values reads a key's values within a range.
func values(t *testing.T, r LogReader, key string, rng Range, o ScanOptions) []string {
	t.Helper()
	it := r.Scan(t.Context(), []byte(key), rng, o)
	out := []string{}
	last := uint64(0)
	for rec := range it.All() {
		require.Equal(t, key, string(rec.Key))
		require.True(t, len(out) == 0 || rec.Sequence > last)
		last = rec.Sequence
		out = append(out, string(rec.Value))
	}
	require.NoError(t, it.Err())
	return out
}

func TestAppendAndReadBack(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	first := mustAppend(t, db, record("a", "1"), record("b", "2"), record("a", "3"))
	require.Equal(t, AppendResult{First: 0, Last: 2, Timestamp: first.Timestamp}, first)
	require.InDelta(t, time.Now().UnixMilli(), first.Timestamp, 60_000)
	second := mustAppend(t, db, record("", ""), record("a", "4"))
	require.Equal(t, uint64(3), second.First)
	require.GreaterOrEqual(t, second.Timestamp, first.Timestamp)

	require.Equal(t, uint64(5), db.Frontier())
	require.Equal(t, []string{"1", "3", "4"}, values(t, db, "a", All(), ScanOptions{}))
	require.Equal(t, []string{"3"}, values(t, db, "a", Between(1, 4), ScanOptions{}))
	require.Equal(t, []string{""}, values(t, db, "", All(), ScanOptions{}))
	require.Empty(t, values(t, db, "nobody", All(), ScanOptions{}))
	require.Equal(t, []string{"3", "4"}, values(t, db, "a", All(), ScanOptions{Last: 2}))
	n, err := db.Count(t.Context(), []byte("a"), All())
	require.NoError(t, err)
	require.Equal(t, uint64(3), n)
}

func TestEmptyBatch(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	require.Equal(t, AppendResult{}, mustAppend(t, db))
	require.Zero(t, db.Frontier())
}

func TestIteratorNext(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	for i := range 10 {
		mustAppend(t, db, record(fmt.Sprint("k", i%2), fmt.Sprint(i)))
	}
	for _, c := range []struct {
		name string
		r    Range
		o    ScanOptions
		want []string
		next uint64
	}{
		{"drained: the frontier", All(), ScanOptions{}, []string{"0", "2", "4", "6", "8"}, 10},
		{"drained within a range: its end", Between(0, 7), ScanOptions{}, []string{"0", "2", "4", "6"}, 7},
		{"stopped by the limit: last + 1", All(), ScanOptions{Limit: 2}, []string{"0", "2"}, 3},
		{"limit met exactly", All(), ScanOptions{Limit: 5}, []string{"0", "2", "4", "6", "8"}, 9},
		{"stopped by bytes", All(), ScanOptions{MaxBytes: 3}, []string{"0", "2", "4"}, 5},
		{"at least one record", All(), ScanOptions{MaxBytes: 1}, []string{"0"}, 1},
		{"empty range", Between(5, 5), ScanOptions{}, []string{}, 5},
		{"reversed range", Between(7, 2), ScanOptions{}, []string{}, 7},
		{"beyond the frontier", From(100), ScanOptions{}, []string{}, 100},
		{"last", All(), ScanOptions{Last: 3}, []string{"4", "6", "8"}, 10},
		{"last within a range", Between(0, 7), ScanOptions{Last: 2}, []string{"4", "6"}, 7},
		{"last above what there is", All(), ScanOptions{Last: 99}, []string{"0", "2", "4", "6", "8"}, 10},
		{"last, bounded in bytes", All(), ScanOptions{Last: 9, MaxBytes: 2}, []string{"6", "8"}, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			it := db.Scan(t.Context(), []byte("k0"), c.r, c.o)
			got := []string{}
			for rec := range it.All() {
				got = append(got, string(rec.Value))
			}
			require.NoError(t, it.Err())
			require.Equal(t, c.want, got)
			require.Equal(t, c.next, it.Next())
		})
	}
	t.Run("left early, it goes on behind what it yielded", func(t *testing.T) {
		it := db.Scan(t.Context(), []byte("k0"), All(), ScanOptions{})
		for range it.All() {
			break
		}
		require.Equal(t, uint64(1), it.Next())
		var rest []string
		for rec := range it.All() {
			rest = append(rest, string(rec.Value))
		}
		require.Equal(t, []string{"2", "4", "6", "8"}, rest)
		require.Equal(t, uint64(10), it.Next())
	})
	t.Run("negative limits", func(t *testing.T) {
		it := db.Scan(t.Context(), []byte("k0"), All(), ScanOptions{Limit: -1})
		for range it.All() {
			t.Fatal("a record")
		}
		require.ErrorIs(t, it.Err(), ErrInvalid)
	})
}

// model is what the log should hold.
type model struct {
	byKey map[string][]Record
	all   []Record
}

func (m *model) add(res AppendResult, recs []Record) {
	if m.byKey == nil {
		m.byKey = map[string][]Record{}
	}
	for i, r := range recs {
		r.Sequence, r.Timestamp = res.First+uint64(i), res.Timestamp
		m.byKey[string(r.Key)] = append(m.byKey[string(r.Key)], r)
		m.all = append(m.all, r)
	}
}

func (m *model) require(t *testing.T, db LogReader) {
	t.Helper()
	keys := make([]string, 0, len(m.byKey))
	for k, want := range m.byKey {
		keys = append(keys, k)
		it := db.Scan(t.Context(), []byte(k), All(), ScanOptions{})
		got := slices.Collect(it.All())
		require.NoError(t, it.Err())
		require.Equal(t, want, got, "records of key %q", k)
		n, err := db.Count(t.Context(), []byte(k), All())
		require.NoError(t, err)
		require.Equal(t, uint64(len(want)), n)
	}
	slices.Sort(keys)
	listed := []string{}
	o := KeysOptions{Limit: 7}
	for {
		page, err := db.Keys(t.Context(), o)
		require.NoError(t, err)
		for _, k := range page.Keys {
			listed = append(listed, string(k))
		}
		if !page.More {
			break
		}
		o.After = page.Keys[len(page.Keys)-1]
	}
	require.Equal(t, keys, listed)
	for i := 0; i < len(m.all); i += 1 + len(m.all)/50 {
		stamp := m.all[i].Timestamp
		first := sort.Search(i, func(j int) bool { return m.all[j].Timestamp >= stamp }) // i, or before
		seq, err := db.SeekTime(t.Context(), millis(stamp))
		require.NoError(t, err)
		require.LessOrEqual(t, seq, m.all[first].Sequence)
	}
}

func randomBatch(rnd *rand.Rand, keys int) []Record {
	recs := make([]Record, 1+rnd.IntN(20))
	for i := range recs {
		value := make([]byte, rnd.IntN(300))
		for j := range value {
			value[j] = byte('a' + rnd.IntN(4))
		}
		recs[i] = Record{Key: fmt.Appendf(nil, "key-%03d", rnd.IntN(keys)), Value: value}
	}
	return recs
}

// A log that rotates, flushes and seals often holds exactly what was appended,
// now and after every way to reopen it.
func TestReopen(t *testing.T) {
	for _, how := range []string{"close", "crash"} {
		t.Run(how, func(t *testing.T) {
			store := newStore()
			rnd := rand.New(rand.NewPCG(1, 2))
			var m model
			for round := range 6 {
				db, err := Open(t.Context(), store, smallOptions())
				require.NoError(t, err)
				m.require(t, db)
				if how == "close" {
					require.Zero(t, db.Status().Recovered)
					require.Equal(t, uint64(len(m.all)), db.Frontier(), "no sequence is skipped by a clean close")
				}
				for range 100 {
					recs := randomBatch(rnd, 50)
					m.add(mustAppend(t, db, recs...), recs)
				}
				m.require(t, db)
				require.Equal(t, uint64(round+1), db.Status().Epoch)
				if how == "close" {
					require.NoError(t, db.Close(t.Context()))
				} else {
					db.crash()
				}
				checkStore(t, store)
			}
			segments := 0
			db := openTest(t, store, smallOptions())
			page, err := db.Segments(t.Context(), SegmentsOptions{})
			require.NoError(t, err)
			var records uint64
			for i, s := range page.Segments {
				require.Equal(t, uint32(i+1), s.ID)
				require.Equal(t, i+1 < len(page.Segments), s.Sealed)
				if i > 0 {
					require.Equal(t, page.Segments[i-1].End, s.Start)
				}
				records += s.Records
				segments++
			}
			require.Equal(t, uint64(len(m.all)), records)
			require.Greater(t, segments, 2)
		})
	}
}

func TestFlushMakesTheNextOpenQuick(t *testing.T) {
	store := newStore()
	db := openTest(t, store, smallOptions())
	mustAppend(t, db, record("k", "1"))
	require.NoError(t, db.Flush(t.Context()))
	require.Equal(t, uint64(1), db.Status().FlushedEnd)
	require.NoError(t, db.Flush(t.Context()), "with nothing to flush")
	db.crash()
	again := openTest(t, store, smallOptions())
	require.Zero(t, again.Status().Recovered)
	require.Equal(t, []string{"1"}, values(t, again, "k", All(), ScanOptions{}))
}

func TestSinceTimestamp(t *testing.T) {
	store := newStore()
	env := newTestEnv()
	o := smallOptions()
	o.Env = env.Env
	o.FlushInterval = time.Nanosecond
	db := openTest(t, store, o)
	start := env.Now().Truncate(time.Millisecond)
	for i := range 30 {
		env.advance(time.Second)
		mustAppend(t, db, record("k", fmt.Sprint(i)), record(fmt.Sprint("other", i), "x"))
		if i%7 == 6 {
			require.NoError(t, db.Flush(t.Context()))
		}
	}
	for i := range 31 {
		since := start.Add(time.Duration(i) * time.Second)
		got := values(t, db, "k", All(), ScanOptions{Since: since})
		require.Len(t, got, min(30, 31-i), "since %d", i)
		require.Equal(t, got[max(0, len(got)-3):], values(t, db, "k", All(), ScanOptions{Since: since, Last: 3}))
	}
	require.Empty(t, values(t, db, "k", All(), ScanOptions{Since: start.Add(time.Hour)}))
}

func TestKeysPages(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	mustAppend(t, db, record("", "v"), record("a/1", "v"), record("a/2", "v"))
	require.NoError(t, db.Flush(t.Context()))
	mustAppend(t, db, record("a/2", "v"), record("a/3", "v"), record("b", "v"))
	list := func(o KeysOptions) ([]string, bool) {
		page, err := db.Keys(t.Context(), o)
		require.NoError(t, err)
		out := []string{}
		for _, k := range page.Keys {
			out = append(out, string(k))
		}
		return out, page.More
	}
	for _, c := range []struct {
		o    KeysOptions
		want []string
		more bool
	}{
		{KeysOptions{}, []string{"", "a/1", "a/2", "a/3", "b"}, false},
		{KeysOptions{Limit: 2}, []string{"", "a/1"}, true},
		{KeysOptions{Limit: 5}, []string{"", "a/1", "a/2", "a/3", "b"}, false},
		{KeysOptions{After: []byte("")}, []string{"a/1", "a/2", "a/3", "b"}, false},
		{KeysOptions{After: []byte("a/2")}, []string{"a/3", "b"}, false},
		{KeysOptions{Prefix: []byte("a/")}, []string{"a/1", "a/2", "a/3"}, false},
		{KeysOptions{Prefix: []byte("a/"), After: []byte("a/1"), Limit: 1}, []string{"a/2"}, true},
		{KeysOptions{Prefix: []byte("a/"), After: []byte("b")}, []string{}, false},
		{KeysOptions{StartSegment: 2}, []string{}, false},
		{KeysOptions{EndSegment: 1}, []string{}, false},
	} {
		got, more := list(c.o)
		require.Equal(t, c.want, got, "%+v", c.o)
		require.Equal(t, c.more, more, "%+v", c.o)
	}
}

func TestKeysPageIsBoundedInBytes(t *testing.T) {
	db := openTest(t, newStore(), Options{FlushInterval: time.Millisecond})
	var recs []Record
	for i := range 3000 {
		recs = append(recs, record(fmt.Sprintf("%04d%04000d", i, 0), ""))
	}
	mustAppend(t, db, recs...)
	total := 0
	var o KeysOptions
	for {
		page, err := db.Keys(t.Context(), o)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Keys), maxKeysBytes/4000+1)
		total += len(page.Keys)
		if !page.More {
			break
		}
		o.After = page.Keys[len(page.Keys)-1]
	}
	require.Equal(t, 3000, total)
}

func TestWaitWakesOnItsKeyOnly(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	mustAppend(t, db, record("k", "old"))
	require.NoError(t, db.Wait(t.Context(), []byte("k"), All()), "there already")

	done := make(chan error, 1)
	go func() { done <- db.Wait(t.Context(), []byte("k"), From(1)) }()
	require.Eventually(t, func() bool { return db.Status().Followers == 1 }, patience, time.Millisecond)
	mustAppend(t, db, record("other", "x"))
	select {
	case err := <-done:
		t.Fatalf("woken by another key: %v", err)
	default:
	}
	mustAppend(t, db, record("k", "new"))
	require.NoError(t, <-done)
	require.Zero(t, db.Status().Followers)

	t.Run("a range that ends", func(t *testing.T) {
		end := db.Frontier() + 1
		go func() { done <- db.Wait(t.Context(), []byte("k"), Between(db.Frontier(), end)) }()
		require.Eventually(t, func() bool { return db.Status().Followers == 1 }, patience, time.Millisecond)
		mustAppend(t, db, record("other", "x"))
		require.NoError(t, <-done)
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, db.Wait(ctx, []byte("k"), From(99)), context.Canceled)
	})
	t.Run("close", func(t *testing.T) {
		go func() { done <- db.Wait(context.Background(), []byte("k"), From(99)) }()
		require.Eventually(t, func() bool { return db.Status().Followers == 1 }, patience, time.Millisecond)
		require.NoError(t, db.Close(t.Context()))
		require.ErrorIs(t, <-done, ErrClosed)
	})
}

func TestClosed(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	require.NoError(t, db.Close(t.Context()))
	require.ErrorIs(t, db.Close(t.Context()), ErrClosed)
	_, err := db.Append(t.Context(), []Record{record("k", "v")}, AppendOptions{})
	require.ErrorIs(t, err, ErrClosed)
	var failed *AppendError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, NotAppended, failed.Outcome)
	_, err = db.Count(t.Context(), []byte("k"), All())
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, db.WaitDurable(t.Context(), 5), ErrClosed)
	require.ErrorIs(t, db.Flush(t.Context()), ErrClosed)
}

func TestLimits(t *testing.T) {
	o := smallOptions()
	o.MaxKeyBytes, o.MaxValueBytes, o.MaxUnflushedBytes = 8, 100, 1000
	db := openTest(t, newStore(), o)
	for name, recs := range map[string][]Record{
		"key":   {record("123456789", "")},
		"value": {record("k", string(make([]byte, 101)))},
		"batch": slices.Repeat([]Record{record("k", string(make([]byte, 100)))}, 10),
	} {
		_, err := db.Append(t.Context(), recs, AppendOptions{})
		require.ErrorIs(t, err, ErrTooLarge, name)
	}
	mustAppend(t, db, record("12345678", string(make([]byte, 100))))
	require.Equal(t, uint64(1), db.Frontier())
}

func TestOptionsValidateReportsAllFaults(t *testing.T) {
	err := Options{FlushInterval: -1, WALInFlight: 1000, SegmentBytes: 10, SegmentMinBytes: 20, MaxKeyBytes: -1}.Validate()
	require.Error(t, err)
	for _, name := range []string{"FlushInterval", "WALInFlight", "SegmentMinBytes", "MaxKeyBytes"} {
		require.ErrorContains(t, err, name)
	}
	require.NoError(t, Options{}.Validate())
}
