package manifest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// The i-th request fails, before or after it was applied; whatever happens, every edit
// is applied once, and the outcome is that of a run without a fault (F18).
func TestCommitFaultSweep(t *testing.T) {
	script := func(t *testing.T, store objstore.Store, inner *mem.Store) *State {
		env := testEnv(1)
		start := load(t, inner, env)
		opened, err := CommitOne(t.Context(), CommitterOptions{Store: store, Env: env, Start: start}, OpenWriter(0, owner(1)))
		require.NoError(t, err)
		require.Equal(t, uint64(0), OpenedNext(opened.State))
		var seen []uint64
		c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: opened, Guard: WriterGuard(1),
			OnCommit: func(s *Snapshot) { seen = append(seen, s.State.Version) }})
		defer c.Close()
		sealing := flushAt(1, 3, 4, 3, 20, 30)
		sealing.Seal = &Seal{TimeMs: 9}
		sealing.State = stateUpdate(1, 90, 91).ofTree(0)
		first := flushAt(1, 1, 2, 1, 0, 10)
		first.State = stateUpdate(1, 90, 0).ofTree(0)
		for _, e := range []Edit{
			first.Edit(), flushAt(1, 2, 3, 2, 10, 20).Edit(),
			replaceRuns(run(5, 0, 20), id16(1), id16(2)), sealing.Edit(),
			RaiseLimit(1, 1<<40), CloseClean(1, 35, Pos{1, 6}, stateUpdate(1, 92, 0).ofTree(0)),
		} {
			snap := commit(t, c, e)
			require.ErrorIs(t, e.Apply(clone(snap.State)), ErrApplied)
			require.Equal(t, snap.State.Version, seen[len(seen)-1], "OnCommit comes before Commit returns")
		}
		require.True(t, slices.IsSorted(seen))
		require.Len(t, slices.Compact(seen), 6)
		return load(t, inner, env).State
	}
	var model *State
	synctest.Test(t, func(t *testing.T) {
		store, _ := newLog(t, testEnv(9))
		model = script(t, store, store)
		require.Equal(t, uint64(7), model.Version)
	})
	for _, applied := range []bool{false, true} {
		for _, injected := range []error{fault.ErrInjected, objstore.ErrPrecondition, objstore.ErrConflict} {
			for i, hit := 0, true; hit; i++ {
				synctest.Test(t, func(t *testing.T) {
					inner, _ := newLog(t, testEnv(9))
					rule := fault.FailNth(i, applied, injected)
					got := script(t, fault.New(inner, rule.Hook), inner)
					got = clone(got)
					got.CommitId = model.CommitId
					requireEqual(t, model, got)
					hit = rule.Hit()
				})
				require.True(t, hit || i == 7, "one request a commit: %d", i)
			}
		}
	}
}

// F18: the commit is still under way when its caller gives up on it, and lands before,
// or after, the one that replaces it.
func TestF18DelayedCommit(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("delayed one first %t", first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := testEnv(1)
				inner, start := newLog(t, env)
				held := fault.NewHeld(context.DeadlineExceeded)
				puts := 0
				store := fault.New(inner, fault.OnKind(fault.Put, func(context.Context, fault.Op) fault.Plan {
					if puts++; puts == 1 {
						return fault.Plan{Held: held}
					}
					return fault.Plan{Before: func(ctx context.Context) error {
						if first {
							return held.Apply(ctx)
						}
						return nil
					}}
				}))
				snap, err := CommitOne(t.Context(), CommitterOptions{Store: store, Env: env, Start: start}, OpenWriter(0, owner(1)))
				require.NoError(t, err)
				require.Equal(t, 2, puts)
				if !first {
					require.ErrorIs(t, held.Apply(t.Context()), objstore.ErrPrecondition)
				}
				now := load(t, inner, env)
				require.Equal(t, uint64(1), now.State.Version)
				require.Equal(t, uint64(1), now.State.Writer.Epoch)
				requireEqual(t, now.State, snap.State)
			})
		})
	}
}

// A request that hangs is given up after callTimeout, and the edit is committed by another.
func TestHangingRequestIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		c := NewCommitter(CommitterOptions{Store: fault.New(inner, holdNext(fault.NewHeld(nil), isPut)), Env: env, Start: start})
		defer c.Close()
		began := time.Now()
		commit(t, c, raise(start, 5))
		require.Equal(t, callTimeout, time.Since(began))

		r := NewCommitter(CommitterOptions{Store: fault.New(inner, holdNext(fault.NewHeld(nil), func(fault.Op) bool { return true })), Env: env, Start: start})
		defer r.Close()
		_, err := r.Refresh(t.Context())
		require.ErrorContains(t, err, "no answer within 30s")
	})
}

// During an outage the committer tries with a bounded backoff, and ends well after it.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		up := time.Now().Add(10 * time.Minute)
		store := fault.New(inner, func(context.Context, fault.Op) fault.Plan {
			if time.Now().Before(up) {
				return fault.Refuse(fault.ErrInjected)
			}
			return fault.Plan{}
		})
		c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: start})
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := c.Commit(ctx, raise(start, 1))
		require.ErrorIs(t, err, ErrUnknown)
		require.ErrorContains(t, err, fault.ErrInjected.Error(), "says what the store said")
		commit(t, c, raise(start, 2))
		require.Less(t, time.Since(up), commitBackoffLimit)
		require.Less(t, store.Calls(), 10*60/2+20)
		require.Equal(t, start.State.SeqLimit+2, load(t, inner, env).State.SeqLimit)
	})
}

// Each edit is answered exactly once, whatever Close, contexts and faults do meanwhile.
func TestEveryCommitReturnsOnce(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			env := testEnv(seed)
			inner, _ := newLog(t, env)
			start := openWriter(t, inner, env, 1)
			store := fault.New(inner, fault.Chain(
				fault.Latency(0, 3*time.Millisecond, env.Sleep),
				func(context.Context, fault.Op) fault.Plan {
					switch env.Uint64() % 6 {
					case 0:
						return fault.Lose(fault.ErrInjected)
					case 1:
						return fault.Refuse(objstore.ErrConflict)
					}
					return fault.Plan{}
				}))
			c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: start, Guard: WriterGuard(1)})
			var wg sync.WaitGroup
			applied := make([]bool, 40)
			for i := range applied {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(env.Uint64()%200)*time.Millisecond)
					defer cancel()
					_ = env.Sleep(ctx, time.Duration(env.Uint64()%50)*time.Millisecond)
					e := Edit{Name: "pin", Apply: addPin(i)}
					_, err := c.Commit(ctx, e)
					applied[i] = err == nil
				})
			}
			_ = env.Sleep(t.Context(), 60*time.Millisecond)
			if seed%2 == 0 {
				c.Close()
			}
			wg.Wait()
			c.Close()
			pins := map[string]int{}
			for _, p := range load(t, inner, env).State.Pins {
				pins[p.Name]++
			}
			for i, ok := range applied {
				n := pins[fmt.Sprint(i)]
				require.LessOrEqual(t, n, 1)
				if ok {
					require.Equal(t, 1, n, "edit %d succeeded", i)
				}
			}
		})
	}
}

func addPin(i int) func(*State) error {
	return func(s *State) error {
		for _, p := range s.Pins {
			if p.Name == fmt.Sprint(i) {
				return ErrApplied
			}
		}
		s.Pins = append(s.Pins, &Pin{Ref: ref(base.KindPin, 1000+i), Name: fmt.Sprint(i)})
		return nil
	}
}

// A bucket that was put back to an older version is damage, not a conflict to repeat for ever.
func TestStoreThatWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		store, _ := newLog(t, env)
		old := openWriter(t, store, env, 1)
		body := EncodeState(old.State)
		newer := openWriter(t, store, env, 2)
		c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: newer})
		defer c.Close()
		put(t, store, base.ManifestName(0), body)
		_, err := c.Commit(t.Context(), RaiseLimit(2, newer.State.SeqLimit+1))
		require.ErrorIs(t, err, base.ErrCorrupt)
		require.ErrorContains(t, err, "version went back to 1 from 2")
		_, err = c.Refresh(t.Context())
		require.ErrorIs(t, err, base.ErrCorrupt)

		require.NoError(t, store.Delete(t.Context(), []string{base.ManifestName(0)}))
		_, err = c.Commit(t.Context(), RaiseLimit(2, newer.State.SeqLimit+1))
		require.ErrorIs(t, err, ErrMissingManifest)
	})
}
