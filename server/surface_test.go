package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server/ui"
	"github.com/annalsdb/annals/wire"
)

// The HTTP surface as a whole: any request gets an answer of docs/HTTP.md, in a bounded time, and leaves nothing
// behind. A request is made of a route and what may be wrong with it, so that most get far.

// surfaceRequest is one request as a fuzzer makes it.
type surfaceRequest struct {
	route, method byte   // of the tables below
	path          string // appended to the route's
	query         string
	headers       string // lines, as they are sent
	body          []byte
	chunked       bool // its length is not said before
	replica       bool // of keys below "l", not the writer
}

var surfaceRoutes = []string{
	appendEndpoint, apiPrefix + "/scan", apiPrefix + "/keys", apiPrefix + "/segments", apiPrefix + "/count", apiPrefix + "/follow",
	cursorsPath, cursorsPath + "/", healthyPath, readyPath, "/metrics", apiPrefix, "/", statusPath, uiPath, openAPIPath,
}

var surfaceMethods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "M-SEARCH"}

// surfaceMessages are the messages of the routes that answer with one.
var surfaceMessages = map[string]func() proto.Message{
	appendEndpoint:          func() proto.Message { return new(wire.AppendResponse) },
	apiPrefix + "/scan":     func() proto.Message { return new(wire.ScanResponse) },
	apiPrefix + "/keys":     func() proto.Message { return new(wire.KeysResponse) },
	apiPrefix + "/segments": func() proto.Message { return new(wire.SegmentsResponse) },
	apiPrefix + "/count":    func() proto.Message { return new(wire.CountResponse) },
	cursorsPath:             func() proto.Message { return new(wire.ConsumersResponse) },
	consumerPath:            func() proto.Message { return new(wire.CursorsResponse) },
}

// surfaceSeeds are requests of every kind that docs/HTTP.md has, and some that it refuses.
func surfaceSeeds() []surfaceRequest {
	const get, head, post, put, del = 0, 1, 2, 3, 4
	const events, lines, protobuf = "Accept: text/event-stream\n", "Accept: application/x-ndjson\n", "Accept: application/protobuf\n"
	message := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		return b
	}
	record := &wire.Record{Key: []byte("k"), Value: []byte("v")}
	return []surfaceRequest{
		{0, post, "", "", "", []byte(`{"records":[{"key":"aw==","value":"dg=="}],"awaitDurable":false}`), false, false},
		{0, post, "", "", "", []byte(`{"records":[{"key":"aw==","value":"dg=="}],"expectedNext":[{"key":"aw==","sequence":1}]}`), true, false},
		{0, post, "", "", "", []byte(`{"records":[{"key":"aw==","value":"dg=="}],"producerId":"p","producerSeq":3}`), false, false},
		{0, post, "", "", "Content-Type: application/protobuf\n" + protobuf, message(&wire.AppendRequest{Records: []*wire.Record{record}}), false, false},
		{0, post, "", "", "Content-Encoding: gzip\n", []byte("x"), false, false},
		{0, get, "", "", "", nil, false, false},
		{1, get, "", "key=k&start_seq=1&limit=2", "", nil, false, false},
		{1, get, "", "key_b64=aw&last=3&since_ms=5&max_bytes=1", protobuf, nil, false, false},
		{1, get, "", "key=k&follow=true&start_seq=9&timeout_ms=1000", "", nil, false, false},
		{1, get, "", "key=k&min_sequence=99&timeout_ms=10", "", nil, false, false},
		{1, get, "", "key=k&follow=true&since_ms=1", events + "Last-Event-ID: 2\n", nil, false, false},
		{1, head, "", "key=k&follow=true", events, nil, false, false},
		{1, get, "", "key=k&key_b64=aw&limit=0", "", nil, false, false},
		{2, get, "", "prefix=k&limit=1&start_segment=1&end_segment=3", "", nil, false, false},
		{2, head, "", "prefix_b64=_w&after_b64=", protobuf, nil, false, false},
		{3, get, "", "start_seq=1&end_seq=5&after=0&limit=1", "", nil, false, false},
		{4, get, "", "key=&start_seq=1&end_seq=2", protobuf, nil, false, false},
		{5, post, "", "", lines, []byte(`{"streams":[{"key":"aw==","startSeq":1}],"prefixes":[{"prefix":""}],"consumer":"c"}`), false, false},
		{5, post, "", "", "", []byte(`{"streams":[{"key":"aw=="}],"consumer":"c"}`), true, false},
		{5, post, "", "", lines, []byte(`{"prefixes":[{"prefix":""}],"sinceMs":1700000000000,"fromNow":true}`), false, false},
		{6, get, "", "limit=1&after=b", "", nil, false, false},
		{7, get, "c", "limit=1&after_b64=aw", "", nil, false, false},
		{7, get, "c%20d", "key=k&key_b64=aw&key=", protobuf, nil, false, false},
		{7, put, "c", "", "", []byte(`{"cursors":[{"key":"aw==","nextSequence":7}],"force":true}`), false, false},
		{7, put, "c", "", "Content-Type: application/protobuf\n", message(&wire.CursorsRequest{Cursors: []*wire.Cursor{{Key: []byte("k")}}}), false, false},
		{7, del, "c", "key=k", "", nil, false, false},
		{7, del, "c", "kye=k", "", nil, false, false},
		{7, get, "%2E%2E/a", "", "", nil, false, false},
		{8, get, "", "", "", nil, false, false},
		{9, head, "", "", "", nil, false, false},
		{10, get, "", "", "Accept-Encoding: gzip\n", nil, false, false},
		{0, post, "", "", "", []byte(`{"records":[]}`), false, true},
		{1, get, "", "key=k&follow=true", events, nil, false, true},
		{2, get, "", "prefix=k", "", nil, false, true},
		{4, get, "", "key=z", "", nil, false, true},
		{5, post, "", "", lines, []byte(`{"prefixes":[{"prefix":"k"}]}`), false, true},
		{7, get, "c", "key=k&key=z", "", nil, false, true},
		{7, put, "c", "", "", []byte(`{"cursors":[]}`), false, true},
		{9, get, "", "", "", nil, false, true},
		{11, get, "/", "%zz", "", nil, false, false},
		{12, get, "api/v1//log", "", "", nil, false, false},
		{15, get, "", "", "If-None-Match: *\n", nil, false, false},
		{15, get, "", "", "", nil, false, true},
		{13, get, "", "", "Accept: application/protobuf\n", nil, false, false},
		{13, head, "", "replicas=false", "", nil, false, true},
		{14, head, "", "", "", nil, false, false},
		{14, get, "", "", "If-None-Match: W/\"x\", *\n", nil, false, true},
	}
}

// surfaceTime is longer than the longest wait that a request can ask for.
const surfaceTime = maxTimeout + time.Minute

func FuzzSurface(f *testing.F) {
	for _, s := range surfaceSeeds() {
		f.Add(s.route, s.method, s.path, s.query, s.headers, s.body, s.chunked, s.replica)
	}
	f.Fuzz(func(t *testing.T, route, method byte, path, query, headers string, body []byte, chunked, replica bool) {
		req, ok := surfaceRequest{route, method, path, query, headers, body, chunked, replica}.build()
		if !ok {
			return // net/http would not pass it on
		}
		synctest.Test(t, func(t *testing.T) { requireAnswer(t, req, replica) })
	})
}

// build makes the request that net/http would pass to a handler, if it would.
func (s surfaceRequest) build() (*http.Request, bool) {
	target := surfaceRoutes[int(s.route)%len(surfaceRoutes)] + s.path
	if s.query != "" {
		target += "?" + s.query
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, false
	}
	h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(s.headers + "\n\n"))).ReadMIMEHeader()
	if err != nil {
		return nil, false
	}
	req := &http.Request{
		Method: surfaceMethods[int(s.method)%len(surfaceMethods)], URL: u, RequestURI: target, Header: http.Header(h), Host: "annals",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(bytes.NewReader(s.body)), ContentLength: int64(len(s.body)),
	}
	if s.chunked {
		req.ContentLength = -1
	}
	return req, true
}

// surfaceServer is a server over a small log with records, cursors and a producer, or over a replica of it.
func surfaceServer(t *testing.T, replica bool) *Server {
	env, began := base.SystemEnv(), time.Now()
	env.Elapsed = func() time.Duration { return time.Hour + time.Since(began) }
	store := mem.New(mem.Options{})
	db, err := engine.Open(t.Context(), store, engine.Options{Env: env, FlushInterval: time.Millisecond, DisableCompaction: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	for i, key := range []string{"k", "", "k", "key/2"} {
		o := engine.AppendOptions{Producer: "p", ProducerSequence: uint64(i)}
		_, err := db.Append(t.Context(), []engine.Record{{Key: []byte(key), Value: fmt.Append(nil, i)}}, o)
		require.NoError(t, err)
		if i == 1 {
			require.NoError(t, db.Flush(t.Context()))
		}
	}
	_, err = db.SetCursors(t.Context(), "c", []engine.Cursor{{Key: []byte("k"), Next: 1}}, engine.CursorOptions{})
	require.NoError(t, err)
	o := Options{DB: db, MaxFollowStreams: 100}
	if replica {
		r, err := engine.OpenReader(t.Context(), store, engine.ReaderOptions{Env: env, Keys: engine.KeyRange{End: []byte("l")}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close(context.Background())) })
		o.DB = r
	}
	s, err := New(o)
	require.NoError(t, err)
	return s
}

// requireAnswer serves a request and holds the answer against the documentation.
func requireAnswer(t *testing.T, req *http.Request, replica bool) {
	s := surfaceServer(t, replica)
	defer s.drain()
	before, began := s.db.Status(), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), surfaceTime)
	defer cancel()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, req.WithContext(ctx))
	require.LessOrEqual(t, time.Since(began), surfaceTime)
	time.Sleep(2 * tendInterval) // who tended it has seen that it is gone
	require.Zero(t, s.bodies.used())
	require.Zero(t, s.responses.used())
	require.Zero(t, s.following.all.Load())
	require.Zero(t, s.following.streams.Load())

	if w.Code != statusClientGone {
		body := w.Body.Bytes()
		if req.Method == http.MethodHead {
			body = nil // net/http drops it
		}
		requireDescribed(t, said{req.Method, req.URL.EscapedPath(), w.Code, w.Header(), body})
	}
	appended := s.db.Status().AppendedRecords - before.AppendedRecords
	if kind := w.Header().Get("Content-Type"); kind == wire.TypeEvents || kind == wire.TypeLines {
		require.Equal(t, http.StatusOK, w.Code)
		require.Zero(t, appended)
		requireStream(t, kind, w.Body.String())
		return
	}
	if w.Code == http.StatusNotModified {
		require.NotEmpty(t, req.Header["If-None-Match"])
		require.Empty(t, w.Body.Bytes())
		return
	}
	switch length := w.Header().Get("Content-Length"); {
	case req.URL.Path == "/metrics": // the library's own way
	case req.Method == http.MethodHead:
		require.Empty(t, w.Body.Bytes())
		require.NotEmpty(t, length)
	default:
		require.Equal(t, strconv.Itoa(w.Body.Len()), length)
	}
	if w.Code != http.StatusOK {
		require.Zero(t, appended, "status %d", w.Code)
		requireError(t, s, req, w, ctx.Err() != nil)
		return
	}
	requireSuccess(t, s, req, w, appended)
}

// requireError wants an error as it is documented. late: the client is gone.
func requireError(t *testing.T, s *Server, req *http.Request, w *httptest.ResponseRecorder, late bool) {
	require.Equal(t, wire.TypeJSON, w.Header().Get("Content-Type"))
	if req.Method != http.MethodHead {
		e, err := wire.ParseErrorBody(w.Body.Bytes())
		require.NoError(t, err)
		require.NotEmpty(t, e.Message)
		require.Equal(t, wire.StatusError, e.Status)
		require.Equal(t, w.Code == http.StatusBadRequest, strings.HasPrefix(e.Message, "Invalid input: "), e.Message)
	}
	switch w.Code {
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnsupportedMediaType:
	case http.StatusNotFound:
		rt := s.routes[req.URL.EscapedPath()]
		require.True(t, rt == nil || rt.absent != "")
	case http.StatusMethodNotAllowed:
		require.NotContains(t, strings.Split(w.Header().Get("Allow"), ", "), req.Method)
	case http.StatusRequestEntityTooLarge:
		require.Greater(t, req.ContentLength, int64(1<<20), "it is small: %s", w.Body)
	case http.StatusMisdirectedRequest:
		require.Nil(t, s.writer)
	case http.StatusGatewayTimeout:
		require.Contains(t, req.URL.RawQuery, "min_sequence")
	case statusClientGone:
		require.True(t, late)
	default:
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
}

// requireSuccess wants the message of the route in the format that was asked for.
func requireSuccess(t *testing.T, s *Server, req *http.Request, w *httptest.ResponseRecorder, appended uint64) {
	rt := s.routes[req.URL.EscapedPath()]
	if rt == nil {
		rt, _ = s.consumerRoute(req.URL.EscapedPath())
	}
	require.NotNil(t, rt, "an answer of no route")
	require.True(t, rt.allows(req.Method))
	if rt.endpoint == statusPath {
		requireStatus(t, req, w)
		return
	}
	make, known := surfaceMessages[rt.endpoint]
	if kind, ok := map[string]string{uiPath: ui.ContentType, openAPIPath: typeYAML}[rt.endpoint]; ok {
		require.Equal(t, kind, w.Header().Get("Content-Type"))
		return
	}
	if !known {
		require.Contains(t, w.Header().Get("Content-Type"), "text/plain")
		return
	}
	format := wire.FormatOf(req.Header["Accept"])
	require.Equal(t, format.ContentType(), w.Header().Get("Content-Type"))
	if req.Method == http.MethodHead {
		return
	}
	if format == wire.Protobuf {
		m := make()
		require.NoError(t, proto.Unmarshal(w.Body.Bytes(), m))
		if r, ok := m.(*wire.AppendResponse); ok {
			require.True(t, appended == 0 || appended == uint64(r.RecordsAppended), "a repeat appends nothing")
		}
		return
	}
	var m struct {
		Status          string
		RecordsAppended uint64
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &m), w.Body)
	require.Equal(t, wire.StatusSuccess, m.Status)
	if rt.endpoint == appendEndpoint {
		require.True(t, appended == 0 || appended == m.RecordsAppended, "a repeat appends nothing")
	}
}

// requireStatus wants the status, which is JSON whatever was asked for.
func requireStatus(t *testing.T, req *http.Request, w *httptest.ResponseRecorder) {
	require.Equal(t, wire.TypeJSON, w.Header().Get("Content-Type"))
	if req.Method == http.MethodHead {
		return
	}
	st, err := wire.ParseLogStatus(w.Body.Bytes())
	require.NoError(t, err)
	require.True(t, st.Ready, st.Reason)
}

// requireStream wants whole objects or events, none of which says that following failed.
func requireStream(t *testing.T, kind, body string) {
	require.NotContains(t, body, "event: end")
	if body == "" { // HEAD
		return
	}
	require.True(t, strings.HasSuffix(body, "\n"))
	for line := range strings.Lines(body) {
		data, isData := strings.CutPrefix(line, "data: ")
		if kind == wire.TypeLines {
			data, isData = line, true
		}
		if isData {
			var item wire.StreamItem
			require.NoError(t, item.UnmarshalJSON([]byte(strings.TrimSpace(data))), line)
			require.Nil(t, item.End)
		}
	}
}

// TestSurfaceSeedsCoverTheRoutes keeps the seeds from falling behind the API.
func TestSurfaceSeedsCoverTheRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := surfaceServer(t, false)
		defer s.drain()
		missing := maps.Clone(s.routes)
		for _, seed := range surfaceSeeds() {
			req, ok := seed.build()
			require.True(t, ok)
			if rt, err := s.route(&exchange{s: s, w: httptest.NewRecorder(), r: req}); err == nil {
				delete(missing, rt.endpoint)
			}
		}
		require.Empty(t, slices.Sorted(maps.Keys(missing)))
	})
}
