//go:build linux || darwin

package dir

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"syscall"
	"time"
)

// fileSystem is what the store needs of a file system. Tests record its calls
// and fail them.
type fileSystem interface {
	// create makes a new file for writing; it must not exist.
	create(path string) (file, error)
	// open opens a file, not a symbolic link, for reading.
	open(path string) (file, error)
	// stat describes what is at a path, without following symbolic links.
	stat(path string) (info, error)
	// link gives a file a second name, which must not exist.
	link(old, name string) error
	// rename moves a file over another one in one step.
	rename(old, name string) error
	// unlink removes a file, never a directory.
	unlink(path string) error
	// mkdir makes one directory.
	mkdir(path string) error
	// setModified sets a file's modification time.
	setModified(path string, to time.Time) error
	// syncDir makes the entries of a directory durable.
	syncDir(path string) error
	// readDir calls fn for each entry of a directory, in any order.
	readDir(path string, fn func(name string, mode iofs.FileMode)) error
	// tryLock takes the exclusive lock of a file, which it makes if need be; ok is
	// false if somebody else has it.
	tryLock(path string) (release func(), ok bool, err error)
}

// file is an open file.
type file interface {
	io.Writer
	io.ReaderAt
	io.Closer
	sync() error
	stat() (info, error)
}

// info describes a file.
type info struct {
	size     int64
	modified time.Time
	inode    uint64
	mode     iofs.FileMode
}

func (i info) etag() string {
	return fmt.Sprintf("%x-%x-%x", i.inode, i.size, i.modified.UnixNano())
}

// dirBatch is how many entries of a directory are read at a time.
const dirBatch = 1024

// osFS is the operating system's file system.
type osFS struct{}

type osFile struct{ *os.File }

func (osFS) create(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666) // less the umask
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) open(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) stat(path string) (info, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return info{}, err
	}
	return newInfo(fi), nil
}

func (osFS) link(old, name string) error   { return os.Link(old, name) }
func (osFS) rename(old, name string) error { return os.Rename(old, name) }

// unlink is not os.Remove, which removes an empty directory as well.
func (osFS) unlink(path string) error {
	for {
		err := syscall.Unlink(path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return &iofs.PathError{Op: "unlink", Path: path, Err: err}
		}
	}
}

func (osFS) mkdir(path string) error { return os.Mkdir(path, 0o777) } // less the umask

func (osFS) setModified(path string, to time.Time) error { return os.Chtimes(path, to, to) }

func (osFS) syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func (osFS) readDir(path string, fn func(name string, mode iofs.FileMode)) error {
	d, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing was written
	for {
		entries, err := d.ReadDir(dirBatch)
		for _, e := range entries {
			fn(e.Name(), e.Type())
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// tryLock opens the file anew each time: flock belongs to the open file, so that
// two Stores in one process exclude one another too, and closing it unlocks.
func (osFS) tryLock(path string) (release func(), ok bool, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, false, err
	}
	err = flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return func() {
			_ = flock(f, syscall.LOCK_UN) // a child that is being started may still share the file
			_ = f.Close()
		}, true, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, false, nil
	}
	return nil, false, &iofs.PathError{Op: "flock", Path: path, Err: err}
}

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func (f osFile) sync() error { return f.Sync() }

func (f osFile) stat() (info, error) {
	fi, err := f.Stat()
	if err != nil {
		return info{}, err
	}
	return newInfo(fi), nil
}

func newInfo(fi iofs.FileInfo) info {
	i := info{size: fi.Size(), modified: fi.ModTime().UTC(), mode: fi.Mode()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		i.inode = st.Ino
	}
	return i
}
