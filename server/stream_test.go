package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

const followPath = "/api/v1/log/follow"

// opened is a stream that a test reads.
type opened struct {
	t      testing.TB
	resp   *http.Response
	in     *bufio.Reader
	cancel context.CancelFunc
}

// open sends a request whose answer has no end.
func (r *running) open(method, path, body string, headers ...string) *opened {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	require.NoError(r.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.client.Do(req)
	require.NoError(r.t, err)
	o := &opened{r.t, resp, bufio.NewReader(resp.Body), cancel}
	if resp.StatusCode != 200 {
		o.t.Fatal(resp.StatusCode, o.rest())
	}
	return o
}

// events opens an event stream.
func (r *running) events(query string, headers ...string) *opened {
	r.t.Helper()
	o := r.open("GET", scanPath+"?follow=true&"+query, "", append(headers, "Accept", "text/event-stream")...)
	require.Equal(r.t, "text/event-stream", o.resp.Header.Get("Content-Type"))
	require.Equal(r.t, "no-store", o.resp.Header.Get("Cache-Control"))
	return o
}

// next returns what comes up to an empty line.
func (o *opened) next() string {
	o.t.Helper()
	var out strings.Builder
	for {
		line := o.line()
		if line == "" {
			o.described(out.String())
			return out.String()
		}
		out.WriteString(line + "\n")
	}
}

// record returns the next event that is not a sign of life.
func (o *opened) record() string {
	o.t.Helper()
	for {
		if e := o.next(); !strings.HasPrefix(e, ":") {
			return e
		}
	}
}

func (o *opened) line() string {
	o.t.Helper()
	line, err := o.in.ReadString('\n')
	require.NoError(o.t, err)
	if o.resp.Header.Get("Content-Type") == wire.TypeLines {
		o.described(line)
	}
	return line[:len(line)-1]
}

// described wants a part of the answer to be as openapi.yaml has it.
func (o *opened) described(part string) {
	o.t.Helper()
	requireDescribed(o.t, said{o.resp.Request.Method, o.resp.Request.URL.EscapedPath(), o.resp.StatusCode, o.resp.Header, []byte(part)})
}

// rest returns what comes until the end, which must be a clean one.
func (o *opened) rest() string {
	o.t.Helper()
	data, err := io.ReadAll(o.in)
	require.NoError(o.t, err)
	return string(data)
}

// event is the event of a record of testTime.
func event(key string, seq uint64, value string) string {
	return fmt.Sprintf("id: %d\ndata: %s\n", seq+1, object(key, seq, value))
}

func object(key string, seq uint64, value string) string {
	return fmt.Sprintf(`{"key":"%s","sequence":%d,"timestampMs":%d,"value":"%s","nextSequence":%d}`,
		b64(key), seq, int64(testTime), b64(value), seq+1)
}

func TestEventStream(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		r.mustAppend("k", "old")
		r.mustAppend("other", "")
		r.mustAppend("k", "")
		o := r.events("key=k")
		require.Equal(t, event("k", 0, "old"), o.next())
		require.Equal(t, event("k", 2, ""), o.next())
		for i := range uint64(20) {
			r.mustAppend("other", "not followed")
			r.mustAppend("k", "new")
			require.Equal(t, event("k", 4+2*i, "new"), o.next())
		}
		r.followers(0, 1, 0)
		o.cancel()
		r.followers(0, 0, 0)
		r.waiters(0)
		r.holdsNothing()
	})
}

// followers waits until exactly so many followers of each kind are there.
func (r *running) followers(polling, events, following int64) {
	r.t.Helper()
	var got [numFollowKinds]int64
	require.Eventually(r.t, func() bool {
		for k := range numFollowKinds {
			got[k] = r.Server.following.followers[k].Load()
		}
		return got == [numFollowKinds]int64{polling, events, following}
	}, patience, time.Millisecond, "%v", &got)
}

func TestEventStreamResumes(t *testing.T) {
	r := start(t, Options{})
	for i := range 5 {
		r.mustAppend("k", strconv.Itoa(i))
	}
	require.Equal(t, event("k", 3, "3"), r.events("key=k", "Last-Event-ID", "3").next())
	require.Equal(t, event("k", 4, "4"), r.events("key=k&start_seq=4").next())
	require.Equal(t, event("k", 2, "2"), r.events("key=k&start_seq=1", "Last-Event-ID", "2").next(), "an EventSource repeats its URL")
	o := r.events("key_b64=aw", "Last-Event-ID", "100") // in the future
	r.waiters(4)
	for i := 5; i < 101; i++ {
		r.mustAppend("k", strconv.Itoa(i))
	}
	require.Equal(t, event("k", 100, "100"), o.next())
}

func TestEventStreamSince(t *testing.T) {
	r := start(t, Options{})
	r.mustAppend("k", "a")
	require.Equal(t, event("k", 0, "a"), r.events(fmt.Sprintf("key=k&since_ms=%d", int64(testTime))).next())
	o := r.events(fmt.Sprintf("key=k&since_ms=%d", int64(testTime)+1))
	r.waiters(2)
	r.mustAppend("k", "before that time too")
	require.NoError(t, r.Shutdown(t.Context()))
	require.Equal(t, ": shutting down\n\n", o.rest())
}

func TestEventStreamMinSequence(t *testing.T) {
	r := start(t, Options{})
	got := r.get(scanPath+"?follow=true&key=k&min_sequence=1&timeout_ms=1", "Accept", "text/event-stream")
	require.Equal(t, 504, got.status)
	opened := make(chan string, 1)
	go func() { opened <- r.events("key=k&min_sequence=2&timeout_ms=300000").next() }()
	r.waiters(1)
	r.followers(1, 0, 0)
	r.mustAppend("k", "a")
	require.Empty(t, opened)
	r.mustAppend("x", "b")
	require.Equal(t, event("k", 0, "a"), <-opened)
}

func TestEventStreamRefuses(t *testing.T) {
	r := start(t, Options{})
	for _, c := range []struct{ query, id, want string }{
		{"key=k&end_seq=7", "", "end_seq does not go with an event stream, which has no end"},
		{"key=k&limit=7", "", "limit does not go with an event stream, which has no end"},
		{"key=k&max_bytes=7", "", "max_bytes does not go with an event stream, which has no end"},
		{"key=k&last=7", "", "last cannot be combined with follow=true"},
		{"", "", "key or key_b64 is required"},
		{"key=" + strings.Repeat("k", 4097), "", "4096"},
		{"key=k", "x", `Last-Event-ID is \"x\"; it must be an integer from 0 to 18446744073709551615`},
		{"key=k", "-1", "Last-Event-ID"},
	} {
		got := r.get(scanPath+"?follow=true&"+c.query, "Accept", "text/event-stream", "Last-Event-ID", c.id)
		require.Equal(t, 400, got.status, c.query)
		require.Contains(t, got.body, c.want)
	}
	r.followers(0, 0, 0)
	// Without follow=true the header says nothing.
	got := r.get(scanPath+"?key=k", "Accept", "text/event-stream")
	require.Equal(t, 200, got.status)
	require.Equal(t, "application/json", got.header.Get("Content-Type"))
	head := r.do("HEAD", scanPath+"?key=k&follow=true", nil, "Accept", "text/event-stream")
	require.Equal(t, 200, head.status)
	require.Equal(t, "text/event-stream", head.header.Get("Content-Type"))
}

// impatient makes streams that are silent, or whose clients are slow, show it soon.
func impatient(s *Server) {
	s.following.keepAlive, s.following.interval = 20*time.Millisecond, 5*time.Millisecond
	s.pieceTimeout = 100 * time.Millisecond
}

func TestSilentStreamsSayWhereTheyAre(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := startWith(t, Options{}, impatient).speak(http2)
		r.mustAppend("other", "")
		o := r.events("key=k")
		require.Equal(t, ":\nid: 1\n", o.next())
		require.Equal(t, ":\nid: 1\n", o.next())
		r.mustAppend("other", "")
		for o.next() != ":\nid: 2\n" {
		}
		r.mustAppend("k", "v")
		require.Equal(t, event("k", 2, "v"), o.record())
		require.Equal(t, ":\nid: 3\n", o.next())

		p := r.open("POST", followPath, `{"streams":[{"key":"aw"}]}`)
		require.Contains(t, p.next(), `data: {"key":"aw==","sequence":2,`)
		require.Equal(t, "event: cursor\ndata: {\"nextSequence\":3}\n", p.next())
		p = r.open("POST", followPath, `{"streams":[{"key":"aw","startSeq":3}]}`, "Accept", "application/x-ndjson")
		require.Equal(t, `{"nextSequence":3}`, p.line())
		require.Equal(t, `{"nextSequence":3}`, p.line())
	})
}

func TestFollowMany(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		for _, k := range []string{"a/1", "b", "a/2", "c", "a/1"} {
			r.mustAppend(k, "v")
		}
		body := fmt.Sprintf(`{"streams":[{"key":"%s","startSeq":1},{"key":"%s"}],"prefixes":[{"prefix":"%s","startSeq":1}]}`, b64("a/1"), b64("b"), b64("a/"))
		got := map[string]bool{}
		o := r.open("POST", followPath, body, "Accept", "application/x-ndjson")
		require.Equal(t, "application/x-ndjson", o.resp.Header.Get("Content-Type"))
		e := r.open("POST", followPath, body)
		require.Equal(t, "text/event-stream", e.resp.Header.Get("Content-Type"))
		for range 3 {
			got[o.line()] = true
			require.True(t, strings.HasPrefix(e.next(), "data: {"))
		}
		require.Equal(t, map[string]bool{object("b", 1, "v"): true, object("a/2", 2, "v"): true, object("a/1", 4, "v"): true}, got)
		r.followers(0, 0, 2)
		require.EqualValues(t, 6, r.Server.following.streams.Load())
		r.mustAppend("c", "not followed")
		r.mustAppend("a/3", "a new key")
		for line := ""; line != object("a/3", 6, "a new key"); line = o.line() {
			require.NotContains(t, line, b64("c"))
		}
		o.cancel()
		e.cancel()
		r.followers(0, 0, 0)
		r.waiters(0)
		r.holdsNothing()
		require.Eventually(t, func() bool { return r.Server.following.streams.Load() == 0 }, patience, time.Millisecond)
	})
}

func TestFollowRefuses(t *testing.T) {
	r := start(t, Options{MaxFollowStreams: 3})
	long := b64(strings.Repeat("k", 4097))
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{``, 400, "Invalid input: the body is empty"},
		{`{}`, 400, "Invalid input: streams or prefixes are required"},
		{`rubbish`, 400, "Invalid input: "},
		{`{"streams":[{"key":"aw"},{"key":"aw"},{"key":"aw"}],"prefixes":[{"prefix":""}]}`, 400, "more than 3 streams and prefixes"},
		{`{"streams":[{"key":"` + long + `"}]}`, 400, "key has 4097 bytes; at most 4096 are allowed"},
		{`{"streams":[{}]}`, 400, "streams[0]: key is required"},
	} {
		got := r.post(followPath, c.body)
		require.Equal(t, c.status, got.status, c.body)
		require.Contains(t, got.body, c.want)
		require.NotContains(t, got.body, "outcome")
	}
	require.Equal(t, 415, r.post(followPath, `{}`, "Content-Type", "application/protobuf").status)
	require.Equal(t, 405, r.get(followPath).status)
	r.followers(0, 0, 0)
	r.holdsNothing()

	r = start(t, Options{BodyLimit: 1000, InFlightBytes: 3000})
	got := r.post(followPath, `{"streams":[{"key":"`+strings.Repeat("k", 1000)+`"}]}`)
	require.Equal(t, 413, got.status)
	require.Contains(t, got.body, "the body is larger than the limit of 1000 bytes")
}

// Bodies of POST /follow have a limit of their own.
func TestFollowTakesLargeBodies(t *testing.T) {
	r := start(t, Options{BodyLimit: 1000})
	var body strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&body, `,{"key":"%s","startSeq":0}`, b64(fmt.Sprintf("key/%d", i)))
	}
	o := r.open("POST", followPath, `{"streams":[`+body.String()[1:]+`]}`, "Accept", "application/x-ndjson")
	r.holdsNothing()
	r.mustAppend("key/500", "v")
	require.Equal(t, object("key/500", 0, "v"), o.line())
}

func TestTooManyFollowers(t *testing.T) {
	r := start(t, Options{MaxFollowers: 2, MaxFollowStreams: 1})
	o := r.events("key=k")
	c := r.later(scanPath + "?key=k&follow=true&timeout_ms=300000")
	r.followers(1, 1, 0)
	refused := func(a answer) {
		t.Helper()
		require.Equal(t, 503, a.status)
		require.Equal(t, "1", a.header.Get("Retry-After"))
		require.Contains(t, a.body, "2 requests wait for records already")
	}
	refused(r.get(scanPath + "?key=k&follow=true"))
	refused(r.get(scanPath + "?key=k&min_sequence=9"))
	refused(r.get(scanPath+"?key=k&follow=true", "Accept", "text/event-stream"))
	refused(r.post(followPath, `{"streams":[{"key":"aw"}]}`))
	require.Equal(t, 200, r.get(scanPath+"?key=k").status, "who does not wait does not count")
	require.Contains(t, r.get("/metrics").body, "\nannals_http_followers_refused_total 4\n")
	r.mustAppend("k", "v")
	require.Equal(t, 200, soon(t, c).status)
	require.Equal(t, event("k", 0, "v"), o.next())
	r.followers(0, 1, 0)
	r.events("key=k")
	refused(r.get(scanPath + "?key=k&follow=true&start_seq=1"))
}

func TestTooManyFollowedStreams(t *testing.T) {
	r := start(t, Options{MaxFollowStreams: 2})
	const body = `{"streams":[{"key":"aw"}],"prefixes":[{"prefix":"eA"}]}`
	var all []*opened
	for range totalStreams {
		all = append(all, r.open("POST", followPath, body))
	}
	got := r.post(followPath, body)
	require.Equal(t, 503, got.status)
	require.Contains(t, got.body, "8 keys and prefixes are followed already, and 2 more are too many")
	all[0].cancel()
	r.followers(0, 0, totalStreams-1)
	require.Eventually(t, func() bool { return r.Server.following.streams.Load() == 6 }, patience, time.Millisecond)
	r.open("POST", followPath, body)
}

// Streams end cleanly when the server shuts down or the log stops.
func TestStreamsEnd(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		for name, stop := range map[string]func(r *running) error{
			"shutdown": func(r *running) error { return r.Shutdown(context.Background()) },
			"closed":   func(r *running) error { return r.db.(*engine.DB).Close(context.Background()) },
		} {
			t.Run(name, func(t *testing.T) {
				r := start(t, Options{}).speak(http2)
				e := r.events("key=k")
				p := r.open("POST", followPath, `{"streams":[{"key":"aw"}]}`)
				l := r.open("POST", followPath, `{"streams":[{"key":"aw"}]}`, "Accept", "application/x-ndjson")
				r.waiters(3)
				stopped := make(chan error, 1)
				go func() { stopped <- stop(r) }()
				comment, line := ": shutting down\n\n", ""
				if name == "closed" {
					line = `{"status":"error","message":"database is closed"}`
					comment = "event: end\ndata: " + line + "\n\n"
					line += "\n"
				}
				require.Equal(t, comment, e.rest())
				require.Equal(t, comment, p.rest())
				require.Equal(t, line, l.rest())
				r.followers(0, 0, 0)
				require.NoError(t, <-stopped)
			})
		}
	})
}

func TestFencedStreamsEnd(t *testing.T) {
	store := mem.New(mem.Options{})
	r := start(t, Options{DB: openDB(t, store, engine.Options{})})
	o := r.events("key=k")
	openDB(t, store, engine.Options{}) // a second writer
	require.Contains(t, o.rest(), "fenced: another writer has opened the log")
	got := r.post(followPath, `{"streams":[{"key":"aw"}]}`)
	require.Equal(t, 503, got.status)
	require.NotContains(t, got.body, "outcome")
}

// A client that stops reading is cut off, and nothing of it stays.
func TestSlowClientsAreCutOff(t *testing.T) {
	overAll(t, func(t *testing.T, run func(Options, func(*Server)) *running) {
		r := run(Options{}, func(s *Server) {
			s.pieceTimeout, s.following.interval = 2*time.Second, 10*time.Millisecond // a slow machine is no slow client
		})
		o := r.events("key=k")
		q := r.events("key=k") // over HTTP/2 on the same connection, which must live
		value := strings.Repeat("v", 1<<20)
		for i := range 12 { // more than all buffers on the way hold
			r.mustAppend("k", value)
			require.True(t, event("k", uint64(i), value) == q.record(), "record %d", i)
		}
		r.followers(0, 1, 0)
		require.Contains(t, r.get("/metrics").body, "\nannals_http_followers_cut_total 1\n")
		_, err := io.Copy(io.Discard, o.in)
		require.Error(t, err)
		r.mustAppend("k", "still followed")
		require.Equal(t, event("k", 12, "still followed"), q.record())
		q.cancel()
		r.waiters(0)
		r.holdsNothing()
	})
}

// A connection that is reset ends its stream at once.
func TestResetConnectionFreesItsStream(t *testing.T) {
	r := start(t, Options{})
	conn, err := net.Dial("tcp", r.url[len("http://"):])
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET "+scanPath+"?key=k&follow=true HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
	require.NoError(t, err)
	r.followers(0, 1, 0)
	require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
	require.NoError(t, conn.Close())
	r.followers(0, 0, 0)
	r.waiters(0)
}

// Large records come whole, in pieces, and also where the memory for them is short.
func TestStreamsOfLargeRecords(t *testing.T) {
	const size, clients = 256 << 10, 10
	for _, flushed := range []bool{false, true} {
		t.Run(fmt.Sprintf("flushed=%v", flushed), func(t *testing.T) {
			db := openDB(t, mem.New(mem.Options{}), engine.Options{RecentBytes: 1})
			r := start(t, Options{DB: db, MaxValueBytes: size, ResponseBytes: chunkBytes + 3*size})
			var wants []string
			for i := range 8 {
				value := strings.Repeat(string(rune('a'+i)), size-i)
				r.mustAppend("k", value)
				wants = append(wants, event("k", uint64(i), value))
			}
			if flushed {
				require.NoError(t, db.Flush(t.Context()))
			}
			done := make(chan string, clients)
			for range clients {
				go func() {
					o := r.events("key=k")
					for i, want := range wants {
						if got := o.next(); got != want {
							done <- fmt.Sprintf("record %d has %d bytes", i, len(got))
							return
						}
					}
					done <- ""
				}()
			}
			for range clients {
				require.Empty(t, <-done)
			}
			require.LessOrEqual(t, r.responses.peak, r.responses.total)
			require.NoError(t, r.Shutdown(context.Background()))
			r.holdsNothing()
		})
	}
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func TestReplicaDoesNotAppend(t *testing.T) {
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	r := start(t, Options{DB: reading{db}})
	for _, method := range []string{"POST", "GET", "PUT"} {
		got := r.do(method, appendPath, bytes.NewBufferString(`{"records":[]}`))
		require.Equal(t, 404, got.status)
		require.Equal(t, `{"status":"error","message":"this is a replica: it does not append"}`, got.body)
	}
	require.Equal(t, 200, r.get(scanPath+"?key=k").status)
}

// reading is a log that cannot be written to, as a replica.
type reading struct{ DB }
