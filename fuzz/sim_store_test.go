package fuzz

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

var (
	errSimDead  = errors.New("the process is dead")
	errSimReset = errors.New("connection reset by peer")
)

// simOp is one request to the store. It is applied by one event and answered by another, if at all: what the
// caller hears, and when, says nothing about what was done.
type simOp struct {
	proc *simProcess
	op   fault.Op
	sig  uint64 // hash of all that was asked
	site simSite
	born int // the step

	// Of the world.
	applied bool
	answer  simAnswer // once applied

	// Guarded by simWorld.mu.
	done     chan struct{} // closed when heard is set
	answered bool
	left     bool // the caller waits no longer: its context ended, or its process died
	heard    simAnswer
}

// simAnswer is what a store answers.
type simAnswer struct {
	put  objstore.PutResult
	obj  objstore.Object
	attr objstore.Attributes
	page objstore.Page
	time time.Time
	err  error
}

// simStore is a store that does one thing with all that is asked of it.
type simStore func(ctx context.Context, op fault.Op) simAnswer

var _ objstore.Store = simStore(nil)

// String implements objstore.Store.
func (s simStore) String() string { return "sim:" }

// Put implements objstore.Store.
func (s simStore) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	a := s(ctx, fault.Op{Kind: fault.Put, Name: name, Body: bytes.Clone(body), PutOptions: o})
	return a.put, a.err
}

// Get implements objstore.Store.
func (s simStore) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	a := s(ctx, fault.Op{Kind: fault.Get, Name: name, GetOptions: o})
	return a.obj, a.err
}

// Head implements objstore.Store.
func (s simStore) Head(ctx context.Context, name string) (objstore.Attributes, error) {
	a := s(ctx, fault.Op{Kind: fault.Head, Name: name})
	return a.attr, a.err
}

// List implements objstore.Store.
func (s simStore) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	a := s(ctx, fault.Op{Kind: fault.List, Name: prefix, StartAfter: startAfter, Limit: limit})
	return a.page, a.err
}

// Delete implements objstore.Store.
func (s simStore) Delete(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	return s(ctx, fault.Op{Kind: fault.Delete, Name: names[0], Names: slices.Clone(names)}).err
}

// ServerTime implements objstore.Store.
func (s simStore) ServerTime(ctx context.Context) (time.Time, error) {
	a := s(ctx, fault.Op{Kind: fault.Time})
	return a.time, a.err
}

// storeOf is the bucket as a process sees it.
func (w *simWorld) storeOf(p *simProcess) objstore.Store {
	return simStore(func(ctx context.Context, op fault.Op) simAnswer { return w.park(ctx, p, op) })
}

// park keeps a request until the world answers it or ctx ends.
func (w *simWorld) park(ctx context.Context, p *simProcess, op fault.Op) simAnswer {
	w.overtake()
	defer w.overtake()
	if err := ctx.Err(); err != nil {
		return simAnswer{err: failed(op, err)}
	}
	o := &simOp{proc: p, op: op, sig: signature(op), site: callSite(), done: make(chan struct{})}
	w.mu.Lock()
	if p.dead {
		w.mu.Unlock()
		return simAnswer{err: failed(op, errSimDead)}
	}
	w.arrivedOps = append(w.arrivedOps, o)
	w.mu.Unlock()
	select {
	case <-o.done:
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.answered { // even if ctx has ended meanwhile: both are the work of one event
		return o.heard
	}
	o.left = true
	return simAnswer{err: failed(op, ctx.Err())}
}

func failed(op fault.Op, err error) error {
	return fmt.Errorf("%s %s: %w", strings.ToLower(op.Kind.String()), op.Name, err)
}

// signature tells requests apart by what they ask.
func signature(op fault.Op) uint64 {
	h := xxhash.New()
	_, _ = h.Write(op.Body)
	_, _ = fmt.Fprint(h, op.Kind, op.Name, op.PutOptions, op.GetOptions, op.StartAfter, op.Limit, op.Names)
	return h.Sum64()
}

// listOps takes in the requests that were made since the last event, in an order that depends on nothing but what they
// ask, and where, and returns them. One whose caller has left already was never sent: a context that ends reaches its
// children in any order, so that one of them may ask for something in between. Callers hold mu.
func (w *simWorld) listOps() []*simOp {
	w.ops = slices.DeleteFunc(w.ops, func(o *simOp) bool { return o.answered || o.left && o.applied })
	fresh := slices.DeleteFunc(w.arrivedOps, func(o *simOp) bool { return o.left })
	w.arrivedOps = nil
	slices.SortStableFunc(fresh, func(a, b *simOp) int {
		return cmp.Or(cmp.Compare(a.proc.id, b.proc.id), cmp.Compare(a.op.Kind, b.op.Kind),
			strings.Compare(a.op.Name, b.op.Name), cmp.Compare(a.sig, b.sig), cmp.Compare(a.site.hash, b.site.hash))
	})
	for _, o := range fresh {
		o.op.Number, o.born = w.requests, w.step
		w.requests++
	}
	w.ops = append(w.ops, fresh...)
	return fresh
}

// apply does what a request asks.
func (w *simWorld) apply(o *simOp) {
	o.applied = true
	if w.forgets != nil && w.forgets(o.op) {
		o.answer = simAnswer{put: objstore.PutResult{ETag: "forgotten", Time: time.Now()}}
	} else {
		o.answer = w.do(o.proc, o.op)
	}
	w.note(o.proc, "applied "+o.op.Kind.String(), o.op.Name, o.sig, errText(o.answer.err))
}

// do asks the true store, and tells the oracle.
func (w *simWorld) do(p *simProcess, op fault.Op) (a simAnswer) {
	ctx := context.Background()
	switch op.Kind {
	case fault.Put:
		a.put, a.err = w.mem.Put(ctx, op.Name, op.Body, op.PutOptions)
		if op.Name == manifestName && a.err == nil {
			w.sawManifest(op.Body)
		}
	case fault.Get:
		a.obj, a.err = w.mem.Get(ctx, op.Name, op.GetOptions)
	case fault.Head:
		a.attr, a.err = w.mem.Head(ctx, op.Name)
	case fault.List:
		a.page, a.err = w.list(ctx, op)
	case fault.Delete:
		w.rememberDeleted(ctx, op.Names)
		a.err = w.mem.Delete(ctx, op.Names)
	case fault.Time:
		a.time, a.err = w.mem.ServerTime(ctx)
	}
	w.oracle.applied(p, op, a.err)
	return a
}

// reply lets the caller have an answer.
func (w *simWorld) reply(o *simOp, a simAnswer) {
	w.note(o.proc, "answered "+o.op.Kind.String(), o.op.Name, xxhash.Sum64(a.obj.Body), errText(a.err))
	w.mu.Lock()
	defer w.mu.Unlock()
	if !o.left {
		o.answered, o.heard = true, a
		close(o.done)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A store may have listings that lag behind, although the contract of objstore forbids it and S3 has none: what is
// lately put is missing, what is lately deleted still there.
const listingLag = 3 * time.Second

type deletedEntry struct {
	objstore.Entry
	at time.Duration
}

// rememberDeleted keeps what a deletion is about to remove, for listings that lag.
func (w *simWorld) rememberDeleted(ctx context.Context, names []string) {
	if !w.profile.staleLists {
		return
	}
	w.deleted = slices.DeleteFunc(w.deleted, func(e deletedEntry) bool { return w.clock()-e.at > listingLag })
	for _, name := range names {
		if at, err := w.mem.Head(ctx, name); err == nil {
			at.ETag, at.Time = "", time.Time{}
			w.deleted = append(w.deleted, deletedEntry{objstore.Entry{Name: name, Attributes: at}, w.clock()})
		}
	}
}

// list answers a List, in some worlds with a lag.
func (w *simWorld) list(ctx context.Context, op fault.Op) (objstore.Page, error) {
	page, err := w.mem.List(ctx, op.Name, op.StartAfter, op.Limit)
	if err != nil || !w.profile.staleLists {
		return page, err
	}
	d := newDice(w.seed, laneListing, uint64(w.step))
	lags := func() bool { return d.permille(300) }
	whole := len(page.Entries)
	page.Entries = slices.DeleteFunc(page.Entries, func(e objstore.Entry) bool {
		return time.Since(e.Modified) < listingLag && lags()
	})
	lacks := whole - len(page.Entries)
	for _, e := range w.deleted {
		there := func(o objstore.Entry) bool { return o.Name == e.Name }
		if !page.More && strings.HasPrefix(e.Name, op.Name) && e.Name > op.StartAfter && w.clock()-e.at < listingLag &&
			len(page.Entries) < objstore.PageSize(op.Limit) && !slices.ContainsFunc(page.Entries, there) && lags() {
			page.Entries = append(page.Entries, e.Entry)
			w.count("fault: a listing has what was deleted")
		}
	}
	if lacks > 0 {
		w.count("fault: a listing lacks what was put")
	}
	slices.SortFunc(page.Entries, func(a, b objstore.Entry) int { return strings.Compare(a.Name, b.Name) })
	return page, nil
}
