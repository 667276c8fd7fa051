package manifest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// What shows that there was a log: its objects, and not what a writer leaves that died before it made one, nor what is not of annals.
func TestUnused(t *testing.T) {
	for _, c := range []struct {
		name string
		want error
	}{
		{base.ProbeName(0, base.ULID{1}), nil},
		{base.TreePrefix(0) + "README", nil},
		{base.TreePrefix(1) + "README", nil},
		{"other/sst/x", nil},
		{base.WALName(0, 3, 1), ErrMissingHeads},
		{base.ObjectID{Kind: base.KindSST, Segment: 1, Role: base.RoleWriter, Epoch: 1}.Name(), ErrMissingHeads},
		{base.ObjectID{Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: 1}.Name(), ErrMissingHeads},
		{base.ObjectID{Kind: base.KindState, Role: base.RoleWriter, Epoch: 1}.Name(), ErrMissingHeads},
		{base.ObjectID{Kind: base.KindPin, Role: base.RoleWriter, Epoch: 1}.Name(), ErrMissingHeads},
	} {
		store, env := mem.New(mem.Options{}), testEnv(1)
		require.NoError(t, Unused(t.Context(), store, env, 0))
		put(t, store, c.name, []byte("x"))
		var count fault.Counter
		err := Unused(t.Context(), fault.New(store, count.Hook), env, 0)
		if c.want == nil {
			require.NoError(t, err, c.name)
			require.Equal(t, fault.Counts{List: 1}, count.Take().Requests())
			continue
		}
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, c.name)
		require.Equal(t, 1, store.Len(), "nothing is created")

		// A log that somebody has made since, and begun to use.
		_, err = Create(t.Context(), store, env, 0)
		require.NoError(t, err)
		require.NoError(t, Unused(t.Context(), store, env, 0))
	}
}
