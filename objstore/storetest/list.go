package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/annalsdb/annals/objstore"
)

func (s *suite) listOrder() {
	names, more := s.list("", "", 0)
	s.Empty(names)
	s.False(more)

	// Bytewise: '-' < '.' < '/' < '0' < 'A' < 'a'. "a" and "a/b" must not both be used.
	want := []string{"A", "a!", "a-", "a-b/c", "a.b", "a/b", "a/b-/x", "a/b.c", "a/c/d", "a0", "aB", "ab", "b/a", "ba"}
	shuffled := slices.Clone(want)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	s.fill(shuffled)
	s.True(slices.IsSorted(want))

	tests := []struct {
		prefix, startAfter string
		limit              int
		want               []string
		more               bool
	}{
		{"", "", 0, want, false},
		{"", "", len(want), want, false},
		{"", "", len(want) - 1, want[:len(want)-1], true},
		{"", "", 1, want[:1], true},
		{"", "", objstore.MaxListPage + 1, want, false},
		{"a/", "", 0, []string{"a/b", "a/b-/x", "a/b.c", "a/c/d"}, false},
		{"a/b", "", 0, []string{"a/b", "a/b-/x", "a/b.c"}, false},
		{"a/b", "a/b", 0, []string{"a/b-/x", "a/b.c"}, false},
		{"a/b", "a/b", 1, []string{"a/b-/x"}, true},
		{"a/b", "a/b-", 0, []string{"a/b-/x", "a/b.c"}, false},
		{"a/b", "a/b-/x", 0, []string{"a/b.c"}, false},
		{"a/b", "a/b-/y", 0, []string{"a/b.c"}, false},
		{"a/c/", "", 0, []string{"a/c/d"}, false},
		{"a/c/d", "", 0, []string{"a/c/d"}, false},
		{"a/c/d", "a/c/d", 0, nil, false},
		{"a/c/d/", "", 0, nil, false},
		{"a", "a.b", 0, []string{"a/b", "a/b-/x", "a/b.c", "a/c/d", "a0", "aB", "ab"}, false},
		{"a", "a.c", 1, []string{"a/b"}, true},
		{"a", "a/", 0, []string{"a/b", "a/b-/x", "a/b.c", "a/c/d", "a0", "aB", "ab"}, false},
		{"a", "a/~", 0, []string{"a0", "aB", "ab"}, false},
		{"a", "a/c/d", 0, []string{"a0", "aB", "ab"}, false},
		{"b", "", 0, []string{"b/a", "ba"}, false},
		{"b", "a", 0, []string{"b/a", "ba"}, false}, // startAfter before the prefix
		{"b", "a/z", 1, []string{"b/a"}, true},
		{"a", "b", 0, nil, false}, // startAfter behind the prefix
		{"", "ba", 0, nil, false},
		{"c", "", 0, nil, false},
		{"nothing/here", "", 0, nil, false},
		{"/", "", 0, nil, false},
		{"../", "", 0, nil, false},
		{"a//", "", 0, nil, false},
		{"a/../", "", 0, nil, false},
		{"a/./", "", 0, nil, false},
	}
	for _, test := range tests {
		got, more := s.list(test.prefix, test.startAfter, test.limit)
		s.Equal(test.want, got, "prefix %q after %q limit %d", test.prefix, test.startAfter, test.limit)
		s.Equal(test.more, more, "prefix %q after %q limit %d", test.prefix, test.startAfter, test.limit)
	}
}

// listModel compares listings of random names with a sorted slice.
func (s *suite) listModel() {
	seed := rand.Uint64()
	s.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	word := func() string { return string("-/0a"[rnd.IntN(4)]) }
	random := func() string {
		var b strings.Builder
		for range rnd.IntN(7) {
			b.WriteString(word())
		}
		return b.String()
	}
	var names []string
	for len(names) < 60 {
		name := "m" + random()
		clash := func(n string) bool {
			return n == name || strings.HasPrefix(n, name+"/") || strings.HasPrefix(name, n+"/")
		}
		if objstore.ValidName(name) == nil && !slices.ContainsFunc(names, clash) {
			names = append(names, name)
		}
	}
	s.fill(names)
	slices.Sort(names)
	for range 150 {
		prefix, after, limit := "", "", 1+rnd.IntN(20)
		if rnd.IntN(4) > 0 {
			prefix = "m" + random()
			prefix = prefix[:min(len(prefix), 1+rnd.IntN(3))]
		}
		if rnd.IntN(4) > 0 {
			after = "m" + random()
		}
		var want []string
		for _, n := range names {
			if strings.HasPrefix(n, prefix) && n > after {
				want = append(want, n)
			}
		}
		wantMore := len(want) > limit
		if wantMore {
			want = want[:limit]
		}
		got, more := s.list(prefix, after, limit)
		s.Equal(want, got, "prefix %q after %q limit %d", prefix, after, limit)
		s.Equal(wantMore, more, "prefix %q after %q limit %d", prefix, after, limit)
	}
}

func (s *suite) listMany() {
	var names []string
	for i := range manyObjects {
		names = append(names, fmt.Sprintf("m/%02d/%06d", i%3, i))
	}
	s.fill(names)
	slices.Sort(names)

	page, err := s.store.List(s.ctx, "", "", 0)
	s.NoError(err)
	s.Len(page.Entries, objstore.MaxListPage)
	s.True(page.More)
	page, err = s.store.List(s.ctx, "", "", manyObjects)
	s.NoError(err)
	s.Len(page.Entries, objstore.MaxListPage)

	var got []string
	s.NoError(objstore.ListAll(s.ctx, s.store, "m/", "", func(e objstore.Entry) (bool, error) {
		got = append(got, e.Name)
		s.Equal(int64(len(e.Name)), e.Size)
		return true, nil
	}))
	s.Equal(names, got)

	got = nil
	for after, more := "", true; more; { // small pages over one folder
		var page []string
		page, more = s.list("m/01/", after, 99)
		got = append(got, page...)
		after = got[len(got)-1]
	}
	s.Equal(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, "m/01/") }), got)
}

// listReflects: a List begun after a Put or Delete returned reflects it, while
// others write.
func (s *suite) listReflects() {
	const writers, each = 4, 15
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		wg.Go(func() { errs[w] = s.putListDelete(fmt.Sprintf("w%d/", w), each) })
	}
	wg.Wait()
	for _, err := range errs {
		s.NoError(err)
	}
	names, _ := s.list("", "", 0)
	s.Len(names, writers*(each-each/2))
}

// putListDelete writes n objects under a prefix that nobody else uses, deletes
// every other one, and checks a listing after each step.
func (s *suite) putListDelete(prefix string, n int) error {
	var want []string
	check := func(did string) error {
		page, err := s.store.List(s.ctx, prefix, "", 0)
		if err != nil {
			return err
		}
		var got []string
		for _, e := range page.Entries {
			got = append(got, e.Name)
		}
		if !slices.Equal(want, got) {
			return fmt.Errorf("after %s the listing is %q, not %q", did, got, want)
		}
		return nil
	}
	for i := range n {
		name := fmt.Sprintf("%s%04d", prefix, i)
		if _, err := s.store.Put(s.ctx, name, nil, objstore.PutOptions{}); err != nil {
			return err
		}
		want = append(want, name)
		if err := check("put " + name); err != nil {
			return err
		}
		if i%2 == 0 {
			continue
		}
		if err := s.store.Delete(s.ctx, []string{name}); err != nil {
			return err
		}
		want = want[:len(want)-1]
		if err := check("delete " + name); err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) deletes() {
	s.NoError(s.store.Delete(s.ctx, nil))
	s.fill([]string{"a/1", "a/2", "a/3", "b"})
	s.NoError(s.store.Delete(s.ctx, []string{"a/2", "missing", "a/2", "not/here/either", "b"}))
	names, _ := s.list("", "", 0)
	s.Equal([]string{"a/1", "a/3"}, names)
	_, err := s.store.Get(s.ctx, "b", objstore.GetOptions{})
	s.ErrorIs(err, objstore.ErrNotFound)
	s.NoError(s.store.Delete(s.ctx, []string{"a/2", "a"})) // gone; a folder is no object
	s.holds("a/1", []byte("a/1"), "")
	s.NoError(s.store.Delete(s.ctx, []string{"a/1", "a/3"}))
	names, _ = s.list("", "", 0)
	s.Empty(names)
	s.NoError(s.store.Delete(s.ctx, []string{"a", "a/1"})) // an empty folder neither
	s.put("a/1", []byte("again"))
	s.holds("a/1", []byte("again"), "")
}

func (s *suite) deleteMany() {
	var names []string
	for i := range objstore.MaxDeleteBatch {
		names = append(names, fmt.Sprintf("d/%04d", i))
	}
	s.fill(names[:len(names)/2]) // the other half is missing
	s.put("keep", nil)
	s.NoError(s.store.Delete(s.ctx, names))
	got, more := s.list("", "", 0)
	s.Equal([]string{"keep"}, got)
	s.False(more)
}
