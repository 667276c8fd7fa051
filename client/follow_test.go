package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server"
)

func (c *Client) mustAppend(t testing.TB, key, value string) {
	t.Helper()
	_, err := c.Append(context.Background(), []Record{{Key: []byte(key), Value: []byte(value)}}, AppendOptions{})
	require.NoError(t, err)
}

// text is a record as tests write it.
func (r *FollowedRecord) text() string {
	return fmt.Sprintf("%s@%d=%s", r.Key, r.Sequence, r.Value.Value)
}

func take(f *Follower, n int) (out []string) {
	for rec := range f.All() {
		if out = append(out, rec.text()); len(out) == n {
			return out
		}
	}
	return out
}

func TestFollowOneKey(t *testing.T) {
	c := newPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	c.mustAppend(t, "k", "a")
	c.mustAppend(t, "other", "")
	c.mustAppend(t, "k", "b")
	f := c.Follow(ctx, FollowOptions{}, Stream{Key: []byte("k")})
	for rec := range f.All() {
		require.NotZero(t, rec.Timestamp)
		require.Equal(t, uint64(1), rec.Next)
		require.Equal(t, uint64(1), f.Cursor())
		break
	}
	require.NoError(t, f.Err())
	require.Equal(t, []string{"k@2=b"}, take(f, 1), "it goes on behind what it returned")
	require.Equal(t, uint64(3), f.Cursor())
	go c.mustAppend(t, "k", "c")
	require.Equal(t, []string{"k@3=c"}, take(f, 1))
	time.AfterFunc(time.Millisecond, cancel)
	require.Empty(t, take(f, 1))
	require.ErrorIs(t, f.Err(), context.Canceled)
	require.Equal(t, []string{"k@2=b"}, take(c.Follow(t.Context(), FollowOptions{}, Stream{Key: []byte("k"), Start: 1}), 1))
}

func TestFollowManyKeys(t *testing.T) {
	c := newPair(t)
	for i := range 6 {
		c.mustAppend(t, fmt.Sprintf("a/%d", i%3), "v")
		c.mustAppend(t, "b", "v")
	}
	f := c.Follow(t.Context(), FollowOptions{}, Stream{Key: []byte("a/"), Prefix: true, Start: 4}, Stream{Key: []byte("b"), Start: 11})
	require.ElementsMatch(t, []string{"a/2@4=v", "a/0@6=v", "a/1@8=v", "a/2@10=v", "b@11=v"}, take(f, 5))
	go c.mustAppend(t, "a/new", "v")
	require.Equal(t, []string{"a/new@12=v"}, take(f, 1))
}

func TestFollowEndsWhenRefused(t *testing.T) {
	c := newPair(t)
	for _, streams := range [][]Stream{nil, {{Key: make([]byte, 101)}}, {{Key: make([]byte, 101), Prefix: true}}} {
		f := c.Follow(t.Context(), FollowOptions{}, streams...)
		require.Empty(t, take(f, 1))
		var answer *Error
		require.ErrorAs(t, f.Err(), &answer)
		require.Equal(t, 400, answer.Status)
	}
}

// cutting is a server of which answers end early, now and then, or do not begin.
type cutting struct {
	http.Handler
	cuts atomic.Int64
}

func (h *cutting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/append") {
		h.Handler.ServeHTTP(w, r)
		return
	}
	if rand.N(4) == 0 {
		h.cuts.Add(1)
		w.WriteHeader([]int{500, 502, 503, 429}[rand.N(4)])
		return
	}
	h.Handler.ServeHTTP(&cutWriter{w, h, rand.N(8)}, r)
}

type cutWriter struct {
	http.ResponseWriter
	h    *cutting
	left int
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *cutWriter) Write(p []byte) (int, error) {
	if w.left--; w.left >= 0 {
		return w.ResponseWriter.Write(p)
	}
	w.h.cuts.Add(1)
	_, _ = w.ResponseWriter.Write(p[:rand.N(len(p)+1)])
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

// Whatever becomes of connections, each record comes once, in order.
func TestFollowReconnects(t *testing.T) {
	db, err := engine.Open(t.Context(), mem.New(mem.Options{}), engine.Options{FlushInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	s, err := server.New(server.Options{DB: db})
	require.NoError(t, err)
	h := &cutting{Handler: s}
	c := clientOf(t, h)
	const each = 60
	keys := []string{"p/a", "p/b", "p/c", "k"}
	for name, streams := range map[string][]Stream{
		"one":  {{Key: []byte("k")}},
		"many": {{Key: []byte("p/"), Prefix: true}, {Key: []byte("k")}, {Key: []byte("p/a")}},
	} {
		t.Run(name, func(t *testing.T) {
			first := db.Frontier()
			for i := range streams {
				streams[i].Start = first
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var retries atomic.Int64
			f := c.Follow(ctx, FollowOptions{OnRetry: func(err error, wait time.Duration) {
				retries.Add(1)
				if err == nil || wait <= 0 {
					t.Error(err, wait)
				}
			}}, streams...)
			f.firstRetry = time.Millisecond
			var appending sync.WaitGroup
			appending.Go(func() {
				for i := range each {
					for _, k := range keys {
						c.mustAppend(t, k, fmt.Sprint(i))
					}
				}
			})
			want := each
			if len(streams) > 1 {
				want = each * len(keys)
			}
			came := map[string]int{}
			for rec := range f.All() {
				require.Equal(t, fmt.Sprint(came[string(rec.Key)]), string(rec.Value.Value), "of key %s", rec.Key)
				came[string(rec.Key)]++
				if want--; want == 0 {
					break
				}
			}
			appending.Wait()
			require.NoError(t, f.Err())
			require.Zero(t, want)
			require.Positive(t, retries.Load())
		})
	}
	require.Positive(t, h.cuts.Load())
}

// From now on a Follower loses nothing when it connects again, whether anything came or not.
func TestFollowFromNow(t *testing.T) {
	c, err := New("http://x", Options{})
	require.NoError(t, err)
	f := c.Follow(t.Context(), FollowOptions{Consumer: "me", FromNow: true, SinceMs: 99}, Stream{Key: []byte("a"), AtCursor: true},
		Stream{Key: []byte("b")}, Stream{Key: []byte("c"), Start: 5}, Stream{Key: []byte("d"), Prefix: true})
	require.Equal(t, `{"streams":[{"key":"YQ=="},{"key":"Yg=="},{"key":"Yw==","startSeq":5}],"prefixes":[{"prefix":"ZA=="}],`+
		`"consumer":"me","fromNow":true,"sinceMs":99}`, string(f.body()))
	require.NoError(t, f.connect(&http.Response{Header: http.Header{"Annals-Frontier": {"70"}}}))
	require.NoError(t, f.connect(&http.Response{Header: http.Header{"Annals-Frontier": {"90"}}}))
	require.Equal(t, `{"streams":[{"key":"YQ=="},{"key":"Yg==","startSeq":70},{"key":"Yw==","startSeq":5}],"prefixes":[{"prefix":"ZA==","startSeq":70}],`+
		`"consumer":"me","startSeq":70,"sinceMs":99}`, string(f.body()))
	f.next["b"] = 81
	f.completed(80)
	require.Equal(t, `{"streams":[{"key":"YQ=="},{"key":"Yg==","startSeq":81},{"key":"Yw==","startSeq":80}],"prefixes":[{"prefix":"ZA==","startSeq":80}],`+
		`"consumer":"me","startSeq":80,"sinceMs":99}`, string(f.body()))

	// An empty log; and a server that does not know it.
	for header, err := range map[string]error{"0": nil, "": errNoFrontier} {
		f = c.Follow(t.Context(), FollowOptions{FromNow: true}, Stream{Key: []byte("b")})
		require.Equal(t, err, f.connect(&http.Response{Header: http.Header{"Annals-Frontier": {header}}}))
		if err != nil {
			require.Error(t, f.final(err))
			continue
		}
		require.Equal(t, `{"streams":[{"key":"Yg==","startSeq":0}],"prefixes":[]}`, string(f.body()))
	}
}

// What is there already is left out, over lost connections too.
func TestFollowWhatComes(t *testing.T) {
	db, err := engine.Open(t.Context(), mem.New(mem.Options{}), engine.Options{FlushInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	s, err := server.New(server.Options{DB: db})
	require.NoError(t, err)
	c := clientOf(t, &cutting{Handler: s})
	c.mustAppend(t, "a", "old")
	c.mustAppend(t, "p/a", "old")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := c.Follow(ctx, FollowOptions{FromNow: true}, Stream{Key: []byte("a")}, Stream{Key: []byte("p/"), Prefix: true})
	f.firstRetry = time.Millisecond
	const each = 20
	var appending sync.WaitGroup
	appending.Go(func() {
		for tick := time.NewTicker(time.Millisecond); db.Status().Followers == 0 && ctx.Err() == nil; { // before that nothing is new
			<-tick.C
		}
		for i := range each {
			c.mustAppend(t, "a", fmt.Sprint(i))
			c.mustAppend(t, "p/b", fmt.Sprint(i))
		}
	})
	came := map[string]int{}
	for rec := range f.All() {
		require.Equal(t, fmt.Sprint(came[string(rec.Key)]), string(rec.Value.Value))
		if came[string(rec.Key)]++; came["a"] == each && came["p/b"] == each {
			break
		}
	}
	appending.Wait()
	require.NoError(t, f.Err())
	require.Equal(t, map[string]int{"a": each, "p/b": each}, came)
}

// It ends with what the server says for good, and goes on with another token where only that was wrong.
func TestFollowAndTokens(t *testing.T) {
	for status, want := range map[int]error{400: ErrInvalid, 401: ErrUnauthorized, 403: ErrForbidden, 404: ErrNotFound, 421: ErrOutOfRange} {
		c := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		for _, s := range []Stream{{Key: []byte("k")}, {Prefix: true}} {
			f := c.Follow(t.Context(), FollowOptions{}, s)
			require.Empty(t, take(f, 1))
			require.ErrorIs(t, f.Err(), want)
		}
	}
	var requests atomic.Int64
	c := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		if r.Header.Get("Authorization") != fmt.Sprintf("Bearer token-%d", n) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, "{\"key\":\"\",\"sequence\":%d,\"timestampMs\":1,\"value\":\"\",\"nextSequence\":%d}\n", n, n+1)
	}))
	tokens := 0
	c.token = func() (string, error) {
		if tokens++; tokens%2 == 0 {
			return "", errors.New("the file is being replaced")
		}
		return fmt.Sprintf("token-%d", (tokens+1)/2), nil
	}
	f := c.Follow(t.Context(), FollowOptions{}, Stream{Prefix: true})
	f.firstRetry = time.Millisecond
	require.Equal(t, []string{"@1=", "@2=", "@3="}, take(f, 3))
}

// A silent server is left for another try.
func TestFollowLeavesASilentServer(t *testing.T) {
	c := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	f := c.Follow(ctx, FollowOptions{OnRetry: func(err error, _ time.Duration) {
		require.ErrorIs(t, err, errSilent)
		cancel()
	}}, Stream{Key: []byte("k")})
	f.silence = 20 * time.Millisecond
	require.Empty(t, take(f, 1))
	require.ErrorIs(t, f.Err(), context.Canceled)
}

func TestFollowWaitsAsLongAsTheServerAsks(t *testing.T) {
	c := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(503)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	f := c.Follow(ctx, FollowOptions{OnRetry: func(err error, wait time.Duration) {
		require.GreaterOrEqual(t, wait, 7*time.Second)
		cancel()
	}}, Stream{Key: []byte("k")})
	require.Empty(t, take(f, 1))
}

// What a key and its consumer's cursor become when the connection is lost.
func TestFollowRequestsFromWhereItWas(t *testing.T) {
	c, err := New("http://x", Options{})
	require.NoError(t, err)
	f := c.Follow(t.Context(), FollowOptions{Consumer: "me"}, Stream{Key: []byte("a"), AtCursor: true}, Stream{Key: []byte("b"), AtCursor: true},
		Stream{Key: []byte("c"), Start: 5}, Stream{Key: []byte("d"), Prefix: true})
	require.Equal(t, `{"streams":[{"key":"YQ=="},{"key":"Yg=="},{"key":"Yw==","startSeq":5}],"prefixes":[{"prefix":"ZA==","startSeq":0}],"consumer":"me"}`, string(f.body()))
	f.next["a"], f.next["c"], f.next["d1"] = 8, 9, 7
	f.completed(4)
	require.Equal(t, `{"streams":[{"key":"YQ==","startSeq":8},{"key":"Yg=="},{"key":"Yw==","startSeq":9}],"prefixes":[{"prefix":"ZA==","startSeq":4}],"consumer":"me","startSeq":4}`, string(f.body()))
	f.completed(8)
	require.Equal(t, map[string]uint64{"c": 9}, f.next)
	require.Equal(t, uint64(8), f.Cursor())
}

func TestItems(t *testing.T) {
	long := strings.Repeat("QUFB", 100_000)
	in := newItems(strings.NewReader(": a comment\nid: 7\ndata: {\"key\":\"aw==\",\"sequence\":6,\"timestampMs\":1,\"value\":\"dg==\",\"nextSequence\":7}\n\n" +
		":\nid: 9\r\n\r\nevent: cursor\ndata:{\"nextSequence\":10}\n\n\n\n{\"nextSequence\":11}\n" +
		"{\"key\":\"\",\"sequence\":11,\"timestampMs\":1,\"value\":\"" + long + "\",\"nextSequence\":12}\n{\"nextSequence\":13}\n" +
		"event: end\ndata: {\"status\":\"error\",\"message\":\"why\"}\n\n{\"nextSequence\":14}"))
	for _, want := range []uint64{7, 9, 10, 11, 12, 13} {
		item, err := in.next()
		require.NoError(t, err)
		require.Equal(t, want, item.Next)
		require.Equal(t, want == 7 || want == 12, item.Key != nil)
		if want == 12 {
			require.Len(t, item.Value, 300_000)
		}
	}
	item, err := in.next()
	require.NoError(t, err)
	require.Equal(t, "why", item.End.Message)
	_, err = in.next()
	require.ErrorIs(t, err, io.EOF, "a line without an end was cut off")

	for _, bad := range []string{"id: x\n", "data: {}\n", "{\"key\":\n"} {
		_, err := newItems(strings.NewReader(bad)).next()
		require.Error(t, err)
		require.False(t, errors.Is(err, io.EOF))
	}
}

func FuzzItems(f *testing.F) {
	f.Add(":\nid: 7\n\nevent: cursor\ndata: {\"nextSequence\":10}\n\n")
	f.Add("{\"key\":\"aw==\",\"sequence\":6,\"timestampMs\":1,\"value\":\"dg==\",\"nextSequence\":7}\n{}\n")
	f.Fuzz(func(t *testing.T, s string) {
		in := newItems(strings.NewReader(s))
		for range len(s) + 1 { // each takes a byte at least
			if _, err := in.next(); err != nil {
				return
			}
		}
		t.Fatal("no end")
	})
}
