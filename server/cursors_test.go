package server

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

// readerOnly is a log that cannot be written, as a replica is.
type readerOnly struct{ DB }

func cursorsDB(t testing.TB) *testDB {
	return &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
}

func TestConsumersOfPaths(t *testing.T) {
	db := cursorsDB(t)
	var asked string
	db.cursors = func(consumer string, _ engine.CursorsOptions) (engine.CursorsPage, error) {
		asked = consumer
		return engine.CursorsPage{}, nil
	}
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{DB: db}).speak(http2)
		for path, want := range map[string]string{
			"c": "c", "a%20b": "a b", "a+b": "a+b", "%C3%A9": "é", "%2E%2E": "..", "...": "...", "%7Bconsumer%7D": "{consumer}", "a:b@c": "a:b@c",
			strings.Repeat("%63", 128): strings.Repeat("c", 128),
		} {
			got := r.get(cursorsPath + "/" + path)
			require.Equal(t, 200, got.status, "%s: %s", path, got.body)
			require.Equal(t, `{"status":"success","cursors":[]}`, got.body)
			require.Equal(t, want, asked, path)
		}
		for path, want := range map[string]string{
			"a%2Fb": "consumer holds a slash", "a%0A": "consumer holds a control character", "%FF": "consumer is not UTF-8",
			strings.Repeat("c", 129): "consumer has 129 bytes; it must have 1 to 128",
		} {
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				got := r.do(method, cursorsPath+"/"+path, nil)
				require.Equal(t, 400, got.status, path)
				require.Equal(t, `{"status":"error","message":"Invalid input: `+want+`"}`, got.body)
			}
		}
		page := r.get("/metrics").body
		require.Contains(t, page, `http_requests_total{endpoint="/api/v1/log/cursors/{consumer}",method="GET",status="200"}`)
		require.NotContains(t, page, "%2E")
	})
}

func TestSetCursors(t *testing.T) {
	db := cursorsDB(t)
	var got string
	db.setCursor = func(consumer string, cursors []engine.Cursor, o engine.CursorOptions) ([]engine.Cursor, error) {
		got = fmt.Sprintf("%s %v", consumer, o.Force)
		for _, c := range cursors {
			got += fmt.Sprintf(" %q=%d", c.Key, c.Next)
		}
		return []engine.Cursor{{Key: []byte("k"), Next: 9}}, nil
	}
	protobuf, err := proto.Marshal(&wire.CursorsRequest{Cursors: []*wire.Cursor{{Key: []byte("k"), NextSequence: 7}}, Force: true})
	require.NoError(t, err)
	r := start(t, Options{DB: db})
	for _, c := range []struct{ contentType, body, want string }{
		{"", `{"cursors":[{"key":"aw","nextSequence":7}],"force":true}`, `c true "k"=7`},
		{protoType, string(protobuf), `c true "k"=7`},
		{"", `{}`, `c false`},
	} {
		answer := r.do("PUT", cursorsPath+"/c", strings.NewReader(c.body), "Content-Type", c.contentType)
		require.Equal(t, 200, answer.status, answer.body)
		require.Equal(t, `{"status":"success","cursors":[{"key":"aw==","nextSequence":9}]}`, answer.body)
		require.Equal(t, c.want, got)
	}
	require.Contains(t, r.get("/metrics").body, "\nannals_http_cursors_set_total 2\n")
	r.holdsNothing()
}

func TestSetCursorsRefusals(t *testing.T) {
	db := cursorsDB(t)
	fails := error(nil)
	db.setCursor = func(string, []engine.Cursor, engine.CursorOptions) ([]engine.Cursor, error) { return nil, fails }
	r := start(t, Options{DB: db, MaxKeyBytes: 4, BodyLimit: 1 << 20})
	for _, c := range []struct {
		body   string
		fails  error
		status int
		want   string
	}{
		{"", nil, 400, "Invalid input: Invalid JSON: the body is empty"},
		{`{"cursors":[{"key":"aw"}]}`, nil, 400, "Invalid input: Invalid JSON: /cursors/0: key and nextSequence are required"},
		{`{"cursors":[{"key":"YWJjZGU=","nextSequence":1}]}`, nil, 400, "Invalid input: cursors[0]: key has 5 bytes; at most 4 are allowed"},
		{`{"cursors":[{"key":"","nextSequence":0}` + strings.Repeat(`,{"key":"","nextSequence":0}`, wire.MaxCursors) + `]}`, nil, 400, "Invalid input: more than 10000 cursors"},
		{strings.Repeat(" ", 1<<20+1), nil, 413, "the body is larger than the limit of 1048576 bytes"},
		{`{}`, engine.ErrStateFull, 507, engine.ErrStateFull.Error()},
		{`{}`, engine.ErrFenced, 503, engine.ErrFenced.Error()},
		{`{}`, errors.New("disk on fire"), 500, "Storage error: disk on fire"},
	} {
		fails = c.fails
		got := r.do("PUT", cursorsPath+"/c", strings.NewReader(c.body))
		require.Equal(t, c.status, got.status, got.body)
		require.Equal(t, `{"status":"error","message":"`+c.want+`"}`, got.body)
	}
	r.holdsNothing()
}

func TestSetCursorsIsBounded(t *testing.T) {
	r := start(t, Options{DB: cursorsDB(t), BodyLimit: 1000, InFlightBytes: 1000})
	require.True(t, r.bodies.take(700)) // what other requests hold
	got := r.do("PUT", cursorsPath+"/c", strings.NewReader(`{"cursors":[{"key":"aw","nextSequence":7},{"key":"aw","nextSequence":7}]}`))
	require.Equal(t, 429, got.status)
	r.bodies.give(700)
	r.holdsNothing()
}

func TestGetCursors(t *testing.T) {
	db := cursorsDB(t)
	var asked string
	page := engine.CursorsPage{}
	db.cursors = func(_ string, o engine.CursorsOptions) (engine.CursorsPage, error) {
		asked = fmt.Sprintf("%q %q %v %d", o.Keys, o.After, o.After != nil, o.Limit)
		return page, nil
	}
	r := start(t, Options{DB: db})
	for _, c := range []struct {
		query string
		page  engine.CursorsPage
		asked string
		want  string
	}{
		{"", engine.CursorsPage{}, `[] "" false 1000`, `"cursors":[]}`},
		{"?limit=1&after_b64=", engine.CursorsPage{Cursors: []engine.Cursor{{Key: []byte("k"), Next: 7}}, More: true}, `[] "" true 1`,
			`"cursors":[{"key":"aw==","nextSequence":7}],"nextKey":"aw=="}`},
		{"?limit=99999&after_b64=aw", engine.CursorsPage{Cursors: []engine.Cursor{{Key: nil, Next: 1<<64 - 1}}}, `[] "k" true 10000`,
			`"cursors":[{"key":"","nextSequence":18446744073709551615}]}`},
		{"?key=k&key_b64=_w&%6bey=&other=1&other=2", engine.CursorsPage{}, `["k" "\xff" ""] "" false 0`, `"cursors":[]}`},
	} {
		page = c.page
		got := r.get(cursorsPath + "/c" + c.query)
		require.Equal(t, 200, got.status, got.body)
		require.Equal(t, `{"status":"success",`+c.want, got.body)
		require.Equal(t, c.asked, asked)
	}
	for query, want := range map[string]string{
		"limit=0": "limit must be above 0", "limit=x": `limit is \"x\"; it must be an integer from 0 to 18446744073709551615`,
		"after_b64=ax": "after_b64: not base64", "after_b64=&after_b64=": "after_b64 is given more than once",
		"key=k&limit=1": "limit cannot be combined with key or key_b64", "after_b64=&key_b64=": "after_b64 cannot be combined with key or key_b64",
		"key_b64=ax": "key_b64: not base64", "key=%zz": `key is not percent-encoded text: invalid URL escape \"%zz\"`,
		strings.Repeat("key&", wire.MaxCursors+1): "more than 10000 keys",
	} {
		got := r.get(cursorsPath + "/c?" + query)
		require.Equal(t, 400, got.status, query)
		require.Equal(t, `{"status":"error","message":"Invalid input: `+want+`"}`, got.body)
	}
	r.holdsNothing()
}

// A page is cut where the memory for its answer ends, and the client goes on behind it.
func TestCursorPagesAreBounded(t *testing.T) {
	db := cursorsDB(t)
	var list []engine.Cursor
	for i := range 1000 {
		list = append(list, engine.Cursor{Key: bytes.Repeat([]byte{byte(i >> 8), byte(i)}, 500), Next: uint64(i)})
	}
	db.cursors = func(_ string, o engine.CursorsOptions) (engine.CursorsPage, error) {
		from := 0
		for from < len(list) && bytes.Compare(list[from].Key, o.After) <= 0 {
			from++
		}
		to := min(len(list), from+o.Limit)
		return engine.CursorsPage{Cursors: list[from:to], More: to < len(list)}, nil
	}
	r := start(t, Options{DB: db, ResponseBytes: 2 << 20})
	after, pages := "", 0
	var all []*wire.Cursor
	for {
		got := r.get(cursorsPath+"/c?limit=1000"+after, "Accept", protoType)
		require.Equal(t, 200, got.status, got.body)
		var resp wire.CursorsResponse
		require.NoError(t, proto.Unmarshal([]byte(got.body), &resp))
		all = append(all, resp.Cursors...)
		pages++
		if resp.NextKey == nil {
			break
		}
		require.Equal(t, resp.Cursors[len(resp.Cursors)-1].Key, resp.NextKey)
		after = "&after_b64=" + strings.Trim(string(wire.AppendJSON(nil, &wire.KeysResponse{NextKey: resp.NextKey})[len(`{"status":"","keys":[],"nextKey":"`):]), `"}`)
	}
	require.Greater(t, pages, 1)
	require.Len(t, all, len(list))
	for i, c := range all {
		require.Equal(t, uint64(i), c.NextSequence)
	}
	require.LessOrEqual(t, r.responses.peak, int64(2<<20))
	r.holdsNothing()
}

func TestDeleteCursors(t *testing.T) {
	db := cursorsDB(t)
	var got string
	db.delCursor = func(consumer string, keys [][]byte) error {
		got = fmt.Sprintf("%s %q", consumer, keys)
		return nil
	}
	r := start(t, Options{DB: db})
	for query, want := range map[string]string{"": "c []", "?key=a+b&key_b64=_w": `c ["a b" "\xff"]`, "?key=": `c [""]`} {
		answer := r.do("DELETE", cursorsPath+"/c"+query, nil)
		require.Equal(t, 200, answer.status)
		require.Equal(t, `{"status":"success"}`, answer.body)
		require.Equal(t, want, got)
	}
	require.Equal(t, 400, r.do("DELETE", cursorsPath+"/c?key_b64=ax", nil).status)
}

func TestListConsumers(t *testing.T) {
	db := cursorsDB(t)
	page := engine.ConsumersPage{}
	var asked string
	db.consumers = func(after string, limit int) (engine.ConsumersPage, error) {
		asked = fmt.Sprintf("%q %d", after, limit)
		return page, nil
	}
	r := start(t, Options{DB: db})
	for _, c := range []struct {
		query string
		page  engine.ConsumersPage
		asked string
		want  string
	}{
		{"", engine.ConsumersPage{}, `"" 1000`, `"consumers":[]}`},
		{"?limit=2&after=a+b", engine.ConsumersPage{Consumers: []string{"c", `d"`}, More: true}, `"a b" 2`, `"consumers":[{"consumer":"c"},{"consumer":"d\""}],"nextConsumer":"d\""}`},
		{"?limit=20000&after=", engine.ConsumersPage{Consumers: []string{"c"}}, `"" 10000`, `"consumers":[{"consumer":"c"}]}`},
	} {
		page = c.page
		got := r.get(cursorsPath + c.query)
		require.Equal(t, 200, got.status, got.body)
		require.Equal(t, `{"status":"success",`+c.want, got.body)
		require.Equal(t, c.asked, asked)
	}
	for query, want := range map[string]string{
		"limit=0": "limit must be above 0", "after=a/b": "after: consumer holds a slash", "after=a&after=b": "after is given more than once",
	} {
		got := r.get(cursorsPath + "?" + query)
		require.Equal(t, 400, got.status)
		require.Equal(t, `{"status":"error","message":"Invalid input: `+want+`"}`, got.body)
	}
	r.holdsNothing()
}

// A log that cannot be written has what reads.
func TestRoutesOfAReader(t *testing.T) {
	db := cursorsDB(t)
	db.cursors = func(string, engine.CursorsOptions) (engine.CursorsPage, error) { return engine.CursorsPage{}, nil }
	db.consumers = func(string, int) (engine.ConsumersPage, error) { return engine.ConsumersPage{}, nil }
	r := start(t, Options{DB: readerOnly{db}})
	for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
		got := r.do(method, appendPath, strings.NewReader(`{"records":[]}`))
		require.Equal(t, 404, got.status)
		require.Equal(t, `{"status":"error","message":"this is a replica: it does not append"}`, got.body)
	}
	for _, method := range []string{"PUT", "DELETE", "POST"} {
		got := r.do(method, cursorsPath+"/c", strings.NewReader(`{}`))
		require.Equal(t, 405, got.status)
		require.Equal(t, "GET, HEAD", got.header.Get("Allow"))
	}
	for _, path := range []string{cursorsPath, cursorsPath + "/c", "/api/v1/log/scan?key=k", "/api/v1/log/keys", "/api/v1/log/count?key=k", "/-/ready"} {
		require.Equal(t, 200, r.get(path).status, path)
		require.Equal(t, 200, r.do("HEAD", path, nil).status, path)
	}
}

func TestCursorsOfAWriterAllowEverything(t *testing.T) {
	got := start(t, Options{DB: cursorsDB(t)}).do("POST", cursorsPath+"/c", nil)
	require.Equal(t, 405, got.status)
	require.Equal(t, "GET, HEAD, PUT, DELETE", got.header.Get("Allow"))
}

// A log that stopped says so, and no outcome where nothing was to be appended.
func TestCursorsOfAStoppedLog(t *testing.T) {
	db := cursorsDB(t)
	db.err = engine.ErrFenced
	r := start(t, Options{DB: db})
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		got := r.do(method, cursorsPath+"/c", strings.NewReader(`{}`))
		require.Equal(t, 503, got.status)
		require.NotContains(t, got.body, "outcome")
	}
	require.Contains(t, r.post(appendPath, `{}`).body, `"outcome":"not_appended"`)
}

// Cursors over HTTP, in the real log.
func TestCursorsOfALog(t *testing.T) {
	const ok = `{"status":"success",`
	store := mem.New(mem.Options{})
	db := openDB(t, store, engine.Options{})
	steps := []struct{ method, path, body, want string }{
		{"GET", "/c", "", ok + `"cursors":[]}`},
		{"GET", "", "", ok + `"consumers":[]}`},
		{"PUT", "/c", `{"cursors":[{"key":"Yg","nextSequence":7},{"key":"","nextSequence":1},{"key":"/w","nextSequence":3}]}`,
			ok + `"cursors":[{"key":"Yg==","nextSequence":7},{"key":"","nextSequence":1},{"key":"/w==","nextSequence":3}]}`},
		{"PUT", "/c", `{"cursors":[{"key":"Yg","nextSequence":5}]}`, ok + `"cursors":[{"key":"Yg==","nextSequence":7}]}`},
		{"PUT", "/c", `{"cursors":[{"key":"Yg","nextSequence":5}],"force":true}`, ok + `"cursors":[{"key":"Yg==","nextSequence":5}]}`},
		{"PUT", "/a%20b", `{"cursors":[{"key":"Yg","nextSequence":9}]}`, ok + `"cursors":[{"key":"Yg==","nextSequence":9}]}`},
		{"GET", "/c", "", ok + `"cursors":[{"key":"","nextSequence":1},{"key":"Yg==","nextSequence":5},{"key":"/w==","nextSequence":3}]}`},
		{"GET", "/c?limit=1", "", ok + `"cursors":[{"key":"","nextSequence":1}],"nextKey":""}`},
		{"GET", "/c?limit=1&after_b64=", "", ok + `"cursors":[{"key":"Yg==","nextSequence":5}],"nextKey":"Yg=="}`},
		{"GET", "/c?limit=1&after_b64=Yg", "", ok + `"cursors":[{"key":"/w==","nextSequence":3}]}`},
		{"GET", "/c?key_b64=_w&key=none&key=b", "", ok + `"cursors":[{"key":"/w==","nextSequence":3},{"key":"Yg==","nextSequence":5}]}`},
		{"GET", "", "", ok + `"consumers":[{"consumer":"a b"},{"consumer":"c"}]}`},
		{"GET", "?limit=1", "", ok + `"consumers":[{"consumer":"a b"}],"nextConsumer":"a b"}`},
		{"GET", "?limit=1&after=a+b", "", ok + `"consumers":[{"consumer":"c"}]}`},
		{"DELETE", "/c?key=b&key=none", "", `{"status":"success"}`},
		{"GET", "/c", "", ok + `"cursors":[{"key":"","nextSequence":1},{"key":"/w==","nextSequence":3}]}`},
		{"DELETE", "/c", "", `{"status":"success"}`},
		{"DELETE", "/c", "", `{"status":"success"}`},
		{"GET", "/c", "", ok + `"cursors":[]}`},
		{"GET", "", "", ok + `"consumers":[{"consumer":"a b"}]}`},
	}
	r := start(t, Options{DB: db})
	for _, c := range steps {
		got := r.do(c.method, cursorsPath+c.path, strings.NewReader(c.body))
		require.Equal(t, 200, got.status, "%s %s: %s", c.method, c.path, got.body)
		require.Equal(t, c.want, got.body, "%s %s", c.method, c.path)
	}
	r.holdsNothing()
	// Another writer takes over without a close of this one.
	r = start(t, Options{DB: openDB(t, store, engine.Options{})})
	require.Equal(t, ok+`"cursors":[{"key":"Yg==","nextSequence":9}]}`, r.get(cursorsPath+"/a%20b").body)
}

func TestStateFullIs507(t *testing.T) {
	r := start(t, Options{DB: openDB(t, mem.New(mem.Options{}), engine.Options{MaxStateBytes: 1})})
	got := r.do("PUT", cursorsPath+"/c", strings.NewReader(`{"cursors":[{"key":"Yg","nextSequence":7}]}`))
	require.Equal(t, 507, got.status, got.body)
	require.Contains(t, got.body, "too many cursors")
}
