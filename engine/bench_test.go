package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

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
	db, err := Open(b.Context(), &slowPuts{store, delay}, Options{FlushInterval: 2 * time.Millisecond})
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
