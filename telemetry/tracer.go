package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/annalsdb/annals/trace"
)

// tracer makes a span of each operation.
type tracer struct {
	spans oteltrace.Tracer
}

// Begin implements trace.Tracer. A request to the store has a span only as a part of
// something that has one: polls would make a trace each, several a second.
func (t tracer) Begin(ctx context.Context, op trace.Op) (context.Context, trace.Recorder) {
	if op.Kind() == trace.Store && !oteltrace.SpanFromContext(ctx).IsRecording() {
		return ctx, nil
	}
	ctx, s := t.spans.Start(withRemote(ctx), op.String(), oteltrace.WithSpanKind(kindOf(op)))
	if !s.IsRecording() {
		return ctx, nil // its parts find that in ctx
	}
	return ctx, &span{span: s, mark: time.Now()}
}

func kindOf(op trace.Op) oteltrace.SpanKind {
	switch {
	case op == trace.Request:
		return oteltrace.SpanKindServer
	case op.Kind() == trace.Store:
		return oteltrace.SpanKindClient
	}
	return oteltrace.SpanKindInternal
}

// withRemote makes the operation of another process the parent, where there is none of
// this one. What is not in the form of the W3C is as if it were not there.
func withRemote(ctx context.Context) context.Context {
	remote, ok := trace.RemoteOf(ctx)
	if !ok || oteltrace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	carrier := propagation.MapCarrier{"traceparent": remote.Parent, "tracestate": remote.State}
	return propagation.TraceContext{}.Extract(ctx, carrier)
}

// span is a recording span.
type span struct {
	span             oteltrace.Span
	mark             time.Time
	phases           trace.Phases
	method, endpoint string // of a request
}

const prefix = "annals." // of our attributes

func (s *span) Phase(name string) {
	now := time.Now()
	s.phases.Add(name, now.Sub(s.mark))
	s.mark = now
}

func (s *span) Int(name string, value int64) {
	if name == "status" {
		s.span.SetAttributes(attribute.Int64("http.response.status_code", value))
		return
	}
	s.span.SetAttributes(attribute.Int64(prefix+name, value))
}

func (s *span) Text(name, value string) {
	switch name {
	case "endpoint":
		s.endpoint = value
		name = "http.route"
	case "method":
		s.method = value
		name = "http.request.method"
	default:
		name = prefix + name
	}
	s.span.SetAttributes(attribute.String(name, value))
}

func (s *span) Key(name string, key []byte) {
	s.span.SetAttributes(attribute.String(prefix+name, trace.KeyText(key)))
}

func (s *span) End(err error) {
	for i := range s.phases.Len() {
		name, took := s.phases.At(i)
		s.span.SetAttributes(attribute.Float64(prefix+"phase."+name, took.Seconds()))
	}
	if s.endpoint != "" {
		s.span.SetName(s.method + " " + s.endpoint)
	}
	if err != nil {
		s.span.SetStatus(codes.Error, shortened(err.Error()))
	}
	s.span.End()
}

// maxErrorText is how much of an error a span has.
const maxErrorText = 512

func shortened(text string) string {
	if len(text) > maxErrorText {
		return text[:maxErrorText] + "..."
	}
	return text
}
