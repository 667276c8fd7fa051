package engine

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/manifest"
)

// randomLayout makes a log of random shape: groups of segments, with and without base masks, segments
// with one run and with several, memtables that lie above the runs or partly over them.
func randomLayout(t testing.TB, rnd *rand.Rand) *layout {
	l := newLayout(t)
	l.perTable = 1 + rnd.IntN(40)
	l.blockBytes = 64 + rnd.IntN(2000)
	prefix := strings.Repeat("p", rnd.IntN(2)*40) // longer than the bounds in the manifest
	distinct := 1 + rnd.IntN(30)
	recs := func() []Record {
		return l.records(1+rnd.IntN(40), func(int) (string, string) {
			return fmt.Sprint(prefix, rnd.IntN(distinct)), strings.Repeat("v", rnd.IntN(200))
		})
	}
	l.shapeIndex = func(b *manifest.IndexBuilder) {
		if rnd.IntN(3) == 0 {
			first := manifest.KeyHash(rnd.Uint64() >> 24)
			b.AddBase(first, first+(1<<40-1-first)/2, 1)
		}
	}
	for range rnd.IntN(60) {
		l.segment(true, recs())
	}
	for n := len(l.state.Segments); n > 0 && rnd.IntN(10) > 0; {
		k := min(n, 1+rnd.IntN(20))
		l.group(k)
		n -= k
	}
	for range rnd.IntN(4) {
		runs := make([][]Record, 1+rnd.IntN(5))
		for i := range runs {
			runs[i] = recs()
		}
		l.segment(true, runs...)
	}
	active := make([][]Record, rnd.IntN(4))
	for i := range active {
		active[i] = recs()
	}
	l.segment(false, active...)
	l.state.Segments[len(l.state.Segments)-1].FirstSequence = l.state.FlushedEnd
	if len(active) > 0 {
		l.state.Segments[len(l.state.Segments)-1].FirstSequence = active[0][0].Sequence
	}
	if n := len(active); n > 0 && rnd.IntN(2) == 0 {
		// A flushed memtable that is kept for the tip.
		l.memory(active[n-1])
		l.memories[0].start = active[n-1][0].Sequence
		l.memories[0].end = l.state.FlushedEnd
	}
	for range 1 + rnd.IntN(3) {
		l.memory(recs())
	}
	return l
}

// Whatever the layout, the cache and the options, reads return what the log holds.
func TestReadsOfAnyLayout(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			l := randomLayout(t, rnd)
			cache := int64(1) << rnd.IntN(25)
			c := l.open(l.store, cache)
			if groups := l.state.Groups; len(groups) > 0 && rnd.IntN(2) == 0 {
				last := groups[len(groups)-1].LastSegment
				l.trim(1 + rnd.Uint32N(last))
				c.publish(l.view())
			}
			checkReads(t, rnd, l, c)
			require.Zero(t, c.tables.ahead.taken.Load(), "nothing is held any more")
		})
	}
}

func checkReads(t *testing.T, rnd *rand.Rand, l *layout, c *core) {
	all := c.FirstSequence()
	held := slices.DeleteFunc(slices.Clone(l.all), func(r Record) bool { return r.Sequence < all })
	keys := map[string]bool{"absent": true}
	for range 15 {
		keys[string(l.all[rnd.IntN(len(l.all))].Key)] = true
	}
	end := uint64(len(l.all))
	for key := range keys {
		for range 4 {
			r := Range{Start: rnd.Uint64N(end + 1), End: end}
			switch rnd.IntN(3) {
			case 0:
				r = All()
			case 1:
				r.End = r.Start + rnd.Uint64N(end+1)
			}
			checkScan(t, rnd, c, held, key, r)
			n, err := c.Count(t.Context(), []byte(key), r)
			require.NoError(t, err)
			require.EqualValues(t, len(ofKey(held, key, r, 0)), n)
		}
	}
	for range 10 {
		checkKeys(t, rnd, l, c, held)
		checkSegments(t, rnd, l, c)
	}
}

// ofKey returns the records of a key in a range from a time on.
func ofKey(recs []Record, key string, r Range, since int64) []Record {
	var out []Record
	for _, rec := range recs {
		if string(rec.Key) == key && r.Start <= rec.Sequence && rec.Sequence < r.End && rec.Timestamp >= since {
			out = append(out, rec)
		}
	}
	return out
}

func checkScan(t *testing.T, rnd *rand.Rand, c *core, held []Record, key string, r Range) {
	var o ScanOptions
	since := int64(0)
	if rnd.IntN(3) == 0 {
		since = held[rnd.IntN(len(held))].Timestamp + rnd.Int64N(3) - 1
		o.Since = time.UnixMilli(since)
	}
	want := ofKey(held, key, r, since)
	switch rnd.IntN(4) {
	case 0:
		o.Limit = 1 + rnd.IntN(20)
		want = want[:min(len(want), o.Limit)]
	case 1:
		o.Last = 1 + rnd.IntN(20)
		want = want[len(want)-min(len(want), o.Last):]
	case 2:
		o.MaxBytes = 1 + rnd.Int64N(3000)
		size := int64(0)
		for i := range want {
			if size += int64(len(want[i].Value)); size > o.MaxBytes && i > 0 {
				want = want[:i]
				break
			}
		}
	}
	it := c.Scan(t.Context(), []byte(key), r, o)
	var got []Record
	leave := rnd.IntN(10)
	for done := false; !done; leave = 1 << 30 { // the loop may be left and gone on with
		done = true
		for rec := range it.All() {
			got = append(got, rec)
			if leave--; leave == 0 {
				done = false
				break
			}
		}
	}
	require.NoError(t, it.Err())
	requireSame(t, want, got, "key %q in %v with %+v", key, r, o)
}

func checkKeys(t *testing.T, rnd *rand.Rand, l *layout, c *core, held []Record) {
	o := KeysOptions{Limit: 1 + rnd.IntN(40)}
	if rnd.IntN(2) == 0 {
		o.Prefix = held[rnd.IntN(len(held))].Key
		o.Prefix = o.Prefix[:rnd.IntN(len(o.Prefix)+1)]
	}
	if rnd.IntN(2) == 0 {
		o.StartSegment = rnd.Uint32N(l.id + 2)
	}
	if rnd.IntN(2) == 0 {
		o.EndSegment = o.StartSegment + rnd.Uint32N(20)
	}
	segmentOf := func(seq uint64) uint32 {
		id := uint32(1)
		for ; id < l.id && seq >= l.full[id].EndSequence; id++ {
		}
		return id
	}
	want := map[string]bool{}
	for _, r := range held {
		if bytes.HasPrefix(r.Key, o.Prefix) && o.wants(segmentOf(r.Sequence), segmentOf(r.Sequence)) {
			want[string(r.Key)] = true
		}
	}
	got := []string{}
	for {
		page, err := c.Keys(t.Context(), o)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Keys), o.Limit)
		for _, k := range page.Keys {
			got = append(got, string(k))
			o.After = append([]byte{}, k...)
		}
		if !page.More {
			break
		}
		require.NotEmpty(t, page.Keys)
	}
	require.Equal(t, sortedKeys(want), append([]string(nil), got...), "%+v", o)
}

func checkSegments(t *testing.T, rnd *rand.Rand, l *layout, c *core) {
	o := SegmentsOptions{Limit: 1 + rnd.IntN(30), After: rnd.Uint32N(l.id + 1)}
	if rnd.IntN(2) == 0 {
		o.Range.Start = rnd.Uint64N(uint64(len(l.all)) + 1)
		o.Range.End = o.Range.Start + 1 + rnd.Uint64N(uint64(len(l.all))+1)
	}
	first := c.FirstSequence()
	var want []uint32
	for id := o.After + 1; id <= l.id; id++ {
		s := l.full[id]
		if s.FirstSequence < first && s.Sealed {
			continue
		}
		window := Between(s.FirstSequence, s.EndSequence)
		if !s.Sealed {
			window.End = 1<<64 - 1
		}
		if o.Range == (Range{}) || window.Overlaps(o.Range) {
			want = append(want, id)
		}
	}
	var got []uint32
	for more := true; more; {
		page, err := c.Segments(context.Background(), o)
		require.NoError(t, err)
		for _, info := range page.Segments {
			got = append(got, info.ID)
			o.After = info.LastID
			s := l.full[info.ID]
			require.Equal(t, s.Sealed, info.Sealed)
			if info.Sealed {
				require.Equal(t, SegmentInfo{
					ID: s.Id, LastID: s.Last(), Start: s.FirstSequence, End: s.EndSequence, Sealed: true,
					Started: millis(s.StartTimeMs), SealedAt: millis(s.SealTimeMs), Runs: len(s.Runs),
					Records: s.EndSequence - s.FirstSequence, Bytes: sizeOf(l.all[s.FirstSequence:s.EndSequence]),
				}, info)
			}
		}
		more = page.More
		require.Equal(t, more, len(page.Segments) == o.Limit && len(got) < len(want))
	}
	require.Equal(t, want, got, "%+v", o)
}

func sizeOf(recs []Record) (n uint64) {
	for i := range recs {
		n += uint64(recs[i].Size())
	}
	return n
}
