// Package server is the HTTP API of a log: docs/HTTP.md describes it as it is.
//
// A Server is an http.Handler and can also run itself on a listener, with
// HTTP/1.1 and h2c on one port. It keeps no state but its metrics and the bytes of the
// requests under way.
package server

import (
	"context"
	"errors"
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
	// pieceTimeout is the time to take each piece of a response. A slow reader takes it in steps: its system
	// tells that there is room again when a good part of its buffer, megabytes, is free (at 150 KB/s steps
	// of 25 s were seen).
	pieceTimeout = time.Minute
	drainedPiece = 2 * time.Second // the same of a stream, while the server shuts down
	idleTimeout  = 2 * time.Minute // between two requests
	readTimeout  = time.Minute     // of one read of the log, but for the wait of a long poll
	readyTimeout = 5 * time.Second
	pingAfter    = 30 * time.Second // an HTTP/2 connection that is silent for so long is probed
	pingTimeout  = 15 * time.Second
	userTimeout  = pieceTimeout + pingAfter // what was sent has to be acknowledged in, and taken, on Linux
	// goAwayInterval is how often a shutdown asks HTTP/2 connections to end.
	goAwayInterval = 500 * time.Millisecond

	writePiece = 256 << 10 // of a response

	// maxHeaderBytes bounds the line and the headers of a request. A query may name 10,000 keys.
	maxHeaderBytes = 1 << 20

	// maxStreams is how many requests may be under way on one HTTP/2 connection. net/http looks at every open
	// stream of a connection for each frame that it sends, also at those that have nothing to send: with 1,000
	// event streams on a connection that takes more time than all else that a record needs.
	maxStreams = 100
)

const (
	apiPrefix      = "/api/v1/log"
	appendEndpoint = apiPrefix + "/append"
	healthyPath    = "/-/healthy"
	readyPath      = "/-/ready"
)

// Server serves one log. All methods may be called from any goroutine.
type Server struct {
	opts    Options
	db      DB
	writer  Writer // nil: the log can only be read here
	log     *slog.Logger
	routes  map[string]*route
	metrics *metrics
	front   *Front

	began    time.Time // when New was called
	replicas *replicas

	bodies    *budget // of requests
	responses *budget // and all that reads hold
	following *following
	// Lines that requests bring about: refused, out of time, failed.
	refusals, late, failed *boundedLog

	// origins keeps the pages of other sites from changing a log that a browser's machine reaches: a form needs nobody's
	// leave to be sent.
	origins http.CrossOriginProtection

	// As the constants say, but for tests.
	readTimeout, pieceTimeout, drainTimeout time.Duration

	draining context.Context // ends when Shutdown begins: long polls answer then, streams end
	drain    context.CancelFunc
}

// route is one path of the API.
type route struct {
	endpoint string // the path, as metrics name it
	allow    string // the methods, as the Allow header names them
	scope    scope  // whom it answers; a route has to say
	allKeys  bool   // tells about all keys: 403 for tokens that are limited to some
	data     bool   // reads or writes the log: 503 once that stopped
	absent   string // why the path is not there, if it is not there here
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
		opts: o, db: o.DB, log: o.Logger, front: o.Front, began: time.Now(),
		bodies: newBudget(o.InFlightBytes), responses: newBudget(o.ResponseBytes),
		readTimeout: readTimeout, pieceTimeout: pieceTimeout, drainTimeout: drainTimeout,
	}
	s.writer, _ = o.DB.(Writer)
	s.refusals = &boundedLog{log: s.log, level: slog.LevelWarn, says: "request refused", more: "more requests were refused than are logged"}
	s.late = &boundedLog{log: s.log, level: slog.LevelWarn, says: "request ran out of time", more: "more requests ran out of time than are logged"}
	s.failed = &boundedLog{log: s.log, level: slog.LevelError, says: "request failed", more: "more requests failed than are logged"}
	s.draining, s.drain = context.WithCancel(context.Background())
	s.following = &following{
		maxFollowers: int64(o.MaxFollowers), maxStreams: int64(o.MaxFollowStreams),
		keepAlive: keepAlive, interval: tendInterval, began: time.Now(),
	}
	context.AfterFunc(s.draining, s.following.shutDown)
	s.replicas = newReplicas(o.Replicas, o.ReplicaTLS)
	if s.front == nil {
		s.front = NewFront(FrontOptions{Logger: s.log})
	}
	var err error
	if s.metrics, err = newMetrics(o.Registry, s, o.Store); err != nil {
		return nil, err
	}
	const get, post = "GET, HEAD", "POST"
	s.routes = make(map[string]*route)
	for _, r := range []*route{
		{endpoint: appendEndpoint, allow: post, scope: scopeAppend, data: true, handle: s.append},
		{endpoint: apiPrefix + "/scan", allow: get, scope: scopeRead, data: true, handle: s.scan},
		{endpoint: apiPrefix + "/keys", allow: get, scope: scopeRead, data: true, handle: s.keys},
		{endpoint: apiPrefix + "/segments", allow: get, scope: scopeRead, allKeys: true, data: true, handle: s.segments},
		{endpoint: apiPrefix + "/count", allow: get, scope: scopeRead, data: true, handle: s.count},
		{endpoint: statusPath, allow: get, scope: scopeRead, allKeys: true, handle: s.status},
		{endpoint: apiPrefix + "/follow", allow: post, scope: scopeRead, data: true, handle: s.follow},
		{endpoint: cursorsPath, allow: get, scope: scopeRead, data: true, handle: s.consumers},
		{endpoint: consumerPath, allow: get + ", PUT, DELETE", scope: scopeRead, data: true, handle: withConsumer(s.cursorsOf)},
		{endpoint: healthyPath, allow: get, scope: scopeOpen, handle: s.healthy},
		{endpoint: readyPath, allow: get, scope: scopeOpen, handle: s.ready},
		{endpoint: openAPIPath, allow: get, scope: scopeOpen, handle: s.describeAPI},
		{endpoint: uiPath, allow: get, scope: scopeOpen, handle: s.page},
		{endpoint: metricsPath, allow: get, scope: scopeAdmin, handle: s.serveMetrics},
	} {
		if r.scope == scopeUnset {
			panic("server: the route " + r.endpoint + " has no scope")
		}
		s.routes[r.endpoint] = r
	}
	if s.writer == nil {
		s.routes[appendEndpoint].absent = "this is a replica: it does not append"
		s.routes[consumerPath].allow = get
	}
	if o.Admin != nil {
		s.routes[metricsPath].absent = "metrics are on the admin listener"
		if !o.Admin.server.CompareAndSwap(nil, s) {
			panic("server: the Admin belongs to another Server")
		}
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

// Shutdown stops accepting, makes long polls answer and streams end, and waits until the
// requests under way are answered. When ctx ends first it cuts them off and
// returns ctx's error. Call it before the DB is closed.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drain()
	defer s.replicas.http.CloseIdleConnections()
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
		if !x.began.IsZero() {
			elapsed = x.began.Sub(start)
		}
		s.metrics.observe(r.Method, x.endpoint, x.status, elapsed)
		s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "status", x.status, "elapsed", elapsed)
	}()
	// A deadline that an earlier request of this connection set is over.
	_ = x.control.SetWriteDeadline(time.Time{}) // not supported in tests without a connection
	boundUnread(x.control, r, s.drainTimeout)
	rt, err := s.route(x)
	if err == nil {
		err = s.handle(x, rt)
	}
	if err != nil {
		x.fail(err)
	}
}

// route finds the route, if the request may take it. Paths are taken as they were sent.
func (s *Server) route(x *exchange) (*route, error) {
	path := x.r.URL.EscapedPath()
	rt := s.routes[path] // an escaped path holds no brace, as the name of a route may
	if rt == nil {
		rt, x.consumer = s.consumerRoute(path)
	}
	if rt == nil {
		return nil, &apiError{status: http.StatusNotFound, message: "unknown path"}
	}
	x.endpoint = rt.endpoint
	if rt.absent != "" {
		return nil, &apiError{status: http.StatusNotFound, message: rt.absent}
	}
	if !rt.allows(x.r.Method) {
		x.w.Header().Set("Allow", rt.allow)
		return nil, &apiError{status: http.StatusMethodNotAllowed, message: "method not allowed; allowed: " + rt.allow}
	}
	if err := s.authorize(x, rt); err != nil {
		return nil, err
	}
	if rt.data {
		if err := s.db.Err(); err != nil {
			return nil, stopped(err, x)
		}
	}
	return rt, nil
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
	ctx, cancel := context.WithTimeout(x.r.Context(), readyTimeout)
	defer cancel()
	if err := s.readiness(ctx); err != nil {
		message := "not ready: " + err.Error()
		if !s.mayKnow(x) {
			message = "not ready; the server's log says why, and its status"
		}
		return &apiError{status: http.StatusServiceUnavailable, message: message}
	}
	x.respond(http.StatusOK, typeText, []byte("OK"))
	return nil
}

// readiness returns why requests should not be sent here, or nil.
func (s *Server) readiness(ctx context.Context) error {
	if s.draining.Err() != nil {
		return errors.New("shutting down")
	}
	return s.db.Ready(ctx)
}

var (
	_ DB     = (*engine.DB)(nil)
	_ Writer = (*engine.DB)(nil)
)
