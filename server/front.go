package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/server/ui"
	"github.com/annalsdb/annals/wire"
)

// Front is the listening side of a server. It answers from before the log is
// open, which after a crash may take minutes: until a Server is made with it
// (Options.Front), /-/healthy says 200, so that nobody kills a process that
// recovers, /ui is the page, which waits, and everything else is 503. Connections stay when the Server takes over.
// All methods may be called from any goroutine.
type Front struct {
	http   *http.Server
	tls    *TLS
	server atomic.Pointer[Server] // nil while the log is opening
	conns  connections
}

// DefaultMaxConnections leaves room beside DefaultMaxFollowers, each on a connection of its own.
const DefaultMaxConnections = 120_000

// FrontOptions are the options of NewFront. The zero value is plain HTTP, with defaults.
type FrontOptions struct {
	// TLS makes the front speak HTTP/2 and HTTP/1.1 over TLS only. Default: HTTP/1.1 and HTTP/2 (h2c),
	// both in the clear.
	TLS *TLS
	// MaxConnections bounds the connections that are open at the same time. More are accepted and closed at once:
	// who waits in line would not know why. Each takes a file descriptor. Default 120,000.
	MaxConnections int
	// Logger gets what goes wrong on single connections (debug), and that there are too many (warn).
	// Default: discarded.
	Logger *slog.Logger
}

// NewFront returns a front.
func NewFront(o FrontOptions) *Front {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&o.MaxConnections, DefaultMaxConnections)
	f := &Front{tls: o.TLS}
	f.conns.limit = int64(o.MaxConnections)
	f.conns.refusals = &boundedLog{log: o.Logger, level: slog.LevelWarn, says: "connection refused: there are too many", more: "more connections were refused than are logged"}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(o.TLS != nil)
	protocols.SetUnencryptedHTTP2(o.TLS == nil)
	f.http = &http.Server{
		Handler:                      f,
		Protocols:                    protocols,
		MaxHeaderBytes:               maxHeaderBytes,
		DisableGeneralOptionsHandler: true, // OPTIONS * is an unknown path like any other
		ReadHeaderTimeout:            headerTimeout,
		IdleTimeout:                  idleTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			SendPingTimeout:      pingAfter,
			PingTimeout:          pingTimeout,
			WriteByteTimeout:     pieceTimeout,
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			dropUnacknowledged(c)
			return ctx
		},
		ConnState: f.conns.changed,
		ErrorLog:  slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	if o.TLS != nil {
		f.http.TLSConfig = o.TLS.Config()
	}
	return f
}

// Serve answers requests on the listener, which it closes in the end. It returns
// nil after Close or the Server's Shutdown was called, and otherwise why it stopped.
func (f *Front) Serve(l net.Listener) error {
	serve := f.http.Serve
	if f.tls != nil {
		serve = func(l net.Listener) error { return f.http.ServeTLS(l, "", "") }
	}
	if err := serve(&boundedListener{l, &f.conns}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Close ends all connections and listeners at once: for a log that could not be
// opened.
func (f *Front) Close() {
	_ = f.http.Close() // of the listeners; they were not written to
}

// shutdown is Server.Shutdown.
func (f *Front) shutdown(ctx context.Context) error {
	for {
		again, cancel := context.WithTimeout(ctx, goAwayInterval)
		err := f.http.Shutdown(again)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			// An HTTP/2 connection that was just being set up did not hear that it
			// should end, and would stay until it is idle for too long: tell all again.
			continue
		}
		_ = f.http.Close() // err says more
		return fmt.Errorf("shut down the HTTP server: %w", err)
	}
}

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s := f.server.Load(); s != nil {
		s.ServeHTTP(w, r)
		return
	}
	opening(w, r)
}

// freeBody is the size up to which net/http itself reads a body that the handler
// left.
const freeBody = 256 << 10

// opening answers while the log is opening.
func opening(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(pieceTimeout)) // not supported in tests without a connection
	boundUnread(control, r, drainTimeout)
	path := r.URL.EscapedPath()
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		switch path {
		case healthyPath:
			reply(w, http.StatusOK, typeText, []byte("OK"))
			return
		case uiPath: // it shows that the log is opening
			ui.SetHeaders(w.Header())
			reply(w, http.StatusOK, ui.ContentType, ui.Document())
			return
		}
	}
	e := wire.ErrorBody{Status: wire.StatusError, Message: "the log is opening"}
	switch {
	case path == readyPath:
		e.Message = "not ready: opening"
	case path == appendEndpoint && r.Method == http.MethodPost:
		e.Outcome = engine.NotAppended.String()
	}
	large := r.ProtoMajor == 1 && (r.ContentLength < 0 || r.ContentLength > freeBody)
	if large {
		w.Header().Set("Connection", "close")
		_ = control.EnableFullDuplex() // net/http does not touch the rest of the body
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	reply(w, http.StatusServiceUnavailable, wire.TypeJSON, e.AppendJSON(nil))
	if large {
		drainBody(control, r, drainTimeout)
	}
}

// reply sends a short answer.
func reply(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // net/http drops the body of HEAD, and closes a connection that fails
}
