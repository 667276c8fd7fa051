package wal

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// ids returns the ids of what a look found.
func (l *Look) ids() (ids []uint64) {
	for _, o := range l.Objects {
		ids = append(ids, o.ID)
	}
	return ids
}

func TestTail(t *testing.T) {
	s := epochOf(t, 12) // and a fence at 13
	for id := uint64(14); id <= 16; id++ {
		putObject(t, s.Store, id, testObject(id, 99+id, 100+id)) // dead
	}
	tail := NewTail(s, testEnv(1), testIdent)
	for _, want := range []struct{ from, to uint64 }{{1, 1}, {2, 2}, {3, 4}, {5, 7}, {8, 11}, {12, 13}} {
		look := tail.Look(t.Context(), testEpoch, want.from)
		require.NoError(t, look.End)
		require.Equal(t, seq(want.from, want.to), look.ids())
	}
	look := tail.Look(t.Context(), testEpoch, 13)
	require.Equal(t, 1, look.Requests, "behind a fence the window is small again")
	require.Len(t, look.Objects, 1)
	require.True(t, look.Objects[0].Fence)

	look = tail.Look(t.Context(), testEpoch+1, 1)
	require.ErrorIs(t, look.End, objstore.ErrNotFound)
	require.Empty(t, look.Objects)
}

// Nothing behind a gap is returned, nor behind what cannot be read; the next look is a small one.
func TestTailEndsAtAGap(t *testing.T) {
	for what, c := range map[string]struct {
		body []byte // of object 5; nil: it is not there
		want error
	}{
		"missing":         {nil, objstore.ErrNotFound},
		"damaged":         {append([]byte("x"), testObject(5, 104, 105)[1:]...), base.ErrCorrupt},
		"cut short":       {testObject(5, 104, 105)[:100], base.ErrCorrupt},
		"another's":       {testObject(6, 104, 105), base.ErrCorrupt},
		"unknown version": {versioned(testObject(5, 104, 105), 9), ErrVersion},
	} {
		t.Run(what, func(t *testing.T) {
			s := epochOf(t, 10)
			require.NoError(t, s.Store.Delete(t.Context(), []string{walName(5)}))
			if c.body != nil {
				putObject(t, s.Store, 5, c.body)
			}
			tail := NewTail(s, testEnv(1), testIdent)
			for _, from := range []uint64{1, 2} {
				require.NoError(t, tail.Look(t.Context(), testEpoch, from).End)
			}
			require.Equal(t, seq(3, 4), objectsOf(t, tail, 3))
			look := tail.Look(t.Context(), testEpoch, 5)
			require.Equal(t, 3, look.Requests)
			require.ErrorIs(t, look.End, c.want)
			require.ErrorContains(t, look.End, walName(5))
			require.Empty(t, look.Objects)
			look = tail.Look(t.Context(), testEpoch, 4)
			require.Equal(t, 1, look.Requests)
			require.Equal(t, seq(4, 4), look.ids())
		})
	}
}

func objectsOf(t *testing.T, tail *Tail, from uint64) []uint64 {
	t.Helper()
	look := tail.Look(t.Context(), testEpoch, from)
	require.NoError(t, look.End)
	return look.ids()
}

// versioned returns an intact object of another format version.
func versioned(body []byte, v uint32) []byte {
	body = append([]byte(nil), body...)
	var h rawHeader
	h.unmarshal(body)
	le.PutUint32(body[offVersion:], v)
	at := len(body) - checksumSize
	le.PutUint64(body[at:], base.Checksum(testIdent.seed(h.Epoch, h.ID), body[:at]))
	return body
}

// What one look holds is bounded by what the objects before have been like.
func TestTailWindowOfLargeObjects(t *testing.T) {
	tail := NewTail(newFaultyStore(), testEnv(1), testIdent)
	some := &Look{Objects: []*Object{{}}}
	for _, c := range []struct {
		size int64
		want int
	}{{1 << 10, 4}, {maxTailBytes / 4, 4}, {maxTailBytes/4 + 1, 3}, {maxTailBytes / 2, 2}, {maxTailBytes, 1}, {MaxObjectBytes, 1}} {
		for range 6 {
			tail.adapt(some, c.size)
		}
		require.Equal(t, c.want, tail.window, "objects of %d bytes", c.size)
	}
}

// A request that hangs is given up, later each time, and the look that follows begins anew.
func TestTailGivesUpARequestThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := epochOf(t, 3)
		hangs := true
		s.onGet = func(ctx context.Context, name string, _ int, apply func() (objstore.Object, error)) (objstore.Object, error) {
			if hangs && name == walName(2) {
				<-ctx.Done()
				return objstore.Object{}, fmt.Errorf("get: %w", ctx.Err())
			}
			return apply()
		}
		tail := NewTail(s, testEnv(1), testIdent)
		require.Equal(t, seq(1, 1), objectsOf(t, tail, 1))
		for _, want := range []time.Duration{10, 20, 40, 80, 120, 120, 120} {
			began := time.Now()
			look := tail.Look(t.Context(), testEpoch, 2)
			require.ErrorContains(t, look.End, "no answer within")
			require.ErrorContains(t, look.End, walName(2))
			require.Equal(t, want*time.Second, time.Since(began))
		}
		hangs = false
		require.Equal(t, seq(2, 2), objectsOf(t, tail, 2))
		hangs = true
		began := time.Now()
		require.Error(t, tail.Look(t.Context(), testEpoch, 2).End)
		require.Equal(t, tailTimeout, time.Since(began))

		// The caller's own context is another matter.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		look := tail.Look(ctx, testEpoch, 2)
		require.ErrorIs(t, look.End, context.DeadlineExceeded)
		require.NotContains(t, look.End.Error(), "no answer within")
	})
}

// A gap in the middle of a look cancels what is asked for behind it.
func TestTailCancelsBehindAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := epochOf(t, 4)
		tail := NewTail(s, testEnv(1), testIdent)
		require.Equal(t, seq(1, 1), objectsOf(t, tail, 1))
		require.Equal(t, seq(1, 1), objectsOf(t, tail, 1))
		s.onGet = func(ctx context.Context, name string, _ int, apply func() (objstore.Object, error)) (objstore.Object, error) {
			if name == walName(7) {
				<-ctx.Done()
				return objstore.Object{}, ctx.Err()
			}
			return apply()
		}
		began := time.Now()
		look := tail.Look(t.Context(), testEpoch, 6)
		require.ErrorIs(t, look.End, objstore.ErrNotFound)
		require.Equal(t, 2, look.Requests)
		require.Zero(t, time.Since(began))
	})
}

// BenchmarkTail follows objects of 100 records in a store in memory.
func BenchmarkTail(b *testing.B) {
	s := newFaultyStore()
	const objects = 64
	for id := uint64(1); id <= objects; id++ {
		putObject(b, s.Store, id, testObject(id, 100*id, 100*id+100))
	}
	tail := NewTail(s, testEnv(1), testIdent)
	next, read := uint64(1), 0
	for b.Loop() {
		look := tail.Look(b.Context(), testEpoch, next)
		read += len(look.Objects)
		if next += uint64(len(look.Objects)); look.End != nil {
			next = 1
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(read), "ns/object")
}
