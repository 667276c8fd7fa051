package wal

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

func TestLater(t *testing.T) {
	store := mem.New(mem.Options{})
	prefix := base.WALPrefix(1)
	for _, name := range []string{
		base.WALName(1, 3, 1), base.WALName(1, 3, 1<<63), base.WALName(1, 5, 7), base.WALName(1, 9, 1), // of the tree
		base.WALName(0, 8, 1), base.WALName(2, 8, 1), // of others
		prefix + "00000000000000000004", prefix + "00000000000000000004/x", prefix + "z", // of nobody
	} {
		_, err := store.Put(t.Context(), name, []byte("b"), objstore.PutOptions{})
		require.NoError(t, err)
	}
	for epoch, want := range map[uint64]uint64{0: 3, 2: 3, 3: 5, 4: 5, 5: 9, 8: 9, 9: 0, 1<<64 - 1: 0} {
		name, got, err := Later(t.Context(), store, 1, epoch)
		require.NoError(t, err)
		require.Equal(t, want, got, "above %d", epoch)
		require.Equal(t, want != 0, name != "")
		if name != "" {
			_, named, _, _ := base.ParseWALName(name)
			require.Equal(t, want, named)
		}
	}
}
