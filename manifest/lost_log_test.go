package manifest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// LOG that is made anew is the one that was lost, but for the time of its creation.
func TestLostLog(t *testing.T) {
	store, env := mem.New(mem.Options{}), base.SystemEnv()
	_, err := LostLog(t.Context(), store, env, 0)
	require.ErrorIs(t, err, ErrNoLog)
	_, err = Create(t.Context(), store, env, 0)
	require.NoError(t, err)
	_, err = LostLog(t.Context(), store, env, 0)
	require.ErrorIs(t, err, ErrLogExists)

	lost, err := LoadLog(t.Context(), store)
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), []string{base.LogName}))
	body, err := LostLog(t.Context(), store, env, 0)
	require.NoError(t, err)
	_, err = store.Head(t.Context(), base.LogName)
	require.ErrorIs(t, err, objstore.ErrNotFound, "nothing is written")
	_, err = store.Put(t.Context(), base.LogName, body, objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	made, err := LoadLog(t.Context(), store)
	require.NoError(t, err)
	require.Zero(t, made.CreatedMs)
	lost.CreatedMs = 0
	require.Equal(t, EncodeLog(lost), EncodeLog(made))
	_, err = Load(t.Context(), store, env, 0)
	require.NoError(t, err)
}
