//go:build linux || darwin

package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/storetest"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	require.NoError(t, err)
	return s
}

func put(t *testing.T, s *Store, name, body string) objstore.PutResult {
	t.Helper()
	res, err := s.Put(t.Context(), name, []byte(body), objstore.PutOptions{})
	require.NoError(t, err)
	return res
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objstore.Store { return newStore(t) })
}

func TestOpen(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))

	deep := filepath.Join(base, "x/y/z")
	s, err := Open(deep)
	require.NoError(t, err)
	put(t, s, "n", "body")
	again, err := Open(deep)
	require.NoError(t, err)
	o, err := again.Get(t.Context(), "n", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "body", string(o.Body))
	require.Equal(t, "file:"+again.root, again.String())

	link := filepath.Join(base, "link")
	require.NoError(t, os.Symlink(deep, link))
	linked, err := Open(link)
	require.NoError(t, err)
	require.Equal(t, again.root, linked.root)

	for path, want := range map[string]string{
		file:                         "open directory store " + file + ": it is not a directory",
		filepath.Join(file, "below"): "not a directory",
		"":                           "the path is empty",
	} {
		_, err := Open(path)
		require.ErrorContains(t, err, want)
	}
}

// brokenFS fails some calls.
type brokenFS struct {
	osFS
	onCreate, onLink, onOpen, onUnlink error
}

func (b brokenFS) create(path string) (file, error) {
	if b.onCreate != nil {
		return nil, &iofs.PathError{Op: "open", Path: path, Err: b.onCreate}
	}
	return b.osFS.create(path)
}

func (b brokenFS) open(path string) (file, error) {
	if b.onOpen != nil {
		return nil, &iofs.PathError{Op: "open", Path: path, Err: b.onOpen}
	}
	return b.osFS.open(path)
}

func (b brokenFS) link(old, name string) error {
	if b.onLink != nil {
		return &os.LinkError{Op: "link", Old: old, New: name, Err: b.onLink}
	}
	return b.osFS.link(old, name)
}

func (b brokenFS) unlink(path string) error {
	if b.onUnlink != nil && filepath.Base(path) == "n" {
		return &iofs.PathError{Op: "unlink", Path: path, Err: b.onUnlink}
	}
	return b.osFS.unlink(path)
}

func TestOpenRefusesUnfitDirectories(t *testing.T) {
	for _, err := range []error{syscall.EACCES, syscall.EPERM, syscall.EROFS} {
		_, got := open(brokenFS{onCreate: err}, t.TempDir())
		require.ErrorIs(t, got, objstore.ErrDenied)
		require.ErrorIs(t, got, err)
	}
	_, err := open(brokenFS{onLink: syscall.ENOTSUP}, t.TempDir())
	require.ErrorContains(t, err, "must support hard links")
}

func TestErrorsOfTheFileSystem(t *testing.T) {
	s := newStore(t)
	put(t, s, "n", "body")

	s.fs = brokenFS{onCreate: syscall.ENOSPC}
	_, err := s.Put(t.Context(), "m", nil, objstore.PutOptions{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "put m: ")
	require.ErrorContains(t, err, "no space left on device")
	_, err = s.ServerTime(t.Context())
	require.ErrorIs(t, err, syscall.ENOSPC)

	s.fs = brokenFS{onCreate: syscall.EACCES, onOpen: syscall.EACCES, onUnlink: syscall.EACCES}
	_, err = s.Put(t.Context(), "m", nil, objstore.PutOptions{})
	require.ErrorIs(t, err, objstore.ErrDenied)
	_, err = s.Get(t.Context(), "n", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrDenied)
	del := s.Delete(t.Context(), []string{"missing", "n"})
	require.ErrorIs(t, del, objstore.ErrDenied)
	var failed *objstore.DeleteError
	require.ErrorAs(t, del, &failed)
	require.Len(t, failed.Failed, 1)
	require.Equal(t, "n", failed.Failed[0].Name)

	s.fs = osFS{}
	_, err = s.Put(t.Context(), "n/below", nil, objstore.PutOptions{IfAbsent: true})
	require.ErrorContains(t, err, "not a directory")
	put(t, s, "f/x", "")
	for _, opts := range []objstore.PutOptions{{}, {IfAbsent: true}, {IfMatch: "e"}} {
		_, err = s.Put(t.Context(), "f", nil, opts)
		require.ErrorIs(t, err, errNotAFile, "%+v", opts)
	}
	long := fmt.Sprintf("%0300d", 1) // longer than a component may be
	_, err = s.Put(t.Context(), long, nil, objstore.PutOptions{})
	require.ErrorIs(t, err, objstore.ErrName)
	_, err = s.Get(t.Context(), long, objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrNotFound)
}

// TestDirectoryIsGone: somebody removed the whole directory.
func TestDirectoryIsGone(t *testing.T) {
	s := newStore(t)
	put(t, s, "a/n", "body")
	require.NoError(t, os.RemoveAll(s.root))
	ctx := t.Context()
	_, put1 := s.Put(ctx, "a/n", nil, objstore.PutOptions{})
	_, put2 := s.Put(ctx, "a/n", nil, objstore.PutOptions{IfAbsent: true})
	_, get := s.Get(ctx, "a/n", objstore.GetOptions{})
	_, head := s.Head(ctx, "a/n")
	_, list := s.List(ctx, "a/", "", 0)
	_, clock := s.ServerTime(ctx)
	del := s.Delete(ctx, []string{"a/n"})
	for _, err := range []error{put1, put2, get, head, list, clock, del} {
		require.ErrorIs(t, err, objstore.ErrNoBucket)
	}
}

// TestFolderIsGone: somebody removed a folder that the store knows.
func TestFolderIsGone(t *testing.T) {
	s := newStore(t)
	for _, opts := range []objstore.PutOptions{{}, {IfAbsent: true}} {
		put(t, s, "a/b/n", "body")
		require.NoError(t, os.RemoveAll(s.path("a")))
		_, err := s.Put(t.Context(), "a/b/m", []byte("body"), opts)
		require.NoError(t, err)
		require.Len(t, allObjects(t, s), 1)
		require.NoError(t, s.Delete(t.Context(), []string{"a/b/m"}))
	}
}

func TestTempFolderIsGone(t *testing.T) {
	s := newStore(t)
	require.NoError(t, os.RemoveAll(s.path(tempFolder)))
	put(t, s, "n", "body")
}

func TestReservedNames(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{".tmp", ".lock", ".tmp/x", ".lock/x", ".TMP/x", ".Lock"} {
		_, err := s.Put(t.Context(), name, nil, objstore.PutOptions{})
		require.ErrorIs(t, err, objstore.ErrName, name)
		_, err = s.Get(t.Context(), name, objstore.GetOptions{})
		require.ErrorIs(t, err, objstore.ErrName, name)
		require.ErrorIs(t, s.Delete(t.Context(), []string{name}), objstore.ErrName, name)
	}
	put(t, s, "a/.tmp", "")
	put(t, s, ".tmpx/y", "")
}

// TestDeleteLeavesFolders: an empty folder is no object and is not removed.
func TestDeleteLeavesFolders(t *testing.T) {
	s := newStore(t)
	put(t, s, "a/b/n", "")
	require.NoError(t, s.Delete(t.Context(), []string{"a/b/n", "a/b", "a"}))
	fi, err := os.Stat(s.path("a/b"))
	require.NoError(t, err)
	require.True(t, fi.IsDir())
}

// TestETagAlwaysChanges: many replacements within one tick of the file system's
// clock, with equal sizes; inode numbers are used again meanwhile.
func TestETagAlwaysChanges(t *testing.T) {
	s := newStore(t)
	seen := map[string]int{}
	for i := range 300 {
		etag := put(t, s, "n", "body").ETag
		before, dup := seen[etag]
		require.False(t, dup, "Puts %d and %d have the same etag", before, i)
		seen[etag] = i
		attrs, err := s.Head(t.Context(), "n")
		require.NoError(t, err)
		require.Equal(t, etag, attrs.ETag)
	}
}

// TestClockBehind: the object was written when the clock was ahead.
func TestClockBehind(t *testing.T) {
	s := newStore(t)
	put(t, s, "n", "body")
	ahead := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(s.path("n"), ahead, ahead))
	old, err := s.Head(t.Context(), "n")
	require.NoError(t, err)
	now, err := s.ServerTime(t.Context())
	require.NoError(t, err)
	res := put(t, s, "n", "body")
	require.WithinDuration(t, now, res.Time, time.Minute, "the answer's time is the clock's")
	fresh, err := s.Head(t.Context(), "n")
	require.NoError(t, err)
	require.Equal(t, res.ETag, fresh.ETag)
	require.Equal(t, old.Modified.Add(time.Nanosecond), fresh.Modified)
}

// coarseFS stores modification times in steps.
type coarseFS struct {
	osFS
	step time.Duration
}

func (c coarseFS) setModified(path string, to time.Time) error {
	return c.osFS.setModified(path, to.Truncate(c.step))
}

func TestCoarseModificationTimes(t *testing.T) {
	for _, step := range []time.Duration{1, 100, time.Microsecond, time.Millisecond, time.Second, 2 * time.Second} {
		s := newStore(t)
		s.fs = coarseFS{step: step}
		seen := map[string]bool{}
		put(t, s, "n", "body")
		ahead := time.Now().Add(time.Hour).Truncate(step)
		require.NoError(t, os.Chtimes(s.path("n"), ahead, ahead))
		for range 4 {
			seen[put(t, s, "n", "body").ETag] = true
			attrs, err := s.Head(t.Context(), "n")
			require.NoError(t, err)
			require.True(t, attrs.Modified.After(ahead), step)
			ahead = attrs.Modified
		}
		require.Len(t, seen, 4)
	}
	s := newStore(t)
	put(t, s, "n", "body")
	ahead := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(s.path("n"), ahead, ahead))
	s.fs = coarseFS{step: 24 * time.Hour}
	_, err := s.Put(t.Context(), "n", nil, objstore.PutOptions{})
	require.ErrorContains(t, err, "does not store modification times")
}

func TestLeftoversAreRemovedAfterADay(t *testing.T) {
	s := newStore(t)
	leave := func(name string, age time.Duration) {
		path := s.path(".tmp/" + name)
		require.NoError(t, os.WriteFile(path, []byte("part of a bo"), 0o666))
		when := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(path, when, when))
	}
	leave("old", 25*time.Hour)
	leave("young", 23*time.Hour)
	_, err := Open(s.root)
	require.NoError(t, err)
	entries, err := os.ReadDir(s.path(".tmp"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "young", entries[0].Name())
}

// TestLockedByAnotherStore: somebody holds the lock and does not go on. Writes
// that need it end with their context; all others go on.
func TestLockedByAnotherStore(t *testing.T) {
	s := newStore(t)
	put(t, s, "n", "body")
	release, ok, err := osFS{}.tryLock(s.path(lockName))
	require.NoError(t, err)
	require.True(t, ok)
	_, ok, err = osFS{}.tryLock(s.path(lockName))
	require.NoError(t, err)
	require.False(t, ok, "within one process too")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = s.Put(ctx, "n", []byte("other"), objstore.PutOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, s.Delete(ctx, []string{"n"}), context.DeadlineExceeded)

	_, err = s.Put(t.Context(), "m", nil, objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	o, err := s.Get(t.Context(), "n", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "body", string(o.Body))
	entries, err := os.ReadDir(s.path(".tmp"))
	require.NoError(t, err)
	require.Empty(t, entries)

	release()
	put(t, s, "n", "other")
}

// TestLockWaitIsBounded: without a deadline of the caller's there is one of ours.
func TestLockWaitIsBounded(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(root)
		require.NoError(t, err)
		release, ok, err := osFS{}.tryLock(s.path(lockName))
		require.NoError(t, err)
		require.True(t, ok)
		defer release()
		start := time.Now()
		_, err = s.Put(context.Background(), "n", nil, objstore.PutOptions{})
		require.ErrorIs(t, err, errLocked)
		require.Equal(t, lockWait, time.Since(start))
	})
}

// shortFS shows files as longer than they are.
type shortFS struct{ osFS }

type shortFile struct{ file }

func (s shortFS) open(path string) (file, error) {
	f, err := s.osFS.open(path)
	return shortFile{f}, err
}

func (f shortFile) stat() (info, error) {
	i, err := f.file.stat()
	i.size += 5
	return i, err
}

// TestShortReadIsAnError: F35 for a directory.
func TestShortReadIsAnErrorF35(t *testing.T) {
	s := newStore(t)
	put(t, s, "n", "body")
	s.fs = shortFS{}
	for _, opts := range []objstore.GetOptions{{}, {Suffix: 7}, {Offset: 2}} {
		_, err := s.Get(t.Context(), "n", opts)
		require.ErrorIs(t, err, io.EOF, "%+v", opts)
	}
}

// TestOpenFilesAreBounded: readers beyond the bound wait, within their context.
func TestOpenFilesAreBounded(t *testing.T) {
	s := newStore(t)
	put(t, s, "n", "body")
	for range maxOpenFiles {
		require.NoError(t, s.acquireSlot(t.Context()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() {
		_, err := s.Get(ctx, "n", objstore.GetOptions{})
		answer <- err
	}()
	cancel()
	require.ErrorIs(t, <-answer, context.Canceled)
	s.releaseSlot()
	_, err := s.Get(t.Context(), "n", objstore.GetOptions{})
	require.NoError(t, err)
}

// endingFS ends a context when the first chunk is written.
type endingFS struct {
	osFS
	end func()
}

type endingFile struct {
	file
	end func()
}

func (e endingFS) create(path string) (file, error) {
	f, err := e.osFS.create(path)
	return endingFile{f, e.end}, err
}

func (f endingFile) Write(p []byte) (int, error) {
	f.end()
	return f.file.Write(p)
}

// TestContextEndsDuringPut: nothing is published, nothing left behind.
func TestContextEndsDuringPut(t *testing.T) {
	for _, size := range []int{1, 2*ioChunk + 1} {
		s := newStore(t)
		ctx, cancel := context.WithCancel(t.Context())
		s.fs = endingFS{end: cancel}
		_, err := s.Put(ctx, "n", make([]byte, size), objstore.PutOptions{IfAbsent: true})
		require.ErrorIs(t, err, context.Canceled)
		s.fs = osFS{}
		_, err = s.Head(t.Context(), "n")
		require.ErrorIs(t, err, objstore.ErrNotFound)
		entries, err := os.ReadDir(s.path(".tmp"))
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

// TestNameAppearsDuringReplacement: a Put without conditions finds nothing to
// replace, and another process creates the name before it is there. It then replaces
// that object, as if it had come later.
func TestNameAppearsDuringReplacement(t *testing.T) {
	s := newStore(t)
	other, err := Open(s.root)
	require.NoError(t, err)
	s.fs = linkHookFS{before: func() {
		_, err := other.Put(t.Context(), "n", []byte("appeared"), objstore.PutOptions{IfAbsent: true})
		if !errors.Is(err, objstore.ErrPrecondition) {
			require.NoError(t, err)
		}
	}}
	res := put(t, s, "n", "mine")
	o, err := s.Get(t.Context(), "n", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "mine", string(o.Body))
	require.Equal(t, res.ETag, o.ETag)
}

type linkHookFS struct {
	osFS
	before func()
}

func (l linkHookFS) link(old, name string) error {
	l.before()
	return l.osFS.link(old, name)
}

func TestObserveSkew(t *testing.T) {
	base := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	tests := []struct {
		after, modified time.Duration // since base
		want            time.Duration
	}{
		{0, 0, 0},
		{time.Millisecond, -4 * time.Millisecond, 0},
		{time.Minute, time.Second, 0}, // a pause after the write
		{time.Second, time.Hour, time.Hour - time.Second},
		{time.Second, -time.Hour, -time.Hour - time.Second},
	}
	for _, test := range tests {
		s := newStore(t)
		s.observe(base, base.Add(test.after), base.Add(test.modified))
		require.Equal(t, int64(test.want), s.skew.Load(), "%+v", test)
	}
}

func BenchmarkPutIfAbsent(b *testing.B) {
	s, err := Open(b.TempDir())
	require.NoError(b, err)
	body := make([]byte, 64<<10)
	b.SetBytes(int64(len(body)))
	for i := 0; b.Loop(); i++ {
		_, err := s.Put(b.Context(), fmt.Sprintf("n/%d", i), body, objstore.PutOptions{IfAbsent: true})
		require.NoError(b, err)
	}
}

func BenchmarkGet4K(b *testing.B) {
	s, err := Open(b.TempDir())
	require.NoError(b, err)
	_, err = s.Put(b.Context(), "n", make([]byte, 4<<20), objstore.PutOptions{})
	require.NoError(b, err)
	b.SetBytes(4 << 10)
	b.ReportAllocs()
	for b.Loop() {
		_, err := s.Get(b.Context(), "n", objstore.GetOptions{Offset: 1 << 20, Length: 4 << 10})
		require.NoError(b, err)
	}
}

// A store that is opened to read needs no more than that, and creates nothing.
func TestOpenReadOnly(t *testing.T) {
	root := t.TempDir()
	_, err := OpenReadOnly(filepath.Join(root, "none"))
	require.ErrorIs(t, err, iofs.ErrNotExist)
	full, err := Open(root)
	require.NoError(t, err)
	_, err = full.Put(t.Context(), "a/b", []byte("body"), objstore.PutOptions{})
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(root, tempFolder)))
	require.NoError(t, os.Chmod(filepath.Join(root, "a"), 0o555))
	require.NoError(t, os.Chmod(root, 0o555))
	t.Cleanup(func() { _, _ = os.Chmod(root, 0o755), os.Chmod(filepath.Join(root, "a"), 0o755) })

	before, err := os.ReadDir(root)
	require.NoError(t, err)

	s, err := OpenReadOnly(root)
	require.NoError(t, err)
	obj, err := s.Get(t.Context(), "a/b", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "body", string(obj.Body))
	page, err := s.List(t.Context(), "", "", 10)
	require.NoError(t, err)
	require.Len(t, page.Entries, 1)
	for _, o := range []objstore.PutOptions{{}, {IfAbsent: true}, {IfMatch: obj.ETag}} {
		name := "a/b"
		if o.IfAbsent {
			name = "a/c"
		}
		_, err = s.Put(t.Context(), name, nil, o)
		require.ErrorIs(t, err, objstore.ErrDenied)
	}
	require.ErrorIs(t, s.Delete(t.Context(), []string{"a/b"}), objstore.ErrDenied)
	_, err = s.ServerTime(t.Context())
	require.ErrorIs(t, err, objstore.ErrDenied)
	after, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(before), fmt.Sprint(after), "nothing was created")
}
