package fuzz

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/fault"
)

// F30: limits that contradict each other are refused; any others never stop the log
// for ever.

func TestF30BadLimitsAreRefused(t *testing.T) {
	for name, o := range map[string]engine.Options{
		"MaxRuns":           {MaxRuns: -1},
		"SegmentBytes":      {SegmentBytes: -1},
		"SegmentMinBytes":   {SegmentMinBytes: 2, SegmentBytes: 1},
		"TableBytes":        {TableBytes: -1},
		"BlockBytes":        {BlockBytes: -1},
		"MaxUnflushedBytes": {MaxUnflushedBytes: 1},
		"MemtableBytes":     {MemtableBytes: -1},
	} {
		r := newRig(t)
		_, err := engine.Open(t.Context(), r.store, o)
		require.ErrorContains(t, err, name)
		require.Zero(t, r.mem.Len(), "nothing was written")
	}
	err := engine.Compact(t.Context(), newRig(t).store, engine.CompactOptions{SegmentBytes: -1, TableBytes: -1, BlockBytes: -1, Retention: -1})
	for _, name := range []string{"SegmentBytes", "TableBytes", "BlockBytes", "Retention"} {
		require.ErrorContains(t, err, name, "all faults at once")
	}
	for _, l := range []compaction.Limits{{FanIn: 1}, {FanIn: 65}, {SegmentBytes: -1}, {TableBytes: 2 << 30}, {BlockBytes: 1}} {
		require.Error(t, l.Validate())
	}
	require.Less(t, compaction.Limits{}.MaxActiveRuns(), engine.DefaultMaxRuns, "relief keeps a segment below its limit")
}

// Whatever the limit on runs, and whether somebody compacts or not, appends go on, and no
// segment has more runs than the limit.
func TestF30NoLimitOnRunsStopsTheLog(t *testing.T) {
	for _, maxRuns := range []int{1, 2, 3, 15, 16, 17} {
		for _, compacts := range []bool{false, true} {
			failure(t, fmt.Sprintf("%d runs, compacts=%v", maxRuns, compacts), func(t *testing.T) {
				r := newRig(t)
				o := options()
				o.MaxRuns, o.DisableCompaction = maxRuns, !compacts
				db := r.open(o)
				most := 0
				for i := range 3*maxRuns + 40 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, err := db.Append(ctx, batch(fmt.Sprint(i)), engine.AppendOptions{})
					require.NoError(t, err)
					require.NoError(t, db.Flush(ctx))
					cancel()
					if i%5 == 0 {
						time.Sleep(3 * time.Second) // simulated: a look of the compactor
					}
					for _, g := range db.Head().GetSegments() {
						most = max(most, len(g.GetRuns()))
					}
				}
				require.LessOrEqual(t, most, maxRuns)
				require.Zero(t, db.Status().Overloaded)
				time.Sleep(time.Minute)
				require.Len(t, read(t, db), 3*maxRuns+40)
				if compacts {
					require.Zero(t, db.Status().Compaction.Debt)
					require.Less(t, db.Status().Runs, 45, "they do not pile up: at most 15 of a size, of two sizes")
				}
			})
		}
	}
}

// While no run can be committed, appends are refused in time; then they go on.
func TestF30AppendsGoOnAfterTheStoreDoes(t *testing.T) {
	failure(t, "MANIFEST cannot be written for a while", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.MaxRuns, o.MemtableBytes = 2, 1
		db := r.open(o)
		r.rule(fault.On(putOf(manifestName), fault.Always(fault.Refuse(errNetwork))))
		var err error
		n := 0
		for ; err == nil; n++ {
			require.Less(t, n, 10, "runs that wait to be committed count")
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err = db.Append(ctx, batch(fmt.Sprint(n)), engine.AppendOptions{})
			cancel()
		}
		require.ErrorIs(t, err, engine.ErrOverloaded)
		require.Equal(t, engine.NotAppended, outcome(t, err))
		waits := start(t.Context(), db, "waits")
		require.True(t, waits.pending())
		r.heal()
		require.NoError(t, waits.wait())
		require.Equal(t, append(numbered("", n-1), "waits"), read(t, db))
	})
}
