package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/storetest"
)

func TestConformance(t *testing.T) {
	hooks := map[string]fault.Hook{
		"no hook":   nil,
		"no faults": fault.Chain(nil, fault.FailNth(1<<30, false, nil).Hook, new(fault.Counter).Hook),
	}
	for what, hook := range hooks {
		t.Run(what, func(t *testing.T) {
			storetest.Run(t, func(*testing.T) objstore.Store {
				return fault.New(mem.New(mem.Options{}), hook)
			})
		})
	}
}

// body reads an object of the inner store, "" if there is none.
func body(t *testing.T, s objstore.Store, name string) string {
	t.Helper()
	o, err := s.Get(t.Context(), name, objstore.GetOptions{})
	if !errors.Is(err, objstore.ErrNotFound) {
		require.NoError(t, err)
	}
	return string(o.Body)
}

// everyCall is one operation of each kind on a store that holds "n" (the body
// "old"), and how to see that it was applied to a store.
var everyCall = []struct {
	kind    fault.Kind
	call    func(context.Context, objstore.Store) error
	applied func(*testing.T, objstore.Store) bool // nil: it changes nothing
}{
	{fault.Put, func(ctx context.Context, s objstore.Store) error {
		_, err := s.Put(ctx, "n", []byte("new"), objstore.PutOptions{})
		return err
	}, func(t *testing.T, s objstore.Store) bool { return body(t, s, "n") == "new" }},
	{fault.Delete, func(ctx context.Context, s objstore.Store) error {
		return s.Delete(ctx, []string{"n"})
	}, func(t *testing.T, s objstore.Store) bool { return body(t, s, "n") == "" }},
	{fault.Get, func(ctx context.Context, s objstore.Store) error {
		_, err := s.Get(ctx, "n", objstore.GetOptions{})
		return err
	}, nil},
	{fault.Head, func(ctx context.Context, s objstore.Store) error {
		_, err := s.Head(ctx, "n")
		return err
	}, nil},
	{fault.List, func(ctx context.Context, s objstore.Store) error {
		_, err := s.List(ctx, "n", "", 0)
		return err
	}, nil},
	{fault.Time, func(ctx context.Context, s objstore.Store) error {
		_, err := s.ServerTime(ctx)
		return err
	}, nil},
}

func newInner(t *testing.T) *mem.Store {
	t.Helper()
	inner := mem.New(mem.Options{})
	_, err := inner.Put(t.Context(), "n", []byte("old"), objstore.PutOptions{})
	require.NoError(t, err)
	return inner
}

func TestNotAppliedAndLostAnswers(t *testing.T) {
	for _, c := range everyCall {
		for _, applied := range []bool{false, true} {
			for _, want := range []error{nil, io.ErrUnexpectedEOF, objstore.ErrPrecondition, objstore.ErrConflict} {
				t.Run(fmt.Sprintf("%s applied=%t %v", c.kind, applied, want), func(t *testing.T) {
					inner := newInner(t)
					rule := fault.FailNth(1, applied, want)
					s := fault.New(inner, fault.OnKind(c.kind, rule.Hook))
					require.Same(t, inner, s.Inner())
					_, err := s.Put(t.Context(), "other", nil, objstore.PutOptions{})
					require.NoError(t, err)
					if c.kind != fault.Put { // which was number 0 of its kind
						require.NoError(t, c.call(t.Context(), fault.New(s, nil)))
						_, err = inner.Put(t.Context(), "n", []byte("old"), objstore.PutOptions{})
						require.NoError(t, err)
					}
					require.False(t, rule.Hit())

					err = c.call(t.Context(), s)
					if want == nil {
						want = fault.ErrInjected
					}
					require.ErrorIs(t, err, want)
					require.True(t, rule.Hit())
					if c.applied != nil {
						require.Equal(t, applied, c.applied(t, inner))
					}
					require.NoError(t, c.call(t.Context(), s), "it fails once")
				})
			}
		}
	}
}

func TestLostAnswerHidesTheInnerError(t *testing.T) {
	s := fault.New(mem.New(mem.Options{}), fault.Always(fault.Lose(io.ErrUnexpectedEOF)))
	_, err := s.Get(t.Context(), "missing", objstore.GetOptions{})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotErrorIs(t, err, objstore.ErrNotFound)
	require.ErrorContains(t, err, "get missing: ")
}

// TestSweep runs some work under a fault at each of its operations.
func TestSweep(t *testing.T) {
	work := func(s objstore.Store) error {
		for i := range 3 {
			if _, err := s.Put(t.Context(), fmt.Sprintf("n%d", i), nil, objstore.PutOptions{}); err != nil {
				return err
			}
		}
		_, err := s.List(t.Context(), "", "", 0)
		return err
	}
	for _, applied := range []bool{false, true} {
		i := 0
		for ; ; i++ {
			inner := mem.New(mem.Options{})
			rule := fault.FailNth(i, applied, nil)
			s := fault.New(inner, rule.Hook)
			err := work(s)
			if !rule.Hit() {
				require.NoError(t, err)
				require.Equal(t, 4, s.Calls())
				break
			}
			require.ErrorIs(t, err, fault.ErrInjected)
			require.Equal(t, i+1, s.Calls())
			want := i
			if applied {
				want++
			}
			require.Equal(t, min(want, 3), inner.Len())
		}
		require.Equal(t, 4, i)
	}
}

func TestOp(t *testing.T) {
	var ops []fault.Op
	s := fault.New(newInner(t), func(_ context.Context, op fault.Op) fault.Plan {
		ops = append(ops, op)
		return fault.Plan{}
	})
	ctx := t.Context()
	_, _ = s.Put(ctx, "p", []byte("body"), objstore.PutOptions{IfAbsent: true})
	_, _ = s.Get(ctx, "g", objstore.GetOptions{Suffix: 3})
	_, _ = s.Head(ctx, "h")
	_, _ = s.List(ctx, "l", "after", 7)
	_ = s.Delete(ctx, []string{"d1", "d2"})
	_, _ = s.ServerTime(ctx)
	require.Equal(t, []fault.Op{
		{Kind: fault.Put, Number: 0, Name: "p", Body: []byte("body"), PutOptions: objstore.PutOptions{IfAbsent: true}},
		{Kind: fault.Get, Number: 1, Name: "g", GetOptions: objstore.GetOptions{Suffix: 3}},
		{Kind: fault.Head, Number: 2, Name: "h"},
		{Kind: fault.List, Number: 3, Name: "l", StartAfter: "after", Limit: 7},
		{Kind: fault.Delete, Number: 4, Name: "d1", Names: []string{"d1", "d2"}},
		{Kind: fault.Time, Number: 5},
	}, ops)
	require.Equal(t, "#0 PUT p", ops[0].String())
	require.Equal(t, "Kind(9)", fault.Kind(9).String())
	require.Equal(t, "mem:", s.String())
}

func TestIgnoreConditionsF20(t *testing.T) {
	s := fault.New(newInner(t), fault.Always(fault.Plan{IgnoreConditions: true}))
	_, err := s.Put(t.Context(), "n", []byte("one"), objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	require.Equal(t, "one", body(t, s, "n"))
	_, err = s.Put(t.Context(), "n", []byte("two"), objstore.PutOptions{IfMatch: "wrong"})
	require.NoError(t, err)
	require.Equal(t, "two", body(t, s, "n"))
}

func TestMangledBodies(t *testing.T) {
	tests := map[string]struct {
		plan fault.Plan
		want string
	}{
		"flip":                {fault.FlipByte(1), "o\x93d"},
		"flip beyond":         {fault.FlipByte(4), "o\x93d"},
		"truncate":            {fault.Truncate(2), "ol"},
		"truncate to zero":    {fault.Truncate(0), ""},
		"truncate no shorter": {fault.Truncate(9), "old"},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			inner := newInner(t)
			s := fault.New(inner, fault.Always(test.plan))
			o, err := s.Get(t.Context(), "n", objstore.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, test.want, string(o.Body))
			require.Equal(t, int64(3), o.Size)
			require.Equal(t, "old", body(t, inner, "n"), "the object itself is unharmed")
		})
	}
	_, err := fault.New(newInner(t), fault.Always(fault.Plan{
		Mangle: func(*objstore.Object) error { return io.ErrUnexpectedEOF },
	})).Get(t.Context(), "n", objstore.GetOptions{})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	empty := fault.New(mem.New(mem.Options{}), fault.Always(fault.FlipByte(0)))
	_, err = empty.Put(t.Context(), "n", nil, objstore.PutOptions{})
	require.NoError(t, err)
	require.Empty(t, body(t, empty, "n"))
}

// TestHeldIsAppliedLater: the caller has given up, and then its PUT lands.
func TestHeldIsAppliedLater(t *testing.T) {
	for _, answer := range []error{nil, io.ErrUnexpectedEOF} {
		inner := newInner(t)
		held := fault.NewHeld(answer)
		once := fault.On(func(op fault.Op) bool { return op.Number == 0 }, fault.Always(fault.Plan{Held: held}))
		s := fault.New(inner, once)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error)
		mine := []byte("new")
		go func() {
			_, err := s.Put(ctx, "n", mine, objstore.PutOptions{})
			copy(mine, "XXX") // the slice is the caller's again
			got <- err
		}()
		<-held.Caught()
		if answer == nil {
			cancel()
			require.ErrorIs(t, <-got, context.Canceled)
		} else {
			require.ErrorIs(t, <-got, answer)
		}
		cancel()
		require.Equal(t, "old", body(t, inner, "n"))
		require.NoError(t, held.Apply(t.Context()))
		require.Equal(t, "new", body(t, inner, "n"))
		require.Panics(t, func() { _ = held.Apply(t.Context()) }, "once only")
	}
}

// TestHeldLosesItsCondition: what the delayed PUT depended on has changed.
func TestHeldLosesItsCondition(t *testing.T) {
	inner := newInner(t)
	held := fault.NewHeld(fault.ErrInjected)
	s := fault.New(inner, fault.OnKind(fault.Put, fault.Always(fault.Plan{Held: held})))
	_, err := s.Put(t.Context(), "m", nil, objstore.PutOptions{IfAbsent: true})
	require.ErrorIs(t, err, fault.ErrInjected)
	_, err = inner.Put(t.Context(), "m", []byte("first"), objstore.PutOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, held.Apply(t.Context()), objstore.ErrPrecondition)
	require.Equal(t, "first", body(t, inner, "m"))
}

// TestHeldAnswersAWaitingCaller: applied before the caller gives up, it answers
// as if it had only been slow.
func TestHeldAnswersAWaitingCaller(t *testing.T) {
	for _, c := range everyCall {
		t.Run(c.kind.String(), func(t *testing.T) {
			held := fault.NewHeld(nil)
			s := fault.New(newInner(t), fault.Always(fault.Plan{Held: held}))
			got := make(chan error)
			go func() { got <- c.call(t.Context(), s) }()
			<-held.Caught()
			require.NoError(t, held.Apply(t.Context()))
			require.NoError(t, <-got)
		})
	}
	held := fault.NewHeld(nil)
	s := fault.New(mem.New(mem.Options{}), fault.Always(fault.Plan{Held: held}))
	got := make(chan error)
	go func() {
		_, err := s.Head(t.Context(), "missing")
		got <- err
	}()
	<-held.Caught()
	require.ErrorIs(t, held.Apply(t.Context()), objstore.ErrNotFound)
	require.ErrorIs(t, <-got, objstore.ErrNotFound)
}

func TestHeldMisuse(t *testing.T) {
	require.Panics(t, func() { _ = fault.NewHeld(nil).Apply(t.Context()) })
	held := fault.NewHeld(fault.ErrInjected)
	s := fault.New(newInner(t), fault.Always(fault.Plan{Held: held}))
	_, err := s.Head(t.Context(), "n")
	require.ErrorIs(t, err, fault.ErrInjected)
	require.Panics(t, func() { _, _ = s.Head(t.Context(), "n") }, "one operation only")
	plan := fault.Always(fault.Plan{Held: fault.NewHeld(nil)})
	require.Panics(t, func() { _, _ = fault.New(newInner(t), fault.Chain(plan, plan)).Head(t.Context(), "n") })

	// A request whose context had ended before it was sent is not under way.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	held = fault.NewHeld(nil)
	_, err = fault.New(newInner(t), fault.Always(fault.Plan{Held: held})).Head(ctx, "n")
	require.ErrorIs(t, err, context.Canceled)
	require.Panics(t, func() { _ = held.Apply(t.Context()) })
}

// sleep waits by the clock of the test's bubble.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newInner(t)
		s := fault.New(inner, fault.Latency(fault.Put, 101*time.Millisecond, sleep))
		start := time.Now()
		_, err := s.Put(t.Context(), "n", []byte("new"), objstore.PutOptions{})
		require.NoError(t, err)
		require.Equal(t, 101*time.Millisecond, time.Since(start))
		_, err = s.Head(t.Context(), "n")
		require.NoError(t, err)
		require.Equal(t, 101*time.Millisecond, time.Since(start), "PUTs only")

		// The context ends on the way there: not applied. On the way back: applied.
		for timeout, want := range map[time.Duration]string{40 * time.Millisecond: "new", 60 * time.Millisecond: "late"} {
			_, err = inner.Put(t.Context(), "n", []byte("new"), objstore.PutOptions{})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			_, err = s.Put(ctx, "n", []byte("late"), objstore.PutOptions{})
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, want, body(t, inner, "n"))
		}

		all := fault.New(inner, fault.Latency(0, time.Second, sleep))
		start = time.Now()
		for _, c := range everyCall {
			_ = c.call(t.Context(), all)
		}
		require.Equal(t, time.Duration(len(everyCall))*time.Second, time.Since(start))
	})
}

func TestChainOrder(t *testing.T) {
	var trace []string
	step := func(name string, err error) func(context.Context) error {
		return func(context.Context) error {
			trace = append(trace, name)
			return err
		}
	}
	mangle := func(name string) func(*objstore.Object) error {
		return func(*objstore.Object) error { return step(name, nil)(context.Background()) }
	}
	outer := fault.Always(fault.Plan{Before: step("outer before", nil), After: step("outer after", nil), Mangle: mangle("outer mangle")})
	inner := fault.Always(fault.Plan{Before: step("inner before", nil), After: step("inner after", nil), Mangle: mangle("inner mangle")})
	s := fault.New(newInner(t), fault.Chain(outer, nil, inner))
	_, err := s.Get(t.Context(), "n", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"outer before", "inner before", "inner mangle", "outer mangle", "inner after", "outer after"}, trace)

	trace = nil
	broken := fault.Always(fault.Plan{Before: step("broken", io.EOF)})
	_, err = fault.New(newInner(t), fault.Chain(broken, outer)).Head(t.Context(), "n")
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []string{"broken"}, trace)

	s = fault.New(newInner(t), fault.Chain(fault.Always(fault.Plan{IgnoreConditions: true}), new(fault.Counter).Hook))
	_, err = s.Put(t.Context(), "n", nil, objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
}

// recorderT is a test that only notes that it failed.
type recorderT struct{ failures []string }

func (*recorderT) Helper() {}
func (r *recorderT) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestCounter(t *testing.T) {
	var all, some fault.Counter
	s := fault.New(newInner(t), fault.Chain(all.Hook, fault.On(func(op fault.Op) bool { return op.Name == "n" }, some.Hook)))
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for _, c := range everyCall {
				_ = c.call(t.Context(), s)
			}
		})
	}
	wg.Wait()
	got := all.Counts()
	require.Equal(t, fault.Counts{Put: 10, Get: 10, Head: 10, List: 10, Delete: 10, Time: 10}, got.Requests())
	require.Equal(t, int64(30), got.BytesPut)
	require.LessOrEqual(t, got.BytesGot, int64(30))
	require.Equal(t, fault.Counts{Put: 10, Get: 10, Head: 10, List: 10, Delete: 10}, some.Take().Requests())
	require.Equal(t, fault.Counts{}, some.Counts())

	all.Take()
	_, err := s.Put(t.Context(), "n", make([]byte, 100), objstore.PutOptions{})
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "n", objstore.GetOptions{Offset: 10, Length: 30})
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "missing", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrNotFound)
	all.Assert(t, fault.Counts{Put: 1, Get: 2, BytesPut: 100, BytesGot: 30})
	all.Assert(t, fault.Counts{})

	rec := &recorderT{}
	_, _ = s.Head(t.Context(), "n")
	all.Assert(rec, fault.Counts{Head: 2})
	require.Len(t, rec.failures, 1)
	require.Contains(t, rec.failures[0], "Head:1")
	all.Assert(rec, fault.Counts{})
	require.Len(t, rec.failures, 1)
}
