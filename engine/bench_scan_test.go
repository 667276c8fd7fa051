package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/annalsdb/annals/objstore/mem"
)

// BenchmarkHotScan reads 10 records of one key, again and again, in logs that
// hold equal bytes in 1,000 and in 1,000,000 keys; warm: all blocks that it
// needs are in the cache.
func BenchmarkHotScan(b *testing.B) {
	for _, keys := range []int{1000, sized(1_000_000, 10_000)} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) { benchmarkHotScan(b, keys) })
	}
}

// benchKey is a 16-byte key.
func benchKey(i int) []byte { return fmt.Appendf(nil, "key-%012d", i) }

func benchmarkHotScan(b *testing.B, keys int) {
	records := sized(2_000_000, 20_000)
	db, err := Open(b.Context(), mem.New(mem.Options{}), Options{FlushInterval: 2 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	hot := benchKey(keys / 2)
	fillKeys(b, db, keys, records, hot)
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		n := 0
		it := db.Scan(b.Context(), hot, All(), ScanOptions{Limit: 10})
		for range it.All() {
			n++
		}
		if n != 10 || it.Err() != nil {
			b.Fatal(n, it.Err())
		}
	}
}

// fillKeys appends records of 100 bytes over the keys, 10 of them at the start
// to one, and flushes.
func fillKeys(b *testing.B, db *DB, keys, records int, hot []byte) {
	rnd := rand.New(rand.NewPCG(7, 7))
	value := halfRandom(rnd, 100)
	var recs []Record
	for range 10 {
		recs = append(recs, Record{Key: hot, Value: value})
	}
	for i := 0; i < records; i += len(recs) {
		if _, err := db.Append(b.Context(), recs, AppendOptions{Ack: Memory}); err != nil {
			b.Fatal(err)
		}
		recs = recs[:0]
		for j := range 1000 {
			recs = append(recs, Record{Key: benchKey((i + j) % keys), Value: value})
		}
	}
	if err := db.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
}
