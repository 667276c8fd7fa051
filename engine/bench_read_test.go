package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/annalsdb/annals/objstore/mem"
)

// benchLog is a log of 10 runs over 100 keys in which one key has hotRecords records of 100 bytes,
// opened with nothing in memory and all of it in the cache ("tables"), or with the same records in memory only ("memory").
func benchLog(b *testing.B, where string) (db *DB, hot []byte) {
	const runs, keys = 10, 100
	store, hot := mem.New(mem.Options{}), benchKey(0)
	// Timestamps and sealing do not matter; no background work is wanted while the benchmark runs.
	o := Options{FlushInterval: time.Millisecond, DisableCompaction: true, GCInterval: time.Hour}
	db, err := Open(b.Context(), store, o)
	if err != nil {
		b.Fatal(err)
	}
	value := halfRandom(rand.New(rand.NewPCG(4, 4)), 100)
	for range runs {
		var recs []Record
		for i := range hotRecords() / runs {
			recs = append(recs, Record{Key: hot, Value: value}, Record{Key: benchKey(1 + i%keys), Value: value})
		}
		for part := range slices.Chunk(recs, 1000) {
			if _, err := db.Append(b.Context(), part, AppendOptions{Ack: Memory}); err != nil {
				b.Fatal(err)
			}
		}
		if where == "tables" {
			if err := db.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	if where == "tables" { // what was just flushed is still in memory: leave it behind
		if err := db.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		if db, err = Open(b.Context(), store, o); err != nil {
			b.Fatal(err)
		}
	} else if err := db.WaitDurable(b.Context(), 2*uint64(hotRecords())-1); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close(context.Background()) })
	readHot(b, db, hot, hotRecords()) // warms the cache
	return db, hot
}

func hotRecords() int { return sized(100_000, 10_000) }

// readHot reads a key from a log's start and checks how much it is.
func readHot(b *testing.B, db *DB, key []byte, limit int) {
	n, bytes := 0, 0
	it := db.Scan(b.Context(), key, All(), ScanOptions{Limit: limit})
	for r := range it.All() {
		n, bytes = n+1, bytes+len(r.Value)
	}
	if n != limit || bytes != 100*limit || it.Err() != nil {
		b.Fatal(n, bytes, it.Err())
	}
}

// BenchmarkScanWarm reads the first records of a key, from memory and from cached blocks of tables.
func BenchmarkScanWarm(b *testing.B) {
	for _, where := range []string{"memory", "tables"} {
		db, hot := benchLog(b, where)
		for _, limit := range []int{1, 10, 1000, hotRecords()} {
			b.Run(fmt.Sprintf("%s/records=%d", where, limit), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(limit * 100))
				count := newAllocations()
				for b.Loop() {
					readHot(b, db, hot, limit)
				}
				count.report(b, b.N*limit)
			})
		}
	}
}

// BenchmarkCount counts the same key: of memory, and of ten tables whose metadata is in the cache.
func BenchmarkCount(b *testing.B) {
	for _, where := range []string{"memory", "tables"} {
		b.Run(where, func(b *testing.B) {
			db, hot := benchLog(b, where)
			b.ReportAllocs()
			for b.Loop() {
				if n, err := db.Count(b.Context(), hot, All()); n != uint64(hotRecords()) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// BenchmarkFollowWake appends a record and waits until its follower has it: the whole way through a writer
// whose store answers at once. The append's own answer comes at about the same time; nobody waits for it. Of the time a
// part is Options.FlushInterval, which is as short as it can be.
func BenchmarkFollowWake(b *testing.B) {
	db, err := Open(b.Context(), mem.New(mem.Options{}), Options{FlushInterval: 1, DisableCompaction: true, GCInterval: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(context.Background())
	key := benchKey(7)
	f, err := db.Follow(b.Context(), Stream{Key: key})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	recs := []Record{{Key: key, Value: make([]byte, 100)}}
	var took []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		if _, err := db.Append(b.Context(), recs, AppendOptions{Ack: Memory}); err != nil {
			b.Fatal(err)
		}
		if got, err := f.Next(FollowRead{}); len(got) != 1 || err != nil {
			b.Fatal(len(got), err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "µs/p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "µs/p99")
}
