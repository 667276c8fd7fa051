package mem

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store { return New(Options{}) })
}

func put(t *testing.T, s *Store, name, body string, opts objstore.PutOptions) objstore.PutResult {
	t.Helper()
	res, err := s.Put(t.Context(), name, []byte(body), opts)
	require.NoError(t, err)
	return res
}

func TestWrittenOnceObjectsPanic(t *testing.T) {
	const tail = "w00000000000000000001-01ARZ3NDEKTSV4RRFFQ69G5FAV"
	tests := []struct {
		name      string
		immutable bool
	}{
		{"trees/00000000/sst/0000000001/" + tail + ".sst", true},
		{"trees/00000000/seg/" + tail + ".idx", true},
		{"trees/00000000/state/" + tail, true},
		{"trees/00000000/pin/" + tail, true},
		{"sst/x", true},
		{"a/sst/b/c", true},
		{"trees/00000000/MANIFEST", false},
		{"trees/00000000/wal/00000000000000000001/00000000000000000001", false},
		{"LOG", false},
		{"sst", false},
		{"a/sst", false},
		{"assts/b", false},
		{"sst2/b", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := New(Options{})
			first := put(t, s, test.name, "one", objstore.PutOptions{IfAbsent: true})
			replace := func(opts objstore.PutOptions) func() {
				return func() { _, _ = s.Put(t.Context(), test.name, []byte("two"), opts) }
			}
			_, err := s.Put(t.Context(), test.name, []byte("two"), objstore.PutOptions{IfAbsent: true})
			require.ErrorIs(t, err, objstore.ErrPrecondition, "refusing is not overwriting")
			if !test.immutable {
				require.NotPanics(t, replace(objstore.PutOptions{}))
				return
			}
			require.PanicsWithValue(t, "mem: a Put overwrites "+test.name+", which is written once", replace(objstore.PutOptions{}))
			require.Panics(t, replace(objstore.PutOptions{IfMatch: first.ETag}))
			require.Panics(t, replace(objstore.PutOptions{IfMatch: "another"}))

			// The store is still usable, the object unchanged; deleted, it may be written again.
			o, err := s.Get(t.Context(), test.name, objstore.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, "one", string(o.Body))
			require.NoError(t, s.Delete(t.Context(), []string{test.name}))
			put(t, s, test.name, "two", objstore.PutOptions{})
		})
	}
}

func TestETagIsUniquePerPut(t *testing.T) {
	s := New(Options{})
	seen := map[string]bool{}
	note := func(etag string) {
		require.False(t, seen[etag], etag)
		seen[etag] = true
	}
	a := put(t, s, "n", "A", objstore.PutOptions{}).ETag
	note(a)
	c := s.Clone()
	note(put(t, s, "n", "B", objstore.PutOptions{}).ETag)
	note(put(t, c, "n", "C", objstore.PutOptions{}).ETag)
	note(put(t, s, "n", "A", objstore.PutOptions{}).ETag)
	note(put(t, c.Clone(), "n", "A", objstore.PutOptions{}).ETag)
	_, err := s.Put(t.Context(), "n", nil, objstore.PutOptions{IfMatch: a})
	require.ErrorIs(t, err, objstore.ErrPrecondition, "A -> B -> A has another etag")
}

func TestCloneIsIndependent(t *testing.T) {
	s := New(Options{})
	for i := range 100 {
		put(t, s, fmt.Sprintf("n/%02d", i), "old", objstore.PutOptions{})
	}
	c := s.Clone()
	require.Equal(t, 100, c.Len())
	require.Equal(t, int64(300), c.Bytes())
	require.NoError(t, s.Delete(t.Context(), []string{"n/00", "n/01"}))
	put(t, s, "n/02", "newer", objstore.PutOptions{})
	put(t, c, "more", "12345", objstore.PutOptions{})

	require.Equal(t, 98, s.Len())
	require.Equal(t, int64(98*3+2), s.Bytes())
	require.Equal(t, 101, c.Len())
	require.Equal(t, int64(305), c.Bytes())
	o, err := c.Get(t.Context(), "n/02", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "old", string(o.Body))
}

func TestClock(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	s := New(Options{Now: func() time.Time { return now }})
	res := put(t, s, "n", "body", objstore.PutOptions{})
	require.Equal(t, now, res.Time)
	written := now
	now = now.Add(-time.Hour) // steps are the caller's business
	attrs, err := s.Head(t.Context(), "n")
	require.NoError(t, err)
	require.Equal(t, written, attrs.Modified)
	require.Equal(t, now, attrs.Time)
	got, err := s.ServerTime(t.Context())
	require.NoError(t, err)
	require.Equal(t, now, got)
}

func BenchmarkPut(b *testing.B) {
	s := New(Options{})
	body := bytes.Repeat([]byte("x"), 1<<10)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, err := s.Put(context.Background(), fmt.Sprintf("n/%d", i%10_000), body, objstore.PutOptions{})
		require.NoError(b, err)
	}
}

func BenchmarkGetRange(b *testing.B) {
	s := New(Options{})
	_, err := s.Put(b.Context(), "n", make([]byte, 64<<20), objstore.PutOptions{})
	require.NoError(b, err)
	b.SetBytes(4 << 10)
	b.ReportAllocs()
	for b.Loop() {
		_, err := s.Get(context.Background(), "n", objstore.GetOptions{Offset: 32 << 20, Length: 4 << 10})
		require.NoError(b, err)
	}
}

func BenchmarkListPage(b *testing.B) {
	s := New(Options{})
	for i := range 100_000 {
		_, err := s.Put(b.Context(), fmt.Sprintf("n/%06d", i), nil, objstore.PutOptions{})
		require.NoError(b, err)
	}
	b.ReportAllocs()
	for b.Loop() {
		page, err := s.List(context.Background(), "n/", "n/050000", 0)
		require.NoError(b, err)
		require.Len(b, page.Entries, objstore.MaxListPage)
	}
}
