//go:build linux || darwin

package dir

import (
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

func TestListIgnoresWhatIsNoObject(t *testing.T) {
	s := newStore(t)
	put(t, s, "a/b", "")
	put(t, s, "a/c", "")
	require.NoError(t, s.Delete(t.Context(), []string{"a/c"}))
	require.NoError(t, os.WriteFile(s.path("with space"), nil, 0o666))
	require.NoError(t, os.WriteFile(s.path(".tmp/x"), nil, 0o666))
	require.NoError(t, os.MkdirAll(s.path("empty/folder"), 0o777))
	require.NoError(t, os.MkdirAll(s.path("ä/folder"), 0o777))
	require.NoError(t, os.WriteFile(s.path("ä/folder/x"), nil, 0o666))
	require.NoError(t, os.Symlink(s.path("a/b"), s.path("link")))
	require.NoError(t, os.Symlink(s.path("a"), s.path("linked")))
	for _, prefix := range []string{"", "a", "a/", "a/b"} {
		page, err := s.List(t.Context(), prefix, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Entries, 1, prefix)
		require.Equal(t, "a/b", page.Entries[0].Name)
		require.False(t, page.More)
	}
	_, err := s.Get(t.Context(), "link", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrNotFound)
	_, err = s.Head(t.Context(), "link")
	require.ErrorIs(t, err, objstore.ErrNotFound)
	for _, prefix := range []string{".", ".tmp", ".tmp/", ".lock", "..", "../", "empty/"} {
		page, err := s.List(t.Context(), prefix, "", 0)
		require.NoError(t, err)
		require.Empty(t, page.Entries, prefix)
	}
}

// countingFS counts the folders that are read and the files that are described.
type countingFS struct {
	osFS
	reads, stats int
}

func (c *countingFS) readDir(path string, fn func(string, iofs.FileMode)) error {
	c.reads++
	return c.osFS.readDir(path, fn)
}

func (c *countingFS) stat(path string) (info, error) {
	c.stats++
	return c.osFS.stat(path)
}

// TestListReadsLittle: a page costs the folders on its way, not the whole tree,
// and describes the files of the page only.
func TestListReadsLittle(t *testing.T) {
	s := newStore(t)
	for i := range 30 {
		for j := range 4 {
			name := fmt.Sprintf("t/%02d/%d", i, j)
			require.NoError(t, os.MkdirAll(filepath.Dir(s.path(name)), 0o777))
			require.NoError(t, os.WriteFile(s.path(name), []byte(name), 0o666))
		}
	}
	tests := []struct {
		prefix, after string
		limit         int
		reads         int // at most
		first         string
	}{
		{"", "", 1, 3, "t/00/0"},
		{"", "", 6, 4, "t/00/0"},
		{"t/17/", "", 100, 1, "t/17/0"},
		{"t/17", "", 100, 2, "t/17/0"},
		{"t/1", "t/12/3", 3, 3, "t/13/0"},
		{"", "t/20/1", 2, 4, "t/20/2"},
		{"", "t/29/", 100, 3, "t/29/0"},
	}
	for _, test := range tests {
		fs := &countingFS{}
		s.fs = fs
		page, err := s.List(t.Context(), test.prefix, test.after, test.limit)
		require.NoError(t, err)
		require.Equal(t, test.first, page.Entries[0].Name, "%+v", test)
		require.LessOrEqual(t, fs.reads, test.reads, "%+v", test)
		require.Equal(t, len(page.Entries)+1, fs.stats, "%+v: one for the root", test)
	}
}

// TestListOfFoldersWithoutObjects: the first keys of a folder may lead to
// nothing; the listing then goes on with the next ones.
func TestListOfFoldersWithoutObjects(t *testing.T) {
	s := newStore(t)
	for i := range 300 {
		require.NoError(t, os.MkdirAll(s.path(fmt.Sprintf("d/%03d/sub", i)), 0o777))
	}
	put(t, s, "d/150/sub/x", "")
	put(t, s, "d/299-y", "")
	put(t, s, "d/299/z", "")
	for limit := 1; limit <= 4; limit++ {
		var got []string
		for after, more := "", true; more; {
			page, err := s.List(t.Context(), "d", after, limit)
			require.NoError(t, err)
			more = page.More
			for _, e := range page.Entries {
				got = append(got, e.Name)
				after = e.Name
			}
		}
		require.Equal(t, []string{"d/150/sub/x", "d/299-y", "d/299/z"}, got)
	}
}

func BenchmarkListPageOfLargeFolder(b *testing.B) {
	s, err := Open(b.TempDir())
	require.NoError(b, err)
	require.NoError(b, os.Mkdir(s.path("n"), 0o777))
	files := 20_000
	if testing.Short() {
		files = 3000
	}
	for i := range files {
		require.NoError(b, os.WriteFile(s.path(fmt.Sprintf("n/%06d", i)), nil, 0o666))
	}
	for b.Loop() {
		page, err := s.List(b.Context(), "n/", fmt.Sprintf("n/%06d", files/2), 0)
		require.NoError(b, err)
		require.Len(b, page.Entries, objstore.MaxListPage)
	}
}
