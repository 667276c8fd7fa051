package telemetry

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/annalsdb/annals/trace"
)

// queue sends the spans that ended, in batches, from a goroutine of its own. What it
// must never do is to make anybody wait: a span that finds the queue full is dropped and
// counted. (The SDK's own does the same, and does not tell how many it dropped.)
//
// It is an sdktrace.SpanProcessor; all methods may be called from any goroutine.
type queue struct {
	exporter sdktrace.SpanExporter
	c        Config
	failed   func(error) // is told why a batch was given up, by one goroutine

	spans chan sdktrace.ReadOnlySpan
	flush chan chan struct{}
	stop  chan struct{} // closed by Shutdown
	done  chan struct{} // closed when run has ended

	life context.Context // of exports
	end  context.CancelFunc
	once sync.Once

	exported, lost, dropped atomic.Uint64
	batched                 atomic.Int64 // spans that run has taken and not sent
}

var _ sdktrace.SpanProcessor = (*queue)(nil)

func newQueue(exporter sdktrace.SpanExporter, c Config, failed func(error)) *queue {
	q := &queue{
		exporter: exporter, c: c, failed: failed,
		spans: make(chan sdktrace.ReadOnlySpan, c.queue),
		flush: make(chan chan struct{}),
		stop:  make(chan struct{}), done: make(chan struct{}),
	}
	q.life, q.end = context.WithCancel(context.Background())
	go q.run()
	return q
}

// counts returns what came of the spans.
func (q *queue) counts() trace.SpanCounts {
	return trace.SpanCounts{
		Exported: q.exported.Load(), Failed: q.lost.Load(), Dropped: q.dropped.Load(),
		Queued: uint64(len(q.spans)) + uint64(q.batched.Load()),
	}
}

// OnStart implements sdktrace.SpanProcessor.
func (*queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	select {
	case <-q.stop:
		q.dropped.Add(1)
		return
	default:
	}
	select {
	case q.spans <- s:
	default:
		q.dropped.Add(1)
	}
}

// ForceFlush implements sdktrace.SpanProcessor: it returns when all that ended before was
// sent or given up.
func (q *queue) ForceFlush(ctx context.Context) error {
	sent := make(chan struct{})
	select {
	case q.flush <- sent:
	case <-q.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-sent:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Shutdown implements sdktrace.SpanProcessor: it sends what waits until ctx ends, and
// drops the rest.
func (q *queue) Shutdown(ctx context.Context) error {
	q.once.Do(func() { close(q.stop) })
	defer q.end()
	select {
	case <-q.done:
	case <-ctx.Done():
		q.end()
		<-q.done // an export ends with its context
	}
	return ctx.Err()
}

// run sends batches: full ones at once, others when their first span has waited.
func (q *queue) run() {
	defer close(q.done)
	batch := make([]sdktrace.ReadOnlySpan, 0, q.c.batch)
	due := time.NewTimer(q.c.delay)
	due.Stop()
	for {
		select {
		case s := <-q.spans:
			if batch = append(batch, s); len(batch) == 1 {
				due.Reset(q.c.delay)
			}
			q.batched.Store(int64(len(batch)))
			if len(batch) < q.c.batch {
				continue
			}
			batch = q.send(batch)
		case <-due.C:
			batch = q.send(batch)
		case sent := <-q.flush:
			batch = q.drain(batch)
			close(sent)
		case <-q.stop:
			q.drain(batch)
			return
		}
	}
}

// drain sends what is queued now, and returns the memory of the batch.
func (q *queue) drain(batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	for range len(q.spans) {
		if batch = append(batch, <-q.spans); len(batch) == q.c.batch {
			batch = q.send(batch)
		}
	}
	return q.send(batch)
}

// send sends a batch, or gives it up, and returns its memory.
func (q *queue) send(batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	defer q.batched.Store(0)
	switch {
	case len(batch) == 0:
		return batch
	case q.life.Err() != nil:
		q.dropped.Add(uint64(len(batch)))
	default:
		ctx, cancel := context.WithTimeout(q.life, q.c.exportTimeout)
		err := q.exporter.ExportSpans(ctx, batch)
		cancel()
		if err != nil {
			q.lost.Add(uint64(len(batch)))
			q.failed(err)
		} else {
			q.exported.Add(uint64(len(batch)))
		}
	}
	clear(batch)
	return batch[:0]
}
