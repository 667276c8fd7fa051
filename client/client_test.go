package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server"
	"github.com/annalsdb/annals/wire"
)

// newPair returns a client of a new server.
func newPair(t *testing.T) *Client {
	db, err := engine.Open(t.Context(), mem.New(mem.Options{}), engine.Options{FlushInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	s, err := server.New(server.Options{DB: db, MaxKeyBytes: 100})
	require.NoError(t, err)
	return clientOf(t, s)
}

func clientOf(t *testing.T, h http.Handler) *Client {
	ts := httptest.NewServer(h)
	t.Cleanup(ts.Close)
	c, err := New(ts.URL+"/", Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestAppendAndRead(t *testing.T) {
	c, ctx := newPair(t), t.Context()
	keys := [][]byte{nil, {0}, []byte("a b+c/%&=?"), {0xff, 0xfe}}
	var recs []Record
	for round := range 5 {
		for _, k := range keys {
			recs = append(recs, Record{Key: k, Value: fmt.Appendf(nil, "%x-%d", k, round)})
		}
	}
	for i, ack := range []Ack{AckDefault, AckDurable, AckMemory} {
		res, err := c.Append(ctx, recs, AppendOptions{Ack: ack})
		require.NoError(t, err)
		require.Equal(t, uint64(i*len(recs)), res.Start)
		require.Equal(t, len(recs), res.Records)
		require.InDelta(t, time.Now().UnixMilli(), res.Timestamp, float64(time.Minute/time.Millisecond))
	}
	total := uint64(3 * len(recs))
	for i, k := range keys {
		// MinSequence: the last batch was acknowledged from memory.
		page, err := c.Scan(ctx, k, ScanOptions{MinSequence: total, Limit: 4})
		require.NoError(t, err)
		require.Len(t, page.Values, 4)
		require.Equal(t, page.Values[3].Sequence+1, page.Next)
		require.Zero(t, page.First)
		var got []Value
		for v, err := range c.ScanAll(ctx, k, ScanOptions{Limit: 4}) {
			require.NoError(t, err)
			got = append(got, v)
		}
		require.Len(t, got, 15)
		for n, v := range got {
			require.Equal(t, uint64(n*len(keys)+i), v.Sequence)
			require.Equal(t, fmt.Sprintf("%x-%d", k, n%5), string(v.Value))
			require.NotZero(t, v.Timestamp)
		}
		n, err := c.Count(ctx, k, 0, 0)
		require.NoError(t, err)
		require.Equal(t, uint64(15), n)
		n, err = c.Count(ctx, k, uint64(i)+1, total-4) // without its first and its last record
		require.NoError(t, err)
		require.Equal(t, uint64(13), n)
	}
}

func TestScanOptions(t *testing.T) {
	c, ctx := newPair(t), t.Context()
	for i := range 5 {
		_, err := c.Append(ctx, []Record{{Key: []byte("k"), Value: []byte{byte(i)}}}, AppendOptions{})
		require.NoError(t, err)
	}
	sequences := func(o ScanOptions) (out []uint64) {
		page, err := c.Scan(ctx, []byte("k"), o)
		require.NoError(t, err)
		for _, v := range page.Values {
			out = append(out, v.Sequence)
		}
		return out
	}
	require.Equal(t, []uint64{0, 1, 2, 3, 4}, sequences(ScanOptions{}))
	require.Equal(t, []uint64{1, 2}, sequences(ScanOptions{Start: 1, End: 3}))
	require.Equal(t, []uint64{3, 4}, sequences(ScanOptions{Last: 2}))
	require.Equal(t, []uint64{0, 1}, sequences(ScanOptions{MaxBytes: 2}))
	require.Empty(t, sequences(ScanOptions{SinceMs: time.Now().Add(time.Hour).UnixMilli()}))
	require.Empty(t, sequences(ScanOptions{Start: 5, Follow: true, Timeout: time.Millisecond}))
	require.Panics(t, func() { c.ScanAll(ctx, nil, ScanOptions{Last: 1}) })
	require.Panics(t, func() { c.ScanAll(ctx, nil, ScanOptions{Follow: true}) })

	n := 0
	for range c.ScanAll(ctx, []byte("k"), ScanOptions{}) {
		n++
		break
	}
	require.Equal(t, 1, n)
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	for _, err := range c.ScanAll(ctx, []byte("k"), ScanOptions{}) {
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestKeysAndSegments(t *testing.T) {
	c, ctx := newPair(t), t.Context()
	_, err := c.Append(ctx, []Record{{Key: nil}, {Key: []byte("a/1")}, {Key: []byte("a/2")}, {Key: []byte{0xff}}}, AppendOptions{})
	require.NoError(t, err)
	var all []string
	for o := (KeysOptions{Limit: 1}); ; {
		page, err := c.Keys(ctx, o)
		require.NoError(t, err)
		for _, k := range page.Keys {
			all = append(all, string(k))
		}
		if page.Next == nil {
			break
		}
		o.After = page.Next
	}
	require.Equal(t, []string{"", "a/1", "a/2", "\xff"}, all)
	page, err := c.Keys(ctx, KeysOptions{Prefix: []byte("a/"), StartSegment: 1, EndSegment: 2})
	require.NoError(t, err)
	require.Equal(t, KeysPage{Keys: [][]byte{[]byte("a/1"), []byte("a/2")}}, page)

	segments, err := c.Segments(ctx, SegmentsOptions{Start: 1, Limit: 5})
	require.NoError(t, err)
	require.Len(t, segments, 1)
	require.NotZero(t, segments[0].StartMs)
	segments[0].StartMs = 0
	require.Equal(t, Segment{ID: 1, LastID: 1, Records: 4, Bytes: 7}, segments[0])
	segments, err = c.Segments(ctx, SegmentsOptions{After: 1})
	require.NoError(t, err)
	require.Empty(t, segments)
}

func TestErrorsOfTheServer(t *testing.T) {
	c, ctx := newPair(t), t.Context()
	_, err := c.Append(ctx, []Record{{Key: make([]byte, 101)}}, AppendOptions{})
	var answer *Error
	require.ErrorAs(t, err, &answer)
	require.Equal(t, Error{Status: 400, Message: "Invalid input: record[0]: key has 101 bytes; at most 100 are allowed"}, *answer)
	require.EqualError(t, err, "append: the server answered 400 Bad Request: Invalid input: record[0]: key has 101 bytes; at most 100 are allowed")
	require.True(t, NotAppended(err))
	_, err = c.Scan(ctx, nil, ScanOptions{Limit: -1})
	require.ErrorContains(t, err, `limit is "-1"`)
	_, err = c.Scan(ctx, nil, ScanOptions{MinSequence: 5, Timeout: time.Millisecond})
	require.ErrorAs(t, err, &answer)
	require.Equal(t, http.StatusGatewayTimeout, answer.Status)
}

func TestAnswersThatAreErrors(t *testing.T) {
	for _, c := range []struct {
		status      int
		body, after string
		want        Error
		notAppended bool
	}{
		{429, `{"status":"error","message":"full"}`, "7", Error{429, "full", "", 7 * time.Second}, true},
		{429, `{"status":"error","message":"full"}`, "tomorrow", Error{429, "full", "", 0}, true},
		{503, `{"status":"error","message":"fenced","outcome":"not_appended"}`, "", Error{503, "fenced", OutcomeNotAppended, 0}, true},
		{503, `{"status":"error","message":"fenced","outcome":"unknown"}`, "", Error{503, "fenced", OutcomeUnknown, 0}, false},
		{504, `{"status":"error","message":"late","outcome":"unknown"}`, "", Error{504, "late", OutcomeUnknown, 0}, false},
		{502, "<html>Bad Gateway</html>\n", "", Error{502, "<html>Bad Gateway</html>", "", 0}, false},
		{499, "", "", Error{499, "", "", 0}, false},
		{404, "nothing \xff here", "", Error{404, "nothing \uFFFD here", "", 0}, true},
	} {
		client := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if c.after != "" {
				w.Header().Set("Retry-After", c.after)
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		_, err := client.Append(t.Context(), []Record{{}}, AppendOptions{})
		var answer *Error
		require.ErrorAs(t, err, &answer)
		require.Equal(t, c.want, *answer)
		require.Equal(t, c.notAppended, NotAppended(err), "%v", err)
	}
}

func TestUnknownOutcomes(t *testing.T) {
	var requests atomic.Int64
	client := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		requests.Add(1)
		panic(http.ErrAbortHandler) // the answer is lost
	}))
	_, err := client.Append(t.Context(), []Record{{}}, AppendOptions{})
	require.Error(t, err)
	require.False(t, NotAppended(err))
	require.Equal(t, int64(1), requests.Load(), "an append is sent once")

	client = clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "not protobuf")
	}))
	_, err = client.Append(t.Context(), []Record{{}}, AppendOptions{})
	require.ErrorContains(t, err, "decode answer")
	require.False(t, NotAppended(err))
	require.False(t, NotAppended(errors.New("anything")))
}

// nobody is where nobody listens. A port that was free a moment ago may be another test's server by now.
const nobody = "http://127.0.0.1:1"

func TestNobodyListens(t *testing.T) {
	c, err := New(nobody, Options{})
	require.NoError(t, err)
	_, err = c.Append(t.Context(), []Record{{}}, AppendOptions{})
	require.Error(t, err)
	require.True(t, NotAppended(err))
}

func TestNewRefusesBadURLs(t *testing.T) {
	for _, u := range []string{"", "127.0.0.1:8080", "localhost:8080", "ftp://x", "http://", "http://x?y=1", "http://x#y", "http://x?", "http://x#", "http://[::1"} {
		_, err := New(u, Options{})
		require.ErrorContains(t, err, "parse server URL", u)
	}
}

// The encoder by hand says the same as the generated code.
func TestEncodeAppend(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var recs []Record
		want := &wire.AppendRequest{}
		bytes := rapid.SliceOfN(rapid.Byte(), 0, 300)
		for range rapid.IntRange(0, 5).Draw(t, "records") {
			r := Record{Key: bytes.Draw(t, "key"), Value: bytes.Draw(t, "value")}
			recs = append(recs, r)
			want.Records = append(want.Records, &wire.Record{Key: append([]byte{}, r.Key...), Value: append([]byte{}, r.Value...)})
		}
		o := AppendOptions{Ack: rapid.SampledFrom([]Ack{AckDefault, AckDurable, AckMemory}).Draw(t, "ack")}
		for range rapid.IntRange(0, 2).Draw(t, "conditions") {
			e := KeySequence{Key: bytes.Draw(t, "key"), Next: rapid.Uint64().Draw(t, "next")}
			o.ExpectedNext = append(o.ExpectedNext, e)
			want.ExpectedNext = append(want.ExpectedNext, &wire.KeySequence{Key: e.Key, Sequence: e.Next})
		}
		if rapid.Bool().Draw(t, "has producer") {
			o.Producer, o.ProducerSequence = rapid.StringN(1, 10, -1).Draw(t, "producer"), rapid.Uint64().Draw(t, "number")
			want.ProducerId, want.ProducerSeq = &o.Producer, &o.ProducerSequence
		}
		if o.Ack != AckDefault {
			want.AwaitDurable = proto.Bool(o.Ack == AckDurable)
		}
		var got wire.AppendRequest
		encoded := encodeAppend(recs, o)
		require.NoError(t, proto.Unmarshal(encoded, &got))
		require.LessOrEqual(t, cap(encoded), 4*len(encoded)+64, "the size is known before")
		require.True(t, proto.Equal(want, &got))
	})
}

func BenchmarkEncodeAppend(b *testing.B) {
	recs := make([]Record, 100)
	for i := range recs {
		recs[i] = Record{Key: []byte("some/key/0001"), Value: make([]byte, 1024)}
	}
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(encodeAppend(recs, AppendOptions{}))))
	}
}

// FuzzErrorOf reads any answer that is no success, of ours or of a proxy: an error that is whole, bounded and text, and that
// never says that nothing was appended when that is not known.
func FuzzErrorOf(f *testing.F) {
	f.Add(429, "1", []byte(`{"status":"error","message":"full"}`))
	f.Add(409, "", []byte(`{"message":"m","key":"aw==","lastSequence":7}`))
	f.Add(409, "-1", []byte(`{"message":"m","lastProducerSeq":7}`))
	f.Add(503, "Fri, 31 Dec 1999 23:59:59 GMT", []byte(`{"message":"m","outcome":"unknown"}`))
	f.Add(502, "99999999999999999999", []byte("<html>\xff bad gateway"))
	f.Fuzz(func(t *testing.T, status int, retryAfter string, body []byte) {
		answer := &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {retryAfter}}, Body: io.NopCloser(bytes.NewReader(body))}
		err := errorOf(answer)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, status, e.Status)
		require.True(t, utf8.ValidString(e.Message))
		require.LessOrEqual(t, len(e.Message), 3*maxErrorBytes)
		require.GreaterOrEqual(t, e.RetryAfter, time.Duration(0))
		if NotAppended(err) && e.Outcome != OutcomeNotAppended {
			require.True(t, e.Outcome == "" && (status >= 400 && status < 500 || e.redirects()))
		}
		var conflict *ConflictError
		var sequence *SequenceError
		require.False(t, errors.As(err, &conflict) && errors.As(err, &sequence))
		require.True(t, status == http.StatusConflict || !errors.As(err, &conflict) && !errors.As(err, &sequence))
	})
}
