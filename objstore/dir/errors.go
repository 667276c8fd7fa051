//go:build linux || darwin

package dir

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"syscall"

	"github.com/annalsdb/annals/objstore"
)

// Why a Put was not applied.
var (
	errExists    = fmt.Errorf("%w: it exists", objstore.ErrPrecondition)
	errMissing   = fmt.Errorf("%w: it does not exist", objstore.ErrPrecondition)
	errOtherETag = fmt.Errorf("%w: it has another etag", objstore.ErrPrecondition)
	errAppeared  = errors.New("the name appeared while it was being replaced")
	errReadOnly  = fmt.Errorf("%w: the store was opened to read only", objstore.ErrDenied)
	errNotAFile  = errors.New("there is something that is no object, such as a folder, in its place")
)

// notThere reports whether there is no object at a path, or cannot be because a
// part of it is a file, or longer than any name in this file system, or because
// the end of it is a symbolic link.
func notThere(err error) bool {
	for _, none := range []error{iofs.ErrNotExist, syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.ELOOP} {
		if errors.Is(err, none) {
			return true
		}
	}
	return false
}

// absent returns what to answer for a name that is not there.
func (s *Store) absent() error {
	if _, err := s.fs.stat(s.root); err != nil {
		return s.failed(err)
	}
	return objstore.ErrNotFound
}

// failed classifies an error of the file system. It asks whether the root still
// exists when something was missing.
func (s *Store) failed(err error) error {
	if errors.Is(err, iofs.ErrNotExist) {
		if _, rerr := s.fs.stat(s.root); errors.Is(rerr, iofs.ErrNotExist) {
			return fmt.Errorf("%w: %w", objstore.ErrNoBucket, err)
		}
	}
	return describe(err)
}

// describe adds the contract's sentinel to an error of the file system.
func describe(err error) error {
	switch {
	case errors.Is(err, iofs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", objstore.ErrDenied, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", objstore.ErrFull, err)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return fmt.Errorf("%w: %w", objstore.ErrName, err)
	}
	return err
}
