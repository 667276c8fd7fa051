package storetest

import (
	"time"

	"github.com/annalsdb/annals/objstore"
)

func (s *suite) ranges() {
	const body = "0123456789"
	res := s.put("n", []byte(body))
	tests := []struct {
		offset, length, suffix int64
		want                   string
	}{
		{0, 0, 0, body},
		{0, 1, 0, "0"},
		{0, 10, 0, body},
		{0, 11, 0, body},
		{3, 0, 0, "3456789"},
		{3, 4, 0, "3456"},
		{3, 7, 0, "3456789"},
		{3, 8, 0, "3456789"},
		{9, 0, 0, "9"},
		{9, 1, 0, "9"},
		{9, 1 << 60, 0, "9"},
		{3, 1<<63 - 1, 0, "3456789"},
		{0, 0, 1, "9"},
		{0, 0, 4, "6789"},
		{0, 0, 10, body},
		{0, 0, 11, body},
		{0, 0, 1 << 60, body},
	}
	for _, test := range tests {
		o, err := s.store.Get(s.ctx, "n", objstore.GetOptions{Offset: test.offset, Length: test.length, Suffix: test.suffix})
		s.NoError(err, "%+v", test)
		s.Equal(test.want, string(o.Body), "%+v", test)
		s.Equal(int64(len(body)), o.Size, "%+v", test)
		s.Equal(res.ETag, o.ETag, "%+v", test)
		s.False(o.Modified.IsZero(), "%+v", test)
		s.False(o.Time.IsZero(), "%+v", test)
	}
	for _, offset := range []int64{10, 11, 1 << 60} {
		for _, length := range []int64{0, 1, 1<<63 - 1} {
			_, err := s.store.Get(s.ctx, "n", objstore.GetOptions{Offset: offset, Length: length})
			s.ErrorIs(err, objstore.ErrRange, "offset %d, length %d", offset, length)
		}
	}
}

func (s *suite) emptyRanges() {
	res := s.put("n", nil)
	for _, opts := range []objstore.GetOptions{{}, {Suffix: 1}, {Suffix: 100}, {MaxBytes: 1}} {
		o, err := s.store.Get(s.ctx, "n", opts)
		s.NoError(err, "%+v", opts)
		s.Empty(o.Body, "%+v", opts)
		s.Zero(o.Size, "%+v", opts)
		s.Equal(res.ETag, o.ETag, "%+v", opts)
	}
	for _, opts := range []objstore.GetOptions{{Length: 1}, {Offset: 1}, {Offset: 1, Length: 1}} {
		_, err := s.store.Get(s.ctx, "n", opts)
		s.ErrorIs(err, objstore.ErrRange, "%+v", opts)
	}
}

func (s *suite) ifNoneMatch() {
	first := s.put("n", []byte("one"))
	for _, opts := range []objstore.GetOptions{
		{}, {Offset: 1, Length: 1}, {Suffix: 1}, {MaxBytes: 1},
	} {
		opts.IfNoneMatch = first.ETag
		_, err := s.store.Get(s.ctx, "n", opts)
		s.ErrorIs(err, objstore.ErrNotModified, "%+v", opts)
	}
	second := s.put("n", []byte("two"))
	o, err := s.store.Get(s.ctx, "n", objstore.GetOptions{IfNoneMatch: first.ETag})
	s.NoError(err)
	s.Equal("two", string(o.Body))
	s.Equal(second.ETag, o.ETag)
	_, err = s.store.Get(s.ctx, "n", objstore.GetOptions{IfNoneMatch: o.ETag})
	s.ErrorIs(err, objstore.ErrNotModified)
	o, err = s.store.Get(s.ctx, "n", objstore.GetOptions{IfNoneMatch: first.ETag, Offset: 1, Length: 1})
	s.NoError(err)
	s.Equal("w", string(o.Body))
}

func (s *suite) maxBytes() {
	s.put("n", []byte("0123456789"))
	tests := []struct {
		opts objstore.GetOptions
		want string // "" is ErrTooLarge
	}{
		{objstore.GetOptions{MaxBytes: 10}, "0123456789"},
		{objstore.GetOptions{MaxBytes: 9}, ""},
		{objstore.GetOptions{MaxBytes: 1}, ""},
		{objstore.GetOptions{Offset: 5, MaxBytes: 5}, "56789"},
		{objstore.GetOptions{Offset: 5, MaxBytes: 4}, ""},
		{objstore.GetOptions{Offset: 5, Length: 4, MaxBytes: 4}, "5678"},
		{objstore.GetOptions{Offset: 5, Length: 100, MaxBytes: 5}, "56789"},
		{objstore.GetOptions{Offset: 5, Length: 100, MaxBytes: 4}, ""},
		{objstore.GetOptions{Suffix: 3, MaxBytes: 3}, "789"},
		{objstore.GetOptions{Suffix: 3, MaxBytes: 2}, ""},
		{objstore.GetOptions{Suffix: 1 << 60, MaxBytes: 10}, "0123456789"},
	}
	for _, test := range tests {
		o, err := s.store.Get(s.ctx, "n", test.opts)
		if test.want == "" {
			s.ErrorIs(err, objstore.ErrTooLarge, "%+v", test.opts)
			continue
		}
		s.NoError(err, "%+v", test.opts)
		s.Equal(test.want, string(o.Body), "%+v", test.opts)
	}
}

func (s *suite) head() {
	before, err := s.store.ServerTime(s.ctx)
	s.NoError(err)
	for _, size := range []int{0, 1, 1000} {
		res := s.put("n", make([]byte, size))
		attrs, err := s.store.Head(s.ctx, "n")
		s.NoError(err)
		s.Equal(int64(size), attrs.Size)
		s.Equal(res.ETag, attrs.ETag)
		after, err := s.store.ServerTime(s.ctx)
		s.NoError(err)
		s.between(before, attrs.Modified, after)
		s.between(before, attrs.Time, after)
		s.between(before, res.Time, after)

		o := s.get("n")
		s.WithinDuration(attrs.Modified, o.Modified, 0, "Get and Head agree")
		page, err := s.store.List(s.ctx, "n", "", 0)
		s.NoError(err)
		s.Len(page.Entries, 1)
		s.Equal(int64(size), page.Entries[0].Size)
		s.Empty(page.Entries[0].ETag)
		s.True(page.Entries[0].Time.IsZero())
		// A listing and a header may have different resolutions.
		s.WithinDuration(attrs.Modified, page.Entries[0].Modified, time.Second)
	}
}

func (s *suite) serverTime() {
	var last time.Time
	for i := range 5 {
		now, err := s.store.ServerTime(s.ctx)
		s.NoError(err)
		s.False(now.IsZero())
		if i > 0 {
			s.False(now.Before(last.Add(-clockSlack)), "the clock went back from %s to %s", last, now)
		}
		last = now
		res := s.put("n", []byte{byte(i)})
		s.WithinDuration(now, res.Time, time.Minute)
		s.False(res.Time.Before(now.Add(-clockSlack)))
	}
	names, _ := s.list("", "", 0)
	s.Equal([]string{"n"}, names, "asking for the time left something behind")
}

// between checks a <= b <= c by the store's clock.
func (s *suite) between(a, b, c time.Time) {
	s.Helper()
	s.False(b.Before(a.Add(-clockSlack)), "%s is before %s", b, a)
	s.False(b.After(c.Add(clockSlack)), "%s is after %s", b, c)
}

func (s *suite) describes() {
	s.NotEmpty(s.store.String())
	s.Equal(s.store.String(), s.store.String())
}
