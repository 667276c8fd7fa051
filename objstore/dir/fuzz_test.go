//go:build linux || darwin

package dir

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// FuzzList puts objects, whose names are lines, into a directory and into memory, and lists both from anywhere: they agree,
// and a name that one refuses the other refuses too. Names become paths, and paths names.
func FuzzList(f *testing.F) {
	f.Add("a/b-c\na/b/x\na/b0\na", "a/b", "a/b-c", byte(1))
	f.Add("trees/00000000/wal/1\ntrees/00000000/MANIFEST\nLOG", "trees/", "", byte(2))
	f.Add("a\n../x\n/x\na//b\n.\na/..\n", "../", "a", byte(0))
	f.Add("a.tmp\n.x/y\nLOCK\nx\x00y", ".", "LOCK", byte(9))
	f.Fuzz(func(t *testing.T, lines, prefix, after string, limit byte) {
		ctx := t.Context()
		folder, err := Open(t.TempDir())
		require.NoError(t, err)
		memory := mem.New(mem.Options{})
		var put []string
		for _, name := range strings.SplitN(lines, "\n", 6) {
			if reserved(name) || nested(put, name) {
				continue // a folder keeps some names for itself, and cannot be a file too
			}
			_, err := folder.Put(ctx, name, []byte(name), objstore.PutOptions{IfAbsent: true})
			_, want := memory.Put(ctx, name, []byte(name), objstore.PutOptions{IfAbsent: true})
			require.Equal(t, want == nil, err == nil, "%q: %v, but %v", name, err, want)
			if err == nil {
				put = append(put, name)
			}
		}
		got, want := listed(ctx, t, folder, prefix, after, int(limit)), listed(ctx, t, memory, prefix, after, int(limit))
		require.Equal(t, want, got)
		for _, name := range got {
			o, err := folder.Get(ctx, name, objstore.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, name, string(o.Body))
		}
	})
}

// nested reports whether a name is there, whatever its capitals (some file systems do not tell them apart), or lies in
// another one, or another in it.
func nested(names []string, name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(names, func(other string) bool {
		other = strings.ToLower(other)
		return name == other || strings.HasPrefix(name, other+"/") || strings.HasPrefix(other, name+"/")
	})
}

// listed returns the names of a listing, page by page.
func listed(ctx context.Context, t *testing.T, s objstore.Store, prefix, after string, limit int) []string {
	names := []string{}
	for {
		page, err := s.List(ctx, prefix, after, limit)
		require.NoError(t, err)
		for _, e := range page.Entries {
			names = append(names, e.Name)
		}
		if !page.More {
			return names
		}
		after = names[len(names)-1]
	}
}
