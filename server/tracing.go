package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/annalsdb/annals/trace"
)

// handle handles a request. Those about the log are told as a whole: what the log does for them is a
// part of that.
func (s *Server) handle(x *exchange, rt *route) error {
	if s.opts.Tracer == nil || !rt.data {
		return rt.handle(x)
	}
	ctx, span := trace.Begin(s.opts.Tracer, remoteParent(x.r), trace.Request)
	span.Text("endpoint", rt.endpoint)
	span.Text("method", boundedMethod(x.r.Method))
	if x.token != nil {
		span.Text("token", x.token.Name())
	}
	x.r = x.r.WithContext(ctx)
	err := errPanic // unless it returns
	defer func() { x.told(span, err) }()
	err = rt.handle(x)
	return err
}

// errPanic is what tracers are told of a handler that panicked.
var errPanic = errors.New("the handler panicked")

// remoteParent returns the request's context, with the operation of the client of which it is a part, if the client
// says so.
func remoteParent(r *http.Request) context.Context {
	parent := r.Header.Get("traceparent")
	if parent == "" {
		return r.Context()
	}
	return trace.WithRemote(r.Context(), trace.Remote{Parent: parent, State: r.Header.Get("tracestate")})
}

// told ends the span of a request. Answers that are the client's fault are no errors.
func (x *exchange) told(span trace.Span, err error) {
	status := x.status
	if status == 0 && err != nil {
		status = answerOf(err).status // it is still to be sent
	}
	span.Int("status", int64(status))
	if status < http.StatusInternalServerError {
		err = nil
	}
	span.End(err)
}
