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
	"github.com/annalsdb/annals/trace"
)

// Options of New. The zero value is ready to use.
type Options struct {
	// Elapsed is the clock that calls are measured with: it never goes back, and may
	// be called from any goroutine. Default: the process's monotonic clock.
	Elapsed func() time.Duration
	// Tracer is told of every call that counts. Default nil: nobody is.
	Tracer trace.Tracer
	// Kind says what a Tracer is told of the name that a call is about, instead of the name itself, which would be
	// another one each time. Default nil: nothing.
	Kind func(name string) string
}

// Store is an objstore.Store that counts the calls of another one and changes
// nothing. It keeps no lock, and a call that succeeds allocates nothing here. All
// methods may be called from any goroutine.
type Store struct {
	inner   objstore.Store
	aborter uploadAborter   // inner, if it is one
	sender  objstore.Sender // inner, if it is one
	elapsed func() time.Duration
	tracer  trace.Tracer
	nameOf  func(string) string // Options.Kind
	meters
}

// uploadAborter is a store that can have unfinished multipart uploads.
type uploadAborter interface {
	AbortUploads(ctx context.Context, before time.Time) (int, error)
}

var _ objstore.Store = (*Store)(nil)

// New returns a store that counts what is asked of inner through it.
func New(inner objstore.Store, o Options) *Store {
	s := &Store{inner: inner, elapsed: o.Elapsed, tracer: o.Tracer, nameOf: o.Kind}
	if s.elapsed == nil {
		start := time.Now()
		s.elapsed = func() time.Duration { return time.Since(start) }
	}
	opened := int64(s.elapsed())
	for i := range s.ops {
		s.ops[i].answered.Store(opened)
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
	span  trace.Span
}

// begin begins a call about an object of this name, which may be "", and returns what the inner store is to be
// called with.
func (s *Store) begin(ctx context.Context, op Op, name string) (context.Context, call) {
	if ctx.Err() != nil {
		return ctx, call{}
	}
	by, _ := ctx.Value(attribution{}).(*Requests)
	by.begin(op)
	c := call{op: &s.ops[op], by: by, kind: op, began: s.elapsed()}
	if s.tracer != nil {
		ctx, c.span = trace.Begin(s.tracer, ctx, traced[op])
		if s.nameOf != nil && name != "" && c.span.Wanted() {
			c.span.Text("object", s.nameOf(name))
		}
	}
	return ctx, c
}

// traced are the operations as a Tracer is told of them.
var traced = [NumOps]trace.Op{
	Put: trace.StorePut, Get: trace.StoreGet, Head: trace.StoreHead, List: trace.StoreList,
	Delete: trace.StoreDelete, Time: trace.StoreTime, AbortUploads: trace.StoreAbortUploads,
}

// end counts the call. Bytes count if it succeeded.
func (s *Store) end(ctx context.Context, c call, bytes int, err error) {
	if c.op == nil {
		return
	}
	if err != nil {
		if errors.Is(err, objstore.ErrName) {
			c.by.unsent(c.kind)
			c.span.End(err)
			return
		}
		bytes = 0
	}
	c.by.moved(c.kind, bytes)
	result := resultOf(ctx, err)
	now := s.elapsed()
	c.op.observe(result, now, now-c.began, bytes)
	if !c.span.Wanted() {
		return
	}
	c.span.Int("bytes", int64(bytes))
	c.span.Text("result", result.String())
	if result.answer() || result == Canceled {
		err = nil
	}
	c.span.End(err)
}

// String implements objstore.Store: it is the inner store's.
func (s *Store) String() string { return s.inner.String() }

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	ctx, c := s.begin(ctx, Put, name)
	res, err := s.inner.Put(ctx, name, body, opts)
	s.end(ctx, c, len(body), err)
	return res, err
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	ctx, c := s.begin(ctx, Get, name)
	obj, err := s.inner.Get(ctx, name, opts)
	s.end(ctx, c, len(obj.Body), err)
	return obj, err
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, name string) (objstore.Attributes, error) {
	ctx, c := s.begin(ctx, Head, name)
	attrs, err := s.inner.Head(ctx, name)
	s.end(ctx, c, 0, err)
	return attrs, err
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	ctx, c := s.begin(ctx, List, prefix)
	page, err := s.inner.List(ctx, prefix, startAfter, limit)
	s.end(ctx, c, 0, err)
	return page, err
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return s.inner.Delete(ctx, names)
	}
	ctx, c := s.begin(ctx, Delete, names[0])
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
	ctx, c := s.begin(ctx, Time, "")
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
	ctx, c := s.begin(ctx, AbortUploads, "")
	n, err := s.aborter.AbortUploads(ctx, before)
	s.end(ctx, c, 0, err)
	return n, err
}
