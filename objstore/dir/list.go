//go:build linux || darwin

package dir

import (
	"context"
	"fmt"
	iofs "io/fs"
	"slices"
	"strings"

	"github.com/annalsdb/annals/objstore"
)

// List implements objstore.Store. It reads each folder that may hold a name of
// the page once or twice, and no other; its memory is bounded by the page, not by
// the folder.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	l := &lister{store: s, ctx: ctx, prefix: prefix, after: startAfter, size: objstore.PageSize(limit)}
	if err := l.run(); err != nil {
		return objstore.Page{}, fmt.Errorf("list %s: %w", prefix, err)
	}
	return l.page, nil
}

// lister is one listing. Names are compared bytewise, and so within one folder a
// subfolder "b" sorts as "b/", like the names that it holds: "b-c" < "b/x" < "b0".
type lister struct {
	store         *Store
	ctx           context.Context
	prefix, after string
	size          int // entries of a full page
	page          objstore.Page
}

func (l *lister) run() error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	if _, err := l.store.fs.stat(l.store.root); err != nil {
		return l.store.failed(err)
	}
	// All names with the prefix lie in its folder part.
	folder := parent(l.prefix)
	if folder != "" && checkName(folder[:len(folder)-1]) != nil {
		return nil // no name begins like this
	}
	return l.folder(folder)
}

// folder lists what is in one folder ("" or "a/b/") and below it, until the page
// is full.
func (l *lister) folder(folder string) error {
	for done, cut := "", true; cut; {
		var keys []string
		var err error
		if keys, cut, err = l.children(folder, done); err != nil {
			return err
		}
		for _, key := range keys {
			if strings.HasSuffix(key, "/") {
				err = l.folder(key)
			} else {
				err = l.add(key)
			}
			if err != nil || l.page.More {
				return err
			}
		}
		if cut {
			done = keys[len(keys)-1]
		}
	}
	return nil
}

// add appends one object to the page.
func (l *lister) add(name string) error {
	if len(l.page.Entries) == l.size {
		l.page.More = true
		return nil
	}
	i, err := l.store.fs.stat(l.store.path(name))
	if err != nil {
		if notThere(err) {
			return nil // deleted meanwhile
		}
		return describe(err)
	}
	l.page.Entries = append(l.page.Entries, objstore.Entry{
		Name:       name,
		Attributes: objstore.Attributes{Size: i.size, Modified: i.modified},
	})
	return nil
}

// children returns the first keys of a folder that sort after done and may
// belong to the listing, in order: names of objects, and of subfolders with their
// slash. When it had to leave out later ones, cut is true. A folder that is gone is empty.
func (l *lister) children(folder, done string) (keys []string, cut bool, err error) {
	if err := l.store.acquireSlot(l.ctx); err != nil {
		return nil, false, err
	}
	defer l.store.releaseSlot()
	most := l.size - len(l.page.Entries) + 1 // one more, to know whether there is more
	trim := func() {
		slices.Sort(keys)
		keys = slices.Compact(keys) // a file system may show a renamed entry twice
		if len(keys) > most {
			keys, cut = keys[:most], true
		}
	}
	err = l.store.fs.readDir(l.store.path(strings.TrimSuffix(folder, "/")), func(name string, mode iofs.FileMode) {
		key, ok := l.key(folder+name, mode)
		switch {
		case !ok || key <= done:
		case cut && key > keys[most-1]: // not among the first
		default:
			keys = append(keys, key)
			if len(keys) > 2*most {
				trim()
			}
		}
	})
	if err != nil && !notThere(err) {
		return nil, false, describe(err)
	}
	trim()
	return keys, cut, nil
}

// key returns how an entry sorts, and whether it, or something in it, may belong
// to the listing.
func (l *lister) key(name string, mode iofs.FileMode) (key string, ok bool) {
	if checkName(name) != nil {
		return "", false
	}
	switch {
	case mode.IsRegular():
		return name, strings.HasPrefix(name, l.prefix) && name > l.after
	case mode.IsDir():
		key = name + "/"
		return key, strings.HasPrefix(key, l.prefix) && (key > l.after || strings.HasPrefix(l.after, key))
	}
	return "", false
}
