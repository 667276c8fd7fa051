package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
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
