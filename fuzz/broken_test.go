package fuzz

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// Answers that are not what was asked for: F35, and F37 for objects that are gone.

// breakage is a way in which the answer to a read of a range can be wrong.
type breakage struct {
	plan func(store objstore.Store, op fault.Op) fault.Plan
	// failed: the store reports it, so that the range is read again.
	failed bool
	// short: the body is too short without an error, which is against the store's contract.
	short bool
}

var breakages = map[string]breakage{
	"the body ends early": {plan: always(fault.Lose(io.ErrUnexpectedEOF)), failed: true},
	"reset in the middle": {plan: always(fault.Lose(errNetwork)), failed: true},
	"nothing came":        {plan: always(fault.Truncate(0)), short: true},
	"one byte is missing": {plan: func(_ objstore.Store, op fault.Op) fault.Plan { return fault.Truncate(int(op.GetOptions.Length) - 1) }, short: true},
	"first byte":          {plan: always(fault.FlipByte(0))},
	"a byte in between":   {plan: func(_ objstore.Store, op fault.Op) fault.Plan { return fault.FlipByte(int(op.GetOptions.Length) / 2) }},
	"last byte":           {plan: func(_ objstore.Store, op fault.Op) fault.Plan { return fault.FlipByte(int(op.GetOptions.Length) - 1) }},
	"another range":       {plan: anotherRange},
}

// always is one plan for every request.
func always(plan fault.Plan) func(objstore.Store, fault.Op) fault.Plan {
	return func(objstore.Store, fault.Op) fault.Plan { return plan }
}

// anotherRange answers with the bytes that lie one byte further.
func anotherRange(store objstore.Store, op fault.Op) fault.Plan {
	o := op.GetOptions
	if o.Offset++; o.Offset > 1 {
		o.Offset -= 2
	}
	return fault.Plan{Mangle: func(obj *objstore.Object) error {
		other, err := store.Get(context.Background(), op.Name, o)
		obj.Body = append(other.Body, obj.Body...)[:len(obj.Body)]
		return err
	}}
}

// rangeOf reports whether an operation reads a part of an object that is written once.
func rangeOf(op fault.Op) bool {
	_, ok := base.ParseObjectName(op.Name)
	return op.Kind == fault.Get && ok && op.GetOptions.Length > 0
}

// agedLog makes a log whose segments are of every age, and closes it.
func agedLog(t *testing.T, compacted bool) (*mem.Store, *agingWork) {
	store := mem.New(mem.Options{})
	w := newAgingWork(t, newAgingWitness(store))
	w.o.Retention, w.o.RetentionInterval, w.o.DisableCompaction = 0, 0, !compacted
	ctx := t.Context()
	for _, step := range []func(context.Context) error{w.open, w.relieved, w.large(17), w.small, w.tail} {
		require.NoError(t, step(ctx))
	}
	if compacted {
		w.compacted()
	}
	require.NoError(t, w.db.Close(ctx))
	check(t, store)
	w.o.CacheBytes, w.o.DisableCompaction = 1, true
	return store, w
}

// everyRead is all kinds of reads; each returns what it read as text.
var everyRead = map[string]func(db *engine.DB, key string) (string, error){
	"scan": func(db *engine.DB, key string) (string, error) {
		recs, err := collect(db.Scan(context.Background(), []byte(key), engine.All(), engine.ScanOptions{}))
		return describe(recs), err
	},
	"last": func(db *engine.DB, key string) (string, error) {
		recs, err := collect(db.Scan(context.Background(), []byte(key), engine.All(), engine.ScanOptions{Last: 20}))
		return describe(recs), err
	},
	"since": func(db *engine.DB, key string) (string, error) {
		since := engine.ScanOptions{Since: time.Unix(946684800+20, 0)} // 20 simulated seconds
		recs, err := collect(db.Scan(context.Background(), []byte(key), engine.All(), since))
		return describe(recs), err
	},
	"count": func(db *engine.DB, key string) (string, error) {
		n, err := db.Count(context.Background(), []byte(key), engine.Between(3, 60))
		return fmt.Sprint(n), err
	},
	"keys": func(db *engine.DB, _ string) (string, error) {
		page, err := db.Keys(context.Background(), engine.KeysOptions{})
		return fmt.Sprintf("%q", page.Keys), err
	},
	"segments": func(db *engine.DB, _ string) (string, error) {
		page, err := db.Segments(context.Background(), engine.SegmentsOptions{})
		return fmt.Sprint(page.Segments), err
	},
}

// TestF35BrokenReads breaks each request that a read causes, in every way. The read gives the
// right answer or says that something is corrupt, and the same read afterwards gives the
// right answer: nothing wrong was kept.
func TestF35BrokenReads(t *testing.T) {
	t.Parallel()
	for name, b := range breakages {
		failure(t, name, func(t *testing.T) {
			store, w := agedLog(t, true)
			defer w.killAll()
			r := rigOn(t, store)
			r.witness.setStale(w.o.StaleAfter)
			w.store = r.store
			// Blocks are kept, and ranges on a disk; what a new process finds there it trusts.
			for _, kept := range []bool{false, true} {
				if w.o.CacheBytes = 1; kept {
					w.o.CacheBytes = 1 << 20
				}
				for what, read := range everyRead {
					w.brokenRead(r, what, read, b)
				}
			}
		})
	}
}

// brokenRead breaks the requests of one kind of read, one after the other.
func (w *agingWork) brokenRead(r *rig, what string, read func(*engine.DB, string) (string, error), b breakage) {
	t := w.t
	require.NoError(t, w.open(t.Context()))
	want, err := read(w.db, "k")
	require.NoError(t, err)
	for n := 0; ; n = sampled(n, 8) {
		if w.o.CacheBytes > 1 || n == 0 { // what is cached is not read again
			kill(w.db)
			require.NoError(t, w.open(t.Context()))
		}
		f := &agingFault{n: int64(n), match: rangeOf, plan: func(op fault.Op) fault.Plan { return b.plan(r.mem, op) }}
		r.rule(f.hook)
		got, err := read(w.db, "k")
		r.heal()
		if !f.hit.Load() {
			require.NoError(t, err)
			require.Equal(t, want, got)
			return
		}
		if err != nil {
			require.False(t, b.failed, "%s, request %d: the range is read again: %v", what, n, err)
			require.ErrorIs(t, err, engine.ErrCorrupt, "%s, request %d", what, n)
		} else {
			require.Equal(t, want, got, "%s, request %d", what, n)
		}
		got, err = read(w.db, "k")
		require.NoError(t, err, "%s, after request %d: something wrong was kept", what, n)
		require.Equal(t, want, got, "%s, after request %d", what, n)
	}
}

// TestF35DiskCache breaks requests while ranges are kept on a disk, and reads them from there
// in another process.
func TestF35DiskCache(t *testing.T) {
	t.Parallel()
	for name, b := range breakages {
		failure(t, name, func(t *testing.T) {
			store, w := agedLog(t, true)
			defer w.killAll()
			r := rigOn(t, store)
			w.store, w.o.DiskCacheDir = r.store, t.TempDir()
			require.NoError(t, w.open(t.Context()))
			var n atomic.Int64
			r.rule(func(_ context.Context, op fault.Op) fault.Plan {
				if !rangeOf(op) || n.Add(1)%5 != 0 {
					return fault.Plan{}
				}
				return b.plan(r.mem, op)
			})
			for _, read := range everyRead {
				if _, err := read(w.db, "k"); err != nil && !b.failed {
					require.ErrorIs(t, err, engine.ErrCorrupt)
				}
			}
			r.heal()
			require.Greater(t, n.Load(), int64(20))
			synctest.Wait()
			require.NoError(t, w.db.Close(t.Context()))
			require.NoError(t, w.open(t.Context()))
			require.NoError(t, w.read(t.Context()))
			var files int
			require.NoError(t, filepath.WalkDir(w.o.DiskCacheDir, func(_ string, d os.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					files++
				}
				return err
			}))
			require.Greater(t, files, 5)
			require.NotZero(t, w.db.Status().DiskCacheHits)
		})
	}
}

// TestF35BrokenReadsOfCompaction breaks each request for what compaction reads. A job that
// meets wrong bytes fails and is done again; nothing wrong gets into what it writes.
func TestF35BrokenReadsOfCompaction(t *testing.T) {
	t.Parallel()
	for name, b := range breakages {
		failure(t, name, func(t *testing.T) {
			from, aged := agedLog(t, false)
			failed := false
			n := 0
			for hit := true; hit; {
				var failures uint64
				failures, hit = aged.brokenCompaction(newAgingWitness(from.Clone()), n, b.plan)
				require.False(t, (b.failed || b.short) && failures > 0, "request %d is sent again", n)
				failed = failed || failures > 0
				// The first bytes of a table's metadata are of parts that a job does not look at:
				// no request is left out before one has mattered.
				if matters := !b.failed && !b.short; matters && !failed {
					n++
				} else {
					n = sampled(n, 2)
				}
			}
			require.Greater(t, n, 20, "jobs read more")
			require.Equal(t, !b.failed && !b.short, failed, "wrong bytes are found")
		})
	}
}

// brokenCompaction compacts a log of which request n is broken. It returns how many jobs
// failed, and whether there was such a request.
func (w *agingWork) brokenCompaction(store *witness, n int, plan func(objstore.Store, fault.Op) fault.Plan) (failures uint64, hit bool) {
	t := w.t
	var compacted atomic.Bool
	f := &agingFault{
		n:     int64(n),
		match: func(op fault.Op) bool { return rangeOf(op) && !compacted.Load() },
		plan:  func(op fault.Op) fault.Plan { return plan(store, op) },
	}
	c := newAgingWork(t, fault.New(store, f.hook))
	c.model, c.o = w.model, w.o
	c.o.DisableCompaction = false
	defer c.killAll()
	require.NoError(t, c.open(t.Context()))
	c.compacted()
	time.Sleep(10 * time.Second) // a job that failed is done again
	c.compacted()
	failures = c.db.Status().Compaction.Failures
	require.LessOrEqual(t, failures, uint64(1))
	compacted.Store(true)
	require.NoError(t, c.read(t.Context()))
	require.NoError(t, c.db.Close(t.Context()))
	require.Equal(t, uint64(len(c.model.recs)), check(t, store.Store).TableRecords)
	require.NoError(t, store.err())
	return failures, f.hit.Load()
}

// objectsOf lists the objects of a kind.
func objectsOf(t *testing.T, store objstore.Store, kind base.Kind) (names []string) {
	require.NoError(t, objstore.ListAll(t.Context(), store, base.ObjectPrefix(0, kind), "", func(e objstore.Entry) (bool, error) {
		names = append(names, e.Name)
		return true, nil
	}))
	return names
}

// TestF37MissingObjects takes away one object after the other. Reads that need it say which it is,
// at once, and all others work; it is asked for a bounded number of times.
func TestF37MissingObjects(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]base.Kind{"tables": base.KindSST, "indexes": base.KindIndex} {
		failure(t, name, func(t *testing.T) {
			store, w := agedLog(t, true)
			defer w.killAll()
			r := rigOn(t, store)
			r.witness.setStale(w.o.StaleAfter)
			w.store = r.store
			require.NoError(t, w.open(t.Context()))
			want := map[string]string{}
			for what, read := range everyRead {
				var err error
				want[what], err = read(w.db, "k")
				require.NoError(t, err)
			}
			missed := 0
			for _, name := range objectsOf(t, store, kind) {
				obj, err := store.Get(t.Context(), name, objstore.GetOptions{})
				require.NoError(t, err)
				require.NoError(t, store.Delete(t.Context(), []string{name}))
				for what, read := range everyRead {
					counter := new(fault.Counter)
					r.rule(counter.Hook)
					began := time.Now()
					got, err := read(w.db, "k")
					if err == nil {
						require.Equal(t, want[what], got)
					} else {
						missed++
						require.ErrorIs(t, err, engine.ErrCorrupt, what)
						require.True(t, errors.Is(err, objstore.ErrNotFound), what)
						require.ErrorContains(t, err, name, what)
					}
					require.Less(t, counter.Take().Get, 400, what)
					require.Less(t, time.Since(began), 5*time.Second, what)
					r.heal()
				}
				report, err := engine.Check(t.Context(), store, engine.CheckOptions{})
				require.NoError(t, err)
				require.True(t, report.Err() == nil || strings.Contains(report.Err().Error(), name))
				_, err = store.Put(t.Context(), name, obj.Body, objstore.PutOptions{IfAbsent: true})
				require.NoError(t, err)
			}
			require.Greater(t, missed, 8)
			require.NoError(t, w.read(t.Context()), "nothing was kept of it")
		})
	}
}

// TestF37MissingInputOfCompaction: the job for which an object is missing is tried again, less
// and less often; all others are done.
func TestF37MissingInputOfCompaction(t *testing.T) {
	t.Parallel()
	failure(t, "a table of each segment in turn", func(t *testing.T) {
		from, aged := agedLog(t, false)
		names := objectsOf(t, from, base.KindSST)
		for i := 0; i < len(names); i += scaled(4, 16) {
			r := rigOn(t, from.Clone())
			obj, err := r.mem.Get(t.Context(), names[i], objstore.GetOptions{})
			require.NoError(t, err)
			require.NoError(t, r.mem.Delete(t.Context(), []string{names[i]}))
			w := newAgingWork(t, r.store)
			w.model, w.o = aged.model, aged.o
			w.o.DisableCompaction = false
			defer w.killAll()
			var asked atomic.Int64
			r.rule(func(_ context.Context, op fault.Op) fault.Plan {
				if op.Name == names[i] && op.Kind == fault.Get {
					asked.Add(1)
				}
				return fault.Plan{}
			})
			require.NoError(t, w.open(t.Context()))
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Less(t, asked.Load(), int64(100), "in an hour")
			s := w.db.Status()
			require.Greater(t, s.Compaction.Failures, uint64(3))
			require.NotZero(t, s.Compaction.Jobs, "others are done")
			_, err = r.mem.Put(t.Context(), names[i], obj.Body, objstore.PutOptions{IfAbsent: true})
			require.NoError(t, err)
			time.Sleep(10 * time.Minute)
			w.compacted()
			require.NoError(t, w.read(t.Context()))
			require.NoError(t, w.db.Close(t.Context()))
			check(t, r.mem)
		}
	})
}

// TestF36DiskCacheUnderAttack: whatever becomes of the files of the disk cache, while the log is read or between two
// processes, reads are right.
func TestF36DiskCacheUnderAttack(t *testing.T) {
	attacks := map[string]func(path string) error{
		"cut short": func(path string) error { return os.Truncate(path, 20) },
		"emptied":   func(path string) error { return os.Truncate(path, 0) },
		"deleted":   os.Remove,
		"corrupted": func(path string) error {
			body, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			body[len(body)-1] ^= 1
			return os.WriteFile(path, body, 0o600)
		},
		"a folder in its place": func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		},
	}
	for name, attack := range attacks {
		failure(t, name, func(t *testing.T) {
			store, w := agedLog(t, true)
			defer w.killAll()
			w.store, w.o.DiskCacheDir = store, t.TempDir()
			require.NoError(t, w.open(t.Context()))
			for _, reopens := range []bool{false, true} {
				for _, read := range everyRead { // fills it
					_, err := read(w.db, "k")
					require.NoError(t, err)
				}
				synctest.Wait()
				hit := 0
				require.NoError(t, filepath.WalkDir(w.o.DiskCacheDir, func(path string, d os.DirEntry, err error) error {
					if err != nil || d.IsDir() || d.Name() == "LOCK" {
						return err
					}
					hit++
					return attack(path)
				}))
				require.Greater(t, hit, 5)
				if reopens {
					require.NoError(t, w.db.Close(t.Context()))
					require.NoError(t, w.open(t.Context()))
				}
				require.NoError(t, w.read(t.Context()))
			}
		})
	}
}
