package metered

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/dir"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/s3"
	"github.com/annalsdb/annals/objstore/storetest"
	"github.com/annalsdb/annals/trace"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store { return New(mem.New(mem.Options{}), Options{}) })
}

// scripted is a store that answers every call with the same error and body.
type scripted struct {
	objstore.Store // nil: nothing else may be called
	err            error
	body           []byte
	aborted        int
}

func (s *scripted) String() string { return "scripted:" }
func (s *scripted) Put(context.Context, string, []byte, objstore.PutOptions) (objstore.PutResult, error) {
	return objstore.PutResult{ETag: "e"}, s.err
}
func (s *scripted) Get(context.Context, string, objstore.GetOptions) (objstore.Object, error) {
	return objstore.Object{Body: s.body}, s.err
}
func (s *scripted) Head(context.Context, string) (objstore.Attributes, error) {
	return objstore.Attributes{Size: 7}, s.err
}
func (s *scripted) List(context.Context, string, string, int) (objstore.Page, error) {
	return objstore.Page{More: true}, s.err
}
func (s *scripted) Delete(context.Context, []string) error { return s.err }
func (s *scripted) ServerTime(context.Context) (time.Time, error) {
	return time.Unix(1, 0), s.err
}
func (s *scripted) AbortUploads(context.Context, time.Time) (int, error) { return s.aborted, s.err }

// calls are one call of each operation.
var calls = [NumOps]func(context.Context, *Store) error{
	Put: func(ctx context.Context, s *Store) error {
		_, err := s.Put(ctx, "n", []byte("four"), objstore.PutOptions{})
		return err
	},
	Get: func(ctx context.Context, s *Store) error {
		_, err := s.Get(ctx, "n", objstore.GetOptions{})
		return err
	},
	Head: func(ctx context.Context, s *Store) error { _, err := s.Head(ctx, "n"); return err },
	List: func(ctx context.Context, s *Store) error { _, err := s.List(ctx, "", "", 0); return err },
	Delete: func(ctx context.Context, s *Store) error {
		return s.Delete(ctx, []string{"a", "b", "c"})
	},
	Time:         func(ctx context.Context, s *Store) error { _, err := s.ServerTime(ctx); return err },
	AbortUploads: func(ctx context.Context, s *Store) error { _, err := s.AbortUploads(ctx, time.Time{}); return err },
}

// nonzero returns the counts of calls that are not zero, as "op result".
func nonzero(st Stats) map[string]uint64 {
	counts := map[string]uint64{}
	for op := range st.Ops {
		for r, n := range st.Ops[op].Results {
			if n > 0 {
				counts[fmt.Sprintf("%v %v", Op(op), Result(r))] = n
			}
		}
	}
	return counts
}

// requireConsistent fails unless each call is in one bucket.
func requireConsistent(t *testing.T, st Stats) {
	t.Helper()
	for op := range st.Ops {
		var timed uint64
		for _, n := range st.Ops[op].Buckets {
			timed += n
		}
		require.Equal(t, st.Ops[op].Calls(), timed, Op(op))
	}
}

func TestResults(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	late, stop := context.WithDeadline(t.Context(), time.Unix(1, 0))
	cancel()
	stop()
	timer, expire := context.WithCancelCause(t.Context())
	expire(context.DeadlineExceeded)
	named, stopNamed := context.WithDeadlineCause(t.Context(), time.Unix(1, 0), errors.New("no answer for 1s"))
	defer stopNamed()
	wrap := func(err error) error { return fmt.Errorf("get n: gave up: %w (and more)", err) }
	tests := []struct {
		name string
		ctx  context.Context
		err  error
		want Result
	}{
		{"ok", t.Context(), nil, OK},
		{"ok though the caller has gone", gone, nil, OK},
		{"not found", t.Context(), wrap(objstore.ErrNotFound), NotFound},
		{"not modified", t.Context(), wrap(objstore.ErrNotModified), NotModified},
		{"precondition", t.Context(), wrap(objstore.ErrPrecondition), Precondition},
		{"conflict", t.Context(), wrap(objstore.ErrConflict), Conflict},
		{"range", t.Context(), wrap(objstore.ErrRange), Range},
		{"too large", t.Context(), wrap(objstore.ErrTooLarge), Range},
		{"denied", t.Context(), wrap(objstore.ErrDenied), Denied},
		{"no credentials", t.Context(), wrap(objstore.ErrCredentials), Credentials},
		{"no credentials, tried again", t.Context(), fmt.Errorf("%w: %w", objstore.ErrUnavailable, objstore.ErrCredentials), Credentials},
		{"no bucket", t.Context(), wrap(objstore.ErrNoBucket), NoBucket},
		{"full", t.Context(), wrap(objstore.ErrFull), Full},
		{"unavailable", t.Context(), wrap(objstore.ErrUnavailable), Unavailable},
		{"canceled", gone, wrap(context.Canceled), Canceled},
		{"deadline", late, wrap(context.DeadlineExceeded), Timeout},
		{"deadline by a timer", timer, wrap(context.Canceled), Timeout},
		{"deadline with a name", named, wrap(context.DeadlineExceeded), Timeout},
		{"an answer to a caller who has gone", gone, wrap(objstore.ErrNotFound), NotFound},
		{"a context inside of the store", t.Context(), wrap(context.Canceled), Failed},
		{"a deadline inside of the store", gone, wrap(context.DeadlineExceeded), Failed},
		{"another", t.Context(), errors.New("disk full"), Failed},
		{"some names denied", t.Context(), &objstore.DeleteError{Failed: []objstore.NameError{{Name: "a", Err: errors.New("x")}, {Name: "b", Err: objstore.ErrDenied}}}, Denied},
		{"some names failed", t.Context(), &objstore.DeleteError{Failed: []objstore.NameError{{Name: "a", Err: errors.New("x")}}}, Failed},
	}
	seen := map[Result]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.want, resultOf(test.ctx, test.err)) })
		seen[test.want] = true
	}
	require.Len(t, seen, NumResults)
}

// Names are labels of metrics: they must differ, and stay.
func TestNames(t *testing.T) {
	var ops, results []string
	for op := range Op(NumOps) {
		ops = append(ops, op.String())
	}
	for r := range Result(NumResults) {
		results = append(results, r.String())
	}
	require.Equal(t, []string{"put", "get", "head", "list", "delete", "time", "abort_uploads"}, ops)
	require.Equal(t, []string{"ok", "not_found", "not_modified", "precondition", "conflict", "range",
		"denied", "credentials", "no_bucket", "full", "unavailable", "canceled", "timeout", "error"}, results)
	require.Equal(t, "Op(7)", Op(NumOps).String())
	require.Equal(t, "Result(14)", Result(NumResults).String())
}

// Every operation counts once, under its own name, and passes on what it was answered.
func TestEveryOperation(t *testing.T) {
	for op := range Op(NumOps) {
		for _, test := range []struct {
			err    error
			result Result
		}{{nil, OK}, {objstore.ErrDenied, Denied}} {
			inner := &scripted{err: test.err, body: []byte("seven b"), aborted: 3}
			s := New(inner, Options{})
			require.Equal(t, test.err, calls[op](t.Context(), s))
			st := s.Stats()
			require.Equal(t, map[string]uint64{fmt.Sprintf("%v %v", op, test.result): 1}, nonzero(st))
			requireConsistent(t, st)
			bytes := map[Op]uint64{}
			if test.err == nil {
				bytes[Put], bytes[Get] = 4, 7
			}
			require.Equal(t, bytes[op], st.Ops[op].Bytes)
			require.Nil(t, st.Sent)
		}
	}
}

// What sends nothing does not count.
func TestWhatSendsNothing(t *testing.T) {
	s := New(mem.New(mem.Options{}), Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for op := range Op(NumOps) {
		err := calls[op](ended, s)
		if op == AbortUploads {
			require.NoError(t, err, "a store in memory has no uploads")
			require.NoError(t, calls[op](t.Context(), s))
		} else {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	_, err := s.Put(t.Context(), "../n", nil, objstore.PutOptions{})
	require.ErrorIs(t, err, objstore.ErrName)
	_, err = s.Get(t.Context(), "", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrName)
	require.ErrorIs(t, s.Delete(t.Context(), []string{"n", ""}), objstore.ErrName)
	require.NoError(t, s.Delete(t.Context(), nil))
	require.Panics(t, func() {
		_, _ = s.Put(t.Context(), "n", nil, objstore.PutOptions{IfAbsent: true, IfMatch: "e"})
	})
	require.Equal(t, Stats{}, withoutAges(s.Stats()))
}

func TestDeletedNames(t *testing.T) {
	inner := &scripted{}
	s := New(inner, Options{})
	total := 0
	for _, test := range []struct {
		err  error
		gone int
	}{
		{nil, 3},
		{&objstore.DeleteError{Failed: make([]objstore.NameError, 1)}, 2},
		{fmt.Errorf("delete: %w", &objstore.DeleteError{Failed: make([]objstore.NameError, 3)}), 0},
		{&objstore.DeleteError{Failed: make([]objstore.NameError, 9)}, 0},
		{errors.New("any of them may be gone"), 0},
		{objstore.ErrName, 0},
	} {
		inner.err = test.err
		require.Equal(t, test.err, s.Delete(t.Context(), []string{"a", "b", "c"}))
		total += test.gone
		require.Equal(t, uint64(total), s.Stats().DeletedNames)
	}
	require.Equal(t, uint64(5), s.Stats().Ops[Delete].Calls())
}

// Times are those of the clock that was given.
func TestTimes(t *testing.T) {
	var now, step time.Duration
	s := New(&scripted{}, Options{Elapsed: func() time.Duration { now += step; return now }})
	var sum time.Duration
	want := [NumBuckets]uint64{}
	observe := func(took time.Duration, bucket int) {
		step = took
		require.NoError(t, calls[Get](t.Context(), s))
		sum += max(0, took)
		want[bucket]++
		require.Equal(t, want, s.Stats().Ops[Get].Buckets, took)
		require.Equal(t, sum, s.Stats().Ops[Get].Took)
	}
	observe(0, 0)
	observe(-time.Second, 0) // a clock that goes back takes nothing away
	last := time.Duration(0)
	for i, bound := range Bounds() {
		require.Greater(t, bound, last)
		last = bound
		observe(bound, i)
		observe(bound+1, i+1)
	}
	observe(time.Hour, NumBuckets-1)
	requireConsistent(t, s.Stats())
	require.Zero(t, withoutAges(s.Stats()).Ops[Put])
}

// withoutAges returns what was counted.
func withoutAges(st Stats) Stats {
	for op := range st.Ops {
		st.Ops[op].AnswerAge = 0
	}
	return st
}

// Of answers that are no failure of the store the last one counts.
func TestAnswerAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &scripted{}
		s := New(inner, Options{})
		ages := func() [3]time.Duration {
			o := s.Stats().Ops
			return [3]time.Duration{o[Put].AnswerAge, o[Get].AnswerAge, o[List].AnswerAge}
		}
		time.Sleep(time.Minute)
		require.Equal(t, [3]time.Duration{time.Minute, time.Minute, time.Minute}, ages(), "since New")
		require.NoError(t, calls[Put](t.Context(), s))
		inner.err = objstore.ErrNotModified
		require.Error(t, calls[Get](t.Context(), s))
		inner.err = objstore.ErrDenied
		time.Sleep(time.Second)
		for _, err := range []error{objstore.ErrDenied, objstore.ErrUnavailable, errors.New("disk full")} {
			inner.err = err
			require.Error(t, calls[Put](t.Context(), s))
		}
		require.Equal(t, [3]time.Duration{time.Second, time.Second, 61 * time.Second}, ages())
	})
}

// noted is what a Tracer was told of a call.
type noted struct{ told []string }

func (n *noted) note(format string, args ...any) {
	n.told = append(n.told, fmt.Sprintf(format, args...))
}
func (n *noted) Begin(ctx context.Context, op trace.Op) (context.Context, trace.Recorder) {
	n.note("%v", op)
	return ctx, n
}
func (n *noted) Phase(string)                 {}
func (n *noted) Key(string, []byte)           {}
func (n *noted) Int(name string, value int64) { n.note("%s=%d", name, value) }
func (n *noted) Text(name, value string)      { n.note("%s=%s", name, value) }
func (n *noted) End(err error)                { n.note("end %v", err) }

// Tracers are told of the kind of a name, and not of answers as if they were failures.
func TestTracer(t *testing.T) {
	n, inner := &noted{}, &scripted{body: []byte("seven b")}
	s := New(inner, Options{Tracer: n, Kind: func(name string) string { return "kind of " + name }})
	require.NoError(t, calls[Get](t.Context(), s))
	inner.err = objstore.ErrNotFound
	require.Error(t, calls[Get](t.Context(), s))
	inner.err = objstore.ErrDenied
	require.Error(t, calls[Time](t.Context(), s))
	require.Equal(t, []string{
		"store_get", "object=kind of n", "bytes=7", "result=ok", "end <nil>",
		"store_get", "object=kind of n", "bytes=0", "result=not_found", "end <nil>",
		"store_time", "bytes=0", "result=denied", "end " + objstore.ErrDenied.Error(),
	}, n.told)
	for op, told := range traced {
		n.told, inner.err = nil, nil
		require.NoError(t, calls[op](t.Context(), s))
		require.Equal(t, told.String(), n.told[0])
		require.Equal(t, "store_"+Op(op).String(), n.told[0])
	}
}

// The default clock is exact in a simulation.
func TestSimulatedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := fault.New(mem.New(mem.Options{}), func(context.Context, fault.Op) fault.Plan {
			return fault.Plan{Before: func(ctx context.Context) error {
				select {
				case <-time.After(30 * time.Millisecond):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
		})
		s := New(slow, Options{})
		_, err := s.Put(t.Context(), "n", []byte("v"), objstore.PutOptions{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = s.Get(ctx, "n", objstore.GetOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		st := s.Stats()
		require.Equal(t, map[string]uint64{"put ok": 1, "get timeout": 1}, nonzero(st))
		require.Equal(t, 30*time.Millisecond, st.Ops[Put].Took)
		require.Equal(t, 10*time.Millisecond, st.Ops[Get].Took)
		require.Equal(t, uint64(1), st.Ops[Put].Buckets[6])
	})
}

// Whatever is asked for in whatever order, the counts are those of the store behind.
func TestCountsAgainstTheStoreBehind(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		asked := map[Op]uint64{}
		kinds := map[fault.Kind]Op{fault.Put: Put, fault.Get: Get, fault.Head: Head, fault.List: List, fault.Delete: Delete, fault.Time: Time}
		inner := fault.New(mem.New(mem.Options{}), func(_ context.Context, op fault.Op) fault.Plan {
			asked[kinds[op.Kind]]++
			if random.IntN(4) > 0 {
				return fault.Plan{}
			}
			err := []error{objstore.ErrUnavailable, objstore.ErrConflict, fault.ErrInjected}[random.IntN(3)]
			fail := func(context.Context) error { return err }
			if random.IntN(2) == 0 {
				return fault.Plan{Before: fail}
			}
			return fault.Plan{After: fail}
		})
		s := New(inner, Options{})
		results := map[Op]map[bool]uint64{} // by whether it succeeded
		for range 200 {
			op := Op(random.IntN(int(AbortUploads)))
			if results[op] == nil {
				results[op] = map[bool]uint64{}
			}
			results[op][calls[op](t.Context(), s) == nil]++
		}
		st := s.Stats()
		requireConsistent(t, st)
		for op := range Op(NumOps) {
			o := &st.Ops[op]
			require.Equal(t, asked[op], o.Calls(), "seed %d, %v", seed, op)
			require.Equal(t, results[op][true], o.Results[OK], "seed %d, %v", seed, op)
		}
		require.Equal(t, 4*results[Put][true], st.Ops[Put].Bytes, "seed %d", seed)
		require.Equal(t, 4*results[Get][true], st.Ops[Get].Bytes, "seed %d", seed)
		require.Equal(t, 3*results[Delete][true], st.DeletedNames, "seed %d", seed)
	}
}

func TestManyGoroutines(t *testing.T) {
	const goroutines, rounds = 16, 200
	s := New(mem.New(mem.Options{}), Options{})
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range rounds {
				for op := range Op(NumOps) {
					_ = calls[op](t.Context(), s) // some find nothing
				}
				_ = s.Stats()
			}
		})
	}
	all.Wait()
	st := s.Stats()
	requireConsistent(t, st)
	for op := range AbortUploads {
		require.Equal(t, uint64(goroutines*rounds), st.Ops[op].Calls(), op)
	}
	require.Equal(t, uint64(4*goroutines*rounds), st.Ops[Put].Bytes)
	require.Equal(t, uint64(3*goroutines*rounds), st.DeletedNames)
}

// sending is a store that counts what it sends.
type sending struct {
	objstore.Store
	sent []objstore.SentRequests
}

func (s *sending) Sent() []objstore.SentRequests { return s.sent }

func TestSent(t *testing.T) {
	inner := &sending{Store: mem.New(mem.Options{}), sent: []objstore.SentRequests{{Operation: "PutObject", Count: [objstore.NumAnswers]uint64{1, 2, 3, 4, 5}}}}
	require.Equal(t, inner.sent, New(inner, Options{}).Stats().Sent)
}

// Whoever looks for more than objstore.Store in a store must find it in the wrapper
// too: an exported method that a store has, and the wrapper has not, is noticed here.
func TestOptionalMethodsAreKept(t *testing.T) {
	elsewhere := map[string]string{
		"Sent":  "Stats has it",
		"Clone": "of mem, for tests", "Len": "of mem, for tests", "Bytes": "of mem, for tests",
	}
	ours := reflect.TypeFor[*Store]()
	for _, inner := range []reflect.Type{reflect.TypeFor[*s3.Store](), reflect.TypeFor[*dir.Store](), reflect.TypeFor[*mem.Store]()} {
		for i := range inner.NumMethod() {
			m := inner.Method(i)
			if elsewhere[m.Name] != "" {
				continue
			}
			kept, ok := ours.MethodByName(m.Name)
			require.True(t, ok, "%v.%s", inner, m.Name)
			require.Equal(t, m.Type.NumIn(), kept.Type.NumIn())
			for j := 1; j < m.Type.NumIn(); j++ {
				require.Equal(t, m.Type.In(j), kept.Type.In(j), "%v.%s", inner, m.Name)
			}
		}
	}
	s := New(&scripted{aborted: 3}, Options{})
	n, err := s.AbortUploads(t.Context(), time.Time{})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, "scripted:", s.String())
}

// Counting allocates nothing, in success and in the failures that are normal.
func TestNoAllocations(t *testing.T) {
	names := []string{"a", "b"}
	for _, err := range []error{nil, objstore.ErrNotFound, objstore.ErrPrecondition} {
		s := New(&scripted{err: err}, Options{})
		attributed, _ := Attribute(t.Context())
		for _, ctx := range []context.Context{t.Context(), attributed} {
			require.Zero(t, testing.AllocsPerRun(100, func() {
				_, _ = s.Put(ctx, "n", nil, objstore.PutOptions{})
				_, _ = s.Get(ctx, "n", objstore.GetOptions{})
				_, _ = s.Head(ctx, "n")
				_, _ = s.List(ctx, "", "", 0)
				_, _ = s.ServerTime(ctx)
				if err == nil {
					_ = s.Delete(ctx, names)
				}
			}), "%v", err)
		}
	}
}

// What the wrapper adds to a call: the inner store does nothing.
func BenchmarkGet(b *testing.B) {
	inner := &scripted{body: make([]byte, 1)}
	for _, bench := range []struct {
		name  string
		store objstore.Store
	}{{"plain", inner}, {"metered", New(inner, Options{})}, {"metered not found", New(&scripted{err: objstore.ErrNotFound}, Options{})}} {
		b.Run(bench.name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				_, _ = bench.store.Get(ctx, "n", objstore.GetOptions{})
			}
		})
	}
}

func BenchmarkGetParallel(b *testing.B) {
	s := New(&scripted{body: make([]byte, 1)}, Options{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		for pb.Next() {
			_, _ = s.Get(ctx, "n", objstore.GetOptions{})
		}
	})
}
