package memtable

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/annalsdb/annals/internal/base"
)

const benchTable = 64 << 20 // bytes of heap at which a benchmark begins a new table

// sized returns the full size of a benchmark's data; with -short, when one iteration shows that the
// benchmark still works, a small one.
func sized(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// BenchmarkAddBatch adds batches of 100 records; bytes are key + value.
func BenchmarkAddBatch(b *testing.B) {
	const batch = 100
	hot := func(int, int) []byte { return []byte("0123456789abcdef") }
	fresh := func(round, i int) []byte {
		return fmt.Appendf(nil, "%016x", uint64(round*batch+i)*0x9E3779B97F4A7C15)
	}
	for _, bench := range []struct {
		name  string
		value int
		key   func(round, i int) []byte
	}{
		{"hot key/1KiB", 1024, hot}, {"hot key/100B", 100, hot},
		{"1000 keys/1KiB", 1024, func(round, i int) []byte { return fresh(round%10, i) }},
		{"new keys/100B", 100, fresh}, {"new keys/1KiB", 1024, fresh},
	} {
		b.Run(bench.name, func(b *testing.B) {
			rounds := sized(4096, 64)
			batches := make([][]base.Record, rounds)
			value := make([]byte, bench.value)
			for r := range batches {
				batches[r] = make([]base.Record, batch)
				for i := range batches[r] {
					batches[r][i] = base.Record{Key: bench.key(r, i), Value: value}
				}
			}
			b.SetBytes(int64(batch * (16 + bench.value)))
			b.ReportAllocs()
			table, n := New(), 0
			for b.Loop() {
				if table.Bytes() > benchTable || n == rounds {
					table, n = New(), 0
				}
				table.AddBatch(uint64(n*batch), 0, batches[n])
				n++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/record")
		})
	}
}

// spread makes a table of keys with perKey records each, not adjacent.
func spread(keys, perKey, valueBytes int) (*Table, [][]byte) {
	table, names := New(), make([][]byte, keys)
	recs := manyKeys(0, keys, valueBytes)
	for i := range recs {
		names[i] = recs[i].Key
	}
	for round := range perKey {
		for i := 0; i < keys; i += 1000 {
			table.AddBatch(uint64(round*keys+i), 0, recs[i:i+1000])
		}
	}
	return table, names
}

// BenchmarkScan reads ten records of one key among a million: of keys at
// random, whose memory is in no cache (ten records of one key lie in four
// places), and of 1,000 keys that are.
func BenchmarkScan(b *testing.B) {
	table, keys := spread(sized(1_000_000, 10_000), 10, 10)
	dst := make([]base.Record, 0, 10)
	run := func(keys [][]byte) func(b *testing.B) {
		return func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if got := table.Scan(dst, keys[i%len(keys)], base.All(), 10, 1<<20); len(got) != 10 {
					b.Fatal(len(got))
				}
			}
		}
	}
	// Not the order of arrival, but not cold in the benchmark's own memory.
	cold := make([][]byte, sized(300_000, 3000))
	for i, j := range rand.Perm(len(keys))[:len(cold)] {
		cold[i] = bytes.Clone(keys[j])
	}
	b.Run("live/cold", run(cold))
	b.Run("live/warm", run(cold[:1000]))
	table.Freeze()
	b.Run("frozen/cold", run(cold))
	b.Run("frozen/warm", run(cold[:1000]))
}

// BenchmarkScanHot seeks in a key with four million records and reads ten.
func BenchmarkScanHot(b *testing.B) {
	records := uint64(sized(4_000_000, 40_000))
	table := New()
	recs := make([]base.Record, 1000)
	for i := uint64(0); i < records; i += uint64(len(recs)) {
		table.AddBatch(i, 0, recs)
	}
	dst := make([]base.Record, 0, 10)
	b.Run("anywhere", func(b *testing.B) {
		i := uint64(0)
		for b.Loop() {
			i += 0x9E3779B97F4A7C15
			table.Scan(dst, nil, base.Range{Start: i % records, End: base.MaxSequence}, 10, 1<<20)
		}
	})
	b.Run("tip", func(b *testing.B) {
		for b.Loop() {
			table.Scan(dst, nil, base.Range{Start: records - 5, End: base.MaxSequence}, 10, 1<<20)
		}
	})
}

// BenchmarkKeysFrom lists 1,000 keys of a million: of a table that does not
// change, and with 100 new keys before each listing.
func BenchmarkKeysFrom(b *testing.B) {
	table, keys := spread(sized(1_000_000, 10_000), 1, 10)
	began := time.Now()
	table.KeysFrom(nil, nil, base.All(), 1)
	first := time.Since(began)
	dst := make([][]byte, 0, 1000)
	list := func(i int) { table.KeysFrom(dst, keys[i%len(keys)], base.All(), 1000) }
	b.Run("quiet", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			list(i)
		}
		b.ReportMetric(float64(first.Milliseconds()), "ms/first")
	})
	b.Run("with adds", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			recs := manyKeys(int(table.LastSequence())+1, 100, 10)
			b.StartTimer()
			table.AddBatch(table.LastSequence()+1, 0, recs)
			list(i)
		}
	})
}

// BenchmarkAll iterates over a frozen table of 300,000 keys with 100 bytes:
// what a flush of 64 MiB does, once its keys are sorted.
func BenchmarkAll(b *testing.B) {
	table, keys := spread(sized(300_000, 3000), 1, 100)
	table.Freeze()
	table.KeysFrom(nil, nil, base.All(), 1) // sorts
	b.SetBytes(table.DataBytes())
	for b.Loop() {
		n, sum := 0, byte(0)
		for r := range table.All() {
			sum += r.Value[0]
			n++
		}
		if n != len(keys) || sum != 0 {
			b.Fatal(n, sum)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/record")
}
