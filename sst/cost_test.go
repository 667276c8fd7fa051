package sst

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// TestCostSmall: a table whose metadata has at most 256 KiB costs one read to
// open, then data reads only, whatever the cache does.
func TestCostSmall(t *testing.T) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(1, 1))
	recs := stream(4000, func(i int) []byte { return benchKey(i % 200) }, func(int) []byte { return random(rng, 500) })
	body, info := write(WriterOptions{}, recs)
	require.Less(t, info.Size-info.MetaOffset, int64(wholeMetadata))
	for _, cache := range []Cache{nil, newLossyCache(1)} {
		r, src := open(t, body, info, cache)
		require.Equal(t, [][2]int64{{info.MetaOffset, info.Size - info.MetaOffset}}, src.reads)
		src.take(info.MetaOffset)
		for i := range 200 {
			key := benchKey(i)
			requireRecords(t, ofKey(recs, key, base.All()), collect(t, r.Scan(key, base.All(), Hint{})))
			meta, data := src.take(info.MetaOffset)
			require.Zero(t, meta)
			require.LessOrEqual(t, data, 1)
			n, err := r.Count(ctx, key, base.All())
			require.NoError(t, err)
			require.Equal(t, uint64(20), n)
			info, ok, err := r.Key(ctx, key)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, uint64(20), info.Count)
		}
		it := r.Keys(nil)
		for range 200 {
			_, ok, err := it.Next(ctx)
			require.NoError(t, err)
			require.True(t, ok)
		}
		meta, data := src.take(info.MetaOffset)
		require.Zero(t, meta+data, "counts and listings need no read")
	}
}

// TestCostWarm: with everything cached there is no read at all.
func TestCostWarm(t *testing.T) {
	ctx := context.Background()
	recs := stream(5000, func(i int) []byte { return benchKey(i % 50) }, func(int) []byte { return make([]byte, 300) })
	body, info := write(WriterOptions{}, recs)
	cache := newMapCache()
	for round := range 2 {
		r, src := open(t, body, info, cache)
		for i := range 50 {
			key := benchKey(i)
			require.Len(t, collect(t, r.Scan(key, base.All(), Hint{})), 100)
			require.Len(t, collect(t, r.ScanBackward(key, base.All(), Hint{})), 100)
			_, err := r.Count(ctx, key, base.Range{Start: 1000, End: 3000})
			require.NoError(t, err)
		}
		if round == 1 {
			require.Empty(t, src.reads)
		}
	}
}

func largeTable(t *testing.T) ([]base.Record, []byte, Info) {
	recs := stream(150_000, benchKey, func(int) []byte { return []byte("0123456789") })
	body, info := write(WriterOptions{}, recs)
	require.Greater(t, info.Size-info.MetaOffset, int64(wholeMetadata))
	r, _ := open(t, body, info, nil)
	require.Greater(t, r.root.filter.n, 1)
	require.Less(t, info.Size-footerSize-r.root.rootOffset, int64(tailBytes))
	return recs, body, info
}

// TestCostLarge: a key costs at most three metadata reads, cold, and one read
// of data; an absent key costs no data.
func TestCostLarge(t *testing.T) {
	ctx := context.Background()
	recs, body, info := largeTable(t)
	worst := 0
	for i := 0; i < len(recs); i += 3001 {
		r, src := open(t, body, info, nil)
		require.Len(t, collect(t, r.Scan(recs[i].Key, base.All(), Hint{})), 1)
		meta, data := src.take(info.MetaOffset)
		require.LessOrEqual(t, meta, 3)
		require.Equal(t, 1, data)
		worst = max(worst, meta)

		r, src = open(t, body, info, nil)
		n, err := r.Count(ctx, recs[i].Key, base.All())
		require.NoError(t, err)
		require.Equal(t, uint64(1), n)
		meta, data = src.take(info.MetaOffset)
		require.LessOrEqual(t, meta, 3)
		require.Zero(t, data)
	}
	require.Equal(t, 3, worst, "the test reaches the worst case")

	passed := 0
	r, src := open(t, body, info, newMapCache())
	for i := range 2000 {
		key := fmt.Appendf(nil, "%s?", recs[i*50].Key)
		may, err := r.MayContain(ctx, key)
		require.NoError(t, err)
		require.Empty(t, collect(t, r.Scan(key, base.All(), Hint{})))
		meta, data := src.take(info.MetaOffset)
		if may {
			passed++
			continue
		}
		require.Zero(t, data)
		require.LessOrEqual(t, meta, 2)
	}
	require.Less(t, passed, 60)
}

// TestCostKeysLarge: a listing reads ahead, more and more.
func TestCostKeysLarge(t *testing.T) {
	recs, body, info := largeTable(t)
	r, src := open(t, body, info, nil)
	src.take(info.MetaOffset)
	it := r.Keys(nil)
	for range recs {
		_, ok, err := it.Next(context.Background())
		require.NoError(t, err)
		require.True(t, ok)
	}
	for _, read := range src.reads {
		require.LessOrEqual(t, read[1], r.opts.ReadAhead)
	}
	meta, data := src.take(info.MetaOffset)
	require.Zero(t, data)
	require.LessOrEqual(t, meta, 8)
	require.Greater(t, r.root.directory.n, 2*meta, "far fewer reads than partitions")
}

func hotTable(size, n int) ([]base.Record, []byte, Info) {
	rng := rand.New(rand.NewPCG(3, 3))
	recs := stream(n, func(i int) []byte { return []byte([]string{"cold", "hot", "warm"}[min(i%10, 2)]) }, func(int) []byte { return random(rng, size) })
	body, info := write(WriterOptions{}, recs)
	return recs, body, info
}

// TestCostScan: a result of 1 MiB comes with one read; a hint keeps a short
// scan from fetching much, in both directions.
func TestCostScan(t *testing.T) {
	recs, body, info := hotTable(1000, 12_000)
	warm := ofKey(recs, []byte("warm"), base.All())
	mib := (1 << 20) / 1004
	cases := []struct {
		name     string
		skip, n  int
		hint     Hint
		maxBytes int64
	}{
		{"1 MiB", 777, mib, Hint{}, 2 << 20},
		{"1 MiB hinted", 3000, mib, Hint{Records: mib, Bytes: 1 << 20}, 2 << 20},
		{"10 records", 500, 10, Hint{Records: 10}, 100 << 10},
		{"20 KB", 500, 20, Hint{Bytes: 20_000}, 100 << 10},
		{"1 record", 4000, 1, Hint{Records: 1}, 70 << 10},
	}
	for _, c := range cases {
		for _, backward := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/backward=%v", c.name, backward), func(t *testing.T) {
				r, src := open(t, body, info, nil)
				src.take(info.MetaOffset)
				want := warm[c.skip : c.skip+c.n]
				rng := base.Range{Start: want[0].Sequence, End: want[c.n-1].Sequence + 1}
				if c.hint != (Hint{}) {
					// Hints matter when the range is open.
					rng = base.Range{Start: want[0].Sequence, End: base.MaxSequence}
					if backward {
						rng = base.Range{End: want[c.n-1].Sequence + 1}
					}
				}
				it := r.Scan([]byte("warm"), rng, c.hint)
				if backward {
					it = r.ScanBackward([]byte("warm"), rng, c.hint)
				}
				var got []base.Record
				for range c.n {
					rec, ok, err := it.Next(context.Background())
					require.NoError(t, err)
					require.True(t, ok)
					got = append(got, rec)
				}
				if backward {
					slices.Reverse(got)
				}
				requireRecords(t, want, got)
				require.Len(t, src.reads, 1)
				require.LessOrEqual(t, src.reads[0][1], c.maxBytes)
			})
		}
	}
}

// TestCostCount: no data for a range that covers the key, at most two blocks
// otherwise, in one read if they are neighbours.
func TestCostCount(t *testing.T) {
	ctx := context.Background()
	recs, body, info := hotTable(1000, 12_000)
	warm := ofKey(recs, []byte("warm"), base.All())
	last := len(warm) - 1
	for _, c := range []struct{ from, to, reads int }{
		{0, last + 1, 0}, {500, last + 1, 1}, {0, 7000, 1}, {500, 7000, 2}, {4001, 4003, 1}, {4000, 4030, 1}, {4000, 4045, 1},
	} {
		r, src := open(t, body, info, nil)
		src.take(info.MetaOffset)
		rng := base.All()
		if c.from > 0 {
			rng.Start = warm[c.from].Sequence
		}
		if c.to <= last {
			rng.End = warm[c.to].Sequence
		}
		n, err := r.Count(ctx, []byte("warm"), rng)
		require.NoError(t, err)
		require.Equal(t, uint64(c.to-c.from), n)
		var size int64
		for _, read := range src.reads {
			size += read[1]
		}
		_, data := src.take(info.MetaOffset)
		require.LessOrEqual(t, data, c.reads)
		require.LessOrEqual(t, size, int64(2*(DefaultBlockBytes+200)))
	}
}

// TestCostAll: a whole read takes few reads, each bounded, in ascending order.
func TestCostAll(t *testing.T) {
	recs, body, info := hotTable(1000, 3000)
	r, src := open(t, body, info, newMapCache())
	src.take(info.MetaOffset)
	requireRecords(t, recs, collect(t, r.All(256<<10)))
	next := int64(0)
	for _, read := range src.reads {
		require.Equal(t, next, read[0])
		require.LessOrEqual(t, read[1], int64(256<<10))
		next = read[0] + read[1]
	}
	require.Equal(t, info.MetaOffset, next)
	require.LessOrEqual(t, len(src.reads), int(info.MetaOffset/(200<<10))+1)
}

// TestFilterRate: about one absent key in a hundred passes.
func TestFilterRate(t *testing.T) {
	recs := stream(100_000, benchKey, func(int) []byte { return nil })
	body, info := write(WriterOptions{}, recs)
	r, _ := open(t, body, info, newMapCache())
	passed, tried := 0, 100_000
	for i := range tried {
		may, err := r.MayContain(context.Background(), benchKey(1_000_000+i))
		require.NoError(t, err)
		if may {
			passed++
		}
	}
	rate := float64(passed) / float64(tried)
	require.InDelta(t, 0.0082, rate, 0.003)
}
