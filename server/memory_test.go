package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	gometrics "runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
)

// scanned is the answer to a scan.
type scanned struct {
	Values []struct {
		Sequence uint64
		Value    []byte
	}
	NextSequence uint64
}

func (a answer) scanned(t *testing.T) (s scanned) {
	t.Helper()
	require.Equal(t, 200, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &s))
	return s
}

// appendValues appends n values of a size to one key, and flushes them.
func appendValues(t testing.TB, db *engine.DB, n, size int) {
	for i := range n {
		value := bytes.Repeat([]byte{byte('a' + i)}, size)
		_, err := db.Append(t.Context(), []engine.Record{{Key: []byte("k"), Value: value}}, engine.AppendOptions{Ack: engine.Memory})
		require.NoError(t, err)
	}
	require.NoError(t, db.Flush(t.Context()))
}

// A page ends early where there is no more memory, and the client misses nothing.
func TestPagesEndWithTheBudget(t *testing.T) {
	const n, size = 24, 256 << 10
	r := start(t, Options{MaxValueBytes: size, ResponseBytes: chunkBytes + size + 4<<20})
	appendValues(t, r.db.(*engine.DB), n, size)
	next, pages := uint64(0), 0
	for next < n {
		got := r.get(fmt.Sprintf("%s?key=k&limit=100&max_bytes=67108864&start_seq=%d", scanPath, next)).scanned(t)
		require.NotEmpty(t, got.Values)
		for _, v := range got.Values {
			require.Equal(t, next, v.Sequence)
			require.Equal(t, bytes.Repeat([]byte{byte('a' + next)}, size), v.Value)
			next++
		}
		require.Equal(t, next, got.NextSequence)
		pages++
	}
	require.Greater(t, pages, 2)
	r.holdsNothing()
	require.LessOrEqual(t, r.responses.peak, r.responses.total)

	// The newest records cannot end early, whether the first share is all there is
	// or a second one is needed.
	for _, budget := range []int64{4 << 20, 16 << 20} {
		r := start(t, Options{DB: r.db, MaxValueBytes: size, ResponseBytes: budget})
		got := r.get(scanPath + "?key=k&last=20&max_bytes=67108864").scanned(t)
		require.Len(t, got.Values, 20)
		require.Equal(t, uint64(n-20), got.Values[0].Sequence)
		r.holdsNothing()
	}
}

// usedWriter sees what is held while a response is sent.
type usedWriter struct {
	httptest.ResponseRecorder
	s    *Server
	used int64
}

func (w *usedWriter) Write(p []byte) (int, error) {
	w.used = w.s.responses.used()
	return len(p), nil
}

// While an answer is sent no more is held than the answer.
func TestSmallAnswersHoldLittle(t *testing.T) {
	r := start(t, Options{})
	r.mustAppend("k", "v")
	for _, path := range []string{scanPath + "?key=k", scanPath + "?key=k&last=1", "/api/v1/log/keys", "/api/v1/log/segments", "/api/v1/log/count?key=k"} {
		w := &usedWriter{ResponseRecorder: *httptest.NewRecorder(), s: r.Server}
		r.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		require.Positive(t, w.used, path)
		require.LessOrEqual(t, w.used, int64(maxPooledPage), path)
	}
}

// Records larger than the budget are read all the same, one request at a time.
func TestRecordLargerThanTheBudget(t *testing.T) {
	r := start(t, Options{ResponseBytes: 1000})
	r.mustAppend("k", strings.Repeat("v", 5000))
	r.mustAppend("k", "w")
	for _, query := range []string{"", "&last=2"} {
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				a := r.get(scanPath + "?key=k" + query)
				if a.status != 200 || !strings.Contains(a.body, `"sequence":0,"value":"dnZ2`) {
					t.Error(a.status, a.body)
				}
			})
		}
		all.Wait()
	}
	require.Len(t, r.get(scanPath+"?key=k").scanned(t).Values, 1)
	require.Equal(t, 200, r.get("/api/v1/log/keys").status)
	require.Equal(t, 200, r.get("/api/v1/log/segments").status)
	require.Equal(t, 200, r.get("/api/v1/log/count?key=k").status)
	r.holdsNothing()
}

// Reads wait for memory; when it does not come they are asked to come back.
func TestReadsWaitForMemory(t *testing.T) {
	paths := []string{scanPath + "?key=k", scanPath + "?key=k&last=1", "/api/v1/log/keys", "/api/v1/log/segments", "/api/v1/log/count?key=k"}
	r := start(t, Options{})
	r.mustAppend("k", "v")
	for _, path := range paths {
		require.True(t, r.responses.take(r.responses.total)) // what others hold
		c := r.later(path)
		require.Eventually(t, func() bool { return r.responses.waits() == 1 }, patience, time.Millisecond)
		require.Empty(t, c)
		r.mustAppend("other", "readers do not stop writers")
		r.responses.give(r.responses.total)
		require.Equal(t, 200, soon(t, c).status, path)
		r.holdsNothing()
	}

	r = startWith(t, Options{}, func(s *Server) { s.readTimeout = time.Millisecond })
	require.True(t, r.responses.take(r.responses.total))
	for _, path := range paths {
		got := r.get(path)
		require.Equal(t, 503, got.status, path)
		require.Equal(t, "1", got.header.Get("Retry-After"))
		require.Equal(t, `{"status":"error","message":"too many bytes of responses are under way"}`, got.body)
	}
	r.responses.give(r.responses.total)
	r.holdsNothing()
}

func TestClientThatGoesAwayLeavesTheLine(t *testing.T) {
	r := start(t, Options{})
	require.True(t, r.responses.take(r.responses.total))
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", r.url+scanPath+"?key=k", nil)
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := r.client.Do(req)
		failed <- err
	}()
	require.Eventually(t, func() bool { return r.responses.waits() == 1 }, patience, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	require.Eventually(t, func() bool { return r.responses.waits() == 0 }, patience, time.Millisecond)
	r.responses.give(r.responses.total)
}

func TestFollowersHoldNoMemory(t *testing.T) {
	r := start(t, Options{})
	c := r.later(scanPath + "?key=k&follow=true&timeout_ms=300000")
	r.waiters(1)
	r.holdsNothing()
	r.mustAppend("k", "v")
	require.Len(t, soon(t, c).scanned(t).Values, 1)
	r.holdsNothing()
}

// liveWriter is a client that takes a response slowly: it measures the heap
// meanwhile.
type liveWriter struct {
	header http.Header
	status int
	wrote  int
	peak   *atomic.Uint64
}

func (w *liveWriter) Header() http.Header    { return w.header }
func (w *liveWriter) WriteHeader(status int) { w.status = status }
func (w *liveWriter) Write(p []byte) (int, error) {
	if w.wrote == 0 {
		live := liveHeap()
		for old := w.peak.Load(); live > old && !w.peak.CompareAndSwap(old, live); old = w.peak.Load() {
		}
	}
	w.wrote += len(p)
	return len(p), nil
}

// liveHeap is what a collection found alive: not what others have allocated since, which on a busy machine is much.
func liveHeap() uint64 {
	runtime.GC()
	live := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}}
	gometrics.Read(live)
	return live[0].Value.Uint64()
}

// A hundred scans at once of large values, of which each alone would fill most
// of the budget.
func TestMemoryOfManyLargeScans(t *testing.T) {
	const scans, size, budget = 100, 256 << 10, 8 << 20
	db := openDB(t, mem.New(mem.Options{}), engine.Options{CacheBytes: 256 << 10, MaxValueBytes: size})
	appendValues(t, db, 10, size)
	s, err := New(Options{DB: db, MaxValueBytes: size, ResponseBytes: budget})
	require.NoError(t, err)
	before := min(liveHeap(), liveHeap(), liveHeap()) // buffers that earlier tests left in pools go
	var peak atomic.Uint64
	var all sync.WaitGroup
	for range scans {
		all.Go(func() {
			w := &liveWriter{header: http.Header{}, peak: &peak}
			s.ServeHTTP(w, httptest.NewRequest("GET", scanPath+"?key=k&limit=10&max_bytes=67108864", nil))
			if w.status != 200 || w.wrote < size {
				t.Error(w.status, w.wrote)
			}
		})
	}
	all.Wait()
	require.Zero(t, s.responses.used())
	require.LessOrEqual(t, s.responses.peak, int64(budget))
	require.Less(t, int64(peak.Load())-int64(before), int64(2*budget), "all of them would be %d", int64(scans*10*size))
}

// A thousand clients replay at once: they wait for each other, and none fails.
func TestManySmallScans(t *testing.T) {
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	appendValues(t, db, 20, 100)
	s, err := New(Options{DB: db, MaxValueBytes: 1000, ResponseBytes: 16 << 20})
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			for next, n := uint64(0), 0; next < 20; n++ {
				w := httptest.NewRecorder()
				s.ServeHTTP(w, httptest.NewRequest("GET", fmt.Sprintf("%s?key=k&limit=10&start_seq=%d", scanPath, next), nil))
				var got scanned
				if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || len(got.Values) != 10 {
					t.Error(w.Code, w.Body)
					return
				}
				next = got.NextSequence
			}
		})
	}
	all.Wait()
	require.Zero(t, s.responses.used())
	require.LessOrEqual(t, s.responses.peak, s.responses.total)
}

// A reader that does not read is cut off after the time for one piece, and
// appends go on meanwhile.
func TestReaderThatDoesNotRead(t *testing.T) {
	const size = 16 << 20 // more than the buffers of a connection
	overAll(t, func(t *testing.T, run func(Options, func(*Server)) *running) {
		r := run(Options{ResponseBytes: 64 << 20}, func(s *Server) { s.pieceTimeout = 100 * time.Millisecond })
		appendValues(t, r.db.(*engine.DB), 1, size)
		req, err := http.NewRequestWithContext(t.Context(), "GET", r.url+scanPath+"?key=k", nil)
		require.NoError(t, err)
		resp, err := r.client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, 200, r.post(appendPath, `{"records":[{"key":"aw","value":"dg"}]}`).status)
		r.holdsNothing()
		_, err = io.Copy(io.Discard, resp.Body)
		require.Error(t, err, "it was cut off")
	})
}

// A page of the log's that ends before its limit is passed on.
func TestKeysPageThatEndsEarly(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	db.keys = func(engine.KeysOptions) (engine.KeysPage, error) {
		return engine.KeysPage{Keys: [][]byte{[]byte("a"), []byte("b")}, More: true}, nil
	}
	r := start(t, Options{DB: db})
	require.Equal(t, `{"status":"success","keys":[{"key":"YQ=="},{"key":"Yg=="}],"nextKey":"Yg=="}`, r.get("/api/v1/log/keys?limit=100").body)
}

// Whatever the log returns, the answer keeps to the budget.
func TestKeysKeepToTheBudget(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	var keys [][]byte
	for i := range 2000 {
		keys = append(keys, fmt.Appendf(nil, "%04d%s", i, strings.Repeat("k", 4092)))
	}
	db.keys = func(o engine.KeysOptions) (engine.KeysPage, error) {
		at := 0
		for at < len(keys) && bytes.Compare(keys[at], o.After) <= 0 {
			at++
		}
		return engine.KeysPage{Keys: keys[at:]}, nil
	}
	r := start(t, Options{DB: db, ResponseBytes: 12 << 20})
	got, after, pages := 0, "", 0
	for {
		var page struct {
			Keys    []struct{ Key []byte }
			NextKey []byte
		}
		a := r.get("/api/v1/log/keys?limit=10000" + after)
		require.Equal(t, 200, a.status)
		require.NoError(t, json.Unmarshal([]byte(a.body), &page))
		for _, k := range page.Keys {
			require.True(t, bytes.Equal(keys[got], k.Key))
			got++
		}
		pages++
		if page.NextKey == nil {
			break
		}
		after = "&after_b64=" + strings.NewReplacer("+", "-", "/", "_").Replace(encode(page.NextKey))
	}
	require.Equal(t, len(keys), got)
	require.Greater(t, pages, 1)
	r.holdsNothing()
	require.LessOrEqual(t, r.responses.peak, r.responses.total)
}

func encode(b []byte) string {
	text, _ := json.Marshal(b)
	return strings.Trim(string(text), `"`)
}

// A client that looks at the answer only when it has sent everything.
func TestSimpleClientSees413(t *testing.T) {
	const size = 9 << 20
	r := start(t, Options{BodyLimit: 1 << 20})
	for name, head := range map[string]string{
		"length":  fmt.Sprintf("Content-Length: %d\r\n", size),
		"chunked": "Transfer-Encoding: chunked\r\n",
		"coded":   fmt.Sprintf("Content-Length: %d\r\nContent-Encoding: gzip\r\n", size),
	} {
		conn, err := net.Dial("tcp", r.url[len("http://"):])
		require.NoError(t, err)
		body := strings.Repeat("x", size)
		if name == "chunked" {
			body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, body)
		}
		_, err = io.WriteString(conn, "POST "+appendPath+" HTTP/1.1\r\nHost: x\r\n"+head+"\r\n"+body)
		require.NoError(t, err, name)
		got, err := io.ReadAll(conn)
		require.NoError(t, err, name)
		want := "413 Request Entity Too Large"
		if name == "coded" {
			want = "415 Unsupported Media Type"
		}
		require.Contains(t, string(got), "HTTP/1.1 "+want, name)
		require.NoError(t, conn.Close())
		r.holdsNothing()
	}
}

// What follows a refused body is read for a while only.
func TestRefusedBodyThatStallsIsLeft(t *testing.T) {
	r := startWith(t, Options{BodyLimit: 1000}, func(s *Server) { s.drainTimeout = 10 * time.Millisecond })
	conn, err := net.Dial("tcp", r.url[len("http://"):])
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST "+appendPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\nxxx")
	require.NoError(t, err)
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(got), "HTTP/1.1 413 ")
	require.Contains(t, string(got), "Connection: close")
}

func TestContentEncodingIs415(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		got := r.post(appendPath, `{"records":[]}`, "Content-Encoding", "gzip")
		require.Equal(t, 415, got.status)
		require.Equal(t, `{"status":"error","message":"Content-Encoding \"gzip\" is not supported: send the body as it is"}`, got.body)
		require.Equal(t, 200, r.post(appendPath, `{"records":[]}`, "Content-Encoding", "Identity").status)
	})
}
