package engine

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/mem"
)

// followWorld is a log, all that was appended to it, and followers of it.
type followWorld struct {
	t         *testing.T
	rnd       *rand.Rand
	store     *mem.Store
	o         Options
	db        *DB
	all       []Record // in sequence order
	followers []*followed
	pad       string // makes keys so long that few are pending
}

// followed is a follower and what it has returned.
type followed struct {
	*Follower
	streams []Stream
	last    map[string]uint64 // the last sequence returned of each key, by its short name, plus one
	cursor  uint64
}

// start returns the lowest start of the streams that want the key.
func (f *followed) start(key []byte) (uint64, bool) {
	start, ok := uint64(0), false
	for _, s := range f.streams {
		if bytes.Equal(s.Key, key) || s.Prefix && bytes.HasPrefix(key, s.Key) {
			if !ok || s.From < start {
				start = s.From
			}
			ok = true
		}
	}
	return start, ok
}

var followNames = []string{"", "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/d", "b", "b/1", "b/2", "b/22", "c"}

// name returns a key, or with prefix set perhaps what only a prefix can be.
func (w *followWorld) name(prefix bool) []byte {
	name := followNames[w.rnd.IntN(len(followNames))]
	if w.rnd.IntN(3) == 0 {
		name += fmt.Sprint(w.rnd.IntN(12))
	}
	if prefix {
		return []byte(name)
	}
	return []byte(name + w.pad)
}

// short returns a key without its padding.
func (w *followWorld) short(key []byte) string { return string(key[:len(key)-len(w.pad)]) }

func (w *followWorld) open() *DB {
	db, err := Open(w.t.Context(), w.store, w.o)
	require.NoError(w.t, err)
	return db
}

func (w *followWorld) append() {
	recs := make([]Record, 1+w.rnd.IntN(12))
	for i := range recs {
		recs[i] = Record{Key: w.name(false), Value: []byte(strings.Repeat("v", w.rnd.IntN(300)))}
		if w.rnd.IntN(4) == 0 && i > 0 {
			recs[i].Key = recs[i-1].Key
		}
	}
	ack := Durable
	if w.rnd.IntN(2) == 0 {
		ack = Memory
	}
	res, err := w.db.Append(w.t.Context(), recs, AppendOptions{Ack: ack})
	require.NoError(w.t, err)
	for i := range recs {
		recs[i].Sequence, recs[i].Timestamp = res.First+uint64(i), res.Timestamp
	}
	w.all = append(w.all, recs...)
}

func (w *followWorld) from() uint64 {
	frontier := w.db.Frontier()
	switch w.rnd.IntN(4) {
	case 0:
		return 0
	case 1:
		return frontier
	case 2:
		return frontier + w.rnd.Uint64N(30)
	}
	return w.rnd.Uint64N(frontier + 1)
}

func (w *followWorld) follow() {
	streams := make([]Stream, 1+w.rnd.IntN(5))
	for i := range streams {
		prefix := w.rnd.IntN(2) == 0
		streams[i] = Stream{Key: w.name(prefix), Prefix: prefix, From: w.from()}
	}
	w.followers = append(w.followers, w.start(streams))
}

func (w *followWorld) start(streams []Stream) *followed {
	f, err := w.db.Follow(w.t.Context(), streams...)
	require.NoError(w.t, err)
	return &followed{Follower: f, streams: streams, last: map[string]uint64{}}
}

// pending reports whether Next would not wait.
func (f *followed) pending() bool {
	f.c.followers.mu.Lock()
	defer f.c.followers.mu.Unlock()
	return f.first != nil || f.stopped || f.c.followers.stopped
}

// next reads once, and checks what comes.
func (w *followWorld) next(f *followed) {
	var held, given int
	o := FollowRead{MaxBytes: []int64{0, 1, 100, 1000}[w.rnd.IntN(4)]}
	if w.rnd.IntN(2) == 0 {
		o.Log = func(ctx context.Context) (func(), error) {
			held++
			return func() { given++ }, nil
		}
	}
	woken := w.rnd.IntN(10) == 0
	if woken {
		f.Wake()
	}
	later := time.AfterFunc(time.Second, f.Wake) // what is ready may hold no record
	recs, err := f.Next(o)
	later.Stop()
	require.NoError(w.t, err)
	require.True(w.t, !woken || len(recs) == 0)
	require.LessOrEqual(w.t, held-given, 1)
	var size int64
	for i := range recs {
		w.returned(f, &recs[i])
		size += int64(len(recs[i].Value))
	}
	require.True(w.t, o.MaxBytes == 0 || len(recs) <= 1 || size <= o.MaxBytes, "%d records with %d bytes", len(recs), size)
	w.checkCursor(f)
}

// returned checks that a record is the next one of its key, but for those that were dropped.
func (w *followWorld) returned(f *followed, rec *Record) {
	start, ok := f.start(rec.Key)
	require.True(w.t, ok && rec.Sequence >= start, "record %d of %.20q is not wanted from %d", rec.Sequence, rec.Key, start)
	from := max(start, f.last[w.short(rec.Key)])
	require.GreaterOrEqual(w.t, rec.Sequence, from, "twice, or out of order")
	for i := range w.all {
		want := &w.all[i]
		if want.Sequence < from || !bytes.Equal(want.Key, rec.Key) {
			continue
		}
		if want.Sequence == rec.Sequence {
			require.Equal(w.t, *want, *rec)
			f.last[w.short(rec.Key)] = rec.Sequence + 1
			return
		}
		require.Less(w.t, want.Sequence, w.db.FirstSequence(), "left out before %d", rec.Sequence)
	}
	w.t.Fatalf("record %d was never appended", rec.Sequence)
}

// checkCursor checks that nothing is missing below the cursor.
func (w *followWorld) checkCursor(f *followed) {
	cursor := f.Cursor()
	require.GreaterOrEqual(w.t, cursor, f.cursor, "the cursor fell")
	f.cursor = cursor
	w.missing(f, cursor)
}

// missing fails if a record below end was not returned.
func (w *followWorld) missing(f *followed, end uint64) {
	for i := range w.all {
		rec := &w.all[i]
		if rec.Sequence >= end || rec.Sequence < w.db.FirstSequence() {
			continue
		}
		if start, ok := f.start(rec.Key); ok && rec.Sequence >= start {
			require.Less(w.t, rec.Sequence, f.last[w.short(rec.Key)], "%.20q is missing below %d: streams %.40v", rec.Key, end, f.streams)
		}
	}
}

// drain reads until a follower has returned everything.
func (w *followWorld) drain(f *followed) {
	elapse(time.Second)
	for f.pending() {
		w.next(f)
	}
	w.missing(f, w.db.Frontier())
	start := w.db.Frontier()
	lowest := f.streams[0].From
	for _, s := range f.streams {
		lowest = min(lowest, s.From)
	}
	require.Equal(w.t, max(start, lowest), f.Cursor())
}

// reopen ends the log and opens it again. All followers end, and go on from their cursors.
func (w *followWorld) reopen() {
	old, want := w.db, ErrFenced
	if w.rnd.IntN(2) == 0 {
		require.NoError(w.t, old.Close(w.t.Context()))
		want = ErrClosed
	} else {
		require.NoError(w.t, old.WaitDurable(w.t.Context(), old.Frontier()-1))
		elapse(time.Second)
	}
	w.db = w.open()
	elapse(3 * time.Second) // the old one finds out
	if want == ErrFenced {
		require.Error(w.t, old.Close(w.t.Context()))
	}
	for i, f := range w.followers {
		_, err := f.Next(FollowRead{})
		require.ErrorIs(w.t, err, want)
		_, err = f.Next(FollowRead{})
		require.ErrorIs(w.t, err, want)
		require.ErrorIs(w.t, f.Err(), want)
		cursor := f.Cursor()
		w.missing(f, cursor)
		for k := range f.streams {
			f.streams[k].From = max(f.streams[k].From, cursor)
		}
		f.Close()
		w.followers[i] = w.start(f.streams)
	}
	require.Zero(w.t, old.Status().Followers)
}

func (w *followWorld) step() {
	var f *followed
	if len(w.followers) > 0 {
		f = w.followers[w.rnd.IntN(len(w.followers))]
	}
	switch n := w.rnd.IntN(100); {
	case n < 35:
		w.append()
	case n < 45 && len(w.followers) < 6:
		w.follow()
	case n < 80 && f != nil:
		if f.pending() {
			w.next(f)
		}
	case n < 84 && f != nil:
		w.drain(f)
	case n < 86 && f != nil:
		f.Close()
		f.Close()
		_, err := f.Next(FollowRead{})
		require.ErrorIs(w.t, err, ErrFollowerClosed)
		require.NoError(w.t, f.Err())
		w.missing(f, f.Cursor())
		w.followers = slices.DeleteFunc(w.followers, func(g *followed) bool { return g == f })
	case n < 90:
		require.NoError(w.t, w.db.Flush(w.t.Context()))
	case n < 94:
		w.append() // an empty segment is never sealed
		w.db.mu.Lock()
		if !w.db.active.table.Empty() {
			w.db.rotate(true)
		}
		w.db.mu.Unlock()
	case n < 95:
		elapse(DefaultRetentionInterval)
	case n < 96:
		w.reopen()
	case n < 97 && w.o.ReadVisibility == Durable: // as a replica announces that it does not know what came
		w.db.followers.moved(w.db.Frontier())
	case n < 99: // a memory with entries of the small state alone, or one that only seals, which is there for a moment
		_, err := w.db.SetCursors(w.t.Context(), "c", []Cursor{{Key: []byte("k"), Next: w.db.Frontier() + 1}}, CursorOptions{})
		require.NoError(w.t, err)
		w.db.mu.Lock()
		w.db.rotate(w.db.active.table.Empty() && len(activeSegment(w.db.snapshot.State).GetRuns()) > 0 && len(w.db.frozen) == 0)
		w.db.mu.Unlock()
		w.append()
		if f != nil && f.pending() {
			w.next(f)
		}
	}
}

// Whatever happens to the log meanwhile, each follower returns exactly what its streams want, in order, once.
func TestFollowAnything(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &followWorld{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), o: simulatedOptions()}
				w.store = mem.New(mem.Options{Now: time.Now})
				w.o.RecentBytes = []int64{1, 64 << 10, 1 << 30}[w.rnd.IntN(3)]
				w.o.DisableCompaction = w.rnd.IntN(2) == 0
				w.o.MaxKeyBytes = maxKeyBytes
				if w.rnd.IntN(2) == 0 {
					w.o.ReadVisibility = Memory
				}
				if w.rnd.IntN(2) == 0 {
					w.o.RetentionBytes, w.o.SegmentBytes, w.o.SegmentMinBytes = 8<<10, 2<<10, 1<<10
				}
				if w.rnd.IntN(2) == 0 {
					w.pad = strings.Repeat("p", maxPendingBytes/8)
					for _, size := range []*int64{&w.o.RetentionBytes, &w.o.SegmentBytes, &w.o.SegmentMinBytes, &w.o.MemtableBytes, &w.o.TableBytes, &w.o.WALObjectBytes} {
						*size *= 64
					}
				}
				w.db = w.open()
				for range 150 {
					w.step()
				}
				for _, f := range w.followers {
					w.drain(f)
					f.Close()
				}
				require.Zero(t, w.db.Status().Followers)
				requireEmpty(t, &w.db.followers)
				require.NoError(t, w.db.Close(t.Context()))
				checkStore(t, w.store)
			})
		})
	}
}

// requireEmpty fails if the hub keeps something though nobody is there.
func requireEmpty(t *testing.T, h *followers) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Zero(t, h.waiting.Load())
	require.Empty(t, h.keys)
	require.Empty(t, h.prefixes)
	require.Empty(t, h.lengths)
	require.Empty(t, h.ends)
}

// moved announces, as a replica does, that the frontier moved over records that are not known.
func (h *followers) moved(frontier uint64) {
	if h.announce(announcement{jump: true, frontier: frontier}) {
		h.deliver()
	}
}
