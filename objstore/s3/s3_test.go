package s3

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
	"github.com/annalsdb/annals/objstore/s3/s3server"
	"github.com/annalsdb/annals/objstore/storetest"
)

// isolate keeps the machine's AWS configuration out of a test, but for the
// certificates that it trusts.
func isolate(t testing.TB) {
	t.Helper()
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "AWS_") && name != "AWS_CA_BUNDLE" {
			t.Setenv(name, "") // restored at the end
			require.NoError(t, os.Unsetenv(name))
		}
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
}

func testOptions(srv *s3fake.Server) Options {
	return Options{
		Bucket: s3fake.Bucket, Prefix: "some/prefix", Endpoint: srv.URL, Region: "us-east-1", PathStyle: true,
		Credentials: &Credentials{AccessKeyID: "key", SecretAccessKey: "secret"},
	}
}

// waits records the waits between attempts instead of waiting. The list may be read
// when no call is under way.
type waits struct {
	mu   sync.Mutex
	list []time.Duration
}

func (w *waits) sleep(ctx context.Context, d time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, d)
	return ctx.Err()
}

// open returns a store on a fake server that never really waits between attempts.
func open(t testing.TB, change func(*Options)) (*Store, *s3fake.Server, *waits) {
	t.Helper()
	isolate(t)
	srv := s3fake.New(t)
	opts := testOptions(srv)
	w := &waits{}
	opts.Sleep = w.sleep
	opts.Random = func() float64 { return 0.5 }
	if change != nil {
		change(&opts)
	}
	s, err := Open(t.Context(), opts)
	require.NoError(t, err)
	return s, srv, w
}

func TestConformance(t *testing.T) {
	isolate(t)
	storetest.Run(t, func(t *testing.T) objstore.Store {
		s, err := Open(t.Context(), testOptions(s3fake.New(t)))
		require.NoError(t, err)
		return s
	})
}

func TestNames(t *testing.T) {
	for _, prefix := range []string{"", "p", "some/prefix"} {
		s, srv, _ := open(t, func(o *Options) { o.Prefix = prefix })
		root := strings.TrimPrefix(prefix+"/", "/")
		for _, name := range []string{"b/1", "a", "c"} {
			_, err := s.Put(t.Context(), name, nil, objstore.PutOptions{})
			require.NoError(t, err)
		}
		require.Equal(t, []string{root + "a", root + "b/1", root + "c"}, srv.Keys(s3fake.Bucket))
		require.Equal(t, []string{"a", "b/1", "c"}, allNames(t, s))
		page, err := s.List(t.Context(), "b", "a", 1)
		require.NoError(t, err)
		require.Equal(t, "b/1", page.Entries[0].Name)
		require.False(t, page.More)
		require.NoError(t, s.Delete(t.Context(), []string{"a", "c"}))
		require.Equal(t, []string{root + "b/1"}, srv.Keys(s3fake.Bucket))
	}
}

// openReal opens a fresh prefix on a real server.
func openReal(t *testing.T, srv *s3server.Server) *Store {
	t.Helper()
	opts, err := ParseURL(srv.URL(randomName(t)))
	require.NoError(t, err)
	s, err := Open(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { clean(t, s) })
	return s
}

func TestConformanceServer(t *testing.T) {
	srv := s3server.Start(t)
	storetest.RunServer(t, func(t *testing.T) objstore.Store { return openReal(t, srv) })
}

func TestF26AbandonedUploadsServer(t *testing.T) {
	s := openReal(t, s3server.Start(t))
	for _, name := range []string{"a", "b/c"} {
		_, err := s.createUpload(t.Context(), request{verb: "put", name: name})
		require.NoError(t, err)
	}
	now, err := s.ServerTime(t.Context())
	require.NoError(t, err)
	n, err := s.AbortUploads(t.Context(), now.Add(-time.Hour))
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = s.AbortUploads(t.Context(), now.Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

func randomName(t *testing.T) string {
	t.Helper()
	var b [8]byte
	_, err := rand.Read(b[:])
	require.NoError(t, err)
	return hex.EncodeToString(b[:])
}

// clean deletes everything under the store's prefix.
func clean(t *testing.T, s *Store) {
	t.Helper()
	ctx := context.Background() // the test's own has ended
	for {
		page, err := s.List(ctx, "", "", 0)
		require.NoError(t, err)
		var names []string
		for _, e := range page.Entries {
			names = append(names, e.Name)
		}
		require.NoError(t, s.Delete(ctx, names))
		if !page.More {
			return
		}
	}
}
