package fuzz

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
	walfile "github.com/annalsdb/annals/wal"
)

func newAgingWitness(store *mem.Store) *witness {
	w := newWitness(store)
	w.setStale(agingOptions().StaleAfter)
	return w
}

// Moments of a recovery at which a request of the dead process may arrive.
const (
	lateOpened    = iota // another process has taken over
	lateCompacted        // and its compactor too
	lateCollected        // and what the dead process left is collected
	lateMoments
)

// lateRequest is a request of the dead process that is still under way.
type lateRequest struct {
	held   *fault.Held // nil: there is none
	moment int64
}

func (l lateRequest) arrive(ctx context.Context, moment int64) {
	if l.held != nil && l.moment == moment {
		_ = l.held.Apply(ctx) // most are refused
	}
}

// recovered opens what the store holds now with a healthy store, and requires that all
// is there that must be, that compaction ends, and that the bucket then holds nothing
// that is not part of the log or becomes collected.
func (w *agingWork) recovered(store *witness, late lateRequest) {
	ctx, t := w.t.Context(), w.t
	// What the dead process left.
	report, err := engine.Check(ctx, store, engine.CheckOptions{})
	if err != nil {
		require.ErrorIs(t, err, manifest.ErrNoLog)
		require.Zero(t, w.durable)
	} else {
		require.NoError(t, report.Err())
	}
	require.NoError(t, w.openOn(ctx, store))
	late.arrive(ctx, lateOpened)
	w.survived(w.db)
	require.Equal(t, uint64(len(w.model.recs)), check(t, store.Store).TableRecords)

	w.compacted()
	late.arrive(ctx, lateCompacted)
	require.NoError(t, w.read(ctx))
	w.collected(store)
	late.arrive(ctx, lateCollected)
	require.NoError(t, w.append(ctx, engine.Durable, 10))
	require.NoError(t, w.read(ctx))
	require.NoError(t, w.db.Close(ctx))
	require.NoError(t, store.err())
	if late.held != nil || anyProbe(t, store) {
		w.muchLater(store)
	}
	require.NoError(t, store.err())
}

// compacted waits until the process compacts and has nothing to do.
func (w *agingWork) compacted() {
	time.Sleep(takesOver)
	for n := 0; ; n++ {
		jobs := compaction.Plan(w.db.Head(), limitsOf(w.o))
		if len(jobs) == 0 {
			return
		}
		require.Less(w.t, n, 100, "compaction does not end: %v", jobs)
		time.Sleep(2 * time.Second)
	}
}

// collected requires that the collector leaves nothing but what the log names, and
// nothing for longer than the grace.
func (w *agingWork) collected(store *witness) {
	t := w.t
	_, err := w.db.CollectGarbage(t.Context())
	require.NoError(t, err)
	names, err := store.unnamed()
	require.NoError(t, err)
	require.Empty(t, withoutProbes(names), "no part of the log")
	for _, o := range w.db.Head().GetObsolete() {
		require.NotZero(t, o.GetSinceMs(), "its grace has begun")
	}
	began := time.Now()
	time.Sleep(agingGrace)
	_, err = w.db.CollectGarbage(t.Context())
	require.NoError(t, err)
	for _, o := range w.db.Head().GetObsolete() {
		require.True(t, o.GetSinceMs() == 0 || o.GetSinceMs() > began.UnixMilli(), "obsolete for longer than the grace: %v", o)
	}
	names, err = store.unnamed()
	require.NoError(t, err)
	require.Empty(t, withoutProbes(names), "no part of the log")
	require.NoError(t, check(t, store.Store).Err())
}

// muchLater opens the log again when all of it is long expired: nothing is left then
// but an empty log and the fences that keep old writers out.
func (w *agingWork) muchLater(store *witness) {
	t := w.t
	time.Sleep(25 * time.Hour) // simulated: probe objects are left alone for a day
	require.NoError(t, w.openOn(t.Context(), store))
	db := w.db
	time.Sleep(agingRetention + 2*agingOptions().RetentionInterval) // what was sealed by this open
	w.dropped(db)
	require.Empty(t, w.model.recs)
	_, err := db.CollectGarbage(t.Context())
	require.NoError(t, err)
	time.Sleep(agingGrace)
	_, err = db.CollectGarbage(t.Context())
	require.NoError(t, err)
	require.Empty(t, db.Head().GetObsolete())
	names, err := store.unnamed()
	require.NoError(t, err)
	require.Empty(t, names)
	page, err := store.List(t.Context(), "", "", 0)
	require.NoError(t, err)
	for _, e := range page.Entries {
		require.True(t, walfile.IsFence(e.Size) || e.Name == manifestName || e.Name == base.LogName, "%s is left of an empty log", e.Name)
	}
	check(t, store.Store)
}

func withoutProbes(names []string) (rest []string) {
	for _, name := range names {
		if !strings.Contains(name, "/probe/") {
			rest = append(rest, name)
		}
	}
	return rest
}

func anyProbe(t *testing.T, store objstore.Store) bool {
	probe := base.ProbeName(0, base.ULID{})
	return len(objectNames(t, store, probe[:strings.LastIndex(probe, "/")+1])) > 0
}
