package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

func TestInspect(t *testing.T) {
	store := newStore()
	_, err := Inspect(t.Context(), store)
	require.ErrorIs(t, err, manifest.ErrNoLog)

	db := openTest(t, store, smallOptions())
	for i := range 5 {
		mustAppend(t, db, record("k", fmt.Sprint(i)))
	}
	require.NoError(t, db.Flush(t.Context()))
	db.mu.Lock()
	db.rotate(true)
	db.mu.Unlock()
	mustAppend(t, db, record("k", "next"))
	require.NoError(t, db.Flush(t.Context()))
	orphan := base.ObjectID{Kind: base.KindSST, Role: base.RoleWriter, Epoch: 1, Segment: 1, ULID: db.env.NewULID()}
	_, err = store.Put(t.Context(), orphan.Name(), make([]byte, 100), objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)

	in, err := Inspect(t.Context(), store)
	require.NoError(t, err)
	require.Equal(t, uint64(1), in.WriterEpoch)
	require.False(t, in.Clean)
	require.Equal(t, InspectedPosition{Epoch: 1, ID: 7}, in.Position)
	require.Len(t, in.Segments, 2)
	first, second := in.Segments[0], in.Segments[1]
	require.True(t, first.Sealed)
	require.Equal(t, []uint64{0, 5, 5, 6}, []uint64{first.Start, first.End, second.Start, second.End})
	require.Equal(t, []uint64{5, 10, 1, 5}, []uint64{first.Records, first.Bytes, second.Records, second.Bytes})
	require.Equal(t, 3, in.Totals.Tables)
	require.Equal(t, 1, in.Totals.Unnamed)
	require.Equal(t, int64(100), in.Totals.UnnamedBytes)
	require.Equal(t, 6, in.Totals.WALObjects)
	require.Equal(t, 2, in.Totals.Other, "LOG and MANIFEST")
	require.Equal(t, store.Bytes(), in.Totals.Bytes)
	require.Equal(t, store.Len(), in.Totals.Objects)
}

// Segments of groups are described like others, and what the store charges for is told apart.
func TestInspectGroups(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.groupedKeys(r.manualOptions())
		r.regroup(db, 0, 2)
		mustAppend(t, db, record("k", "not flushed"))
		mustCollect(t, db) // the WAL; the grace of the rest begins
		elapse(time.Hour)
		in, err := Inspect(t.Context(), r.store)
		require.NoError(t, err)
		require.Empty(t, in.Damage)
		require.Len(t, in.Groups, 1)
		g := in.Groups[0]
		line := db.Head().GetGroups()[0]
		require.Equal(t, []any{uint32(1), uint32(5), 5, uint64(0), uint64(5 * 41)}, []any{g.FirstSegment, g.LastSegment, g.Segments, g.Start, g.End})
		require.Equal(t, []uint64{5 * 41, line.GetBytes(), line.GetStoredBytes(), line.GetIndexSize(), line.GetKeys()},
			[]uint64{g.Records, g.Bytes, g.StoredBytes, g.IndexBytes, g.Keys})
		require.Equal(t, []int{1, int(line.GetShardBytes()), int(line.GetTables())}, []int{g.Shards, g.ShardBytes, g.Tables})
		require.InDelta(t, time.Hour.Seconds(), g.AgeSeconds, 30)
		require.GreaterOrEqual(t, g.OldestAge, g.AgeSeconds)

		require.Len(t, in.Segments, 7)
		var sum InspectedSegment
		for i, s := range in.Segments {
			require.Equal(t, uint32(i+1), s.ID)
			require.Equal(t, i < 6, s.Sealed)
			if s.Group != "" {
				require.Equal(t, g.ID, s.Group)
				require.Equal(t, []int{41, 1}, []int{int(s.Records), s.Runs})
				require.NotNil(t, s.SealedAt)
				sum.Tables, sum.Bytes, sum.StoredBytes = sum.Tables+s.Tables, sum.Bytes+s.Bytes, sum.StoredBytes+s.StoredBytes
			}
		}
		require.Equal(t, InspectedSegment{Tables: g.Tables, Bytes: g.Bytes, StoredBytes: g.StoredBytes}, sum)

		// Two indexes were regrouped and are obsolete still.
		o := in.Totals
		require.Equal(t, []int{3, 2, 0}, []int{o.Indexes, in.Obsolete.Objects, o.Unnamed})
		require.Equal(t, o.Bytes-int64(in.Obsolete.Bytes), o.LiveBytes)
		require.InDelta(t, float64(o.Bytes)/float64(o.LiveBytes), o.SpaceAmplification, 1e-9)
		require.Equal(t, o.Bytes, o.TableBytes+o.IndexBytes+o.WALBytes+o.FenceBytes+o.StateBytes+o.PinBytes+o.OtherBytes)
		require.Equal(t, o.Objects, o.Tables+o.Indexes+o.WALObjects+o.Fences+o.States+o.Pinned+o.Other)

		// Part of the group is dropped: tables that wait for the collector, and are no garbage yet.
		x, err := db.indexOfGroup(t.Context(), line)
		require.NoError(t, err)
		trimmed, err := x.Trim(line, 2)
		require.NoError(t, err)
		_, err = db.committer.Commit(t.Context(), manifest.DropSegments(db.epoch, 2, trimmed))
		require.NoError(t, err)
		stray := orphanOf(base.RoleCompactor, 1, 2)
		r.put(stray.Name(), 10)
		in, err = Inspect(t.Context(), r.store)
		require.NoError(t, err)
		require.Len(t, in.Segments, 5)
		tables := int(x.Segment(0).GetTables() + x.Segment(1).GetTables())
		require.Equal(t, 2+tables, in.Obsolete.Objects)
		require.Equal(t, tables, in.Obsolete.NotYetTimed)
		require.Equal(t, []int64{1, 10}, []int64{int64(in.Totals.Unnamed), in.Totals.UnnamedBytes})
		afterGrace(t, db)
		mustCollect(t, db)
		require.NoError(t, r.witness.Store.Delete(t.Context(), []string{stray.Name()}))
		in, err = Inspect(t.Context(), r.store)
		require.NoError(t, err)
		require.Zero(t, in.Obsolete)
		require.Equal(t, in.Totals.Bytes, in.Totals.LiveBytes)

		// What cannot be read is said, and the rest is there.
		body := r.damage(line.GetIndex().ID().Name(), 1)
		in, err = Inspect(t.Context(), r.store)
		require.NoError(t, err)
		require.Len(t, in.Groups, 1)
		require.Len(t, in.Segments, 2)
		require.Zero(t, in.Totals.Unnamed)
		require.Len(t, in.Damage, 1)
		require.Contains(t, in.Damage[0], line.GetIndex().ID().Name())
		r.mend(line.GetIndex().ID().Name(), body)
	})
}

// Each live object that is gone, or cut short, is damage; what is obsolete may be gone.
func TestInspectWhatIsNotThere(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.groupedKeys(r.manualOptions())
		r.regroup(db, 0, 2)
		_, err := db.SetCursors(t.Context(), "c", []Cursor{{Key: []byte("k"), Next: 7}}, CursorOptions{})
		require.NoError(t, err)
		mustAppend(t, db, record("k", "in a run of the active segment"))
		require.NoError(t, db.Flush(t.Context()))
		store := r.witness.Store.(*mem.Store).Clone() // which nobody watches
		in, err := Inspect(t.Context(), store)
		require.NoError(t, err)
		require.Empty(t, in.Damage)
		obsolete := 0
		names := newNamer(uncached(store, db.env), db.Head())
		require.NoError(t, objstore.ListAll(t.Context(), store, "", "", func(e objstore.Entry) (bool, error) {
			id, ok := base.ParseObjectName(e.Name)
			if !ok {
				return true, nil
			}
			gone := isObsolete(db.Head(), id)
			if gone {
				obsolete++
			}
			named, err := names.names(t.Context(), id)
			require.NoError(t, err)
			for _, keep := range []int64{-1, e.Size - 1} {
				body, err := store.Get(t.Context(), e.Name, objstore.GetOptions{})
				require.NoError(t, err)
				require.NoError(t, store.Delete(t.Context(), []string{e.Name}))
				if keep >= 0 {
					_, err = store.Put(t.Context(), e.Name, body.Body[:keep], objstore.PutOptions{IfAbsent: true})
					require.NoError(t, err)
				}
				in, err := Inspect(t.Context(), store)
				require.NoError(t, err)
				require.Equal(t, named && !gone, len(in.Damage) > 0, "%s, %d bytes left: %v", e.Name, keep, in.Damage)
				if keep >= 0 {
					require.NoError(t, store.Delete(t.Context(), []string{e.Name}))
				}
				_, err = store.Put(t.Context(), e.Name, body.Body, objstore.PutOptions{IfAbsent: true})
				require.NoError(t, err)
			}
			return true, nil
		}))
		require.NotZero(t, obsolete)
	})
}

// isObsolete reports whether an object is on the obsolete list by itself.
func isObsolete(s *manifest.State, id base.ObjectID) bool {
	for _, o := range s.GetObsolete() {
		if !o.GetSegmentsOnly() && o.GetRef().ID() == id {
			return true
		}
	}
	return false
}
