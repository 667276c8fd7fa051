package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/state"
)

// produce is append number n of a producer.
func produce(t *testing.T, db *DB, producer string, n uint64, recs ...Record) (AppendResult, error) {
	t.Helper()
	return db.Append(t.Context(), recs, AppendOptions{Producer: producer, ProducerSequence: n})
}

// requireOutOfOrder requires that an append was refused because of its number.
func requireOutOfOrder(t *testing.T, err error, want ProducerError) {
	t.Helper()
	require.ErrorIs(t, err, ErrConflict)
	var failed *AppendError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, NotAppended, failed.Outcome)
	var refused *ProducerError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, want, *refused)
}

func TestProducer(t *testing.T) {
	store := newStore()
	db := openTest(t, store, smallOptions())
	mustAppend(t, db, record("k", "before"))
	first, err := produce(t, db, "p", 7, record("k", "7a"), record("k", "7b"))
	require.NoError(t, err)
	require.Equal(t, AppendResult{First: 1, Last: 2, Timestamp: first.Timestamp}, first)
	second, err := produce(t, db, "p", 8, record("k", "8"))
	require.NoError(t, err)
	other, err := produce(t, db, "q", 0, record("k", "of another"))
	require.NoError(t, err)
	first.Repeated, second.Repeated, other.Repeated = true, true, true

	repeats := func(t *testing.T, db *DB) {
		t.Helper()
		before := db.Status().Repeats
		for _, c := range []struct {
			producer string
			n        uint64
			want     AppendResult
		}{{"p", 7, first}, {"p", 8, second}, {"q", 0, other}} {
			got, err := produce(t, db, c.producer, c.n, record("other", "records do not count"))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		}
		require.Equal(t, before+3, db.Status().Repeats)
		_, err := produce(t, db, "p", 10, record("k", "x"))
		requireOutOfOrder(t, err, ProducerError{Producer: "p", Sequence: 10, Last: 8})
		_, err = produce(t, db, "p", 6, record("k", "x"))
		requireOutOfOrder(t, err, ProducerError{Producer: "p", Sequence: 6, Last: 8})
		require.Equal(t, []string{"before", "7a", "7b", "8", "of another"}, values(t, db, "k", All(), ScanOptions{}))
	}
	repeats(t, db)
	db.crash() // what is in the WAL alone
	db = openTest(t, store, smallOptions())
	repeats(t, db)
	db.crash() // a state object
	db = openTest(t, store, smallOptions())
	repeats(t, db)
	require.NoError(t, db.Close(t.Context()))
	db = openTest(t, store, smallOptions())
	repeats(t, db)
	_, err = produce(t, db, "p", 9, record("k", "9"))
	require.NoError(t, err)
}

// TestProducerWindow: the last 64 are remembered, whatever is flushed meanwhile.
func TestProducerWindow(t *testing.T) {
	o := smallOptions()
	o.MemtableBytes = 1
	db := openTest(t, newStore(), o)
	var firsts []uint64
	for n := range uint64(100) {
		res, err := produce(t, db, "p", n, record("k", fmt.Sprint(n)))
		require.NoError(t, err)
		firsts = append(firsts, res.First)
	}
	for n := range uint64(100) {
		res, err := produce(t, db, "p", n, record("k", "again"))
		if n < 100-state.ProducerWindow {
			requireOutOfOrder(t, err, ProducerError{Producer: "p", Sequence: n, Last: 99})
			continue
		}
		require.NoError(t, err)
		require.True(t, res.Repeated)
		require.Equal(t, firsts[n], res.First)
	}
}

// TestRepeatBeforeDurable: a repeat of what is under way is answered when that is durable, and not before.
func TestRepeatBeforeDurable(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		letThrough := r.holdWAL()
		answers := make(chan AppendResult, 3)
		for range 3 {
			go func() {
				// It expects what only the first finds: a repeat is a repeat all the same.
				res, err := db.Append(t.Context(), []Record{record("k", "v")},
					AppendOptions{Producer: "p", ExpectedNext: []KeySequence{{Key: []byte("k")}}})
				if err != nil {
					t.Error(err)
				}
				answers <- res
			}()
		}
		synctest.Wait()
		require.Empty(t, answers)
		res, err := db.Append(t.Context(), []Record{record("k", "v")}, AppendOptions{Producer: "p", Ack: Memory})
		require.NoError(t, err)
		require.True(t, res.Repeated)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = db.Append(ctx, []Record{record("k", "v")}, AppendOptions{Producer: "p"})
		var failed *AppendError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, Unknown, failed.Outcome)
		letThrough()
		repeated := 0
		for range 3 {
			got := <-answers
			if got.Repeated {
				repeated++
			}
			got.Repeated = true
			require.Equal(t, res, got)
		}
		require.Equal(t, 2, repeated)
		require.Equal(t, []string{"v"}, values(t, db, "k", All(), ScanOptions{}))
	})
}

// TestRepeatNeedsNoRoom: what is there already is answered while nothing more fits.
func TestRepeatNeedsNoRoom(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.MaxKeyBytes, o.MaxValueBytes, o.MaxUnflushedBytes = 10, 100, 110
		db := r.open(o)
		first, err := produce(t, db, "p", 0, record("k", "v"))
		require.NoError(t, err)
		r.holdWAL()
		_, err = db.Append(t.Context(), []Record{record("k", strings.Repeat("x", 100))}, AppendOptions{Ack: Memory})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = db.Append(ctx, []Record{record("k", strings.Repeat("x", 100))}, AppendOptions{Ack: Memory})
		require.ErrorIs(t, err, ErrOverloaded)
		again, err := produce(t, db, "p", 0, record("k", "v"))
		require.NoError(t, err)
		first.Repeated = true
		require.Equal(t, first, again)
	})
}

// TestProducerInMemory: what was acknowledged from memory and lost is missed by the producer's next append.
func TestProducerInMemory(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.options())
		_, err := produce(t, db, "p", 1, record("k", "1"))
		require.NoError(t, err)
		letThrough := r.holdWAL()
		_, err = db.Append(t.Context(), []Record{record("k", "2")}, AppendOptions{Producer: "p", ProducerSequence: 2, Ack: Memory})
		require.NoError(t, err)
		db.crash()
		letThrough()
		db = r.open(r.options())
		_, err = produce(t, db, "p", 3, record("k", "3"))
		requireOutOfOrder(t, err, ProducerError{Producer: "p", Sequence: 3, Last: 1})
		_, err = produce(t, db, "p", 2, record("k", "2 again"))
		require.NoError(t, err)
		require.Equal(t, []string{"1", "2 again"}, values(t, db, "k", All(), ScanOptions{}))
	})
}

// TestMaxProducers: the one that appended longest ago is forgotten; opening with a lower limit forgets more.
func TestMaxProducers(t *testing.T) {
	store := newStore()
	o := smallOptions()
	o.MaxProducers = 3
	db := openTest(t, store, o)
	for i := range 5 {
		_, err := produce(t, db, fmt.Sprint("p", i), 100, record("k", "v"))
		require.NoError(t, err)
	}
	require.Equal(t, 3, db.Status().Producers)
	_, err := produce(t, db, "p1", 7, record("k", "v"))
	require.NoError(t, err, "a producer that is not known begins with any number")
	_, err = produce(t, db, "p3", 200, record("k", "v"))
	requireOutOfOrder(t, err, ProducerError{Producer: "p3", Sequence: 200, Last: 100})
	db.crash()
	o.MaxProducers = 1
	db = openTest(t, store, o)
	require.Equal(t, 1, db.Status().Producers)
	res, err := produce(t, db, "p1", 7, record("k", "v"))
	require.NoError(t, err)
	require.True(t, res.Repeated)
}

func TestProducerArguments(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	for name, o := range map[string]AppendOptions{
		"no name":  {ProducerSequence: 1},
		"too long": {Producer: strings.Repeat("p", state.MaxProducerBytes+1)},
	} {
		_, err := db.Append(t.Context(), []Record{record("k", "v")}, o)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	_, err := produce(t, db, "p", 0)
	require.ErrorIs(t, err, ErrInvalid, "an empty batch")
	name := strings.Repeat("\xFF", state.MaxProducerBytes)
	_, err = produce(t, db, name, 1<<64-1, record("k", "v"))
	require.NoError(t, err)
	_, err = produce(t, db, name, 0, record("k", "v"))
	requireOutOfOrder(t, err, ProducerError{Producer: name, Sequence: 0, Last: 1<<64 - 1})
	require.Equal(t, `append 9 of producer "p" would leave a gap after 7: the log is not as the append expects`,
		(&ProducerError{"p", 9, 7}).Error())
	require.Equal(t, `append 1 of producer "p" lies too far before its last, 70, to be remembered: the log is not as the append expects`,
		(&ProducerError{"p", 1, 70}).Error())
}

// TestRepeatIsDecidedUnderTheLock: a repeat that began before the first append was assigned is one all the same, whatever it
// found that contradicts what it expects.
func TestRepeatIsDecidedUnderTheLock(t *testing.T) {
	db := openTest(t, newStore(), smallOptions())
	o := AppendOptions{Producer: "p", ProducerSequence: 1, ExpectedNext: []KeySequence{{Key: []byte("k")}}}
	late, err := db.newAppending([]Record{record("k", "v")}, o)
	require.NoError(t, err)
	first, err := db.Append(t.Context(), late.recs, o)
	require.NoError(t, err)
	require.NoError(t, late.condition.look(t.Context(), db))
	require.NotNil(t, late.condition.conflict)
	db.mu.Lock()
	res, _, again, err := db.enterBatch(late)
	db.mu.Unlock()
	require.NoError(t, err)
	require.False(t, again)
	first.Repeated = true
	require.Equal(t, first, res)
}
