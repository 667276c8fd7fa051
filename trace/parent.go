package trace

import "context"

// Remote is the operation of another process of which this one is asked, in the form
// of the W3C's Trace Context: the values of the headers traceparent and tracestate,
// which nobody has checked.
type Remote struct{ Parent, State string }

type remoteKey struct{}

// WithRemote returns a context in which operations without a parent here have this
// one. A Tracer that knows nothing of other processes takes no notice.
func WithRemote(ctx context.Context, r Remote) context.Context {
	return context.WithValue(ctx, remoteKey{}, r)
}

// RemoteOf returns the operation of another process that a context names.
func RemoteOf(ctx context.Context) (Remote, bool) {
	r, ok := ctx.Value(remoteKey{}).(Remote)
	return r, ok
}
