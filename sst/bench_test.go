package sst

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// benchKey spreads n numbers over keys that do not sort by number.
func benchKey(i int) []byte {
	return fmt.Appendf(nil, "user/%016x", uint64(i)*0x9E3779B97F4A7C15)
}

// sized returns the full size of a benchmark's data; with -short, when one iteration shows that the
// benchmark still works, a small one.
func sized(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

func benchRecords(n, keys, size int) []base.Record {
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([][]byte, 256)
	for i := range values {
		values[i] = halfRandom(rng, size)
	}
	return stream(n, func(i int) []byte { return benchKey(i % keys) }, func(i int) []byte { return values[i%len(values)] })
}

func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct{ size, keys int }{{1024, 1000}, {100, 1000}, {100, 100_000}} {
		recs := benchRecords(sized(16<<20, 1<<20)/c.size, c.keys, c.size)
		for _, compression := range []Compression{Dense, Fast} {
			b.Run(fmt.Sprintf("value=%d/keys=%d/fast=%v", c.size, c.keys, compression == Fast), func(b *testing.B) {
				var buf []byte
				var info Info
				for b.Loop() {
					buf, info = write(WriterOptions{Compression: compression, Buffer: buf}, recs)
				}
				b.SetBytes(int64(info.Properties.Bytes))
				b.ReportMetric(float64(info.Properties.Bytes)/float64(info.Size), "ratio")
				b.ReportMetric(float64(info.Size-info.MetaOffset)/float64(info.Properties.Keys), "meta-B/key")
			})
		}
	}
}

func benchReader(b *testing.B, size, keys, n int) (*Reader, []base.Record) {
	recs := benchRecords(n, keys, size)
	body, info := write(WriterOptions{}, recs)
	r, _ := open(b, body, info, newMapCache())
	for i := range recs { // fill the cache
		collect(b, r.Scan(recs[i].Key, base.Range{Start: recs[i].Sequence, End: recs[i].Sequence + 1}, Hint{}))
	}
	return r, recs
}

// BenchmarkScanWarm reads 10 records of one key from cached blocks.
func BenchmarkScanWarm(b *testing.B) {
	for _, c := range []struct {
		size, keys int
		backward   bool
	}{{1024, 1000, false}, {100, 1000, false}, {10, 1000, false}, {10, 10, false}, {1024, 1000, true}, {10, 10, true}} {
		b.Run(fmt.Sprintf("value=%d/keys=%d/backward=%v", c.size, c.keys, c.backward), func(b *testing.B) {
			r, recs := benchReader(b, c.size, c.keys, sized(40_000, 4000))
			ctx := context.Background()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				rec := &recs[i*7919%len(recs)]
				rng := base.Range{Start: rec.Sequence, End: base.MaxSequence}
				it := r.Scan(rec.Key, rng, Hint{Records: 10})
				if c.backward {
					it = r.ScanBackward(rec.Key, base.Range{End: rec.Sequence + 1}, Hint{Records: 10})
				}
				for range 10 {
					_, ok, err := it.Next(ctx)
					if err != nil {
						b.Fatal(err)
					}
					if !ok {
						break
					}
				}
			}
		})
	}
}

// BenchmarkScanCold decodes every block: nothing is cached but the file.
func BenchmarkScanCold(b *testing.B) {
	recs := benchRecords(16<<10, 1, 1024)
	body, info := write(WriterOptions{}, recs)
	r, _ := open(b, body, info, nil)
	b.SetBytes(int64(info.Properties.Bytes))
	b.ReportAllocs()
	for b.Loop() {
		require.Len(b, collect(b, r.Scan(recs[0].Key, base.All(), Hint{})), len(recs))
	}
}

func BenchmarkAll(b *testing.B) {
	recs := benchRecords(sized(160<<10, 16<<10), 10_000, 100)
	body, info := write(WriterOptions{}, recs)
	r, _ := open(b, body, info, nil)
	b.SetBytes(int64(info.Properties.Bytes))
	b.ReportAllocs()
	for b.Loop() {
		it := r.All(0)
		for {
			_, ok, err := it.Next(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			if !ok {
				break
			}
		}
	}
}

func BenchmarkCountWarm(b *testing.B) {
	r, recs := benchReader(b, 100, 100, sized(40_000, 4000))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		rec := &recs[i*7919%len(recs)]
		if _, err := r.Count(context.Background(), rec.Key, base.Range{Start: rec.Sequence, End: base.MaxSequence}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSeekTimestampWarm(b *testing.B) {
	r, recs := benchReader(b, 100, 100, sized(40_000, 4000))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		rec := &recs[i*7919%len(recs)]
		if _, _, err := r.SeekTimestamp(context.Background(), rec.Key, base.All(), rec.Timestamp); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMayContainWarm(b *testing.B) {
	r, recs := benchReader(b, 10, sized(40_000, 4000), sized(40_000, 4000))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := r.MayContain(context.Background(), recs[i*7919%len(recs)].Key); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKeys(b *testing.B) {
	r, recs := benchReader(b, 10, sized(40_000, 4000), sized(40_000, 4000))
	b.ReportAllocs()
	for b.Loop() {
		it := r.Keys(nil)
		n := 0
		for {
			_, ok, err := it.Next(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			if !ok {
				break
			}
			n++
		}
		require.Equal(b, len(recs), n)
	}
}

func BenchmarkParseBlock(b *testing.B) {
	for _, size := range []int{10, 100, 1024} {
		b.Run(fmt.Sprintf("value=%d", size), func(b *testing.B) {
			var w blockBuilder
			value := make([]byte, size)
			for i := 0; w.size() < DefaultBlockBytes; i++ {
				key := binary.BigEndian.AppendUint64(nil, uint64(i/10))
				w.add(i%10 == 0, key, uint64(i), int64(i), value)
			}
			data := w.finish()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, reason := parseBlock(data); reason != "" {
					b.Fatal(reason)
				}
			}
		})
	}
}
