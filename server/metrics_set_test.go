package server

import (
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/trace"
)

// leftUploads is a store with an unfinished multipart upload, that counts HTTP requests.
type leftUploads struct {
	objstore.Store
	mu      sync.Mutex
	uploads int
}

func (l *leftUploads) AbortUploads(context.Context, time.Time) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.uploads
	l.uploads = 0
	return n, nil
}

func (l *leftUploads) Sent() []objstore.SentRequests {
	return []objstore.SentRequests{{Operation: "PutObject", Count: [objstore.NumAnswers]uint64{5, 4, 3, 2, 1}}}
}

// life is a log on simulated time whose store can be broken, with its server, and
// which metrics were ever above zero.
type life struct {
	*testing.T
	behind *mem.Store
	store  *metered.Store
	db     *engine.DB
	server *Server
	token  string // to ask with; "": none
	random *rand.Rand
	seen   map[string]bool

	mu    sync.Mutex
	ahead time.Duration // of the store's clock
	hook  func(fault.Op) fault.Plan
}

func newLife(t *testing.T) *life {
	l := &life{T: t, random: rand.New(rand.NewPCG(1, 2)), seen: map[string]bool{}}
	l.behind = mem.New(mem.Options{Now: func() time.Time {
		l.mu.Lock()
		defer l.mu.Unlock()
		return time.Now().Add(l.ahead)
	}})
	broken := fault.New(l.behind, func(_ context.Context, op fault.Op) fault.Plan {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.hook == nil {
			return fault.Plan{}
		}
		return l.hook(op)
	})
	l.store = metered.New(&leftUploads{Store: broken, uploads: 1}, metered.Options{})
	return l
}

// open opens the log and a server for it.
func (l *life) open(disk string) {
	began := time.Now()
	env := base.SystemEnv()
	env.Elapsed = func() time.Duration { return time.Since(began) }
	o := engine.Options{
		Env: env, FlushInterval: time.Millisecond, WALObjectBytes: 8 << 10, MemtableBytes: 64 << 10, RecentBytes: 1,
		MaxValueBytes: 64 << 10, MaxUnflushedBytes: 256 << 10, TableBytes: 32 << 10, BlockBytes: 1 << 10, CacheBytes: 64 << 10,
		SegmentBytes: 256 << 10, SegmentMinBytes: 1 << 10, Retention: 24 * time.Hour, DiskCacheDir: disk,
		StaleAfter: 10 * time.Second, GCGrace: 2 * time.Minute,
	}
	slow := trace.NewSlowLog(trace.SlowOptions{Threshold: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	o.Tracer = slow
	var err error
	l.db, err = engine.Open(l.Context(), l.store, o)
	require.NoError(l, err)
	l.server, err = New(Options{DB: l.db, Registry: prometheus.NewRegistry(), Store: l.store, SlowLog: slow, AppendTimeout: 5 * time.Second})
	require.NoError(l, err)
}

// ask sends one request to the server.
func (l *life) ask(method, target, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if l.token != "" {
		r.Header.Set("Authorization", "Bearer "+l.token)
	}
	l.server.ServeHTTP(w, r)
	return w
}

// look notes which metrics are above zero, and returns the page.
func (l *life) look() string {
	page := l.ask("GET", "/metrics", "").Body.String()
	for line := range strings.Lines(page) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseFloat(value[strings.LastIndexByte(value, ' ')+1:], 64); err == nil && n > 0 && name != "#" {
			name, _, _ = strings.Cut(name, "{")
			l.seen[strings.TrimSuffix(name, "_count")] = true
		}
	}
	return page
}

// append stores n records of 1 KiB that do not compress.
func (l *life) append(n int) int {
	var records []string
	for range n {
		value := make([]byte, 1<<10)
		for i := range value {
			value[i] = byte(l.random.Uint32())
		}
		records = append(records, fmt.Sprintf(`{"key":"aw","value":"%s"}`, base64.StdEncoding.EncodeToString(value)))
	}
	return l.ask("POST", appendPath, `{"records":[`+strings.Join(records, ",")+`]}`).Code
}

// breaks makes the first n requests that match meet a plan.
func (l *life) breaks(kind fault.Kind, part string, n int, plan fault.Plan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hook = func(op fault.Op) fault.Plan {
		if n == 0 || op.Kind != kind || !strings.Contains(op.Name, part) {
			return fault.Plan{}
		}
		n--
		return plan
	}
}

// holds makes all requests that match wait until the returned function is called.
func (l *life) holds(kind fault.Kind, part string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	free := make(chan struct{})
	l.hook = func(op fault.Op) fault.Plan {
		if op.Kind != kind || !strings.Contains(op.Name, part) {
			return fault.Plan{}
		}
		return waits(free)
	}
	return func() { close(free) }
}

// waits is a plan that waits for a channel.
func waits(free <-chan struct{}) fault.Plan {
	return fault.Plan{Before: func(ctx context.Context) error {
		select {
		case <-free:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

// elapse lets time pass for all, and leap for the store.
func (l *life) elapse(d, leap time.Duration) {
	l.mu.Lock()
	l.ahead += leap
	l.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
	l.look()
}

var fails = fault.Plan{Before: func(context.Context) error { return fault.ErrInjected }}

// notDriven are metrics that a life as short as this does not move; tests of the
// engine's disk cache, and of the telemetry, do.
var notDriven = []string{
	"annals_disk_cache_evictions_total", "annals_disk_cache_dropped_total",
	"annals_traces_spans_total", "annals_traces_queued_spans",
}

// Every metric that is documented is set by what it is about.
func TestEveryMetricIsSet(t *testing.T) {
	disk := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t)
		l.open("")
		require.Equal(t, 200, l.append(3))
		first := l.db
		l.open(disk) // takes the log over, and replays
		defer func() {
			require.NoError(t, l.db.Close(context.Background()))
			_ = first.Close(context.Background()) // it was fenced
		}()
		l.put(base.ObjectID{Kind: base.KindSST, Role: base.RoleWriter, Epoch: 1, Segment: 1, ULID: base.SystemEnv().NewULID()}.Name())
		l.put(base.ProbeName(0, base.SystemEnv().NewULID()))

		l.writes()
		l.remembers()
		l.follows()
		l.streams()
		l.replicates()
		l.refuses()
		l.overloads()
		l.ages()
		l.reads(disk)
		l.expires()

		for _, name := range documentedMetrics(t) {
			if !l.seen[name] {
				require.Contains(t, notDriven, name, "never set")
			}
		}
		page := l.look()
		for _, line := range []string{
			`annals_store_requests_total{op="abort_uploads",result="ok"} `,
			`annals_store_requests_total{op="list",result="ok"} `,
			`annals_store_requests_total{op="delete",result="error"} `,
			`annals_store_requests_total{op="put",result="canceled"} `,
			`annals_store_requests_total{op="put",result="timeout"} `,
		} {
			require.Contains(t, page, "\n"+line)
			require.NotContains(t, page, "\n"+line+"0\n")
		}
	})
}

func (l *life) put(name string) {
	_, err := l.behind.Put(l.Context(), name, []byte("left"), objstore.PutOptions{})
	require.NoError(l, err)
}

// writes meets failures and slowness of the WAL and of flushes, and seals segments.
func (l *life) writes() {
	l.breaks(fault.Put, "/wal/", 1, fails)
	require.Equal(l, 200, l.append(1))
	l.breaks(fault.Put, "/wal/", 1, waits(nil)) // until it is given up
	require.Equal(l, 200, l.append(1))
	l.breaks(fault.Put, "/sst/", 1, fails)
	for range 40 {
		require.Equal(l, 200, l.append(32))
		l.look()
	}
	l.elapse(time.Second, 0)
}

// remembers sets cursors, and meets appends that repeat others or do not fit.
func (l *life) remembers() {
	require.Equal(l, 200, l.ask("PUT", cursorsPath+"/c", `{"cursors":[{"key":"aw","nextSequence":1}]}`).Code)
	for range 2 {
		require.Equal(l, 200, l.ask("POST", appendPath, `{"records":[{"key":"aw","value":""}],"producerId":"p","producerSeq":1}`).Code)
	}
	require.Equal(l, 409, l.ask("POST", appendPath, `{"records":[{"key":"aw","value":""}],"expectedNext":[{"key":"aw","sequence":0}]}`).Code)
	require.NoError(l, l.db.Flush(l.Context()))
	l.look()
}

// follows waits for a record while somebody looks.
func (l *life) follows() {
	next := strconv.FormatUint(l.db.Status().Next, 10)
	answered := make(chan int)
	go func() {
		answered <- l.ask("GET", scanPath+"?key=k&follow=true&timeout_ms=60000&start_seq="+next, "").Code
	}()
	synctest.Wait()
	l.look()
	require.Equal(l, 200, l.append(1))
	require.Equal(l, 200, <-answered)
}

// slowClient takes nothing of an answer until it is cut off.
type slowClient struct {
	*httptest.ResponseRecorder
	cut chan struct{}
}

func (c *slowClient) Write([]byte) (int, error) {
	<-c.cut
	return 0, os.ErrDeadlineExceeded
}

func (c *slowClient) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() && t.Before(time.Now()) {
		close(c.cut)
	}
	return nil
}

// streams follows by two requests, of which one does not take what it gets, while a third
// is too many.
func (l *life) streams() {
	ctx, leave := context.WithCancel(l.Context())
	ended := make(chan int)
	follow := func(w http.ResponseWriter) {
		r := httptest.NewRequest("POST", "/api/v1/log/follow", strings.NewReader(fmt.Sprintf(`{"streams":[{"key":"aw","startSeq":%d}]}`, l.db.Status().Next)))
		l.server.ServeHTTP(w, r.WithContext(ctx))
		ended <- 1
	}
	w := httptest.NewRecorder()
	go follow(w)
	go follow(&slowClient{httptest.NewRecorder(), make(chan struct{})})
	synctest.Wait()
	l.server.following.maxFollowers = 2
	require.Equal(l, 503, l.ask("POST", "/api/v1/log/follow", `{"streams":[{"key":"aw"}]}`).Code)
	l.look()
	require.Equal(l, 200, l.append(1))
	l.elapse(time.Minute, 0)
	<-ended // the slow one
	leave()
	<-ended
	require.Contains(l, w.Body.String(), `data: {"key":"aw==","sequence":`)
	require.Contains(l, w.Body.String(), "event: cursor\n")
}

// lagging is a log that says of itself what a replica would.
type lagging struct{ DB }

func (d lagging) Status() engine.Status {
	s := d.DB.Status()
	s.ReplicaStatus = engine.ReplicaStatus{Replica: true, LagSequences: 1, LagTime: time.Second, WALPolls: 2, WALObjectsRead: 1, ManifestPolls: 1, Jumps: 1}
	return s
}

// refuses has a server with a token, TLS and room for no connection; then its files are spoilt.
func (l *life) refuses() {
	open := l.server
	defer func() { l.server = open }()
	f := newCertFiles(l)
	tokensFile := filepath.Join(l.TempDir(), "tokens.yaml")
	secret := auth.Generate()
	entry := "tokens: [{name: a, scopes: [admin], hash: '" + auth.HashOf(secret).String() + "'}]"
	require.NoError(l, os.WriteFile(tokensFile, []byte(entry), 0o600))
	tokens, err := auth.Open(tokensFile)
	require.NoError(l, err)
	front := NewFront(FrontOptions{TLS: f.open(), MaxConnections: 1})
	l.server, err = New(Options{DB: l.db, Tokens: tokens, Front: front})
	require.NoError(l, err)
	require.Equal(l, 401, l.ask("GET", apiPrefix+"/keys", "").Code)
	front.conns.changed(nil, http.StateNew)
	_, err = (&boundedListener{&oneCaller{}, &front.conns}).Accept()
	require.ErrorIs(l, err, net.ErrClosed)
	require.NoError(l, os.WriteFile(tokensFile, nil, 0o600))
	require.NoError(l, os.WriteFile(f.Key, nil, 0o600))
	tokens.Reload(l.server.log)
	front.tls.Reload(l.server.log)
	l.token = secret
	l.look()
	l.token = ""
}

// oneCaller is a listener that one client calls.
type oneCaller struct {
	net.Listener
	called bool
}

func (o *oneCaller) Accept() (net.Conn, error) {
	if o.called {
		return nil, net.ErrClosed
	}
	o.called = true
	server, _ := net.Pipe()
	return server, nil
}

// replicates looks at a replica's metrics.
func (l *life) replicates() {
	writer := l.server
	var err error
	l.server, err = New(Options{DB: lagging{l.db}})
	require.NoError(l, err)
	l.look()
	l.server = writer
}

// overloads fills the write path while the store takes nothing.
func (l *life) overloads() {
	release := l.holds(fault.Put, "/wal/")
	answered := make(chan int)
	for range 8 {
		go func() { answered <- l.append(60) }()
		synctest.Wait() // one by one: they share what is random
	}
	l.look()
	codes := map[int]int{}
	for range 8 {
		codes[<-answered]++
	}
	require.NotZero(l, codes[429], codes)
	l.elapse(time.Minute, 0) // uploads are given up, and sent again
	release()
	l.elapse(10*time.Second, 0)
}

// ages lets compaction work, one job and one deletion of garbage fail.
func (l *life) ages() {
	l.breaks(fault.Put, "/c0", 24, fails) // a compaction repeats each of its requests a few times itself
	for range 20 {                        // more than a segment
		require.Equal(l, 200, l.append(32))
		l.elapse(time.Second, 0)
	}
	l.elapse(time.Minute, 0)
	l.breaks(fault.Delete, "/sst/", 1, fails)
	l.elapse(4*time.Minute, 0)
	l.elapse(4*time.Minute, 0)
}

// reads finds records in tables, in memory, on disk, and in files that were damaged, and
// meets a request that is slow.
func (l *life) reads(disk string) {
	scan := func() { require.Equal(l, 200, l.ask("GET", scanPath+"?key=k&limit=1000", "").Code) }
	scan()
	scan()
	l.elapse(time.Second, 0) // what was read is on disk now
	scan()
	require.NoError(l, filepath.WalkDir(disk, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "LOCK" {
			return err
		}
		return os.WriteFile(path, []byte("damaged"), 0o600)
	}))
	l.breaks(fault.Get, "/sst/", 1, waits(nil))
	scan()
	l.look()
}

// expires lets the store's clock leap: the log is too old, and what was left
// unfinished too.
func (l *life) expires() {
	l.breaks(fault.Time, "", 1, fails)
	l.elapse(2*time.Minute, 25*time.Hour)
	l.elapse(5*time.Minute, 0)
	_, err := l.db.CollectGarbage(l.Context())
	require.NoError(l, err)
	l.elapse(time.Second, 0)
}
