package client

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/wire"
)

// sameAnswer is a server that says the same to everything.
type sameAnswer struct {
	status int
	header http.Header
	body   []byte
}

func (a sameAnswer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Header: a.header, ContentLength: -1, Body: io.NopCloser(bytes.NewReader(a.body))}, nil
}

// FuzzAnswers makes every call at a server that answers anything: each ends, with an error or with what was in the
// answer. A follower goes on as long as its context does.
func FuzzAnswers(f *testing.F) {
	add := func(m proto.Message) {
		body, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(200, "", body)
	}
	next := []byte("k")
	add(&wire.AppendResponse{RecordsAppended: 1, StartSequence: 7, TimestampMs: 1})
	add(&wire.ScanResponse{Values: []*wire.Value{{Sequence: 1, Value: []byte("v")}, {}}, NextSequence: 2})
	add(&wire.KeysResponse{Keys: []*wire.Key{{Key: next}, {}}, NextKey: next})
	add(&wire.SegmentsResponse{Segments: []*wire.Segment{{Id: 1, LastId: proto.Uint32(3)}, {}}})
	add(&wire.CursorsResponse{Cursors: []*wire.Cursor{{Key: next, NextSequence: 3}}, NextKey: next})
	add(&wire.ConsumersResponse{Consumers: []*wire.Consumer{{Consumer: "c"}}, NextConsumer: proto.String("c")})
	f.Add(200, "", []byte("{\"key\":\"aw==\",\"sequence\":6,\"timestampMs\":1,\"value\":\"dg==\",\"nextSequence\":7}\n{\"nextSequence\":3}\n"))
	f.Add(200, "", []byte("data: {\"nextSequence\":18446744073709551615}\n\nevent: end\ndata: {\"status\":\"error\",\"message\":\"m\"}\n\n"))
	f.Add(503, "3", []byte(`{"status":"error","message":"m","outcome":"not_appended"}`))
	f.Add(409, "", []byte(`{"status":"error","message":"m","lastProducerSeq":7}`))
	f.Add(301, "x", []byte{})
	f.Fuzz(func(t *testing.T, status int, retryAfter string, body []byte) {
		synctest.Test(t, func(t *testing.T) {
			answer := sameAnswer{status, http.Header{"Retry-After": {retryAfter}}, body}
			c, err := New("http://host", Options{HTTP: &http.Client{Transport: answer}})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			callAll(ctx, t, c, len(body))
			followAll(ctx, t, c, len(body))
		})
	})
}

// callAll makes every call that ends by itself. size is that of the answer.
func callAll(ctx context.Context, t *testing.T, c *Client, size int) {
	_, _ = c.Append(ctx, []Record{{Key: []byte("k"), Value: []byte("v")}}, AppendOptions{})
	if p, err := c.Scan(ctx, []byte("k"), ScanOptions{}); err == nil {
		require.LessOrEqual(t, len(p.Values), size)
	}
	if p, err := c.Keys(ctx, KeysOptions{}); err == nil {
		require.LessOrEqual(t, len(p.Keys), size)
	}
	if s, err := c.Segments(ctx, SegmentsOptions{}); err == nil {
		for _, s := range s {
			require.GreaterOrEqual(t, s.LastID, s.ID)
		}
	}
	_, _ = c.Count(ctx, []byte("k"), 0, 0)
	_, _ = c.SetCursors(ctx, "c", []Cursor{{Key: []byte("k"), Next: 1}}, false)
	_, _ = c.Cursors(ctx, "c", CursorsOptions{})
	_, _ = c.CursorsOf(ctx, "c", []byte("k"))
	_ = c.DeleteCursors(ctx, "c", []byte("k"))
	_ = c.DeleteConsumer(ctx, "c")
	_, _ = c.Consumers(ctx, ConsumersOptions{})
	require.NoError(t, ctx.Err())
}

// followAll follows by both ways that there are, until the context ends or the server refuses it.
func followAll(ctx context.Context, t *testing.T, c *Client, size int) {
	for _, streams := range [][]Stream{{{Key: []byte("k")}}, {{Key: []byte("k")}, {Prefix: true}}} {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		f := c.Follow(ctx, FollowOptions{}, streams...)
		sequences := make(map[string]uint64)
		n := 0
		for rec := range f.All() {
			last, seen := sequences[string(rec.Key)]
			require.True(t, !seen || rec.Value.Sequence > last || rec.Next <= rec.Value.Sequence, "a record comes twice")
			sequences[string(rec.Key)] = rec.Value.Sequence
			n++
			if n > 10*size {
				break // a cursor that does not move: it sends the same for ever
			}
		}
		require.True(t, f.Err() != nil || n > 10*size)
		cancel()
	}
}
