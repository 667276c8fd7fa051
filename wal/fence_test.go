package wal

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

func fenceEpoch(t *testing.T, s objstore.Store, from uint64) (uint64, error) {
	return FenceEpoch(t.Context(), s, testEnv(1), testIdent, testEpoch, from, testEpoch+1)
}

// requireFence checks that an id holds a fence.
func requireFence(t *testing.T, s *faultyStore, id uint64) {
	t.Helper()
	o, _, err := Read(context.Background(), s.Store, testIdent, testEpoch, id)
	require.NoError(t, err)
	require.True(t, o.Fence)
}

// A fence is only ever put behind objects that all exist: one missing below it
// was lost, and must not become the end of the epoch.
func TestFenceBehindAGapIsALoss(t *testing.T) {
	s := newFaultyStore()
	putObject(t, s.Store, 1, testObject(1, 10, 11))
	putObject(t, s.Store, 3, testObject(3, 30, 31))
	putObject(t, s.Store, 4, EncodeFence(testIdent, testEpoch, 4, testEpoch+9))
	_, err := fenceEpoch(t, s, 1)
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, walName(2))
	_, err = s.Store.Head(t.Context(), walName(2))
	require.ErrorIs(t, err, objstore.ErrNotFound, "nothing was put in its place")
}

// An object behind a gap may know that the gap was filled when it was made: then what
// is missing was lost.
func TestFenceBehindAGapThatWasFilledIsALoss(t *testing.T) {
	for durable, lost := range map[uint64]bool{0: false, 1: false, 2: true, 3: true} {
		s := newFaultyStore()
		putObject(t, s.Store, 1, testObject(1, 10, 11))
		putObject(t, s.Store, 3, testObject(3, 30, 31))
		putObject(t, s.Store, 4, objectOf(Header{
			Identity: testIdent, Writer: testWriter, Epoch: testEpoch, ID: 4, Segment: 1, PrevEnd: 40, First: 40, Durable: durable,
		}, 41))
		fence, err := fenceEpoch(t, s, 1)
		if lost {
			require.ErrorIs(t, err, ErrMissing)
			require.ErrorContains(t, err, walName(2))
		} else {
			require.NoError(t, err)
			require.Equal(t, uint64(2), fence)
		}
	}
}

// What cannot be read behind a gap tells nothing about it: it may be dead. While the store does not answer, nothing is
// known, and no fence is put.
func TestFenceBehindAGapAndSomethingUnreadable(t *testing.T) {
	for name, c := range map[string]struct {
		get  func(apply func() (objstore.Object, error)) (objstore.Object, error)
		want error
	}{
		"damaged": {func(apply func() (objstore.Object, error)) (objstore.Object, error) {
			o, err := apply()
			o.Body[20] ^= 1
			return o, err
		}, nil},
		"gone meanwhile": {func(func() (objstore.Object, error)) (objstore.Object, error) {
			return objstore.Object{}, objstore.ErrNotFound
		}, nil},
		"the store is not there": {func(func() (objstore.Object, error)) (objstore.Object, error) { return objstore.Object{}, errFlaky }, errFlaky},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFaultyStore()
				putObject(t, s.Store, 1, testObject(1, 10, 11))
				putObject(t, s.Store, 3, testObject(3, 30, 31))
				s.onGet = func(_ context.Context, name string, _ int, apply func() (objstore.Object, error)) (objstore.Object, error) {
					if name == walName(3) {
						return c.get(apply)
					}
					return apply()
				}
				fence, err := fenceEpoch(t, s, 1)
				require.ErrorIs(t, err, c.want)
				if c.want == nil {
					require.Equal(t, uint64(2), fence)
					requireFence(t, s, 2)
					return
				}
				_, err = s.Store.Head(t.Context(), walName(2))
				require.ErrorIs(t, err, objstore.ErrNotFound)
			})
		})
	}
}

func TestFenceTakesTheFirstMissingID(t *testing.T) {
	for _, c := range []struct {
		name    string
		records []uint64
		fences  []uint64
		from    uint64
		want    uint64
		puts    int
	}{
		{name: "empty epoch", from: 1, want: 1, puts: 1},
		{name: "after the records", records: []uint64{1, 2, 3}, from: 1, want: 4, puts: 1},
		{name: "gap: 7 and 8 are dead", records: []uint64{5, 7, 8}, from: 5, want: 6, puts: 1}, // F6
		{name: "gap at the start", records: []uint64{2, 3}, from: 1, want: 1, puts: 1},
		{name: "from the position: what lies below is collected", records: []uint64{4, 5}, from: 4, want: 6, puts: 1}, // V9
		{name: "at the position nothing", records: nil, from: 4, want: 4, puts: 1},
		{name: "fenced already", records: []uint64{1, 2}, fences: []uint64{3}, from: 1, want: 3, puts: 0},
		{name: "the first fence counts", records: []uint64{1, 3}, fences: []uint64{2, 4}, from: 1, want: 2, puts: 0}, // V8
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newFaultyStore()
			for _, id := range c.records {
				putObject(t, s.Store, id, testObject(id, id*10, id*10+1))
			}
			for _, id := range c.fences {
				putObject(t, s.Store, id, EncodeFence(testIdent, testEpoch, id, testEpoch+9))
			}
			// A name that is not of the WAL, and other epochs, do not matter.
			for _, name := range []string{walName(1) + "-x", base.WALName(testIdent.Tree, testEpoch+1, 1)} {
				_, err := s.Store.Put(t.Context(), name, []byte("x"), objstore.PutOptions{})
				require.NoError(t, err)
			}
			got, err := fenceEpoch(t, s, c.from)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.puts, s.totalPuts())
			require.Equal(t, 1, s.lists)
			looks := 1 - c.puts // a PUT that succeeded needs no look
			if len(c.records) > 0 && c.records[len(c.records)-1] > c.want && c.puts > 0 {
				looks++ // what lies behind a gap may know better
			}
			require.Equal(t, looks, s.totalGets())
			requireFence(t, s, got)

			again, err := fenceEpoch(t, s, c.from)
			require.NoError(t, err)
			require.Equal(t, got, again)
			require.Equal(t, c.puts, s.totalPuts())
		})
	}
}

// F38.
func TestFenceListsInPages(t *testing.T) {
	s := newFaultyStore()
	const n = 2*objstore.MaxListPage + 7
	for id := uint64(1); id <= n; id++ {
		putObject(t, s.Store, id, testObject(id, id, id+1))
	}
	got, err := fenceEpoch(t, s, 1)
	require.NoError(t, err)
	require.EqualValues(t, n+1, got)
	require.Equal(t, 3, s.lists)
}

// F8: the PUT of the fence has an unknown outcome.
func TestFenceIsReadBack(t *testing.T) {
	type answer = func(t *testing.T, s *faultyStore, apply func() (objstore.PutResult, error)) (objstore.PutResult, error)
	refuse := func(err error) answer {
		return func(*testing.T, *faultyStore, func() (objstore.PutResult, error)) (objstore.PutResult, error) {
			return objstore.PutResult{}, err
		}
	}
	lose := func(err error) answer {
		return func(_ *testing.T, _ *faultyStore, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
			_, _ = apply()
			return objstore.PutResult{}, err
		}
	}
	overtaken := func(body []byte) answer {
		return func(t *testing.T, s *faultyStore, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
			putObject(t, s.Store, 2, body)
			return apply()
		}
	}
	for _, c := range []struct {
		name  string
		first answer
		want  uint64
		puts  int
	}{
		{"applied, answer lost", lose(errFlaky), 2, 1},
		{"applied, refused because of itself", lose(objstore.ErrPrecondition), 2, 1},
		{"not applied, failed", refuse(errFlaky), 2, 2},
		{"not applied, 409", refuse(objstore.ErrConflict), 2, 2},
		{"a record of the old writer was first", overtaken(testObject(2, 20, 21)), 3, 2},
		{"another's fence was first", overtaken(EncodeFence(testIdent, testEpoch, 2, testEpoch+7)), 2, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFaultyStore()
				putObject(t, s.Store, 1, testObject(1, 10, 11))
				s.onPut = func(_ context.Context, name string, n int, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
					if name == walName(2) && n == 1 {
						return c.first(t, s, apply)
					}
					return apply()
				}
				got, err := fenceEpoch(t, s, 1)
				require.NoError(t, err)
				require.Equal(t, c.want, got)
				require.Equal(t, c.puts, s.totalPuts())
				requireFence(t, s, got)
			})
		})
	}
}

// The old writer goes on while it is being fenced, and is far ahead.
func TestFenceGoesOnBehindRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		s.onPut = func(_ context.Context, name string, n int, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
			if name == walName(1) {
				for id := uint64(1); id <= 5; id++ {
					putObject(t, s.Store, id, testObject(id, id, id+1))
				}
			}
			return apply()
		}
		got, err := fenceEpoch(t, s, 1)
		require.NoError(t, err)
		require.EqualValues(t, 6, got)
		require.Equal(t, map[string]int{walName(1): 1, walName(6): 1}, s.puts)
	})
}

func TestFenceRetriesAreBounded(t *testing.T) {
	fail := func(context.Context, string, int, func() (objstore.PutResult, error)) (objstore.PutResult, error) {
		return objstore.PutResult{}, errFlaky
	}
	t.Run("attempts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newFaultyStore()
			s.onPut = fail
			_, err := fenceEpoch(t, s, 1)
			require.ErrorIs(t, err, errFlaky)
			require.ErrorContains(t, err, walName(1))
			require.Equal(t, maxAttempts, s.totalPuts())
		})
	})
	t.Run("context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newFaultyStore()
			s.onPut = fail
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := FenceEpoch(ctx, s, testEnv(1), testIdent, testEpoch, 1, testEpoch+1)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, errFlaky)
		})
	})
	t.Run("denied", func(t *testing.T) {
		s := newFaultyStore()
		s.onPut = func(context.Context, string, int, func() (objstore.PutResult, error)) (objstore.PutResult, error) {
			return objstore.PutResult{}, objstore.ErrDenied
		}
		_, err := fenceEpoch(t, s, 1)
		require.ErrorIs(t, err, objstore.ErrDenied)
		require.Equal(t, 1, s.totalPuts())
	})
	t.Run("listing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newFaultyStore()
			putObject(t, s.Store, 1, testObject(1, 1, 2))
			s.onList = func(n int, apply func() (objstore.Page, error)) (objstore.Page, error) {
				if n < 3 {
					return objstore.Page{}, errFlaky
				}
				return apply()
			}
			got, err := fenceEpoch(t, s, 1)
			require.NoError(t, err)
			require.EqualValues(t, 2, got)
		})
	})
	t.Run("hanging connection", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newFaultyStore()
			s.onPut = func(ctx context.Context, _ string, n int, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
				if n == 1 {
					<-ctx.Done()
					return objstore.PutResult{}, ctx.Err()
				}
				return apply()
			}
			got, err := fenceEpoch(t, s, 1)
			require.NoError(t, err)
			require.EqualValues(t, 1, got)
		})
	})
}

// Something of a fence's size that is none is damage, not a fence and not a record.
func TestFenceReportsDamage(t *testing.T) {
	s := newFaultyStore()
	body := EncodeFence(testIdent, testEpoch, 1, testEpoch+1)
	body[20] ^= 1
	putObject(t, s.Store, 1, body)
	_, err := fenceEpoch(t, s, 1)
	require.ErrorIs(t, err, base.ErrCorrupt)
	require.ErrorContains(t, err, walName(1))
	require.Zero(t, s.totalPuts())

	require.Panics(t, func() { _, _ = FenceEpoch(t.Context(), s, testEnv(1), testIdent, testEpoch, 1, testEpoch) })
	require.Panics(t, func() { _, _ = FenceEpoch(t.Context(), s, testEnv(1), testIdent, testEpoch, 0, testEpoch+1) })
}

// laggingStore has a listing that lacks names, although their objects are there.
type laggingStore struct {
	objstore.Store
	hidden []string
}

func (s *laggingStore) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	page, err := s.Store.List(ctx, prefix, startAfter, limit)
	page.Entries = slices.DeleteFunc(page.Entries, func(e objstore.Entry) bool { return slices.Contains(s.hidden, e.Name) })
	return page, err
}

// What a listing lacks is not lost yet: the object itself is asked for.
func TestFenceWithAListingThatLags(t *testing.T) {
	for _, hidden := range [][]uint64{{1}, {2}, {3}, {1, 2}, {1, 2, 3}, {4}, {1, 4}, {1, 2, 3, 4}} {
		for _, fenced := range []bool{false, true} {
			s := &laggingStore{Store: newFaultyStore().Store}
			for _, id := range hidden {
				s.hidden = append(s.hidden, walName(id))
			}
			for id := uint64(1); id <= 3; id++ {
				putObject(t, s.Store, id, objectOf(Header{
					Identity: testIdent, Writer: testWriter, Epoch: testEpoch, ID: id, Segment: 1, PrevEnd: id * 10, First: id * 10, Durable: id - 1,
				}, id*10+1))
			}
			if fenced {
				putObject(t, s.Store, 4, EncodeFence(testIdent, testEpoch, 4, testEpoch+9))
			}
			at, err := FenceEpoch(t.Context(), s, base.SystemEnv(), testIdent, testEpoch, 1, testEpoch+1)
			require.NoError(t, err, "hidden %v, fenced %v", hidden, fenced)
			require.Equal(t, uint64(4), at, "hidden %v, fenced %v", hidden, fenced)
		}
	}
}
