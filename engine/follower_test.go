package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func follow(t *testing.T, r LogReader, streams ...Stream) *Follower {
	t.Helper()
	f, err := r.Follow(t.Context(), streams...)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// nextValues returns the values of the next records.
func nextValues(t *testing.T, f *Follower, o FollowRead) (out []string) {
	t.Helper()
	recs, err := f.Next(o)
	require.NoError(t, err)
	for _, rec := range recs {
		out = append(out, string(rec.Value))
	}
	return out
}

func TestFollow(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	mustAppend(t, db, record("k", "1"), record("l", "2"), record("p/a", "3"))
	f := follow(t, db, Stream{Key: []byte("k")}, Stream{Key: []byte("p/"), Prefix: true}, Stream{Key: []byte("p/a"), From: 2})
	require.Zero(t, f.Cursor())
	require.ElementsMatch(t, []string{"1", "3"}, nextValues(t, f, FollowRead{}))
	require.Equal(t, uint64(3), f.Cursor())
	go func() {
		_, _ = db.Append(t.Context(), []Record{record("l", "not followed")}, AppendOptions{})
		_, _ = db.Append(t.Context(), []Record{record("p/b", "4")}, AppendOptions{})
	}()
	require.Equal(t, []string{"4"}, nextValues(t, f, FollowRead{}))
	require.Equal(t, uint64(5), f.Cursor())
	f.Wake()
	require.Empty(t, nextValues(t, f, FollowRead{}))
	require.Equal(t, int64(1), db.Status().Followers)
	f.Close()
	require.Zero(t, db.Status().Followers)
	_, err := f.Next(FollowRead{})
	require.ErrorIs(t, err, ErrFollowerClosed)
	require.NoError(t, f.Err())
	requireEmpty(t, &db.followers)
}

func TestFollowRefuses(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	for name, streams := range map[string][]Stream{
		"no stream": nil,
		"long key":  {{Key: make([]byte, maxKeyBytes+1)}},
		"too many":  make([]Stream, MaxStreams+1),
	} {
		_, err := db.Follow(t.Context(), streams...)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := db.Follow(ctx, Stream{})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, db.Close(t.Context()))
	_, err = db.Follow(t.Context(), Stream{})
	require.ErrorIs(t, err, ErrClosed)
}

func TestRootsOf(t *testing.T) {
	key := func(k string, from uint64) Stream { return Stream{Key: []byte(k), From: from} }
	prefix := func(k string, from uint64) Stream { return Stream{Key: []byte(k), Prefix: true, From: from} }
	for name, c := range map[string]struct {
		streams []Stream
		want    []root
	}{
		"a key twice":           {[]Stream{key("k", 5), key("k", 3), key("l", 1)}, []root{{Stream: key("k", 3)}, {Stream: key("l", 1)}}},
		"a covered key, later":  {[]Stream{key("ab", 5), prefix("a", 3)}, []root{{Stream: prefix("a", 3)}}},
		"the prefix as a key":   {[]Stream{key("a", 2), prefix("a", 3)}, []root{{prefix("a", 3), []covered{{key("a", 2), 3}}}}},
		"covered keys, earlier": {[]Stream{key("ab", 2), key("ab", 1), prefix("a", 3)}, []root{{prefix("a", 3), []covered{{key("ab", 1), 3}}}}},
		"nested": {
			[]Stream{key("abc", 10), prefix("a", 100), prefix("ab", 50), prefix("abc", 70), key("ad", 90), key("b", 0)},
			[]root{{prefix("a", 100), []covered{{key("abc", 10), 50}, {prefix("ab", 50), 100}, {key("ad", 90), 100}}}, {Stream: key("b", 0)}},
		},
		"all keys": {[]Stream{prefix("", 0), key("", 3), prefix("x", 0)}, []root{{Stream: prefix("", 0)}}},
	} {
		require.Equal(t, c.want, rootsOf(c.streams), name)
	}
}

// F39: a follower that waits learns how it ends.
func TestF39FollowersEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(t *testing.T, r *garbageRig, db *DB, cancel func(), f *Follower)
		want error
	}{
		"context":               {func(_ *testing.T, _ *garbageRig, _ *DB, cancel func(), _ *Follower) { cancel() }, context.Canceled},
		"close of the follower": {func(_ *testing.T, _ *garbageRig, _ *DB, _ func(), f *Follower) { f.Close() }, ErrFollowerClosed},
		"shutdown": {func(t *testing.T, _ *garbageRig, db *DB, _ func(), _ *Follower) {
			require.NoError(t, db.Close(t.Context()))
		}, ErrClosed},
		"fenced": {func(_ *testing.T, r *garbageRig, _ *DB, _ func(), _ *Follower) { r.open(r.options()) }, ErrFenced},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				db := r.open(r.options())
				r.segment(db, "a", "b")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ends := make(chan error, 2)
				var last *Follower
				for _, s := range []Stream{{Key: []byte("k"), From: 1}, {Key: []byte("k"), Prefix: true, From: 1}} {
					f, err := db.Follow(ctx, s)
					require.NoError(t, err)
					defer f.Close()
					last = f
					go func() {
						for {
							if _, err := f.Next(FollowRead{}); err != nil {
								ends <- err
								return
							}
						}
					}()
				}
				elapse(time.Second)
				require.Equal(t, int64(2), db.Status().Followers)
				c.end(t, r, db, cancel, last)
				elapse(3 * time.Second)
				require.ErrorIs(t, <-ends, c.want)
				if c.want != ErrFollowerClosed {
					require.ErrorIs(t, <-ends, c.want)
					require.ErrorIs(t, last.Err(), c.want)
					require.Equal(t, uint64(2), last.Cursor())
					require.Zero(t, db.Status().Followers)
				}
			})
		})
	}
}

// F39: the segment that a follower waits behind is dropped, or the one that it has yet to read: it goes on with
// what remains.
func TestF39FollowWhileSegmentsAreDropped(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.Retention = time.Hour
		db := r.open(o)
		r.segment(db, "a", "b")
		behind := follow(t, db, Stream{Key: []byte("k")})
		all := follow(t, db, Stream{Prefix: true})
		tip := follow(t, db, Stream{Key: []byte("k"), From: db.Frontier()})
		elapse(time.Hour + DefaultRetentionInterval)
		require.Equal(t, uint64(2), db.FirstSequence())
		mustAppend(t, db, record("k", "c"))
		elapse(time.Second)
		for _, f := range []*Follower{behind, all, tip} {
			require.Equal(t, []string{"c"}, nextValues(t, f, FollowRead{}))
			require.Equal(t, uint64(3), f.Cursor())
		}
		for _, f := range []*Follower{behind, all, tip} {
			f.Close()
		}
	})
}

// A busy key does not keep the others waiting.
func TestFollowIsFair(t *testing.T) {
	o := smallOptions()
	o.MemtableBytes = 64 << 20
	db := openTest(t, newStore(), o)
	var recs []Record
	for i := range 3000 {
		recs = append(recs, record("p/hot", fmt.Sprintf("%0100d", i)))
	}
	mustAppend(t, db, append(recs, record("p/quiet", "q"), record("z", "z"))...)
	for _, streams := range [][]Stream{
		{{Key: []byte("p/hot")}, {Key: []byte("p/quiet")}, {Key: []byte("z")}},
		{{Key: []byte("p/hot")}, {Key: []byte("p/q"), Prefix: true}, {Key: []byte("z"), Prefix: true}},
		{{Key: []byte("p/h"), Prefix: true}, {Key: []byte("p/q"), Prefix: true}, {Key: []byte("z")}},
	} {
		f := follow(t, db, streams...)
		var seen []string
		for range 4 {
			for _, rec := range mustNext(t, f, FollowRead{MaxBytes: turnBytes}) {
				seen = append(seen, string(rec.Key))
			}
		}
		require.Contains(t, seen, "p/quiet")
		require.Contains(t, seen, "z")
		f.Close()
	}
}

func mustNext(t *testing.T, f *Follower, o FollowRead) []Record {
	t.Helper()
	recs, err := f.Next(o)
	require.NoError(t, err)
	return recs
}

// Log is asked for what tables hold, and for nothing in memory.
func TestFollowAsksBeforeItReadsTables(t *testing.T) {
	o := smallOptions()
	o.RecentBytes = 1
	db := openTest(t, newStore(), o)
	mustAppend(t, db, record("k", "1"), record("k", "2"))
	var asked, done int
	refuse := errors.New("no room")
	var answer error
	read := FollowRead{MaxBytes: 1, Log: func(context.Context) (func(), error) {
		asked++
		return func() { done++ }, answer
	}}
	f := follow(t, db, Stream{Key: []byte("k")})
	require.Equal(t, []string{"1"}, nextValues(t, f, read))
	require.Zero(t, asked)
	require.NoError(t, db.Flush(t.Context()))
	answer = refuse
	_, err := f.Next(read)
	require.ErrorIs(t, err, refuse)
	answer = nil
	require.Equal(t, []string{"2"}, nextValues(t, f, read), "it goes on")
	require.Equal(t, 2, asked)
	require.Zero(t, done, "until Next is called again")
	f.Wake()
	require.Empty(t, nextValues(t, f, read))
	require.Equal(t, 1, done)
	g := follow(t, db, Stream{Key: []byte("k")})
	require.Equal(t, []string{"1"}, nextValues(t, g, read))
	g.Close()
	require.Equal(t, 2, done, "or Close is")
}

// All can be left and taken up again, and nothing that it did not yield counts as returned.
func TestFollowAll(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	mustAppend(t, db, record("k", "1"), record("k", "2"), record("k", "3"))
	f := follow(t, db, Stream{Key: []byte("k")})
	var got []string
	for rec := range f.All() {
		got = append(got, string(rec.Value))
		require.Equal(t, rec.Sequence+1, f.Cursor())
		break
	}
	require.Equal(t, []string{"2", "3"}, nextValues(t, f, FollowRead{}))
	time.AfterFunc(time.Millisecond, f.Close)
	for range f.All() {
		t.Error("there is no more")
	}
	require.NoError(t, f.Err())
	require.Equal(t, []string{"1"}, got)
}

// A commit wakes those that wait for its keys, in both visibilities, and nobody else.
func TestCommitWakesItsKeysOnly(t *testing.T) {
	for _, visibility := range []Durability{Durable, Memory} {
		synctest.Test(t, func(t *testing.T) {
			o := simulatedOptions()
			o.ReadVisibility = visibility
			db := openTest(t, newStore(), o)
			var woken atomic.Int32
			for _, s := range []Stream{{Key: []byte("a")}, {Key: []byte("a"), Prefix: true}, {Key: []byte("ab")}, {Key: []byte("b")}} {
				f := follow(t, db, s)
				go func() {
					if recs, err := f.Next(FollowRead{}); err == nil {
						woken.Add(int32(len(recs)))
					}
				}()
			}
			synctest.Wait()
			_, err := db.Append(t.Context(), []Record{record("ab", "1"), record("c", "2")}, AppendOptions{Ack: visibility})
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, int32(2), woken.Load())
			require.NoError(t, db.Close(t.Context()))
			synctest.Wait()
		})
	}
}

// Many goroutines append, follow, wake and close. Run it with -race.
func TestFollowersConcurrently(t *testing.T) {
	const writers, readers, perWriter, keys = 3, 12, 150, 20
	for _, visibility := range []Durability{Durable, Memory} {
		o := smallOptions()
		o.ReadVisibility = visibility
		db := openTest(t, newStore(), o)
		key := func(i int) string { return fmt.Sprintf("%d/key", i%keys) }
		var written [keys]atomic.Int64
		var writing, reading sync.WaitGroup
		for w := range writers {
			writing.Go(func() {
				for i := range perWriter {
					k := (w + i*writers) % keys
					_, err := db.Append(t.Context(), []Record{record(key(k), "v"), record("other", "v")}, AppendOptions{Ack: Memory})
					if err != nil {
						t.Error(err)
						return
					}
					written[k].Add(1)
				}
			})
		}
		var done atomic.Bool
		go func() {
			writing.Wait()
			done.Store(true)
		}()
		for r := range readers {
			f := follow(t, db, Stream{Key: []byte(key(r))}, Stream{Key: []byte(key(r + 1))[:2], Prefix: true}, Stream{Key: []byte(key(r + 1))})
			want := func() int64 { return written[r%keys].Load() + written[(r+1)%keys].Load() }
			finished := make(chan struct{})
			go func() { // pokes it until it is done
				for {
					select {
					case <-finished:
						f.Close()
						return
					default:
						f.Wake()
						runtime.Gosched()
					}
				}
			}()
			reading.Go(func() {
				defer close(finished)
				last := map[string]uint64{}
				rnd := rand.New(rand.NewPCG(uint64(r), 1))
				for n := int64(0); ; {
					recs, err := f.Next(FollowRead{MaxBytes: 1 + rnd.Int64N(20)})
					if err != nil {
						t.Error(err)
						return
					}
					for _, rec := range recs {
						if rec.Sequence < last[string(rec.Key)] {
							t.Errorf("record %d of %s after %d", rec.Sequence, rec.Key, last[string(rec.Key)])
						}
						last[string(rec.Key)] = rec.Sequence + 1
						n++
					}
					if done.Load() && n >= want() {
						if n > want() {
							t.Errorf("%d records, want %d", n, want())
						}
						return
					}
				}
			})
		}
		reading.Wait()
		require.Eventually(t, func() bool { return db.Status().Followers == 0 }, patience, time.Millisecond)
		requireEmpty(t, &db.followers)
	}
}

// What was readable before a follower registered is not announced to it again, by a commit that was
// under way meanwhile, or by one that reaches back.
func TestFollowerRegistersDuringACommit(t *testing.T) {
	l := newTip()
	before, err := l.Follow(t.Context(), Stream{Key: []byte("other")})
	require.NoError(t, err)
	recs := []Record{record("k", "0"), record("k", "1"), record("k", "2")}
	for i := range recs {
		recs[i].Sequence = uint64(i)
	}
	table := l.memories[0].table
	table.AddBatch(0, 0, recs[:2])
	l.frontier.Store(2)
	require.True(t, l.followers.announce(announcement{recs: recs[:2], frontier: 2}))
	before.Close()

	f := follow(t, l, Stream{Prefix: true})
	require.Equal(t, []string{"0", "1"}, nextValues(t, f, FollowRead{}))
	l.followers.deliver()
	table.AddBatch(2, 0, recs[2:])
	l.frontier.Store(3)
	l.followers.commit(recs, 3)
	require.Equal(t, []string{"2"}, nextValues(t, f, FollowRead{}))
	require.Equal(t, uint64(3), f.Cursor())
	require.False(t, l.followers.none())
}
