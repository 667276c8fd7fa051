package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/annalsdb/annals/objstore"
)

func (s *suite) putAndGet() {
	body := []byte("hello")
	res := s.put("a/b/c", body)
	s.False(res.Time.IsZero())
	o := s.get("a/b/c")
	s.Equal(body, o.Body)
	s.Equal(int64(len(body)), o.Size)
	s.Equal(res.ETag, o.ETag)
	s.False(o.Modified.IsZero())
	s.False(o.Time.IsZero())
}

func (s *suite) putReplaces() {
	seen := map[string]int{}
	for i, body := range []string{"first", "other", "a longer one", "", "x"} {
		res := s.put("name", []byte(body))
		s.holds("name", []byte(body), res.ETag)
		s.NotContains(seen, res.ETag, "the etag of body %d", i)
		seen[res.ETag] = i
	}
	names, _ := s.list("", "", 0)
	s.Equal([]string{"name"}, names)
}

func (s *suite) putIfAbsent() {
	res, err := s.store.Put(s.ctx, "n", []byte("one"), objstore.PutOptions{IfAbsent: true})
	s.NoError(err)
	s.holds("n", []byte("one"), res.ETag)
	for _, body := range []string{"two", "one", ""} {
		_, err = s.store.Put(s.ctx, "n", []byte(body), objstore.PutOptions{IfAbsent: true})
		s.ErrorIs(err, objstore.ErrPrecondition)
		s.ErrorContains(err, "n")
	}
	s.holds("n", []byte("one"), res.ETag)

	s.NoError(s.store.Delete(s.ctx, []string{"n"}))
	_, err = s.store.Put(s.ctx, "n", []byte("three"), objstore.PutOptions{IfAbsent: true})
	s.NoError(err)
	s.holds("n", []byte("three"), "")
}

func (s *suite) putIfMatch() {
	_, err := s.store.Put(s.ctx, "n", []byte("x"), objstore.PutOptions{IfMatch: `"d41d8cd98f00b204e9800998ecf8427e"`})
	s.ErrorIs(err, objstore.ErrPrecondition, "the object does not exist")
	_, err = s.store.Head(s.ctx, "n")
	s.ErrorIs(err, objstore.ErrNotFound)

	first := s.put("n", []byte("one"))
	second, err := s.store.Put(s.ctx, "n", []byte("two"), objstore.PutOptions{IfMatch: first.ETag})
	s.NoError(err)
	s.NotEqual(first.ETag, second.ETag)
	s.holds("n", []byte("two"), second.ETag)

	for _, stale := range []string{first.ETag, `"0123456789abcdef0123456789abcdef"`} {
		_, err = s.store.Put(s.ctx, "n", []byte("three"), objstore.PutOptions{IfMatch: stale})
		s.ErrorIs(err, objstore.ErrPrecondition)
	}
	s.holds("n", []byte("two"), second.ETag)

	// The etag of a Get and of a Head serve as well.
	third, err := s.store.Put(s.ctx, "n", []byte("four"), objstore.PutOptions{IfMatch: s.get("n").ETag})
	s.NoError(err)
	attrs, err := s.store.Head(s.ctx, "n")
	s.NoError(err)
	s.Equal(third.ETag, attrs.ETag)
	_, err = s.store.Put(s.ctx, "n", []byte("five"), objstore.PutOptions{IfMatch: attrs.ETag})
	s.NoError(err)

	// An object that was deleted matches nothing.
	last := s.get("n").ETag
	s.NoError(s.store.Delete(s.ctx, []string{"n"}))
	_, err = s.store.Put(s.ctx, "n", []byte("six"), objstore.PutOptions{IfMatch: last})
	s.ErrorIs(err, objstore.ErrPrecondition)
	_, err = s.store.Head(s.ctx, "n")
	s.ErrorIs(err, objstore.ErrNotFound)
}

func (s *suite) bodySizes() {
	for _, size := range []int{0, 1, 64 << 10, largeBody} {
		for _, opts := range []objstore.PutOptions{
			{}, {SinglePart: true}, {IfAbsent: true}, {IfAbsent: true, SinglePart: true},
		} {
			body := bytes.Repeat([]byte{byte(size), 1, 2, 3, 5, 7, 11}, size/7+1)[:size]
			name := fmt.Sprintf("s%d/absent=%t,single=%t", size, opts.IfAbsent, opts.SinglePart)
			res, err := s.store.Put(s.ctx, name, body, opts)
			s.NoError(err, name)
			s.holds(name, body, res.ETag)
			if opts.IfAbsent {
				_, err = s.store.Put(s.ctx, name, append([]byte("other"), body...), opts)
				if s.server && size == largeBody && opts.SinglePart && errors.Is(err, objstore.ErrUnavailable) {
					s.Logf("%s: refused with a reset: %v", name, err)
				} else {
					s.ErrorIs(err, objstore.ErrPrecondition, name)
				}
				s.holds(name, body, res.ETag)
			}
			s.NoError(s.store.Delete(s.ctx, []string{name}))
		}
	}
	// A large object under IfMatch, and a nil body.
	first := s.put("n", nil)
	s.holds("n", nil, first.ETag)
	body := bytes.Repeat([]byte("0123456789abcdef"), largeBody/16)
	second, err := s.store.Put(s.ctx, "n", body, objstore.PutOptions{IfMatch: first.ETag})
	s.NoError(err)
	s.holds("n", body, second.ETag)
	_, err = s.store.Put(s.ctx, "n", body[1:], objstore.PutOptions{IfMatch: first.ETag})
	s.ErrorIs(err, objstore.ErrPrecondition)
	s.holds("n", body, second.ETag)
}

func (s *suite) slices() {
	body := []byte("unchanged")
	s.put("n", body)
	s.Equal("unchanged", string(body), "Put changed the caller's slice")
	copy(body, "XXXXXXXXX")
	o := s.get("n")
	s.Equal("unchanged", string(o.Body), "the store kept the caller's slice")
	copy(o.Body, "YYYYYYYYY")
	part, err := s.store.Get(s.ctx, "n", objstore.GetOptions{Offset: 2, Length: 3})
	s.NoError(err)
	s.Equal("cha", string(part.Body), "the store kept the slice that it returned")
	copy(part.Body, "ZZZ")
	_ = append(part.Body, "more"...)
	s.Equal("unchanged", string(s.get("n").Body))

	names := []string{"b", "a", "n"}
	s.NoError(s.store.Delete(s.ctx, names))
	s.Equal([]string{"b", "a", "n"}, names)
}

func (s *suite) invalidNames() {
	long := strings.Repeat("long/", objstore.MaxNameBytes/5+1)
	for _, name := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/.", "a b", "a\x00b", "a\nb", "ä", `a\b`, "a\x7f", long + "x",
	} {
		_, err := s.store.Put(s.ctx, name, nil, objstore.PutOptions{})
		s.ErrorIs(err, objstore.ErrName, "put %q", name)
		_, err = s.store.Get(s.ctx, name, objstore.GetOptions{})
		s.ErrorIs(err, objstore.ErrName, "get %q", name)
		_, err = s.store.Head(s.ctx, name)
		s.ErrorIs(err, objstore.ErrName, "head %q", name)
	}
	s.put("keep", nil)
	s.ErrorIs(s.store.Delete(s.ctx, []string{"keep", "a/"}), objstore.ErrName)
	s.holds("keep", nil, "")
}

func (s *suite) unusualNames() {
	names := []string{
		"LOG", "a/b/c/d/e/f/g", "-", "~", "%2F", "100%", "a+b", "a=b&c", "q?x=1", "#", "a:b", "a,b", "(a)", "'a'", `"a"`, "<a>", "{a}", "!$*;@[]^`|",
		"..a", "a..", "...", "x/.hidden",
		strings.Repeat("0123456789abcdef0123456789abcdef0123456789/", objstore.MaxNameBytes/43) + strings.Repeat("z", objstore.MaxNameBytes%43),
	}
	s.fill(names)
	for _, name := range names {
		s.holds(name, []byte(name), "")
		listed, more := s.list(name, "", 0)
		s.Equal([]string{name}, listed)
		s.False(more)
	}
	s.NoError(s.store.Delete(s.ctx, names))
	listed, _ := s.list("", "", 0)
	s.Empty(listed)
}

func (s *suite) panics() {
	s.put("n", []byte("body"))
	s.Panics(func() {
		_, _ = s.store.Put(s.ctx, "n", nil, objstore.PutOptions{IfAbsent: true, IfMatch: "x"})
	})
	s.Panics(func() { _ = s.store.Delete(s.ctx, make([]string, objstore.MaxDeleteBatch+1)) })
	for _, opts := range []objstore.GetOptions{
		{Offset: -1}, {Length: -1}, {Suffix: -1}, {MaxBytes: -1}, {Suffix: 1, Offset: 1}, {Suffix: 1, Length: 1},
	} {
		s.Panics(func() { _, _ = s.store.Get(s.ctx, "n", opts) }, "%+v", opts)
	}
	s.Panics(func() { _, _ = s.store.List(s.ctx, "", "", -1) })
	s.holds("n", []byte("body"), "")
}

func (s *suite) missing() {
	s.put("a/b", nil)
	for _, name := range []string{"b", "a", "a/c", "a/b2", "c/d/e"} {
		_, err := s.store.Get(s.ctx, name, objstore.GetOptions{})
		s.ErrorIs(err, objstore.ErrNotFound, name)
		s.ErrorContains(err, name)
		_, err = s.store.Get(s.ctx, name, objstore.GetOptions{Offset: 5, Length: 5, IfNoneMatch: "x", MaxBytes: 1})
		s.ErrorIs(err, objstore.ErrNotFound, name)
		_, err = s.store.Get(s.ctx, name, objstore.GetOptions{Suffix: 5})
		s.ErrorIs(err, objstore.ErrNotFound, name)
		_, err = s.store.Head(s.ctx, name)
		s.ErrorIs(err, objstore.ErrNotFound, name)
		s.ErrorContains(err, name)
	}
}

func (s *suite) cancelled() {
	s.put("n", []byte("old"))
	ctx, cancel := context.WithCancelCause(s.ctx)
	cancel(errors.New("the test ended it"))
	calls := map[string]func() error{
		"put":       func() error { _, err := s.store.Put(ctx, "n", []byte("new"), objstore.PutOptions{}); return err },
		"if absent": func() error { _, err := s.store.Put(ctx, "m", nil, objstore.PutOptions{IfAbsent: true}); return err },
		"if match":  func() error { _, err := s.store.Put(ctx, "n", nil, objstore.PutOptions{IfMatch: "x"}); return err },
		"get":       func() error { _, err := s.store.Get(ctx, "n", objstore.GetOptions{}); return err },
		"head":      func() error { _, err := s.store.Head(ctx, "n"); return err },
		"list":      func() error { _, err := s.store.List(ctx, "", "", 0); return err },
		"delete":    func() error { return s.store.Delete(ctx, []string{"n"}) },
		"time":      func() error { _, err := s.store.ServerTime(ctx); return err },
	}
	for what, call := range calls {
		s.ErrorIs(call(), context.Canceled, what)
	}
	names, _ := s.list("", "", 0)
	s.Equal([]string{"n"}, names)
	s.holds("n", []byte("old"), "")
}

func (s *suite) probe() {
	for range 2 {
		s.NoError(objstore.ProbeConditionalWrites(s.ctx, s.store, "trees/00000000/probe/p"))
	}
	names, _ := s.list("", "", 0)
	s.Empty(names)
}
