package engine

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/trace"
)

// strictTracer holds an engine to what package trace promises of it.
type strictTracer struct {
	seed         maphash.Seed
	begun, ended [trace.NumOps]atomic.Int64
	broken       atomic.Pointer[string] // what was not kept last
}

func (s *strictTracer) Begin(ctx context.Context, op trace.Op) (context.Context, trace.Recorder) {
	s.begun[op].Add(1)
	return ctx, &strictRecorder{s: s, op: op}
}

// strictRecorder has no lock: the race detector finds two goroutines that tell it without order.
type strictRecorder struct {
	s    *strictTracer
	op   trace.Op
	over bool
	key  []byte
	sum  uint64
}

func (r *strictRecorder) told(what string) {
	if r.over {
		broken := fmt.Sprintf("%v was told after its end: %s", r.op, what)
		r.s.broken.Store(&broken)
	}
}

func (r *strictRecorder) Phase(name string)        { r.told(name) }
func (r *strictRecorder) Int(name string, _ int64) { r.told(name) }
func (r *strictRecorder) Text(name, _ string)      { r.told(name) }
func (r *strictRecorder) Key(name string, key []byte) {
	r.told(name)
	r.key, r.sum = key, maphash.Bytes(r.s.seed, key)
}

func (r *strictRecorder) End(error) {
	r.told("the end")
	if maphash.Bytes(r.s.seed, r.key) != r.sum && r.key != nil {
		broken := fmt.Sprintf("the key of %v changed", r.op)
		r.s.broken.Store(&broken)
	}
	r.over = true
	r.s.ended[r.op].Add(1)
}

// Every operation ends, once, is told of by one goroutine at a time, and its key stays until then; whatever happens at the same time.
func TestOperationsAreToldInOrder(t *testing.T) {
	s := &strictTracer{seed: maphash.MakeSeed()}
	store := metered.New(mem.New(mem.Options{}), metered.Options{Tracer: s})
	db, err := Open(t.Context(), store, Options{
		Tracer: s, FlushInterval: time.Millisecond, MemtableBytes: 256 << 10, SegmentBytes: 1 << 20, CacheBytes: 1 << 20, RecentBytes: 1,
		GCInterval: 100 * time.Millisecond, Retention: time.Hour, RetentionInterval: 50 * time.Millisecond,
	})
	require.NoError(t, err)
	replica, err := OpenReader(t.Context(), store, ReaderOptions{Tracer: s, PollInterval: time.Millisecond, CacheBytes: 1})
	require.NoError(t, err)
	done, cancel := context.WithCancel(t.Context())
	var writers, readers sync.WaitGroup
	for i := range 3 {
		key := fmt.Append(nil, "k", i)
		writers.Go(func() {
			for n := range 100 {
				if _, err := db.Append(t.Context(), []Record{{Key: key, Value: make([]byte, 20_000)}}, AppendOptions{}); err != nil {
					t.Error(err)
					return
				}
				if n%20 == 0 {
					if _, err := db.SetCursors(t.Context(), "c", []Cursor{{Key: key, Next: uint64(n)}}, CursorOptions{}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		readers.Go(func() {
			for done.Err() == nil {
				for _, log := range []LogReader{db, replica} {
					left := 10
					for range log.Scan(t.Context(), key, All(), ScanOptions{}).All() {
						if left--; left == 0 {
							break
						}
					}
					_, _ = log.Count(t.Context(), key, All())
					_, _ = log.Keys(t.Context(), KeysOptions{})
					_, _ = log.Segments(t.Context(), SegmentsOptions{})
					_, _ = log.Cursors(t.Context(), "c", CursorsOptions{})
				}
			}
		})
	}
	writers.Wait()
	require.NoError(t, db.Flush(t.Context()))
	cancel()
	readers.Wait()
	require.NoError(t, replica.Close(t.Context()))
	require.NoError(t, db.Close(t.Context()))
	if broken := s.broken.Load(); broken != nil {
		t.Error(*broken)
	}
	for op := range trace.Op(trace.NumOps) {
		require.Equal(t, s.begun[op].Load(), s.ended[op].Load(), "%v", op)
	}
	for _, op := range []trace.Op{
		trace.Append, trace.Scan, trace.Count, trace.Keys, trace.Segments, trace.Cursors, trace.SetCursors, trace.Open, trace.WALPut,
		trace.Flush, trace.Commit, trace.Replica, trace.StorePut, trace.StoreGet,
	} {
		require.NotZero(t, s.begun[op].Load(), "%v", op)
	}
}
