package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func cursor(key string, next uint64) Cursor { return Cursor{Key: []byte(key), Next: next} }

func mustSet(t *testing.T, db *DB, consumer string, cursors ...Cursor) []Cursor {
	t.Helper()
	got, err := db.SetCursors(t.Context(), consumer, cursors, CursorOptions{})
	require.NoError(t, err)
	return got
}

// cursorsOf reads all cursors of a consumer.
func cursorsOf(t *testing.T, r LogReader, consumer string) map[string]uint64 {
	t.Helper()
	page, err := r.Cursors(t.Context(), consumer, CursorsOptions{})
	require.NoError(t, err)
	require.False(t, page.More)
	all := map[string]uint64{}
	for _, c := range page.Cursors {
		all[string(c.Key)] = c.Next
	}
	return all
}

func consumersOf(t *testing.T, r LogReader) []string {
	t.Helper()
	page, err := r.Consumers(t.Context(), "", 0)
	require.NoError(t, err)
	return page.Consumers
}

// reopenings are the ways in which a log comes to its next writer.
var reopenings = map[string]func(t *testing.T, db *DB){
	"crash with all in the WAL": func(_ *testing.T, db *DB) { db.crash() },
	"crash after a flush": func(t *testing.T, db *DB) {
		require.NoError(t, db.Flush(t.Context()))
		db.crash()
	},
	"clean close": func(t *testing.T, db *DB) { require.NoError(t, db.Close(t.Context())) },
	"takeover":    func(*testing.T, *DB) {},
}

func TestCursors(t *testing.T) {
	for name, leave := range reopenings {
		for _, withRecords := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", records: ", withRecords), func(t *testing.T) {
				store := newStore()
				db := openTest(t, store, smallOptions())
				also := func() {
					if withRecords {
						mustAppend(t, db, record("k", "v"))
					}
				}
				require.Empty(t, cursorsOf(t, db, "c"))
				also()
				require.Equal(t, []Cursor{cursor("a", 3), cursor("b", 7)}, mustSet(t, db, "c", cursor("a", 3), cursor("b", 7)))
				require.Equal(t, []Cursor{cursor("", 0)}, mustSet(t, db, "d", cursor("", 0)))
				also()
				require.Equal(t, []Cursor{cursor("b", 7), cursor("a", 4), cursor("a", 4)},
					mustSet(t, db, "c", cursor("b", 6), cursor("a", 4), cursor("a", 2)), "forwards only")
				forced, err := db.SetCursors(t.Context(), "c", []Cursor{cursor("b", 5)}, CursorOptions{Force: true})
				require.NoError(t, err)
				require.Equal(t, []Cursor{cursor("b", 5)}, forced)
				mustSet(t, db, "gone", cursor("x", 1), cursor("y", 2))
				mustSet(t, db, "c", cursor("x", 1))
				require.NoError(t, db.DeleteCursors(t.Context(), "gone"))
				require.NoError(t, db.DeleteCursors(t.Context(), "c", []byte("x"), []byte("nobody")))
				require.NoError(t, db.DeleteCursors(t.Context(), "nobody"))
				verify := func(db *DB) {
					require.Equal(t, map[string]uint64{"a": 4, "b": 5}, cursorsOf(t, db, "c"))
					require.Equal(t, map[string]uint64{"": 0}, cursorsOf(t, db, "d"))
					require.Equal(t, []string{"c", "d"}, consumersOf(t, db))
					s := db.Status()
					require.Equal(t, [2]int{2, 3}, [2]int{s.Consumers, s.Cursors})
				}
				verify(db)
				for range 3 {
					leave(t, db)
					old := db
					db = openTest(t, store, smallOptions())
					verify(db)
					if name == "takeover" {
						_, err := old.SetCursors(t.Context(), "c", []Cursor{cursor("a", 9)}, CursorOptions{})
						require.ErrorIs(t, err, ErrFenced)
						require.ErrorContains(t, err, "unknown")
						_, err = old.Cursors(t.Context(), "c", CursorsOptions{})
						require.ErrorIs(t, err, ErrFenced)
						verify(db)
					}
				}
				require.Zero(t, checkStore(t, store).WALObjects)
			})
		}
	}
}

func TestCursorPages(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	for i := range 25 {
		mustSet(t, db, "c", cursor(fmt.Sprintf("k%02d", i), uint64(i)))
		mustSet(t, db, fmt.Sprintf("consumer %02d", i), cursor("", 0))
	}
	mustSet(t, db, "c", cursor("", 99))
	var all []Cursor
	o := CursorsOptions{Limit: 10}
	for pages := 1; ; pages++ {
		page, err := db.Cursors(t.Context(), "c", o)
		require.NoError(t, err)
		all = append(all, page.Cursors...)
		if !page.More {
			require.Equal(t, 3, pages)
			break
		}
		require.Len(t, page.Cursors, 10)
		o.After = all[len(all)-1].Key
	}
	require.Len(t, all, 26)
	require.Equal(t, cursor("", 99), all[0])
	for _, c := range []struct {
		prefix string
		after  []byte
		limit  int
		want   []Cursor
		more   bool
	}{
		{"k1", nil, 3, []Cursor{cursor("k10", 10), cursor("k11", 11), cursor("k12", 12)}, true},
		{"k1", []byte("k17"), 3, []Cursor{cursor("k18", 18), cursor("k19", 19)}, false},
		{"k1", []byte("a"), 1, []Cursor{cursor("k10", 10)}, true},
		{"k1", []byte("k19"), 3, []Cursor{}, false},
		{"k1", []byte("k2"), 3, []Cursor{}, false},
		{"k24", nil, 3, []Cursor{cursor("k24", 24)}, false},
		{"k17x", nil, 3, []Cursor{}, false},
		{"l", nil, 3, nil, false},
	} {
		page, err := db.Cursors(t.Context(), "c", CursorsOptions{Prefix: []byte(c.prefix), After: c.after, Limit: c.limit})
		require.NoError(t, err)
		require.Equal(t, CursorsPage{Cursors: c.want, More: c.more}, page, "%q after %q", c.prefix, c.after)
	}
	require.Equal(t, cursor("k24", 24), all[25])
	page, err := db.Cursors(t.Context(), "c", CursorsOptions{After: []byte{}, Limit: 1})
	require.NoError(t, err)
	require.Equal(t, CursorsPage{Cursors: []Cursor{cursor("k00", 0)}, More: true}, page)
	page, err = db.Cursors(t.Context(), "c", CursorsOptions{Keys: [][]byte{[]byte("k07"), []byte("nobody"), []byte("k03")}})
	require.NoError(t, err)
	require.Equal(t, CursorsPage{Cursors: []Cursor{cursor("k07", 7), cursor("k03", 3)}}, page)
	page, err = db.Cursors(t.Context(), "c", CursorsOptions{Keys: [][]byte{}})
	require.NoError(t, err)
	require.Empty(t, page.Cursors)

	consumers, err := db.Consumers(t.Context(), "consumer 20", 3)
	require.NoError(t, err)
	require.Equal(t, ConsumersPage{Consumers: []string{"consumer 21", "consumer 22", "consumer 23"}, More: true}, consumers)
}

func TestCursorArguments(t *testing.T) {
	o := smallOptions()
	o.MaxKeyBytes, o.MaxValueBytes, o.MaxUnflushedBytes = 100, 100, 10_000
	db := openTest(t, newStore(), o)
	for name, consumer := range map[string]string{
		"empty": "", "too long": strings.Repeat("c", 129), "slash": "a/b", "control": "a\nb", "delete": "a\x7Fb", "not UTF-8": "a\xFFb",
	} {
		_, err := db.SetCursors(t.Context(), consumer, []Cursor{cursor("k", 1)}, CursorOptions{})
		require.ErrorIs(t, err, ErrInvalid, name)
		require.ErrorIs(t, db.DeleteCursors(t.Context(), consumer), ErrInvalid, name)
		_, err = db.Cursors(t.Context(), consumer, CursorsOptions{})
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	_, err := db.SetCursors(t.Context(), "c", make([]Cursor, MaxCursors+1), CursorOptions{})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, db.DeleteCursors(t.Context(), "c", make([][]byte, MaxCursors+1)...), ErrInvalid)
	_, err = db.Cursors(t.Context(), "c", CursorsOptions{Keys: make([][]byte, MaxCursors+1)})
	require.ErrorIs(t, err, ErrInvalid)
	long := strings.Repeat("k", 101)
	_, err = db.SetCursors(t.Context(), "c", []Cursor{cursor(long, 1)}, CursorOptions{})
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorIs(t, db.DeleteCursors(t.Context(), "c", []byte(long)), ErrTooLarge)
	mustSet(t, db, strings.Repeat("ü", 64), cursor(long[1:], 1<<64-1))
	require.Empty(t, mustSet(t, db, "c"))
	require.Equal(t, []string{strings.Repeat("ü", 64)}, consumersOf(t, db))
}

// TestManyCursorsAtOnce: a call that takes several parts, also where each is more than may be unflushed.
func TestManyCursorsAtOnce(t *testing.T) {
	for _, unflushed := range []int64{300, 1 << 20} {
		o := smallOptions()
		o.MaxKeyBytes, o.MaxValueBytes, o.MaxUnflushedBytes = 100, 100, unflushed
		store := newStore()
		db := openTest(t, store, o)
		const n = 3*cursorsAtOnce + 1
		var list []Cursor
		var keys [][]byte
		for i := range n {
			list = append(list, cursor(fmt.Sprintf("%04d", i), uint64(i)))
			keys = append(keys, list[i].Key)
		}
		require.Equal(t, list, mustSet(t, db, "c", list...))
		page, err := db.Cursors(t.Context(), "c", CursorsOptions{})
		require.NoError(t, err)
		require.Equal(t, list, page.Cursors)
		require.NoError(t, db.DeleteCursors(t.Context(), "c", keys[1:]...))
		require.Equal(t, map[string]uint64{"0000": 0}, cursorsOf(t, db, "c"))
		db.crash()
		o.MaxStateBytes = 20_000
		db = openTest(t, store, o)
		require.Equal(t, map[string]uint64{"0000": 0}, cursorsOf(t, db, "c"))
		_, err = db.SetCursors(t.Context(), "c", list, CursorOptions{})
		require.ErrorIs(t, err, ErrStateFull)
		require.NotContains(t, err.Error(), "unknown")
		require.Len(t, cursorsOf(t, db, "c"), 1, "none was set")
	}
}

// TestCursorsThatDoNotMove cost no WAL object, and wait for the one that moved them.
func TestCursorsThatDoNotMove(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		mustSet(t, db, "c", cursor("k", 5))
		objects := db.Status().WALObjects
		mustSet(t, db, "c", cursor("k", 5), cursor("k", 4))
		require.NoError(t, db.DeleteCursors(t.Context(), "nobody"))
		require.Equal(t, objects, db.Status().WALObjects)

		letThrough := r.holdWAL()
		done := make(chan error, 4)
		for _, next := range []uint64{6, 6} {
			go func() {
				_, err := db.SetCursors(t.Context(), "c", []Cursor{cursor("k", next)}, CursorOptions{})
				done <- err
			}()
			synctest.Wait()
		}
		go func() {
			page, err := db.Cursors(t.Context(), "c", CursorsOptions{})
			if err == nil && page.Cursors[0].Next != 6 {
				err = fmt.Errorf("read %d", page.Cursors[0].Next)
			}
			done <- err
		}()
		go func() { done <- db.DeleteCursors(t.Context(), "nobody") }()
		synctest.Wait()
		require.Empty(t, done)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := db.Cursors(ctx, "c", CursorsOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = db.SetCursors(ctx, "c", []Cursor{cursor("k", 7)}, CursorOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "unknown")
		letThrough()
		for range 4 {
			require.NoError(t, <-done)
		}
		require.Equal(t, map[string]uint64{"k": 7}, cursorsOf(t, db, "c"), "it was under way")
	})
}

// TestCursorsInMemory: where reads see what is in memory, cursors are read at once.
func TestCursorsInMemory(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.ReadVisibility = Memory
		db := r.open(o)
		letThrough := r.holdWAL()
		defer letThrough()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := db.SetCursors(ctx, "c", []Cursor{cursor("k", 7)}, CursorOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, map[string]uint64{"k": 7}, cursorsOf(t, db, "c"))
	})
}

func TestMaxStateBytes(t *testing.T) {
	o := smallOptions()
	o.MaxStateBytes = 20_000
	store := newStore()
	db := openTest(t, store, o)
	n := 0
	for ; ; n++ {
		_, err := db.SetCursors(t.Context(), "c", []Cursor{cursor(fmt.Sprint("key ", n), 1)}, CursorOptions{})
		if err != nil {
			require.ErrorIs(t, err, ErrStateFull)
			require.NotContains(t, err.Error(), "unknown")
			break
		}
	}
	require.Greater(t, n, 100)
	require.Less(t, n, 1000)
	s := db.Status()
	require.Equal(t, n, s.Cursors)
	require.LessOrEqual(t, s.StateBytes, o.MaxStateBytes*21/20)
	_, err := db.SetCursors(t.Context(), "c", []Cursor{cursor("key 0", 2), cursor("new", 2)}, CursorOptions{})
	require.ErrorIs(t, err, ErrStateFull)
	require.Equal(t, uint64(1), cursorsOf(t, db, "c")["key 0"], "all or nothing")
	mustSet(t, db, "c", cursor("key 0", 2))
	_, err = produce(t, db, "p", 0, record("k", "v"))
	require.NoError(t, err, "appends are not refused for it")
	require.NoError(t, db.Close(t.Context()))
	db = openTest(t, store, o)
	require.Equal(t, n, db.Status().Cursors)
	require.NoError(t, db.DeleteCursors(t.Context(), "c"))
	mustSet(t, db, "c", cursor("new", 2))
}

// TestStateWaitsInLine: changes of cursors count in what may be unflushed, and a stream of them is flushed by and by.
func TestStateWaitsInLine(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.MaxKeyBytes, o.MaxValueBytes, o.MaxUnflushedBytes = 100, 100, 2_000
		o.MemtableBytes = 1_000
		db := r.open(o)
		for i := range uint64(200) {
			mustSet(t, db, "c", cursor("k", i+1))
		}
		require.NoError(t, db.Flush(t.Context()))
		s := db.Status()
		require.Zero(t, s.UnflushedBytes)
		require.Greater(t, s.StateObjects, uint64(5))
		require.Zero(t, s.Flushes, "no runs")
		require.Zero(t, s.FlushedEnd)
		letThrough := r.holdWAL()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var err error
		for i := uint64(300); err == nil; i++ {
			short, stop := context.WithTimeout(ctx, time.Millisecond)
			_, err = db.SetCursors(short, "c", []Cursor{cursor("k", i)}, CursorOptions{})
			if !errors.Is(err, ErrOverloaded) && ctx.Err() == nil {
				err = nil // it waits for durability
			}
			stop()
		}
		require.ErrorIs(t, err, ErrOverloaded)
		letThrough()
		mustSet(t, db, "c", cursor("k", 9999))
		db.crash()
		db = r.open(o)
		require.Equal(t, map[string]uint64{"k": 9999}, cursorsOf(t, db, "c"))
	})
}

// TestManyWALObjectsOfState: what an open must replay is bounded in requests too.
func TestManyWALObjectsOfState(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	db.mu.Lock()
	db.active.from.ID = db.nextID - maxWALObjects // as if so many had been cut
	db.mu.Unlock()
	_, err := db.SetCursors(t.Context(), "c", []Cursor{cursor("k", 1)}, CursorOptions{})
	require.NoError(t, err)
	db.mu.Lock()
	rotated := db.active.empty()
	db.mu.Unlock()
	require.True(t, rotated)
	db.crash()
}

// Whether there is room is looked at for all cursors of a call before the first is set.
func TestSetCursorsWithoutRoomSetsNone(t *testing.T) {
	o := smallOptions()
	o.MaxStateBytes = 64 << 10
	db := openTest(t, newStore(), o)
	var list []Cursor
	for i := range 5000 {
		list = append(list, cursor(fmt.Sprintf("key-%016d", i), 1))
	}
	_, err := db.SetCursors(t.Context(), "c", list, CursorOptions{})
	require.ErrorIs(t, err, ErrStateFull)
	require.Zero(t, db.Status().Cursors)
}
