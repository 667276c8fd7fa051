package server

import (
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Refusals are logged, but not without bound: a flood of them must not fill a disk.
const (
	refusalWindow = time.Minute
	refusalLines  = 20 // logged in one window; the rest of them is counted, and logged as one line
)

// refusalLog writes a line for each refused request, and one line for those that are too many. Safe for
// concurrent use.
type refusalLog struct {
	log *slog.Logger

	mu      sync.Mutex
	running bool // a window is
	lines   int  // logged in this window
	leftOut int  // not logged in this window
}

// warn logs one denial, unless there were too many lately.
func (l *refusalLog) warn(attrs ...any) {
	l.mu.Lock()
	if !l.running {
		l.running = true
		time.AfterFunc(refusalWindow, l.endWindow)
	}
	l.lines++
	full := l.lines > refusalLines
	if full {
		l.leftOut++
	}
	l.mu.Unlock()
	if !full {
		l.log.Warn("request refused", attrs...)
	}
}

// endWindow tells how many refusals were not logged.
func (l *refusalLog) endWindow() {
	l.mu.Lock()
	leftOut := l.leftOut
	l.running, l.lines, l.leftOut = false, 0, 0
	l.mu.Unlock()
	if leftOut > 0 {
		l.log.Warn("more requests were refused than are logged", "left_out", leftOut, "in", refusalWindow)
	}
}

// refuse counts and logs a 401 or 403, and says what the client has to send.
func (x *exchange) refuse(e *apiError) {
	x.s.metrics.refused.WithLabelValues(string(e.refused)).Inc()
	if e.status == http.StatusUnauthorized {
		x.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	// net/http reads a body of 256 KiB before it answers, and leaves a larger one unread. It
	// must not wait for it.
	_ = x.control.SetReadDeadline(time.Now().Add(x.s.drainTimeout)) // not supported in tests without a connection
	x.logRefusal(e.refused)
}

// logRefusal logs who was refused. Not what for: keys may be long, and whoever has no token could write into the log.
func (x *exchange) logRefusal(why denial) {
	attrs := []any{"reason", string(why), "method", boundedMethod(x.r.Method), "endpoint", x.endpoint, "remote", x.r.RemoteAddr}
	switch {
	case x.token != nil:
		attrs = append(attrs, "token", x.token.Name())
	case x.unknown != "":
		attrs = append(attrs, "token_sha256", x.unknown)
	}
	x.s.refusals.warn(attrs...)
}
