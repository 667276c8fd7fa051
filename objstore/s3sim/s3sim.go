// Package s3sim makes any store as slow as S3.
//
//	store := s3sim.New(mem.New(mem.Options{}), s3sim.Default())
//
// Each request takes a time that is drawn from a log-normal distribution of its kind, and its
// body the time to transfer it. Half of the latency passes before the inner store is asked, half
// after, as a request and its answer travel: of two conditional writes at the same time the one that was
// sent later may succeed, and what was applied is known only later. The body of a Put is on its way before, that
// of a Get after. What the inner store needs itself is part of the time drawn, not added to it; when it
// needs longer, so does the call.
//
// A call whose context ends returns at once. Ended on the way there, it was not applied; on the
// way back, it was.
//
// What it cannot tell: how S3 behaves under load. It never throttles or fails, a request is as fast
// as any other whatever is under way, and names have no partitions.
package s3sim

import (
	"context"
	"fmt"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// Store is an objstore.Store that answers as late as S3 would. It starts no goroutine and
// keeps no lock. All methods may be called from any goroutine.
type Store struct {
	inner   objstore.Store
	aborter uploadAborter   // inner, if it is one
	sender  objstore.Sender // inner, if it is one
	opts    Options
	elapsed func() time.Duration
	dice    [numKinds]dice
	sent    sentCounts
}

// uploadAborter is a store that can have unfinished multipart uploads.
type uploadAborter interface {
	AbortUploads(ctx context.Context, before time.Time) (int, error)
}

var _ objstore.Sender = (*Store)(nil)

// New returns a store whose objects are inner's. It panics unless the options are valid.
func New(inner objstore.Store, o Options) *Store {
	if err := o.Validate(); err != nil {
		panic("s3sim: " + err.Error())
	}
	s := &Store{inner: inner, opts: o, elapsed: o.Elapsed}
	if s.elapsed == nil {
		start := time.Now()
		s.elapsed = func() time.Duration { return time.Since(start) }
	}
	s.aborter, _ = inner.(uploadAborter)
	s.sender, _ = inner.(objstore.Sender)
	for k, l := range o.latencies() {
		s.dice[k].init(l, scramble(o.Seed+uint64(k+1)*goldenGamma))
	}
	return s
}

// request is one call on its way.
type request struct {
	verb, name string
	operation  operation
	// parts is how many parts were uploaded before, 0 but for a Put in parts.
	parts int
	// From when the call is made: the inner store is asked when arrives has passed; an answer without
	// a body is back after answered.
	arrives, answered time.Duration
}

// request draws the latency of a request without a body on the way there.
func (s *Store) request(k kind, op operation, verb, name string) request {
	latency := s.dice[k].next()
	return request{verb: verb, name: name, operation: op, arrives: latency / 2, answered: latency}
}

func (r request) failed(err error) error {
	return fmt.Errorf("%s %s: %w", r.verb, r.name, err)
}

// do sends a request. apply asks the inner store, and returns how many bytes its answer
// has beside the attributes.
func do[T any](ctx context.Context, s *Store, r request, apply func() (T, int, error)) (T, error) {
	var none T
	w := waiter{sleep: s.opts.Sleep, elapsed: s.elapsed, began: s.elapsed()}
	defer w.stop()
	if err := w.until(ctx, r.arrives); err != nil {
		s.sent.add(r, objstore.AnswerNone)
		return none, r.failed(err)
	}
	res, bytes, err := apply()
	if err := w.until(ctx, r.answered+s.transfer(int64(bytes))); err != nil {
		s.sent.add(r, objstore.AnswerNone)
		return none, r.failed(err)
	}
	s.sent.add(r, answerOf(ctx, err))
	return res, err
}

// transfer returns how long one request needs for a body.
func (s *Store) transfer(bytes int64) time.Duration {
	return time.Duration(float64(bytes) / float64(s.opts.Bandwidth) * float64(time.Second))
}

// String implements objstore.Store: it is the inner store's.
func (s *Store) String() string { return s.inner.String() }

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	opts.Check()
	if err := unsent(ctx, objstore.ValidName(name)); err != nil {
		return objstore.PutResult{}, fmt.Errorf("put %s: %w", name, err)
	}
	r := s.putRequest(name, int64(len(body)), opts)
	return do(ctx, s, r, func() (objstore.PutResult, int, error) {
		res, err := s.inner.Put(ctx, name, body, opts)
		return res, 0, err
	})
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	opts.Check()
	if err := unsent(ctx, objstore.ValidName(name)); err != nil {
		return objstore.Object{}, fmt.Errorf("get %s: %w", name, err)
	}
	return do(ctx, s, s.request(kindGet, getObject, "get", name), func() (objstore.Object, int, error) {
		obj, err := s.inner.Get(ctx, name, opts)
		return obj, len(obj.Body), err
	})
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, name string) (objstore.Attributes, error) {
	if err := unsent(ctx, objstore.ValidName(name)); err != nil {
		return objstore.Attributes{}, fmt.Errorf("head %s: %w", name, err)
	}
	return do(ctx, s, s.request(kindHead, headObject, "head", name), func() (objstore.Attributes, int, error) {
		attrs, err := s.inner.Head(ctx, name)
		return attrs, 0, err
	})
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	objstore.PageSize(limit) // panics when it is negative
	if err := ctx.Err(); err != nil {
		return objstore.Page{}, fmt.Errorf("list %s: %w", prefix, err)
	}
	return do(ctx, s, s.request(kindList, listObjects, "list", prefix), func() (objstore.Page, int, error) {
		page, err := s.inner.List(ctx, prefix, startAfter, limit)
		return page, 0, err
	})
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, names []string) error {
	if err := unsent(ctx, objstore.CheckDelete(names)); err != nil {
		return fmt.Errorf("delete %d objects: %w", len(names), err)
	}
	if len(names) == 0 {
		return nil
	}
	_, err := do(ctx, s, s.request(kindDelete, deleteObjects, "delete", names[0]), func() (struct{}, int, error) {
		return struct{}{}, 0, s.inner.Delete(ctx, names)
	})
	return err
}

// ServerTime implements objstore.Store.
func (s *Store) ServerTime(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, fmt.Errorf("ask for the time: %w", err)
	}
	return do(ctx, s, s.request(kindList, listObjects, "ask for", "the time"), func() (time.Time, int, error) {
		t, err := s.inner.ServerTime(ctx)
		return t, 0, err
	})
}

// AbortUploads aborts the unfinished multipart uploads of the inner store that began before
// a time of the store, and returns how many. A store that cannot have any is asked
// for them all the same, as S3 would be.
func (s *Store) AbortUploads(ctx context.Context, before time.Time) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("list uploads: %w", err)
	}
	return do(ctx, s, s.request(kindList, listUploads, "list", "uploads"), func() (int, int, error) {
		if s.aborter == nil {
			return 0, 0, nil
		}
		n, err := s.aborter.AbortUploads(ctx, before)
		return n, 0, err
	})
}

// unsent returns why nothing is sent, if so: the name's fault before the context's end.
func unsent(ctx context.Context, name error) error {
	if name != nil {
		return name
	}
	return ctx.Err()
}
