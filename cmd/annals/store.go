package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/dir"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/s3"
)

// localFlushInterval is the flush interval where a PUT costs no money and takes
// about a millisecond.
const localFlushInterval = 2 * time.Millisecond

// sharedStores are the forms of --store of which more than one process has the log.
const sharedStores = "file:PATH or s3://BUCKET/PREFIX?endpoint=URL&region=R&path_style=true"

// errNoStore is the error of a --store of another form.
var errNoStore = errors.New("want mem:, " + sharedStores)

// storeURL is a parsed --store: where the log's objects are, not yet opened.
type storeURL struct {
	flushInterval time.Duration // what suits this kind of store
	folder        string        // of a file: URL
	private       bool          // nobody but this process has it
	open          func(context.Context) (objstore.Store, error)
}

// openExisting is open for commands that must not begin a store: a folder is not created.
func (u *storeURL) openExisting(ctx context.Context) (objstore.Store, error) {
	if u.folder != "" {
		if _, err := os.Stat(u.folder); err != nil {
			return nil, noFolder(err)
		}
	}
	return u.open(ctx)
}

// openToRead is openExisting for commands that write nothing: permission to read is enough.
func (u *storeURL) openToRead(ctx context.Context) (objstore.Store, error) {
	if u.folder == "" {
		return u.open(ctx)
	}
	store, err := dir.OpenReadOnly(u.folder)
	if err != nil {
		return nil, noFolder(err) // not a nil *dir.Store in the interface
	}
	return store, nil
}

// noFolder is the error of a log's folder that cannot be opened: manifest.ErrNoLog if there is none.
func noFolder(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", manifest.ErrNoLog, err)
	}
	return err
}

// holds reports whether a folder lies in that of the store, or is the same.
func (u *storeURL) holds(folder string) bool {
	if u.folder == "" || folder == "" {
		return false
	}
	root, err1 := realPath(u.folder)
	path, err2 := realPath(folder)
	rel, err3 := filepath.Rel(root, path)
	return errors.Join(err1, err2, err3) == nil && filepath.IsLocal(rel)
}

// realPath is a path without links, as far as it exists.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	for rest := ""; err == nil; {
		real, lerr := filepath.EvalSymlinks(path)
		if lerr == nil {
			return filepath.Join(real, rest), nil
		}
		up := filepath.Dir(path)
		if up == path {
			return filepath.Join(path, rest), nil
		}
		path, rest = up, filepath.Join(filepath.Base(path), rest)
	}
	return path, err
}

// parseStoreURL reads mem:, file:PATH or s3://BUCKET/PREFIX?... without
// touching the store. Its errors repeat nothing that could be a secret.
func parseStoreURL(text string) (storeURL, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch scheme {
	case "mem":
		if rest != "" {
			return storeURL{}, errors.New("mem: takes nothing behind the colon")
		}
		return storeURL{localFlushInterval, "", true, func(context.Context) (objstore.Store, error) {
			return mem.New(mem.Options{}), nil
		}}, nil
	case "file":
		path, err := filePath(rest)
		if err != nil {
			return storeURL{}, err
		}
		return storeURL{localFlushInterval, path, false, func(context.Context) (objstore.Store, error) {
			return dir.Open(path)
		}}, nil
	case "s3":
		options, err := s3.ParseURL(text)
		if err != nil {
			return storeURL{}, err
		}
		return storeURL{engine.DefaultFlushInterval, "", false, func(ctx context.Context) (objstore.Store, error) {
			return s3.Open(ctx, options)
		}}, nil
	}
	return storeURL{}, errNoStore
}

// parseSharedStoreURL is parseStoreURL for commands that work on a log that is there already: none is in mem:.
func parseSharedStoreURL(text string) (storeURL, error) {
	u, err := parseStoreURL(text)
	switch {
	case errors.Is(err, errNoStore):
		return storeURL{}, fmt.Errorf("want %s", sharedStores)
	case err == nil && u.private:
		return storeURL{}, fmt.Errorf("nothing can be in mem:, which is of one process alone; want %s", sharedStores)
	}
	return u, err
}

// filePath returns the path of a file: URL: everything behind the colon, as it
// is, or behind the slashes of file:///ABSOLUTE.
func filePath(rest string) (string, error) {
	if behind, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(behind, "/") {
			return "", fmt.Errorf("file: with two slashes names a host; write file:%s or file:///PATH", behind)
		}
		rest = behind
	}
	if rest == "" {
		return "", errors.New("file: needs a path")
	}
	if strings.ContainsRune(rest, 0) {
		return "", errors.New("file: the path holds a zero byte")
	}
	return rest, nil
}
