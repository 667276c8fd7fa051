package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// sized returns the full size of a benchmark's data; with -short, when one iteration shows that the
// benchmark still works, a small one.
func sized(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// halfRandom returns values that compress about 2:1.
func halfRandom(rnd *rand.Rand, n int) []byte {
	v := make([]byte, n)
	for i := range n / 2 {
		v[i] = byte(rnd.Uint32())
	}
	return v
}

// slowPuts adds latency to every PUT.
type slowPuts struct {
	objstore.Store
	delay time.Duration
}

func (s *slowPuts) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	time.Sleep(s.delay)
	return s.Store.Put(ctx, name, body, o)
}

// BenchmarkIngest: 16 appenders, batches of 100 records of 1 KiB that compress
// 2:1, each appender with up to 4 MiB unacknowledged, durable.
func BenchmarkIngest(b *testing.B) {
	for _, delay := range []time.Duration{0, 30 * time.Millisecond} {
		b.Run(fmt.Sprintf("put+%v", delay), func(b *testing.B) { benchmarkIngest(b, delay) })
	}
}

func benchmarkIngest(b *testing.B, delay time.Duration) {
	const (
		appenders = 16
		batch     = 100
		valueSize = 1 << 10
		window    = 4 << 20 / (batch * valueSize)
	)
	store := mem.New(mem.Options{})
	db, err := Open(b.Context(), &slowPuts{store, delay}, Options{FlushInterval: 2 * time.Millisecond, DisableCompaction: true})
	if err != nil {
		b.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	values := make([][]byte, 4096)
	for i := range values {
		values[i] = halfRandom(rnd, valueSize)
	}
	b.SetBytes(batch * valueSize)
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for a := range appenders {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(a)))
			slots := make(chan struct{}, window)
			var inner sync.WaitGroup
			for left.Add(-1) >= 0 {
				recs := make([]Record, batch)
				for i := range recs {
					recs[i] = Record{Key: fmt.Appendf(nil, "key-%08d", rnd.IntN(100_000)), Value: values[rnd.IntN(len(values))]}
				}
				slots <- struct{}{}
				inner.Go(func() {
					if _, err := db.Append(context.Background(), recs, AppendOptions{}); err != nil {
						b.Error(err)
					}
					<-slots
				})
			}
			inner.Wait()
		})
	}
	wg.Wait()
	b.StopTimer()
	if err := db.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkQuietAppend appends one record at a time, each after a quiet moment,
// with 30 ms added to every PUT, and reports the median latency.
func BenchmarkQuietAppend(b *testing.B) {
	store := &slowPuts{mem.New(mem.Options{}), 30 * time.Millisecond}
	db, err := Open(b.Context(), store, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	var took []time.Duration
	for b.Loop() {
		time.Sleep(2 * DefaultFlushInterval)
		began := time.Now()
		if _, err := db.Append(b.Context(), []Record{{Key: benchKey(1), Value: make([]byte, 100)}}, AppendOptions{}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
