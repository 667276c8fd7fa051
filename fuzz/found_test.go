package fuzz

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// What the random histories and the sweeps found, each as small as it gets.

func TestTakeoverWhileTheOldWriterFlushes(t *testing.T) {
	for _, seals := range []bool{false, true} {
		failure(t, map[bool]string{false: "the flush lands between the look at MANIFEST and the opening commit", true: "it seals too"}[seals], func(t *testing.T) {
			r := newRig(t)
			o := options()
			if seals {
				o.SegmentBytes = 1
			}
			old := r.open(o)
			mustAppend(t, old, "a")
			if seals {
				mustAppend(t, old, "b") // seals the segment behind a
			}
			want := read(t, old)
			flush := sync.OnceValue(func() error { return old.Flush(context.Background()) })
			r.rule(func(_ context.Context, op fault.Op) fault.Plan {
				if op.Kind != fault.Put || !strings.Contains(op.Name, "/probe/") {
					return fault.Plan{}
				}
				return fault.Plan{Before: func(context.Context) error { return flush() }}
			})
			next := r.open(o)
			require.Equal(t, want, read(t, next))
			mustAppend(t, next, "c")
			require.NoError(t, next.Flush(t.Context()))
			require.Equal(t, append(want, "c"), read(t, next))
		})
	}
}

func TestLastSinceLooksAtEveryTableOfARun(t *testing.T) {
	failure(t, "a table of other keys that is older does not end the scan", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.TableBytes, o.RecentBytes = 1, 1 // a table a record
		db := r.open(o)
		_, err := db.Append(t.Context(), []engine.Record{{Key: []byte("z")}}, engine.AppendOptions{})
		require.NoError(t, err)
		time.Sleep(time.Second) // simulated: z's table is older than k's
		res := mustAppend(t, db, "a")
		require.NoError(t, db.Flush(t.Context()))
		require.Len(t, db.Head().GetSegments()[0].GetRuns()[0].GetTables(), 2)
		for _, last := range []int{0, 1} {
			it := db.Scan(t.Context(), []byte("k"), engine.All(), engine.ScanOptions{Last: last, Since: time.UnixMilli(res.Timestamp)})
			recs, err := collect(it)
			require.NoError(t, err)
			require.Len(t, recs, 1, "last=%d", last)
		}
	})
}

func TestCloseWaitsForASealByTheClock(t *testing.T) {
	failure(t, "the mark of a clean close does not overtake it", func(t *testing.T) {
		for range 20 {
			r := newRig(t)
			o := options()
			o.SegmentInterval, o.SegmentMinBytes = time.Second, 1
			db := r.open(o)
			mustAppend(t, db, "a")
			require.NoError(t, db.Flush(t.Context()))
			clock := r.hold(func(op fault.Op) bool { return op.Kind == fault.Time }, nil)
			time.Sleep(2 * time.Second) // simulated: the segment is old enough
			<-clock.Caught()
			mark := r.hold(putOf(manifestName), nil)
			closed := make(chan error, 1)
			go func() { closed <- db.Close(t.Context()) }()
			synctest.Wait()
			require.NoError(t, clock.Apply(t.Context()))
			<-mark.Caught()
			synctest.Wait()
			require.NoError(t, mark.Apply(t.Context()))
			require.NoError(t, <-closed)
			require.NoError(t, db.Err(), "a DB that was closed cleanly has not failed")
		}
	})
}

func TestLastTakesEmptyValuesAtMaxBytes(t *testing.T) {
	failure(t, "a value of no bytes never exceeds MaxBytes", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.RecentBytes = 1
		db := r.open(o)
		mustAppend(t, db, "", "12345678")
		for _, where := range []string{"memory", "table"} {
			for _, last := range []int{0, 2} {
				recs, err := collect(db.Scan(t.Context(), []byte("k"), engine.All(), engine.ScanOptions{Last: last, MaxBytes: 8}))
				require.NoError(t, err)
				require.Len(t, recs, 2, "%s, last=%d", where, last)
			}
			require.NoError(t, db.Flush(t.Context()))
		}
	})
}

func TestObjectsThatAreTooShortAreDamage(t *testing.T) {
	for name, kind := range map[string]base.Kind{"tables": base.KindSST, "indexes": base.KindIndex} {
		failure(t, name, func(t *testing.T) {
			store, w := agedLog(t, true)
			defer w.killAll()
			hit := 0
			for _, name := range objectsOf(t, store, kind) {
				for _, left := range []int{0, 1, 100} {
					cut := store.Clone()
					obj, err := cut.Get(t.Context(), name, objstore.GetOptions{})
					require.NoError(t, err)
					require.NoError(t, cut.Delete(t.Context(), []string{name}))
					_, err = cut.Put(t.Context(), name, obj.Body[:left], objstore.PutOptions{})
					require.NoError(t, err)
					report, err := engine.Check(t.Context(), cut, engine.CheckOptions{})
					require.NoError(t, err, "it can look")
					require.NoError(t, w.openOn(t.Context(), cut))
					_, err = everyRead["scan"](w.db, "k")
					kill(w.db)
					if err != nil { // the scan needs it
						hit++
						require.ErrorIs(t, err, engine.ErrCorrupt)
						require.ErrorContains(t, err, name)
						require.ErrorContains(t, report.Err(), name)
					}
				}
			}
			require.Greater(t, hit, 5)
		})
	}
}
