package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// seenTokens is a server that notes the Authorization header of the last request, and answers 200.
type seenTokens struct {
	last     atomic.Value
	requests atomic.Int64
}

func (s *seenTokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.last.Store(r.Header.Get("Authorization"))
	s.requests.Add(1)
}

func TestEveryRequestCarriesTheToken(t *testing.T) {
	seen := &seenTokens{}
	ts := httptest.NewServer(seen)
	t.Cleanup(ts.Close)
	token := "first"
	c, err := New(ts.URL, Options{TokenSource: func() (string, error) { return token, nil }})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	ctx, cancel := context.WithCancel(t.Context())
	calls := []func() error{
		func() error { _, err := c.Append(ctx, one("v"), AppendOptions{}); return err },
		func() error { _, err := c.Scan(ctx, nil, ScanOptions{}); return err },
		func() error { _, err := c.Keys(ctx, KeysOptions{}); return err },
		func() error { _, err := c.Segments(ctx, SegmentsOptions{}); return err },
		func() error { _, err := c.Count(ctx, nil, 0, 0); return err },
		func() error { _, err := c.SetCursors(ctx, "c", nil, false); return err },
		func() error { _, err := c.Cursors(ctx, "c", CursorsOptions{}); return err },
		func() error { _, err := c.Consumers(ctx, ConsumersOptions{}); return err },
		func() error { return c.DeleteConsumer(ctx, "c") },
	}
	for i, call := range calls {
		require.NoError(t, call())
		require.Equal(t, int64(i+1), seen.requests.Load())
		require.Equal(t, "Bearer "+token, seen.last.Load())
		token += "x" // rotated
	}
	for _, streams := range [][]Stream{{{Key: []byte("k")}}, {{Prefix: true}}} {
		f := c.Follow(ctx, FollowOptions{OnRetry: func(error, time.Duration) { cancel() }}, streams...)
		require.Empty(t, take(f, 1))
		require.Equal(t, "Bearer "+token, seen.last.Load())
		ctx, cancel = context.WithCancel(t.Context())
		token += "y"
	}
	cancel()
}

func TestNoTokenNoRequest(t *testing.T) {
	seen := &seenTokens{}
	ts := httptest.NewServer(seen)
	t.Cleanup(ts.Close)
	gone := errors.New("the vault is closed")
	for _, source := range []func() (string, error){
		func() (string, error) { return "", gone },
		func() (string, error) { return "", nil },
		func() (string, error) { return "two words", nil },
	} {
		c, err := New(ts.URL, Options{TokenSource: source})
		require.NoError(t, err)
		_, err = c.Append(t.Context(), one("v"), AppendOptions{})
		require.ErrorContains(t, err, "get a token")
		require.NotContains(t, err.Error(), "two words")
		require.True(t, NotAppended(err))
		require.Zero(t, seen.requests.Load())
	}
}

// A redirect to another server gets neither the token nor the records; one within the server is followed.
func TestRedirects(t *testing.T) {
	other := &seenTokens{}
	elsewhere := httptest.NewServer(other)
	t.Cleanup(elsewhere.Close)
	c := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/log/append":
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		case "/api/v1/log/scan":
			http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
		case "/api/v1/log/count":
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		default:
			w.WriteHeader(http.StatusOK)
		}
	}))
	c.token = func() (string, error) { return "secret", nil }
	_, err := c.Append(t.Context(), one("v"), AppendOptions{})
	var answer *Error
	require.ErrorAs(t, err, &answer)
	require.Equal(t, http.StatusTemporaryRedirect, answer.Status)
	require.ErrorContains(t, err, elsewhere.URL)
	require.True(t, NotAppended(err))
	require.NotContains(t, err.Error(), "secret")
	require.Zero(t, other.requests.Load())
	_, err = c.Scan(t.Context(), nil, ScanOptions{})
	require.NoError(t, err)
	_, err = c.Count(t.Context(), nil, 0, 0)
	require.ErrorContains(t, err, "more than 10 redirects")
}

func TestTLS(t *testing.T) {
	ts := httptest.NewUnstartedServer(&seenTokens{})
	ts.EnableHTTP2 = true
	ts.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	ts.StartTLS()
	t.Cleanup(ts.Close)
	roots := x509.NewCertPool()
	roots.AddCert(ts.Certificate())
	call := func(config *tls.Config) error {
		c, err := New(ts.URL, Options{TLS: config, Token: "secret"})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		_, err = c.Count(t.Context(), nil, 0, 0)
		return err
	}
	require.NoError(t, call(&tls.Config{RootCAs: roots, Certificates: ts.TLS.Certificates}))
	for _, config := range []*tls.Config{nil, {}, {RootCAs: roots}} {
		err := call(config)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret")
	}
}

// A server without TLS is not asked again; what breaks a connection of TLS that there was says nothing.
func TestServerWithoutTLS(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	c, err := New(strings.Replace(plain.URL, "http:", "https:", 1), Options{})
	require.NoError(t, err)
	_, err = c.Append(t.Context(), one("v"), AppendOptions{})
	require.ErrorIs(t, err, http.ErrSchemeMismatch)
	require.True(t, NotAppended(err))
	require.False(t, Transient(err))
	f := c.Follow(t.Context(), FollowOptions{}, Stream{Key: []byte("k")})
	for range f.All() {
		t.Fatal("a record")
	}
	require.ErrorIs(t, f.Err(), http.ErrSchemeMismatch)

	later := tls.RecordHeaderError{Msg: "oversized record"}
	require.False(t, NotAppended(later))
	require.True(t, Transient(later))
}

func TestOptionsThatExcludeEachOther(t *testing.T) {
	source := func() (string, error) { return "t", nil }
	for want, o := range map[string]Options{
		"Token and TokenSource": {Token: "t", TokenSource: source},
		"HTTP and TLS":          {HTTP: http.DefaultClient, TLS: &tls.Config{}},
		"visible ASCII":         {Token: "hush\n"},
		"more than 4096":        {Token: strings.Repeat("x", 4097)},
	} {
		_, err := New("http://host", o)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hush")
	}
}

func TestTokenFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "token")
		source := TokenFile(name)
		_, err := source()
		require.ErrorIs(t, err, os.ErrNotExist)
		write := func(s string) { require.NoError(t, os.WriteFile(name, []byte(s), 0o600)) }
		for _, bad := range []string{"", "\n", "two lines\n", "one\ntwo\n", strings.Repeat("x", maxTokenBytes+1)} {
			write(bad)
			_, err := source()
			require.ErrorContains(t, err, "the token")
			require.NotContains(t, err.Error(), "two")
		}
		says := func(want string) {
			token, err := source()
			require.NoError(t, err)
			require.Equal(t, want, token)
		}
		write("  first\n")
		says("first")
		write("second\n")
		says("first")
		time.Sleep(tokenFileAge)
		says("second")
		require.NoError(t, os.Remove(name))
		time.Sleep(tokenFileAge)
		says("second")
		write(strings.Repeat("x", maxTokenBytes))
		time.Sleep(tokenFileAge)
		says(strings.Repeat("x", maxTokenBytes))
	})
}

// A URL that cannot be used may hold a password, which is in no error.
func TestURLsInErrorsHaveNoPassword(t *testing.T) {
	for _, url := range []string{"http://admin:hunter2@h:port", "ftp://admin:hunter2@h", "http://admin:hunter2@h?q"} {
		_, err := New(url, Options{})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hunter2")
	}
}
