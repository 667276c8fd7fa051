package crowd

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server"
	"github.com/annalsdb/annals/wire"
)

// serveVariable makes the test binary a crowd's process.
const serveVariable = "ANNALS_TEST_CROWD"

func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) != "" {
		if Serve(os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// notes is a sink that keeps everything.
type notes struct {
	mu     sync.Mutex
	opened int
	broken []string
	got    map[uint32][]Delivery
	come   chan struct{} // capacity 1
}

func newNotes() *notes { return &notes{got: make(map[uint32][]Delivery), come: make(chan struct{}, 1)} }

func (n *notes) Delivered(d Delivery) {
	n.note(func() { n.got[d.Follower] = append(n.got[d.Follower], d) })
}
func (n *notes) Opened(more int)  { n.note(func() { n.opened += more }) }
func (n *notes) Broken(err error) { n.note(func() { n.broken = append(n.broken, err.Error()) }) }

func (n *notes) note(f func()) {
	n.mu.Lock()
	f()
	n.mu.Unlock()
	select {
	case n.come <- struct{}{}:
	default:
	}
}

// until waits until what was noted fulfils a condition.
func (n *notes) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		n.mu.Lock()
		ok := holds()
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-n.come:
		case <-late:
			n.mu.Lock()
			defer n.mu.Unlock()
			require.Fail(t, "did not come: "+what, "%d opened, broken: %v", n.opened, n.broken)
		}
	}
}

// rig is a server with a log in memory.
type rig struct {
	db  *engine.DB
	srv *server.Server
	url string
}

func serve(t *testing.T, o server.Options) *rig {
	store := mem.New(mem.Options{})
	db, err := engine.Open(t.Context(), store, engine.Options{FlushInterval: time.Millisecond})
	require.NoError(t, err)
	o.DB = db
	srv, err := server.New(o)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, srv.Shutdown(ctx))
		require.NoError(t, <-served)
		require.NoError(t, db.Close(ctx))
		_, err := engine.Check(ctx, store, engine.CheckOptions{})
		require.NoError(t, err)
	})
	return &rig{db: db, srv: srv, url: "http://" + l.Addr().String()}
}

// append appends a record to each of n keys, as append number op.
func (r *rig) append(t *testing.T, run, op uint64, n, size int) (first uint64) {
	t.Helper()
	recs := make([]engine.Record, n)
	for i := range recs {
		s := Stamp{Run: run, Due: int64(op) + 1, Op: op, Index: uint32(i), Key: uint32(i)}
		value := make([]byte, size)
		s.Put(value)
		recs[i] = engine.Record{Key: Key(i), Value: value}
	}
	res, err := r.db.Append(t.Context(), recs, engine.AppendOptions{})
	require.NoError(t, err)
	return res.First
}

func requireOrdered(t *testing.T, n *notes, followers int, run uint64, firsts ...uint64) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	require.Len(t, n.got, followers)
	for i := range uint32(followers) {
		require.Len(t, n.got[i], len(firsts))
		for op, d := range n.got[i] {
			require.Positive(t, d.At)
			d.At = 0
			require.Equal(t, Delivery{Stamp: Stamp{Run: run, Due: int64(op) + 1, Op: uint64(op), Index: i, Key: i},
				Follower: i, Seq: firsts[op] + uint64(i)}, d)
		}
	}
}

// settings are all forms, with more followers than fit on a connection.
func settings(url string, run uint64) []Options {
	return []Options{
		{URL: url, Form: HTTP2, Followers: 150, PerConnection: 100, Run: run},
		{URL: url, Form: HTTP1, Followers: 50, Run: run},
		{URL: url, Form: Shared, Followers: 150, PerConnection: 100, Run: run},
	}
}

func TestFollowersGetTheirRecordsInOrder(t *testing.T) {
	for _, o := range settings("", 7) {
		t.Run(string(o.Form), func(t *testing.T) {
			r := serve(t, server.Options{})
			o.URL, o.From = r.url, r.append(t, 1, 0, 1, 100)+1 // one that is before all of it
			n := newNotes()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- Run(ctx, o, n) }()
			n.until(t, "all followers", func() bool { return n.opened == o.Followers })
			var firsts []uint64
			for op, size := range []int{MinValue, 1 << 10, 100 << 10} { // the last one in several pieces
				firsts = append(firsts, r.append(t, o.Run, uint64(op), o.Followers, size))
			}
			n.until(t, "all records", func() bool {
				for i := range uint32(o.Followers) {
					if len(n.got[i]) < len(firsts) {
						return false
					}
				}
				return true
			})
			requireOrdered(t, n, o.Followers, o.Run, firsts...)
			cancel()
			require.NoError(t, <-ended)
			require.Empty(t, n.broken)
		})
	}
}

func TestProcess(t *testing.T) {
	r := serve(t, server.Options{})
	for run, o := range settings(r.url, 0) {
		o.Run, o.From = uint64(run), r.db.Frontier()
		n := newNotes()
		p, err := Start([]string{os.Args[0]}, append(os.Environ(), serveVariable+"=1"), o, n)
		require.NoError(t, err)
		n.until(t, "all followers", func() bool { return n.opened == o.Followers })
		first := r.append(t, o.Run, 0, o.Followers, 1000)
		n.until(t, "all records", func() bool { return len(n.got) == o.Followers })
		usage, err := p.Stop()
		require.NoError(t, err)
		require.Positive(t, usage.CPU)
		require.Positive(t, usage.PeakRSS)
		requireOrdered(t, n, o.Followers, o.Run, first)
	}
}

// A server that refuses, or is not there, is an error that says what it said.
func TestRefused(t *testing.T) {
	r := serve(t, server.Options{MaxFollowers: 3})
	for _, o := range settings(r.url, 1) {
		if o.Form == Shared {
			o.PerConnection = 1
		}
		err := Run(t.Context(), o, newNotes())
		require.ErrorContains(t, err, "503", o.Form)
		require.ErrorContains(t, err, "wait for records already", o.Form)
	}
	p, err := Start([]string{os.Args[0]}, append(os.Environ(), serveVariable+"=1"), settings(r.url, 1)[0], newNotes())
	require.NoError(t, err)
	<-p.Done()
	_, err = p.Stop()
	require.ErrorContains(t, err, "wait for records already")

	// What it refuses for now is tried again.
	s := newScript(1, HTTP1)
	s.busy.Store(2)
	close(s.breaks)
	s.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	n, ended := newNotes(), make(chan error, 1)
	go func() { ended <- Run(ctx, Options{URL: s.URL, Form: HTTP1, Followers: 1, From: 2, Run: 1}, n) }()
	n.until(t, "a record", func() bool { return len(n.got[0]) == 1 })
	cancel()
	require.NoError(t, <-ended)
	require.Empty(t, n.broken)

	require.ErrorContains(t, Run(t.Context(), Options{URL: "https://h", Followers: 1}, newNotes()), "http://HOST:PORT")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.ErrorContains(t, Run(t.Context(), settings("http://"+l.Addr().String(), 1)[0], newNotes()), "connect follower ")
}

// Every form shows the token.
func TestToken(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("%q", r.Header["Authorization"]), http.StatusForbidden)
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	for _, o := range settings(s.URL, 1) {
		o.Followers = 1
		require.ErrorContains(t, Run(t.Context(), o, newNotes()), "[]", o.Form)
		o.Token = "of-the-test"
		require.ErrorContains(t, Run(t.Context(), o, newNotes()), `["Bearer of-the-test"]`, o.Form)
	}
}

// A connection that is lost is made again, from where it was: nothing is lost, and nothing comes twice.
func TestConnectsAgain(t *testing.T) {
	const run = 9
	for _, o := range []Options{
		{Form: HTTP2, Followers: 2, PerConnection: 2, Run: run},
		{Form: HTTP1, Followers: 2, Run: run},
		{Form: Shared, Followers: 2, PerConnection: 2, Run: run},
	} {
		t.Run(string(o.Form), func(t *testing.T) {
			s := newScript(run, o.Form)
			s.start(t)
			o.URL = s.URL
			n := newNotes()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- Run(ctx, o, n) }()
			n.until(t, "both followers", func() bool { return n.opened == 2 })
			close(s.breaks)
			n.until(t, "all records", func() bool { return len(n.got[0]) == 3 && len(n.got[1]) == 3 })
			cancel()
			require.NoError(t, <-ended)
			require.NotEmpty(t, n.broken)
			require.Equal(t, 2, n.opened)
			for i := range uint32(2) {
				for seq, d := range n.got[i] {
					require.Equal(t, uint64(seq), d.Seq)
				}
			}
		})
	}
}

// script is a server that sends one record to each stream, up to three in all, and breaks it within the next.
type script struct {
	*httptest.Server
	run    uint64
	form   Form
	breaks chan struct{} // not before it is closed
	busy   atomic.Int64  // so many requests are refused for now
}

func newScript(run uint64, form Form) *script {
	return &script{run: run, form: form, breaks: make(chan struct{})}
}

// hold returns when the stream is to be broken.
func (s *script) hold(w http.ResponseWriter, r *http.Request, from uint64) {
	_ = http.NewResponseController(w).Flush()
	<-s.breaks
	if from >= 2 {
		<-r.Context().Done()
	}
}

func (s *script) start(t *testing.T) {
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
}

func (s *script) record(framing wire.Framing, key int, seq uint64) []byte {
	value := make([]byte, 200)
	(&Stamp{Run: s.run, Key: uint32(key)}).Put(value)
	return framing.AppendRecord(nil, &wire.StreamRecord{Key: Key(key), Sequence: seq, Value: value})
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.busy.Add(-1) >= 0 {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if s.form == Shared {
		s.shared(w, r)
		return
	}
	var key int
	var from uint64
	_, err := fmt.Sscanf(r.URL.Query().Get("key"), "key-%d", &key)
	if err == nil {
		_, err = fmt.Sscan(r.URL.Query().Get("start_seq"), &from)
	}
	if err != nil || r.Header.Get("Accept") != acceptEvents {
		http.Error(w, "wrong request", http.StatusBadRequest)
		return
	}
	if from < 3 {
		_, _ = w.Write(s.record(wire.Events, key, from))
	}
	half := s.record(wire.Events, key, from+1)
	_, _ = w.Write(half[:len("id: 1\ndata: ")]) // the id says more than came
	s.hold(w, r, from)
}

func (s *script) shared(w http.ResponseWriter, r *http.Request) {
	data, _ := io.ReadAll(r.Body)
	b, err := wire.ParseFollowBody(data, 10, 100)
	if err != nil || len(b.Streams) != 2 || r.Header.Get("Accept") != acceptLines {
		http.Error(w, "wrong request", http.StatusBadRequest)
		return
	}
	for i, st := range b.Streams {
		if st.Start < 3 {
			_, _ = w.Write(s.record(wire.Lines, i, st.Start))
		}
	}
	half := s.record(wire.Lines, 0, 99)
	_, _ = w.Write(half[:len(half)/2])
	s.hold(w, r, b.Streams[0].Start)
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 2000)
	text := "one\n\n" + long + "\nlast\nno end"
	for size := 1; size <= len(text); size++ {
		var l lines
		var got []string
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			require.NoError(t, l.feed([]byte(rest[:n]), func(line []byte) error {
				got = append(got, string(line[:min(len(line), maxLineHead)]))
				return nil
			}))
			rest = rest[n:]
		}
		require.Equal(t, []string{"one", "", long[:maxLineHead], "last"}, got, "pieces of %d", size)
	}
}

// What a stream says is read as the server writes it.
func TestParseLine(t *testing.T) {
	value := make([]byte, 500)
	s := Stamp{Run: 1 << 60, Due: 1700000000e9, Op: 1 << 40, Index: 99, Key: 12345}
	s.Put(value)
	for _, framing := range []wire.Framing{wire.Events, wire.PlainEvents, wire.Lines} {
		line := string(framing.AppendRecord(nil, &wire.StreamRecord{Key: Key(12345), Sequence: 77, TimestampMs: 5, Value: value}))
		line = strings.TrimRight(line, "\n")
		if id, data, found := strings.Cut(line, "\n"); found {
			it, err := parseLine([]byte(id))
			require.NoError(t, err)
			require.Equal(t, item{kind: place, next: 78}, it)
			line = data
		}
		it, err := parseLine([]byte(line[:maxLineHead]))
		require.NoError(t, err)
		require.Equal(t, item{kind: record, key: it.key, seq: 77, next: 78, stamp: s, stamped: true}, it)
		number, ok := keyNumber(it.key)
		require.True(t, ok)
		require.Equal(t, uint64(12345), number)
	}
	for line, want := range map[string]item{
		"":                                       {kind: endOfItem},
		":":                                      {},
		"event: cursor":                          {},
		"id: 5":                                  {kind: place, next: 5},
		`{"nextSequence":18}`:                    {kind: cursor, next: 18},
		`data: {"nextSequence":1}`:               {kind: cursor, next: 1},
		`data: {"status":"error","message":"m"}`: {kind: end, why: `{"status":"error","message":"m"}`},
	} {
		it, err := parseLine([]byte(line))
		require.NoError(t, err)
		require.Equal(t, want, it, line)
	}
	short, err := parseLine([]byte(`{"key":"YQ==","sequence":3,"timestampMs":1,"value":"","nextSequence":4}`))
	require.NoError(t, err)
	require.False(t, short.stamped)
	for _, wrong := range []string{"id: x", "data: what", `{"key":"`, `{"key":"a","sequence":x`, `{"key":"a","sequence":1}`, `{"nextSequence":}`} {
		_, err := parseLine([]byte(wrong))
		require.Error(t, err, wrong)
	}
	for _, wrong := range []string{"", "key-000000000001", base64.StdEncoding.EncodeToString([]byte("kex-000000000001")), base64.StdEncoding.EncodeToString([]byte("key-00000000000x"))} {
		_, ok := keyNumber([]byte(wrong))
		require.False(t, ok, wrong)
	}
}
