package server

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

func newBenchClient(b *testing.B, r *running) *client.Client {
	c, err := client.New(r.url, client.Options{})
	require.NoError(b, err)
	b.Cleanup(c.Close)
	return c
}

// sized returns the full size of a benchmark's data; with -short, when one iteration shows that the
// benchmark still works, a small one.
func sized(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// benchValue is 1 KiB that compresses about 2:1.
func benchValue() []byte {
	v := make([]byte, 1024)
	for i := range v[:512] {
		v[i] = byte(rand.Uint32())
	}
	return v
}

// BenchmarkAppendHTTP is 64 clients that each append batches of 100 records,
// durable, over HTTP/1.1 and protobuf. The clients share the processor with the
// server.
func BenchmarkAppendHTTP(b *testing.B) {
	db := openDB(b, mem.New(mem.Options{}), engine.Options{})
	r := start(b, Options{DB: db})
	c := newBenchClient(b, r)
	b.SetBytes(100 * 1024)
	b.ReportAllocs()
	b.SetParallelism(32)
	var ids atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		recs := make([]client.Record, 100)
		for i := range recs {
			recs[i] = client.Record{Key: fmt.Appendf(nil, "stream/%d", ids.Add(1)), Value: benchValue()}
		}
		for pb.Next() {
			if _, err := c.Append(b.Context(), recs, client.AppendOptions{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkScanHTTP reads records of 100 bytes from memory. Allocations are those of server and client
// together, and of net/http in both.
func BenchmarkScanHTTP(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("records=%d", n), func(b *testing.B) {
			r := start(b, Options{})
			for range n {
				r.mustAppend("k", string(bytes.Repeat([]byte("v"), 100)))
			}
			c := newBenchClient(b, r)
			b.ReportAllocs()
			for b.Loop() {
				page, err := c.Scan(b.Context(), []byte("k"), client.ScanOptions{Limit: n})
				if err != nil || len(page.Values) != n {
					b.Fatal(len(page.Values), err)
				}
			}
		})
	}
}

// BenchmarkAppendHandler is the server's own part of an append of 100 records of
// 1 KiB: no connection, and a log that does nothing.
func BenchmarkAppendHandler(b *testing.B) {
	db := &testDB{DB: openDB(b, mem.New(mem.Options{}), engine.Options{})}
	db.append = func(context.Context, []engine.Record, engine.AppendOptions) (engine.AppendResult, error) {
		return engine.AppendResult{}, nil
	}
	s, err := New(Options{DB: db})
	require.NoError(b, err)
	m := &wire.AppendRequest{}
	for range 100 {
		m.Records = append(m.Records, &wire.Record{Key: []byte("some/key"), Value: benchValue()})
	}
	body, err := proto.Marshal(m)
	require.NoError(b, err)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		req := httptest.NewRequest(http.MethodPost, appendPath, bytes.NewReader(body))
		req.Header.Set("Content-Type", protoType)
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, req); w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}

// BenchmarkHotScanHTTP reads 10 records of one key again and again, in logs that
// hold equal bytes in 1,000 and in 1,000,000 keys. All of it is flushed; what is
// read is warm.
func BenchmarkHotScanHTTP(b *testing.B) {
	for _, keys := range []int{1000, sized(1_000_000, 10_000)} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			db := openDB(b, mem.New(mem.Options{}), engine.Options{})
			key := func(i int) []byte { return fmt.Appendf(nil, "key-%012d", i) }
			value := benchValue()[:100]
			for i := 0; i < sized(2_000_000, 20_000); i += 1000 {
				var recs []engine.Record
				for j := range 1000 {
					recs = append(recs, engine.Record{Key: key((i + j) % keys), Value: value})
				}
				if i == 0 {
					for range 10 {
						recs = append(recs, engine.Record{Key: key(keys / 2), Value: value})
					}
				}
				_, err := db.Append(b.Context(), recs, engine.AppendOptions{Ack: engine.Memory})
				require.NoError(b, err)
			}
			require.NoError(b, db.Flush(b.Context()))
			c := newBenchClient(b, start(b, Options{DB: db}))
			for b.Loop() {
				page, err := c.Scan(b.Context(), key(keys/2), client.ScanOptions{Limit: 10})
				if err != nil || len(page.Values) != 10 {
					b.Fatal(len(page.Values), err)
				}
			}
		})
	}
}
