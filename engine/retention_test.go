package engine

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/fault"
)

// requireHolds fails unless key k has exactly these values, by every way to read it, from
// first on.
func requireHolds(t *testing.T, db *DB, first uint64, want ...string) {
	t.Helper()
	want = append([]string{}, want...)
	require.Equal(t, first, db.FirstSequence())
	require.Equal(t, first, db.Status().First)
	require.Equal(t, want, values(t, db, "k", All(), ScanOptions{}))
	require.Equal(t, want, values(t, db, "k", All(), ScanOptions{Last: 1000}))
	require.Equal(t, want, values(t, db, "k", All(), ScanOptions{Since: time.Unix(1, 0)}))
	require.Empty(t, values(t, db, "k", Between(0, first), ScanOptions{}))
	n, err := db.Count(t.Context(), []byte("k"), All())
	require.NoError(t, err)
	require.Equal(t, uint64(len(want)), n)
	page, err := db.Keys(t.Context(), KeysOptions{})
	require.NoError(t, err)
	require.Equal(t, len(want) > 0, len(page.Keys) == 1)
	require.NoError(t, db.Wait(t.Context(), []byte("k"), Between(0, first)), "nothing is to come")
	segments, err := db.Segments(t.Context(), SegmentsOptions{})
	require.NoError(t, err)
	require.Equal(t, first, segments.Segments[0].Start)
}

func TestRetentionByTime(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention = time.Hour
		db := r.open(o)
		r.segment(db, "a", "b")
		elapse(30 * time.Minute)
		r.segment(db, "c")
		mustAppend(t, db, record("k", "d"))
		elapse(30*time.Minute - time.Second)
		requireHolds(t, db, 0, "a", "b", "c", "d")
		elapse(time.Second + DefaultRetentionInterval)
		requireHolds(t, db, 2, "c", "d") // though all of it is in memory
		require.Equal(t, uint64(1), db.Status().SegmentsDropped)
		require.Equal(t, uint64(4), db.Status().BytesDropped)

		// The active segment was sealed when it was old for the retention, small
		// as it is, and is dropped in its turn: nothing remains.
		elapse(2 * time.Hour)
		requireHolds(t, db, 4)
		require.Equal(t, 1, db.Status().Segments)
		mustAppend(t, db, record("k", "e"))
		requireHolds(t, db, 4, "e")
		next := r.open(o)
		requireHolds(t, next, 4, "e")
	})
}

// F17: whatever this machine's clocks say, nothing is dropped early, or late.
func TestF17RetentionWithClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, 365 * 24 * time.Hour, -2 * 365 * 24 * time.Hour} {
		simulated(t, func(t *testing.T, r *garbageRig) {
			o := r.options()
			o.Retention = time.Hour
			db := r.open(o)
			r.segment(db, "a")
			r.wall.Store(int64(step))
			r.segment(db, "b")
			elapse(time.Hour - time.Second)
			requireHolds(t, db, 0, "a", "b")
			elapse(time.Second + DefaultRetentionInterval)
			requireHolds(t, db, 2)
		})
	}
}

// A small segment is sealed at an eighth of the retention when no append comes, at the
// segment's interval only if it is large enough.
func TestSealForRetention(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention, o.SegmentInterval = 16*time.Hour, time.Hour
		db := r.open(o)
		mustAppend(t, db, record("k", "small"))
		elapse(2*time.Hour - time.Second)
		require.Zero(t, db.Status().Seals)
		elapse(2 * time.Second)
		require.Equal(t, uint64(1), db.Status().Seals)
		mustAppend(t, db, record("k", strings.Repeat("large", 1000)))
		elapse(time.Hour + time.Second)
		require.Equal(t, uint64(2), db.Status().Seals)
		elapse(24 * time.Hour)
		require.Equal(t, uint64(2), db.Status().Seals, "an empty segment is never sealed")
	})
}

func TestRetentionByBytes(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.SegmentBytes, o.SegmentMinBytes, o.RetentionBytes = 1000, 1000, 1000
		db := r.open(o)
		big := func(letter string) string { return strings.Repeat(letter, 299) } // and a key of one byte
		r.segment(db, big("a"))
		r.segment(db, big("b"))
		r.segment(db, big("c"))
		elapse(2 * DefaultRetentionInterval)
		requireHolds(t, db, 0, big("a"), big("b"), big("c")) // 900 bytes
		mustAppend(t, db, record("k", big("d")))
		elapse(2 * DefaultRetentionInterval)
		requireHolds(t, db, 1, big("b"), big("c"), big("d")) // not yet flushed bytes count
		require.Equal(t, uint64(300), db.Status().BytesDropped)
	})
}

// The active segment stays, whatever its size.
func TestRetentionKeepsTheActiveSegment(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.SegmentBytes, o.SegmentMinBytes, o.RetentionBytes = 1000, 1000, 1000
		db := r.open(o)
		r.segment(db, "a")
		db.opts.SegmentBytes = 1 << 30
		large := strings.Repeat("x", 5000)
		mustAppend(t, db, record("k", large))
		require.NoError(t, db.Flush(t.Context()))
		elapse(2 * DefaultRetentionInterval)
		requireHolds(t, db, 1, large)
	})
}

// mergeFirstTwo is what a compactor commits when it merges two segments.
var mergeFirstTwo = manifest.Edit{Name: "merge", Apply: func(s *manifest.State) error {
	one, two := s.Segments[0], s.Segments[1]
	one.Runs = append(one.Runs, two.Runs...)
	one.LastId, one.EndSequence, one.SealTimeMs = two.Id, two.EndSequence, two.SealTimeMs
	s.Segments = slices.Delete(s.Segments, 1, 2)
	return nil
}}

// A merged segment is as young as its youngest part.
func TestRetentionAfterAMerge(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention = time.Hour
		db := r.open(o)
		r.segment(db, "a")
		elapse(50 * time.Minute)
		r.segment(db, "b")
		_, err := db.committer.Commit(t.Context(), mergeFirstTwo)
		require.NoError(t, err)
		elapse(20 * time.Minute) // the first alone would have gone
		requireHolds(t, db, 0, "a", "b")
		elapse(40 * time.Minute)
		requireHolds(t, db, 2)
		require.Equal(t, uint64(1), db.Status().SegmentsDropped)
	})
}

// A drop that a merge overtakes drops nothing: the merged segment is looked at again.
func TestRetentionWhileAMergeCommits(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		db := r.open(o)
		r.segment(db, "a")
		elapse(time.Minute)
		r.segment(db, "b")
		r.old(o.Retention - time.Minute)
		var merged atomic.Bool
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind != fault.Put || op.Name != base.ManifestName(tree) || !merged.CompareAndSwap(false, true) {
				return fault.Plan{}
			}
			return fault.Plan{Before: func(ctx context.Context) error {
				snap, err := manifest.Load(ctx, r.witness, db.env, tree)
				require.NoError(t, err)
				_, err = manifest.CommitOne(ctx, manifest.CommitterOptions{Store: r.witness, Env: db.env, Start: snap}, mergeFirstTwo)
				return err
			}}
		})
		require.NoError(t, db.enforceRetention(t.Context()))
		require.True(t, merged.Load())
		requireHolds(t, db, 0, "a", "b")
		require.Zero(t, db.Status().SegmentsDropped+db.Status().RetentionFailures)
		elapse(time.Minute)
		require.NoError(t, db.enforceRetention(t.Context()))
		requireHolds(t, db, 2)
	})
}

// Retention that comes after a clean close does nothing, and that is no failure.
func TestRetentionAfterAClose(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		r.segment(db, "a")
		r.old(db.opts.Retention)
		require.NoError(t, db.closeCleanly(t.Context(), 1))
		require.NoError(t, db.enforceRetention(t.Context()))
		requireHolds(t, db, 0, "a")
	})
}

// A scan that a drop overtakes goes on at what remains.
func TestScanAcrossADrop(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention, o.RecentBytes, o.MemtableBytes, o.SegmentBytes = time.Hour, 1, 1<<30, 1<<30
		o.TableBytes = 64 << 20
		db := r.open(o)
		big := strings.Repeat("x", chunkBytes/2+1)
		r.segment(db, "a1"+big, "a2"+big, "a3"+big, "a4"+big) // a chunk of a table holds two
		elapse(10 * time.Minute)
		r.segment(db, "b1"+big)
		mustAppend(t, db, record("k", "c1"))
		var got []string
		it := db.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
		for rec := range it.All() {
			got = append(got, string(rec.Value[:2]))
			if len(got) == 1 {
				elapse(55 * time.Minute)
				require.Equal(t, uint64(4), db.FirstSequence())
			}
		}
		require.NoError(t, it.Err())
		require.Equal(t, []string{"a1", "a2", "b1", "c1"}, got, "the chunk that was read already, and what remains")
	})
}

// F25: a read that holds an old view goes on within the grace, and finds what remains
// after it: never an error, never short.
func TestF25DropUnderARead(t *testing.T) {
	for name, c := range map[string]struct {
		stall time.Duration
		want  []string
	}{
		"within the grace": {15 * time.Minute, []string{"a", "b"}},
		"after it":         {50 * time.Minute, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				o := r.options()
				o.Retention, o.RecentBytes = time.Hour, 1
				db := r.open(o)
				r.segment(db, "a")
				elapse(50 * time.Minute)
				r.segment(db, "b")
				held := fault.NewHeld(nil)
				caught := false
				r.rule(func(_ context.Context, op fault.Op) fault.Plan {
					if op.Kind != fault.Get || !strings.Contains(op.Name, "/sst/0000000001/") || caught {
						return fault.Plan{}
					}
					caught = true
					return fault.Plan{Held: held}
				})
				got := make(chan []string, 1)
				go func() {
					var all []string
					it := db.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
					for rec := range it.All() {
						all = append(all, string(rec.Value))
					}
					if it.Err() != nil {
						all = []string{it.Err().Error()}
					}
					got <- all
				}()
				<-held.Caught()
				elapse(c.stall)
				require.Equal(t, uint64(1), db.FirstSequence())
				_ = held.Apply(t.Context())
				require.Equal(t, c.want, <-got)
			})
		})
	}
}

// A failing store delays retention and does not end the log.
func TestRetentionOutage(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention = time.Hour
		db := r.open(o)
		r.segment(db, "a")
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.Time {
				return fault.Refuse(fault.ErrInjected)
			}
			return fault.Plan{}
		})
		elapse(3 * time.Hour)
		requireHolds(t, db, 0, "a")
		require.Greater(t, db.Status().RetentionFailures, uint64(5))
		require.Less(t, db.Status().RetentionFailures, uint64(60), "less and less often")
		r.rule(nil)
		elapse(maintenanceBackoffLimit)
		requireHolds(t, db, 1)
		require.NoError(t, db.Err())
	})
}

// The drop's answer may be lost: it is dropped once, and counted once.
func TestRetentionLostAnswer(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention = time.Hour
		db := r.open(o)
		r.segment(db, "a")
		elapse(time.Hour - time.Minute)
		lost := fault.FailNth(0, true, nil)
		r.rule(fault.On(func(op fault.Op) bool { return op.Kind == fault.Put && op.Name == base.ManifestName(tree) }, lost.Hook))
		elapse(3 * time.Minute)
		require.True(t, lost.Hit())
		requireHolds(t, db, 1)
		require.Equal(t, uint64(1), db.Status().SegmentsDropped)
	})
}

func TestRetentionOptions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(o *Options)
		want   string
	}{
		"negative":                    {func(o *Options) { o.Retention = -1 }, "Retention is"},
		"below the store's clock":     {func(o *Options) { o.Retention = time.Millisecond }, "Retention is"},
		"negative bytes":              {func(o *Options) { o.RetentionBytes = -1 }, "RetentionBytes is"},
		"interval above it":           {func(o *Options) { o.Retention, o.RetentionInterval = time.Hour, 2*time.Hour }, "RetentionInterval (2h0m0s) is above"},
		"negative interval":           {func(o *Options) { o.RetentionInterval = -1 }, "RetentionInterval is"},
		"segments older":              {func(o *Options) { o.Retention, o.SegmentInterval = time.Hour, 2*time.Hour }, "SegmentInterval (2h0m0s) is above"},
		"segments larger":             {func(o *Options) { o.RetentionBytes, o.SegmentBytes = 1000, 1001 }, "SegmentBytes (1001) is above"},
		"grace within staleness":      {func(o *Options) { o.GCGrace = o.StaleAfter + graceMargin - 1 }, "GCGrace is 5m59.999999999s; it must be at least 6m, "},
		"staleness above the default": {func(o *Options) { o.StaleAfter = 15*time.Minute + time.Second }, "GCGrace is 15m0s; it must be at least 16m1s, "},
		"no rounds":                   {func(o *Options) { o.GCInterval = -1 }, "GCInterval is"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{}.withDefaults()
			o.SegmentMinBytes, o.SegmentBytes = 1, 1000 // nothing but what the case is about is wrong
			c.change(&o)
			require.ErrorContains(t, o.Validate(), c.want)
		})
	}
	for _, o := range []Options{
		{Retention: time.Second}, {Retention: 7 * 24 * time.Hour}, {RetentionBytes: 1 << 10},
		{StaleAfter: 10 * time.Second, GCGrace: 70 * time.Second},
	} {
		require.NoError(t, o.Validate(), "the defaults follow")
	}
	require.Equal(t, 450*time.Second, Options{Retention: time.Hour}.withDefaults().SegmentInterval)
	require.Equal(t, DefaultSegmentInterval, Options{Retention: 7 * 24 * time.Hour}.withDefaults().SegmentInterval)
	require.Equal(t, int64(128), Options{RetentionBytes: 1 << 10}.withDefaults().SegmentBytes)
}
