//go:build linux || darwin

// Package dir is an object store in a directory of a local (or well-behaved
// network) file system. An object's name is its path below the directory.
//
//	store, err := dir.Open("/var/lib/annals")
//	if err != nil {
//		return err
//	}
//	_, err = store.Put(ctx, "a/b", body, objstore.PutOptions{IfAbsent: true})
//
// Any number of processes may use the directory at the same time; each calls
// Open. The directory holds besides the objects:
//
//	.tmp/    files that are being written; leftovers are removed by Open after a day
//	.lock    locked (flock) while an object is replaced or deleted
//
// so that no object's name may begin with one of these. Folders are made when
// needed and never removed: that way a folder that was once made durable stays
// so, and an empty one costs a listing one look. The file system must have hard
// links, atomic rename and flock, and should tell names apart by case; Open
// checks what it can.
//
// # How a Put becomes durable
//
// The body is written to a temporary file and that is fsynced; the folders are
// made and fsynced, each in its parent; the file is published in one step, by
// link (IfAbsent: fails if the name exists) or by rename (under the lock); and
// the folder is fsynced. A crash at any point leaves the old object or the new
// one, and when Put has returned, the new one (F13). A refused Put fsyncs the
// folder too, so that the object that the caller then reads back is durable.
//
// # ETags
//
// An ETag is the file's inode number, size and modification time in nanoseconds,
// so that Head and IfNoneMatch read no data. A file is never changed after it
// was published. See Store.replace for why a replaced object always gets another
// ETag. Only a name that is deleted and created again within one tick of the
// file system's clock (4 ms or so) may get its old ETag back; annals never
// deletes a name that it writes conditionally by ETag.
package dir

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// Names in the root directory that are not objects.
const (
	tempFolder = ".tmp"
	lockName   = ".lock"
)

// Bounds of one Store (invariant I9).
const (
	// maxOpenFiles is how many files and directories are open at the same time for
	// reading and writing; further calls wait.
	maxOpenFiles = 128
	// maxFolders is how many folders a Store remembers as durable before it forgets
	// them all and fsyncs them anew.
	maxFolders = 10_000
	// tempAge is the age, by the file system's clock, at which Open takes a
	// temporary file for a leftover of a process that died.
	tempAge = 24 * time.Hour
	// ioChunk is how much is read or written between two looks at the context.
	ioChunk = 4 << 20
)

// Store is an object store in a directory. Its methods may be called from any
// goroutine. A call returns soon after its context ends, unless the file system
// itself hangs in one operation.
type Store struct {
	fs    fileSystem
	root  string        // absolute, without symbolic links
	slots chan struct{} // one element for each open file
	// readOnly: nothing is written, deleted or created.
	readOnly bool
	local    chan struct{} // the in-process half of the lock: one element while held

	// skew is the file system's clock minus ours in nanoseconds, as observed when
	// a temporary file was written last.
	skew atomic.Int64

	mu      sync.Mutex
	folders map[string]struct{} // guarded by mu; folders ("a/b/") whose entries up to the root are durable
}

var _ objstore.Store = (*Store)(nil)

// Open returns the store in a directory, which is created (with its parents) if
// it does not exist. The error says what is wrong with the path: not a
// directory, not writable (objstore.ErrDenied), or a file system without what the
// store needs.
func Open(path string) (*Store, error) {
	return open(osFS{}, path)
}

// OpenReadOnly returns the store in a directory that exists, for reading only: nothing is created, and what
// needs to write (Put, Delete, ServerTime) fails with objstore.ErrDenied. Permission to read is enough.
func OpenReadOnly(path string) (*Store, error) {
	fi, err := os.Stat(path)
	if err == nil && !fi.IsDir() {
		err = errors.New("it is not a directory")
	}
	var root string
	if err == nil {
		root, err = filepath.Abs(path)
	}
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, fmt.Errorf("open directory store %s to read: %w", path, describe(err))
	}
	s := storeAt(osFS{}, root)
	s.readOnly = true
	return s, nil
}

func storeAt(fs fileSystem, root string) *Store {
	return &Store{
		fs:      fs,
		root:    root,
		slots:   make(chan struct{}, maxOpenFiles),
		local:   make(chan struct{}, 1),
		folders: map[string]struct{}{},
	}
}

func open(fs fileSystem, path string) (*Store, error) {
	s, err := prepare(fs, path)
	if err != nil {
		return nil, fmt.Errorf("open directory store %s: %w", path, err)
	}
	return s, nil
}

func prepare(fs fileSystem, path string) (*Store, error) {
	if path == "" {
		return nil, errors.New("the path is empty")
	}
	root, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := makeRoot(fs, root); err != nil {
		return nil, describe(err)
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, describe(err)
	}
	s := storeAt(fs, root)
	if err := fs.mkdir(s.path(tempFolder)); err != nil && !errors.Is(err, iofs.ErrExist) {
		return nil, describe(err)
	}
	now, err := s.tryOut()
	if err != nil {
		return nil, describe(err)
	}
	if err := s.removeLeftovers(now.Add(-tempAge)); err != nil {
		return nil, describe(err)
	}
	return s, nil
}

// makeRoot creates the directory and its missing parents and makes each durable
// in its own parent.
func makeRoot(fs fileSystem, root string) error {
	fi, err := os.Stat(root) // follows symbolic links, unlike fs.stat
	switch {
	case err == nil && !fi.IsDir():
		return errors.New("it is not a directory")
	case err == nil || !errors.Is(err, iofs.ErrNotExist):
		return err
	}
	parent := filepath.Dir(root)
	if parent == root {
		return err
	}
	if err := makeRoot(fs, parent); err != nil {
		return fmt.Errorf("parent directory %s: %w", parent, err)
	}
	if err := fs.mkdir(root); err != nil && !errors.Is(err, iofs.ErrExist) {
		return err
	}
	return fs.syncDir(parent)
}

// tryOut checks that the directory is writable and that its file system has the
// hard links that Puts with IfAbsent need. It returns the file system's time.
func (s *Store) tryOut() (time.Time, error) {
	t, err := s.createTemp(context.Background(), []byte{0}, false)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = s.fs.unlink(t.path) }()
	second := t.path + "-link"
	if err := s.fs.link(t.path, second); err != nil {
		return time.Time{}, fmt.Errorf("the file system must support hard links: %w", err)
	}
	defer func() { _ = s.fs.unlink(second) }()
	if err := s.fs.link(t.path, second); !errors.Is(err, iofs.ErrExist) {
		return time.Time{}, fmt.Errorf("the file system does not refuse a hard link to a name that exists (it answered %v)", err)
	}
	return t.modified, nil
}

// removeLeftovers removes temporary files that were last written before a time.
// Other processes may be doing the same.
func (s *Store) removeLeftovers(before time.Time) error {
	var old []string
	folder := s.path(tempFolder)
	err := s.fs.readDir(folder, func(name string, mode iofs.FileMode) {
		path := filepath.Join(folder, name)
		if i, err := s.fs.stat(path); err == nil && mode.IsRegular() && i.modified.Before(before) {
			old = append(old, path)
		}
	})
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := s.fs.unlink(path); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// String implements objstore.Store.
func (s *Store) String() string { return "file:" + s.root }

// ServerTime implements objstore.Store: it is the time that the file system
// gives to a file written now.
func (s *Store) ServerTime(ctx context.Context) (time.Time, error) {
	t, err := s.createTemp(ctx, []byte{0}, false)
	if err != nil {
		return time.Time{}, fmt.Errorf("ask for the time: %w", s.failed(err))
	}
	if err := s.fs.unlink(t.path); err != nil {
		return time.Time{}, fmt.Errorf("ask for the time: %w", describe(err))
	}
	return t.modified, nil
}

// temp is a temporary file that was written.
type temp struct {
	path string
	info
}

// createTemp writes a new file in the temporary folder, durably or not.
func (s *Store) createTemp(ctx context.Context, body []byte, durable bool) (temp, error) {
	if s.readOnly {
		return temp{}, errReadOnly
	}
	if err := s.acquireSlot(ctx); err != nil {
		return temp{}, err
	}
	defer s.releaseSlot()
	path := s.path(fmt.Sprintf("%s/%d-%016x", tempFolder, os.Getpid(), rand.Uint64()))
	f, err := s.fs.create(path)
	if errors.Is(err, iofs.ErrNotExist) && s.fs.mkdir(s.path(tempFolder)) == nil {
		f, err = s.fs.create(path) // somebody had cleaned up
	}
	if err != nil {
		return temp{}, err
	}
	i, err := s.writeFile(ctx, f, body, durable)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = s.fs.unlink(path)
		return temp{}, err
	}
	return temp{path, i}, nil
}

func (s *Store) writeFile(ctx context.Context, f file, body []byte, durable bool) (info, error) {
	before := time.Now()
	for rest := body; len(rest) > 0; {
		if err := ctx.Err(); err != nil {
			return info{}, err
		}
		n, err := f.Write(rest[:min(len(rest), ioChunk)])
		if err != nil {
			return info{}, err
		}
		rest = rest[n:]
	}
	after := time.Now()
	if durable {
		if err := f.sync(); err != nil {
			return info{}, err
		}
	}
	i, err := f.stat()
	if err != nil {
		return info{}, err
	}
	if i.size != int64(len(body)) {
		return info{}, fmt.Errorf("the file has %d bytes after %d were written", i.size, len(body))
	}
	s.observe(before, after, i.modified)
	return i, nil
}

// observe compares the file system's clock with ours: modified was set between
// before and after. They are the same clock on a local file system, and then a
// long pause in between must not be taken for a difference.
func (s *Store) observe(before, after, modified time.Time) {
	const resolution = time.Second // of stored times, at worst
	skew := time.Duration(0)
	if modified.Before(before.Add(-resolution)) || modified.After(after.Add(resolution)) {
		skew = modified.Sub(after)
	}
	s.skew.Store(int64(skew))
}

// now is the file system's time, estimated without asking it.
func (s *Store) now() time.Time {
	return time.Now().Add(time.Duration(s.skew.Load())).Round(0)
}

// path returns the path of an object, or of another name below the root.
func (s *Store) path(name string) string { return s.root + "/" + name }

// begin checks what every operation on one name checks first.
func begin(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return ctx.Err()
}

// checkName refuses also the names that the directory uses itself.
func checkName(name string) error {
	if err := objstore.ValidName(name); err != nil {
		return err
	}
	if reserved(name) {
		return fmt.Errorf("%w: %q is reserved", objstore.ErrName, name)
	}
	return nil
}

// reserved reports whether the name lies under one of the root's own names, in
// any spelling that a file system without cases takes for the same.
func reserved(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return strings.EqualFold(first, tempFolder) || strings.EqualFold(first, lockName)
}

// parent returns the folder of a name with its slash, "" for the root.
func parent(name string) string { return name[:strings.LastIndexByte(name, '/')+1] }

func (s *Store) acquireSlot(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) releaseSlot() { <-s.slots }
