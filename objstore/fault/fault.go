package fault

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// ErrInjected is the error of the ready-made rules when the test names none. It
// stands for a network error: nothing is known about the request.
var ErrInjected = errors.New("injected fault")

// Kind is the kind of an operation.
type Kind uint8

// The operations of a store.
const (
	Put Kind = iota + 1
	Get
	Head
	List
	Delete
	Time
)

// String returns the kind's name in capitals, as in "PUT".
func (k Kind) String() string {
	names := [...]string{Put: "PUT", Get: "GET", Head: "HEAD", List: "LIST", Delete: "DELETE", Time: "TIME"}
	if k < Put || k > Time {
		return fmt.Sprintf("Kind(%d)", k)
	}
	return names[k]
}

// Op is one operation, as a Hook sees it.
type Op struct {
	Kind Kind
	// Number counts the operations of one Store from 0, in the order in which they
	// were called.
	Number int
	// Name is the object's name; for a List the prefix; for a Delete the first name;
	// for a Time empty.
	Name string

	PutOptions objstore.PutOptions // Put
	Body       []byte              // Put; valid during the Hook call only, not to be changed
	GetOptions objstore.GetOptions // Get
	StartAfter string              // List
	Limit      int                 // List
	Names      []string            // Delete; valid during the Hook call only, not to be changed
}

// String describes the operation in one line, for traces.
func (o Op) String() string { return fmt.Sprintf("#%d %s %s", o.Number, o.Kind, o.Name) }

// Plan says what happens to one operation. The zero value lets it through.
type Plan struct {
	// Before runs before the operation is applied, with the caller's context. It may
	// wait. When it returns an error the operation is not applied and is answered
	// with that error.
	Before func(ctx context.Context) error
	// After runs once the operation was applied to the inner store, whatever that
	// answered, with the caller's context. It may wait. When it returns an error, that
	// replaces the answer, which is lost.
	After func(ctx context.Context) error
	// Mangle changes what a successful Get returns. The object is the call's own. An
	// error replaces the answer.
	Mangle func(*objstore.Object) error
	// IgnoreConditions drops IfAbsent and IfMatch of a Put on its way, like a
	// store that accepts them without a meaning (F20).
	IgnoreConditions bool
	// Held, when not nil, keeps the operation under way: see Held.
	Held *Held
}

// Hook decides what happens to an operation. It is called from the goroutine of
// the caller, for several operations at the same time, and must not wait: Before
// and After may.
type Hook func(ctx context.Context, op Op) Plan

// Store is an objstore.Store whose operations go through a Hook. It starts no
// goroutine and holds no lock while it calls the hook, the plan or the inner
// store.
type Store struct {
	inner objstore.Store
	hook  Hook
	calls atomic.Int64
}

var _ objstore.Store = (*Store)(nil)

// New wraps a store. A nil hook lets everything through.
func New(inner objstore.Store, hook Hook) *Store {
	if hook == nil {
		hook = func(context.Context, Op) Plan { return Plan{} }
	}
	return &Store{inner: inner, hook: hook}
}

// Calls returns the number of operations so far.
func (s *Store) Calls() int { return int(s.calls.Load()) }

// Inner returns the wrapped store, to look at what was really applied.
func (s *Store) Inner() objstore.Store { return s.inner }

// String implements objstore.Store: it is the inner store's.
func (s *Store) String() string { return s.inner.String() }

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	plan := s.plan(ctx, Op{Kind: Put, Name: name, Body: body, PutOptions: opts})
	if plan.IgnoreConditions {
		opts.IfAbsent, opts.IfMatch = false, ""
	}
	if plan.Held != nil {
		body = append([]byte(nil), body...) // the caller may use its slice again before it is applied
	}
	return do(ctx, plan, "put "+name, func(ctx context.Context) (objstore.PutResult, error) {
		return s.inner.Put(ctx, name, body, opts)
	})
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	plan := s.plan(ctx, Op{Kind: Get, Name: name, GetOptions: opts})
	return do(ctx, plan, "get "+name, func(ctx context.Context) (objstore.Object, error) {
		o, err := s.inner.Get(ctx, name, opts)
		if err != nil || plan.Mangle == nil {
			return o, err
		}
		if err := plan.Mangle(&o); err != nil {
			return objstore.Object{}, fmt.Errorf("get %s: %w", name, err)
		}
		return o, nil
	})
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, name string) (objstore.Attributes, error) {
	plan := s.plan(ctx, Op{Kind: Head, Name: name})
	return do(ctx, plan, "head "+name, func(ctx context.Context) (objstore.Attributes, error) {
		return s.inner.Head(ctx, name)
	})
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	plan := s.plan(ctx, Op{Kind: List, Name: prefix, StartAfter: startAfter, Limit: limit})
	return do(ctx, plan, "list "+prefix, func(ctx context.Context) (objstore.Page, error) {
		return s.inner.List(ctx, prefix, startAfter, limit)
	})
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, names []string) error {
	op := Op{Kind: Delete, Names: names}
	if len(names) > 0 {
		op.Name = names[0]
	}
	plan := s.plan(ctx, op)
	if plan.Held != nil {
		names = append([]string(nil), names...)
	}
	_, err := do(ctx, plan, fmt.Sprintf("delete %d objects", len(names)), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.inner.Delete(ctx, names)
	})
	return err
}

// ServerTime implements objstore.Store.
func (s *Store) ServerTime(ctx context.Context) (time.Time, error) {
	plan := s.plan(ctx, Op{Kind: Time})
	return do(ctx, plan, "ask for the time", func(ctx context.Context) (time.Time, error) {
		return s.inner.ServerTime(ctx)
	})
}

func (s *Store) plan(ctx context.Context, op Op) Plan {
	op.Number = int(s.calls.Add(1) - 1)
	return s.hook(ctx, op)
}

// do runs one operation as its plan says.
func do[T any](ctx context.Context, plan Plan, what string, apply func(context.Context) (T, error)) (T, error) {
	var zero T
	if plan.Before != nil {
		if err := plan.Before(ctx); err != nil {
			return zero, fmt.Errorf("%s: %w", what, err)
		}
	}
	var res T
	var err error
	if plan.Held == nil {
		res, err = apply(ctx)
	} else {
		if err := ctx.Err(); err != nil { // never sent, so nothing to hold
			return zero, fmt.Errorf("%s: %w", what, err)
		}
		// The two results are written by Held.Apply before wait returns nil.
		late := func(ctx context.Context) error {
			res, err = apply(ctx)
			return err
		}
		if werr := plan.Held.wait(ctx, what, late); werr != nil {
			return zero, fmt.Errorf("%s: %w", what, werr)
		}
	}
	if plan.After != nil {
		if aerr := plan.After(ctx); aerr != nil {
			return zero, fmt.Errorf("%s: %w", what, aerr)
		}
	}
	if err != nil {
		return zero, err
	}
	return res, nil
}
