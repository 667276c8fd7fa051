package server

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
)

// idleURL, idleCount and idleHTTP2 make TestIdleClients the process of the clients.
const (
	idleURL   = "ANNALS_TEST_IDLE_URL"
	idleCount = "ANNALS_TEST_IDLE_COUNT"
	idleHTTP2 = "ANNALS_TEST_IDLE_HTTP2"
)

// TestIdleClients is not a test, but the clients of TestIdleStreamsAreSmall: their memory
// must not count.
func TestIdleClients(t *testing.T) {
	url := os.Getenv(idleURL)
	if url == "" {
		t.Skip("a process of another test")
	}
	n, err := strconv.Atoi(os.Getenv(idleCount))
	require.NoError(t, err)
	var clients []*http.Client
	for range n/maxStreams + 1 {
		clients = append(clients, newClient(t, os.Getenv(idleHTTP2) == "true"))
	}
	var all sync.WaitGroup
	gate := make(chan struct{}, 32)
	for i := range n {
		gate <- struct{}{}
		all.Go(func() {
			defer func() { <-gate }()
			req, _ := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("%s?follow=true&key=key-%d", url+scanPath, i), nil)
			req.Header.Set("Accept", "text/event-stream")
			resp, err := clients[i/maxStreams].Do(req)
			if err != nil || resp.StatusCode != 200 {
				t.Error(resp, err)
			}
		})
	}
	all.Wait()
	fmt.Println("OPEN")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test is done
	os.Exit(0)
}

// idleMemory returns what each of n idle streams takes: of the heap, and of stacks.
func idleMemory(t *testing.T, url string, n int, http2 bool) int64 {
	before := heapAndStacks()
	// While garbage is collected, the runtime learns how large the stacks of new goroutines are to be.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	cmd := exec.Command(os.Args[0], "-test.run=^TestIdleClients$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), idleURL+"="+url, fmt.Sprintf("%s=%d", idleCount, n), fmt.Sprintf("%s=%v", idleHTTP2, http2))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "OPEN\n", line)
	taken := heapAndStacks() - before
	require.NoError(t, in.Close())
	_, _ = io.Copy(io.Discard, out)
	require.NoError(t, cmd.Wait())
	return taken / int64(n)
}

func heapAndStacks() int64 {
	for range 4 { // stacks shrink by half each time
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// What an idle event stream takes beside what net/http takes for any request that waits.
func TestIdleStreamsAreSmall(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("measures memory")
	}
	const own = 2560 // bytes: of the stream, its follower and stack
	for _, c := range []struct {
		http2 bool
		n     int
	}{{true, 4000}, {false, 1000}} {
		bare := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		bare.Config.Protocols = new(http.Protocols)
		bare.Config.Protocols.SetHTTP1(true)
		bare.Config.Protocols.SetUnencryptedHTTP2(true)
		bare.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams}
		bare.Start()
		idleMemory(t, bare.URL, c.n, c.http2) // what stays from the first time is not a stream's
		floor := idleMemory(t, bare.URL, c.n, c.http2)
		bare.Close()

		r := start(t, Options{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})})
		ours := idleMemory(t, r.url, c.n, c.http2)
		t.Logf("HTTP/2 %v: %d bytes a stream, %d of a bare handler", c.http2, ours, floor)
		require.Less(t, ours, floor+own)
		r.followers(0, 0, 0)
	}
}

// sinkWriter is a connection that takes everything.
type sinkWriter struct {
	header http.Header
	wrote  chan int
}

func (w *sinkWriter) Header() http.Header { return w.header }
func (w *sinkWriter) WriteHeader(int)     {}
func (w *sinkWriter) FlushError() error   { return nil }
func (w *sinkWriter) Write(p []byte) (int, error) {
	w.wrote <- len(p)
	return len(p), nil
}

// BenchmarkDeliver is the server's own part of a record of 1 KiB that one follower gets:
// no connection, and the append beside it.
func BenchmarkDeliver(b *testing.B) {
	db := openDB(b, mem.New(mem.Options{}), engine.Options{})
	s, err := New(Options{DB: db})
	require.NoError(b, err)
	w := &sinkWriter{http.Header{}, make(chan int)}
	req := httptest.NewRequestWithContext(b.Context(), "GET", scanPath+"?follow=true&key=k", strings.NewReader(""))
	req.Header.Set("Accept", "text/event-stream")
	done := make(chan struct{})
	go func() {
		s.ServeHTTP(w, req)
		close(done)
	}()
	recs := []engine.Record{{Key: []byte("k"), Value: benchValue()}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := db.Append(b.Context(), recs, engine.AppendOptions{}); err != nil {
			b.Fatal(err)
		}
		<-w.wrote
	}
	s.drain()
	for {
		select {
		case <-w.wrote:
		case <-done:
			return
		}
	}
}
