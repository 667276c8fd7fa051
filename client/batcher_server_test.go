package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server"
)

// badDays is a server that loses answers, refuses in storms, and is replaced by another one on the same bucket now and then, while the
// one before still answers some requests.
type badDays struct {
	t     *testing.T
	store objstore.Store

	mu      sync.Mutex
	servers []http.Handler // newest last
	logs    []*engine.DB
	storm   atomic.Int64 // requests that are still refused
	faults  atomic.Int64
}

// replace opens the log once more, which fences the writer before.
func (d *badDays) replace() {
	db, err := engine.Open(d.t.Context(), d.store, engine.Options{FlushInterval: time.Millisecond})
	if err != nil {
		d.t.Error(err)
		return
	}
	s, err := server.New(server.Options{DB: db})
	if err != nil {
		d.t.Error(err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.servers, d.logs = append(d.servers, s), append(d.logs, db)
}

func (d *badDays) close() {
	for _, db := range d.logs {
		_ = db.Close(context.Background()) // all but one are fenced
	}
}

func (d *badDays) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	h := d.servers[len(d.servers)-1]
	if n := len(d.servers); n > 1 && rand.N(20) == 0 {
		h = d.servers[n-2] // somebody still speaks to the old one
	}
	d.mu.Unlock()
	switch n := rand.N(100); {
	case d.storm.Add(-1) >= 0:
		d.faults.Add(1)
		w.WriteHeader(http.StatusTooManyRequests)
	case n < 4: // it never came
		d.faults.Add(1)
		panic(http.ErrAbortHandler)
	case n < 8: // the answer is lost
		d.faults.Add(1)
		h.ServeHTTP(&cutWriter{w, &cutting{}, 0}, r)
	case n < 10:
		d.faults.Add(1)
		d.storm.Store(int64(rand.N(6)))
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		h.ServeHTTP(w, r)
	}
}

// Each record is in the log once, in order, and where its receipt says, whatever happened to servers and answers.
func TestBatcherOverBadDays(t *testing.T) {
	d := &badDays{t: t, store: mem.New(mem.Options{})}
	d.replace()
	defer d.close()
	c := clientOf(t, d)
	b := c.NewBatcher(BatcherOptions{MaxRecords: 20, Linger: time.Millisecond})
	const records, restarts = 3000, 3
	var receipts []Receipt
	for i := range records {
		if i%(records/restarts) == records/restarts/2 {
			d.replace()
		}
		r, err := b.Append(t.Context(), Record{Key: fmt.Append(nil, "k", i%2), Value: fmt.Append(nil, i)})
		require.NoError(t, err)
		receipts = append(receipts, r)
		if i%100 == 0 { // so that requests go out in between
			_, err := receipts[i/2].Wait(t.Context())
			require.NoError(t, err)
		}
	}
	require.NoError(t, b.Close(t.Context()))
	require.Positive(t, d.faults.Load())
	next := 0
	for rec := range d.logs[len(d.logs)-1].Scan(t.Context(), []byte("k0"), engine.All(), engine.ScanOptions{}).All() {
		require.Equal(t, fmt.Sprint(2*next), string(rec.Value))
		at, err := receipts[2*next].Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, Position{rec.Sequence, rec.Timestamp}, at)
		if next++; next < records/2 {
			between, err := receipts[2*next-1].Wait(t.Context()) // of the other key
			require.NoError(t, err)
			require.Greater(t, between.Sequence, at.Sequence)
		}
	}
	require.Equal(t, records/2, next)
	n, err := c.Count(t.Context(), []byte("k1"), 0, 0)
	for err != nil { // on a bad day
		n, err = c.Count(t.Context(), []byte("k1"), 0, 0)
	}
	require.Equal(t, uint64(records/2), n)
}

// BenchmarkBatcher appends records of 1 KiB to a server on loopback, in requests that wait for each other or not. The store
// takes 20 ms for each PUT, as one that is far away.
func BenchmarkBatcher(b *testing.B) {
	for _, inFlight := range []int{1, 4} {
		b.Run(fmt.Sprintf("in-flight=%d", inFlight), func(b *testing.B) {
			c := benchClient(b)
			batcher := c.NewBatcher(BatcherOptions{MaxInFlight: inFlight, MaxBytes: 256 << 10, MaxPendingBytes: 2 << 20})
			rec := Record{Key: []byte("some/key/0001"), Value: make([]byte, 1024)}
			b.SetBytes(1024)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := batcher.Append(b.Context(), rec); err != nil {
					b.Fatal(err)
				}
			}
			if err := batcher.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func benchClient(b *testing.B) *Client {
	far := fault.New(mem.New(mem.Options{}), func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind != fault.Put {
			return fault.Plan{}
		}
		return fault.Plan{Before: func(context.Context) error { return sleep(context.Background(), 20*time.Millisecond) }}
	})
	db, err := engine.Open(b.Context(), far, engine.Options{FlushInterval: 5 * time.Millisecond})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close(context.Background())) })
	s, err := server.New(server.Options{DB: db})
	require.NoError(b, err)
	ts := httptest.NewServer(s)
	b.Cleanup(ts.Close)
	c, err := New(ts.URL, Options{})
	require.NoError(b, err)
	b.Cleanup(c.Close)
	return c
}
