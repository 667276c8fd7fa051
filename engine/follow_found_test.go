package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/fault"
)

// A memory without records, frozen between two with records: with entries of the small state only, or to seal a segment.
func TestFollowOverAMemoryWithoutRecords(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		for _, prefix := range []bool{false, true} {
			t.Run(fmt.Sprint("sealed ", sealed, " prefix ", prefix), func(t *testing.T) {
				simulated(t, func(t *testing.T, r *garbageRig) {
					o := r.options()
					o.RecentBytes = 1 << 20
					db := r.open(o)
					mustAppend(t, db, record("k", "1"))
					require.NoError(t, db.Flush(t.Context()))
					r.rule(func(_ context.Context, op fault.Op) fault.Plan {
						if op.Name == base.ManifestName(tree) && op.Kind == fault.Put {
							return fault.Refuse(errors.New("down"))
						}
						if id, ok := base.ParseObjectName(op.Name); ok && id.Kind == base.KindState {
							return fault.Refuse(errors.New("down"))
						}
						return fault.Plan{}
					})
					if !sealed {
						mustSet(t, db, "c", cursor("k", 1))
					}
					db.mu.Lock()
					db.rotate(sealed)
					db.mu.Unlock()
					mustAppend(t, db, record("k", "2"))
					f := follow(t, db, Stream{Key: []byte("k"), Prefix: prefix})
					var got []string
					for len(got) < 2 && f.Cursor() < 2 {
						got = append(got, nextValues(t, f, FollowRead{})...)
					}
					require.Equal(t, []string{"1", "2"}, got)
					r.rule(nil)
				})
			})
		}
	}
}

// Close comes after a read of tables that found nothing, before settle: these are the steps of Next.
func TestFollowCloseDuringARead(t *testing.T) {
	o := smallOptions()
	store := newStore()
	db := openTest(t, store, o)
	mustAppend(t, db, record("l", "1"))
	require.NoError(t, db.Close(t.Context()))
	db = openTest(t, store, o)
	f := follow(t, db, Stream{Key: []byte("k")})
	taken := 0
	log := func(context.Context) (func(), error) { taken++; return func() { taken-- }, nil }
	r := reading{f: f, c: f.c, log: log, most: 1 << 20}
	chain, next, err := f.take(&r)
	require.NoError(t, err)
	require.Equal(t, nextReads, next)
	turns, err := r.read(chain)
	require.NoError(t, err)
	f.Close() // by another goroutine
	f.settle(&r, chain, turns, len(f.recs) > 0 || err != nil)
	_, next, err = f.take(&r)
	require.Equal(t, nextEnds, next)
	require.ErrorIs(t, err, ErrFollowerClosed)
	f.Close()
	require.Zero(t, taken)
}

// A key that is behind in memory, and one that is behind in tables.
func TestFollowTablesBesideMemory(t *testing.T) {
	o := smallOptions()
	o.MemtableBytes = 64 << 20
	o.MaxUnflushedBytes = 256 << 20
	store := newStore()
	db := openTest(t, store, o)
	mustAppend(t, db, record("zcold", "1"))
	require.NoError(t, db.Close(t.Context()))
	db = openTest(t, store, o)
	var recs []Record
	for i := range 20000 {
		recs = append(recs, record("hot", fmt.Sprint(i)))
	}
	mustAppend(t, db, recs...)
	f := follow(t, db, Stream{Key: []byte("hot")}, Stream{Key: []byte("zcold")})
	n := 0
	for i := 0; ; i++ {
		got, err := f.Next(FollowRead{MaxBytes: 32 << 10, Log: func(context.Context) (func(), error) { return func() {}, nil }})
		require.NoError(t, err)
		for _, r := range got {
			if string(r.Key) == "zcold" {
				require.LessOrEqual(t, n, maxFollowRecords, "its turn is the next")
				return
			}
			n++
		}
	}
}
