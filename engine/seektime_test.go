package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/fault"
)

// Wherever records lie - in groups, segments or memory, at the writer or at a replica - all below the sequence that a time
// gives are older than it, and it is as near to the first one that is not as the manifest says, for one GET at most.
func TestSeekTime(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		db := r.open(o)
		r.grouped(db, time.Minute, 1, 3, 2)
		for range 2 {
			r.segment(db, "old in a segment")
			elapse(time.Minute)
		}
		var gets atomic.Int64
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.Get {
				gets.Add(1)
			}
			return fault.Plan{}
		})
		check := func(log LogReader, name string) {
			var recs []Record
			for rec := range log.Scan(t.Context(), []byte("k"), All(), ScanOptions{}).All() {
				recs = append(recs, rec)
			}
			for i, rec := range recs {
				for _, at := range []time.Time{millis(rec.Timestamp), millis(rec.Timestamp).Add(time.Nanosecond), millis(rec.Timestamp + 1)} {
					newer := i // the first record that is not before at
					if at.After(millis(rec.Timestamp)) {
						newer++
					}
					gets.Store(0)
					seq, err := log.SeekTime(t.Context(), at)
					require.NoError(t, err)
					if newer < len(recs) {
						require.LessOrEqual(t, seq, recs[newer].Sequence, "%s at record %d", name, i)
					}
					if newer > 0 {
						require.GreaterOrEqual(t, seq, recs[newer-1].Sequence, "%s at record %d", name, i)
					}
					require.LessOrEqual(t, gets.Load(), int64(1))
				}
			}
			seq, err := log.SeekTime(t.Context(), millis(0))
			require.NoError(t, err)
			require.Equal(t, log.FirstSequence(), seq)
			seq, err = log.SeekTime(t.Context(), time.Now().Add(time.Hour))
			require.NoError(t, err)
			require.Greater(t, seq, recs[len(recs)-1].Sequence, "nothing is to be looked at")
			require.LessOrEqual(t, seq, log.Frontier())
		}
		check(db, "with memories of what was flushed")
		db.crash()
		db = r.open(o)
		require.Len(t, db.view.Load().groups, 3)
		check(db, "from the store")
		mustAppend(t, db, record("k", "in memory"))
		elapse(time.Minute)
		mustAppend(t, db, record("k", "in memory, later"))
		check(db, "with a memory")
		replica, err := OpenReader(t.Context(), r.store, ReaderOptions{Env: o.Env})
		require.NoError(t, err)
		elapse(time.Minute)
		check(replica, "replica")
		require.NoError(t, replica.Close(t.Context()))
		_, err = replica.SeekTime(t.Context(), time.Now())
		require.ErrorIs(t, err, ErrClosed)
	})
}

// Records that are not readable yet may be lost: no time leads behind them.
func TestSeekTimeStaysWithinTheFrontier(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		mustAppend(t, db, record("k", "durable"))
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.Put {
				return fault.Refuse(fault.ErrInjected)
			}
			return fault.Plan{}
		})
		_, err := db.Append(t.Context(), []Record{record("k", "in memory alone")}, AppendOptions{Ack: Memory})
		require.NoError(t, err)
		require.Equal(t, uint64(2), db.Status().Next)
		seq, err := db.SeekTime(t.Context(), time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, uint64(1), seq)
		r.rule(nil)
	})
}

// A time within a millisecond is behind its start, in whatever year.
func TestAtOrAfter(t *testing.T) {
	for _, ms := range []int64{-1, 0, 1, 1_700_000_000_000, 253_402_300_799_999} {
		at := time.UnixMilli(ms)
		require.Equal(t, ms, atOrAfter(at))
		require.Equal(t, ms+1, atOrAfter(at.Add(1)))
		require.Equal(t, ms, atOrAfter(at.Add(-1)))
	}
}
