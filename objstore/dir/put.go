//go:build linux || darwin

package dir

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// maxPublishTries bounds how often a Put starts over because names appeared or
// folders vanished under it.
const maxPublishTries = 10

// Put implements objstore.Store. PutResult.Time and the object's Modified are
// the file system's time at which the body was written.
func (s *Store) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	opts.Check()
	res, err := s.put(ctx, name, body, opts)
	if err != nil {
		return objstore.PutResult{}, fmt.Errorf("put %s: %w", name, err)
	}
	return res, nil
}

func (s *Store) put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	if err := begin(ctx, name); err != nil {
		return objstore.PutResult{}, err
	}
	if opts.IfAbsent || opts.IfMatch != "" {
		if err := s.precheck(name, opts); err != nil {
			return objstore.PutResult{}, s.refused(ctx, name, err)
		}
	}
	t, err := s.createTemp(ctx, body, true)
	if err != nil {
		return objstore.PutResult{}, s.failed(err)
	}
	written := t.modified
	etag, err := s.publish(ctx, &t, name, opts)
	if t.path != "" {
		_ = s.fs.unlink(t.path) // a leftover is harmless: it is nobody's object
	}
	if err != nil {
		return objstore.PutResult{}, s.refused(ctx, name, err)
	}
	// From here on the object is visible; without this it is not durable.
	if err := s.syncFolder(parent(name)); err != nil {
		return objstore.PutResult{}, s.failed(err)
	}
	return objstore.PutResult{ETag: etag, Time: written}, nil
}

// precheck refuses a Put whose condition does not hold before its body is
// written. Only publish decides that it holds.
func (s *Store) precheck(name string, opts objstore.PutOptions) error {
	old, err := s.fs.stat(s.path(name))
	switch {
	case err == nil && !old.mode.IsRegular():
		return errNotAFile
	case err == nil && opts.IfAbsent:
		return errExists
	case err == nil && opts.IfMatch != old.etag():
		return errOtherETag
	case err != nil && notThere(err) && opts.IfMatch != "":
		if gone := s.absent(); !errors.Is(gone, objstore.ErrNotFound) {
			return gone // with the folder of the store
		}
		return errMissing
	case err != nil && !notThere(err):
		return err
	}
	return nil
}

// publish gives a temporary file its name, if the conditions hold, and returns
// its ETag. When the file was moved, not linked, t.path is empty afterwards.
func (s *Store) publish(ctx context.Context, t *temp, name string, opts objstore.PutOptions) (etag string, err error) {
	for range maxPublishTries {
		if err = ctx.Err(); err != nil {
			return "", err
		}
		if err = s.ensureFolder(parent(name)); err == nil {
			if opts.IfAbsent {
				err = s.create(*t, name)
			} else {
				err = s.replace(ctx, t, name, opts.IfMatch)
			}
		}
		switch {
		case err == nil:
			return t.etag(), nil
		case errors.Is(err, iofs.ErrNotExist):
			// A folder was removed by someone outside of the store. Start from the root.
			s.forgetFolders()
		case !errors.Is(err, errAppeared):
			return "", err
		}
	}
	return "", err
}

// create links the file to a name that must not exist: link(2) fails if it does,
// whichever process made it.
func (s *Store) create(t temp, name string) error {
	err := s.fs.link(t.path, s.path(name))
	if !errors.Is(err, iofs.ErrExist) {
		return err
	}
	if old, serr := s.fs.stat(s.path(name)); serr == nil && !old.mode.IsRegular() {
		return errNotAFile
	}
	return errExists
}

// replace moves the file over what is there, under the lock, so that of several
// replacements each sees the one before.
//
// The ETag of a replacement always differs from every one that the name had
// since it was created. The temporary file exists beside the object that it
// replaces, so the two have different inodes. A later replacement may get the
// first one's inode again, once that is free, but a later modification time: the
// file system's clock may stand still for milliseconds, or step back, and so the
// time is raised above the replaced object's where it is not above it already.
// Along a chain of replacements times thus only rise. (The raised time is not
// fsynced: if it is lost with the power, every process that knew the ETag is
// gone too.) This holds only if every object that is replaced was looked at:
// creations take no lock, so where there is nothing to replace the file is linked,
// which fails if something appeared, and deletions take the lock.
func (s *Store) replace(ctx context.Context, t *temp, name, ifMatch string) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	path := s.path(name)
	old, err := s.fs.stat(path)
	switch {
	case err != nil && !notThere(err):
		return err
	case err != nil && ifMatch != "":
		return errMissing
	case err != nil:
		if err := s.create(*t, name); !errors.Is(err, errExists) {
			return err
		}
		return errAppeared
	case !old.mode.IsRegular():
		return errNotAFile
	case ifMatch != "" && old.etag() != ifMatch:
		return errOtherETag
	}
	if err := s.raiseTime(t, old.modified); err != nil {
		return err
	}
	if err := s.fs.rename(t.path, path); err != nil {
		return err
	}
	t.path = ""
	return nil
}

// raiseTime sets the file's modification time above a given one, if it is not
// already, by the smallest step that the file system can store.
func (s *Store) raiseTime(t *temp, above time.Time) error {
	if t.modified.After(above) {
		return nil
	}
	for _, step := range []time.Duration{1, 100, time.Microsecond, time.Millisecond, time.Second, 2 * time.Second} {
		if err := s.fs.setModified(t.path, above.Add(step)); err != nil {
			return err
		}
		i, err := s.fs.stat(t.path)
		if err != nil {
			return err
		}
		if i.modified.After(above) {
			t.info = i
			return nil
		}
	}
	return errors.New("the file system does not store modification times")
}

// ensureFolder makes a folder ("a/b/") and everything above it, durably. A
// folder that exists is made durable too: whoever made it may have died before
// it came to that.
func (s *Store) ensureFolder(folder string) error {
	for end := 0; end < len(folder); {
		end += strings.IndexByte(folder[end:], '/') + 1
		part := folder[:end]
		if s.knownFolder(part) {
			continue
		}
		path := s.path(part[:len(part)-1])
		if err := s.fs.mkdir(path); err != nil && !errors.Is(err, iofs.ErrExist) {
			return err
		}
		if err := s.fs.syncDir(filepath.Dir(path)); err != nil {
			return err
		}
		s.rememberFolder(part)
	}
	return nil
}

func (s *Store) knownFolder(folder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.folders[folder]
	return ok
}

func (s *Store) rememberFolder(folder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.folders) >= maxFolders {
		clear(s.folders)
	}
	s.folders[folder] = struct{}{}
}

func (s *Store) forgetFolders() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.folders)
}

// syncFolder makes the entries of a folder ("a/b/", "" for the root) durable.
func (s *Store) syncFolder(folder string) error {
	return s.fs.syncDir(s.path(strings.TrimSuffix(folder, "/")))
}

// refused returns the error of a Put that publish refused. What the name holds
// instead may have been published by a process that died before it was durable.
// The caller will read it and act on it, so it is made durable first.
func (s *Store) refused(ctx context.Context, name string, err error) error {
	if errors.Is(err, objstore.ErrPrecondition) && !errors.Is(err, errMissing) && ctx.Err() == nil {
		if serr := s.syncFolder(parent(name)); serr != nil && !notThere(serr) {
			return s.failed(serr)
		}
	}
	return s.failed(err)
}
