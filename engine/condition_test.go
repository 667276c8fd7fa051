package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/fault"
)

// expecting is an append that expects that a key has no record at or above next.
func expecting(key string, next uint64) AppendOptions {
	return AppendOptions{ExpectedNext: []KeySequence{{Key: []byte(key), Next: next}}}
}

// requireConflict requires that an append was refused because of a record.
func requireConflict(t *testing.T, err error, key string, last uint64) {
	t.Helper()
	require.ErrorIs(t, err, ErrConflict)
	var failed *AppendError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, NotAppended, failed.Outcome)
	var conflict *ConditionError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, ConditionError{Key: []byte(key), Last: last}, *conflict)
}

// TestConditionEverywhere looks for the conflicting record wherever it may be.
func TestConditionEverywhere(t *testing.T) {
	places := map[string]func(t *testing.T, db *DB){
		"in the active memory": func(*testing.T, *DB) {},
		"in a flushed memory":  func(t *testing.T, db *DB) { require.NoError(t, db.Flush(t.Context())) },
		"in a run": func(t *testing.T, db *DB) {
			require.NoError(t, db.Flush(t.Context()))
			db.forgetRecent()
		},
	}
	for name, move := range places {
		t.Run(name, func(t *testing.T) {
			db := openTest(t, newStore(), smallOptions())
			mustAppend(t, db, record("other", "0"), record("k", "1"), record("k", "2"), record("other", "3"))
			move(t, db)
			for _, c := range []struct {
				key      string
				next     uint64
				conflict uint64 // 0: none
			}{
				{"k", 0, 2}, {"k", 1, 2}, {"k", 2, 2}, {"k", 3, 0}, {"k", 1 << 63, 0}, {"k", 1<<64 - 1, 0},
				{"other", 3, 3}, {"other", 4, 0}, {"nobody", 0, 0},
			} {
				_, err := db.Append(t.Context(), nil, expecting(c.key, c.next))
				if c.conflict == 0 {
					require.NoError(t, err, "%s from %d on", c.key, c.next)
				} else {
					requireConflict(t, err, c.key, c.conflict)
				}
			}
			all := []KeySequence{{Key: []byte("k"), Next: 3}, {Key: []byte("other"), Next: 4}, {Key: []byte("new"), Next: 0}}
			res, err := db.Append(t.Context(), []Record{record("new", "4")}, AppendOptions{ExpectedNext: all})
			require.NoError(t, err)
			require.Equal(t, uint64(4), res.First)
			_, err = db.Append(t.Context(), []Record{record("k", "5")}, AppendOptions{ExpectedNext: all})
			requireConflict(t, err, "new", 4)
			require.Equal(t, uint64(5), db.Frontier(), "nothing was appended")
			require.Equal(t, uint64(5), db.Status().Conflicts)
		})
	}
}

// forgetRecent makes the writer drop the memories that were flushed already.
func (db *DB) forgetRecent() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.recent = nil
	db.publishView(false)
}

// TestConditionInGroups looks for records that are in consolidated segments, and not for those that retention dropped.
func TestConditionInGroups(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.groupedKeys(r.options())
		for i := range 6 {
			key := fmt.Sprint("only in ", i)
			last := uint64(41*i + 40) // the 41 records of a segment
			_, err := db.Append(t.Context(), nil, expecting(key, last))
			requireConflict(t, err, key, last)
			_, err = db.Append(t.Context(), nil, expecting(key, last+1))
			require.NoError(t, err)
		}
		db.forgetRecent()
		_, err := db.Append(t.Context(), nil, expecting("key 3", 0))
		requireConflict(t, err, "key 3", 5*41+3)
		_, err = db.Append(t.Context(), nil, expecting("only in 0", 0))
		requireConflict(t, err, "only in 0", 40)
		_, err = db.Append(t.Context(), []Record{record("nobody", "v")}, expecting("nobody", 0))
		require.NoError(t, err)

		_, err = db.committer.Commit(t.Context(), manifest.DropSegments(db.epoch, 2, nil)) // a whole group
		require.NoError(t, err)
		_, err = db.Append(t.Context(), nil, expecting("only in 0", 0))
		require.NoError(t, err, "it was dropped")
	})
}

// TestConditionOneWins lets many append to one key, each what it thinks comes next: one of them wins each
// sequence, and the log is as if they had taken turns. Memories are flushed and dropped all the time.
func TestConditionOneWins(t *testing.T) {
	const clients, rounds = 8, 40
	o := smallOptions()
	o.MemtableBytes, o.RecentBytes = 1, 1
	db := openTest(t, newStore(), o)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[uint64]string{}
	for c := range clients {
		wg.Go(func() {
			next := uint64(0)
			for i := 0; i < rounds; {
				value := fmt.Sprint(c, "-", i)
				res, err := db.Append(t.Context(), []Record{record("k", value)}, expecting("k", next))
				var conflict *ConditionError
				switch {
				case errors.As(err, &conflict):
					if conflict.Last < next {
						t.Errorf("conflict at %d, below %d", conflict.Last, next)
						return
					}
					next = conflict.Last + 1
				case err != nil:
					t.Error(err)
					return
				default:
					mu.Lock()
					won[res.First] = value
					mu.Unlock()
					next = res.First + 1
					i++
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, won, clients*rounds, "each sequence was won once")
	all := values(t, db, "k", All(), ScanOptions{})
	require.Len(t, all, clients*rounds)
	for seq, value := range won {
		require.Equal(t, value, all[seq])
	}
}

// TestConditionSeesWhatIsNotDurable: a record that was assigned counts before it is durable, and whoever is refused
// because of it can read it.
func TestConditionSeesWhatIsNotDurable(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		letThrough := r.holdWAL()
		first := make(chan error, 1)
		go func() {
			_, err := db.Append(t.Context(), []Record{record("k", "1")}, expecting("k", 0))
			first <- err
		}()
		synctest.Wait()
		second := make(chan error, 1)
		go func() {
			_, err := db.Append(t.Context(), []Record{record("k", "2")}, expecting("k", 0))
			second <- err
		}()
		synctest.Wait()
		require.Empty(t, second, "it waits for the record that it names")
		_, err := db.Append(t.Context(), []Record{record("k", "3")},
			AppendOptions{Ack: Memory, ExpectedNext: []KeySequence{{Key: []byte("k")}}})
		requireConflict(t, err, "k", 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = db.Append(ctx, []Record{record("k", "4")}, expecting("k", 0))
		require.ErrorIs(t, err, context.DeadlineExceeded, "what it would name may vanish in a crash")
		require.NotErrorIs(t, err, ErrConflict)
		var failed *AppendError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, NotAppended, failed.Outcome)
		letThrough()
		require.NoError(t, <-first)
		requireConflict(t, <-second, "k", 0)
		require.Equal(t, []string{"1"}, values(t, db, "k", All(), ScanOptions{}))
	})
}

// TestConditionLooksAgain: what was assigned between the look and the lock, flushed and dropped from memory, is looked at
// again.
func TestConditionLooksAgain(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	mustAppend(t, db, record("a", "0"))
	c := condition{expected: []KeySequence{{Key: []byte("k"), Next: 0}}}
	require.NoError(t, c.look(t.Context(), db))
	mustAppend(t, db, record("k", "1"))
	require.NoError(t, db.Flush(t.Context()))
	db.forgetRecent()
	mustAppend(t, db, record("a", "2"))

	db.mu.Lock()
	again := c.decide(db)
	db.mu.Unlock()
	require.True(t, again)
	require.Nil(t, c.conflict)
	require.NoError(t, c.look(t.Context(), db))
	require.Equal(t, &ConditionError{Key: []byte("k"), Last: 1}, c.conflict)
}

// TestConditionCost: nothing is read for a key whose range is in memory, nor for one that filters exclude.
func TestConditionCost(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.CacheBytes = 1 << 20
		db := r.open(o)
		for i := range 5 {
			mustAppend(t, db, record(fmt.Sprint("k", i), "v"), record("z", "v"))
			require.NoError(t, db.Flush(t.Context()))
		}
		gets := func() uint64 { return db.Status().TableReads }
		before := gets()
		_, err := db.Append(t.Context(), []Record{record("k0", "v")}, expecting("k0", 1))
		require.NoError(t, err)
		require.Equal(t, before, gets(), "all of it is in memory")
		db.forgetRecent()
		_, err = db.Append(t.Context(), nil, expecting("k0", 11))
		require.NoError(t, err)
		require.Equal(t, before, gets(), "no run ends above")
		_, err = db.Append(t.Context(), nil, expecting("a", 0))
		require.NoError(t, err)
		require.Equal(t, before, gets(), "no table has such a key by its bounds")
		_, err = db.Append(t.Context(), nil, expecting("z", 8))
		requireConflict(t, err, "z", 9)
		require.LessOrEqual(t, gets()-before, uint64(4), "the newest run only")
	})
}

func TestConditionArguments(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	_, err := db.Append(t.Context(), nil, AppendOptions{ExpectedNext: make([]KeySequence, MaxExpected+1)})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = db.Append(t.Context(), nil, expecting(string(make([]byte, DefaultMaxKeyBytes+1)), 0))
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = db.Append(t.Context(), nil, AppendOptions{ExpectedNext: make([]KeySequence, MaxExpected)})
	require.NoError(t, err)
	require.Equal(t, `key "k" has a record with sequence 7: the log is not as the append expects`,
		(&ConditionError{Key: []byte("k"), Last: 7}).Error())
}

// TestConditionAcrossATakeover: a writer that was passed without knowing it can still refuse, but no longer append.
func TestConditionAcrossATakeover(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		old := r.open(r.options())
		mustAppend(t, old, record("k", "0"))
		db := r.open(r.options())
		next := db.Status().Next
		res, err := db.Append(t.Context(), []Record{record("k", "1")}, expecting("k", 1))
		require.NoError(t, err)
		require.Equal(t, next, res.First)
		_, err = old.Append(t.Context(), []Record{record("k", "zombie")}, expecting("k", 1))
		require.ErrorIs(t, err, ErrFenced)
		require.Equal(t, []string{"0", "1"}, values(t, db, "k", All(), ScanOptions{}))
	})
}

// holdWAL keeps every PUT of a WAL object waiting until the returned function is called.
func (r *garbageRig) holdWAL() func() {
	gate := make(chan struct{})
	r.rule(func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind != fault.Put || !strings.HasPrefix(op.Name, base.WALPrefix(tree)) {
			return fault.Plan{}
		}
		return fault.Plan{Before: func(ctx context.Context) error {
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
	})
	return func() { close(gate) }
}
