package fault

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// Chain asks several hooks about each operation and does what all of them say:
// the first hook is nearest to the caller. Its Before comes first and its After
// and Mangle last; an error ends the chain. At most one may hold an operation; nil
// hooks are left out.
func Chain(hooks ...Hook) Hook {
	return func(ctx context.Context, op Op) Plan {
		var sum Plan
		for _, h := range hooks {
			if h == nil {
				continue
			}
			p := h(ctx, op)
			if p.Held != nil && sum.Held != nil {
				panic(fmt.Sprintf("fault: two hooks hold %s", op))
			}
			if p.Held != nil {
				sum.Held = p.Held
			}
			sum.IgnoreConditions = sum.IgnoreConditions || p.IgnoreConditions
			sum.Before = inOrder(sum.Before, p.Before)
			sum.After = inOrder(p.After, sum.After)
			sum.Mangle = inOrder(p.Mangle, sum.Mangle)
		}
		return sum
	}
}

func inOrder[T any](a, b func(T) error) func(T) error {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	return func(v T) error {
		if err := a(v); err != nil {
			return err
		}
		return b(v)
	}
}

// On applies a hook to the operations that match only.
func On(match func(Op) bool, hook Hook) Hook {
	return func(ctx context.Context, op Op) Plan {
		if !match(op) {
			return Plan{}
		}
		return hook(ctx, op)
	}
}

// OnKind applies a hook to the operations of one kind only.
func OnKind(kind Kind, hook Hook) Hook {
	return On(func(op Op) bool { return op.Kind == kind }, hook)
}

// Always returns a hook that gives every operation the same plan.
func Always(plan Plan) Hook {
	return func(context.Context, Op) Plan { return plan }
}

// Refuse is a plan that answers without applying the operation: a request that
// never arrived, or with objstore.ErrPrecondition or ErrConflict one that the store
// refused.
func Refuse(err error) Plan {
	return Plan{Before: func(context.Context) error { return err }}
}

// Lose is a plan that applies the operation and answers with err.
func Lose(err error) Plan {
	return Plan{After: func(context.Context) error { return err }}
}

// FlipByte is a plan that inverts one byte of what a Get returns, the byte at
// offset modulo the body's length. An empty body stays as it is.
func FlipByte(offset int) Plan {
	return Plan{Mangle: func(o *objstore.Object) error {
		if len(o.Body) > 0 {
			o.Body[offset%len(o.Body)] ^= 0xFF
		}
		return nil
	}}
}

// Truncate is a plan that leaves the first n bytes of what a Get returns, with
// no sign of it: a store that breaks its contract. For a body that ends early with
// an error, use Lose(io.ErrUnexpectedEOF) on the Get.
func Truncate(n int) Plan {
	return Plan{Mangle: func(o *objstore.Object) error {
		o.Body = o.Body[:min(n, len(o.Body))]
		return nil
	}}
}

// Nth is the rule of FailNth.
type Nth struct {
	n       int64
	plan    Plan
	seen    atomic.Int64
	reached atomic.Bool
}

// FailNth makes a rule that fails the operation number n (from 0) of those that
// its Hook sees, once: before it is applied, or (applied) after it was applied. A
// nil err means ErrInjected. For sweeps: raise n until a run does not Hit.
func FailNth(n int, applied bool, err error) *Nth {
	if err == nil {
		err = ErrInjected
	}
	r := &Nth{n: int64(n), plan: Refuse(err)}
	if applied {
		r.plan = Lose(err)
	}
	return r
}

// Hook is the rule's Hook.
func (r *Nth) Hook(context.Context, Op) Plan {
	if r.seen.Add(1)-1 != r.n {
		return Plan{}
	}
	r.reached.Store(true)
	return r.plan
}

// Hit reports whether the operation came.
func (r *Nth) Hit() bool { return r.reached.Load() }

// Latency makes every operation of a kind (0: of every kind) take d: one half
// before it is applied and one half before it is answered. sleep waits, and
// returns an error when ctx ends: the clock is the test's.
func Latency(kind Kind, d time.Duration, sleep func(ctx context.Context, d time.Duration) error) Hook {
	plan := Plan{
		Before: func(ctx context.Context) error { return sleep(ctx, d/2) },
		After:  func(ctx context.Context) error { return sleep(ctx, d-d/2) },
	}
	return func(_ context.Context, op Op) Plan {
		if kind != 0 && op.Kind != kind {
			return Plan{}
		}
		return plan
	}
}

// Counts are numbers of operations and bytes of bodies.
type Counts struct {
	Put, Get, Head, List, Delete, Time int
	// BytesPut counts the bodies of all Puts, whether they were applied or not.
	BytesPut int64
	// BytesGot counts the bodies of Gets that succeeded, as they reach the counter.
	BytesGot int64
}

// Requests returns the counts without the bytes.
func (c Counts) Requests() Counts {
	c.BytesPut, c.BytesGot = 0, 0
	return c
}

// Counter counts the operations that its Hook sees: with On, those of some
// names only. The zero value is ready. It may be used from any goroutine.
type Counter struct {
	mu sync.Mutex
	c  Counts // guarded by mu
}

// Hook counts an operation and lets it through.
func (c *Counter) Hook(_ context.Context, op Op) Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch op.Kind {
	case Put:
		c.c.Put++
		c.c.BytesPut += int64(len(op.Body))
	case Get:
		c.c.Get++
		return Plan{Mangle: c.got}
	case Head:
		c.c.Head++
	case List:
		c.c.List++
	case Delete:
		c.c.Delete++
	case Time:
		c.c.Time++
	}
	return Plan{}
}

func (c *Counter) got(o *objstore.Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.c.BytesGot += int64(len(o.Body))
	return nil
}

// Counts returns the counts so far.
func (c *Counter) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.c
}

// Take returns the counts so far and starts again from zero.
func (c *Counter) Take() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.c
	c.c = Counts{}
	return taken
}

// TestingT is the part of testing.TB that Assert needs.
type TestingT interface {
	Helper()
	Errorf(format string, args ...any)
}

// Assert fails the test unless the counts since the last Take or Assert are
// exactly these, and starts again from zero.
func (c *Counter) Assert(t TestingT, want Counts) {
	t.Helper()
	if got := c.Take(); got != want {
		t.Errorf("operations of the store:\n got %+v\nwant %+v", got, want)
	}
}
