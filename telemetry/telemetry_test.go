package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/server"
	"github.com/annalsdb/annals/trace"
)

// traced opens a log, with a server, that tells a tracer of all that it does. What was
// flushed is read from the store.
func traced(t *testing.T, to trace.Tracer) (*engine.DB, *server.Server) {
	t.Helper()
	store := metered.New(mem.New(mem.Options{}), metered.Options{Tracer: to, Kind: func(name string) string { return strings.Split(name+"///", "/")[2] }})
	db, err := engine.Open(t.Context(), store, engine.Options{Tracer: to, RecentBytes: 1, FlushInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	s, err := server.New(server.Options{DB: db, Store: store, Tracer: to})
	require.NoError(t, err)
	return db, s
}

// ask sends one request to a server, of which it is told that it is a part of another.
func ask(s *server.Server, method, target, body, traceparent string) int {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("traceparent", traceparent)
	s.ServeHTTP(w, r)
	return w.Code
}

const (
	caller  = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	oneMore = `{"records":[{"key":"aw==","value":"c2VjcmV0"}]}`
	ofKey   = "/api/v1/log/scan?key=k"
)

// What a client asks for is one trace, from the client to the store, and what the log does by
// itself others.
func TestTraces(t *testing.T) {
	r := newReceiver(t)
	traces, log := begin(t, r.URL, map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b", "OTEL_SERVICE_NAME": "orders-log", "OTEL_RESOURCE_ATTRIBUTES": "zone=b",
	})
	db, s := traced(t, traces)
	require.Equal(t, 200, ask(s, "POST", "/api/v1/log/append", oneMore, caller))
	require.NoError(t, db.Flush(t.Context()))
	require.Equal(t, 200, ask(s, "GET", ofKey, "", caller))
	require.Equal(t, 400, ask(s, "GET", "/api/v1/log/scan", "", "not a parent"))
	require.NoError(t, traces.provider.ForceFlush(t.Context()))

	appends := r.named("POST /api/v1/log/append")
	require.Len(t, appends, 1)
	request := appends[0]
	require.Equal(t, []string{"0123456789abcdef0123456789abcdef", "0123456789abcdef", "SPAN_KIND_SERVER"}, []string{request.trace, request.parent, request.kind})
	require.Equal(t, map[string]any{"http.route": "/api/v1/log/append", "http.request.method": "POST", "http.response.status_code": int64(200)}, request.attributes)
	require.Equal(t, "orders-log", request.resource["service.name"])
	require.Equal(t, []any{"v1", "writer", "b"}, []any{request.resource["service.version"], request.resource["annals.role"], request.resource["zone"]})

	inner := under(request, r.named("append"))
	require.Len(t, inner, 1)
	require.Equal(t, []any{int64(1), int64(7), int64(0), `"k"`}, pick(inner[0], "records", "bytes", "sequence", "key"))
	require.Contains(t, inner[0].attributes, "annals.phase.durable")
	puts := r.named("wal_put")
	require.Len(t, puts, 1)
	require.Equal(t, pick(inner[0], "wal_object", "records"), pick(puts[0], "wal_object", "records"))
	stored := under(puts[0], r.named("store_put"))
	require.Len(t, stored, 1)
	require.Equal(t, []any{"wal", "ok"}, pick(stored[0], "object", "result"))

	flushes := r.named("flush")
	require.Len(t, flushes, 1)
	require.Equal(t, []any{int64(1), int64(1)}, pick(flushes[0], "tables", "records"))
	for _, phase := range []string{"build", "upload", "turn", "durable", "commit"} {
		require.Contains(t, flushes[0].attributes, "annals.phase."+phase)
	}
	tables := under(flushes[0], r.named("store_put"))
	require.Len(t, tables, 1)
	require.Equal(t, []any{"sst"}, pick(tables[0], "object"))
	require.NotEmpty(t, r.named("commit"))

	scans := r.named("GET /api/v1/log/scan")
	require.Len(t, scans, 2)
	require.Equal(t, request.trace, scans[0].trace)
	require.NotEqual(t, request.trace, scans[1].trace, "what is no parent is none")
	require.Equal(t, int64(400), scans[1].attributes["http.response.status_code"])
	require.Empty(t, scans[1].failed, "the client's fault is not ours")
	scan := under(scans[0], r.named("scan"))
	require.Len(t, scan, 1)
	require.Equal(t, []any{int64(1), int64(1), `"k"`}, pick(scan[0], "records", "tables", "key"))
	require.NotEmpty(t, under(scan[0], r.named("store_get")))

	require.Equal(t, "a b", r.headers.Get("X-Tenant"))
	for _, s := range r.spans {
		require.NotContains(t, fmt.Sprint(s.attributes), "secret", "values are nobody's business")
	}
	n := traces.Counts()
	require.Equal(t, trace.SpanCounts{Exported: uint64(len(r.spans))}, n)
	require.Equal(t, []string{""}, log.all())
}

// pick returns some of a span's attributes of ours.
func pick(s collected, names ...string) (values []any) {
	for _, name := range names {
		values = append(values, s.attributes["annals."+name])
	}
	return values
}

// The sampler of the environment decides, about whole traces.
func TestSampler(t *testing.T) {
	r := newReceiver(t)
	traces, _ := begin(t, r.URL, map[string]string{"OTEL_TRACES_SAMPLER": "parentbased_always_off"})
	_, s := traced(t, traces)
	require.Equal(t, 200, ask(s, "POST", "/api/v1/log/append", oneMore, strings.TrimSuffix(caller, "01")+"00"))
	require.Equal(t, 200, ask(s, "POST", "/api/v1/log/append", oneMore, ""))
	require.Equal(t, 200, ask(s, "POST", "/api/v1/log/append", oneMore, caller))
	require.NoError(t, traces.provider.ForceFlush(t.Context()))
	require.Len(t, r.named("append"), 1)
	require.Empty(t, r.named("wal_put"))
}

// However a collector fails, the log goes on, what is lost is counted, and little is said.
func TestBrokenCollectors(t *testing.T) {
	for name, broken := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request) bool
		gone   bool
	}{
		"gone": {gone: true},
		"refusing": {answer: func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "no", http.StatusForbidden)
			return true
		}},
		"failing": {answer: func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return true
		}},
		"hanging": {answer: func(_ http.ResponseWriter, q *http.Request) bool {
			_, _ = io.Copy(io.Discard, q.Body) // only then the server sees the sender go
			<-q.Context().Done()
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t)
			r.answer = broken.answer
			if broken.gone {
				r.Close()
			}
			traces, log := begin(t, r.URL, map[string]string{
				"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4", "OTEL_BSP_EXPORT_TIMEOUT": "50",
			})
			_, s := traced(t, traces)
			for i := 0; i < 30 || traces.Counts().Failed == 0; i++ {
				require.Equal(t, 200, ask(s, "POST", "/api/v1/log/append", oneMore, ""))
			}
			ended, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_ = traces.Shutdown(ended) // how much it gets rid of depends on how the collector fails
			n := traces.Counts()
			require.Zero(t, n.Exported)
			require.Zero(t, n.Queued)
			require.Positive(t, n.Failed)
			require.Len(t, log.all(), 1)
			require.Contains(t, log.all()[0], "traces are not delivered")
		})
	}
}

// blocked is an exporter that waits for a channel, or the end of its context.
type blocked struct {
	free chan struct{}
	got  int
}

func (b *blocked) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	select {
	case <-b.free:
		b.got += len(spans)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*blocked) Shutdown(context.Context) error { return nil }

// Every span is exported, failed or dropped, and none is kept beyond the bound.
func TestQueueIsBounded(t *testing.T) {
	for _, test := range []struct {
		name string
		free bool // in time for the shutdown
	}{{"a collector that comes back", true}, {"one that does not", false}} {
		t.Run(test.name, func(t *testing.T) {
			b := &blocked{free: make(chan struct{})}
			q := newQueue(b, Config{queue: 8, batch: 4, delay: time.Hour, exportTimeout: time.Hour}, func(error) {})
			provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(q))
			const all = 100
			for range all {
				_, s := provider.Tracer("t").Start(t.Context(), "s")
				s.End()
			}
			n := q.counts()
			require.LessOrEqual(t, n.Queued, uint64(8+4))
			require.GreaterOrEqual(t, n.Dropped, uint64(all-8-4-4))
			ctx, cancel := context.WithCancel(t.Context())
			if test.free {
				close(b.free)
			} else {
				cancel()
			}
			err := q.Shutdown(ctx)
			n = q.counts()
			require.Equal(t, uint64(all), n.Exported+n.Failed+n.Dropped)
			require.Zero(t, n.Queued)
			if test.free {
				require.NoError(t, err)
				require.Equal(t, b.got, int(n.Exported))
				require.Positive(t, b.got)
			} else {
				require.ErrorIs(t, err, context.Canceled)
				require.Zero(t, n.Exported)
			}
			cancel()
			_, s := provider.Tracer("t").Start(t.Context(), "late")
			s.End()
			require.Equal(t, uint64(all+1), func() uint64 { n := q.counts(); return n.Exported + n.Failed + n.Dropped }())
			require.NoError(t, q.ForceFlush(t.Context()), "nothing is left")
		})
	}
}

func TestErrorsAreShort(t *testing.T) {
	r := newReceiver(t)
	traces, _ := begin(t, r.URL, nil)
	_, span := trace.Begin(traces, t.Context(), trace.Flush)
	span.End(errors.New(strings.Repeat("x", 1<<20)))
	require.NoError(t, traces.provider.ForceFlush(t.Context()))
	require.Len(t, r.named("flush")[0].failed, maxErrorText+len("..."))
}
