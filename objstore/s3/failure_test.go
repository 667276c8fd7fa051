package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

// The tests are named after the numbered failures that systems like this one have
// met in public.

// on makes the first n requests of an operation meet an action.
func on(op s3fake.Op, n int, action s3fake.Action) func(*s3fake.Request) s3fake.Action {
	left := n
	return func(r *s3fake.Request) s3fake.Action {
		if r.Op != op || left == 0 {
			return s3fake.Action{}
		}
		left--
		return action
	}
}

const always = -1

func TestF1LostAnswerOfConditionalPut(t *testing.T) {
	s, srv, w := open(t, nil)
	srv.SetHook(on(s3fake.PutObject, 1, s3fake.Action{Lose: true}))
	_, err := s.Put(t.Context(), "wal/1", []byte("mine"), objstore.PutOptions{IfAbsent: true})
	require.ErrorIs(t, err, objstore.ErrPrecondition, "the second try is refused because of the first")
	require.Equal(t, 2, srv.Count(s3fake.PutObject))
	require.Len(t, w.list, 1)
	obj, err := s.Get(t.Context(), "wal/1", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "mine", string(obj.Body))
}

func TestF1LostAnswersOfOtherWrites(t *testing.T) {
	s, srv, _ := open(t, nil)
	srv.SetHook(on(s3fake.PutObject, 1, s3fake.Action{Lose: true}))
	_, err := s.Put(t.Context(), "n", []byte("v"), objstore.PutOptions{})
	require.NoError(t, err)
	srv.SetHook(on(s3fake.DeleteObjects, 1, s3fake.Action{Lose: true}))
	require.NoError(t, s.Delete(t.Context(), []string{"n"}))
	require.Empty(t, srv.Keys(s3fake.Bucket))
}

func TestF3Conflict(t *testing.T) {
	for _, code := range []string{"ConditionalRequestConflict", "OperationAborted", "Conflict"} {
		s, srv, w := open(t, nil)
		srv.SetHook(on(s3fake.PutObject, 1, s3fake.Fail(409, code)))
		opts := objstore.PutOptions{IfAbsent: true}
		_, err := s.Put(t.Context(), "wal/1", []byte("v"), opts)
		require.ErrorIs(t, err, objstore.ErrConflict)
		require.NotErrorIs(t, err, objstore.ErrPrecondition)
		require.Empty(t, w.list, "returned at once")
		require.Empty(t, srv.Keys(s3fake.Bucket))
		_, err = s.Put(t.Context(), "wal/1", []byte("v"), opts)
		require.NoError(t, err)
	}
}

func TestF4TransientErrorsAreRepeated(t *testing.T) {
	html := s3fake.Action{Rewrite: func(r *s3fake.Response) {
		r.Status, r.Body = 503, []byte("<html><body>try later")
		r.Header = http.Header{"Date": r.Header["Date"]}
	}}
	tests := map[string]s3fake.Action{
		"slow down":       s3fake.Fail(503, "SlowDown"),
		"internal error":  s3fake.Fail(500, "InternalError"),
		"no code":         s3fake.Fail(502, ""),
		"too many":        s3fake.Fail(429, "TooManyRequests"),
		"body was idle":   s3fake.Fail(400, "RequestTimeout"),
		"damaged body":    s3fake.Fail(400, "BadDigest"),
		"clock skew":      s3fake.Fail(403, "RequestTimeTooSkewed"),
		"closed":          {Drop: true},
		"not S3's answer": html,
		"no date":         {Rewrite: func(r *s3fake.Response) { r.Header.Del("Date") }},
		"no etag":         {Rewrite: func(r *s3fake.Response) { r.Header.Del("Etag") }},
	}
	for name, action := range tests {
		t.Run(name, func(t *testing.T) {
			s, srv, w := open(t, nil)
			srv.SetHook(on(s3fake.PutObject, 2, action))
			res, err := s.Put(t.Context(), "n", []byte("v"), objstore.PutOptions{})
			require.NoError(t, err)
			require.NotEmpty(t, res.ETag)
			require.False(t, res.Time.IsZero())
			require.Equal(t, 3, srv.Count(s3fake.PutObject))
			require.Equal(t, []time.Duration{50 * time.Millisecond, 100 * time.Millisecond}, w.list, "half of 100 ms and of 200 ms")
		})
	}
}

func TestF4EveryOperationIsRepeated(t *testing.T) {
	s, srv, _ := open(t, nil)
	_, err := s.Put(t.Context(), "n", []byte("v"), objstore.PutOptions{})
	require.NoError(t, err)
	calls := map[s3fake.Op]func() error{
		s3fake.GetObject:  func() error { _, err := s.Get(t.Context(), "n", objstore.GetOptions{}); return err },
		s3fake.HeadObject: func() error { _, err := s.Head(t.Context(), "n"); return err },
		s3fake.ListObjects: func() error {
			page, err := s.List(t.Context(), "", "", 0)
			if err == nil && len(page.Entries) != 1 {
				err = fmt.Errorf("%d entries", len(page.Entries))
			}
			return err
		},
		s3fake.PutObject: func() error {
			_, err := s.Put(t.Context(), "n", []byte("w"), objstore.PutOptions{})
			return err
		},
		s3fake.DeleteObjects: func() error { return s.Delete(t.Context(), []string{"n", "m"}) },
	}
	for _, op := range []s3fake.Op{s3fake.GetObject, s3fake.HeadObject, s3fake.ListObjects, s3fake.PutObject, s3fake.DeleteObjects} {
		for name, action := range map[string]s3fake.Action{
			"503":  s3fake.Fail(503, "SlowDown"),
			"drop": {Drop: true},
			"lose": {Lose: true},
		} {
			t.Run(string(op)+" "+name, func(t *testing.T) {
				srv.SetHook(on(op, 1, action))
				before := srv.Count(op)
				require.NoError(t, calls[op]())
				require.Equal(t, before+2, srv.Count(op))
			})
		}
	}
}

func TestF4AttemptsAreBounded(t *testing.T) {
	s, srv, w := open(t, func(o *Options) {
		o.MaxAttempts = 8
		o.MaxBackoff = 600 * time.Millisecond
		o.Random = func() float64 { return 1 }
	})
	srv.SetHook(on(s3fake.PutObject, always, s3fake.Fail(503, "SlowDown")))
	_, err := s.Put(t.Context(), "n", nil, objstore.PutOptions{})
	require.ErrorContains(t, err, "put n: gave up after 8 attempts: store unavailable: status 503 SlowDown: as the test demands (request ")
	require.ErrorIs(t, err, objstore.ErrUnavailable)
	require.Equal(t, 8, srv.Count(s3fake.PutObject))
	ms := time.Millisecond
	require.Equal(t, []time.Duration{100 * ms, 200 * ms, 400 * ms, 600 * ms, 600 * ms, 600 * ms, 600 * ms}, w.list)
}

func TestF4CallerContextEndsTheWait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, srv, _ := open(t, nil)
	s.opts.Sleep = func(ctx context.Context, _ time.Duration) error {
		cancel()
		return ctx.Err()
	}
	srv.SetHook(on(s3fake.PutObject, always, s3fake.Fail(503, "SlowDown")))
	_, err := s.Put(ctx, "n", nil, objstore.PutOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "SlowDown", "says what it was waiting for")
	require.Equal(t, 1, srv.Count(s3fake.PutObject))
}

func TestErrorsThatAreFinal(t *testing.T) {
	tests := []struct {
		status int
		code   string
		want   error // nil: none of the contract's
	}{
		{403, "AccessDenied", objstore.ErrDenied},
		{403, "SignatureDoesNotMatch", objstore.ErrCredentials},
		{403, "Whatever", objstore.ErrDenied},
		{400, "ExpiredToken", objstore.ErrCredentials},
		{507, "Whatever", objstore.ErrFull},
		{404, "NoSuchBucket", objstore.ErrNoBucket},
		{404, "NoSuchKey", objstore.ErrNotFound},
		{412, "PreconditionFailed", objstore.ErrPrecondition},
		{301, "PermanentRedirect", nil},
		{400, "InvalidRequest", nil},
		{501, "NotImplemented", nil},
	}
	for _, test := range tests {
		t.Run(test.code, func(t *testing.T) {
			s, srv, w := open(t, nil)
			srv.SetHook(on(s3fake.PutObject, always, s3fake.Fail(test.status, test.code)))
			_, err := s.Put(t.Context(), "n", nil, objstore.PutOptions{})
			require.ErrorContains(t, err, fmt.Sprintf("status %d %s", test.status, test.code))
			require.True(t, strings.HasPrefix(err.Error(), "put n: "), err.Error())
			require.NotContains(t, err.Error(), "\n")
			if test.want != nil {
				require.ErrorIs(t, err, test.want)
			}
			require.NotErrorIs(t, err, objstore.ErrUnavailable, "later is no better")
			require.Empty(t, w.list)
			require.Equal(t, 1, srv.Count(s3fake.PutObject))
		})
	}
}

func TestIfMatchOnMissingObject(t *testing.T) {
	s, srv, _ := open(t, nil)
	_, err := s.Put(t.Context(), "n", nil, objstore.PutOptions{IfMatch: `"x"`})
	require.ErrorIs(t, err, objstore.ErrPrecondition, "S3 answers 404")
	require.NotErrorIs(t, err, objstore.ErrNotFound)
	srv.RemoveBucket(s3fake.Bucket)
	_, err = s.Put(t.Context(), "n", nil, objstore.PutOptions{IfMatch: `"x"`})
	require.ErrorIs(t, err, objstore.ErrNoBucket)
	require.NotErrorIs(t, err, objstore.ErrPrecondition)
}

func TestF20IgnoredConditionsAreFound(t *testing.T) {
	s, srv, _ := open(t, nil)
	srv.SetHook(func(*s3fake.Request) s3fake.Action { return s3fake.Action{IgnoreConditions: true} })
	err := objstore.ProbeConditionalWrites(t.Context(), s, "probe/1")
	require.ErrorIs(t, err, objstore.ErrNoConditionalWrites)
}

func TestF31PerKeyErrors(t *testing.T) {
	s, srv, w := open(t, nil)
	names := []string{"a", "b", "c", "d", "e"}
	for _, n := range names {
		_, err := s.Put(t.Context(), n, nil, objstore.PutOptions{})
		require.NoError(t, err)
	}
	denied := s3fake.Error{Code: "AccessDenied", Message: "locked"}
	srv.SetHook(func(r *s3fake.Request) s3fake.Action {
		if r.Op != s3fake.DeleteObjects {
			return s3fake.Action{}
		}
		keys := map[string]s3fake.Error{
			"some/prefix/b": denied,
			"some/prefix/e": {Code: "NoSuchKey"},
			"some/prefix/c": {Code: "InternalError"},
		}
		if r.N == 1 { // works at the second try
			keys["some/prefix/d"] = s3fake.Error{Code: "SlowDown"}
		}
		return s3fake.Action{KeyErrors: keys}
	})
	err := s.Delete(t.Context(), names)
	var failed *objstore.DeleteError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 2)
	require.Equal(t, "b", failed.Failed[0].Name)
	require.ErrorIs(t, failed.Failed[0].Err, objstore.ErrDenied)
	require.Equal(t, "c", failed.Failed[1].Name)
	require.ErrorContains(t, failed.Failed[1].Err, "InternalError")
	require.ErrorIs(t, failed.Failed[1].Err, objstore.ErrUnavailable)
	require.NotErrorIs(t, failed.Failed[0].Err, objstore.ErrUnavailable)
	require.Equal(t, s.opts.MaxAttempts, srv.Count(s3fake.DeleteObjects))
	require.Len(t, w.list, s.opts.MaxAttempts-1)

	srv.SetHook(nil)
	require.NoError(t, s.Delete(t.Context(), names), "a repetition resumes")
	require.Empty(t, allNames(t, s))
}

// allNames returns all names in the store.
func allNames(t *testing.T, s *Store) (names []string) {
	t.Helper()
	require.NoError(t, objstore.ListAll(t.Context(), s, "", "", func(e objstore.Entry) (bool, error) {
		names = append(names, e.Name)
		return true, nil
	}))
	return names
}

func TestF35BodiesThatEndEarly(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 100_000)
	flip := s3fake.Action{Rewrite: func(r *s3fake.Response) {
		r.Body = bytes.Clone(r.Body)
		r.Body[len(r.Body)/2] ^= 1
	}}
	type change = func(*s3fake.Response)
	header := func(name, value string) s3fake.Action {
		return s3fake.Action{Rewrite: func(r *s3fake.Response) { r.Header.Set(name, value) }}
	}
	tests := []struct {
		name   string
		opts   objstore.GetOptions
		action s3fake.Action
	}{
		{"cut at once", objstore.GetOptions{}, s3fake.Action{Close: true}},
		{"cut", objstore.GetOptions{}, s3fake.Action{Cut: 500_000, Close: true}},
		{"cut before the last byte", objstore.GetOptions{}, s3fake.Action{Cut: len(body) - 1, Close: true}},
		{"reset in a range", objstore.GetOptions{Offset: 10, Length: 600_000}, s3fake.Action{Cut: 300_000, Reset: true}},
		{"reset in a suffix", objstore.GetOptions{Suffix: 600_000}, s3fake.Action{Cut: 300_000, Reset: true}},
		{"flipped bit", objstore.GetOptions{}, flip},
		{"another range", objstore.GetOptions{Offset: 10, Length: 5}, header("Content-Range", "bytes 11-15/1000000")},
		{"senseless range", objstore.GetOptions{Offset: 10, Length: 5}, header("Content-Range", "bytes 10-14/*")},
		{"range ignored", objstore.GetOptions{Offset: 10, Length: 5}, s3fake.Action{Rewrite: change(func(r *s3fake.Response) {
			r.Status, r.Body = 200, body
			r.Header.Set("Content-Length", fmt.Sprint(len(body)))
			r.Header.Del("Content-Range")
		})}},
		{"no etag", objstore.GetOptions{}, s3fake.Action{Rewrite: func(r *s3fake.Response) { r.Header.Del("Etag") }}},
		{"no date", objstore.GetOptions{}, s3fake.Action{Rewrite: func(r *s3fake.Response) { r.Header.Del("Date") }}},
		{"no modification time", objstore.GetOptions{}, s3fake.Action{Rewrite: func(r *s3fake.Response) { r.Header.Del("Last-Modified") }}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, srv, w := open(t, nil)
			_, err := s.Put(t.Context(), "n", body, objstore.PutOptions{})
			require.NoError(t, err)
			start, end, err := test.opts.Span(int64(len(body)))
			require.NoError(t, err)

			srv.SetHook(on(s3fake.GetObject, 2, test.action))
			obj, err := s.Get(t.Context(), "n", test.opts)
			require.NoError(t, err)
			require.True(t, bytes.Equal(body[start:end], obj.Body))
			require.Equal(t, int64(len(body)), obj.Size)
			require.Equal(t, 3, srv.Count(s3fake.GetObject))
			require.Len(t, w.list, 2)

			srv.SetHook(on(s3fake.GetObject, always, test.action))
			obj, err = s.Get(t.Context(), "n", test.opts)
			require.ErrorContains(t, err, "get n: gave up after 5 attempts")
			require.Empty(t, obj.Body)
		})
	}
}

func TestF37MissingObjectIsNamed(t *testing.T) {
	s, srv, w := open(t, nil)
	_, err := s.Get(t.Context(), "sst/x", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrNotFound)
	require.ErrorContains(t, err, "get sst/x: ")
	_, err = s.Head(t.Context(), "sst/x")
	require.ErrorIs(t, err, objstore.ErrNotFound)
	require.Empty(t, w.list)
	require.Equal(t, 1, srv.Count(s3fake.GetObject))
	require.Equal(t, 1, srv.Count(s3fake.HeadObject))

	srv.RemoveBucket(s3fake.Bucket)
	_, err = s.Get(t.Context(), "sst/x", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrNoBucket)
	_, err = s.Head(t.Context(), "sst/x")
	require.ErrorIs(t, err, objstore.ErrNoBucket, "though a HEAD's 404 has no body")
	require.NotErrorIs(t, err, objstore.ErrNotFound)
}

func TestF38ShortPages(t *testing.T) {
	for _, pageSize := range []int{1, 7, 1000} {
		t.Run(fmt.Sprint(pageSize), func(t *testing.T) {
			s, srv, _ := open(t, nil)
			var want []string
			for i := range 50 {
				want = append(want, fmt.Sprintf("n/%03d", i))
				srv.Set(s3fake.Bucket, "some/prefix/"+want[i], nil)
			}
			srv.Set(s3fake.Bucket, "some/prefix/n/", nil) // a console's folder
			srv.Set(s3fake.Bucket, "some/prefixes", nil)
			srv.SetHook(func(r *s3fake.Request) s3fake.Action {
				if r.Op == s3fake.ListObjects && r.N%2 == 0 {
					return s3fake.Action{PageSize: -1} // nothing, but more to come
				}
				return s3fake.Action{PageSize: pageSize}
			})
			page, err := s.List(t.Context(), "n/", "", 30)
			require.NoError(t, err)
			require.Len(t, page.Entries, 30)
			require.True(t, page.More)
			require.Equal(t, want, allNames(t, s))
		})
	}
}

func TestListThatNeverAdvances(t *testing.T) {
	s, srv, _ := open(t, nil)
	srv.Set(s3fake.Bucket, "some/prefix/n", nil)
	srv.SetHook(func(*s3fake.Request) s3fake.Action { return s3fake.Action{PageSize: -1} })
	_, err := s.List(t.Context(), "", "", 0)
	require.ErrorIs(t, err, errAnswer)
	require.Equal(t, 1+maxListRequests, srv.Count(s3fake.ListObjects), "one was Open's")
}

func TestStalledServer(t *testing.T) {
	wait := make(chan struct{})
	t.Cleanup(func() { close(wait) })
	for name, action := range map[string]s3fake.Action{
		"before the answer": {Wait: wait},
		"in the body":       {Cut: 1000, Stall: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, srv, w := open(t, func(o *Options) { o.IdleTimeout, o.MaxAttempts = 200*time.Millisecond, 2 })
			srv.Set(s3fake.Bucket, "some/prefix/n", make([]byte, 1<<20))
			w.list = nil
			srv.SetHook(on(s3fake.GetObject, always, action))
			_, err := s.Get(t.Context(), "n", objstore.GetOptions{})
			require.ErrorIs(t, err, errIdle)
			require.NotErrorIs(t, err, context.Canceled, "the caller did not cancel")
			require.Len(t, w.list, 1)
		})
	}
}

func TestRequestTimeout(t *testing.T) {
	s, srv, _ := open(t, nil)
	s.opts.RequestTimeout, s.opts.MaxAttempts = 100*time.Millisecond, 2
	wait := make(chan struct{})
	t.Cleanup(func() { close(wait) })
	srv.SetHook(on(s3fake.PutObject, always, s3fake.Action{Wait: wait}))
	_, err := s.Put(t.Context(), "n", nil, objstore.PutOptions{})
	require.ErrorIs(t, err, errRequestTimeout)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's context lives on")
}

func TestCallerContextEndsARequest(t *testing.T) {
	s, srv, w := open(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	wait := make(chan struct{})
	t.Cleanup(func() { close(wait) })
	srv.SetHook(func(*s3fake.Request) s3fake.Action {
		cancel()
		return s3fake.Action{Wait: wait}
	})
	_, err := s.Get(ctx, "n", objstore.GetOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, w.list)
}

func TestOpenFailures(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() }) // accepts, and says nothing

	tests := []struct {
		name   string
		change func(*Options, *s3fake.Server)
		is     error
		says   string
	}{
		{"missing bucket", func(o *Options, _ *s3fake.Server) { o.Bucket = "absent" }, objstore.ErrNoBucket, "no such bucket"},
		{"denied", func(_ *Options, srv *s3fake.Server) {
			srv.SetHook(on(s3fake.ListObjects, always, s3fake.Fail(403, "AccessDenied")))
		}, objstore.ErrDenied, "access denied: status 403 AccessDenied"},
		{"no credentials", func(o *Options, _ *s3fake.Server) { o.Credentials = nil }, objstore.ErrDenied, "no usable AWS credentials"},
		{"no date", func(_ *Options, srv *s3fake.Server) {
			srv.SetHook(func(*s3fake.Request) s3fake.Action {
				return s3fake.Action{Rewrite: func(r *s3fake.Response) { r.Header.Del("Date") }}
			})
		}, errAnswer, "no Date header"},
		{"another region", func(_ *Options, srv *s3fake.Server) {
			srv.SetHook(func(*s3fake.Request) s3fake.Action {
				return s3fake.Action{Rewrite: func(r *s3fake.Response) {
					r.Status = 301
					r.Header.Set("x-amz-bucket-region", "eu-north-1")
				}}
			})
		}, nil, `the bucket is in region "eu-north-1"`},
		{"nobody listens", func(o *Options, _ *s3fake.Server) { o.Endpoint = "http://127.0.0.1:1" }, nil, "connection refused"},
		{"dead endpoint", func(o *Options, _ *s3fake.Server) {
			o.Endpoint, o.OpenTimeout = "http://"+silent.Addr().String(), 300*time.Millisecond
		}, nil, "no answer for 300ms"},
		{"idle endpoint", func(o *Options, _ *s3fake.Server) {
			o.Endpoint, o.IdleTimeout = "http://"+silent.Addr().String(), 50*time.Millisecond
		}, errIdle, "no byte moved for 50ms"},
		{"bad options", func(o *Options, _ *s3fake.Server) { o.MaxAttempts = -1 }, nil, "max attempts"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			isolate(t)
			srv := s3fake.New(t)
			opts := testOptions(srv)
			opts.Sleep = (&waits{}).sleep
			test.change(&opts, srv)
			_, err := Open(t.Context(), opts)
			require.ErrorContains(t, err, test.says)
			require.True(t, strings.HasPrefix(err.Error(), "open s3"), err.Error())
			require.NotContains(t, err.Error(), "\n")
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
		})
	}
	require.Less(t, Options{}.withDefaults().OpenTimeout, 30*time.Second)
}

func TestCertificateThatIsNotTrusted(t *testing.T) {
	isolate(t)
	srv := s3fake.NewTLS(t)
	opts := testOptions(srv)
	w := &waits{}
	opts.Sleep = w.sleep
	_, err := Open(t.Context(), opts)
	require.ErrorContains(t, err, "certificate")
	require.Empty(t, w.list, "another try does not help")
}

func TestCredentialsThatCannotBeRefreshed(t *testing.T) {
	isolate(t)
	broken := errors.New("the source is down")
	p := newCredentialsProvider(&flakyCredentials{err: broken}, nil)
	_, err := p.Retrieve(t.Context())
	require.ErrorIs(t, err, errNoCredentials)
	require.ErrorIs(t, request{verb: "put"}.translate(err).err, objstore.ErrDenied)
	p.inner = &flakyCredentials{}
	_, err = p.Retrieve(t.Context())
	require.NoError(t, err)
	p.inner = &flakyCredentials{err: broken}
	_, err = p.Retrieve(t.Context())
	require.ErrorIs(t, err, broken)
	require.True(t, request{verb: "put"}.translate(err).retry)
}

// A server may answer with the ETag of one version and the body of another. A
// compare-and-swap must not build on that.
func TestTornAnswers(t *testing.T) {
	other := func(r *s3fake.Response) { r.Header.Set("ETag", `"00112233445566778899aabbccddeeff"`) }
	s, srv, _ := open(t, nil)
	put, err := s.Put(t.Context(), "n", []byte("body"), objstore.PutOptions{})
	require.NoError(t, err)
	srv.SetHook(on(s3fake.GetObject, 1, s3fake.Action{Rewrite: other}))
	obj, err := s.Get(t.Context(), "n", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, put.ETag, obj.ETag, "asked again")
	require.Equal(t, 2, srv.Count(s3fake.GetObject))

	// An ETag that is never the MD5: two equal answers settle it, for the store.
	srv.SetHook(on(s3fake.GetObject, always, s3fake.Action{Rewrite: other}))
	for _, gets := range []int{4, 5} {
		obj, err = s.Get(t.Context(), "n", objstore.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "body", string(obj.Body))
		require.Equal(t, gets, srv.Count(s3fake.GetObject))
	}
}
