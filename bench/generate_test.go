package bench

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestKeys(t *testing.T) {
	for _, number := range []uint64{0, 7, 10, 123_456, MaxKeys - 1} {
		key := AppendKey([]byte("x"), number)
		require.Equal(t, fmt.Sprintf("xkey-%012d", number), string(key))
		require.Len(t, key, 1+KeySize)
	}
}

func TestKeyDistributions(t *testing.T) {
	const keys, picks = 100, 100_000
	count := func(d KeyDistribution) []int {
		p := NewKeyPicker(KeyOptions{Keys: keys, Distribution: d}, rand.New(rand.NewPCG(1, 2)))
		counts := make([]int, keys)
		for n := range uint64(picks) {
			counts[p.Pick(n)]++
		}
		return counts
	}
	for i, n := range count(SequentialKeys) {
		require.Equal(t, picks/keys, n, i)
	}
	for i, n := range count(UniformKeys) {
		require.InDelta(t, picks/keys, n, picks/keys/4, i)
	}
	zipf := count(ZipfKeys)
	require.Greater(t, zipf[0], 10*picks/keys, "the first key has most")
	require.Greater(t, zipf[0], zipf[9])
	require.Greater(t, zipf[9], zipf[99])
}

func TestSizesOfValues(t *testing.T) {
	for _, sizes := range []Sizes{FixedSizes, UniformSizes, LognormalSizes} {
		rnd := rand.New(rand.NewPCG(1, 2))
		v := NewValues(ValueOptions{Size: 1000, Sizes: sizes, Compress: 2}, rnd)
		sum, differ := 0, map[int]bool{}
		const draws = 20_000
		for range draws {
			size := v.Size(rnd)
			require.True(t, size >= 1 && size <= v.MaxSize())
			require.Len(t, v.Bytes(rnd, size), size)
			sum += size
			differ[size] = true
		}
		require.InDelta(t, 1000, sum/draws, 40, sizes)
		require.Equal(t, sizes == FixedSizes, len(differ) == 1)
	}
}

func TestValuesCompressAsAsked(t *testing.T) {
	for _, test := range []struct {
		size     int
		compress float64
	}{{1024, 1}, {1024, 2}, {1024, 4}, {100, 2}, {10_000, 2}} {
		rnd := rand.New(rand.NewPCG(1, 2))
		v := NewValues(ValueOptions{Size: test.size, Compress: test.compress}, rnd)
		var all []byte
		for len(all) < 1<<20 {
			all = append(all, v.Next(rnd)...)
		}
		var packed bytes.Buffer
		w, err := flate.NewWriter(&packed, flate.BestSpeed)
		require.NoError(t, err)
		_, err = io.Copy(w, bytes.NewReader(all))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.InEpsilon(t, test.compress, float64(len(all))/float64(packed.Len()), 0.15, test)
	}
}

// What the n-th batch holds depends on the seed, the stream and n, not on who makes it, nor on what it made before.
func TestBatchesAreTheSeeds(t *testing.T) {
	o := BatchOptions{KeyOptions{Keys: 1000, Distribution: ZipfKeys}, ValueOptions{Size: 200, Sizes: LognormalSizes, Compress: 2}, 7}
	make1 := func(seed, stream, n uint64, first ...uint64) string {
		m := (&Run{o: Options{Seed: seed}}).Batches(stream, o).Maker()
		for _, n := range first {
			m.Make(n)
		}
		recs, size := m.Make(n)
		require.Len(t, recs, 7)
		var sum int64
		var text []byte
		for _, rec := range recs {
			sum += int64(rec.Size())
			text = fmt.Appendf(text, "%s=%x\n", rec.Key, rec.Value)
		}
		require.Equal(t, sum, size)
		return string(text)
	}
	want := make1(1, 1, 5)
	require.Equal(t, want, make1(1, 1, 5, 9, 3, 4))
	require.NotEqual(t, want, make1(1, 1, 6))
	require.NotEqual(t, want, make1(2, 1, 5))
	require.NotEqual(t, want, make1(1, 2, 5))
}

func TestMakingBatchesAllocatesNothing(t *testing.T) {
	o := BatchOptions{KeyOptions{Keys: 1000, Distribution: ZipfKeys}, ValueOptions{Size: 200, Sizes: LognormalSizes, Compress: 2}, 100}
	m := testRun().Batches(1, o).Maker()
	n := uint64(0)
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Make(n); n++ }))
}

func TestFaultsOfOptions(t *testing.T) {
	good := small()
	require.Empty(t, NewIngest(good).Faults())
	bad := IngestOptions{BatchOptions: BatchOptions{Records: 0, ValueOptions: ValueOptions{Size: 0, Compress: 0.5}}}
	require.Len(t, NewIngest(bad).Faults(), 5, "all at once")
	bad = good
	bad.Records, bad.Size = MaxBatch, MaxValueSize
	require.Len(t, NewIngest(bad).Faults(), 1)
	bad = good
	bad.Appenders, bad.InFlight = 1000, 1<<30
	require.Len(t, NewIngest(bad).Faults(), 1)
	bad.Appenders = 16
	require.Empty(t, NewIngest(bad).Faults(), "small appends are bounded by their number")
}

func TestSchedules(t *testing.T) {
	for _, arrivals := range []Arrivals{Poisson, Uniform} {
		s := NewSchedule(1000, arrivals, rand.New(rand.NewPCG(1, 2)))
		again := NewSchedule(1000, arrivals, rand.New(rand.NewPCG(1, 2)))
		require.InDelta(t, 1000, s.Rate(), 1e-9)
		var last time.Duration
		gaps := map[time.Duration]bool{}
		for range 50_000 {
			at := s.Next()
			require.GreaterOrEqual(t, at, last)
			require.Equal(t, at, again.Next(), "the seed decides")
			gaps[(at - last).Round(time.Microsecond)] = true
			last = at
		}
		require.InDelta(t, 50, last.Seconds(), 1)
		require.Equal(t, arrivals == Uniform, len(gaps) == 1)
	}
}

func BenchmarkMakeBatch(b *testing.B) {
	o := BatchOptions{KeyOptions{Keys: 100_000}, ValueOptions{Size: 1024, Compress: 2}, 100}
	m := testRun().Batches(1, o).Maker()
	b.ReportAllocs()
	b.SetBytes(o.Bytes())
	n := uint64(0)
	for b.Loop() {
		m.Make(n)
		n++
	}
}
