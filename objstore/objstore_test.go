package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

func TestValidName(t *testing.T) {
	for name, valid := range map[string]bool{
		"a": true, "a/b": true, "...": true, "a..b": true, ".a": true, "a!~": true,
		strings.Repeat("x", objstore.MaxNameBytes):   true,
		strings.Repeat("x", objstore.MaxNameBytes+1): false,
		"": false, "/": false, "a/": false, "/a": false, "a//b": false, ".": false, "..": false, "a/./b": false, "a/..": false,
		" ": false, "a\tb": false, "\x7f": false, "é": false, `\`: false,
	} {
		err := objstore.ValidName(name)
		if valid {
			require.NoError(t, err, "%q", name)
		} else {
			require.ErrorIs(t, err, objstore.ErrName, "%q", name)
		}
	}
}

func FuzzValidName(f *testing.F) {
	for _, s := range []string{"a", "a/b", "", "/", "a//b", "..", "a/../b", ".tmp", "ä", "a b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if objstore.ValidName(name) != nil {
			return
		}
		require.LessOrEqual(t, len(name), objstore.MaxNameBytes)
		for part := range strings.SplitSeq(name, "/") {
			require.NotContains(t, []string{"", ".", ".."}, part)
			require.NotContains(t, part, `\`)
			for _, c := range []byte(part) {
				require.True(t, c > ' ' && c < 0x7F)
			}
		}
	})
}

func FuzzSpan(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(0), int64(10))
	f.Add(int64(3), int64(math.MaxInt64), int64(0), int64(5), int64(10))
	f.Add(int64(0), int64(0), int64(math.MaxInt64), int64(0), int64(0))
	f.Add(int64(math.MaxInt64), int64(1), int64(0), int64(0), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, offset, length, suffix, limit, size int64) {
		if min(offset, length, suffix, limit, size) < 0 || suffix > 0 && (offset > 0 || length > 0) {
			return // a programmer's error
		}
		o := objstore.GetOptions{Offset: offset, Length: length, Suffix: suffix, MaxBytes: limit}
		o.Check()
		start, end, err := o.Span(size)
		switch {
		case errors.Is(err, objstore.ErrRange):
			require.GreaterOrEqual(t, offset, size)
			require.True(t, offset > 0 || length > 0)
			return
		case errors.Is(err, objstore.ErrTooLarge):
			require.Positive(t, limit)
			return
		}
		require.NoError(t, err)
		require.True(t, 0 <= start && start <= end && end <= size)
		if limit > 0 {
			require.LessOrEqual(t, end-start, limit)
		}
		switch {
		case suffix > 0:
			require.Equal(t, min(suffix, size), end-start)
			require.Equal(t, size, end)
		case length > 0:
			require.Equal(t, offset, start)
			require.Equal(t, min(length, size-offset), end-start)
		default:
			require.Equal(t, offset, start)
			require.Equal(t, size, end)
		}
	})
}

func TestPageSize(t *testing.T) {
	for limit, want := range map[int]int{0: 1000, 1: 1, 999: 999, 1000: 1000, 1001: 1000} {
		require.Equal(t, want, objstore.PageSize(limit))
	}
	require.Panics(t, func() { objstore.PageSize(-1) })
}

func TestListAll(t *testing.T) {
	var count fault.Counter
	s := fault.New(mem.New(mem.Options{}), count.Hook)
	const objects = 2*objstore.MaxListPage + 1
	for i := range objects {
		_, err := s.Put(t.Context(), fmt.Sprintf("n/%05d", i), nil, objstore.PutOptions{})
		require.NoError(t, err)
	}
	count.Take()
	seen := 0
	require.NoError(t, objstore.ListAll(t.Context(), s, "n/", "n/00000", func(objstore.Entry) (bool, error) {
		seen++
		return true, nil
	}))
	require.Equal(t, objects-1, seen)
	count.Assert(t, fault.Counts{List: 2})

	seen = 0
	require.NoError(t, objstore.ListAll(t.Context(), s, "n/", "", func(objstore.Entry) (bool, error) {
		seen++
		return seen < 10, nil
	}))
	require.Equal(t, 10, seen)
	require.ErrorIs(t, objstore.ListAll(t.Context(), s, "n/", "", func(objstore.Entry) (bool, error) {
		return true, io.EOF
	}), io.EOF)
	broken := fault.New(s, fault.FailNth(1, false, nil).Hook)
	require.ErrorIs(t, objstore.ListAll(t.Context(), broken, "n/", "", func(objstore.Entry) (bool, error) {
		return true, nil
	}), fault.ErrInjected)
}

func TestDeleteError(t *testing.T) {
	err := error(&objstore.DeleteError{Failed: []objstore.NameError{{Name: "a", Err: io.EOF}, {Name: "b", Err: objstore.ErrDenied}}})
	require.EqualError(t, err, "delete a: EOF (and 1 more objects failed)")
	require.ErrorIs(t, err, io.EOF)
	require.ErrorIs(t, err, objstore.ErrDenied)
	require.EqualError(t, &objstore.DeleteError{}, "delete: no object failed")
}

const probeName = "trees/00000000/probe/x"

// TestProbeF20: stores that accept conditions and ignore them are found out.
func TestProbeF20(t *testing.T) {
	ignore := fault.Always(fault.Plan{IgnoreConditions: true})
	tests := map[string]struct {
		hook fault.Hook
		want string // "" is a good store
	}{
		"good":        {nil, ""},
		"ignores all": {ignore, "IfAbsent"},
		"ignores IfAbsent": {
			fault.On(func(op fault.Op) bool { return op.PutOptions.IfAbsent }, ignore), "IfAbsent",
		},
		"ignores IfMatch": {
			fault.On(func(op fault.Op) bool { return op.PutOptions.IfMatch != "" }, ignore), "stale etag",
		},
		"refuses every IfAbsent": {
			fault.On(func(op fault.Op) bool { return op.PutOptions.IfAbsent }, fault.Always(fault.Refuse(objstore.ErrPrecondition))), "was refused",
		},
		"refuses every IfMatch": {
			fault.On(func(op fault.Op) bool { return op.PutOptions.IfMatch != "" }, fault.Always(fault.Refuse(objstore.ErrPrecondition))), "current etag was refused",
		},
		"ignores all, says that it refused": {
			fault.OnKind(fault.Put, fault.Chain(ignore, fault.Always(fault.Lose(objstore.ErrPrecondition)))), "IfAbsent",
		},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			inner := mem.New(mem.Options{})
			err := objstore.ProbeConditionalWrites(t.Context(), fault.New(inner, test.hook), probeName)
			require.Zero(t, inner.Len(), "the probe object is deleted")
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, objstore.ErrNoConditionalWrites)
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "mem:")
		})
	}
}

// TestProbeSweep loses, or does not deliver, each of the probe's requests. It
// then returns that error, never a verdict, except where the answer was a
// refusal: that is resolved by reading back.
func TestProbeSweep(t *testing.T) {
	for _, fails := range []error{fault.ErrInjected, objstore.ErrPrecondition, objstore.ErrConflict} {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v applied=%t", fails, applied), func(t *testing.T) {
				for i := 0; ; i++ {
					rule := fault.FailNth(i, applied, fails)
					hook := rule.Hook
					if fails != fault.ErrInjected {
						hook = fault.OnKind(fault.Put, hook) // only Puts are refused
					}
					s := fault.New(mem.New(mem.Options{}), hook)
					err := objstore.ProbeConditionalWrites(t.Context(), s, probeName)
					switch {
					case !rule.Hit():
						require.NoError(t, err)
						require.Greater(t, i, 3)
						return
					case fails == fault.ErrInjected:
						require.ErrorIs(t, err, fault.ErrInjected)
						require.NotErrorIs(t, err, objstore.ErrNoConditionalWrites)
					case errors.Is(fails, objstore.ErrConflict) || applied || i == 1 || i == 3:
						require.NoError(t, err, "number %d", i)
					default: // a Put that had to succeed was refused and not applied
						require.ErrorIs(t, err, objstore.ErrNoConditionalWrites)
					}
				}
			})
		}
	}
}

// TestProbeCost pins the probe's requests.
func TestProbeCost(t *testing.T) {
	var count fault.Counter
	s := fault.New(mem.New(mem.Options{}), count.Hook)
	require.NoError(t, objstore.ProbeConditionalWrites(t.Context(), s, probeName))
	require.Equal(t, fault.Counts{Put: 4, Get: 2, Delete: 1}, count.Take().Requests())
}

// TestProbeOfConflictForEver: conflicts are retried a bounded number of times.
func TestProbeOfConflictForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var count fault.Counter
		s := fault.New(mem.New(mem.Options{}), fault.Chain(count.Hook, fault.OnKind(fault.Put, fault.Always(fault.Refuse(objstore.ErrConflict)))))
		err := objstore.ProbeConditionalWrites(t.Context(), s, probeName)
		require.ErrorIs(t, err, objstore.ErrConflict)
		require.NotErrorIs(t, err, objstore.ErrNoConditionalWrites)
		require.Equal(t, fault.Counts{Put: 5, Get: 4, Delete: 1}, count.Take().Requests())

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, objstore.ProbeConditionalWrites(ctx, s, probeName), context.Canceled)
	})
}
