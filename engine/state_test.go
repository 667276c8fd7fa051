package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/wal"
)

// TestStateIsCutWhereTheWALIs freezes memories between changes of the small state: each snapshot has exactly what the
// WAL objects before the memory's end say, so that what follows is replayed onto it once.
func TestStateIsCutWhereTheWALIs(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		var killed []objstore.Store
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.Put {
				killed = append(killed, r.clone())
			}
			return fault.Plan{}
		})
		for i := range uint64(6) {
			// Set, deleted, set anew, below what it was: a change that is replayed twice, or not at all, shows.
			mustSet(t, db, "c", cursor("k", 100-i))
			_, err := produce(t, db, "p", i, record("r", fmt.Sprint(i)))
			require.NoError(t, err)
			if i%2 == 0 {
				require.NoError(t, db.Flush(t.Context()))
			}
			require.NoError(t, db.DeleteCursors(t.Context(), "c", []byte("k")))
		}
		mustSet(t, db, "c", cursor("k", 1))
		db.crash()
		r.rule(nil)
		require.Greater(t, len(killed), 20)
		for i, store := range append(killed, r.clone()) {
			next, err := Open(t.Context(), store, r.options())
			require.NoError(t, err)
			recs := values(t, next, "r", All(), ScanOptions{})
			last, ok := next.small.tables.LastOf("p")
			require.Equal(t, len(recs) > 0, ok, "store %d", i)
			if ok {
				require.Equal(t, uint64(len(recs)-1), last, "a mark is there exactly if its batch is")
			}
			if at, ok := cursorsOf(t, next, "c")["k"]; ok && i < len(killed) {
				require.Contains(t, []int{len(recs), len(recs) + 1}, int(101-at), "store %d", i)
			}
			next.crash()
			checkStore(t, store)
		}
	})
}

// TestStateAlone: a log without a record keeps small state, seals nothing, and closes cleanly.
func TestStateAlone(t *testing.T) {
	store := newStore()
	for i := range uint64(5) {
		db := openTest(t, store, smallOptions())
		mustSet(t, db, "c", cursor("k", i+1), cursor(fmt.Sprint(i), i))
		require.NoError(t, db.Flush(t.Context()))
		require.Equal(t, uint64(1), db.Status().StateObjects)
		require.NoError(t, db.Flush(t.Context()))
		require.Equal(t, uint64(1), db.Status().StateObjects, "nothing changed")
		require.NoError(t, db.Close(t.Context()))
		require.Equal(t, uint64(1), db.Status().StateObjects)
		s := headOf(t, store)
		require.Zero(t, s.GetFlushedEnd())
		require.Zero(t, s.GetCleanNext())
		require.Len(t, s.GetSegments(), 1)
		require.Equal(t, s.GetPosition().Pos(), s.GetStatePosition().Pos())
	}
	db := openTest(t, store, smallOptions())
	require.Len(t, cursorsOf(t, db, "c"), 6)
	require.Equal(t, 1, checkStore(t, store).StateObjects)
}

func headOf(t *testing.T, store objstore.Store) *manifest.State {
	t.Helper()
	snap, err := manifest.Load(t.Context(), store, base.SystemEnv(), tree)
	require.NoError(t, err)
	return snap.State
}

// TestSealWithStateOnly: a segment is sealed while its memory holds nothing but changes of the small state, and
// while WAL objects without records are already of the next segment.
func TestSealWithStateOnly(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		t.Run(fmt.Sprint("flushed: ", flushed), func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				db := r.open(r.options())
				mustAppend(t, db, record("k", "1"))
				require.NoError(t, db.Flush(t.Context()))
				mustSet(t, db, "c", cursor("k", 1))
				if !flushed {
					r.rule(func(_ context.Context, op fault.Op) fault.Plan {
						if op.Name == base.ManifestName(tree) && op.Kind == fault.Put || strings.HasPrefix(op.Name, base.ObjectPrefix(tree, base.KindState)) {
							return fault.Refuse(errors.New("down"))
						}
						return fault.Plan{}
					})
				}
				db.mu.Lock()
				db.rotate(true)
				db.mu.Unlock()
				mustSet(t, db, "c", cursor("k", 2))
				if flushed {
					require.NoError(t, db.Flush(t.Context()))
				}
				db.crash()
				r.rule(nil)
				db = r.open(r.options())
				require.Equal(t, map[string]uint64{"k": 2}, cursorsOf(t, db, "c"))
				s := headOf(t, r.witness)
				require.Len(t, s.GetSegments(), 2)
				require.True(t, s.GetSegments()[0].GetSealed())
				require.Equal(t, uint64(1), s.GetSegments()[0].GetEndSequence())
			})
		})
	}
}

// TestStateLost: an open that finds a state object missing or damaged names it, and writes nothing over it.
func TestStateLost(t *testing.T) {
	damages := map[string]func(t *testing.T, store objstore.Store, name string){
		"missing": func(t *testing.T, store objstore.Store, name string) {
			require.NoError(t, store.Delete(t.Context(), []string{name}))
		},
		"a bit": func(t *testing.T, store objstore.Store, name string) {
			replaceObject(t, store, name, func(body []byte) { body[len(body)/2] ^= 1 })
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			store := newStore()
			db, err := Open(t.Context(), store, smallOptions())
			require.NoError(t, err)
			mustSet(t, db, "c", cursor("k", 1))
			require.NoError(t, db.Close(t.Context()))
			id := headOf(t, store).GetState().ID()
			damage(t, store, id.Name())
			_, err = Open(t.Context(), store, smallOptions())
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, id.Name())
			report, err := Check(t.Context(), store, CheckOptions{})
			require.NoError(t, err)
			require.Len(t, report.Damage, 1)
			require.ErrorContains(t, report.Damage[0], id.Name())
		})
	}
}

// TestStateBaseAndChanges: of a large small state a flush writes what changed, now and then a new base; what it
// replaces is collected.
func TestStateBaseAndChanges(t *testing.T) {
	const cursors, perFlush = 150_000, 6_000
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		o.MemtableBytes, o.WALObjectBytes = 64<<20, 8<<20
		db := r.open(o)
		rnd := rand.New(rand.NewPCG(1, 2))
		key := func(i int) []byte { return fmt.Appendf(nil, "%016x", uint64(i)*0x9E3779B97F4A7C15) }
		next := map[string]uint64{}
		set := func(from, n int, at uint64) {
			var list []Cursor
			for i := range n {
				k := key((from + i) % cursors)
				list = append(list, Cursor{Key: k, Next: at})
				next[string(k)] = at
			}
			mustSet(t, db, "consumer", list...)
		}
		for i := 0; i < cursors; i += MaxCursors {
			set(i, MaxCursors, 1)
		}
		require.NoError(t, db.Flush(t.Context()))
		before := db.Status()
		require.Equal(t, uint64(1), before.StateObjects)
		require.Greater(t, before.StateObjectBytes, uint64(stateBaseMin))
		var bases, flushes uint64
		for flushes = 0; flushes < 12; flushes++ {
			mustAppend(t, db, record("k", "v"))
			set(rnd.IntN(cursors), perFlush, flushes+2)
			require.NoError(t, db.Flush(t.Context()))
			if s := db.Head(); s.GetStateChanges() == nil {
				bases++
			} else {
				require.Less(t, s.GetStateChangesSize(), s.GetStateSize()/2)
			}
		}
		s := db.Status()
		written := s.StateObjectBytes - before.StateObjectBytes
		t.Logf("base %d bytes; %d flushes wrote %d bytes of state, %d of them a base", before.StateObjectBytes, flushes, written, bases)
		require.Equal(t, 1+flushes, s.StateObjects)
		require.NotZero(t, bases)
		require.Less(t, bases, flushes/4)
		require.Less(t, written, before.StateObjectBytes*flushes/4, "a fraction of the state a flush")
		require.Equal(t, uint64(flushes), s.Flushes)

		db.crash()
		db = r.open(o)
		require.Equal(t, next, allCursors(t, db, "consumer"))
		afterGrace(t, db)
		mustCollect(t, db)
		inForce := 1
		if db.Head().GetStateChanges() != nil {
			inForce++
		}
		require.Len(t, r.names(base.ObjectPrefix(tree, base.KindState)), inForce)
		require.NoError(t, db.Close(t.Context()))
	})
}

func allCursors(t *testing.T, r LogReader, consumer string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for o := (CursorsOptions{}); ; {
		page, err := r.Cursors(t.Context(), consumer, o)
		require.NoError(t, err)
		for _, c := range page.Cursors {
			all[string(c.Key)] = c.Next
		}
		if !page.More {
			return all
		}
		o.After = page.Cursors[len(page.Cursors)-1].Key
	}
}

// TestStateOfMemoriesInLine: several memories with changes wait for their commit; each is committed with its own
// snapshot, and what a base covers is not written again.
func TestStateOfMemoriesInLine(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		db := r.open(o)
		var down atomic.Bool
		down.Store(true)
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if down.Load() && op.Kind == fault.Put && strings.HasPrefix(op.Name, base.ObjectPrefix(tree, base.KindState)) {
				return fault.Refuse(errors.New("down"))
			}
			return fault.Plan{}
		})
		for i := range uint64(5) {
			mustSet(t, db, "c", cursor("k", 10-i), cursor(fmt.Sprint(i), i))
			require.NoError(t, db.DeleteCursors(t.Context(), "c", []byte("k")))
			db.mu.Lock()
			db.rotate(false)
			db.mu.Unlock()
		}
		require.Equal(t, uint64(0), db.Status().StateObjects)
		down.Store(false)
		elapse(time.Minute)
		require.Equal(t, uint64(5), db.Status().StateObjects)
		db.crash()
		db = r.open(o)
		require.Equal(t, map[string]uint64{"0": 0, "1": 1, "2": 2, "3": 3, "4": 4}, cursorsOf(t, db, "c"))
	})
}

// TestCloseWithStatePending says what is not durable.
func TestCloseWithStatePending(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		letThrough := r.holdWAL()
		defer letThrough()
		done := make(chan error, 1)
		go func() {
			_, err := db.SetCursors(t.Context(), "c", []Cursor{cursor("k", 1)}, CursorOptions{})
			done <- err
		}()
		elapse(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorContains(t, db.Close(ctx), "changes of cursors are not known to be durable")
		err := <-done
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorContains(t, err, "unknown")
		_, err = db.SetCursors(t.Context(), "c", nil, CursorOptions{})
		require.ErrorIs(t, err, ErrClosed)
		_, err = db.Consumers(t.Context(), "", 0)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// TestCheckSeesMarksOfNothing: a mark must be that of a batch in its object.
func TestCheckSeesMarksOfNothing(t *testing.T) {
	store := newStore()
	db, err := Open(t.Context(), store, smallOptions())
	require.NoError(t, err)
	b := db.newObject(0)
	b.AddBatch(0, 5, []Record{record("k", "v"), record("k", "v")})
	b.AddProducer(wal.ProducerMark{Producer: "p", Sequence: 1, First: 1, Count: 1, Timestamp: 5})
	_, err = store.Put(t.Context(), base.WALName(tree, 1, 1), b.Finish(), objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	report, err := Check(t.Context(), store, CheckOptions{})
	require.NoError(t, err)
	require.Len(t, report.Damage, 1)
	require.ErrorContains(t, report.Damage[0], `append 1 of producer "p" has 1 records from sequence 1`)
	db.crash()
}

// TestInspectState names the objects in force.
func TestInspectState(t *testing.T) {
	store := newStore()
	db := openTest(t, store, smallOptions())
	in, err := Inspect(t.Context(), store)
	require.NoError(t, err)
	require.Equal(t, InspectedState{}, in.State)
	mustSet(t, db, "c", cursor("k", 1))
	require.NoError(t, db.Flush(t.Context()))
	in, err = Inspect(t.Context(), store)
	require.NoError(t, err)
	s := headOf(t, store)
	require.Equal(t, InspectedState{Base: s.GetState().ID().Name(), BaseBytes: s.GetStateSize()}, in.State)
	require.Equal(t, 1, in.Totals.States)
	require.Zero(t, in.Totals.Unnamed)
}

// TestReadStateInPieces: a large object is read by several requests, a size that is too large is damage.
func TestReadStateInPieces(t *testing.T) {
	store := newStore()
	id := base.ObjectID{Tree: tree, Kind: base.KindState, Role: base.RoleWriter, Epoch: 1, ULID: base.SystemEnv().NewULID()}
	body := make([]byte, 2*statePiece+100)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(body)
	_, err := store.Put(t.Context(), id.Name(), body, objstore.PutOptions{})
	require.NoError(t, err)
	ts := uncached(store, base.SystemEnv())
	got, err := ts.whole(t.Context(), id, uint64(len(body)))
	require.NoError(t, err)
	require.Equal(t, body, got)
	require.Equal(t, uint64(3), ts.gets.Load())
	_, err = ts.whole(t.Context(), id, 1<<60)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = ts.loadState(t.Context(), &manifest.State{State: manifest.RefOf(id), StateSize: 100}, state.Limits{})
	require.ErrorIs(t, err, ErrCorrupt)
}

// TestStateBeforeTheFirstRecordOfAnEpoch: cursors that are flushed before anything is appended leave flushed_end below the
// sequence at which the epoch began.
func TestStateBeforeTheFirstRecordOfAnEpoch(t *testing.T) {
	store := newStore()
	db := openTest(t, store, smallOptions())
	mustAppend(t, db, record("k", "1"))
	db.crash()
	db = openTest(t, store, smallOptions())
	mustSet(t, db, "c", cursor("k", 1))
	require.NoError(t, db.Flush(t.Context()))
	res := mustAppend(t, db, record("k", "2"))
	require.Greater(t, res.First, uint64(1))
	require.Equal(t, uint64(1), headOf(t, store).GetFlushedEnd())
	require.Equal(t, uint64(1), checkStore(t, store).WALRecords)
	db.crash()
	db = openTest(t, store, smallOptions())
	require.Equal(t, []string{"1", "2"}, values(t, db, "k", All(), ScanOptions{}))
	require.Equal(t, map[string]uint64{"k": 1}, cursorsOf(t, db, "c"))
}

// TestF10StateWaitsForTheWAL: a snapshot is not put in force before the WAL objects that it covers are durable, also those behind the
// last record (F9, F10).
func TestF10StateWaitsForTheWAL(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		mustAppend(t, db, record("k", "v"))
		letThrough := r.holdWAL()
		go func() { _, _ = db.SetCursors(t.Context(), "c", []Cursor{cursor("k", 1)}, CursorOptions{}) }()
		elapse(time.Second)
		flushed := make(chan error, 1)
		go func() { flushed <- db.Flush(t.Context()) }()
		elapse(time.Second)
		require.Empty(t, flushed)
		require.Nil(t, headOf(t, r.witness).GetState())
		letThrough()
		require.NoError(t, <-flushed)
		require.NotNil(t, headOf(t, r.witness).GetState())
	})
}

// TestForgetLostState: an open that is told to goes on without a small state that is lost. What was changed after the last
// flush is in the WAL, and is not lost; nothing refers to the lost object afterwards.
func TestForgetLostState(t *testing.T) {
	for name, large := range map[string]bool{"small": false, "larger than changes need": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				o := r.manualOptions()
				if large {
					o.MemtableBytes = 64 << 20
				}
				db := r.open(o)
				n := 1
				if large {
					n = 140_000
				}
				for i := 0; i < n; i += 1000 {
					var cursors []Cursor
					for k := i; k < min(n, i+1000); k++ {
						cursors = append(cursors, cursor(fmt.Sprintf("a key of some length %016x", uint64(k)*0x9E3779B97F4A7C15), 1))
					}
					mustSet(t, db, "lost", cursors...)
				}
				mustAppend(t, db, record("k", "in a table"))
				require.NoError(t, db.Flush(t.Context()))
				if large {
					require.Greater(t, headOf(t, r.store).GetStateSize(), uint64(stateBaseMin))
				}
				mustSet(t, db, "kept", cursor("k", 7))
				mustAppend(t, db, record("k", "in the WAL"))
				db.crash()
				lost := headOf(t, r.store).GetState().ID().Name()
				r.damage(lost, 1)
				_, err := Open(t.Context(), r.store, o)
				require.ErrorIs(t, err, ErrCorrupt)

				o.ForgetLostState = strings.Replace(lost, "w", "c", 1) // of another loss
				_, err = Open(t.Context(), r.store, o)
				require.ErrorIs(t, err, ErrCorrupt)
				o.ForgetLostState = lost
				db = r.open(o)
				require.Equal(t, []string{"in a table", "in the WAL"}, values(t, db, "k", All(), ScanOptions{}))
				consumers, err := db.Consumers(t.Context(), "", 0)
				require.NoError(t, err)
				require.Equal(t, []string{"kept"}, consumers.Consumers)
				require.NotEqual(t, lost, headOf(t, r.store).GetState().ID().Name())
				checkStore(t, r.witness.Store)
				mustSet(t, db, "later", cursor("k", 8))
				require.NoError(t, db.Close(t.Context()))

				db = r.open(o)
				consumers, err = db.Consumers(t.Context(), "", 0)
				require.NoError(t, err)
				require.Equal(t, []string{"kept", "later"}, consumers.Consumers)

				db.crash()
				r.damage(headOf(t, r.store).GetState().ID().Name(), 1)
				_, err = Open(t.Context(), r.store, o)
				require.ErrorIs(t, err, ErrCorrupt, "what was said of one loss is not said of the next")
				r.damage(headOf(t, r.store).GetState().ID().Name(), 1)
			})
		})
	}
}
