package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/wire"
)

const (
	metricsPath = "/metrics"
	debugPath   = "/debug/"

	// maxAdminConnections is enough for probes, scrapers and people.
	maxAdminConnections = 1000
)

// Admin is a listening side for those who operate a server: health, readiness, metrics and what AdminOptions.Debug has, in
// plain HTTP, without tokens. Keep it private. It answers from before the log is open, however many
// connections the Front has, until it is closed: a shutdown can be watched. All methods may be called from any
// goroutine.
type Admin struct {
	http  *http.Server
	debug http.Handler
	// hostname is this machine's; "" if it is not known.
	hostname string
	server   atomic.Pointer[Server] // nil while the log is opening
	conns    connections
}

// AdminOptions are the options of NewAdmin.
type AdminOptions struct {
	// Debug answers below /debug/. Default: nothing is there.
	Debug http.Handler
	// Logger gets what goes wrong on single connections (debug), and that there are too many (warn).
	// Default: discarded.
	Logger *slog.Logger
}

// NewAdmin returns an admin side, for Options.Admin.
func NewAdmin(o AdminOptions) *Admin {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Admin{debug: o.Debug}
	a.hostname, _ = os.Hostname()
	a.conns.limit = maxAdminConnections
	a.conns.refusals = &boundedLog{log: o.Logger, level: slog.LevelWarn,
		says: "admin connection refused: there are too many", more: "more admin connections were refused than are logged"}
	a.http = &http.Server{
		Handler:                      a,
		MaxHeaderBytes:               maxHeaderBytes,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		IdleTimeout:                  idleTimeout,
		ConnState:                    a.conns.changed,
		ErrorLog:                     slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	return a
}

// Serve answers requests on the listener, which it closes in the end. It returns nil after Close was called, and
// otherwise why it stopped.
func (a *Admin) Serve(l net.Listener) error {
	if err := a.http.Serve(&boundedListener{l, &a.conns}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Close ends all connections and listeners at once. Call it last, after the Server's Shutdown.
func (a *Admin) Close() {
	_ = a.http.Close() // of the listeners; they were not written to
}

// ServeHTTP implements http.Handler.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	control := http.NewResponseController(w)
	boundUnread(control, r, drainTimeout)
	if why := a.strange(r, path); why != "" {
		adminFailure(w, http.StatusForbidden, why)
		return
	}
	if a.debug != nil && strings.HasPrefix(path, debugPath) {
		a.debug.ServeHTTP(w, r)
		return
	}
	_ = control.SetWriteDeadline(time.Now().Add(metricsTimeout)) // not supported in tests without a connection
	s := a.server.Load()
	switch {
	case path != healthyPath && path != readyPath && path != metricsPath:
		adminFailure(w, http.StatusNotFound, "unknown path")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		adminFailure(w, http.StatusMethodNotAllowed, "method not allowed; allowed: GET, HEAD")
	case path == healthyPath:
		reply(w, http.StatusOK, typeText, []byte("OK"))
	case s == nil:
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		adminFailure(w, http.StatusServiceUnavailable, "not ready: opening")
	case path == metricsPath:
		s.metrics.handler.ServeHTTP(w, r)
	default:
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if err := s.readiness(ctx); err != nil {
			adminFailure(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		reply(w, http.StatusOK, typeText, []byte("OK"))
	}
}

// strange returns why a request is not answered that a page of another site had somebody's browser send, or "". There are
// no tokens here to tell.
func (a *Admin) strange(r *http.Request, path string) string {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	switch {
	case local != nil && local.IP.IsLoopback() && !a.isCalled(r.Host):
		// Nobody else reaches loopback, unless by a name that was pointed there for a browser on this machine.
		return "on loopback the Host must be localhost, an IP address or this machine's name"
	case strings.HasPrefix(path, debugPath) && r.Header.Get("Sec-Fetch-Site") == "cross-site":
		return "a page of another site asked for this, which is refused" // it could not read a profile, but start many
	}
	return ""
}

// isCalled reports whether a Host, with a port or without, can only be this machine.
func (a *Admin) isCalled(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	return host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") || // "": no browser
		strings.EqualFold(host, a.hostname) || net.ParseIP(host) != nil
}

func adminFailure(w http.ResponseWriter, status int, message string) {
	e := wire.ErrorBody{Status: wire.StatusError, Message: message}
	reply(w, status, wire.TypeJSON, e.AppendJSON(nil))
}
