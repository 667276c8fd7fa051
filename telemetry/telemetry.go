// Package telemetry sends what the log does as traces of OpenTelemetry, by OTLP over
// HTTP. It is the only package that knows of OpenTelemetry.
//
//	c, faults := telemetry.Read(os.Getenv)
//	...
//	traces, err := telemetry.Start(ctx, c, telemetry.Options{Logger: log})
//	engine.Open(ctx, store, engine.Options{Tracer: traces})
//	...
//	traces.Shutdown(ctx)
//
// The collector may be slow, hang or be gone: nothing of the log waits for it.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/annalsdb/annals/trace"
)

// Options of Start.
type Options struct {
	// Version is what was built: the resource's service.version.
	Version string
	// Role is what the process is, such as writer or replica: the resource's annals.role.
	Role string
	// Logger is told, at most once a minute, that traces are not delivered. Required.
	Logger *slog.Logger
}

// Traces sends spans. It is a trace.Tracer. All methods may be called from any goroutine.
type Traces struct {
	tracer
	provider *sdktrace.TracerProvider
	exporter sdktrace.SpanExporter
	queue    *queue
}

var _ trace.Tracer = (*Traces)(nil)

// Start begins to send, as the OTEL_ variables of this process say; c must have been
// read from them, without faults. Nothing is asked of the collector before there is a
// span. It replaces OpenTelemetry's handler of errors, of which a process has one. The
// caller must end it with Shutdown.
func Start(ctx context.Context, c Config, o Options) (*Traces, error) {
	if !c.on || o.Logger == nil {
		panic("telemetry: start without an endpoint or a logger")
	}
	trouble := &trouble{log: o.Logger}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(trouble.note))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("prepare to send traces: %w", err)
	}
	// The variables last: they may name the service otherwise.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(
		attribute.String("service.name", "annals"), attribute.String("service.version", o.Version),
		attribute.String(prefix+"role", o.Role),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe the sender of traces: %w", err)
	}
	q := newQueue(exporter, c, trouble.note)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(q), sdktrace.WithResource(about))
	return &Traces{
		tracer: tracer{provider.Tracer("github.com/annalsdb/annals")}, provider: provider, exporter: exporter, queue: q,
	}, nil
}

// Counts returns what came of the spans so far.
func (t *Traces) Counts() trace.SpanCounts { return t.queue.counts() }

// Shutdown sends what waits to be sent until ctx ends, drops the rest, and returns. Spans
// that end later are dropped.
func (t *Traces) Shutdown(ctx context.Context) error {
	err := t.provider.Shutdown(ctx)
	if xerr := t.exporter.Shutdown(ctx); err == nil {
		err = xerr
	}
	if err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

// tellEvery is how often a failure that goes on is logged.
const tellEvery = time.Minute

// trouble tells operators that traces are not delivered.
type trouble struct {
	log *slog.Logger

	mu       sync.Mutex
	told     time.Time // of the last line; zero: none
	failures int       // since then
}

// note notes a failure.
func (t *trouble) note(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures++
	if now := time.Now(); t.told.IsZero() || now.Sub(t.told) >= tellEvery {
		t.log.Warn("traces are not delivered", "error", err, "failures", t.failures)
		t.told, t.failures = now, 0
	}
}
