package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

type flakyCredentials struct{ err error }

func (f *flakyCredentials) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{}, f.err
}

// manualTimer is a timer that fires when the test says so.
type manualTimer struct {
	fire            func()
	resets, stopped int
}

func (m *manualTimer) Reset(time.Duration) bool { m.resets++; return true }
func (m *manualTimer) Stop() bool               { m.stopped++; return true }

// roundTrip is an HTTP client made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) Do(r *http.Request) (*http.Response, error) { return f(r) }

func TestIdleClient(t *testing.T) {
	var m manualTimer
	c := &idleClient{
		timeout: time.Second,
		newTimer: func(_ time.Duration, f func()) timer {
			m = manualTimer{fire: f}
			return &m
		},
	}
	send := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://host/", io.NopCloser(strings.NewReader("sent")))
		require.NoError(t, err)
		return c.Do(req)
	}
	t.Run("bytes of both bodies push the deadline back", func(t *testing.T) {
		c.inner = roundTrip(func(r *http.Request) (*http.Response, error) {
			before := m.resets
			b, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, "sent", string(b))
			require.Greater(t, m.resets, before)
			_, writesItself := r.Body.(io.WriterTo)
			require.False(t, writesItself, "it would hold the body's lock during network writes")
			return &http.Response{Body: io.NopCloser(strings.NewReader("received"))}, nil
		})
		resp, err := send()
		require.NoError(t, err)
		before := m.resets
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "received", string(b))
		require.Greater(t, m.resets, before)
		require.Zero(t, m.stopped)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 1, m.stopped)
	})
	t.Run("waiting for the answer", func(t *testing.T) {
		c.inner = roundTrip(func(r *http.Request) (*http.Response, error) {
			m.fire()
			return nil, r.Context().Err()
		})
		_, err := send()
		require.ErrorIs(t, err, errIdle)
		require.NotErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, m.stopped)
	})
	t.Run("in the answer's body", func(t *testing.T) {
		c.inner = roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{Body: io.NopCloser(readerFunc(func([]byte) (int, error) {
				m.fire()
				return 0, r.Context().Err()
			}))}, nil
		})
		resp, err := send()
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.ErrorIs(t, err, errIdle)
		require.NoError(t, resp.Body.Close())
	})
	t.Run("other errors pass through", func(t *testing.T) {
		broken := errors.New("broken")
		c.inner = roundTrip(func(*http.Request) (*http.Response, error) { return nil, broken })
		_, err := send()
		require.ErrorIs(t, err, broken)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestTLS covers what the SDK does over TLS only: chunked bodies with the checksum in
// a trailer. It also shows that AWS_CA_BUNDLE is honoured.
func TestTLS(t *testing.T) {
	isolate(t)
	srv := s3fake.NewTLS(t)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(bundle, srv.Certificate, 0o600))
	t.Setenv("AWS_CA_BUNDLE", bundle)
	opts := testOptions(srv)
	opts.PartSize = MinPartSize
	s, err := Open(t.Context(), opts)
	require.NoError(t, err)
	trailers := 0
	srv.SetHook(func(r *s3fake.Request) s3fake.Action {
		if r.Header.Get("X-Amz-Trailer") != "" {
			trailers++
		}
		return s3fake.Action{}
	})
	body := make([]byte, MinPartSize+100)
	_, err = rand.Read(body)
	require.NoError(t, err)
	for _, size := range []int{0, 1, 100_000, MinPartSize, len(body)} {
		_, err := s.Put(t.Context(), "n", body[:size], objstore.PutOptions{})
		require.NoError(t, err)
		obj, err := s.Get(t.Context(), "n", objstore.GetOptions{})
		require.NoError(t, err)
		require.True(t, bytes.Equal(body[:size], obj.Body))
	}
	require.Equal(t, 5, trailers, "three single parts (an empty body has none) and two of an upload")
	require.NoError(t, s.Delete(t.Context(), []string{"n"}))
}

// TestEveryUploadIsChecked pins that bodies carry a checksum, which a client that was
// not built from the loaded configuration would not send.
func TestEveryUploadIsChecked(t *testing.T) {
	s, srv, _ := open(t, func(o *Options) { o.PartSize = MinPartSize })
	checked := map[s3fake.Op]bool{}
	srv.SetHook(func(r *s3fake.Request) s3fake.Action {
		checked[r.Op] = r.Header.Get("X-Amz-Checksum-Crc32") != ""
		return s3fake.Action{}
	})
	_, err := s.Put(t.Context(), "a", []byte("v"), objstore.PutOptions{})
	require.NoError(t, err)
	_, err = s.Put(t.Context(), "b", make([]byte, MinPartSize+1), objstore.PutOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Delete(t.Context(), []string{"a"}))
	for _, op := range []s3fake.Op{s3fake.PutObject, s3fake.UploadPart, s3fake.DeleteObjects} {
		require.True(t, checked[op], op)
	}
}
