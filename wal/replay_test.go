package wal

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// replayed collects what a replay of testEpoch delivers.
func replayed(t *testing.T, s objstore.Store, from uint64, chain Chain) (ids []uint64, fence uint64, err error) {
	fence, err = Replay(t.Context(), s, testEnv(1), testIdent, testEpoch, from, &chain, func(o *Object, size int64) error {
		require.False(t, o.Fence)
		require.Positive(t, size)
		ids = append(ids, o.ID)
		return nil
	})
	return ids, fence, err
}

// epochOf writes records 1 to n, one sequence each from 100, and a fence behind them.
func epochOf(t *testing.T, n uint64) *faultyStore {
	s := newFaultyStore()
	for id := uint64(1); id <= n; id++ {
		putObject(t, s.Store, id, testObject(id, 99+id, 100+id))
	}
	putObject(t, s.Store, n+1, EncodeFence(testIdent, testEpoch, n+1, testEpoch+1))
	return s
}

func seq(from, to uint64) (ids []uint64) {
	for id := from; id <= to; id++ {
		ids = append(ids, id)
	}
	return ids
}

func TestReplay(t *testing.T) {
	for _, c := range []struct{ n, from uint64 }{{0, 1}, {1, 1}, {3, 1}, {50, 1}, {50, 20}, {50, 51}} {
		s := epochOf(t, c.n)
		chain := Chain{Started: true, End: 99 + c.from} // in mid-epoch: exactly
		if c.from == 1 {
			chain.End = 40 // an epoch may begin above
		}
		ids, fence, err := replayed(t, s, c.from, chain)
		require.NoError(t, err)
		require.Equal(t, c.n+1, fence)
		require.Equal(t, seq(c.from, c.n), ids)
	}
}

// F56: an epoch with nothing but a fence costs one GET.
func TestReplayOfAnEmptyEpochCostsOneGet(t *testing.T) {
	s := epochOf(t, 0)
	_, _, err := replayed(t, s, 1, Chain{})
	require.NoError(t, err)
	require.Equal(t, map[string]int{walName(1): 1}, s.gets)
}

// V8: what lies behind the first fence is dead, whoever put that fence, and is not even
// looked at: here it is damaged.
func TestReplayStopsAtTheFirstFence(t *testing.T) {
	s := epochOf(t, 2)
	putObject(t, s.Store, 3, EncodeFence(testIdent, testEpoch, 3, testEpoch+40))
	putObject(t, s.Store, 4, []byte("damaged"))
	putObject(t, s.Store, 5, testObject(5, 500, 501))
	putObject(t, s.Store, 6, EncodeFence(testIdent, testEpoch, 6, testEpoch+1))
	ids, fence, err := replayed(t, s, 1, Chain{})
	require.NoError(t, err)
	require.EqualValues(t, 3, fence)
	require.Equal(t, seq(1, 2), ids)
}

// V9: a missing object is not the end.
func TestReplayMissingObjectIsAnError(t *testing.T) {
	for missing := uint64(1); missing <= 6; missing++ {
		s := epochOf(t, 5)
		require.NoError(t, s.Delete(t.Context(), []string{walName(missing)}))
		ids, _, err := replayed(t, s, 1, Chain{})
		require.ErrorIs(t, err, ErrMissing)
		require.ErrorContains(t, err, walName(missing))
		require.Equal(t, seq(1, missing-1), ids)
		require.Equal(t, 1, s.gets[walName(missing)], "a 404 is not retried")
	}
}

// F14.
func TestReplayDamageIsAnError(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"flipped bit":    func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
		"truncated":      func(b []byte) []byte { return b[:len(b)-1] },
		"cut to a fence": func(b []byte) []byte { return b[:FenceSize] },
		"empty":          func([]byte) []byte { return nil },
		"another object": func([]byte) []byte { return testObject(2, 101, 102) },
		"out of place":   func([]byte) []byte { return testObject(3, 103, 104) },
	} {
		s := epochOf(t, 5)
		putObject(t, s.Store, 3, damage(testObject(3, 102, 103)))
		ids, _, err := replayed(t, s, 1, Chain{})
		require.ErrorIs(t, err, base.ErrCorrupt, name)
		require.ErrorContains(t, err, walName(3), name)
		require.Equal(t, seq(1, 2), ids, name)
	}
	s := epochOf(t, 5)
	_, _, err := replayed(t, s, 2, Chain{Started: true, End: 102})
	require.ErrorIs(t, err, base.ErrCorrupt, "the manifest's end is not where the objects go on")

	s = epochOf(t, 1)
	body := EncodeFence(testIdent, testEpoch, 2, testEpoch+1)
	le.PutUint32(body[offVersion:], 9)
	le.PutUint64(body[offFenceChecksum:], base.Checksum(testIdent.seed(testEpoch, 2), body[:offFenceChecksum]))
	putObject(t, s.Store, 2, body)
	_, _, err = replayed(t, s, 1, Chain{})
	require.ErrorIs(t, err, ErrVersion)
	require.NotErrorIs(t, err, base.ErrCorrupt)
}

func TestReplayRetriesReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := epochOf(t, 9)
		s.onGet = func(ctx context.Context, name string, n int, apply func() (objstore.Object, error)) (objstore.Object, error) {
			if n < 3 {
				return objstore.Object{}, errFlaky
			}
			return apply()
		}
		ids, fence, err := replayed(t, s, 1, Chain{})
		require.NoError(t, err)
		require.EqualValues(t, 10, fence)
		require.Equal(t, seq(1, 9), ids)

		s.onGet = func(context.Context, string, int, func() (objstore.Object, error)) (objstore.Object, error) {
			return objstore.Object{}, errFlaky
		}
		s.gets = map[string]int{}
		_, _, err = replayed(t, s, 1, Chain{})
		require.ErrorIs(t, err, errFlaky)
		require.ErrorContains(t, err, walName(1))
		require.Equal(t, map[string]int{walName(1): maxAttempts}, s.gets)
	})
}

// Reads run ahead, at most maxPrefetch, answers out of order are delivered in order, and
// no goroutine is left, which synctest checks.
func TestReplayReadsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := epochOf(t, 40)
		underway, most := 0, 0
		s.onGet = func(ctx context.Context, name string, n int, apply func() (objstore.Object, error)) (objstore.Object, error) {
			s.mu.Lock()
			underway++
			most = max(most, underway)
			s.mu.Unlock()
			defer func() {
				s.mu.Lock()
				underway--
				s.mu.Unlock()
			}()
			_, _, id, _ := base.ParseWALName(name)
			if err := sleepOr(ctx, time.Duration(100-id)*time.Millisecond); err != nil {
				return objstore.Object{}, err
			}
			return apply()
		}
		begun := time.Now()
		ids, _, err := replayed(t, s, 1, Chain{})
		require.NoError(t, err)
		require.Equal(t, seq(1, 40), ids)
		require.Equal(t, maxPrefetch, most)
		require.Less(t, time.Since(begun), 41*80*time.Millisecond/2)

		stop := errors.New("stop")
		_, err = Replay(t.Context(), s, testEnv(1), testIdent, testEpoch, 1, &Chain{}, func(o *Object, _ int64) error {
			if o.ID == 7 {
				return stop
			}
			return nil
		})
		require.Equal(t, stop, err)

		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = Replay(ctx, s, testEnv(1), testIdent, testEpoch, 1, &Chain{}, func(*Object, int64) error { return nil })
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// V15: a delayed PUT of a writer that was fenced meets the fence, because collection
// tells fences from records by their size and keeps them.
func TestCollectionBySizeKeepsFences(t *testing.T) {
	s := epochOf(t, 3)
	page, err := s.List(t.Context(), base.WALEpochPrefix(testIdent.Tree, testEpoch), "", 0)
	require.NoError(t, err)
	require.Len(t, page.Entries, 4)
	for _, e := range page.Entries {
		if !IsFence(e.Size) {
			require.NoError(t, s.Delete(t.Context(), []string{e.Name}))
		}
	}
	requireFence(t, s, 4)
	_, err = s.Put(t.Context(), walName(4), testObject(4, 103, 104), objstore.PutOptions{IfAbsent: true, SinglePart: true})
	require.ErrorIs(t, err, objstore.ErrPrecondition)
}

func TestReadErrors(t *testing.T) {
	s := epochOf(t, 1)
	_, _, err := Read(t.Context(), s, testIdent, testEpoch, 7)
	require.ErrorIs(t, err, objstore.ErrNotFound)
	require.ErrorContains(t, err, walName(7))
	s.onGet = func(context.Context, string, int, func() (objstore.Object, error)) (objstore.Object, error) {
		return objstore.Object{}, objstore.ErrTooLarge
	}
	_, _, err = Read(t.Context(), s, testIdent, testEpoch, 1)
	require.ErrorIs(t, err, base.ErrCorrupt)
	require.Panics(t, func() { _, _ = Replay(t.Context(), s, testEnv(1), testIdent, testEpoch, 0, &Chain{}, nil) })
}
