// Package metered counts what is asked of a store, and how it answers.
//
//	store := metered.New(inner, metered.Options{})
//	...
//	n := store.Stats().Ops[metered.Put].Results[metered.OK]
//
// What counts is a call of a method of objstore.Store that reached the store: not
// one whose context had ended before, or whose name is invalid, nor a Delete of no
// names. A call counts once, when it returns, whatever happened inside of the store: a
// store may send several requests for it, and repeat them. Where the store counts those
// too (objstore.Sender), Stats has them beside.
//
// What one operation of a program asks for is counted apart by Attribute.
package metered

import (
	"context"
	"errors"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// Options of New. The zero value is ready to use.
type Options struct {
	// Elapsed is the clock that calls are measured with: it never goes back, and may
	// be called from any goroutine. Default: the process's monotonic clock.
	Elapsed func() time.Duration
}

// Store is an objstore.Store that counts the calls of another one and changes
// nothing. It keeps no lock, and a call that succeeds allocates nothing here. All
// methods may be called from any goroutine.
type Store struct {
	inner   objstore.Store
	aborter uploadAborter   // inner, if it is one
	sender  objstore.Sender // inner, if it is one
	elapsed func() time.Duration
	meters
}

// uploadAborter is a store that can have unfinished multipart uploads.
type uploadAborter interface {
	AbortUploads(ctx context.Context, before time.Time) (int, error)
}

var _ objstore.Store = (*Store)(nil)

// New returns a store that counts what is asked of inner through it.
func New(inner objstore.Store, o Options) *Store {
	s := &Store{inner: inner, elapsed: o.Elapsed}
	if s.elapsed == nil {
		start := time.Now()
		s.elapsed = func() time.Duration { return time.Since(start) }
	}
	s.aborter, _ = inner.(uploadAborter)
	s.sender, _ = inner.(objstore.Sender)
	return s
}

// call is one call under way.
type call struct {
	op    *opMeters // nil: nothing is sent
	by    *Requests // of whom the call is, if anybody asked
	kind  Op
	began time.Duration
}

func (s *Store) begin(ctx context.Context, op Op) call {
	if ctx.Err() != nil {
		return call{}
	}
	by, _ := ctx.Value(attribution{}).(*Requests)
	by.begin(op)
	return call{op: &s.ops[op], by: by, kind: op, began: s.elapsed()}
}

// end counts the call. Bytes count if it succeeded.
func (s *Store) end(ctx context.Context, c call, bytes int, err error) {
	if c.op == nil {
		return
	}
	if err != nil {
		if errors.Is(err, objstore.ErrName) {
			c.by.unsent(c.kind)
			return
		}
		bytes = 0
	}
	c.by.moved(c.kind, bytes)
	c.op.observe(resultOf(ctx, err), s.elapsed()-c.began, bytes)
}

// String implements objstore.Store: it is the inner store's.
func (s *Store) String() string { return s.inner.String() }

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	c := s.begin(ctx, Put)
	res, err := s.inner.Put(ctx, name, body, opts)
	s.end(ctx, c, len(body), err)
	return res, err
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	c := s.begin(ctx, Get)
	obj, err := s.inner.Get(ctx, name, opts)
	s.end(ctx, c, len(obj.Body), err)
	return obj, err
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, name string) (objstore.Attributes, error) {
	c := s.begin(ctx, Head)
	attrs, err := s.inner.Head(ctx, name)
	s.end(ctx, c, 0, err)
	return attrs, err
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	c := s.begin(ctx, List)
	page, err := s.inner.List(ctx, prefix, startAfter, limit)
	s.end(ctx, c, 0, err)
	return page, err
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return s.inner.Delete(ctx, names)
	}
	c := s.begin(ctx, Delete)
	err := s.inner.Delete(ctx, names)
	s.end(ctx, c, 0, err)
	s.deleted.Add(uint64(deleted(names, err)))
	return err
}

// deleted returns how many of the names are certainly gone.
func deleted(names []string, err error) int {
	if err == nil {
		return len(names)
	}
	var partly *objstore.DeleteError
	if errors.As(err, &partly) {
		return max(0, len(names)-len(partly.Failed))
	}
	return 0
}

// ServerTime implements objstore.Store.
func (s *Store) ServerTime(ctx context.Context) (time.Time, error) {
	c := s.begin(ctx, Time)
	t, err := s.inner.ServerTime(ctx)
	s.end(ctx, c, 0, err)
	return t, err
}

// AbortUploads aborts the unfinished multipart uploads that began before a time of the
// store, and returns how many. A store that cannot have any has none: then nothing is
// asked of it, or counted.
func (s *Store) AbortUploads(ctx context.Context, before time.Time) (int, error) {
	if s.aborter == nil {
		return 0, nil
	}
	c := s.begin(ctx, AbortUploads)
	n, err := s.aborter.AbortUploads(ctx, before)
	s.end(ctx, c, 0, err)
	return n, err
}
