package engine

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/fault"
)

// grouped appends segments of one record each, minutes apart, and moves all of them to groups
// of the given sizes.
func (r *garbageRig) grouped(db *DB, every time.Duration, sizes ...int) (values []string) {
	r.t.Helper()
	r.takeCompactor(db)
	for _, n := range sizes {
		for range n {
			v := fmt.Sprint("value ", len(values))
			values = append(values, v)
			r.segment(db, v)
			elapse(every)
		}
		r.group(db, n)
	}
	return values
}

// requests returns what was counted, but for bytes.
func requests(c *fault.Counter) fault.Counts {
	n := c.Take()
	n.BytesPut, n.BytesGot = 0, 0
	return n
}

func segmentsOfGroups(s *manifest.State) (n int) {
	for _, g := range s.GetGroups() {
		n += int(g.GetSegments())
	}
	return n
}

// Segments in groups go one by one when their time has come, whichever group they are in, and are
// counted one by one.
func TestRetentionOfGroups(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention = 24 * time.Hour
		db := r.open(o)
		values := r.grouped(db, 20*time.Minute, 3, 1, 4, 2)
		mustAppend(t, db, record("k", "last"))
		values = append(values, "last")
		requireHolds(t, db, 0, values...)
		elapse(20*time.Hour + 40*time.Minute) // the first one was sealed a day ago, but for a second
		elapse(DefaultRetentionInterval)
		for i := range 10 {
			require.Equal(t, uint64(i+1), db.Status().SegmentsDropped)
			require.Equal(t, 10-i-1, segmentsOfGroups(db.Head()))
			requireHolds(t, db, uint64(i+1), values[i+1:]...)
			if i == 4 { // what is left of a group is regrouped like any other
				r.regroup(db, 0, 2)
				requireHolds(t, db, uint64(i+1), values[i+1:]...)
			}
			elapse(20 * time.Minute)
		}
		require.Empty(t, db.Head().GetGroups())
		require.Equal(t, uint64(10*len("kvalue 0")), db.Status().BytesDropped)
		require.Zero(t, db.Status().RetentionFailures)
	})
}

// Groups that are too old as a whole go without a look at their indexes; nothing is read where nothing is
// to be dropped.
func TestRetentionReadsNoIndexInVain(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		values := r.grouped(db, time.Minute, 4, 4)
		var counter fault.Counter
		look := func() fault.Counts {
			r.rule(func(ctx context.Context, op fault.Op) fault.Plan {
				if op.Name == base.ManifestName(tree) && op.Kind == fault.Get {
					return fault.Plan{} // the poll
				}
				return counter.Hook(ctx, op)
			})
			counter.Take()
			require.NoError(t, db.enforceRetention(t.Context()))
			return requests(&counter)
		}
		require.Equal(t, fault.Counts{Time: 1}, look())
		r.old(db.opts.Retention - 5*time.Minute) // the last of the first group is due
		require.Equal(t, fault.Counts{Time: 1, Put: 1}, look())
		requireHolds(t, db, 4, values[4:]...)
		elapse(2 * time.Minute)
		require.Equal(t, fault.Counts{Time: 1, Get: 1, Put: 1}, look(), "the tail of the index of the second group")
		requireHolds(t, db, 6, values[6:]...)
		require.Equal(t, uint64(6), db.Status().SegmentsDropped)
		require.Equal(t, fault.Counts{Time: 1}, look(), "what is left is too young")
	})
}

// A merged segment in a group is as young as its youngest part, and counts once.
func TestRetentionOfMergedSegmentsInGroups(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention = 24 * time.Hour
		db := r.open(o)
		r.takeCompactor(db)
		for i := range 4 {
			r.segment(db, fmt.Sprint(i))
			elapse(time.Hour)
		}
		job := groupJob(nil, nil)
		job.Kind, job.First, job.Last = 3, 1, 3
		for _, s := range db.Head().GetSegments()[:3] {
			job.Inputs = append(job.Inputs, s.GetRuns()...)
			job.Records += s.GetRuns()[0].GetTables()[0].GetRecords()
		}
		r.do(db, job)
		require.Equal(t, uint32(3), db.Head().GetSegments()[0].Last())
		r.group(db, 2)
		elapse(21*time.Hour + 30*time.Minute) // the first two are too old
		requireHolds(t, db, 0, "0", "1", "2", "3")
		elapse(time.Hour)
		requireHolds(t, db, 3, "3")
		require.Equal(t, uint64(1), db.Status().SegmentsDropped)
		require.Equal(t, uint32(4), db.Head().GetGroups()[0].GetFirstSegment())
		afterGrace(t, db)
		mustCollect(t, db)
		r.requireClean()
	})
}

func TestRetentionOfGroupsByBytes(t *testing.T) {
	big := func(i int) string { return strings.Repeat(string(rune('a'+i)), 299) } // and a key of one byte
	for _, c := range []struct {
		limit   int64
		dropped int
		reads   int // of indexes
	}{
		{limit: 3000, dropped: 0},
		{limit: 2999, dropped: 1, reads: 1},
		{limit: 2400, dropped: 2, reads: 1},
		{limit: 1800, dropped: 4, reads: 1}, // the group's bytes alone would be just enough
		{limit: 1799, dropped: 5, reads: 1},
		{limit: 300, dropped: 9},
	} {
		simulated(t, func(t *testing.T, r *garbageRig) {
			o := r.manualOptions()
			o.Retention, o.RetentionInterval = 0, 1000*time.Hour
			o.SegmentBytes, o.SegmentMinBytes, o.RetentionBytes = 300, 300, c.limit
			db := r.open(o)
			db.opts.SegmentBytes = 1 << 20 // the test seals
			r.takeCompactor(db)
			var values []string
			for i := range 8 {
				values = append(values, big(i))
				r.segment(db, big(i))
				if i%4 == 3 {
					r.group(db, 4)
				}
			}
			r.segment(db, big(8))
			mustAppend(t, db, record("k", big(9)))
			values = append(values, big(8), big(9))
			var counter fault.Counter
			r.rule(fault.On(func(op fault.Op) bool { return strings.HasSuffix(op.Name, ".idx") }, counter.Hook))
			require.NoError(t, db.enforceRetention(t.Context()))
			require.Equal(t, fault.Counts{Get: c.reads}, requests(&counter), "limit %d", c.limit)
			requireHolds(t, db, uint64(c.dropped), values[c.dropped:]...)
			require.Equal(t, uint64(c.dropped), db.Status().SegmentsDropped)
			require.Equal(t, uint64(300*c.dropped), db.Status().BytesDropped)
		})
	}
}

// A drop that a regrouping overtakes drops nothing of what it planned, but plans again at once.
func TestRetentionWhileARegroupingCommits(t *testing.T) {
	for name, c := range map[string]struct {
		age  time.Duration // of the first segment, beyond the retention
		want int           // segments dropped
	}{
		"part of a group":            {2 * time.Minute, 3},
		"a whole group":              {4 * time.Minute, 5},
		"a whole group and a part":   {6 * time.Minute, 7},
		"everything that is grouped": {20 * time.Minute, 8},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				db := r.open(r.manualOptions())
				values := r.grouped(db, time.Minute, 5, 3)
				res := r.build(db, groupJob(db.Head().GetGroups(), nil))
				var done atomic.Bool
				r.rule(func(_ context.Context, op fault.Op) fault.Plan {
					if op.Kind != fault.Put || op.Name != base.ManifestName(tree) || !done.CompareAndSwap(false, true) {
						return fault.Plan{}
					}
					return fault.Plan{Before: func(context.Context) error {
						r.elsewhere(db, res.Edit)
						return nil
					}}
				})
				r.old(db.opts.Retention - 8*time.Minute + c.age)
				require.NoError(t, db.enforceRetention(t.Context()))
				require.True(t, done.Load())
				requireHolds(t, db, uint64(c.want), values[c.want:]...)
				require.Equal(t, uint64(c.want), db.Status().SegmentsDropped)
				require.Equal(t, uint64(c.want*len("kvalue 0")), db.Status().BytesDropped)
				require.Zero(t, db.Status().RetentionFailures)
				afterGrace(t, db)
				mustCollect(t, db)
				r.requireClean()
				requireHolds(t, db, uint64(c.want), values[c.want:]...)
			})
		})
	}
}

// An index that cannot be read delays what is to be dropped of its group, and nothing else.
func TestRetentionWithADamagedIndex(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		values := r.grouped(db, time.Minute, 2, 4)
		index := db.Head().GetGroups()[1].GetIndex().ID().Name()
		body := r.damage(index, 1)
		r.old(db.opts.Retention - 3*time.Minute)
		err := db.enforceRetention(t.Context())
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "segments to drop among 3 to 6")
		require.Equal(t, uint64(2), db.FirstSequence(), "the group before it")
		require.Equal(t, uint64(1), db.Status().RetentionFailures)

		require.NoError(t, r.witness.Store.Delete(t.Context(), []string{index}))
		err = db.enforceRetention(t.Context())
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "names an object that is not there")

		r.mend(index, body)
		require.NoError(t, db.enforceRetention(t.Context()))
		requireHolds(t, db, 4, values[4:]...)
		require.Equal(t, uint64(4), db.Status().SegmentsDropped)
	})
}
