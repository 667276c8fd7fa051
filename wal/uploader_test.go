package wal

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// putAnswer decides one PUT.
type putAnswer func(ctx context.Context, apply func() (objstore.PutResult, error)) (objstore.PutResult, error)

func refused(err error) putAnswer {
	return func(context.Context, func() (objstore.PutResult, error)) (objstore.PutResult, error) {
		return objstore.PutResult{}, err
	}
}

func lost(err error) putAnswer {
	return func(_ context.Context, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
		_, _ = apply()
		return objstore.PutResult{}, err
	}
}

func slow(d time.Duration) putAnswer {
	return func(ctx context.Context, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
		if err := sleepOr(ctx, d); err != nil {
			return objstore.PutResult{}, err
		}
		return apply()
	}
}

// hangs never answers; what it was sent is not applied.
func hangs(ctx context.Context, _ func() (objstore.PutResult, error)) (objstore.PutResult, error) {
	<-ctx.Done()
	return objstore.PutResult{}, ctx.Err()
}

// uploading is an Uploader under test and all that it reported.
type uploading struct {
	*Uploader
	store *faultyStore

	mu      sync.Mutex
	durable []Durable
	failed  []error
	spaces  int
}

// newUploading returns an Uploader whose PUTs, by id and number, are answered by script, and
// otherwise at once. Ids are from 1, object id has sequence 99+id.
func newUploading(t *testing.T, script map[uint64][]putAnswer, change func(*UploaderOptions)) *uploading {
	s := newFaultyStore()
	u := &uploading{store: s}
	s.onPut = func(ctx context.Context, name string, n int, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
		_, _, id, ok := base.ParseWALName(name)
		require.True(t, ok)
		if answers := script[id]; n <= len(answers) {
			return answers[n-1](ctx, apply)
		}
		return apply()
	}
	o := UploaderOptions{
		Store: s, Env: testEnv(1), Ident: testIdent, Epoch: testEpoch, Writer: testWriter,
		OnDurable: func(d Durable) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.durable = append(u.durable, d)
		},
		OnFailed: func(err error) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.failed = append(u.failed, err)
		},
		OnSpace: func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.spaces++
		},
	}
	if change != nil {
		change(&o)
	}
	u.Uploader = NewUploader(o)
	t.Cleanup(u.Stop)
	return u
}

func (u *uploading) submit(from, to uint64) {
	for id := from; id <= to; id++ {
		u.Submit(id, testObject(id, 99+id, 100+id))
	}
}

func (u *uploading) ids() (ids []uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, d := range u.durable {
		ids = append(ids, d.ID)
	}
	return ids
}

func (u *uploading) failures() []error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.failed)
}

func (u *uploading) spaceCalls() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.spaces
}

// settle lets all goroutines and timers of the next d run.
func settle(d time.Duration) {
	time.Sleep(d) // in a synctest bubble: steps the clock
	synctest.Wait()
}

// uploadTest runs a test in a bubble of virtual time.
func uploadTest(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// One id, and what its PUTs are answered.
func TestUploadAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []putAnswer
		puts    int
		gets    int
		within  time.Duration
		reuse   bool
	}{
		{"success", nil, 1, 0, 0, true},
		{"F1: timed out but applied, the retry is refused", []putAnswer{lost(errFlaky)}, 2, 1, time.Second, false},
		{"F1: refused because of itself", []putAnswer{lost(objstore.ErrPrecondition)}, 1, 1, 0, false},
		{"F1: 409 because of itself", []putAnswer{lost(objstore.ErrConflict)}, 1, 1, 0, false},
		{"F3: 409, nothing landed", []putAnswer{refused(objstore.ErrConflict), refused(objstore.ErrConflict)}, 3, 2, time.Second, false},
		{"F3: refused, but the name is free again", []putAnswer{refused(objstore.ErrPrecondition)}, 2, 1, time.Second, false},
		{"F4: one transient error", []putAnswer{refused(errFlaky)}, 2, 0, time.Second, false},
		{"F4: many", slices.Repeat([]putAnswer{refused(errFlaky)}, 200), 201, 0, 200 * maxBackoff, false},
		{"hangs twice for ever", []putAnswer{hangs, hangs}, 3, 0, 2 * time.Minute, false},
	} {
		uploadTest(t, c.name, func(t *testing.T) {
			u := newUploading(t, map[uint64][]putAnswer{1: c.answers}, nil)
			begun := time.Now()
			u.submit(1, 1)
			settle(c.within)
			require.Equal(t, seq(1, 1), u.ids())
			require.Empty(t, u.failures())
			require.Equal(t, c.puts, u.store.totalPuts())
			require.Equal(t, c.gets, u.store.totalGets())
			u.mu.Lock()
			d := u.durable[0]
			u.mu.Unlock()
			want := testObject(1, 100, 101)
			require.Len(t, want, d.Size)
			require.False(t, d.StoreTime.Before(begun) || d.StoreTime.After(time.Now()))
			if c.reuse {
				require.Equal(t, want, d.Buffer)
			} else {
				require.Nil(t, d.Buffer, "a request that was given up may still read it")
			}
			got, err := u.store.Store.Get(t.Context(), walName(1), objstore.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, want, got.Body)

			stats := u.Stats()
			require.NoError(t, stats.LastError)
			require.EqualValues(t, c.puts, stats.Puts)
			require.EqualValues(t, c.puts-1, stats.Retries+stats.Hedges)
			require.EqualValues(t, c.gets, stats.ReadBacks)
			require.EqualValues(t, c.puts*len(want), stats.Bytes)
			require.EqualValues(t, 1, stats.Landed)
			require.Zero(t, stats.Pending)
			require.Zero(t, u.InFlight())
		})
	}
}

// F2, F14: the name is taken by something that is not ours.
func TestUploadFindsAnother(t *testing.T) {
	foreign := objectOf(Header{Identity: testIdent, Writer: WriterID{9}, Epoch: testEpoch, ID: 2, Segment: 1, PrevEnd: 101, First: 101}, 102)
	newer := EncodeFence(testIdent, testEpoch, 2, testEpoch+1)
	le.PutUint32(newer[offVersion:], 2)
	le.PutUint64(newer[offFenceChecksum:], base.Checksum(testIdent.seed(testEpoch, 2), newer[:offFenceChecksum]))
	damaged := testObject(2, 101, 102)
	damaged[30] ^= 1
	for _, c := range []struct {
		name string
		body []byte
		want error
	}{
		{"a fence", EncodeFence(testIdent, testEpoch, 2, testEpoch+3), ErrFenced},
		{"another writer's object", foreign, ErrFenced},
		{"a damaged object", damaged, base.ErrCorrupt},
		{"nonsense", []byte("x"), base.ErrCorrupt},
		{"a fence of a newer version", newer, ErrVersion},
	} {
		for _, first := range []struct {
			name   string
			answer []putAnswer
		}{{"at once", nil}, {"after a failure", []putAnswer{refused(errFlaky)}}, {"409", []putAnswer{refused(objstore.ErrConflict)}}} {
			uploadTest(t, c.name+" "+first.name, func(t *testing.T) {
				u := newUploading(t, map[uint64][]putAnswer{2: first.answer, 4: {hangs, hangs, hangs}}, nil)
				putObject(t, u.store.Store, 2, c.body)
				u.submit(1, 1)
				settle(0)
				u.submit(2, 4)
				settle(time.Second)
				require.Equal(t, seq(1, 1), u.ids(), "3 landed, but 2 did not")
				require.Len(t, u.failures(), 1)
				require.ErrorIs(t, u.failures()[0], c.want)
				require.ErrorContains(t, u.failures()[0], walName(2))
				require.False(t, u.CanSubmit())
				u.submit(5, 60) // more than MaxPending: ignored
				settle(time.Hour)
				require.Len(t, u.failures(), 1)
				require.Equal(t, seq(1, 1), u.ids())
				require.Zero(t, u.store.putsOf(5))
				now, _ := u.store.parallel()
				require.Zero(t, now, "4 was called off")
			})
		}
	}
}

// F6, F12: 2 and 3 land, 1 does not, or late: neither is durable before it.
func TestUploadReportsInOrder(t *testing.T) {
	uploadTest(t, "late", func(t *testing.T) {
		u := newUploading(t, map[uint64][]putAnswer{1: {refused(errFlaky), slow(500 * time.Millisecond)}, 3: {slow(10 * time.Millisecond)}}, nil)
		u.submit(1, 3)
		settle(400 * time.Millisecond)
		require.EqualValues(t, 2, u.Stats().Landed)
		require.Empty(t, u.ids())
		settle(time.Second)
		require.Equal(t, seq(1, 3), u.ids())
	})
	uploadTest(t, "never", func(t *testing.T) {
		u := newUploading(t, map[uint64][]putAnswer{1: slices.Repeat([]putAnswer{refused(errFlaky)}, 1000)}, nil)
		u.submit(1, 3)
		settle(10 * time.Minute)
		require.EqualValues(t, 2, u.Stats().Landed)
		require.ErrorIs(t, u.Stats().LastError, errFlaky)
		// A new writer ends the epoch. What landed behind the gap is dead.
		u.store.onPut = nil
		fence, err := fenceEpoch(t, u.store, 1)
		require.NoError(t, err)
		require.EqualValues(t, 1, fence)
		settle(10 * time.Minute)
		require.Empty(t, u.ids())
		require.Len(t, u.failures(), 1)
		require.ErrorIs(t, u.failures()[0], ErrFenced)
		ids, _, err := replayed(t, u.store.Store, 1, Chain{})
		require.NoError(t, err)
		require.Empty(t, ids)
	})
}

// Callbacks come one at a time, and may call back.
func TestUploadCallbacksAreSerial(t *testing.T) {
	uploadTest(t, "", func(t *testing.T) {
		var u *Uploader
		inside, next, ids := 0, uint64(9), []uint64{}
		u = newUploading(t, map[uint64][]putAnswer{1: {slow(time.Second)}}, func(o *UploaderOptions) {
			o.OnDurable = func(d Durable) {
				inside++
				require.Equal(t, 1, inside)
				time.Sleep(30 * time.Millisecond) // steps the clock: others land meanwhile
				ids = append(ids, d.ID)
				if next <= 40 {
					u.Submit(next, testObject(next, 99+next, 100+next))
					next++
				}
				inside--
			}
		}).Uploader
		for id := uint64(1); id <= 8; id++ {
			u.Submit(id, testObject(id, 99+id, 100+id))
		}
		settle(time.Minute)
		require.Equal(t, seq(1, 40), ids)
	})
}

// F48: fenced at 2 while the answer of 1, which landed, is out: 1 is not reported durable,
// then or later.
func TestFencedWhileAnAnswerIsOut(t *testing.T) {
	uploadTest(t, "", func(t *testing.T) {
		late := func(_ context.Context, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
			res, err := apply()
			time.Sleep(300 * time.Millisecond) // the answer comes, whatever became of its caller
			return res, err
		}
		u := newUploading(t, map[uint64][]putAnswer{1: {late}}, func(o *UploaderOptions) { o.InFlight = 2 })
		putObject(t, u.store.Store, 2, EncodeFence(testIdent, testEpoch, 2, testEpoch+1))
		u.submit(1, 3)
		settle(100 * time.Millisecond)
		require.Len(t, u.failures(), 1)
		require.ErrorIs(t, u.failures()[0], ErrFenced)
		settle(time.Minute)
		require.Empty(t, u.ids())
		require.Zero(t, u.store.putsOf(3), "what waited is not put any more")
		ids, _, err := replayed(t, u.store.Store, 1, Chain{})
		require.NoError(t, err)
		require.Equal(t, seq(1, 1), ids, "the new writer reads it all the same: its outcome is unknown")
	})
}

// F5: a writer wakes after its epoch was ended, and after collection.
func TestZombie(t *testing.T) {
	for _, collect := range []bool{false, true} {
		uploadTest(t, map[bool]string{false: "", true: "after collection"}[collect], func(t *testing.T) {
			u := newUploading(t, map[uint64][]putAnswer{3: {slow(2 * time.Second), hangs}}, func(o *UploaderOptions) { o.HedgeMin = time.Hour })
			u.submit(1, 3)
			settle(time.Second)
			require.Equal(t, seq(1, 2), u.ids())
			s := u.store.Store
			fence, err := fenceEpoch(t, &faultyStore{Store: s, puts: map[string]int{}, gets: map[string]int{}}, 1)
			require.NoError(t, err)
			require.EqualValues(t, 3, fence)
			if collect { // all that lies below the fence
				require.NoError(t, s.Delete(t.Context(), []string{walName(1), walName(2)}))
			}
			u.submit(4, 6) // these land behind the fence
			settle(time.Minute)
			require.Equal(t, seq(1, 2), u.ids())
			require.Len(t, u.failures(), 1)
			require.ErrorIs(t, u.failures()[0], ErrFenced)
			_, err = s.Head(t.Context(), walName(4))
			require.NoError(t, err)
			ids, fence, err := replayed(t, s, map[bool]uint64{false: 1, true: 3}[collect], Chain{})
			require.NoError(t, err)
			require.EqualValues(t, 3, fence)
			require.Len(t, ids, map[bool]int{false: 2, true: 0}[collect])
		})
	}
}

// The read-back itself fails, or shows nothing yet.
func TestUploadReadBack(t *testing.T) {
	uploadTest(t, "fails", func(t *testing.T) {
		u := newUploading(t, map[uint64][]putAnswer{1: {lost(objstore.ErrPrecondition)}}, nil)
		u.store.onGet = func(_ context.Context, _ string, n int, apply func() (objstore.Object, error)) (objstore.Object, error) {
			if n <= 3 {
				return objstore.Object{}, errFlaky
			}
			return apply()
		}
		u.submit(1, 1)
		settle(time.Minute)
		require.Equal(t, seq(1, 1), u.ids())
		require.Equal(t, 1, u.store.totalPuts(), "the name is read again, not put again")
		require.Equal(t, 4, u.store.totalGets())
	})
	uploadTest(t, "calls off a retry", func(t *testing.T) {
		// The hedge, sent after a second, fails; then the first PUT is refused.
		first := func(ctx context.Context, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
			_, _ = apply()
			_ = sleepOr(ctx, 1010*time.Millisecond)
			return objstore.PutResult{}, objstore.ErrPrecondition
		}
		u := newUploading(t, map[uint64][]putAnswer{1: {first, refused(errFlaky)}}, nil)
		u.store.onGet = func(ctx context.Context, _ string, _ int, apply func() (objstore.Object, error)) (objstore.Object, error) {
			_ = sleepOr(ctx, time.Second)
			return apply()
		}
		u.submit(1, 1)
		settle(time.Minute)
		require.Equal(t, seq(1, 1), u.ids())
		require.Equal(t, 2, u.store.totalPuts())
		require.Equal(t, 1, u.store.totalGets())
	})
	uploadTest(t, "too large", func(t *testing.T) {
		u := newUploading(t, map[uint64][]putAnswer{1: {refused(objstore.ErrPrecondition)}}, nil)
		u.store.onGet = func(context.Context, string, int, func() (objstore.Object, error)) (objstore.Object, error) {
			return objstore.Object{}, objstore.ErrTooLarge
		}
		u.submit(1, 1)
		settle(time.Minute)
		require.Len(t, u.failures(), 1)
		require.ErrorIs(t, u.failures()[0], base.ErrCorrupt)
	})
}

func TestWindow(t *testing.T) {
	uploadTest(t, "", func(t *testing.T) {
		gate := make(chan struct{})
		script := map[uint64][]putAnswer{}
		for id := uint64(1); id <= 3; id++ {
			script[id] = []putAnswer{func(_ context.Context, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
				if id == 1 {
					<-gate
				}
				time.Sleep(time.Millisecond)
				return apply()
			}}
		}
		u := newUploading(t, script, func(o *UploaderOptions) { o.InFlight, o.MaxPending, o.HedgeMin = 2, 4, time.Hour })
		require.True(t, u.CanSubmit())
		u.submit(1, 1)
		require.True(t, u.CanSubmit())
		u.submit(2, 2)
		require.False(t, u.CanSubmit())
		u.submit(3, 3) // waits its turn
		require.Equal(t, 2, u.InFlight())
		synctest.Wait()
		require.Equal(t, 2, u.store.totalPuts())
		settle(10 * time.Millisecond)
		require.Equal(t, 3, u.store.totalPuts(), "2 landed and made room")
		require.Equal(t, 1, u.spaceCalls(), "when 3 landed; 2 made room for 3 only")
		require.True(t, u.CanSubmit())
		u.submit(4, 4)
		settle(10 * time.Millisecond)
		require.False(t, u.CanSubmit(), "MaxPending")
		_, most := u.store.parallel()
		require.Equal(t, 2, most)
		require.Panics(t, func() { u.submit(5, 5) })
		require.Empty(t, u.ids())
		close(gate)
		settle(10 * time.Millisecond)
		require.Equal(t, seq(1, 4), u.ids())
		require.True(t, u.CanSubmit())
		u.submit(5, 5)
	})
}

func TestStop(t *testing.T) {
	uploadTest(t, "cancels what is under way", func(t *testing.T) {
		u := newUploading(t, map[uint64][]putAnswer{
			1: {refused(errFlaky), refused(errFlaky), refused(errFlaky), refused(errFlaky), refused(errFlaky), refused(errFlaky)},
			2: {hangs, hangs}, 3: {lost(objstore.ErrPrecondition)},
		}, nil)
		u.store.onGet = func(ctx context.Context, _ string, _ int, _ func() (objstore.Object, error)) (objstore.Object, error) {
			<-ctx.Done()
			return objstore.Object{}, ctx.Err()
		}
		u.submit(1, 12)
		settle(1500 * time.Millisecond)
		begun := time.Now()
		u.Stop()
		u.Stop()
		require.Zero(t, time.Since(begun), "no timer is waited for")
		now, _ := u.store.parallel()
		require.Zero(t, now)
		require.Zero(t, u.active)
		require.False(t, u.CanSubmit())
		u.submit(13, 13)
		puts := u.store.totalPuts()
		settle(time.Hour)
		require.Equal(t, puts, u.store.totalPuts())
		require.Empty(t, u.ids())
		require.Empty(t, u.failures())
	})
	uploadTest(t, "waits for a callback, and none comes after", func(t *testing.T) {
		begun, calls, done := make(chan struct{}), 0, false
		u := newUploading(t, nil, func(o *UploaderOptions) {
			o.OnDurable = func(Durable) {
				calls++
				close(begun)
				time.Sleep(time.Second)
				done = true
			}
		})
		u.submit(1, 3)
		<-begun
		synctest.Wait()
		require.EqualValues(t, 3, u.Stats().Landed)
		u.Stop()
		require.True(t, done)
		settle(time.Hour)
		require.Equal(t, 1, calls)
	})
	uploadTest(t, "idle", func(t *testing.T) {
		newUploading(t, nil, nil).Stop()
	})
	uploadTest(t, "with everything landed", func(t *testing.T) {
		u := newUploading(t, nil, nil)
		u.submit(1, 5)
		settle(0)
		require.Zero(t, u.active, "no timer is left armed")
		u.Stop()
		require.Equal(t, seq(1, 5), u.ids())
	})
	uploadTest(t, "after a failure", func(t *testing.T) {
		u := newUploading(t, nil, nil)
		putObject(t, u.store.Store, 1, EncodeFence(testIdent, testEpoch, 1, testEpoch+1))
		u.submit(1, 5)
		settle(0)
		require.Len(t, u.failures(), 1)
		u.Stop()
	})
}

func TestUploaderPanics(t *testing.T) {
	uploadTest(t, "", func(t *testing.T) {
		u := newUploading(t, nil, func(o *UploaderOptions) { o.FirstID = 7 })
		require.Panics(t, func() { u.submit(8, 8) })
		u.submit(7, 7)
		require.Panics(t, func() { u.submit(7, 7) })
		require.Panics(t, func() { u.submit(9, 9) })
		require.Panics(t, func() { u.Submit(8, testObject(9, 1, 2)) }, "another id")
		require.Panics(t, func() { u.Submit(8, EncodeFence(testIdent, testEpoch, 8, testEpoch+1)) }, "a fence")
		other := Header{Identity: testIdent, Epoch: testEpoch, ID: 8}
		require.Panics(t, func() { u.Submit(8, objectOf(other, 0)) }, "another writer")
		for name, change := range map[string]func(*UploaderOptions){
			"no store":    func(o *UploaderOptions) { o.Store = nil },
			"no callback": func(o *UploaderOptions) { o.OnDurable = nil },
			"epoch":       func(o *UploaderOptions) { o.Epoch = 0 },
			"window":      func(o *UploaderOptions) { o.InFlight = -1 },
			"limit":       func(o *UploaderOptions) { o.MaxPending = 3 },
			"hedge":       func(o *UploaderOptions) { o.HedgeMin = -1 },
		} {
			require.Panics(t, func() { newUploading(t, nil, change) }, name)
		}
	})
}
