package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

func TestReplicaFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		r.append("a", 3)
		require.NoError(t, r.db.Flush(t.Context()))
		r.append("b", 2)
		reader := r.open(ReaderOptions{})
		r.same(reader, "a", "b") // what was durable before is readable at once
		require.NoError(t, reader.Ready(t.Context()))
		for i := range 20 {
			r.append("a", 1+i%6)
			r.append("b", 1)
			if i%3 == 0 {
				require.NoError(t, r.db.Flush(t.Context()))
			}
			after(250 * time.Millisecond)
			r.same(reader, "a", "b", "nobody")
		}
		s := reader.Status()
		require.True(t, s.Replica)
		require.Zero(t, s.LagTime)
		require.Zero(t, s.LagSequences)
		require.Zero(t, s.Jumps)
		require.Equal(t, r.db.Status().FlushedEnd, s.FlushedEnd)

		require.NoError(t, r.db.Close(t.Context()))
		r.db = openTest(t, r.inner, r.o)
		r.append("a", 1)
		after(2 * time.Second)
		r.same(reader, "a", "b")
		require.NoError(t, reader.Err())
		require.NoError(t, reader.Close(t.Context()))
		require.ErrorIs(t, reader.Close(t.Context()), ErrClosed)
		require.ErrorIs(t, reader.Scan(t.Context(), []byte("a"), All(), ScanOptions{}).drain(), ErrClosed)
	})
}

// drain reads to the end and returns the error.
func (it *Iterator) drain() error {
	for range it.All() {
	}
	return it.Err()
}

func TestReplicaOfNoLog(t *testing.T) {
	store := newReadOnly(t, newStore())
	_, err := OpenReader(t.Context(), store, ReaderOptions{})
	require.ErrorIs(t, err, manifest.ErrNoLog)
	_, err = OpenReader(t.Context(), store, ReaderOptions{PollInterval: -1, TailBytes: -1, DiskCacheBytes: 5, StaleAfter: 1,
		CacheBytes: -1, Keys: KeyRange{Start: []byte("b"), End: []byte("a")}})
	for _, what := range []string{"PollInterval", "TailBytes", "DiskCacheBytes", "StaleAfter", "CacheBytes", "range of keys b..a"} {
		require.ErrorContains(t, err, what)
	}
}

// TestReplicaRequests pins what a replica asks the store for.
func TestReplicaRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		r.append("a", 5)
		reader := r.open(ReaderOptions{})
		wal, head, all := r.store.take()
		// LOG; MANIFEST, and once more behind the end of the WAL; ids 1, 2, 3 to 4, 5 to 7 of which 6 is missing.
		require.Equal(t, []int{7, 2, 10}, []int{wal, head, all})

		after(time.Minute) // the polls become rare
		r.store.take()
		after(time.Minute)
		wal, head, all = r.store.take()
		require.Equal(t, []int{60, 60, 120}, []int{wal, head, all}, "idle")

		// A record every 100 ms: an object and the end behind it, each time.
		follow := func(n int) {
			for range n {
				r.append("a", 1)
				after(100 * time.Millisecond)
			}
		}
		follow(20)
		r.store.take()
		follow(600)
		wal, head, all = r.store.take()
		require.Equal(t, []int{1200, 60, 1260}, []int{wal, head, all}, "following")
		r.same(reader, "a")
		require.Equal(t, uint64(5+620), reader.Status().WALObjectsRead)

		// Reads of what is in memory cost nothing.
		require.Len(t, values(t, reader, "a", All(), ScanOptions{}), 625)
		_, _, all = r.store.take()
		require.Zero(t, all)
	})
}

// TestReplicaPace: while records arrive the interval is PollInterval, then it
// doubles up to a second, or it is above that anyway.
func TestReplicaPace(t *testing.T) {
	r := &Reader{opts: ReaderOptions{Env: simulatedEnv()}.withDefaults()}
	r.env = r.opts.Env
	ms := time.Millisecond
	for quiet, want := range map[int]time.Duration{0: 100 * ms, 1: 100 * ms, 10: 100 * ms, 11: 200 * ms, 12: 400 * ms, 13: 800 * ms, 14: time.Second, 1 << 40: time.Second} {
		require.Equal(t, want, r.pace(quiet, 0), "%d", quiet)
	}
	require.LessOrEqual(t, r.pace(0, 1), 100*ms)
	require.LessOrEqual(t, r.pace(0, 1<<40), time.Second)
	r.opts.PollInterval = 10 * time.Second
	require.Equal(t, 10*time.Second, r.pace(0, 0))
	require.Equal(t, 10*time.Second, r.pace(1<<40, 0))
}

// What a replica cannot read it waits for: it is not ready, and serves what it has.
func TestReplicaAtDamage(t *testing.T) {
	flip := func(id uint64) func(string) fault.Plan {
		return func(name string) fault.Plan {
			if name == base.WALName(tree, 1, id) {
				return fault.FlipByte(100)
			}
			return fault.Plan{}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		r.append("a", 2)
		reader := r.open(ReaderOptions{})
		r.store.breaks(flip(4))
		r.append("a", 5)
		after(4 * time.Second)
		require.Equal(t, uint64(3), reader.Frontier(), "up to the damage and not behind it")
		require.NoError(t, reader.Ready(t.Context()), "a moment is no lag yet")
		after(4 * time.Second)
		require.ErrorIs(t, reader.Ready(t.Context()), ErrCorrupt)
		require.ErrorContains(t, reader.Ready(t.Context()), base.WALName(tree, 1, 4))
		require.Greater(t, reader.Status().LagTime, 5*time.Second)
		require.Len(t, values(t, reader, "a", All(), ScanOptions{}), 3)
		r.store.breaks(nil)
		after(2 * time.Second)
		require.NoError(t, reader.Ready(t.Context()))
		r.same(reader, "a")
		require.Zero(t, reader.Status().Jumps)

		// Once a MANIFEST has passed it, damage does not matter.
		r.store.breaks(flip(8))
		r.append("a", 3)
		after(2 * time.Second)
		require.Equal(t, uint64(7), reader.Frontier())
		require.NoError(t, r.db.Flush(t.Context()))
		after(2 * time.Second)
		r.same(reader, "a")
		require.NoError(t, reader.Ready(t.Context()))
		require.Equal(t, uint64(1), reader.Status().Jumps)
	})
}

// A store that answers slowly, not at all, with less than there is, or with 503.
func TestReplicaOnABadStore(t *testing.T) {
	slow := func(d time.Duration) fault.Plan {
		return fault.Plan{Before: func(ctx context.Context) error {
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
	}
	for what, plan := range map[string]func(n int) fault.Plan{
		"slow": func(int) fault.Plan { return slow(700 * time.Millisecond) },
		"every third hangs": func(n int) fault.Plan {
			if n%3 == 0 {
				return slow(time.Hour)
			}
			return fault.Plan{}
		},
		"every second is cut short": func(n int) fault.Plan {
			if n%2 == 0 {
				return fault.Truncate(70)
			}
			return fault.Plan{}
		},
		"every second is 503": func(n int) fault.Plan {
			if n%2 == 0 {
				return fault.Refuse(fmt.Errorf("503: %w", fault.ErrInjected))
			}
			return fault.Plan{}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReplicaRig(t, smallOptions())
				r.append("a", 5)
				reader := r.open(ReaderOptions{})
				n := 0
				r.store.breaks(func(string) fault.Plan { n++; return plan(n) })
				last := reader.Frontier()
				for i := range 60 {
					r.append("a", 3)
					if i%20 == 10 {
						require.NoError(t, r.db.Flush(t.Context()))
					}
					after(time.Second)
					require.GreaterOrEqual(t, reader.Frontier(), last)
					last = reader.Frontier()
					got := values(t, reader, "a", Between(reader.Status().FlushedEnd, last), ScanOptions{})
					require.Equal(t, values(t, r.db, "a", Between(reader.Status().FlushedEnd, last), ScanOptions{}), got)
				}
				r.store.breaks(nil)
				after(3 * time.Minute)
				r.same(reader, "a")
				require.NoError(t, reader.Ready(t.Context()))
			})
		})
	}
}

// What does not fit into TailBytes is not read before the writer has flushed it.
func TestReplicaTailIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := smallOptions()
		o.MemtableBytes, o.SegmentBytes = 64<<20, 1<<30
		r := newReplicaRig(t, o)
		reader := r.open(ReaderOptions{TailBytes: 256 << 10})
		value := strings.Repeat("v", 10<<10)
		for range 100 {
			mustAppend(t, r.db, record("a", value))
		}
		after(10 * time.Second)
		require.Less(t, reader.Frontier(), uint64(40))
		require.Greater(t, reader.Frontier(), uint64(5))
		require.Less(t, reader.Status().MemtableBytes, int64(512<<10))
		require.ErrorIs(t, reader.Ready(t.Context()), errTailFull)
		r.store.take()
		after(10 * time.Second)
		wal, _, _ := r.store.take()
		require.Zero(t, wal, "it asks for nothing that it could not keep")

		require.NoError(t, r.db.Flush(t.Context()))
		after(2 * time.Second)
		r.same(reader, "a")
		require.NoError(t, reader.Ready(t.Context()))
		require.Equal(t, uint64(1), reader.Status().Jumps)

		// What is flushed as it comes stays in memory as far as there is room.
		for range 100 {
			mustAppend(t, r.db, record("a", value))
			require.NoError(t, r.db.Flush(t.Context()))
			after(300 * time.Millisecond)
			require.Less(t, reader.Status().MemtableBytes, int64(512<<10))
		}
		after(2 * time.Second)
		r.same(reader, "a")
		r.store.take()
		require.Len(t, values(t, reader, "a", From(reader.Frontier()-10), ScanOptions{}), 10)
		_, _, all := r.store.take()
		require.Zero(t, all)
	})
}

// A scoped replica answers for its keys only, and holds only those.
func TestReplicaScoped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		all := r.open(ReaderOptions{})
		reader := r.open(ReaderOptions{Keys: KeyRange{Start: []byte("b"), End: []byte("d")}})
		for i := range 50 {
			var recs []Record
			for _, key := range []string{"a", "b", "b1", "c", "d", "b2", "zz"} {
				recs = append(recs, record(key, fmt.Sprint(key, i)))
			}
			mustAppend(t, r.db, recs...)
			if i%20 == 19 {
				require.NoError(t, r.db.Flush(t.Context()))
			}
			after(250 * time.Millisecond)
			r.same(reader, "b", "b1", "b2", "c")
		}
		for _, key := range []string{"", "a", "d", "zz"} {
			_, err := reader.Count(t.Context(), []byte(key), All())
			require.ErrorIs(t, err, ErrOutOfRange)
			require.ErrorContains(t, err, "b..d")
			require.ErrorIs(t, reader.Scan(t.Context(), []byte(key), All(), ScanOptions{}).drain(), ErrOutOfRange)
			require.ErrorIs(t, reader.Wait(t.Context(), []byte(key), All()), ErrOutOfRange)
			_, err = reader.Follow(t.Context(), Stream{Key: []byte("b")}, Stream{Key: []byte(key)})
			require.ErrorIs(t, err, ErrOutOfRange)
			_, err = reader.Follow(t.Context(), Stream{Key: []byte(key), Prefix: true})
			require.ErrorIs(t, err, ErrOutOfRange)
		}
		for _, c := range []struct {
			o    KeysOptions
			want string
			more bool
		}{
			{KeysOptions{}, "b b1 b2 c", false},
			{KeysOptions{Limit: 2}, "b b1", true},
			{KeysOptions{After: []byte("b1")}, "b2 c", false},
			{KeysOptions{After: []byte("a")}, "b b1 b2 c", false},
			{KeysOptions{After: []byte("c")}, "", false},
			{KeysOptions{Prefix: []byte("b")}, "b b1 b2", false},
			{KeysOptions{Prefix: []byte("bz")}, "", false},
			{KeysOptions{Limit: 4}, "b b1 b2 c", false},
		} {
			page, err := reader.Keys(t.Context(), c.o)
			require.NoError(t, err)
			var got []string
			for _, key := range page.Keys {
				got = append(got, string(key))
			}
			require.Equal(t, c.want, strings.Join(got, " "), "%+v", c.o)
			require.Equal(t, c.more, page.More, "%+v", c.o)
		}
		for _, prefix := range []string{"a", "d", "z"} {
			_, err := reader.Keys(t.Context(), KeysOptions{Prefix: []byte(prefix)})
			require.ErrorIs(t, err, ErrOutOfRange, prefix)
		}
		require.Equal(t, r.db.Status().UnflushedBytes, reader.Status().UnflushedBytes, "of the log, not of what is kept")
		require.Less(t, reader.Status().MemtableBytes, all.Status().MemtableBytes)
		require.Equal(t, "b..d", reader.Status().Keys.String())
	})
}

// Wait is woken by what the tail applies, and by a jump over what it could not read (F39).
func TestReplicaWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		reader := r.open(ReaderOptions{})
		wait := func(key string, rng Range) chan error {
			done := make(chan error, 1)
			go func() { done <- reader.Wait(context.Background(), []byte(key), rng) }()
			synctest.Wait()
			return done
		}
		pending := func(done chan error) bool {
			synctest.Wait()
			return len(done) == 0
		}
		a, b, end := wait("a", All()), wait("b", All()), wait("c", Between(0, 2))
		r.append("a", 1)
		after(100 * time.Millisecond)
		require.NoError(t, <-a)
		require.True(t, pending(b))
		require.True(t, pending(end))
		r.append("d", 1)
		after(100 * time.Millisecond)
		require.NoError(t, <-end)

		r.store.breaks(walDown)
		r.append("b", 1)
		after(3 * time.Second)
		require.True(t, pending(b))
		require.NoError(t, r.db.Flush(t.Context()))
		after(time.Second)
		require.NoError(t, <-b)
		require.Equal(t, uint64(1), reader.Status().Jumps)

		closed := wait("e", All())
		require.True(t, pending(closed))
		require.NoError(t, reader.Close(t.Context()))
		require.ErrorIs(t, <-closed, ErrClosed)
	})
}

// Memories that were flushed go when their segment is dropped.
func TestReplicaRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := smallOptions()
		o.SegmentBytes, o.SegmentMinBytes, o.RetentionBytes, o.RetentionInterval = 10<<10, 1, 40<<10, time.Second
		r := newReplicaRig(t, o)
		reader := r.open(ReaderOptions{})
		for i := range 100 {
			mustAppend(t, r.db, record("a", strings.Repeat("v", 2000)), record("b", fmt.Sprint(i)))
			after(300 * time.Millisecond)
			if i%5 == 0 {
				after(3 * time.Second)
				require.Equal(t, r.db.FirstSequence(), reader.FirstSequence())
				r.same(reader, "a", "b")
			}
		}
		require.NotZero(t, reader.FirstSequence())
	})
}

// A log that a newer binary has changed cannot be followed: that is said, and is for good.
func TestReplicaOfANewerLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		reader := r.open(ReaderOptions{})
		require.NoError(t, reader.Err())
		r.store.breaks(func(name string) fault.Plan {
			if strings.HasSuffix(name, "/MANIFEST") {
				return fault.Refuse(fmt.Errorf("%w 7", manifest.ErrVersion))
			}
			return fault.Plan{}
		})
		after(2 * time.Second)
		<-reader.Failed()
		require.ErrorIs(t, reader.Err(), manifest.ErrVersion)
		require.ErrorIs(t, reader.Ready(t.Context()), manifest.ErrVersion)
		require.ErrorIs(t, reader.Scan(t.Context(), nil, All(), ScanOptions{}).drain(), manifest.ErrVersion)
		require.NoError(t, reader.Close(t.Context()))
	})
}

// A log that was deleted and made anew is another one: who has the old one open, writer or replica, says so and stops, and does
// not go on serving, or writing, what is gone.
func TestLogMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		r.append("a", 3)
		reader := r.open(ReaderOptions{})
		r.same(reader, "a")
		var names []string
		require.NoError(t, objstore.ListAll(t.Context(), r.inner, "", "", func(e objstore.Entry) (bool, error) {
			names = append(names, e.Name)
			return true, nil
		}))
		require.NoError(t, r.inner.Delete(t.Context(), names))
		other := openTest(t, r.inner, r.o)
		mustAppend(t, other, record("a", "of the new log"))

		after(2 * time.Second)
		for _, err := range []error{reader.Err(), reader.Ready(t.Context()), r.db.Err(), r.db.Ready(t.Context()),
			reader.Scan(t.Context(), []byte("a"), All(), ScanOptions{}).drain()} {
			require.ErrorIs(t, err, manifest.ErrOtherLog)
			require.ErrorContains(t, err, "another log is in the place of this one")
		}
		_, err := r.db.Append(t.Context(), []Record{record("a", "b")}, AppendOptions{})
		require.ErrorIs(t, err, manifest.ErrOtherLog)
		require.NoError(t, reader.Close(t.Context()))
		anew := r.open(ReaderOptions{})
		require.Equal(t, []string{"of the new log"}, values(t, anew, "a", All(), ScanOptions{}))
	})
}

// An open whose context ends, or whose store is down, leaves nothing behind.
func TestReplicaOpenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		r.append("a", 3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r.store.breaks(func(name string) fault.Plan {
			if strings.Contains(name, "/wal/") {
				return fault.Plan{Before: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
			}
			return fault.Plan{}
		})
		_, err := OpenReader(ctx, r.store, ReaderOptions{Env: r.env})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		r.store.breaks(allDown)
		_, err = OpenReader(t.Context(), r.store, ReaderOptions{Env: r.env})
		require.ErrorIs(t, err, fault.ErrInjected)

		// Without its WAL a log can be read as far as it is flushed.
		require.NoError(t, r.db.Flush(t.Context()))
		r.append("a", 1)
		r.store.breaks(walDown)
		reader := r.open(ReaderOptions{})
		require.Len(t, values(t, reader, "a", All(), ScanOptions{}), 3)
		after(6 * time.Second)
		require.ErrorIs(t, reader.Ready(t.Context()), fault.ErrInjected)
		r.store.breaks(nil)
		after(2 * time.Second)
		r.same(reader, "a")
	})
}

func TestKeyRange(t *testing.T) {
	for _, c := range []struct {
		r    KeyRange
		text string
		in   []string
		out  []string
	}{
		{KeyRange{}, "..", []string{"", "a", "\xff\xff"}, nil},
		{KeyRange{Start: []byte("b")}, "b..", []string{"b", "b\x00", "\xff"}, []string{"", "a\xff"}},
		{KeyRange{End: []byte("b")}, "..b", []string{"", "a\xff"}, []string{"b", "c"}},
		{KeyRange{Start: []byte("user.1"), End: []byte("user.2")}, "user.1..user.2", []string{"user.1", "user.11"}, []string{"user.2", "user.0"}},
		{KeyRange{Start: []byte("a."), End: []byte(".")}, "", nil, nil},
		{KeyRange{Start: []byte(".a"), End: []byte("b64:")}, "b64:LmE=..b64:YjY0Og==", []string{".b", "a"}, []string{"c"}},
		{KeyRange{Start: []byte{0, 1}, End: []byte{0xFF}}, "b64:AAE=..b64:/w==", []string{"\x00\x01", "k"}, []string{"", "\xff"}},
		{KeyRange{Start: []byte("a..b"), End: []byte("a b")}, "", nil, nil},
		{KeyRange{Start: []byte("ключ"), End: []byte("ключи")}, "ключ..ключи", []string{"ключа"}, []string{"ключи"}},
	} {
		if c.text == "" {
			require.Error(t, c.r.validate(), "%v", c.r)
			continue
		}
		require.NoError(t, c.r.validate())
		require.Equal(t, c.text, c.r.String())
		parsed, err := ParseKeyRange(c.text)
		require.NoError(t, err)
		require.Equal(t, c.r, parsed)
		for _, key := range c.in {
			require.True(t, c.r.Contains([]byte(key)), "%q in %v", key, c.r)
		}
		for _, key := range c.out {
			require.False(t, c.r.Contains([]byte(key)), "%q in %v", key, c.r)
		}
	}
	for _, text := range []string{"", "a", "a.b", "a...b", "a..b..c", "b..a", "b..b", "b64:!..", "..b64:x"} {
		_, err := ParseKeyRange(text)
		require.ErrorIs(t, err, ErrInvalid, "%q", text)
	}
}

func TestKeyRangeContainsPrefix(t *testing.T) {
	for _, c := range []struct {
		rng, prefix string
		want        bool
	}{
		{"..", "", true}, {"..", "\xff", true},
		{"a..", "", false}, {"a..", "a", true}, {"a..", "\xff\xff", true},
		{"..b", "a", true}, {"..b", "", false}, {"..b", "b", false}, {"..b", "\xff", false},
		{"a..b", "a", true}, {"a..b", "ab", true}, {"ab..b", "a", false}, {"a..ab", "a", false}, {"a..ab", "aa", true},
	} {
		r, err := ParseKeyRange(c.rng)
		require.NoError(t, err)
		require.Equal(t, c.want, r.ContainsPrefix([]byte(c.prefix)), "%s %q", c.rng, c.prefix)
	}
}

var _ objstore.Store = (*readOnly)(nil)
