package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annalsdb/annals/objstore/mem"
)

// allocations counts what the process allocates while a benchmark's records pass.
type allocations struct{ before runtime.MemStats }

func newAllocations() *allocations {
	a := &allocations{}
	runtime.ReadMemStats(&a.before)
	return a
}

// report adds the allocations of a record, those of all goroutines, and its time.
func (a *allocations) report(b *testing.B, records int) {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	b.ReportMetric(float64(now.Mallocs-a.before.Mallocs)/float64(records), "allocs/record")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
}

// BenchmarkAppend appends records of 100 bytes in batches from 64 goroutines, each of which waits for its
// last append. Of 1 record to a batch the time is that of an object of the WAL for all of them. The records are made
// beforehand: all allocations are the engine's, flushes included.
func BenchmarkAppend(b *testing.B) {
	for _, ack := range []Durability{Durable, Memory} {
		for _, batch := range []int{1, 10, 100} {
			name := map[Durability]string{Durable: "durable", Memory: "memory"}[ack]
			b.Run(fmt.Sprintf("%s/batch=%d", name, batch), func(b *testing.B) { benchmarkAppend(b, ack, batch) })
		}
	}
}

func benchmarkAppend(b *testing.B, ack Durability, batch int) {
	const appenders, keys = 64, 10_000
	db, err := Open(b.Context(), mem.New(mem.Options{}), Options{FlushInterval: time.Millisecond, DisableCompaction: true})
	if err != nil {
		b.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(3, 3))
	value := halfRandom(rnd, 100)
	batches := make([][]Record, 1024)
	for i := range batches {
		batches[i] = make([]Record, batch)
		for j := range batches[i] {
			batches[i][j] = Record{Key: benchKey(rnd.IntN(keys)), Value: value}
		}
	}
	b.SetBytes(int64(batch * (len(value) + 16)))
	b.ReportAllocs()
	b.SetParallelism((appenders + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	var next atomic.Int64
	b.ResetTimer()
	count := newAllocations()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			recs := batches[next.Add(1)%int64(len(batches))]
			if _, err := db.Append(b.Context(), recs, AppendOptions{Ack: ack}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	count.report(b, b.N*batch)
	if err := db.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}
