package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
)

// startAdmin serves an admin side until the test ends.
func startAdmin(t *testing.T, o AdminOptions) (*Admin, *running) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	a := NewAdmin(o)
	served := make(chan error, 1)
	go func() { served <- a.Serve(l) }()
	t.Cleanup(func() {
		a.Close()
		require.NoError(t, <-served)
	})
	return a, &running{t: t, url: "http://" + l.Addr().String(), client: newClient(t, false), elsewhere: true}
}

// It answers while the log is opening, while it is open and while it is shut down, whoever asks.
func TestAdmin(t *testing.T) {
	debug := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "debug "+r.URL.Path) })
	a, admin := startAdmin(t, AdminOptions{Debug: debug})
	const opening = `{"status":"error","message":"not ready: opening"}`
	require.Equal(t, "OK", admin.get("/-/healthy").body)
	for _, path := range []string{"/-/ready", "/metrics"} {
		got := admin.get(path)
		require.Equal(t, 503, got.status)
		require.Equal(t, opening, got.body)
		require.Equal(t, "1", got.header.Get("Retry-After"))
	}
	require.Equal(t, "debug /debug/pprof/heap", admin.get("/debug/pprof/heap").body)

	var b bearers
	b.add("admin", auth.Admin)
	r := start(t, Options{Admin: a, Tokens: b.tokens(t)})
	require.Equal(t, "OK", admin.get("/-/healthy").body)
	require.Equal(t, 200, admin.do("HEAD", "/-/healthy", nil).status)
	require.Equal(t, "OK", admin.get("/-/ready").body)
	require.Contains(t, admin.get("/metrics").body, "\nannals_epoch 1\n")
	for _, path := range []string{"/", "/metrics/", apiPrefix + "/keys", "/debug", "/ui"} {
		require.Equal(t, 404, admin.get(path).status, path)
	}
	got := admin.post("/-/ready", "")
	require.Equal(t, 405, got.status)
	require.Equal(t, "GET, HEAD", got.header.Get("Allow"))

	// The metrics are there and not here; health is in both places.
	got = r.get("/metrics", b.header("admin")...)
	require.Equal(t, 404, got.status)
	require.Contains(t, got.body, "metrics are on the admin listener")
	require.Equal(t, "OK", r.get("/-/healthy").body)
	require.Equal(t, "OK", r.get("/-/ready").body)
	require.Equal(t, 404, r.get("/debug/pprof/heap").status)

	require.PanicsWithValue(t, "server: the Admin belongs to another Server", func() {
		_, _ = New(Options{DB: r.db, Admin: a})
	})
	require.NoError(t, r.Shutdown(context.Background()))
	require.Equal(t, `{"status":"error","message":"not ready: shutting down"}`, admin.get("/-/ready").body)
	require.Contains(t, admin.get("/metrics").body, "\nannals_epoch 1\n")
}

func TestAdminWithoutDebug(t *testing.T) {
	_, admin := startAdmin(t, AdminOptions{})
	require.Equal(t, 404, admin.get("/debug/pprof/").status)
}

// Connections beyond the limit are closed at once, of each kind; those that there are go on, and when one ends
// another may come.
func TestConnectionsAreBounded(t *testing.T) {
	overAll(t, func(t *testing.T, run func(Options, func(*Server)) *running) {
		r := run(Options{}, func(s *Server) { s.front.conns.limit = 2 })
		_, address, _ := strings.Cut(r.url, "://")
		first, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer first.Close()
		require.Equal(t, 200, r.get("/-/healthy").status) // the second
		for range 3 {
			if refused, err := net.Dial("tcp", address); err == nil { // it may be reset before Dial returns
				_, err = refused.Read(make([]byte, 1))
				require.Error(t, err)
				require.NoError(t, refused.Close())
			}
		}
		require.EqualValues(t, 2, r.front.conns.open.Load())
		require.Eventually(t, func() bool { return r.front.conns.refused.Load() == 3 }, patience, time.Millisecond)
		require.Equal(t, 200, r.get("/-/healthy").status)
		require.NoError(t, first.Close())
		require.Eventually(t, func() bool { return r.front.conns.open.Load() == 1 }, patience, time.Millisecond)
		other, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer other.Close()
		require.Eventually(t, func() bool { return r.front.conns.open.Load() == 2 }, patience, time.Millisecond)
	})
}

func TestLongHeadersAreRefused(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}).speak(http2)
		req, err := http.NewRequestWithContext(t.Context(), "GET", r.url+"/-/healthy", nil)
		require.NoError(t, err)
		for _, size := range []int{maxHeaderBytes / 2, 2 * maxHeaderBytes} {
			req.Header.Set("X-Long", strings.Repeat("x", size))
			resp, err := r.client.Do(req)
			if size > maxHeaderBytes {
				require.True(t, err != nil || resp.StatusCode == http.StatusRequestHeaderFieldsTooLarge)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			_ = resp.Body.Close()
		}
	})
}

// On loopback it is not to be reached by a name that another site pointed there, and no page of one starts profiles.
func TestAdminOfBrowsers(t *testing.T) {
	_, admin := startAdmin(t, AdminOptions{Debug: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})})
	name, err := os.Hostname()
	require.NoError(t, err)
	for host, want := range map[string]int{
		"127.0.0.1:9090": 200, "[::1]:9090": 200, "[::1]": 200, "localhost": 200, "LocalHost:9090": 200, "annals.localhost:9090": 200, name + ":9090": 200,
		"evil.example:9090": 403, "evil.example": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "notlocalhost": 403,
	} {
		for _, path := range []string{healthyPath, "/debug/pprof/heap"} {
			require.Equal(t, want, admin.askAs(host, path), "%s %s", host, path)
		}
	}
	require.Equal(t, 403, admin.get("/debug/pprof/profile", "Sec-Fetch-Site", "cross-site").status)
	require.Equal(t, 200, admin.get("/debug/pprof/profile", "Sec-Fetch-Site", "none").status, "typed by a user")
	require.Equal(t, 200, admin.get(healthyPath, "Sec-Fetch-Site", "cross-site").status)

	// Elsewhere names are anybody's.
	a := NewAdmin(AdminOptions{})
	require.Equal(t, 200, ask(a, "GET", "http://annals.monitoring.svc:9090"+healthyPath, "").Code)
}

// askAs asks by a name that leads there.
func (r *running) askAs(host, path string) int {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), "GET", r.url+path, nil)
	require.NoError(r.t, err)
	req.Host = host
	resp, err := r.client.Do(req)
	require.NoError(r.t, err)
	require.NoError(r.t, resp.Body.Close())
	return resp.StatusCode
}
