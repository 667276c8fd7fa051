// Package mem is an object store in memory, for tests, simulations and the
// store "mem:".
//
// It is stricter than S3: overwriting an object that is written once (anything
// in a folder sst, seg, state or pin) panics, so that a test finds the mistake
// where it is made.
//
//	store := mem.New(mem.Options{})
//	_, err := store.Put(ctx, "a/b", []byte("body"), objstore.PutOptions{IfAbsent: true})
//	crashed := store.Clone() // what the bucket held at this moment
package mem

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"github.com/annalsdb/annals/objstore"
)

// immutableFolders are the folders whose objects are written once.
var immutableFolders = [...]string{"sst", "seg", "state", "pin"}

// treeDegree is the number of children of a node of the name tree.
const treeDegree = 32

// Options change what New returns. The zero value is fit for use.
type Options struct {
	// Now is the store's clock; nil means time.Now. It may be called from any
	// goroutine.
	Now func() time.Time
}

// Store keeps objects in memory. It starts no goroutine and waits for nothing
// but its own mutex, which it holds for no longer than one look-up (or one page of
// a listing).
type Store struct {
	now func() time.Time
	// lastTag numbers the ETags of this store and of all its clones, so that no two
	// Puts anywhere among them share one.
	lastTag *atomic.Uint64

	mu    sync.RWMutex
	tree  *btree.BTreeG[object] // guarded by mu; bodies in it are never changed
	bytes int64                 // guarded by mu; total length of all bodies
}

// object is one object, or only a name to look one up.
type object struct {
	name     string
	body     []byte
	etag     string
	modified time.Time
}

func byName(a, b object) bool { return a.name < b.name }

// New returns an empty store.
func New(opts Options) *Store {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	// Without the monotonic reading: a store's times are compared as wall clock times.
	now := func() time.Time { return opts.Now().Round(0) }
	return &Store{now: now, lastTag: new(atomic.Uint64), tree: btree.NewG(treeDegree, byName)}
}

// Clone returns an independent store that holds what this one holds now. It
// shares bodies with it and takes constant time: a crash test can keep a clone
// of every step.
func (s *Store) Clone() *Store {
	s.mu.Lock() // the tree's Clone writes to the original
	defer s.mu.Unlock()
	return &Store{now: s.now, lastTag: s.lastTag, tree: s.tree.Clone(), bytes: s.bytes}
}

// Len returns the number of objects.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tree.Len()
}

// Bytes returns the total length of all objects.
func (s *Store) Bytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.bytes
}

// String implements objstore.Store.
func (s *Store) String() string { return "mem:" }

// Put implements objstore.Store. It panics when it would overwrite an object in
// a folder sst, seg, state or pin, and when IfMatch is used on such a name.
func (s *Store) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	opts.Check()
	if err := s.begin(ctx, name); err != nil {
		return objstore.PutResult{}, fmt.Errorf("put %s: %w", name, err)
	}
	if opts.IfMatch != "" && immutable(name) {
		panic("mem: a Put with IfMatch of " + name + ", which is written once")
	}
	o := object{name: name, body: bytes.Clone(body), modified: s.now()}
	o.etag = strconv.FormatUint(s.lastTag.Add(1), 10)
	if err := s.apply(o, opts); err != nil {
		return objstore.PutResult{}, fmt.Errorf("put %s: %w", name, err)
	}
	return objstore.PutResult{ETag: o.etag, Time: o.modified}, nil
}

func (s *Store) apply(o object, opts objstore.PutOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.tree.Get(o)
	switch {
	case opts.IfAbsent && exists:
		return fmt.Errorf("%w: it exists with etag %s", objstore.ErrPrecondition, old.etag)
	case opts.IfMatch != "" && !exists:
		return fmt.Errorf("%w: it does not exist", objstore.ErrPrecondition)
	case opts.IfMatch != "" && opts.IfMatch != old.etag:
		return fmt.Errorf("%w: its etag is %s, not %s", objstore.ErrPrecondition, old.etag, opts.IfMatch)
	case exists && immutable(o.name):
		panic("mem: a Put overwrites " + o.name + ", which is written once")
	}
	s.tree.ReplaceOrInsert(o)
	s.bytes += int64(len(o.body)) - int64(len(old.body))
	return nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	opts.Check()
	o, err := s.lookup(ctx, name)
	if err != nil {
		return objstore.Object{}, fmt.Errorf("get %s: %w", name, err)
	}
	if opts.IfNoneMatch == o.etag {
		return objstore.Object{}, fmt.Errorf("get %s: %w", name, objstore.ErrNotModified)
	}
	start, end, err := opts.Span(int64(len(o.body)))
	if err != nil {
		return objstore.Object{}, fmt.Errorf("get %s: %w", name, err)
	}
	body := make([]byte, end-start)
	copy(body, o.body[start:end])
	return objstore.Object{Body: body, Attributes: s.attributes(o)}, nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, name string) (objstore.Attributes, error) {
	o, err := s.lookup(ctx, name)
	if err != nil {
		return objstore.Attributes{}, fmt.Errorf("head %s: %w", name, err)
	}
	return s.attributes(o), nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	size := objstore.PageSize(limit)
	if err := ctx.Err(); err != nil {
		return objstore.Page{}, fmt.Errorf("list %s: %w", prefix, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var page objstore.Page
	s.tree.AscendGreaterOrEqual(object{name: max(prefix, startAfter)}, func(o object) bool {
		switch {
		case !strings.HasPrefix(o.name, prefix):
			return o.name < prefix // names with the prefix are neighbours
		case o.name <= startAfter:
			return true
		case len(page.Entries) == size:
			page.More = true
			return false
		}
		page.Entries = append(page.Entries, objstore.Entry{
			Name:       o.name,
			Attributes: objstore.Attributes{Size: int64(len(o.body)), Modified: o.modified},
		})
		return true
	})
	return page, nil
}

// Delete implements objstore.Store. It removes all names in one step.
func (s *Store) Delete(ctx context.Context, names []string) error {
	if err := objstore.CheckDelete(names); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete %d objects: %w", len(names), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		old, _ := s.tree.Delete(object{name: name})
		s.bytes -= int64(len(old.body))
	}
	return nil
}

// ServerTime implements objstore.Store.
func (s *Store) ServerTime(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, fmt.Errorf("ask for the time: %w", err)
	}
	return s.now(), nil
}

func (s *Store) begin(ctx context.Context, name string) error {
	if err := objstore.ValidName(name); err != nil {
		return err
	}
	return ctx.Err()
}

func (s *Store) lookup(ctx context.Context, name string) (object, error) {
	if err := s.begin(ctx, name); err != nil {
		return object{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.tree.Get(object{name: name})
	if !ok {
		return object{}, objstore.ErrNotFound
	}
	return o, nil
}

func (s *Store) attributes(o object) objstore.Attributes {
	return objstore.Attributes{Size: int64(len(o.body)), ETag: o.etag, Modified: o.modified, Time: s.now()}
}

// immutable reports whether the object lies in a folder of objects that are
// written once.
func immutable(name string) bool {
	for rest := name; ; {
		folder, tail, ok := strings.Cut(rest, "/")
		if !ok {
			return false
		}
		for _, f := range immutableFolders {
			if folder == f {
				return true
			}
		}
		rest = tail
	}
}
