package s3

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

// sent returns the counts that are not zero, by operation and answer.
func sent(s *Store) map[string]uint64 {
	counts := map[string]uint64{}
	for _, r := range s.Sent() {
		for a, n := range r.Count {
			if n > 0 {
				counts[r.Operation+" "+objstore.Answer(a).String()] = n
			}
		}
	}
	return counts
}

// allOps are what the fake server counts, by S3's names, which ours are too.
var allOps = []s3fake.Op{
	s3fake.PutObject, s3fake.GetObject, s3fake.HeadObject, s3fake.ListObjects, s3fake.DeleteObjects, s3fake.HeadBucket,
	s3fake.CreateUpload, s3fake.UploadPart, s3fake.CompleteUpload, s3fake.AbortUpload, s3fake.ListUploads,
}

// requireSameAsServer fails unless the store counted every request that the server saw.
func requireSameAsServer(t *testing.T, s *Store, srv *s3fake.Server) {
	t.Helper()
	counts := map[string]int{}
	for _, r := range s.Sent() {
		for _, n := range r.Count {
			counts[r.Operation] += int(n)
		}
	}
	require.Zero(t, counts["other"])
	for _, op := range allOps {
		require.Equal(t, srv.Count(op), counts[string(op)], op)
	}
}

// Every operation is counted under its own name: a call by call, a multipart Put by
// its steps.
func TestSentRequests(t *testing.T) {
	s, srv, _ := open(t, smallParts)
	require.Equal(t, map[string]uint64{"ListObjectsV2 ok": 1}, sent(s), "Open looks whether the bucket is there")
	ctx := t.Context()
	put, err := s.Put(ctx, "n", []byte("v"), objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	_, err = s.Put(ctx, "n", []byte("v"), objstore.PutOptions{IfAbsent: true})
	require.ErrorIs(t, err, objstore.ErrPrecondition)
	_, err = s.Get(ctx, "n", objstore.GetOptions{})
	require.NoError(t, err)
	_, err = s.Get(ctx, "n", objstore.GetOptions{IfNoneMatch: put.ETag})
	require.ErrorIs(t, err, objstore.ErrNotModified)
	_, err = s.Get(ctx, "absent", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrNotFound)
	_, err = s.Head(ctx, "n")
	require.NoError(t, err)
	_, err = s.ServerTime(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Delete(ctx, []string{"n", "m"}))
	_, err = s.Put(ctx, "large", largeBody(1), objstore.PutOptions{})
	require.NoError(t, err)
	srv.SetHook(on(s3fake.CompleteUpload, 1, s3fake.Fail(403, "AccessDenied")))
	_, err = s.Put(ctx, "large", largeBody(1), objstore.PutOptions{})
	require.ErrorIs(t, err, objstore.ErrDenied)
	_, err = s.AbortUploads(ctx, put.Time)
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{
		"ListObjectsV2 ok": 2, "PutObject ok": 1, "PutObject refused": 1,
		"GetObject ok": 2, "GetObject refused": 1, "HeadObject ok": 1, "DeleteObjects ok": 1,
		"CreateMultipartUpload ok": 2, "UploadPart ok": 6, "CompleteMultipartUpload ok": 1, "CompleteMultipartUpload refused": 1,
		"AbortMultipartUpload ok": 1, "ListMultipartUploads ok": 1,
	}, sent(s))
	requireSameAsServer(t, s, srv)
}

// A call that succeeded may have cost several requests.
func TestSentRequestsThatAreRepeated(t *testing.T) {
	s, srv, _ := open(t, nil)
	for _, test := range []struct {
		action s3fake.Action
		answer string
	}{
		{s3fake.Fail(503, "SlowDown"), "throttled"},
		{s3fake.Fail(429, "TooManyRequests"), "throttled"},
		{s3fake.Fail(500, "InternalError"), "failed"},
		{s3fake.Fail(408, "RequestTimeout"), "refused"},
		{s3fake.Action{Drop: true}, "none"},
		{s3fake.Action{Lose: true}, "none"},
	} {
		before := sent(s)
		srv.SetHook(on(s3fake.PutObject, 1, test.action))
		_, err := s.Put(t.Context(), "n", []byte("v"), objstore.PutOptions{})
		require.NoError(t, err)
		before["PutObject "+test.answer]++
		before["PutObject ok"]++
		require.Equal(t, before, sent(s))
		requireSameAsServer(t, s, srv)
	}
}

func TestSentRequestsOfManyGoroutines(t *testing.T) {
	s, srv, _ := open(t, nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				if _, err := s.Get(t.Context(), "absent", objstore.GetOptions{}); !errors.Is(err, objstore.ErrNotFound) {
					t.Errorf("get: %v", err)
				}
				s.Sent()
			}
		})
	}
	all.Wait()
	require.Equal(t, uint64(80), sent(s)["GetObject refused"])
	requireSameAsServer(t, s, srv)
}

// What is missing in the list of operations is counted all the same.
func TestSentRequestsOfUnknownOperations(t *testing.T) {
	s := &Store{}
	status := 200
	c := &countingClient{sent: &s.sent, inner: roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status}, nil
	})}
	want := [objstore.NumAnswers]uint64{}
	for code, answer := range map[int]objstore.Answer{
		200: objstore.AnswerOK, 206: objstore.AnswerOK, 304: objstore.AnswerOK,
		400: objstore.AnswerRefused, 404: objstore.AnswerRefused, 409: objstore.AnswerRefused, 412: objstore.AnswerRefused,
		429: objstore.AnswerThrottled, 503: objstore.AnswerThrottled,
		500: objstore.AnswerFailed, 502: objstore.AnswerFailed, 504: objstore.AnswerFailed,
	} {
		status = code
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host/", nil)
		require.NoError(t, err)
		_, err = c.Do(req)
		require.NoError(t, err)
		want[answer]++
	}
	last := s.Sent()[len(operations)-1]
	require.Equal(t, objstore.SentRequests{Operation: "other", Count: want}, last)
}
