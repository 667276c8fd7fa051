package server

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// testTime is the timestamp of every record: 2023-11-14T22:13:20Z.
const testTime = 1700000000000

// patience is how long tests wait for what takes a moment, on the slowest machine too.
const patience = time.Minute

// openDB opens a log whose wall clock stands still.
func openDB(t testing.TB, store objstore.Store, o engine.Options) *engine.DB {
	o.Env = base.SystemEnv()
	o.Env.Now = func() time.Time { return time.UnixMilli(testTime) }
	if o.FlushInterval == 0 {
		o.FlushInterval = time.Millisecond
	}
	db, err := engine.Open(t.Context(), store, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.Background()) }) // some tests fence it, or close it themselves
	return db
}

// testDB is a log of which single methods can be made to fail.
type testDB struct {
	*engine.DB
	append func(context.Context, []engine.Record, engine.AppendOptions) (engine.AppendResult, error)
	count  func(context.Context) (uint64, error)
	keys   func(engine.KeysOptions) (engine.KeysPage, error)

	cursors   func(string, engine.CursorsOptions) (engine.CursorsPage, error)
	consumers func(after string, limit int) (engine.ConsumersPage, error)
	setCursor func(string, []engine.Cursor, engine.CursorOptions) ([]engine.Cursor, error)
	delCursor func(string, [][]byte) error

	err   error
	notOK error
	waits bool // for the store, to know whether it is ready
}

func (d *testDB) Append(ctx context.Context, recs []engine.Record, o engine.AppendOptions) (engine.AppendResult, error) {
	if d.append != nil {
		return d.append(ctx, recs, o)
	}
	return d.DB.Append(ctx, recs, o)
}

func (d *testDB) Count(ctx context.Context, key []byte, r engine.Range) (uint64, error) {
	if d.count != nil {
		return d.count(ctx)
	}
	return d.DB.Count(ctx, key, r)
}

func (d *testDB) Keys(ctx context.Context, o engine.KeysOptions) (engine.KeysPage, error) {
	if d.keys != nil {
		return d.keys(o)
	}
	return d.DB.Keys(ctx, o)
}

func (d *testDB) Cursors(ctx context.Context, consumer string, o engine.CursorsOptions) (engine.CursorsPage, error) {
	if d.cursors != nil {
		return d.cursors(consumer, o)
	}
	return d.DB.Cursors(ctx, consumer, o)
}

func (d *testDB) Consumers(ctx context.Context, after string, limit int) (engine.ConsumersPage, error) {
	if d.consumers != nil {
		return d.consumers(after, limit)
	}
	return d.DB.Consumers(ctx, after, limit)
}

func (d *testDB) SetCursors(ctx context.Context, consumer string, cursors []engine.Cursor, o engine.CursorOptions) ([]engine.Cursor, error) {
	if d.setCursor != nil {
		return d.setCursor(consumer, cursors, o)
	}
	return d.DB.SetCursors(ctx, consumer, cursors, o)
}

func (d *testDB) DeleteCursors(ctx context.Context, consumer string, keys ...[]byte) error {
	if d.delCursor != nil {
		return d.delCursor(consumer, keys)
	}
	return d.DB.DeleteCursors(ctx, consumer, keys...)
}

func (d *testDB) Err() error {
	if d.err != nil {
		return d.err
	}
	return d.DB.Err()
}

func (d *testDB) Ready(ctx context.Context) error {
	if d.notOK != nil {
		return d.notOK
	}
	if d.waits {
		<-ctx.Done()
		return ctx.Err()
	}
	return d.DB.Ready(ctx)
}

// running is a server on a port of its own.
type running struct {
	*Server
	t      testing.TB
	url    string
	client *http.Client // HTTP/1.1, or h2c

	elsewhere bool // its answers are not of the API that is described
}

// start runs a server until the test ends.
func start(t testing.TB, o Options) *running {
	return startWith(t, o, func(*Server) {})
}

// startWith runs a server that was changed before.
func startWith(t testing.TB, o Options, change func(*Server)) *running {
	if o.DB == nil {
		o.DB = openDB(t, mem.New(mem.Options{}), engine.Options{})
	}
	s, err := New(o)
	require.NoError(t, err)
	change(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(l) })
	r := &running{Server: s, t: t, url: "http://" + l.Addr().String(), client: newClient(t, false)}
	t.Cleanup(func() {
		require.NoError(t, s.Shutdown(context.Background()))
		done.Wait()
	})
	return r
}

func newClient(t testing.TB, http2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{Protocols: p, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	proto  int
}

// do sends one request. Headers are name, value, name, value.
func (r *running) do(method, path string, body io.Reader, headers ...string) answer {
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, body)
	require.NoError(r.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.client.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	if r.elsewhere {
		return answer{resp.StatusCode, resp.Header, string(data), resp.ProtoMajor}
	}
	requireDescribed(r.t, said{method, req.URL.EscapedPath(), resp.StatusCode, resp.Header, data})
	return answer{resp.StatusCode, resp.Header, string(data), resp.ProtoMajor}
}

func (r *running) get(path string, headers ...string) answer {
	return r.do(http.MethodGet, path, nil, headers...)
}

func (r *running) post(path, body string, headers ...string) answer {
	return r.do(http.MethodPost, path, bytes.NewBufferString(body), headers...)
}

// mustAppend appends one record to the log behind the server.
func (r *running) mustAppend(key, value string) uint64 {
	res, err := r.writer.Append(r.t.Context(), []engine.Record{{Key: []byte(key), Value: []byte(value)}}, engine.AppendOptions{})
	require.NoError(r.t, err)
	return res.First
}

// holdsNothing wants all memory to be given back, once the requests are over.
func (r *running) holdsNothing() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.bodies.used() == 0 && r.responses.used() == 0 }, patience, time.Millisecond)
}

// overBoth runs a test over HTTP/1.1 and over h2c.
func overBoth(t *testing.T, f func(t *testing.T, http2 bool)) {
	t.Run("HTTP1", func(t *testing.T) { f(t, false) })
	t.Run("h2c", func(t *testing.T) { f(t, true) })
}

func (r *running) speak(http2 bool) *running {
	r.client = newClient(r.t, http2)
	return r
}

func TestRoutes(t *testing.T) {
	const ok, get, post = `{"status":"success",`, http.MethodGet, http.MethodPost
	steps := []struct {
		method, path, body string
		status             int
		want               string
	}{
		// An empty log.
		{get, "/-/healthy", "", 200, "OK"},
		{get, "/-/ready", "", 200, "OK"},
		{get, "/api/v1/log/scan?key=k", "", 200, ok + `"key":"aw==","values":[],"nextSequence":0,"firstSequence":0}`},
		{get, "/api/v1/log/keys", "", 200, ok + `"keys":[]}`},
		{get, "/api/v1/log/count?key=k", "", 200, ok + `"count":0}`},
		{post, "/api/v1/log/append", `{"records":[]}`, 200, ok + `"recordsAppended":0,"startSequence":0,"timestampMs":0}`},
		{post, "/api/v1/log/append", `{}`, 200, ok + `"recordsAppended":0,"startSequence":0,"timestampMs":0}`},
		// Appends.
		{post, "/api/v1/log/append", `{"records":[{"key":"aw==","value":"djA="},{"key":"","value":""},{"key":"aw","value":"djI"}]}`,
			200, ok + `"recordsAppended":3,"startSequence":0,"timestampMs":1700000000000}`},
		{post, "/api/v1/log/append", `{"records":[{"key":"/w","value":"djM"}],"awaitDurable":true}`,
			200, ok + `"recordsAppended":1,"startSequence":3,"timestampMs":1700000000000}`},
		// Scans.
		{get, "/api/v1/log/scan?key=k", "", 200, ok + `"key":"aw==","values":[{"sequence":0,"value":"djA=","timestampMs":1700000000000},` +
			`{"sequence":2,"value":"djI=","timestampMs":1700000000000}],"nextSequence":4,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&limit=1", "", 200, ok + `"key":"aw==","values":[{"sequence":0,"value":"djA=","timestampMs":1700000000000}],` +
			`"nextSequence":1,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&max_bytes=0", "", 200, ok + `"key":"aw==","values":[{"sequence":0,"value":"djA=","timestampMs":1700000000000}],` +
			`"nextSequence":1,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&last=1", "", 200, ok + `"key":"aw==","values":[{"sequence":2,"value":"djI=","timestampMs":1700000000000}],` +
			`"nextSequence":4,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&start_seq=1&end_seq=2", "", 200, ok + `"key":"aw==","values":[],"nextSequence":2,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&start_seq=3&end_seq=3", "", 200, ok + `"key":"aw==","values":[],"nextSequence":3,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&start_seq=9&end_seq=2&follow=true", "", 200, ok + `"key":"aw==","values":[],"nextSequence":9,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&start_seq=100", "", 200, ok + `"key":"aw==","values":[],"nextSequence":100,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&since_ms=1700000000001", "", 200, ok + `"key":"aw==","values":[],"nextSequence":4,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=k&limit=1&since_ms=1700000000000", "", 200, ok +
			`"key":"aw==","values":[{"sequence":0,"value":"djA=","timestampMs":1700000000000}],"nextSequence":1,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=", "", 200, ok + `"key":"","values":[{"sequence":1,"value":"","timestampMs":1700000000000}],"nextSequence":4,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=%FF", "", 200, ok + `"key":"/w==","values":[{"sequence":3,"value":"djM=","timestampMs":1700000000000}],"nextSequence":4,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key_b64=_w", "", 200, ok + `"key":"/w==","values":[{"sequence":3,"value":"djM=","timestampMs":1700000000000}],"nextSequence":4,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=none", "", 200, ok + `"key":"bm9uZQ==","values":[],"nextSequence":4,"firstSequence":0}`},
		{get, "/api/v1/log/scan?key=none&min_sequence=4", "", 200, ok + `"key":"bm9uZQ==","values":[],"nextSequence":4,"firstSequence":0}`},
		// Counts.
		{get, "/api/v1/log/count?key=k", "", 200, ok + `"count":2}`},
		{get, "/api/v1/log/count?key_b64=aw==&start_seq=1", "", 200, ok + `"count":1}`},
		{get, "/api/v1/log/count?key=k&start_seq=2&end_seq=1", "", 200, ok + `"count":0}`},
		// Keys.
		{get, "/api/v1/log/keys", "", 200, ok + `"keys":[{"key":""},{"key":"aw=="},{"key":"/w=="}]}`},
		{get, "/api/v1/log/keys?limit=1", "", 200, ok + `"keys":[{"key":""}],"nextKey":""}`},
		{get, "/api/v1/log/keys?limit=1&after_b64=", "", 200, ok + `"keys":[{"key":"aw=="}],"nextKey":"aw=="}`},
		{get, "/api/v1/log/keys?limit=1&after_b64=aw==", "", 200, ok + `"keys":[{"key":"/w=="}]}`},
		{get, "/api/v1/log/keys?prefix=k", "", 200, ok + `"keys":[{"key":"aw=="}]}`},
		{get, "/api/v1/log/keys?prefix_b64=_w", "", 200, ok + `"keys":[{"key":"/w=="}]}`},
		{get, "/api/v1/log/keys?start_segment=2", "", 200, ok + `"keys":[]}`},
		{get, "/api/v1/log/keys?end_segment=0", "", 200, ok + `"keys":[]}`},
		{get, "/api/v1/log/keys?start_segment=1&end_segment=2&limit=100", "", 200, ok + `"keys":[{"key":""},{"key":"aw=="},{"key":"/w=="}]}`},
		// Segments.
		{get, "/api/v1/log/segments", "", 200, ok + `"segments":[{"id":1,"startSeq":0,"startTimeMs":1700000000000,"sealed":false,"records":4,"bytes":9,"runs":0}]}`},
		{get, "/api/v1/log/segments?after=1", "", 200, ok + `"segments":[]}`},
		{get, "/api/v1/log/segments?start_seq=0&end_seq=0", "", 200, ok + `"segments":[]}`},
		{get, "/api/v1/log/segments?limit=1&start_seq=3", "", 200, ok + `"segments":[{"id":1,"startSeq":0,"startTimeMs":1700000000000,"sealed":false,"records":4,"bytes":9,"runs":0}]}`},
	}
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		for _, c := range steps {
			got := r.do(c.method, c.path, bytes.NewBufferString(c.body))
			require.Equal(t, c.status, got.status, "%s: %s", c.path, got.body)
			require.Equal(t, c.want, got.body, c.path)
			require.Equal(t, http2, got.proto == 2)
			if c.path[1] == 'a' {
				require.Equal(t, "application/json", got.header.Get("Content-Type"))
			}
		}
	})
}

func TestUnknownPathsAndMethods(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		for _, path := range []string{
			"/", "/api", "/api/v1/log", "/api/v1/log/", "/api/v1/log/scan/", "//api/v1/log/scan", "/api/v1//log/scan",
			"/api/v1/log/../log/scan", "/api/v1/log/./scan", "/api/v1/log/%73can", "/api/v1%2Flog/scan", "/API/v1/log/scan",
			"/api/v1/log/follow/", "/api/v1/log/cursors/", "/api/v1/log/cursors/c/", "/api/v1/log/cursors/a/b", "/api/v1/log/cursors//",
			"/api/v1/log/cursors/.", "/api/v1/log/cursors/..", "/api/v1/log/cursors/../scan", "/api/v1/log/%63ursors/c", "/api/v1/log/cursor/c",
			"/-/healthy/", "/metrics/", "/scan", "/-/",
		} {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS"} {
				got := r.do(method, path, nil)
				require.Equal(t, 404, got.status, "%s %s", method, path)
				require.Equal(t, `{"status":"error","message":"unknown path"}`, got.body)
				require.Equal(t, "application/json", got.header.Get("Content-Type"))
				require.Empty(t, got.header.Get("Location"))
			}
		}
		for path, allow := range map[string]string{
			"/api/v1/log/append": "POST", "/api/v1/log/follow": "POST", "/api/v1/log/scan": "GET, HEAD", "/api/v1/log/keys": "GET, HEAD",
			"/api/v1/log/segments": "GET, HEAD", "/api/v1/log/count": "GET, HEAD", "/api/v1/log/cursors": "GET, HEAD",
			"/-/healthy": "GET, HEAD", "/-/ready": "GET, HEAD", "/metrics": "GET, HEAD",
		} {
			for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"} {
				if (method == "POST") == (allow == "POST") && (method == "POST" || method == "GET") {
					continue // the one that works
				}
				got := r.do(method, path, nil)
				require.Equal(t, 405, got.status, "%s %s", method, path)
				require.Equal(t, allow, got.header.Get("Allow"))
				require.Equal(t, `{"status":"error","message":"method not allowed; allowed: `+allow+`"}`, got.body)
			}
		}
		require.Equal(t, 405, r.do("HEAD", "/api/v1/log/append", nil).status)
	})
}

func TestOptionsOfTheServerIsAnUnknownPath(t *testing.T) {
	r := start(t, Options{})
	conn, err := net.Dial("tcp", r.url[len("http://"):])
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	data, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(data), "404 Not Found")
	require.Contains(t, string(data), `"message":"unknown path"`)
}

func TestHead(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		r.mustAppend("k", "value")
		for _, path := range []string{
			"/api/v1/log/scan?key=k", "/api/v1/log/keys", "/api/v1/log/segments", "/api/v1/log/count?key=k", "/-/healthy", "/-/ready",
			"/api/v1/log/scan", "/nothing",
		} {
			get, head := r.get(path), r.do("HEAD", path, nil)
			require.Equal(t, get.status, head.status, path)
			require.Empty(t, head.body)
			require.Equal(t, get.header.Get("Content-Length"), head.header.Get("Content-Length"), path)
			require.Equal(t, get.header.Get("Content-Type"), head.header.Get("Content-Type"), path)
		}
		require.Equal(t, 200, r.do("HEAD", "/metrics", nil).status)
	})
}

func TestBadQueriesOverHTTP(t *testing.T) {
	r := start(t, Options{})
	for _, c := range badQueries {
		got := r.get("/api/v1/log/" + c.route + "?" + c.raw)
		require.Equal(t, 400, got.status, c.raw)
		require.Contains(t, got.body, `{"status":"error","message":"Invalid input: `)
		require.Equal(t, "application/json", got.header.Get("Content-Type"))
	}
}

func TestErrorsAreJSONForProtobufClients(t *testing.T) {
	r := start(t, Options{})
	got := r.get("/api/v1/log/scan", "Accept", "application/protobuf")
	require.Equal(t, 400, got.status)
	require.Equal(t, "application/json", got.header.Get("Content-Type"))
	require.Equal(t, `{"status":"error","message":"Invalid input: key or key_b64 is required"}`, got.body)
}

func TestOptionsAreValidated(t *testing.T) {
	_, err := New(Options{Ack: 9, AppendTimeout: -1, BodyLimit: 1 << 31, MaxKeyBytes: -1, MaxValueBytes: -1, InFlightBytes: 5, ResponseBytes: -1})
	for _, want := range []string{"DB is required", "Ack is 9", "AppendTimeout is", "BodyLimit is", "MaxKeyBytes is", "MaxValueBytes is", "InFlightBytes (5)", "ResponseBytes is"} {
		require.ErrorContains(t, err, want)
	}
}
