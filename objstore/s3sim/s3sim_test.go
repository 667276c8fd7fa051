package s3sim

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/dir"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/objstore/s3"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
	"github.com/annalsdb/annals/objstore/storetest"
)

const ms = time.Millisecond

// noWait is a clock whose waits are over at once.
func noWait(o Options) Options {
	o.Sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	o.Elapsed = func() time.Duration { return 0 }
	return o
}

// fast are latencies that a test can wait for, with parts.
func fast() Options {
	o := Default()
	l := Latency{50 * time.Microsecond, 500 * time.Microsecond}
	o.Put, o.Get, o.Head, o.List, o.Delete = l, l, l, l, l
	o.Bandwidth = 10 << 30
	o.PartSize = 5 << 20
	return o
}

// constant are latencies of 10, 20, 30, ... ms that do not vary, 1 MB/s, and parts of 100 KB.
func constant(seed uint64) Options {
	o := Default()
	for i, l := range []*Latency{&o.Put, &o.Get, &o.Head, &o.List, &o.Delete} {
		d := time.Duration(i+1) * 10 * ms
		*l = Latency{d, d}
	}
	o.Bandwidth, o.PartSize, o.PartConcurrency, o.Seed = 1_000_000, 100_000, 2, seed
	return o
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]Options{"real time": fast(), "no waits": noWait(Default())} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(*testing.T) objstore.Store { return New(mem.New(mem.Options{}), o) })
		})
	}
}

// requireTook fails unless f took d, but for the nanoseconds that are lost to roundings.
func requireTook(t *testing.T, d time.Duration, f func(), what ...any) {
	t.Helper()
	began := time.Now()
	f()
	require.InDelta(t, d, time.Since(began), 100, what...)
}

// simulated runs a test with a store of constant latencies that holds "n", 50,000 bytes, where
// time is simulated.
func simulated(t *testing.T, f func(t *testing.T, s *Store, inner *mem.Store)) {
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New(mem.Options{})
		_, err := inner.Put(t.Context(), "n", make([]byte, 50_000), objstore.PutOptions{})
		require.NoError(t, err)
		f(t, New(inner, constant(1)), inner)
	})
}

// Everything takes its latency, answers without a body too, and bodies add what their bytes take.
func TestLatencies(t *testing.T) {
	simulated(t, func(t *testing.T, s *Store, _ *mem.Store) {
		ctx := t.Context()
		put := func(size int, o objstore.PutOptions) error {
			_, err := s.Put(ctx, "p", make([]byte, size), o)
			return err
		}
		get := func(name string, o objstore.GetOptions) error {
			_, err := s.Get(ctx, name, o)
			return err
		}
		attrs, err := s.Head(ctx, "n")
		require.NoError(t, err)
		for _, c := range []struct {
			what string
			took time.Duration
			call func() error
			err  error
		}{
			{"put", 10 * ms, func() error { return put(0, objstore.PutOptions{}) }, nil},
			{"put with a body", (10 + 70) * ms, func() error { return put(70_000, objstore.PutOptions{}) }, nil},
			// S3 refuses a condition when it has the body.
			{"refused put", (10 + 70) * ms, func() error { return put(70_000, objstore.PutOptions{IfAbsent: true}) }, objstore.ErrPrecondition},
			{"get", (20 + 50) * ms, func() error { return get("n", objstore.GetOptions{}) }, nil},
			{"get a range", (20 + 5) * ms, func() error { return get("n", objstore.GetOptions{Offset: 10, Length: 5000}) }, nil},
			{"get what is not there", 20 * ms, func() error { return get("x", objstore.GetOptions{}) }, objstore.ErrNotFound},
			{"get what is unchanged", 20 * ms, func() error { return get("n", objstore.GetOptions{IfNoneMatch: attrs.ETag}) }, objstore.ErrNotModified},
			{"get what is too large", 20 * ms, func() error { return get("n", objstore.GetOptions{MaxBytes: 1}) }, objstore.ErrTooLarge},
			{"head", 30 * ms, func() error { _, err := s.Head(ctx, "n"); return err }, nil},
			{"list", 40 * ms, func() error { _, err := s.List(ctx, "", "", 0); return err }, nil},
			{"time", 40 * ms, func() error { _, err := s.ServerTime(ctx); return err }, nil},
			{"uploads", 40 * ms, func() error { _, err := s.AbortUploads(ctx, time.Now()); return err }, nil},
			{"delete", 50 * ms, func() error { return s.Delete(ctx, []string{"a", "b"}) }, nil},
			{"delete nothing", 0, func() error { return s.Delete(ctx, nil) }, nil},
			{"invalid name", 0, func() error { return get("/", objstore.GetOptions{}) }, objstore.ErrName},
			{"delete an invalid name", 0, func() error { return s.Delete(ctx, []string{"a", "/"}) }, objstore.ErrName},
			// One request of 10 ms begins, five parts of 10 + 100 ms in two lanes, one request ends.
			{"parts", (10 + 3*110 + 10) * ms, func() error { return put(500_000, objstore.PutOptions{}) }, nil},
			{"a short last part", (10 + 2*110 + 10) * ms, func() error { return put(300_001, objstore.PutOptions{}) }, nil},
			{"one part", (10 + 500) * ms, func() error { return put(500_000, objstore.PutOptions{SinglePart: true}) }, nil},
			{"just not in parts", (10 + 100) * ms, func() error { return put(100_000, objstore.PutOptions{}) }, nil},
		} {
			requireTook(t, c.took, func() { require.ErrorIs(t, c.call(), c.err, c.what) }, c.what)
		}
	})
}

// A request that travels has not been applied yet, one whose answer travels has.
func TestHalfOfTheLatencyIsTheWayBack(t *testing.T) {
	simulated(t, func(t *testing.T, s *Store, inner *mem.Store) {
		began := time.Now()
		done := make(chan time.Duration, 1)
		go func() {
			_, _ = s.Put(t.Context(), "p", make([]byte, 70_000), objstore.PutOptions{})
			done <- time.Since(began)
		}()
		time.Sleep((5+70)*ms - time.Microsecond)
		require.Equal(t, 1, inner.Len(), "the body is on its way")
		time.Sleep(2 * time.Microsecond)
		synctest.Wait()
		require.Equal(t, 2, inner.Len(), "the answer is on its way")
		require.Empty(t, done)
		require.InDelta(t, 80*ms, <-done, 100)
	})
}

// Of two conditional writes the one that arrives first succeeds, which may have been sent later.
func TestWhoArrivesFirst(t *testing.T) {
	simulated(t, func(t *testing.T, s *Store, _ *mem.Store) {
		results := make(chan error, 1)
		go func() {
			_, err := s.Put(t.Context(), "c", make([]byte, 50_000), objstore.PutOptions{IfAbsent: true})
			results <- err
		}()
		synctest.Wait() // it is on its way
		_, err := s.Put(t.Context(), "c", []byte("small"), objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)
		require.ErrorIs(t, <-results, objstore.ErrPrecondition)
		obj, err := s.Get(t.Context(), "c", objstore.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "small", string(obj.Body))
	})
}

// A call returns when its context ends: without effect on the way there, with it on the way back.
func TestContextEnds(t *testing.T) {
	for _, c := range []struct {
		after   time.Duration
		objects int
		sent    uint64
	}{{0, 1, 0}, {4 * ms, 1, 1}, {6 * ms, 2, 1}} {
		simulated(t, func(t *testing.T, s *Store, inner *mem.Store) {
			ctx, cancel := context.WithTimeout(t.Context(), c.after)
			defer cancel()
			requireTook(t, c.after, func() {
				_, err := s.Put(ctx, "p", nil, objstore.PutOptions{})
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "put p: ")
			})
			require.Equal(t, c.objects, inner.Len())
			require.Equal(t, c.sent, sent(s)["PutObject none"])
		})
	}
	simulated(t, func(t *testing.T, s *Store, _ *mem.Store) {
		for what, call := range map[string]func(context.Context) error{
			"get":              func(ctx context.Context) error { _, err := s.Get(ctx, "n", objstore.GetOptions{}); return err },
			"head":             func(ctx context.Context) error { _, err := s.Head(ctx, "n"); return err },
			"list":             func(ctx context.Context) error { _, err := s.List(ctx, "", "", 0); return err },
			"delete":           func(ctx context.Context) error { return s.Delete(ctx, []string{"x"}) },
			"ask for the time": func(ctx context.Context) error { _, err := s.ServerTime(ctx); return err },
			"list uploads":     func(ctx context.Context) error { _, err := s.AbortUploads(ctx, time.Now()); return err },
		} {
			for _, after := range []time.Duration{0, 6 * ms} {
				ctx, cancel := context.WithTimeout(t.Context(), after)
				requireTook(t, after, func() {
					err := call(ctx)
					require.ErrorIs(t, err, context.DeadlineExceeded, what)
					require.ErrorContains(t, err, what)
				}, what)
				cancel()
			}
		}
	})
}

// The time of the inner store is part of the latency, unless it is longer.
func TestInnerTimeIsNotAdded(t *testing.T) {
	for _, c := range []struct{ inner, want time.Duration }{{8 * ms, 20 * ms}, {15 * ms, 25 * ms}, {100 * ms, 110 * ms}} {
		synctest.Test(t, func(t *testing.T) {
			slow := fault.New(mem.New(mem.Options{}), func(context.Context, fault.Op) fault.Plan {
				return fault.Plan{After: func(context.Context) error { time.Sleep(c.inner); return nil }}
			})
			s := New(slow, constant(1))
			requireTook(t, c.want, func() {
				_, err := s.Get(t.Context(), "n", objstore.GetOptions{})
				require.ErrorIs(t, err, objstore.ErrNotFound)
			})
		})
	}
}

// Requests do not wait for one another.
func TestManyAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, s *Store, _ *mem.Store) {
		const requests = 1000
		errs := make(chan error, requests)
		requireTook(t, 70*ms, func() {
			for range requests {
				go func() {
					_, err := s.Get(t.Context(), "n", objstore.GetOptions{})
					errs <- err
				}()
			}
			for range requests {
				require.NoError(t, <-errs)
			}
		})
	})
}

// sent returns the counts that are not zero, as "Operation answer".
func sent(s *Store) map[string]uint64 {
	counts := map[string]uint64{}
	for _, r := range s.Sent() {
		for a, n := range r.Count {
			if n > 0 {
				counts[fmt.Sprintf("%s %v", r.Operation, objstore.Answer(a))] = n
			}
		}
	}
	return counts
}

func TestSent(t *testing.T) {
	broken := errors.New("broken")
	var fail error
	inner := fault.New(mem.New(mem.Options{}), func(context.Context, fault.Op) fault.Plan {
		err := fail
		return fault.Plan{Before: func(context.Context) error { return err }}
	})
	s := New(inner, noWait(constant(1)))
	ctx := t.Context()
	_, _ = s.Put(ctx, "a", []byte("x"), objstore.PutOptions{})
	_, _ = s.Put(ctx, "a", nil, objstore.PutOptions{IfAbsent: true})
	_, _ = s.Put(ctx, "b", make([]byte, 250_000), objstore.PutOptions{})
	_, _ = s.Put(ctx, "b", make([]byte, 250_000), objstore.PutOptions{IfAbsent: true})
	obj, _ := s.Get(ctx, "a", objstore.GetOptions{})
	_, _ = s.Get(ctx, "a", objstore.GetOptions{IfNoneMatch: obj.ETag})
	_, _ = s.Get(ctx, "x", objstore.GetOptions{})
	_, _ = s.Head(ctx, "a")
	_, _ = s.List(ctx, "", "", 0)
	_, _ = s.ServerTime(ctx)
	_, _ = s.AbortUploads(ctx, time.Now())
	_ = s.Delete(ctx, []string{"a", "b", "c"})
	fail = broken
	_, err := s.Head(ctx, "a")
	require.ErrorIs(t, err, broken)
	require.Equal(t, map[string]uint64{
		"PutObject ok": 1, "PutObject refused": 1,
		"CreateMultipartUpload ok": 2, "UploadPart ok": 6, "CompleteMultipartUpload ok": 1, "CompleteMultipartUpload refused": 1, "AbortMultipartUpload ok": 1,
		"GetObject ok": 2, "GetObject refused": 1, "HeadObject ok": 1, "HeadObject failed": 1,
		"ListObjectsV2 ok": 2, "ListMultipartUploads ok": 1, "DeleteObjects ok": 1,
	}, sent(s))
	require.Equal(t, s.Sent(), metered.New(s, metered.Options{}).Stats().Sent)
}

// sending is a store that counts what it sends.
type sending struct {
	objstore.Store
	list []objstore.SentRequests
}

func (s sending) Sent() []objstore.SentRequests { return s.list }

// What the inner store sends counts, if it knows.
func TestSentOfTheInnerStore(t *testing.T) {
	list := []objstore.SentRequests{{Operation: "PutObject", Count: [objstore.NumAnswers]uint64{1}}}
	require.Equal(t, list, New(sending{list: list}, Default()).Sent())
}

// Whoever looks for more than objstore.Store in a store must find it in this one too.
func TestOptionalMethodsAreKept(t *testing.T) {
	ofMem := map[string]bool{"Clone": true, "Len": true, "Bytes": true}
	ours := reflect.TypeFor[*Store]()
	for _, inner := range []reflect.Type{reflect.TypeFor[*s3.Store](), reflect.TypeFor[*dir.Store](), reflect.TypeFor[*mem.Store]()} {
		for i := range inner.NumMethod() {
			m := inner.Method(i)
			if _, kept := ours.MethodByName(m.Name); !kept && !ofMem[m.Name] {
				t.Errorf("%v.%s", inner, m.Name)
			}
		}
	}
	require.Equal(t, "mem:", New(mem.New(mem.Options{}), Default()).String())
	n, err := New(uploads{mem.New(mem.Options{})}, noWait(Default())).AbortUploads(t.Context(), time.Unix(7, 0))
	require.NoError(t, err)
	require.Equal(t, 7, n)
}

type uploads struct{ objstore.Store }

func (uploads) AbortUploads(_ context.Context, before time.Time) (int, error) {
	return int(before.Unix()), nil
}

func TestValidate(t *testing.T) {
	require.NoError(t, Default().Validate())
	o := Default()
	o.Put = Latency{0, time.Second}
	o.Get = Latency{time.Second, time.Second - 1}
	o.Head = Latency{-1, -2}
	o.List = Latency{time.Second, MaxLatency + 1}
	o.Bandwidth, o.PartSize, o.PartConcurrency = 0, -1, 65
	o.Elapsed = func() time.Duration { return 0 }
	err := o.Validate()
	for _, want := range []string{
		"put latency: p50 is 0s, want more than 0",
		"get latency: p99 (999.999999ms) is below p50 (1s)",
		"head latency: p50 is -1ns, want more than 0",
		"head latency: p99 (-2ns) is below p50 (-1ns)",
		"list latency: p99 is 1m0.000000001s, the limit is 1m0s",
		"bandwidth: 0 bytes a second, want at least 1000",
		"part size: -1 bytes, want more than 0",
		"part concurrency: 65 is not in [1, 64]",
		"sleep and elapsed: want both or neither, they are one clock",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "delete")
	require.Panics(t, func() { New(mem.New(mem.Options{}), o) })
}

// What is counted as sent is what package s3 sends for the same calls.
func TestSentAsPackageS3(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	srv := s3fake.New(t)
	real, err := s3.Open(t.Context(), s3.Options{
		Bucket: s3fake.Bucket, Endpoint: srv.URL, Region: "us-east-1", PathStyle: true,
		Credentials: &s3.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"},
	})
	require.NoError(t, err)
	simulated := New(mem.New(mem.Options{}), noWait(Default()))
	require.Equal(t, counted(t, real), counted(t, simulated))
}

// counted makes calls of all kinds, and returns what was sent for them, as "Operation answer".
func counted(t *testing.T, s objstore.Sender) map[string]uint64 {
	ctx := t.Context()
	before := s.Sent()             // opening a store sends something too
	body := make([]byte, 16<<20+1) // in parts of 16 MiB
	_, err := s.Put(ctx, "whole", body[1:], objstore.PutOptions{})
	require.NoError(t, err)
	for _, size := range []int{0, len(body)} {
		for i, o := range []objstore.PutOptions{{}, {SinglePart: true}, {IfAbsent: true}} {
			_, err := s.Put(ctx, fmt.Sprint("n", size), body[:size], o)
			if i < 2 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, objstore.ErrPrecondition)
			}
		}
	}
	obj, err := s.Get(ctx, "n0", objstore.GetOptions{})
	require.NoError(t, err)
	_, err = s.Get(ctx, "n0", objstore.GetOptions{IfNoneMatch: obj.ETag})
	require.ErrorIs(t, err, objstore.ErrNotModified)
	_, err = s.Get(ctx, "x", objstore.GetOptions{})
	require.ErrorIs(t, err, objstore.ErrNotFound)
	_, err = s.Get(ctx, "whole", objstore.GetOptions{MaxBytes: 1})
	require.ErrorIs(t, err, objstore.ErrTooLarge)
	_, err = s.Head(ctx, "n0")
	require.NoError(t, err)
	_, err = s.List(ctx, "n", "", 0)
	require.NoError(t, err)
	_, err = s.ServerTime(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Delete(ctx, []string{"n0", "x"}))
	_, err = s.(interface {
		AbortUploads(context.Context, time.Time) (int, error)
	}).AbortUploads(ctx, time.Now())
	require.NoError(t, err)

	counts := map[string]uint64{}
	for i, r := range s.Sent() {
		for a, n := range r.Count {
			if n -= before[i].Count[a]; n > 0 {
				counts[fmt.Sprintf("%s %v", r.Operation, objstore.Answer(a))] = n
			}
		}
	}
	return counts
}

// A body that would need too many parts has larger ones, as in package s3.
func TestMostParts(t *testing.T) {
	s := New(mem.New(mem.Options{}), noWait(constant(1)))
	r := s.putRequest("n", 100_000*maxParts, objstore.PutOptions{})
	require.Equal(t, maxParts, r.parts)
	r = s.putRequest("n", 100_000*maxParts+1, objstore.PutOptions{})
	require.LessOrEqual(t, r.parts, maxParts)
	require.Greater(t, r.parts, maxParts-2)
}

// What the wrapper costs a call, beside the time that it waits.
func BenchmarkGet(b *testing.B) {
	for name, o := range map[string]Options{"no waits": noWait(Default()), "waits of 10us": brief()} {
		b.Run(name, func(b *testing.B) {
			inner := mem.New(mem.Options{})
			if _, err := inner.Put(b.Context(), "n", []byte("v"), objstore.PutOptions{}); err != nil {
				b.Fatal(err)
			}
			s := New(inner, o)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = s.Get(context.Background(), "n", objstore.GetOptions{})
				}
			})
		})
	}
}

func brief() Options {
	o := Default()
	o.Get = Latency{10 * time.Microsecond, 10 * time.Microsecond}
	return o
}
