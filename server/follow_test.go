package server

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

const scanPath = "/api/v1/log/scan"

// later starts a request and returns its answer when it comes.
func (r *running) later(path string) <-chan answer {
	out := make(chan answer, 1)
	go func() { out <- r.get(path) }()
	return out
}

// waiters waits until exactly n reads wait in the log.
func (r *running) waiters(n int64) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.db.Status().Followers == n }, patience, time.Millisecond)
}

func soon(t *testing.T, c <-chan answer) answer {
	t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(patience): // far below timeout_ms of these tests
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func TestFollowWakesAtOnce(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		r.mustAppend("k", "old")
		got := r.get(scanPath + "?key=k&follow=true&timeout_ms=300000") // records are there: no wait
		require.Contains(t, got.body, `"nextSequence":1,`)

		c := r.later(scanPath + "?key=k&start_seq=1&follow=true&timeout_ms=300000")
		r.waiters(1)
		r.mustAppend("other", "does not wake it")
		r.waiters(1)
		r.mustAppend("k", "new")
		got = soon(t, c)
		require.Equal(t, 200, got.status)
		require.Equal(t, `{"status":"success","key":"aw==","values":[{"sequence":2,"value":"bmV3","timestampMs":1700000000000}],`+
			`"nextSequence":3,"firstSequence":0}`, got.body)
		r.waiters(0)
	})
}

func TestFollowTimesOut(t *testing.T) {
	r := start(t, Options{})
	r.mustAppend("k", "")
	r.mustAppend("other", "")
	got := r.get(scanPath + "?key=k&start_seq=1&follow=true&timeout_ms=5")
	require.Equal(t, `{"status":"success","key":"aw==","values":[],"nextSequence":2,"firstSequence":0}`, got.body)
	require.Equal(t, got.body, r.get(scanPath+"?key=k&start_seq=1&follow=true&timeout_ms=0").body)
	r.waiters(0)
}

func TestFollowOfARangeThatIsOverReturnsAtOnce(t *testing.T) {
	r := start(t, Options{})
	r.mustAppend("other", "")
	got := r.get(scanPath + "?key=k&end_seq=1&follow=true&timeout_ms=300000")
	require.Equal(t, `{"status":"success","key":"aw==","values":[],"nextSequence":1,"firstSequence":0}`, got.body)

	c := r.later(scanPath + "?key=k&end_seq=2&follow=true&timeout_ms=300000")
	r.waiters(1)
	r.mustAppend("other", "") // the frontier reaches the end
	require.Equal(t, `{"status":"success","key":"aw==","values":[],"nextSequence":2,"firstSequence":0}`, soon(t, c).body)
}

func TestFollowSkipsRecordsBeforeSince(t *testing.T) {
	r := start(t, Options{})
	r.mustAppend("k", "old")
	c := r.later(scanPath + "?key=k&follow=true&timeout_ms=300000&since_ms=1700000000001")
	r.waiters(1)
	r.mustAppend("k", "old too") // wakes it, but is not what it asks for
	r.waiters(1)
	require.Empty(t, c)
	require.NoError(t, r.Shutdown(t.Context()))
	require.Contains(t, soon(t, c).body, `"values":[]`)
}

func TestClientThatGoesAwayFreesItsWait(t *testing.T) {
	for _, query := range []string{"follow=true", "min_sequence=100"} {
		overBoth(t, func(t *testing.T, http2 bool) {
			r := start(t, Options{}).speak(http2)
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "GET", r.url+scanPath+"?key=k&timeout_ms=300000&"+query, nil)
			require.NoError(t, err)
			failed := make(chan error, 1)
			go func() {
				_, err := r.client.Do(req)
				failed <- err
			}()
			r.waiters(1)
			cancel()
			require.ErrorIs(t, <-failed, context.Canceled)
			r.waiters(0)
			require.Eventually(t, func() bool {
				return strings.Contains(r.get("/metrics").body, `http_requests_total{endpoint="/api/v1/log/scan",method="GET",status="499"} 1`)
			}, patience, time.Millisecond)
		})
	}
}

func TestMinSequence(t *testing.T) {
	r := start(t, Options{})
	c := r.later(scanPath + "?key=k&min_sequence=2&timeout_ms=300000")
	r.waiters(1)
	r.mustAppend("k", "a")
	r.mustAppend("other", "b")
	require.Contains(t, soon(t, c).body, `"values":[{"sequence":0,`)

	got := r.get(scanPath + "?key=k&min_sequence=3&timeout_ms=1")
	require.Equal(t, 504, got.status)
	require.Equal(t, `{"status":"error","message":"min_sequence 3 was not reached in time: the frontier is 2"}`, got.body)
}

func TestShutdownAnswersLongPolls(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		follow := r.later(scanPath + "?key=k&follow=true&timeout_ms=300000")
		least := r.later(scanPath + "?key=k&min_sequence=9&timeout_ms=300000")
		r.waiters(2)
		require.NoError(t, r.Shutdown(t.Context()))
		got := soon(t, follow)
		require.Equal(t, 200, got.status)
		require.Contains(t, got.body, `"values":[],"nextSequence":0`)
		require.Equal(t, 503, soon(t, least).status)
		_, err := r.client.Get(r.url + "/-/healthy")
		require.Error(t, err, "nobody listens any more")
	})
}

func TestShutdownFinishesWhatIsUnderWay(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
		entered, goOn := make(chan struct{}), make(chan struct{})
		db.append = func(ctx context.Context, recs []engine.Record, o engine.AppendOptions) (engine.AppendResult, error) {
			close(entered)
			<-goOn
			return db.DB.Append(ctx, recs, o)
		}
		r := start(t, Options{DB: db}).speak(http2)
		out := make(chan answer, 1)
		go func() { out <- r.post(appendPath, `{"records":[{"key":"","value":""}]}`) }()
		<-entered
		done := make(chan error, 1)
		go func() { done <- r.Shutdown(context.Background()) }()
		<-r.draining.Done()
		require.Empty(t, done)
		close(goOn)
		require.Equal(t, 200, soon(t, out).status)
		require.NoError(t, <-done)
	})
}

func TestShutdownCutsOffWhatHangs(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	entered, left := make(chan struct{}), make(chan error, 1)
	db.append = func(ctx context.Context, _ []engine.Record, _ engine.AppendOptions) (engine.AppendResult, error) {
		close(entered)
		<-ctx.Done()
		left <- ctx.Err()
		return engine.AppendResult{}, &engine.AppendError{Outcome: engine.Unknown, Err: ctx.Err()}
	}
	r := start(t, Options{DB: db})
	failed := make(chan error, 1)
	go func() {
		_, err := r.client.Post(r.url+appendPath, "", bytes.NewBufferString("{}"))
		failed <- err
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Shutdown(ctx), context.Canceled)
	require.ErrorIs(t, <-left, context.Canceled)
	require.Error(t, <-failed)
}

func TestReady(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	r := start(t, Options{DB: db})
	require.Equal(t, answer{200, http.Header{}, "OK", 1}, strip(r.get("/-/ready")))
	db.notOK = engine.ErrStale
	got := r.get("/-/ready")
	require.Equal(t, 503, got.status)
	require.Equal(t, `{"status":"error","message":"not ready: view of the log is stale"}`, got.body)
	require.Equal(t, 200, r.get("/-/healthy").status)
	db.notOK = nil
	r.drain()
	require.Equal(t, `{"status":"error","message":"not ready: shutting down"}`, r.get("/-/ready").body)
}

func strip(a answer) answer {
	a.header = http.Header{}
	return a
}

func TestFencedServerAnswers503(t *testing.T) {
	store := mem.New(mem.Options{})
	r := start(t, Options{DB: openDB(t, store, engine.Options{})})
	r.mustAppend("k", "v")
	follow := r.later(scanPath + "?key=k&start_seq=1&follow=true&timeout_ms=300000")
	r.waiters(1)
	openDB(t, store, engine.Options{}) // a second writer
	got := soon(t, follow)             // the first notices by its poll of the head
	require.Equal(t, 503, got.status)
	require.Contains(t, got.body, "fenced: another writer has opened the log")

	for _, path := range []string{"scan?key=k", "scan", "keys", "segments", "count?key=k", "keys?limit=0"} {
		got := r.get("/api/v1/log/" + path)
		require.Equal(t, 503, got.status, path)
		require.Contains(t, got.body, "fenced")
		require.NotContains(t, got.body, "outcome")
	}
	for _, body := range []string{`{"records":[{"key":"","value":""}]}`, `{}`, `rubbish`} {
		got := r.post(appendPath, body)
		require.Equal(t, 503, got.status)
		require.Contains(t, got.body, `"outcome":"not_appended"}`)
	}
	require.Equal(t, 503, r.get("/-/ready").status)
	require.Equal(t, 200, r.get("/-/healthy").status)
	require.Equal(t, 200, r.get("/metrics").status)
	require.Equal(t, 404, r.get("/api/v1/log/none").status)
}

func TestClosedLogAnswers503(t *testing.T) {
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	r := start(t, Options{DB: db})
	require.NoError(t, db.Close(t.Context()))
	require.Equal(t, 503, r.get(scanPath+"?key=k").status)
	require.Equal(t, 503, r.get("/api/v1/log/keys").status)
	require.Equal(t, 503, r.get("/-/ready").status)
	got := r.post(appendPath, `{"records":[{"key":"","value":""}]}`)
	require.Equal(t, 503, got.status)
	require.Contains(t, got.body, `"outcome":"not_appended"}`)
}

func TestReadFailures(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	r := start(t, Options{DB: db})
	for _, c := range []struct {
		err    error
		status int
	}{{engine.ErrStale, 503}, {context.DeadlineExceeded, 504}, {engine.ErrCorrupt, 500}, {engine.ErrInvalid, 400}} {
		db.count = func(ctx context.Context) (uint64, error) {
			_, ok := ctx.Deadline()
			require.True(t, ok, "reads are bounded")
			return 0, c.err
		}
		require.Equal(t, c.status, r.get("/api/v1/log/count?key=k").status)
	}
	db.err = engine.ErrCorrupt // damage that stopped the log
	got := r.get("/api/v1/log/count?key=k")
	require.Equal(t, 503, got.status)
	require.Contains(t, got.body, "the log has stopped: corrupt object")
}

func TestPanicIsAnswered(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	db.count = func(context.Context) (uint64, error) { panic("a bug") }
	r := start(t, Options{DB: db})
	got := r.get("/api/v1/log/count?key=k")
	require.Equal(t, 500, got.status)
	require.Contains(t, got.body, `"message":"Internal error: `)
	require.Contains(t, r.get("/metrics").body, `http_requests_total{endpoint="/api/v1/log/count",method="GET",status="500"} 1`)
}

// A damaged table: the answer names the object (invariant I8).
func TestDamagedTableIs500(t *testing.T) {
	store := mem.New(mem.Options{})
	db := openDB(t, store, engine.Options{})
	_, err := db.Append(t.Context(), []engine.Record{{Key: []byte("k"), Value: []byte("v")}}, engine.AppendOptions{})
	require.NoError(t, err)
	require.NoError(t, db.Flush(t.Context()))
	require.NoError(t, db.Close(t.Context()))

	damaged := fault.New(store, func(_ context.Context, op fault.Op) fault.Plan {
		if !strings.Contains(op.Name, "/sst/") {
			return fault.Plan{}
		}
		return fault.Plan{Mangle: func(o *objstore.Object) error {
			o.Body = bytes.Clone(o.Body)
			o.Body[len(o.Body)/2] ^= 1
			return nil
		}}
	})
	r := start(t, Options{DB: openDB(t, damaged, engine.Options{})})
	for _, path := range []string{scanPath + "?key=k", scanPath + "?key=k&last=1", "/api/v1/log/keys", "/api/v1/log/count?key=k"} {
		got := r.get(path)
		require.Equal(t, 500, got.status, path)
		require.Contains(t, got.body, `"message":"Storage error: `)
		require.Contains(t, got.body, "corrupt object trees/00000000/sst/0000000001/")
		require.Contains(t, got.body, " at offset ")
	}
}
