package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// agingOptions make a segment of every few records, and of every segment a group.
func agingOptions() Options {
	o := simulatedOptions()
	o.SegmentBytes, o.SegmentMinBytes, o.RecentBytes = 1<<10, 1, 1
	return o
}

// A log of many segments ends in few groups, by the work of its own compactor; a key that one segment holds
// costs one request a group and those for its records.
func TestCostInALogThatAged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		db := openTest(t, store, agingOptions())
		const segments = 200
		for i := range segments {
			mustAppend(t, db, record("common", strings.Repeat("v", 2000)), record(fmt.Sprint("own", i), "v"))
			if i%50 == 0 {
				time.Sleep(time.Second)
			}
		}
		require.NoError(t, db.Flush(t.Context()))
		time.Sleep(20 * time.Minute)
		s := db.Status()
		require.GreaterOrEqual(t, s.Segments, segments)
		require.LessOrEqual(t, s.Groups, segments/64+14)
		require.GreaterOrEqual(t, s.Groups, segments/64)
		require.LessOrEqual(t, len(db.Head().GetSegments()), 8, "the others are in groups")
		require.NoError(t, db.Close(t.Context()))

		o := agingOptions()
		o.DisableCompaction = true // it would go on at once
		db = openTest(t, store, o)
		s = db.Status()
		for _, i := range []int{0, 77, 199} {
			for _, o := range []ScanOptions{{}, {Last: 10}} {
				before := db.Status().TableReads
				require.Equal(t, []string{"v"}, values(t, db, fmt.Sprint("own", i), All(), o))
				require.LessOrEqual(t, db.Status().TableReads-before, uint64(s.Groups+4))
				before = db.Status().TableReads
				require.Equal(t, []string{"v"}, values(t, db, fmt.Sprint("own", i), All(), o))
				require.Equal(t, before, db.Status().TableReads, "warm")
			}
		}
		require.Len(t, values(t, db, "common", All(), ScanOptions{}), segments)
		infos, err := db.Segments(t.Context(), SegmentsOptions{})
		require.NoError(t, err)
		require.Len(t, infos.Segments, s.Segments)
		for i := 1; i < len(infos.Segments); i++ {
			require.Equal(t, infos.Segments[i-1].End, infos.Segments[i].Start)
		}
	})
}

// Readers of a log that is written, compacted, grouped, trimmed and collected under them see each record
// that is not dropped, once and in order.
func TestReadersOfALogThatAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := agingOptions()
		o.CacheBytes = 64 << 10
		o.StaleAfter, o.GCGrace = 10*time.Second, 10*time.Second+graceMargin
		o.RetentionBytes, o.RetentionInterval = 60<<10, 7*time.Second
		db := openTest(t, newStore(), o)
		var mu sync.Mutex
		var m model
		known := func(key string, r Range) []Record {
			mu.Lock()
			defer mu.Unlock()
			return slices.DeleteFunc(slices.Clone(m.byKey[key]), func(rec Record) bool {
				return rec.Sequence < r.Start || rec.Sequence >= r.End
			})
		}
		done := make(chan struct{})
		var readers sync.WaitGroup
		for seed := range uint64(3) {
			readers.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, 77))
				for {
					select {
					case <-done:
						return
					case <-time.After(time.Duration(rnd.IntN(3000)) * time.Millisecond):
					}
					key := fmt.Sprint("k", rnd.IntN(5))
					frontier := db.Frontier()
					so := ScanOptions{}
					if rnd.IntN(2) == 0 {
						so.Last = 1 << 30
					}
					it := db.Scan(t.Context(), []byte(key), Between(0, frontier), so)
					var got []Record
					for rec := range it.All() {
						got = append(got, rec)
						if rnd.IntN(100) == 0 {
							time.Sleep(time.Second)
						}
					}
					if it.Err() != nil {
						t.Error(it.Err())
						return
					}
					first := db.FirstSequence()
					kept := known(key, Between(first, frontier))
					got = slices.DeleteFunc(got, func(r Record) bool { return r.Sequence < first })
					if !slices.Equal(sequences(kept), sequences(got)) {
						t.Errorf("key %s from %d to %d: have %v, want %v", key, first, frontier, sequences(got), sequences(kept))
						return
					}
				}
			})
		}
		rnd := rand.New(rand.NewPCG(5, 77))
		for range 180 {
			var recs []Record
			for range 1 + rnd.IntN(10) {
				recs = append(recs, record(fmt.Sprint("k", rnd.IntN(5)), strings.Repeat("v", rnd.IntN(400))))
			}
			mu.Lock()
			m.add(mustAppend(t, db, recs...), recs)
			mu.Unlock()
			time.Sleep(2 * time.Second)
		}
		close(done)
		readers.Wait()
		s := db.Status()
		require.NotZero(t, s.SegmentsDropped)
		require.NotZero(t, s.Groups)
		require.NotZero(t, s.Collected.Obsolete)
	})
}
