package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// I3: while seq_limit cannot be raised, no sequence at or above it is assigned: appends wait, and go on
// when it was.
func TestSeqLimitHoldsAppendsUp(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		db.mu.Lock()
		limit := db.seqLimit
		db.next, db.durable = limit-2, limit-2 // as if so many had been used
		db.frontier.Store(limit - 2)
		db.mu.Unlock()
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.Put && op.Name == base.ManifestName(tree) {
				return fault.Refuse(fault.ErrInjected)
			}
			return fault.Plan{}
		})
		res := mustAppend(t, db, record("k", "a"))
		require.Equal(t, limit-2, res.First)
		three := []Record{record("k", "b"), record("k", "c"), record("k", "d")}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := db.Append(ctx, three, AppendOptions{})
		require.ErrorIs(t, err, ErrOverloaded)
		var refused *AppendError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, NotAppended, refused.Outcome)
		r.rule(nil)
		res = mustAppend(t, db, three...)
		require.Equal(t, limit-1, res.First)
		require.Greater(t, db.Head().GetSeqLimit(), res.Last)
		requireHolds(t, db, 0, "a", "b", "c", "d")
	})
}

// A table's name is ours alone. What somebody else put there is damage, not an earlier try of ours.
func TestFlushMeetsAnotherObject(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.open(r.manualOptions())
		mustAppend(t, db, record("k", "a"))
		var name string
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind != fault.Put || !strings.Contains(op.Name, "/sst/") || name != "" {
				return fault.Plan{}
			}
			name = op.Name
			other := append([]byte(nil), op.Body...)
			other[0]++
			return fault.Plan{Before: func(ctx context.Context) error {
				_, err := r.witness.Put(ctx, name, other, objstore.PutOptions{IfAbsent: true})
				return err
			}}
		})
		err := db.Flush(t.Context())
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, name)
		require.ErrorIs(t, db.Err(), ErrCorrupt)
	})
}

// Outputs of a failed job go only if nothing names them and no commit that would can land any more (F50).
func TestDiscardOfOutputs(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		r.witness.discards = true
		db := r.open(r.manualOptions())
		r.segment(db, "a")
		live := db.Head().GetSegments()[0].GetRuns()[0].GetTables()[0].GetRef().ID()
		_, err := db.committer.Commit(t.Context(), manifest.OpenCompactor(0, [16]byte{1}))
		require.NoError(t, err)
		c := &compactor{store: r.store, env: db.env, log: slog.New(slog.DiscardHandler), commits: db.committer}
		current := db.committer.Current().ETag
		cause := errors.New("the job failed")
		for name, step := range map[string]struct {
			epoch uint64
			cause error
			goes  bool
		}{
			"it was never committed":       {1, cause, true},
			"its commit is lost for ever":  {1, &manifest.EditError{Err: cause, SentETags: []string{"an older one"}}, true},
			"its commit may land":          {1, &manifest.EditError{Err: cause, SentETags: []string{"an older one", current}}, false},
			"its commit is still tried":    {1, &manifest.EditError{Err: cause, Pending: true}, false},
			"another compactor is at work": {0, cause, false},
		} {
			output := orphan(base.RoleCompactor, 1)
			r.put(output.Name(), 10)
			c.discard(t.Context(), step.epoch, []base.ObjectID{live, output}, step.cause)
			require.Contains(t, r.names(""), live.Name(), name)
			if step.goes {
				require.NotContains(t, r.names(""), output.Name(), name)
			} else {
				require.Contains(t, r.names(""), output.Name(), name)
			}
		}
		// Where MANIFEST cannot be read nothing is known.
		output := orphan(base.RoleCompactor, 1)
		r.put(output.Name(), 10)
		r.rule(fault.OnKind(fault.Get, fault.Always(fault.Refuse(fault.ErrInjected))))
		c.discard(t.Context(), 1, []base.ObjectID{output}, cause)
		r.rule(nil)
		require.Contains(t, r.names(""), output.Name())
	})
}

// What an append expects is decided when it enters: not by what it saw before it waited for room.
func TestConditionOfAnAppendInLine(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		o.WALInFlight, o.WALObjectBytes = 1, 1
		db := r.open(o)
		landing := make(chan struct{})
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind != fault.Put || !strings.Contains(op.Name, "/wal/") {
				return fault.Plan{}
			}
			return fault.Plan{Before: func(context.Context) error { <-landing; return nil }}
		})
		started := func(key string, o AppendOptions) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := db.Append(context.Background(), []Record{record(key, "v")}, o)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		first, second := started("other", AppendOptions{}), started("other", AppendOptions{}) // the window is full
		third := started("k", AppendOptions{})
		expects := started("k", AppendOptions{ExpectedNext: []KeySequence{{Key: []byte("k"), Next: 0}}})
		require.Len(t, db.line, 2)
		close(landing)
		for _, done := range []<-chan error{first, second, third} {
			require.NoError(t, <-done)
		}
		require.ErrorIs(t, <-expects, ErrConflict)
		n, err := db.Count(t.Context(), []byte("k"), All())
		require.NoError(t, err)
		require.Equal(t, uint64(1), n)
	})
}

// An entry of the obsolete list is due when its stamp is older than the grace. Without a stamp it never is.
func TestGraceBeginsWithTheStamp(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		db := r.open(o)
		now := time.Now()
		entry := func(since int64) *manifest.Obsolete {
			return &manifest.Obsolete{Ref: manifest.RefOf(orphan(base.RoleWriter, 1)), SinceMs: since}
		}
		old := entry(now.Add(-db.opts.GCGrace).UnixMilli())
		s := &manifest.State{Obsolete: []*manifest.Obsolete{entry(0), old, entry(now.Add(time.Second - db.opts.GCGrace).UnixMilli())}}
		require.Equal(t, []*manifest.Obsolete{old}, db.collector.due(s, now))
	})
}
