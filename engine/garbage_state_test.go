package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/state"
)

// stateWriter is a writer that opens a log, changes nothing but the state objects in force, and is gone.
type stateWriter struct {
	r     *garbageRig
	epoch uint64
}

func (w *stateWriter) commit(e func(s *manifest.State) manifest.Edit) {
	w.r.t.Helper()
	env := base.SystemEnv()
	snap, err := manifest.Load(w.r.t.Context(), w.r.witness, env, tree)
	require.NoError(w.r.t, err)
	_, err = manifest.CommitOne(w.r.t.Context(), manifest.CommitterOptions{Store: w.r.witness, Env: env, Start: snap}, e(snap.State))
	require.NoError(w.r.t, err)
}

// put writes a state object.
func (w *stateWriter) put(encode func(id base.ULID) []byte) (id base.ObjectID, size uint64) {
	w.r.t.Helper()
	id = base.ObjectID{Tree: tree, Kind: base.KindState, Role: base.RoleWriter, Epoch: w.epoch, ULID: base.SystemEnv().NewULID()}
	body := encode(id.ULID)
	_, err := w.r.witness.Put(w.r.t.Context(), id.Name(), body, objstore.PutOptions{IfAbsent: true})
	require.NoError(w.r.t, err)
	return id, uint64(len(body))
}

// newStateWriter takes the next epoch.
func (r *garbageRig) newStateWriter() *stateWriter {
	w := &stateWriter{r: r}
	w.commit(func(s *manifest.State) manifest.Edit {
		w.epoch = s.GetWriter().GetEpoch() + 1
		return manifest.OpenWriter(w.epoch-1, [16]byte{byte(w.epoch)})
	})
	return w
}

func (w *stateWriter) update(u *manifest.StateUpdate) {
	w.r.t.Helper()
	w.commit(func(s *manifest.State) manifest.Edit {
		return manifest.SkipTo(w.epoch, s.GetPosition().Pos(), manifest.Pos{Epoch: w.epoch, ID: 1}, u)
	})
}

// F52, I7: state objects of a passed epoch stay for as long as they are in force, the changes too; one that was never named is
// swept; what an update replaced goes after its grace, not before.
func TestGarbageOfSmallState(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		r.segment(db, "a")
		require.NoError(t, db.Close(t.Context()))

		w := r.newStateWriter()
		tables := state.New(state.Limits{})
		tables.SetCursor("mailer", []byte("k"), 1)
		first, firstBytes := w.put(tables.EncodeBase)
		tables.Rebase(tables.Clone())
		tables.SetCursor("mailer", []byte("l"), 1)
		changes, changesBytes := w.put(func(id base.ULID) []byte { return tables.EncodeChanges(id, first.ULID) })
		stray, _ := w.put(tables.EncodeBase)
		w.update(&manifest.StateUpdate{
			Base: manifest.RefOf(first), BaseBytes: firstBytes, Changes: manifest.RefOf(changes), ChangesBytes: changesBytes,
		})
		states := base.ObjectPrefix(tree, base.KindState)

		db = r.open(r.manualOptions())
		require.Equal(t, uint64(1), mustCollect(t, db).Orphans)
		require.ElementsMatch(t, []string{first.Name(), changes.Name()}, r.names(states))
		require.NotContains(t, r.names(states), stray.Name())
		in, err := Inspect(t.Context(), r.store)
		require.NoError(t, err)
		require.Equal(t, []int64{2, int64(firstBytes + changesBytes), 0},
			[]int64{int64(in.Totals.States), in.Totals.StateBytes, int64(in.Totals.Unnamed)})
		requireHolds(t, db, 0, "a")
		db.crash()

		w = r.newStateWriter()
		second, secondBytes := w.put(tables.EncodeBase)
		w.update(&manifest.StateUpdate{Base: manifest.RefOf(second), BaseBytes: secondBytes})
		db = r.open(r.manualOptions())
		require.Equal(t, 2, db.Status().ObsoleteObjects)
		require.Zero(t, mustCollect(t, db).Obsolete) // stamps
		require.Len(t, r.names(states), 3)
		elapse(db.opts.GCGrace)
		got := mustCollect(t, db)
		require.Equal(t, []uint64{2, firstBytes + changesBytes}, []uint64{got.Obsolete, got.Bytes})
		require.Equal(t, []string{second.Name()}, r.names(states))
		r.requireClean()
	})
}
