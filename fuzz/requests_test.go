package fuzz

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/fault"
)

// counted is a rig that counts requests.
func counted(t *testing.T) (*rig, *fault.Counter) {
	r, counter := newRig(t), new(fault.Counter)
	r.rule(counter.Hook)
	return r, counter
}

func requests(t *testing.T, c *fault.Counter, want fault.Counts, what string) {
	t.Helper()
	require.Equal(t, want, c.Take().Requests(), what)
}

// probe is what the test of conditional writes costs at each open.
var probe = fault.Counts{Put: 4, Get: 2, Delete: 1}

func plus(a, b fault.Counts) fault.Counts {
	return fault.Counts{
		Put: a.Put + b.Put, Get: a.Get + b.Get, Head: a.Head + b.Head,
		List: a.List + b.List, Delete: a.Delete + b.Delete, Time: a.Time + b.Time,
	}
}

// Requests cost money and time: a change of one of these numbers is a change of the
// design.

func TestRequestsOfOpenAndClose(t *testing.T) {
	failure(t, "a log without records", func(t *testing.T) {
		r, c := counted(t)
		db := r.open(options())
		// LOG and MANIFEST are read before and after each step that another process may
		// have taken meanwhile.
		requests(t, c, plus(probe, fault.Counts{Put: 3, Get: 10, List: 1, Time: 1}), "first open: MANIFEST, LOG, MANIFEST with the epoch; the WAL of later writers")
		require.NoError(t, db.Close(t.Context()))
		requests(t, c, fault.Counts{Put: 1}, "clean close: MANIFEST")
		db = r.open(options())
		requests(t, c, plus(probe, fault.Counts{Put: 3, Get: 2, List: 2}), "clean reopen: MANIFEST twice and a fence; MANIFEST and LOG; the WAL of later writers, and of the one before")
		kill(db)
	})
	for objects, beyond := range map[int]int{0: 0, 1: 2, 7: 4} { // reads of the replay: the fence, and ahead of it
		failure(t, fmt.Sprintf("reopen after a crash with %d WAL objects", objects), func(t *testing.T) {
			r := newRig(t)
			db := r.open(options())
			for range objects {
				mustAppend(t, db, "v")
				time.Sleep(time.Second) // simulated
			}
			next := r.crashed()
			kill(db)
			c := new(fault.Counter)
			next.rule(c.Hook)
			next.open(options())
			want := plus(probe, fault.Counts{Put: 3, Get: 2 + objects + beyond, List: 2}) // else as a clean one
			if objects > 0 {
				want.Put++ // the table
			}
			requests(t, c, want, "reopen")
		})
	}
	failure(t, "clean close with records", func(t *testing.T) {
		r, c := counted(t)
		db := r.open(options())
		mustAppend(t, db, "a")
		c.Take()
		require.NoError(t, db.Close(t.Context()))
		requests(t, c, fault.Counts{Put: 3}, "table, MANIFEST for it, MANIFEST for the mark")
	})
}

func TestRequestsOfWritesAndReads(t *testing.T) {
	failure(t, "one after another", func(t *testing.T) {
		r, c := counted(t)
		o := options()
		o.RecentBytes = 1 // what is flushed leaves the memory
		db := r.open(o)
		c.Take()
		mustAppend(t, db, "a")
		requests(t, c, fault.Counts{Put: 1}, "a quiet durable append: its WAL object")
		time.Sleep(10 * time.Millisecond)
		for range 3 {
			_, err := db.Append(t.Context(), batch("b"), engine.AppendOptions{Ack: engine.Memory})
			require.NoError(t, err)
		}
		require.NoError(t, db.WaitDurable(t.Context(), 3))
		requests(t, c, fault.Counts{Put: 2}, "the first goes out at once, the others together")

		read(t, db)
		_, err := db.Count(t.Context(), []byte("k"), engine.All())
		require.NoError(t, err)
		_, err = db.Keys(t.Context(), engine.KeysOptions{})
		require.NoError(t, err)
		require.NoError(t, db.Wait(t.Context(), []byte("k"), engine.All()))
		requests(t, c, fault.Counts{}, "reads at the tip")

		require.NoError(t, db.Flush(t.Context()))
		requests(t, c, fault.Counts{Put: 2}, "a flush: table and MANIFEST")
		require.NoError(t, db.Flush(t.Context()))
		requests(t, c, fault.Counts{}, "nothing to flush")

		read(t, db)
		requests(t, c, fault.Counts{Get: 2}, "a cold scan of a table: its metadata, a block")
		read(t, db)
		requests(t, c, fault.Counts{}, "a warm scan")
		_, err = collect(db.Scan(t.Context(), []byte("j"), engine.All(), engine.ScanOptions{}))
		require.NoError(t, err)
		requests(t, c, fault.Counts{}, "a key that the table's bounds exclude")
		_, err = collect(db.Scan(t.Context(), []byte("k"), engine.From(4), engine.ScanOptions{}))
		require.NoError(t, err)
		requests(t, c, fault.Counts{}, "a scan behind the table")
	})
}
