package sst

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// drawRecords makes a table's worth of records: empty keys, long keys that
// share prefixes, hot keys over many blocks, gaps in sequences and timestamps.
func drawRecords(t *rapid.T) []base.Record {
	seed := rapid.Uint64().Draw(t, "seed")
	rng := rand.New(rand.NewPCG(seed, 1))
	prefixes := [][]byte{nil, []byte("user/"), bytes.Repeat([]byte{0xFF}, 4080), bytes.Repeat([]byte("p"), 4090)}
	var keys [][]byte
	for range rapid.IntRange(1, 60).Draw(t, "keys") {
		keys = append(keys, append(slices.Clone(prefixes[rng.IntN(len(prefixes))]), random(rng, rng.IntN(5))...))
	}
	hot := rapid.IntRange(0, 90).Draw(t, "hot")
	maxValue := rapid.SampledFrom([]int{0, 1, 20, 300, 5000}).Draw(t, "value")
	n := rapid.IntRange(1, 500).Draw(t, "records")
	recs := make([]base.Record, n)
	seq, ts := uint64(rng.IntN(5)), rng.Int64N(2000)-1000
	for i := range recs {
		key := keys[0]
		if rng.IntN(100) >= hot {
			key = keys[rng.IntN(len(keys))]
		}
		recs[i] = base.Record{Key: key, Value: halfRandom(rng, rng.IntN(maxValue+1)), Sequence: seq, Timestamp: ts}
		seq += 1 + uint64(rng.IntN(3)*rng.IntN(1000))
		ts += int64(rng.IntN(3) * rng.IntN(50))
	}
	sortRecords(recs)
	return recs
}

// TestProperty compares everything that a Reader answers with a sorted slice.
func TestProperty(t *testing.T) { rapid.Check(t, property) }

func property(t *rapid.T) {
	recs := drawRecords(t)
	body, info := write(WriterOptions{
		Segment:        7,
		BlockBytes:     rapid.SampledFrom([]int{1, 100, 1000, 32 << 10}).Draw(t, "block"),
		PartitionBytes: rapid.SampledFrom([]int{1, 20, 200, 64 << 10}).Draw(t, "partition"),
		Compression:    rapid.SampledFrom([]Compression{Dense, Fast}).Draw(t, "compression"),
	}, recs)
	opts, _ := readerOptions(body, info)
	opts.ReadAhead = rapid.SampledFrom([]int64{1, 1000, 0}).Draw(t, "ahead")
	opts.Cache = rapid.SampledFrom([]Cache{nil, newMapCache(), newLossyCache(1)}).Draw(t, "cache")
	ctx := context.Background()
	r, err := Open(ctx, opts)
	require.NoError(t, err)
	if rapid.Bool().Draw(t, "no tail") {
		// As if the metadata were too large to come with the root.
		root := *r.root
		root.tail, root.tailOffset = nil, info.Size
		r.root = &root
	}
	require.NoError(t, r.Verify(ctx, nil))
	require.True(t, ptr(r.Properties()).equal(ptr(info.Properties)))
	requireRecords(t, recs, collect(t, r.All(opts.ReadAhead)))
	checkKeys(t, r, recs)
	for range 20 {
		checkKey(t, r, recs, drawKey(t, recs), drawRange(t, recs))
	}
}

func ptr[T any](v T) *T { return &v }

func drawKey(t *rapid.T, recs []base.Record) []byte {
	key := recs[rapid.IntRange(0, len(recs)-1).Draw(t, "key of")].Key
	switch rapid.IntRange(0, 5).Draw(t, "other key") {
	case 0:
		return append(bytes.Clone(key), byte(rapid.IntRange(0, 255).Draw(t, "suffix")))
	case 1:
		return key[:len(key)/2]
	}
	return key
}

func drawRange(t *rapid.T, recs []base.Record) base.Range {
	bound := func(name string) uint64 {
		switch rapid.IntRange(0, 4).Draw(t, name) {
		case 0:
			return 0
		case 1:
			return base.MaxSequence
		}
		s := recs[rapid.IntRange(0, len(recs)-1).Draw(t, name+" of")].Sequence
		return s + uint64(rapid.IntRange(0, 1).Draw(t, name+" after"))
	}
	return base.Range{Start: bound("start"), End: bound("end")}
}

func checkKey(t *rapid.T, r *Reader, recs []base.Record, key []byte, rng base.Range) {
	ctx := context.Background()
	want := ofKey(recs, key, rng)
	hint := Hint{Records: rapid.IntRange(0, 5).Draw(t, "hint"), Bytes: int64(rapid.IntRange(0, 100).Draw(t, "hint bytes"))}
	requireRecords(t, want, collect(t, r.Scan(key, rng, hint)))
	back := collect(t, r.ScanBackward(key, rng, hint))
	slices.Reverse(back)
	requireRecords(t, want, back)
	n, err := r.Count(ctx, key, rng)
	require.NoError(t, err)
	require.Equal(t, uint64(len(want)), n)
	may, err := r.MayContain(ctx, key)
	require.NoError(t, err)
	require.True(t, may || len(want) == 0)

	ts := rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64,
		recs[rapid.IntRange(0, len(recs)-1).Draw(t, "time of")].Timestamp + int64(rapid.IntRange(-1, 1).Draw(t, "time"))}).Draw(t, "ts")
	seq, ok, err := r.SeekTimestamp(ctx, key, rng, ts)
	require.NoError(t, err)
	i := slices.IndexFunc(want, func(r base.Record) bool { return r.Timestamp >= ts })
	require.Equal(t, i >= 0, ok)
	if ok {
		require.Equal(t, want[i].Sequence, seq)
	}
}

func checkKeys(t *rapid.T, r *Reader, recs []base.Record) {
	ctx := context.Background()
	start := drawKey(t, recs)
	var want []KeyInfo
	for _, rec := range recs {
		if bytes.Compare(rec.Key, start) < 0 {
			continue
		}
		if n := len(want); n > 0 && bytes.Equal(want[n-1].Key, rec.Key) {
			want[n-1].LastSequence = rec.Sequence
			want[n-1].Count++
			continue
		}
		want = append(want, KeyInfo{Key: rec.Key, FirstSequence: rec.Sequence, LastSequence: rec.Sequence, Count: 1})
	}
	var got []KeyInfo
	for it := r.Keys(start); ; {
		k, ok, err := it.Next(ctx)
		require.NoError(t, err)
		if !ok {
			break
		}
		got = append(got, k)
	}
	require.Equal(t, len(want), len(got))
	for i := range want {
		require.True(t, bytes.Equal(want[i].Key, got[i].Key))
		want[i].Key, got[i].Key = nil, nil
		require.Equal(t, want[i], got[i])
	}
	info, ok, err := r.Key(ctx, start)
	require.NoError(t, err)
	all := ofKey(recs, start, base.All())
	require.Equal(t, len(all) > 0, ok)
	if ok {
		require.Equal(t, uint64(len(all)), info.Count)
		require.Equal(t, all[len(all)-1].Sequence, info.LastSequence)
	}
}
