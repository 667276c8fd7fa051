package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/sst"
)

// A segment with MaxRuns runs is sealed whatever its size: appends go on.
func TestMaxRunsSeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulatedOptions()
		o.MaxRuns = 2
		store := newStore()
		db := openTest(t, store, o)
		for range 2 {
			mustAppend(t, db, record("k", "v"))
			require.NoError(t, db.Flush(t.Context()))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := db.Append(ctx, []Record{record("k", "v")}, AppendOptions{})
		require.NoError(t, err, "nothing is unflushed and the store works")
	})
}

// A small log that is restarted now and then goes on too.
func TestMaxRunsSealsAfterReopen(t *testing.T) {
	o := smallOptions()
	o.MaxRuns = 4
	store := newStore()
	for range 5 { // e.g. a small log that is restarted now and then
		db, err := Open(t.Context(), store, o)
		require.NoError(t, err)
		_, err = db.Append(t.Context(), []Record{record("k", "v")}, AppendOptions{})
		require.NoError(t, err)
		require.NoError(t, db.Close(t.Context()))
	}
}

// Records without bytes are bounded by the heap that they take.
func TestTinyRecordsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		store := fault.New(newStore(), func(_ context.Context, op fault.Op) fault.Plan {
			if down.Load() && op.Kind == fault.Put && strings.Contains(op.Name, "/sst/") {
				return fault.Refuse(fault.ErrInjected)
			}
			return fault.Plan{}
		})
		o := simulatedOptions()
		o.MaxKeyBytes, o.MaxValueBytes, o.MaxUnflushedBytes = 100, 100, 1<<20
		db := openTest(t, store, o)
		down.Store(true)
		defer down.Store(false)
		recs := make([]Record, 10_000) // empty keys, empty values
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 100 {
			if _, err := db.Append(ctx, recs, AppendOptions{}); err != nil {
				break
			}
		}
		s := db.Status()
		require.Less(t, s.MemtableBytes, 8*o.MaxUnflushedBytes, "unflushed bytes: %d, WAL bytes %d", s.UnflushedBytes, s.WALBytes)
	})
}

// A segment that is old but too small is sealed by the append that makes it large enough.
func TestSealOnceLargeEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulatedOptions()
		o.SegmentInterval, o.SegmentMinBytes = 50*time.Millisecond, 100
		db := openTest(t, newStore(), o)
		mustAppend(t, db, record("k", "v"))
		time.Sleep(2 * o.SegmentInterval) // simulated: the timer has fired; too small to be sealed
		require.Zero(t, db.Status().Seals)
		mustAppend(t, db, record("k", strings.Repeat("v", 200)))
		synctest.Wait()
		require.Equal(t, uint64(1), db.Status().Seals)
	})
}

// No timer keeps a closed DB, its memtables and its cache in memory.
func TestClosedDBIsCollected(t *testing.T) {
	for _, appends := range []int{0, 1} { // without a record no timer is armed
		t.Run(fmt.Sprint(appends), func(t *testing.T) {
			ref := func() weak.Pointer[DB] {
				db, err := Open(t.Context(), newStore(), smallOptions())
				require.NoError(t, err)
				for range appends {
					mustAppend(t, db, record("k", "v"))
				}
				require.NoError(t, db.Close(t.Context()))
				return weak.Make(db)
			}()
			require.Eventually(t, func() bool { runtime.GC(); return ref.Value() == nil }, patience, 20*time.Millisecond)
		})
	}
}

// An Ack that does not exist is refused, not taken for Memory (I1).
func TestUnknownAck(t *testing.T) {
	block := make(chan struct{})
	store := fault.New(newStore(), func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind == fault.Put && strings.Contains(op.Name, "/wal/") {
			return fault.Plan{Before: func(ctx context.Context) error {
				select {
				case <-block:
				case <-ctx.Done():
				}
				return ctx.Err()
			}}
		}
		return fault.Plan{}
	})
	db := openTest(t, store, smallOptions())
	defer close(block)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := db.Append(ctx, []Record{record("k", "v")}, AppendOptions{Ack: 7})
	require.Error(t, err, "acknowledged although nothing is durable: %d", db.Status().Durable)
}

// A context that has ended already appends nothing.
func TestEndedContextAppendsNothing(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		_, _ = db.Append(ctx, []Record{record("k", "v")}, AppendOptions{})
	}
	require.Zero(t, db.Status().Next)
}

// A batch of more records than a commit can reserve is refused at once.
func TestBatchOfTooManyRecords(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	recs := make([]Record, maxBatchRecords+1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := db.Append(ctx, recs, AppendOptions{})
	require.ErrorIs(t, err, ErrTooLarge)
}

// The highest number is no record's sequence.
func TestWaitDurableOfTheLastSequence(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, db.WaitDurable(ctx, base.MaxSequence), context.DeadlineExceeded)
}

// When the sequences run out, append says so.
func TestSequencesRunOut(t *testing.T) {
	db, err := Open(t.Context(), newStore(), smallOptions())
	require.NoError(t, err)
	db.mu.Lock()
	db.next, db.durable, db.seqLimit = base.MaxSequence-1, base.MaxSequence-1, base.MaxSequence
	db.mu.Unlock()
	append1 := func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v", r)
				db.mu.TryLock()
				db.mu.Unlock()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = db.Append(ctx, []Record{record("k", "v")}, AppendOptions{Ack: Memory})
		return err
	}
	first, second := append1(), append1()
	t.Logf("last sequence: %v; none left: %v", first, second)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = db.Close(ctx)
	require.Error(t, second)
	require.NotContains(t, second.Error(), "panic")
}

// A WAL object lost below an existing fence is damage, not the end of the log.
func TestObjectLostBelowAFence(t *testing.T) {
	inner := newStore()
	db, err := Open(t.Context(), inner, smallOptions())
	require.NoError(t, err)
	for i := range 5 {
		mustAppend(t, db, record("k", fmt.Sprint(i)))
	}
	db.crash()
	// An opening that fences epoch 1 and dies before it commits what it replayed.
	ctx, cancel := context.WithCancel(t.Context())
	dying := fault.New(inner, func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind == fault.Put && strings.Contains(op.Name, "/sst/") {
			return fault.Plan{Before: func(context.Context) error { cancel(); return fault.ErrInjected }}
		}
		return fault.Plan{}
	})
	_, err = Open(ctx, dying, smallOptions())
	require.Error(t, err)
	require.NoError(t, inner.Delete(t.Context(), []string{base.WALName(0, 1, 3)}))
	report, err := Check(t.Context(), inner, CheckOptions{})
	require.NoError(t, err)
	sees := report.Err()
	again, err := Open(t.Context(), inner, smallOptions())
	var got []string
	if err == nil {
		defer again.crash()
		got = values(t, again, "k", All(), ScanOptions{})
	}
	require.Error(t, sees, "Check does not see the missing object")
	require.Error(t, err, "opened with %v of five acknowledged records", got)
}

// Appends enter first come first served: small ones do not pass a large one for ever.
func TestLargeBatchGetsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulatedOptions()
		o.MaxKeyBytes, o.MaxValueBytes, o.MaxUnflushedBytes = 8, 900, 1000
		slow := fault.New(newStore(), func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.Put && strings.Contains(op.Name, "/sst/") {
				return fault.Plan{Before: func(context.Context) error { time.Sleep(20 * time.Millisecond); return nil }}
			}
			return fault.Plan{}
		})
		db := openTest(t, slow, o)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		mustAppend(t, db, record("k", "0123456789"))
		var small atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := db.Append(ctx, []Record{record("k", "0123456789")}, AppendOptions{Ack: Memory}); err == nil {
					small.Add(1)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
		began := time.Now()
		_, err := db.Append(ctx, []Record{record("big", strings.Repeat("x", 900)), record("big", strings.Repeat("x", 90))}, AppendOptions{})
		cancel()
		wg.Wait()
		require.Less(t, db.Status().Runs, 20, "after %v, %d small batches passed it: %v", time.Since(began), small.Load(), err)
		require.NoError(t, err, "%d small batches passed it; %d runs", small.Load(), db.Status().Runs)
	})
}

// StaleAfter must leave room for late looks at the head.
func TestTinyStaleAfter(t *testing.T) {
	o := smallOptions()
	o.StaleAfter = time.Millisecond
	require.Error(t, o.Validate(), "every read of a table would answer ErrStale most of the time")
}

// The number of WAL objects that an open must replay is bounded.
func TestReplayIsBounded(t *testing.T) {
	inner := newStore()
	o := smallOptions()
	o.FlushInterval = time.Nanosecond
	o.MemtableBytes = DefaultMemtableBytes
	db, err := Open(t.Context(), inner, o)
	require.NoError(t, err)
	for range 20_000 {
		mustAppend(t, db, record("k", "v"))
	}
	require.Greater(t, db.Head().GetPosition().GetId(), uint64(1), "20,000 WAL objects, and replay starts at the first (heap of the memtable: %d KiB of %d)", db.Status().MemtableBytes>>10, o.MemtableBytes>>10)
	db.crash()
}

// One bad answer to a poll does not end the writer.
func TestOneBadAnswerOfThePoll(t *testing.T) {
	var bad atomic.Bool
	store := fault.New(newStore(), func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind == fault.Get && op.Name == base.ManifestName(0) && bad.CompareAndSwap(true, false) {
			return fault.Plan{Mangle: func(o *objstore.Object) error { o.Body[len(o.Body)-1] ^= 1; return nil }}
		}
		return fault.Plan{}
	})
	o := smallOptions()
	o.DisableCompaction = true
	db := openTest(t, store, o)
	// Another process's commit (a compactor's beat): the poll then has a body.
	snap, err := manifest.Load(t.Context(), store, base.SystemEnv(), 0)
	require.NoError(t, err)
	_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: store, Env: base.SystemEnv(), Start: snap}, manifest.OpenCompactor(0, [16]byte{1}))
	require.NoError(t, err)
	bad.Store(true)
	_ = db.poll(t.Context())
	require.NoError(t, db.Err())
}

// A missing table that the manifest names is damage (F37).
func TestMissingTableIsDamage(t *testing.T) {
	store := newStore()
	o := smallOptions()
	o.RecentBytes = 1
	db, err := Open(t.Context(), store, o)
	require.NoError(t, err)
	defer db.crash()
	mustAppend(t, db, record("k", "v"))
	require.NoError(t, db.Flush(t.Context()))
	id := db.Head().GetSegments()[0].GetRuns()[0].GetTables()[0].GetRef().ID()
	require.NoError(t, store.Delete(t.Context(), []string{id.Name()}))
	it := db.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
	for range it.All() {
	}
	require.ErrorIs(t, it.Err(), ErrCorrupt)
}

// A table that is committed while Check walks is no orphan.
func TestCheckBesideAWriter(t *testing.T) {
	inner := newStore()
	db, err := Open(t.Context(), inner, smallOptions())
	require.NoError(t, err)
	defer db.crash()
	var once sync.Once
	beside := fault.New(inner, func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind == fault.List {
			once.Do(func() {
				mustAppend(t, db, record("k", "v"))
				require.NoError(t, db.Flush(t.Context()))
			})
		}
		return fault.Plan{}
	})
	report, err := Check(t.Context(), beside, CheckOptions{})
	require.NoError(t, err)
	id := db.Head().GetSegments()[0].GetRuns()[0].GetTables()[0].GetRef().ID()
	require.NotContains(t, report.Orphans.Names, id.Name())
}

// damagedLog makes a log whose runs hold exactly these tables of records: intact
// bytes, whose contents contradict the rules.
func damagedLog(t *testing.T, runs ...[][]Record) objstore.Store {
	t.Helper()
	store := newStore()
	db, err := Open(t.Context(), store, smallOptions())
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	snap, err := manifest.Load(t.Context(), store, base.SystemEnv(), 0)
	require.NoError(t, err)
	env := base.SystemEnv()
	edit := manifest.Edit{Name: "damage", Apply: func(s *manifest.State) error {
		g := s.Segments[0]
		for _, tables := range runs {
			id := env.NewULID()
			run := &manifest.Run{Id: id[:], Start: s.FlushedEnd}
			for _, recs := range tables {
				ref := base.ObjectID{Kind: base.KindSST, Role: base.RoleWriter, Epoch: 1, Segment: 1, ULID: env.NewULID()}
				w := sst.NewWriter(sst.WriterOptions{ID: ref.ULID, Segment: 1, BlockBytes: 1 << 10})
				for _, r := range recs {
					w.Add(r.Key, r.Sequence, r.Timestamp, r.Value)
					s.FlushedEnd = max(s.FlushedEnd, r.Sequence+1)
					s.LastTimestampMs = max(s.LastTimestampMs, r.Timestamp)
				}
				body, info := w.Finish()
				if _, err := store.Put(t.Context(), ref.Name(), body, objstore.PutOptions{IfAbsent: true}); err != nil {
					return err
				}
				run.Tables = append(run.Tables, compaction.TableLine(ref, info))
			}
			run.End = s.FlushedEnd
			g.Runs = append(g.Runs, run)
		}
		g.StartTimeMs = runs[0][0][0].Timestamp
		s.CleanNext = &s.FlushedEnd
		return nil
	}}
	_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: store, Env: env, Start: snap}, edit)
	require.NoError(t, err)
	return store
}

// Check sees intact bytes whose contents contradict the rules.
func TestCheckSees(t *testing.T) {
	rec := func(key string, seq uint64, ts int64) Record {
		return Record{Key: []byte(key), Value: []byte(fmt.Sprint(seq)), Sequence: seq, Timestamp: ts}
	}
	for name, runs := range map[string][][][]Record{
		"a key's sequences go back from one table of a run to the next": {{{rec("a", 0, 1), rec("k", 1, 1), rec("k", 5, 1)}, {rec("k", 3, 1), rec("z", 4, 1)}}},
		"a key's record is in two tables of a run":                      {{{rec("a", 0, 1), rec("k", 1, 1)}, {rec("k", 1, 1), rec("z", 4, 1)}}},
		"two keys have the same sequence":                               {{{rec("a", 0, 1), rec("b", 2, 1), rec("c", 2, 1)}}},
		"timestamps go back from one run to the next":                   {{{rec("k", 0, 100)}}, {{rec("k", 1, 50)}}},
		"timestamps go back within a table":                             {{{rec("a", 0, 100), rec("b", 1, 50)}}},
	} {
		t.Run(name, func(t *testing.T) {
			store := damagedLog(t, runs...)
			report, err := Check(t.Context(), store, CheckOptions{})
			require.NoError(t, err)
			db, oerr := Open(t.Context(), store, smallOptions())
			if oerr == nil {
				it := db.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
				for r := range it.All() {
					t.Log(r.Sequence)
				}
				t.Log(it.Err())
				db.crash()
			}
			require.Error(t, report.Err())
		})
	}
}

// Records behind the mark of a clean close are damage.
func TestCheckSeesRecordsBehindACleanClose(t *testing.T) {
	store := newStore()
	db, err := Open(t.Context(), store, smallOptions())
	require.NoError(t, err)
	mustAppend(t, db, record("k", "v"))
	db.crash()
	snap, err := manifest.Load(t.Context(), store, base.SystemEnv(), 0)
	require.NoError(t, err)
	_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: store, Env: base.SystemEnv(), Start: snap}, manifest.Edit{Name: "damage", Apply: func(s *manifest.State) error {
		s.CleanNext = new(uint64)
		return nil
	}})
	require.NoError(t, err)
	report, err := Check(t.Context(), store, CheckOptions{})
	require.NoError(t, err)
	_, err = Open(t.Context(), store, smallOptions())
	require.Error(t, err)
	require.Error(t, report.Err(), "the next open says: %v", err)
}

// Flushed memtables beyond RecentBytes leave memory.
func TestFlushedMemoriesAreCollected(t *testing.T) {
	var down atomic.Bool
	store := fault.New(newStore(), func(_ context.Context, op fault.Op) fault.Plan {
		if down.Load() && op.Kind == fault.Put && strings.Contains(op.Name, "/sst/") {
			return fault.Refuse(fault.ErrInjected)
		}
		return fault.Plan{}
	})
	o := smallOptions()
	o.RecentBytes = 1
	db := openTest(t, store, o)
	down.Store(true)
	var refs []weak.Pointer[memory]
	for range 4 { // a burst: four memtables wait
		mustAppend(t, db, record("k", "v"))
		db.mu.Lock()
		refs = append(refs, weak.Make(db.active))
		db.rotate(false)
		db.mu.Unlock()
	}
	down.Store(false)
	require.NoError(t, db.Flush(t.Context()))
	require.Eventually(t, func() bool {
		runtime.GC()
		for _, r := range refs {
			if r.Value() != nil {
				return false
			}
		}
		return true
	}, patience, 20*time.Millisecond, "all is flushed, and the log is quiet: %d frozen, %d recent", len(db.frozen), len(db.recent))
}

// Bodies of WAL objects that landed leave memory.
func TestLandedBodiesAreCollected(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	mustAppend(t, db, record("k", strings.Repeat("v", 1<<20))) // above 2*WALObjectBytes: no buffer to keep
	require.NoError(t, db.Flush(t.Context()))
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, c := range db.cuts[:cap(db.cuts)] {
		require.Zero(t, len(c.body), "bytes of an object that landed")
	}
}

// PUTs that fail are not silent: not ready, a line in the log, and the reason in
// the errors of those who wait.
func TestFailingPutsAreVisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		full := errors.New("no space left")
		store := fault.New(newStore(), func(_ context.Context, op fault.Op) fault.Plan {
			if down.Load() && op.Kind == fault.Put {
				return fault.Refuse(full)
			}
			return fault.Plan{}
		})
		var logged bytes.Buffer
		o := simulatedOptions()
		o.DisableCompaction = true
		o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		db := openTest(t, store, o)
		mustAppend(t, db, record("k", "v"))
		require.NoError(t, db.Ready(t.Context()))
		down.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		_, err := db.Append(ctx, []Record{record("k", "late")}, AppendOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, full)
		require.ErrorIs(t, db.Ready(t.Context()), full)
		synctest.Wait()
		require.Contains(t, logged.String(), "records cannot be made durable")
		require.Contains(t, logged.String(), "no space left")
		lines := strings.Count(logged.String(), "records cannot be made durable")
		require.Less(t, lines, 6, "now and then, not every second")
		down.Store(false)
		require.NoError(t, db.WaitDurable(t.Context(), 1))
		time.Sleep(2 * time.Second)
		require.NoError(t, db.Ready(t.Context()))
		synctest.Wait()
		require.Contains(t, logged.String(), "over")
	})
}
