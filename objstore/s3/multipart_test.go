package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

func largeBody(seed byte) []byte {
	body := make([]byte, 2*MinPartSize+1)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(body) // never fails
	return body
}

func smallParts(o *Options) { o.PartSize, o.Concurrency = MinPartSize, 2 }

func TestMultipart(t *testing.T) {
	s, srv, _ := open(t, smallParts)
	body := largeBody(1)
	res, err := s.Put(t.Context(), "n", body, objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	require.False(t, res.Time.IsZero())
	require.Equal(t, 1, srv.Count(s3fake.CreateUpload))
	require.Equal(t, 3, srv.Count(s3fake.UploadPart))
	require.LessOrEqual(t, srv.Peak(s3fake.UploadPart), 2)
	require.Equal(t, 1, srv.Count(s3fake.CompleteUpload))
	require.Zero(t, srv.Count(s3fake.PutObject))
	obj, err := s.Get(t.Context(), "n", objstore.GetOptions{})
	require.NoError(t, err)
	require.True(t, bytes.Equal(body, obj.Body))
	require.Equal(t, res.ETag, obj.ETag)

	_, err = s.Put(t.Context(), "n", largeBody(2), objstore.PutOptions{IfAbsent: true})
	require.ErrorIs(t, err, objstore.ErrPrecondition)
	_, err = s.Put(t.Context(), "n", largeBody(3), objstore.PutOptions{IfMatch: `"other"`})
	require.ErrorIs(t, err, objstore.ErrPrecondition)
	_, err = s.Put(t.Context(), "m", largeBody(3), objstore.PutOptions{IfMatch: res.ETag})
	require.ErrorIs(t, err, objstore.ErrPrecondition)
	require.Zero(t, srv.Uploads(), "refused uploads are aborted")
	_, err = s.Put(t.Context(), "n", largeBody(4), objstore.PutOptions{IfMatch: res.ETag})
	require.NoError(t, err)
	require.Zero(t, srv.Uploads())

	_, err = s.Put(t.Context(), "single", body, objstore.PutOptions{SinglePart: true})
	require.NoError(t, err)
	_, err = s.Put(t.Context(), "exact", body[:MinPartSize], objstore.PutOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, srv.Count(s3fake.PutObject))
}

// errorBody is what S3 sends with status 200 when it finds out late that it cannot
// complete an upload.
func errorBody(code string) s3fake.Action {
	return s3fake.Action{Rewrite: func(r *s3fake.Response) {
		r.Status = 200
		r.Body = []byte(xml.Header + "\n   \n<Error><Code>" + code + "</Code><Message>late</Message></Error>")
		r.Header.Set("Content-Length", fmt.Sprint(len(r.Body)))
	}}
}

func TestF44CompleteAnswers200WithAnError(t *testing.T) {
	withFail := func(a s3fake.Action) s3fake.Action { // nothing is applied
		a.Fail = &s3fake.Error{Status: 500, Code: "replaced"}
		return a
	}
	empty := s3fake.Action{Rewrite: func(r *s3fake.Response) {
		r.Status, r.Body = 200, nil
		r.Header.Del("Content-Length")
	}}
	tests := []struct {
		name     string
		action   s3fake.Action
		attempts int
		want     error
		says     string
	}{
		{"internal error", withFail(errorBody("InternalError")), 5, objstore.ErrUnavailable, "gave up after 5 attempts: store unavailable: status 500 InternalError: late"},
		{"unknown error", withFail(errorBody("Surprise")), 5, nil, "Surprise"},
		{"precondition", withFail(errorBody("PreconditionFailed")), 1, objstore.ErrPrecondition, "late"},
		{"conflict", withFail(errorBody("ConditionalRequestConflict")), 1, objstore.ErrConflict, "late"},
		{"status 409", s3fake.Fail(409, "ConditionalRequestConflict"), 1, objstore.ErrConflict, ""},
		{"empty body", withFail(empty), 5, errAnswer, "no ETag"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, srv, _ := open(t, smallParts)
			srv.SetHook(on(s3fake.CompleteUpload, always, test.action))
			_, err := s.Put(t.Context(), "n", largeBody(1), objstore.PutOptions{IfAbsent: true})
			require.ErrorContains(t, err, "put n: ")
			require.ErrorContains(t, err, test.says)
			if test.want != nil {
				require.ErrorIs(t, err, test.want)
			}
			require.Equal(t, test.attempts, srv.Count(s3fake.CompleteUpload))
			require.Empty(t, srv.Keys(s3fake.Bucket))
			require.Zero(t, srv.Uploads(), "aborted")
		})
	}
	t.Run("once", func(t *testing.T) {
		s, srv, _ := open(t, smallParts)
		srv.SetHook(on(s3fake.CompleteUpload, 1, withFail(errorBody("InternalError"))))
		_, err := s.Put(t.Context(), "n", largeBody(1), objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)
		require.Equal(t, 3, srv.Count(s3fake.UploadPart), "the parts are not sent again")
	})
}

func TestF1LostAnswerOfComplete(t *testing.T) {
	t.Run("conditional", func(t *testing.T) {
		s, srv, _ := open(t, smallParts)
		srv.SetHook(on(s3fake.CompleteUpload, 1, s3fake.Action{Lose: true}))
		body := largeBody(1)
		_, err := s.Put(t.Context(), "n", body, objstore.PutOptions{IfAbsent: true})
		require.ErrorIs(t, err, objstore.ErrPrecondition, "ambiguous: it was applied")
		obj, err := s.Get(t.Context(), "n", objstore.GetOptions{})
		require.NoError(t, err)
		require.True(t, bytes.Equal(body, obj.Body))
	})
	t.Run("unconditional", func(t *testing.T) {
		s, srv, _ := open(t, smallParts)
		srv.SetHook(on(s3fake.CompleteUpload, 1, s3fake.Action{Lose: true}))
		_, err := s.Put(t.Context(), "n", largeBody(1), objstore.PutOptions{})
		require.NoError(t, err)
		require.Equal(t, 2, srv.Count(s3fake.CreateUpload), "uploaded again")
	})
	t.Run("every time", func(t *testing.T) {
		s, srv, _ := open(t, smallParts)
		srv.SetHook(func(r *s3fake.Request) s3fake.Action {
			return s3fake.Action{Lose: r.Op == s3fake.CompleteUpload && r.N%2 == 1}
		})
		_, err := s.Put(t.Context(), "n", largeBody(1), objstore.PutOptions{})
		require.ErrorIs(t, err, errNoUpload)
		require.Equal(t, maxUploads, srv.Count(s3fake.CreateUpload))
	})
}

func TestF4PartsAreRepeated(t *testing.T) {
	for name, action := range map[string]s3fake.Action{
		"503": s3fake.Fail(503, "SlowDown"), "drop": {Drop: true}, "lose": {Lose: true},
	} {
		for _, op := range []s3fake.Op{s3fake.CreateUpload, s3fake.UploadPart} {
			t.Run(name+" "+string(op), func(t *testing.T) {
				s, srv, _ := open(t, func(o *Options) { smallParts(o); o.Concurrency = 1 })
				srv.SetHook(on(op, 2, action))
				body := largeBody(1)
				_, err := s.Put(t.Context(), "n", body, objstore.PutOptions{IfAbsent: true})
				require.NoError(t, err)
				obj, err := s.Get(t.Context(), "n", objstore.GetOptions{})
				require.NoError(t, err)
				require.True(t, bytes.Equal(body, obj.Body))
			})
		}
	}
}

func TestF26AbandonedUploads(t *testing.T) {
	s, srv, _ := open(t, smallParts)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	srv.SetNow(func() time.Time { return now })
	// A part that is refused for good: the upload is aborted.
	srv.SetHook(on(s3fake.UploadPart, 1, s3fake.Fail(403, "AccessDenied")))
	_, err := s.Put(t.Context(), "n", largeBody(1), objstore.PutOptions{})
	require.ErrorIs(t, err, objstore.ErrDenied)
	require.Zero(t, srv.Uploads())

	// The abort fails as well, three times: three uploads stay.
	srv.SetHook(func(r *s3fake.Request) s3fake.Action {
		if r.Op == s3fake.UploadPart || r.Op == s3fake.AbortUpload {
			return s3fake.Fail(403, "AccessDenied")
		}
		return s3fake.Action{}
	})
	for _, name := range []string{"a", "a", "b"} {
		_, err = s.Put(t.Context(), name, largeBody(1), objstore.PutOptions{})
		require.ErrorIs(t, err, objstore.ErrDenied)
	}
	require.Equal(t, 3, srv.Uploads())

	srv.SetHook(func(*s3fake.Request) s3fake.Action { return s3fake.Action{PageSize: 1} })
	n, err := s.AbortUploads(t.Context(), now)
	require.NoError(t, err)
	require.Zero(t, n, "none began before that")
	n, err = s.AbortUploads(t.Context(), now.Add(time.Second))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Zero(t, srv.Uploads())
}

// TestMultipartCancelled: the caller does not wait for the abort, which happens all
// the same.
func TestMultipartCancelled(t *testing.T) {
	s, srv, _ := open(t, smallParts)
	ctx, cancel := context.WithCancel(t.Context())
	aborted := make(chan struct{})
	wait := make(chan struct{})
	t.Cleanup(func() { close(wait) })
	srv.SetHook(func(r *s3fake.Request) s3fake.Action {
		switch r.Op {
		case s3fake.UploadPart:
			cancel()
			return s3fake.Action{Wait: wait}
		case s3fake.AbortUpload:
			close(aborted)
		}
		return s3fake.Action{}
	})
	_, err := s.Put(ctx, "n", largeBody(1), objstore.PutOptions{})
	require.ErrorIs(t, err, context.Canceled)
	select {
	case <-aborted:
	case <-time.After(time.Minute):
		t.Fatal("the upload was not aborted")
	}
}
