package server

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
)

// startFront serves a front until the test ends.
func startFront(t *testing.T, http2 bool) (*Front, *running) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := NewFront(FrontOptions{})
	served := make(chan error, 1)
	go func() { served <- f.Serve(l) }()
	t.Cleanup(func() {
		f.Close()
		require.NoError(t, <-served)
	})
	return f, &running{t: t, url: "http://" + l.Addr().String(), client: newClient(t, http2)}
}

func TestFrontAnswersWhileTheLogIsOpening(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		f, r := startFront(t, http2)
		require.Equal(t, answer{200, http.Header{}, "OK", r.get("/-/healthy").proto}, strip(r.get("/-/healthy")))
		require.Equal(t, 200, r.do("HEAD", "/-/healthy", nil).status)
		for path, want := range map[string]string{
			"/-/ready":            `{"status":"error","message":"not ready: opening"}`,
			scanPath + "?key=k":   `{"status":"error","message":"the log is opening"}`,
			"/metrics":            `{"status":"error","message":"the log is opening"}`,
			"/some/path":          `{"status":"error","message":"the log is opening"}`,
			"/api/v1/log/append/": `{"status":"error","message":"the log is opening"}`,
		} {
			got := r.get(path)
			require.Equal(t, 503, got.status, path)
			require.Equal(t, want, got.body, path)
			require.Equal(t, "1", got.header.Get("Retry-After"))
			require.Equal(t, "application/json", got.header.Get("Content-Type"))
		}
		for _, size := range []int{10, 9 << 20} {
			got := r.post(appendPath, strings.Repeat("x", size))
			require.Equal(t, 503, got.status)
			require.Equal(t, `{"status":"error","message":"the log is opening","outcome":"not_appended"}`, got.body)
		}

		s, err := New(Options{DB: openDB(t, mem.New(mem.Options{}), engine.Options{}), Front: f})
		require.NoError(t, err)
		require.Equal(t, 200, r.get("/-/ready").status)
		require.Equal(t, 200, r.post(appendPath, `{"records":[{"key":"aw","value":"dg"}]}`).status)
		require.NoError(t, s.Shutdown(t.Context()))
		_, err = r.client.Get(r.url + "/-/healthy")
		require.Error(t, err, "nobody listens any more")
	})
}

// One connection, before and after.
func TestConnectionsStayWhenTheLogIsOpen(t *testing.T) {
	f, r := startFront(t, false)
	conn, err := net.Dial("tcp", r.url[len("http://"):])
	require.NoError(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	ready := func() int {
		_, err := io.WriteString(conn, "GET /-/ready HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		return resp.StatusCode
	}
	require.Equal(t, 503, ready())
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	_, err = New(Options{DB: db, Front: f})
	require.NoError(t, err)
	require.Equal(t, 200, ready())
	require.Panics(t, func() { _, _ = New(Options{DB: db, Front: f}) }, "it has a server")
}

// Clients that chose how long to wait are no reason to warn.
func TestMinSequenceTimeoutIsNotAWarning(t *testing.T) {
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	s, err := New(Options{DB: db, Logger: log})
	require.NoError(t, err)
	require.Equal(t, 504, serve(s, scanPath+"?key=k&min_sequence=3&timeout_ms=1"))
	require.Empty(t, lines.String())
}

// serve answers one request without a connection.
func serve(s *Server, path string) int {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Code
}
