package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/annalsdb/annals/auth"
)

// addToFile adds an entry to a token file. A server that reads it meanwhile sees the old one or the new one, whole; who
// else adds to it waits. Mode, owner and group stay: whoever may read it goes on.
func addToFile(name string, e auth.Entry) error {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target // the link stays
	}
	unlock, err := lockFolder(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer unlock()
	info, err := os.Stat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var old []byte
	if info != nil {
		if old, err = os.ReadFile(name); err != nil {
			return err
		}
	}
	text, err := auth.Add(old, e)
	if err != nil {
		return err
	}
	return replaceFile(name, text, info)
}

// lockFolder waits until no other process holds the folder: a file that is replaced cannot be locked itself.
func lockFolder(name string) (unlock func(), err error) {
	folder, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), folder.Close())
	}
	return func() { _ = folder.Close() }, nil // which unlocks; nothing was written
}

// replaceFile puts a file with this text in the place of another, if old is one: with its mode, owner and group.
func replaceFile(name string, text []byte, old fs.FileInfo) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // where it was renamed there is none of this name
	_, err = f.Write(text)
	if err == nil && old != nil {
		err = takeAfter(f, old)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// takeAfter gives a file the owner, the group and the mode of another.
func takeAfter(f *os.File, old fs.FileInfo) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	is, want := mine.Sys().(*syscall.Stat_t), old.Sys().(*syscall.Stat_t)
	if is.Uid != want.Uid || is.Gid != want.Gid {
		if err := f.Chown(int(want.Uid), int(want.Gid)); err != nil {
			return fmt.Errorf("keep owner and group of %s, so that the server can still read it: %w; do it as its owner", old.Name(), err)
		}
	}
	return f.Chmod(old.Mode().Perm())
}
