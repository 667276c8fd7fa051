package engine

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// Check tells a MANIFEST that was put back by the WAL of a writer that it does not know, and does not take the one of a
// moment ago for such.
func TestCheckOlderManifest(t *testing.T) {
	ctx := t.Context()
	store := mem.New(mem.Options{})
	write := func() {
		db, err := Open(ctx, store, Options{})
		require.NoError(t, err)
		_, err = db.Append(ctx, []Record{{Key: []byte("k")}}, AppendOptions{})
		require.NoError(t, err)
		require.NoError(t, db.Close(ctx))
	}
	damage := func(s objstore.Store) []Damage {
		report, err := Check(ctx, s, CheckOptions{})
		require.NoError(t, err)
		return report.Damage
	}
	write()
	name := base.ManifestName(tree)
	older, err := store.Get(ctx, name, objstore.GetOptions{})
	require.NoError(t, err)
	write()
	require.Empty(t, damage(store))

	var reads atomic.Int64 // of MANIFEST
	require.Empty(t, damage(fault.New(store, func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind != fault.Get || op.Name != name || reads.Add(1) > 1 {
			return fault.Plan{}
		}
		return fault.Plan{Mangle: func(o *objstore.Object) error { *o = older; return nil }}
	})))
	require.Greater(t, reads.Load(), int64(1))

	_, err = store.Put(ctx, name, older.Body, objstore.PutOptions{})
	require.NoError(t, err)
	found := damage(store)
	require.NotEmpty(t, found)
	for _, d := range found {
		require.ErrorIs(t, d, ErrCorrupt)
	}
	require.ErrorContains(t, found[len(found)-1], "older than the log")
	require.ErrorContains(t, found[len(found)-1], base.WALEpochPrefix(tree, 2))
}

// Open tells it too, before it writes anything, however often it is tried. What a writer of this moment put is no sign of it.
func TestOpenOlderManifest(t *testing.T) {
	ctx := t.Context()
	store := mem.New(mem.Options{})
	open := func(s objstore.Store) (*DB, error) { return Open(ctx, s, Options{DisableCompaction: true}) }
	write := func() {
		db, err := open(store)
		require.NoError(t, err)
		_, err = db.Append(ctx, []Record{{Key: []byte("k")}}, AppendOptions{})
		require.NoError(t, err)
		require.NoError(t, db.Close(ctx))
	}
	name := base.ManifestName(tree)
	get := func(name string) objstore.Object {
		o, err := store.Get(ctx, name, objstore.GetOptions{})
		require.NoError(t, err)
		return o
	}
	write()
	older := get(name)
	write()
	write() // so that what is left of epoch 2 is a fence
	last := get(name)

	refused := func(why string) {
		t.Helper()
		for range 4 {
			_, err := open(fault.New(store, func(_ context.Context, op fault.Op) fault.Plan {
				require.NotContains(t, []fault.Kind{fault.Put, fault.Delete}, op.Kind)
				return fault.Plan{}
			}))
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, why)
			require.ErrorContains(t, err, base.WALEpochPrefix(tree, 2))
		}
	}
	log := get(base.LogName)
	_, err := store.Put(ctx, name, older.Body, objstore.PutOptions{})
	require.NoError(t, err)
	require.NoError(t, store.Delete(ctx, []string{base.WALName(tree, 2, 1)})) // as the collector does
	refused("older than the log")
	require.NoError(t, store.Delete(ctx, []string{name, base.LogName}))
	_, err = open(store)
	require.ErrorIs(t, err, manifest.ErrMissingHeads)

	// The one of a moment ago.
	_, err = store.Put(ctx, name, last.Body, objstore.PutOptions{})
	require.NoError(t, err)
	_, err = store.Put(ctx, base.LogName, log.Body, objstore.PutOptions{})
	require.NoError(t, err)
	var reads atomic.Int64
	db, err := open(fault.New(store, func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind != fault.Get || op.Name != name || reads.Add(1) > 1 {
			return fault.Plan{}
		}
		return fault.Plan{Mangle: func(o *objstore.Object) error { *o = older; return nil }}
	}))
	require.ErrorIs(t, err, ErrFenced)
	require.Nil(t, db)
	write()
}
