// Package server is the HTTP API of a log: docs/HTTP.md describes it as it is.
//
// A Server is an http.Handler and can also run itself on a listener, with
// HTTP/1.1 and h2c on one port. It keeps no state but its metrics and the bytes of the
// requests under way.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/annalsdb/annals/engine"
)

// Time limits of connections. None covers the handler: an append is bounded by
// Options.AppendTimeout, a long poll by its timeout_ms.
const (
	headerTimeout = 10 * time.Second // to send the headers of a request
	bodyTimeout   = 2 * time.Minute  // to send a body
	pieceTimeout  = 10 * time.Second // to take each piece of a response
	idleTimeout   = 2 * time.Minute  // between two requests
	readTimeout   = time.Minute      // of one read of the log, but for the wait of a long poll
	readyTimeout  = 5 * time.Second
	pingAfter     = 30 * time.Second // an HTTP/2 connection that is silent for so long is probed
	pingTimeout   = 15 * time.Second
	// goAwayInterval is how often a shutdown asks HTTP/2 connections to end.
	goAwayInterval = 500 * time.Millisecond

	writePiece = 256 << 10 // of a response

	maxStreams = 1000 // requests under way on one HTTP/2 connection
)

const (
	apiPrefix   = "/api/v1/log"
	healthyPath = "/-/healthy"
	readyPath   = "/-/ready"
)

// Server serves one log. All methods may be called from any goroutine.
type Server struct {
	opts    Options
	db      DB
	log     *slog.Logger
	routes  map[string]*route
	metrics *metrics
	front   *Front

	bodies    *budget // of requests
	responses *budget // and all that reads hold

	// As the constants say, but for tests.
	readTimeout, pieceTimeout, drainTimeout time.Duration

	draining context.Context // ends when Shutdown begins: long polls answer then
	drain    context.CancelFunc
}

// route is one path of the API.
type route struct {
	endpoint string // the path, as metrics name it
	allow    string // the methods, as the Allow header names them
	data     bool   // reads or writes the log: 503 once that stopped
	handle   func(*exchange) error
}

// New returns a server. It fails when the options are not valid, or when their
// registry already holds a server's metrics.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("server options: %w", err)
	}
	o = o.withDefaults()
	s := &Server{
		opts: o, db: o.DB, log: o.Logger, front: o.Front,
		bodies: newBudget(o.InFlightBytes), responses: newBudget(o.ResponseBytes),
		readTimeout: readTimeout, pieceTimeout: pieceTimeout, drainTimeout: drainTimeout,
	}
	s.draining, s.drain = context.WithCancel(context.Background())
	var err error
	if s.metrics, err = newMetrics(o.Registry, s.db, func() int64 { return s.bodies.used() + s.responses.used() }); err != nil {
		return nil, err
	}
	const get, post = "GET, HEAD", "POST"
	s.routes = make(map[string]*route)
	for _, r := range []*route{
		{apiPrefix + "/append", post, true, s.append},
		{apiPrefix + "/scan", get, true, s.scan},
		{apiPrefix + "/keys", get, true, s.keys},
		{apiPrefix + "/segments", get, true, s.segments},
		{apiPrefix + "/count", get, true, s.count},
		{healthyPath, get, false, s.healthy},
		{readyPath, get, false, s.ready},
		{"/metrics", get, false, s.serveMetrics},
	} {
		s.routes[r.endpoint] = r
	}
	if s.front == nil {
		s.front = NewFront(s.log)
	}
	if !s.front.server.CompareAndSwap(nil, s) {
		panic("server: the Front belongs to another Server")
	}
	return s, nil
}

// Serve answers requests on the listener, which it closes in the end. It returns
// nil after Shutdown was called, and otherwise why it stopped. It is not needed
// for a Front that serves already.
func (s *Server) Serve(l net.Listener) error { return s.front.Serve(l) }

// Shutdown stops accepting, makes long polls answer, and waits until the
// requests under way are answered. When ctx ends first it cuts them off and
// returns ctx's error. Call it before the DB is closed.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drain()
	return s.front.shutdown(ctx)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	s.metrics.inFlight.Inc()
	x := &exchange{s: s, w: w, r: r, control: http.NewResponseController(w), endpoint: unknownEndpoint}
	defer func() {
		if p := recover(); p != nil {
			s.recovered(x, p)
		}
		x.release()
		s.metrics.inFlight.Dec()
		elapsed := time.Since(start)
		s.metrics.observe(r.Method, x.endpoint, x.status, elapsed)
		s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "status", x.status, "elapsed", elapsed)
	}()
	// A deadline that an earlier request of this connection set is over.
	_ = x.control.SetWriteDeadline(time.Time{}) // not supported in tests without a connection
	if err := s.dispatch(x); err != nil {
		x.fail(err)
	}
}

// dispatch finds the route and runs it. Paths are taken as they were sent.
func (s *Server) dispatch(x *exchange) error {
	rt, ok := s.routes[x.r.URL.EscapedPath()]
	if !ok {
		return &apiError{status: http.StatusNotFound, message: "unknown path"}
	}
	x.endpoint = rt.endpoint
	if !rt.allows(x.r.Method) {
		x.w.Header().Set("Allow", rt.allow)
		return &apiError{status: http.StatusMethodNotAllowed, message: "method not allowed; allowed: " + rt.allow}
	}
	if rt.data {
		if err := s.db.Err(); err != nil {
			return stopped(err, x.r.Method)
		}
	}
	return rt.handle(x)
}

func (rt *route) allows(method string) bool {
	for m := range strings.SplitSeq(rt.allow, ", ") {
		if m == method {
			return true
		}
	}
	return false
}

// recovered answers for a handler that panicked. One broken request must not
// take the others down.
func (s *Server) recovered(x *exchange, p any) {
	s.log.Error("handler panicked", "endpoint", x.endpoint, "panic", p, "stack", string(debug.Stack()))
	if x.status == 0 {
		x.fail(&apiError{status: http.StatusInternalServerError, message: "Internal error: the handler panicked; the server's log says where"})
	}
}

// healthy answers while the process runs.
func (s *Server) healthy(x *exchange) error {
	x.respond(http.StatusOK, typeText, []byte("OK"))
	return nil
}

// ready answers whether requests should be sent here.
func (s *Server) ready(x *exchange) error {
	if s.draining.Err() != nil {
		return &apiError{status: http.StatusServiceUnavailable, message: "not ready: shutting down"}
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), readyTimeout)
	defer cancel()
	if err := s.db.Ready(ctx); err != nil {
		return &apiError{status: http.StatusServiceUnavailable, message: "not ready: " + err.Error()}
	}
	x.respond(http.StatusOK, typeText, []byte("OK"))
	return nil
}

var _ DB = (*engine.DB)(nil)
