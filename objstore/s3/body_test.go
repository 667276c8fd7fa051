package s3

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

// TestBodyIsNotReadAfterPut: the caller may change its slice as soon as Put has returned,
// also when the server answered before it had read the body. (The race detector
// is the judge.)
func TestBodyIsNotReadAfterPut(t *testing.T) {
	isolate(t)
	fake := s3fake.New(t)
	early := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		fake.ServeHTTP(w, r)
	}))
	t.Cleanup(early.Close)
	opts := testOptions(fake)
	opts.Endpoint = early.URL
	s, err := Open(t.Context(), opts)
	require.NoError(t, err)
	for _, size := range []int{100, 1 << 20, 8 << 20} { // the last one with Expect: 100-continue
		body := make([]byte, size)
		for range 10 {
			_, err := s.Put(t.Context(), "n", body, objstore.PutOptions{IfAbsent: true})
			require.Error(t, err)
			for i := range body {
				body[i]++
			}
		}
	}
}

func TestSuffixOfAnObjectThatKeepsChanging(t *testing.T) {
	s, srv, _ := open(t, nil)
	srv.Set(s3fake.Bucket, "some/prefix/n", []byte("full"))
	srv.SetHook(on(s3fake.GetObject, 2, s3fake.Fail(416, "InvalidRange"))) // it was empty then
	obj, err := s.Get(t.Context(), "n", objstore.GetOptions{Suffix: 2})
	require.NoError(t, err)
	require.Equal(t, "ll", string(obj.Body))
	srv.SetHook(on(s3fake.GetObject, always, s3fake.Fail(416, "InvalidRange")))
	_, err = s.Get(t.Context(), "n", objstore.GetOptions{Suffix: 2})
	require.ErrorIs(t, err, objstore.ErrRange)
	require.Equal(t, 3+1+maxSuffixTries, srv.Count(s3fake.GetObject))
}

func TestHugeAnnouncedLengthIsNotAllocated(t *testing.T) {
	s, srv, _ := open(t, nil)
	srv.Set(s3fake.Bucket, "some/prefix/n", nil)
	srv.SetHook(on(s3fake.GetObject, always, s3fake.Action{
		Rewrite: func(r *s3fake.Response) { r.Header.Set("Content-Length", fmt.Sprint(int64(math.MaxInt64))) }, Close: true,
	}))
	for _, limit := range []int64{0, 100} {
		_, err := s.Get(t.Context(), "n", objstore.GetOptions{MaxBytes: limit})
		require.ErrorIs(t, err, objstore.ErrTooLarge)
	}
}

func TestCheckRange(t *testing.T) {
	tests := []struct {
		opts         objstore.GetOptions
		length       int64
		contentRange string
		size         int64
		err          error
	}{
		{objstore.GetOptions{}, 10, "", 10, nil},
		{objstore.GetOptions{Offset: 2, Length: 3}, 3, "bytes 2-4/10", 10, nil},
		{objstore.GetOptions{Offset: 2}, 8, "bytes 2-9/10", 10, nil},
		{objstore.GetOptions{Offset: 8, Length: 5}, 2, "bytes 8-9/10", 10, nil},
		{objstore.GetOptions{Suffix: 3}, 3, "bytes 7-9/10", 10, nil},
		{objstore.GetOptions{Suffix: 20}, 10, "", 10, nil},                // the whole is the suffix
		{objstore.GetOptions{Length: 10}, 10, "", 10, nil},                // and the range
		{objstore.GetOptions{Length: 3}, 0, "", 0, objstore.ErrRange},     // 200 where 416 was due
		{objstore.GetOptions{Offset: 10}, 9, "", 9, objstore.ErrRange},    // likewise
		{objstore.GetOptions{Offset: 2, Length: 3}, 10, "", 0, errAnswer}, // range ignored
		{objstore.GetOptions{}, 3, "bytes 2-4/10", 0, errAnswer},          // part where all was asked for
		{objstore.GetOptions{Offset: 2, Length: 3}, 3, "bytes 3-5/10", 0, errAnswer},
		{objstore.GetOptions{Offset: 2, Length: 3}, 2, "bytes 2-4/10", 0, errAnswer},
		{objstore.GetOptions{Offset: 2, Length: 3}, 2, "bytes 2-3/10", 0, errAnswer},
		{objstore.GetOptions{Suffix: 3}, 3, "bytes 6-8/10", 0, errAnswer},
		{objstore.GetOptions{MaxBytes: 9}, 10, "", 0, objstore.ErrTooLarge},
		{objstore.GetOptions{}, maxBodyBytes + 1, "", 0, objstore.ErrTooLarge},
	}
	for _, test := range tests {
		var header *string
		if test.contentRange != "" {
			header = aws.String(test.contentRange)
		}
		size, err := checkRange(test.opts, test.length, header)
		if test.err != nil {
			require.ErrorIs(t, err, test.err, "%+v", test)
			continue
		}
		require.NoError(t, err, "%+v", test)
		require.Equal(t, test.size, size, "%+v", test)
	}
}

func FuzzCheckRange(f *testing.F) {
	f.Add(int64(2), int64(3), int64(0), int64(3), "bytes 2-4/10")
	f.Add(int64(0), int64(0), int64(3), int64(3), "bytes 7-9/10")
	f.Add(int64(0), int64(0), int64(0), int64(9223372036854775807), "bytes 0-9223372036854775806/9223372036854775807")
	f.Add(int64(1), int64(9223372036854775807), int64(0), int64(-1), "bytes -1--1/*")
	f.Fuzz(func(t *testing.T, offset, length, suffix, got int64, header string) {
		opts := objstore.GetOptions{Offset: max(0, offset), Length: max(0, length), Suffix: max(0, suffix)}
		if opts.Suffix > 0 {
			opts.Offset, opts.Length = 0, 0
		}
		size, err := checkRange(opts, max(0, got), &header)
		if err != nil {
			return
		}
		start, end, err := opts.Span(size)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("bytes %d-%d/%d", start, end-1, size), canonical(t, header))
		require.LessOrEqual(t, end-start, int64(maxBodyBytes))
	})
}

// canonical writes a Content-Range without leading zeros and plus signs.
func canonical(t *testing.T, header string) string {
	t.Helper()
	first, last, size, err := parseContentRange(header)
	require.NoError(t, err)
	return fmt.Sprintf("bytes %d-%d/%d", first, last, size)
}

func benchmarkStore(b *testing.B) *Store {
	b.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	s, err := Open(b.Context(), testOptions(s3fake.New(b)))
	require.NoError(b, err)
	return s
}

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := benchmarkStore(b)
			body := bytes.Repeat([]byte{1}, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Put(b.Context(), "n", body, objstore.PutOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := benchmarkStore(b)
			_, err := s.Put(b.Context(), "n", make([]byte, size), objstore.PutOptions{})
			require.NoError(b, err)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Get(b.Context(), "n", objstore.GetOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
