package manifest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// replaceRuns is an edit like Compaction, without an epoch and without a look at tables.
func replaceRuns(merged *Run, inputs ...[]byte) Edit {
	return Edit{Name: "compact", Apply: func(s *State) error {
		g := s.Segments[0]
		if slices.ContainsFunc(g.Runs, func(r *Run) bool { return string(r.Id) == string(merged.Id) }) {
			return ErrApplied
		}
		i := slices.IndexFunc(g.Runs, func(r *Run) bool { return string(r.Id) == string(inputs[0]) })
		if i < 0 || i+len(inputs) > len(g.Runs) {
			return errors.New("an input is missing")
		}
		for j, id := range inputs {
			if string(g.Runs[i+j].Id) != string(id) {
				return errors.New("an input is missing")
			}
			for _, tb := range g.Runs[i+j].Tables {
				s.Obsolete = append(s.Obsolete, &Obsolete{Ref: tb.Ref})
			}
		}
		g.Runs = slices.Replace(g.Runs, i, i+len(inputs), merged)
		return nil
	}}
}

// raise is an edit that raises seq_limit by n above a version's.
func raise(s *Snapshot, n int) Edit {
	return RaiseLimit(s.State.Writer.Epoch, s.State.SeqLimit+uint64(n))
}

func isPut(op fault.Op) bool { return op.Kind == fault.Put }

// holdNext returns a hook that holds the first operation that matches.
func holdNext(h *fault.Held, match func(fault.Op) bool) fault.Hook {
	var once sync.Mutex
	used := false
	return func(_ context.Context, op fault.Op) fault.Plan {
		once.Lock()
		defer once.Unlock()
		if used || !match(op) {
			return fault.Plan{}
		}
		used = true
		return fault.Plan{Held: h}
	}
}

// F19: two processes conflict again and again; each applies its edits by their preconditions
// to what the other left. Both make progress and nothing is lost.
func TestF19TwoCommittersInConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		openWriter(t, inner, env, 1)
		const rounds = 60
		var conflicts int
		var mu sync.Mutex
		store := fault.New(inner, fault.Chain(
			fault.Latency(0, 4*time.Millisecond, env.Sleep),
			fault.OnKind(fault.Get, func(context.Context, fault.Op) fault.Plan {
				mu.Lock()
				defer mu.Unlock()
				conflicts++ // a committer reads only after a refusal
				return fault.Plan{}
			})))
		start := load(t, inner, env)
		var wg sync.WaitGroup
		wg.Go(func() {
			c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: start, Guard: WriterGuard(1)})
			defer c.Close()
			for i := range uint64(rounds) {
				commit(t, c, flushAt(1, i+1, i+2, int(i), i*10, i*10+10).Edit())
				_ = env.Sleep(t.Context(), time.Duration(env.Uint64()%10)*time.Millisecond)
			}
		})
		wg.Go(func() {
			c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: start, Guard: CompactorGuard(0)})
			defer c.Close()
			for i := range uint64(rounds) {
				commit(t, c, Beat(0, i+1))
				_ = env.Sleep(t.Context(), time.Duration(env.Uint64()%10)*time.Millisecond)
			}
		})
		wg.Wait()
		s := load(t, inner, env).State
		require.Len(t, s.Segments[0].Runs, rounds)
		require.Equal(t, uint64(rounds), s.CompactorBeat)
		require.Equal(t, uint64(1+2*rounds), s.Version, "every commit counts once")
		require.Greater(t, conflicts, rounds/2)
	})
}

// F45: a writer whose epoch was passed commits nothing, even from a state that it read before.
func TestF45FencedWriterCommitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		store, _ := newLog(t, env)
		a := openWriter(t, store, env, 1)
		b := openWriter(t, store, env, 2)
		require.Equal(t, uint64(2), b.State.Writer.Epoch)
		c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: a, Guard: WriterGuard(1)})
		defer c.Close()
		for range 2 { // the first attempt finds out, the second knows
			_, err := c.Commit(t.Context(), flushAt(1, 1, 2, 1, 0, 10).Edit())
			require.ErrorIs(t, err, ErrFenced)
		}
		require.Equal(t, b.ETag, load(t, store, env).ETag)
		require.Equal(t, uint64(2), c.Current().State.Writer.Epoch)
	})
}

// F7: of any number of openers from the same state one gets each epoch.
func TestF7RacingOpeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, start := newLog(t, env)
		store := fault.New(inner, fault.Latency(0, time.Millisecond, env.Sleep))
		var mu sync.Mutex
		won := 0
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				_, err := CommitOne(t.Context(), CommitterOptions{Store: store, Env: env, Start: start}, OpenWriter(0, owner(i)))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else {
					require.ErrorIs(t, err, ErrFenced)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, won)
		require.Equal(t, uint64(1), load(t, inner, env).State.Version)
	})
}

// Edits that wait while a commit is under way are folded into the next one, in order; a
// bad one among them harms no other.
func TestQueuedEditsAreFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		held := fault.NewHeld(nil)
		var count fault.Counter
		store := fault.New(inner, fault.Chain(count.Hook, holdNext(held, isPut)))
		c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: start, Guard: WriterGuard(1)})
		defer c.Close()

		broken := flushAt(1, 3, 4, 3, 20, 30)
		broken.Run.Tables[0].Keys = 1000 // more than records: must never be written
		panicky := Edit{Name: "half done", Apply: func(s *State) error {
			s.Segments, s.FlushedEnd = nil, 999
			return errors.New("changed its mind")
		}}
		edits := []struct {
			e    Edit
			text string // of the error, "" for success
		}{
			{raise(start, 1), ""},
			{flushAt(1, 1, 2, 1, 0, 10).Edit(), ""},
			{flushAt(1, 2, 3, 2, 10, 20).Edit(), ""},
			{broken.Edit(), "would break the manifest: segment 1: run 2"},
			{panicky, "commit half done: changed its mind"},
			{flushAt(1, 2, 3, 2, 10, 20).Edit(), ""}, // already in force by then
			{flushAt(1, 3, 4, 4, 20, 30).Edit(), ""},
		}
		var wg sync.WaitGroup
		for _, x := range edits {
			wg.Go(func() {
				snap, err := c.Commit(t.Context(), x.e)
				if x.text != "" {
					require.ErrorContains(t, err, x.text)
					require.NotErrorIs(t, err, ErrUnknown)
					return
				}
				require.NoError(t, err)
				require.ErrorIs(t, x.e.Apply(clone(snap.State)), ErrApplied)
			})
			synctest.Wait()
		}
		require.NoError(t, held.Apply(t.Context()))
		wg.Wait()
		require.Equal(t, fault.Counts{Put: 2}, count.Take().Requests())
		s := load(t, inner, env).State
		require.Len(t, s.Segments[0].Runs, 3)
		require.Equal(t, start.State.Version+2, s.Version)
	})
}

// An edit that failed only because of another edit in the same fold is judged again when
// that fold was not committed.
func TestFailureInAFoldIsFinalOnlyOnceCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		openWriter(t, inner, env, 1)
		f := flushAt(1, 1, 2, 1, 0, 10)
		openWriter1 := NewCommitter(CommitterOptions{Store: inner, Env: env, Start: load(t, inner, env)})
		start := commit(t, openWriter1, f.Edit())
		openWriter1.Close()

		held := fault.NewHeld(nil)
		puts := 0
		store := fault.New(inner, fault.OnKind(fault.Put, func(_ context.Context, op fault.Op) fault.Plan {
			switch puts++; puts {
			case 1:
				return fault.Plan{Held: held} // an edit before, so that two queue up
			case 2: // the fold of both: another process drops the first one's input meanwhile
				return fault.Plan{Before: func(ctx context.Context) error {
					other := NewCommitter(CommitterOptions{Store: inner, Env: env, Start: load(t, inner, env)})
					defer other.Close()
					_, err := other.Commit(ctx, replaceRuns(run(8, 0, 10), id16(1)))
					return err
				}}
			}
			return fault.Plan{}
		}))
		c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: start})
		defer c.Close()
		var wg sync.WaitGroup
		go1 := func(e Edit, check func(error)) {
			wg.Go(func() { _, err := c.Commit(t.Context(), e); check(err) })
			synctest.Wait()
		}
		go1(raise(start, 1), func(err error) { require.NoError(t, err) })
		go1(replaceRuns(run(7, 0, 10), id16(1)), func(err error) {
			require.ErrorContains(t, err, "an input is missing")
			var ee *EditError
			require.ErrorAs(t, err, &ee)
			require.Len(t, ee.SentETags, 1, "it was sent once, with the other process's commit in between")
			require.NotContains(t, ee.SentETags, load(t, inner, env).ETag)
		})
		// Run 8 is missing in the first fold (the edit before took its place), and there later.
		go1(replaceRuns(run(9, 0, 10), id16(8)), func(err error) { require.NoError(t, err) })
		require.NoError(t, held.Apply(t.Context()))
		wg.Wait()
		require.Equal(t, id16(9), load(t, inner, env).State.Segments[0].Runs[0].Id)
	})
}

// I9: an edit that would make MANIFEST larger than any reader takes is refused, for good, before it is sent.
func TestTooLargeAManifestIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		c := NewCommitter(CommitterOptions{Store: inner, Env: env, Start: start})
		defer c.Close()
		_, err := c.Commit(t.Context(), Edit{Name: "grow", Apply: func(s *State) error {
			s.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, MaxManifestBytes)))
			return nil
		}})
		require.ErrorContains(t, err, "the limit is")
		require.NotErrorIs(t, err, ErrUnknown)
		require.Equal(t, start.ETag, load(t, inner, env).ETag)
		_, err = c.Commit(t.Context(), raise(start, 5))
		require.NoError(t, err, "others go on")
	})
}

func TestCallerGivesUpButTheEditGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		held := fault.NewHeld(nil)
		c := NewCommitter(CommitterOptions{Store: fault.New(inner, holdNext(held, isPut)), Env: env, Start: start})
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		e := raise(start, 5)
		_, err := c.Commit(ctx, e)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, ErrUnknown)
		var ee *EditError
		require.ErrorAs(t, err, &ee)
		require.True(t, ee.Pending)
		require.NoError(t, held.Apply(t.Context()))
		synctest.Wait()
		require.Equal(t, start.State.SeqLimit+5, c.Current().State.SeqLimit)

		// A context that has ended already queues nothing.
		_, err = c.Commit(ctx, raise(start, 6))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrUnknown)
		require.Equal(t, c.Current().ETag, load(t, inner, env).ETag)
	})
}

func TestCloseEndsWhatIsQueuedAndUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		held := fault.NewHeld(nil)
		c := NewCommitter(CommitterOptions{Store: fault.New(inner, holdNext(held, isPut)), Env: env, Start: start})
		var wg sync.WaitGroup
		results := make([]error, 3)
		for i := range results {
			wg.Go(func() { _, results[i] = c.Commit(context.Background(), raise(start, i+1)) })
			synctest.Wait()
		}
		c.Close()
		c.Close()
		wg.Wait()
		for i, err := range results {
			require.ErrorIs(t, err, ErrClosed)
			require.Equal(t, i == 0, errors.Is(err, ErrUnknown), "only the first was sent")
		}
		var ee *EditError
		require.ErrorAs(t, results[0], &ee)
		require.Equal(t, []string{start.ETag}, ee.SentETags)
		require.NoError(t, held.Apply(t.Context()), "and may land yet")

		for range 50 { // whether it still finds room in the queue or not
			_, err := c.Commit(t.Context(), raise(start, 9))
			require.ErrorIs(t, err, ErrClosed)
			require.NotErrorIs(t, err, ErrUnknown)
		}
		snap, err := c.Refresh(t.Context())
		require.NoError(t, err, "a reader may go on")
		require.Equal(t, start.State.SeqLimit+1, snap.State.SeqLimit)
	})
}

// A write without an answer is trouble, and says so; that another writer was first, or that the Committer is closed, is none.
func TestWhatIsTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		var told []error
		var plan fault.Plan
		c := NewCommitter(CommitterOptions{
			Store: fault.New(inner, func(_ context.Context, op fault.Op) fault.Plan {
				if op.Kind == fault.Put {
					return plan
				}
				return fault.Plan{}
			}),
			Env: env, Start: start, OnTrouble: func(err error) {
				if err != nil {
					told = append(told, err)
				}
			},
		})
		overtaken := load(t, inner, env)
		overtaken.State.Version++
		overtaken.State.CommitId = id16(7)
		_, err := inner.Put(t.Context(), c.name, EncodeState(overtaken.State), objstore.PutOptions{IfMatch: overtaken.ETag})
		require.NoError(t, err)
		_, err = c.Commit(t.Context(), raise(start, 5))
		require.NoError(t, err)
		require.Empty(t, told)

		plan = fault.Plan{Before: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		done := make(chan error, 1)
		go func() {
			_, err := c.Commit(context.Background(), raise(start, 6))
			done <- err
		}()
		time.Sleep(callTimeout + time.Second)
		synctest.Wait()
		require.Len(t, told, 1)
		require.ErrorContains(t, told[0], "no answer within")
		c.Close()
		require.ErrorIs(t, <-done, ErrClosed)
		require.Len(t, told, 1)
	})
}

// Refresh adopts newer versions only, reports them in order, and counts freshness from
// when its request was sent (I7, F51).
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		var seen []uint64
		slow := fault.New(inner, fault.Latency(fault.Get, 2*time.Second, env.Sleep))
		c := NewCommitter(CommitterOptions{Store: slow, Env: env, Start: start,
			OnCommit: func(s *Snapshot) { seen = append(seen, s.State.Version) }})
		defer c.Close()

		sent := env.Elapsed()
		snap, err := c.Refresh(t.Context())
		require.NoError(t, err)
		require.Equal(t, sent, snap.Sent)
		require.Equal(t, sent+2*time.Second, env.Elapsed())
		require.Empty(t, seen, "nothing new")

		other := openWriter(t, inner, env, 2)
		snap, err = c.Refresh(t.Context())
		require.NoError(t, err)
		requireEqual(t, other.State, snap.State)
		require.Equal(t, []uint64{2}, seen)

		// A read that is overtaken by a commit is not adopted.
		var wg sync.WaitGroup
		wg.Go(func() {
			got, err := c.Refresh(t.Context())
			require.NoError(t, err)
			require.Equal(t, uint64(4), got.State.Version)
		})
		_ = env.Sleep(t.Context(), 1500*time.Millisecond) // the read has been applied: version 2
		commit(t, c, RaiseLimit(2, other.State.SeqLimit+1))
		commit(t, c, RaiseLimit(2, other.State.SeqLimit+2))
		wg.Wait()
		require.Equal(t, []uint64{2, 3, 4}, seen)
		require.Equal(t, uint64(4), c.Current().State.Version)
	})
}

// What a later request proved of an older version is not forgotten when a commit that
// was sent before it is answered: a slow commit does not make the view look stale.
func TestFreshnessNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		held := fault.NewHeld(nil)
		c := NewCommitter(CommitterOptions{Store: fault.New(inner, holdNext(held, isPut)), Env: env, Start: start})
		defer c.Close()
		var wg sync.WaitGroup
		wg.Go(func() { commit(t, c, raise(start, 1)) })
		<-held.Caught()
		_ = env.Sleep(t.Context(), 5*time.Second)
		polled, err := c.Refresh(t.Context())
		require.NoError(t, err)
		require.NoError(t, held.Apply(t.Context()))
		wg.Wait()
		require.Equal(t, polled.State.Version+1, c.Current().State.Version)
		require.Equal(t, polled.Sent, c.Current().Sent)
	})
}

func TestCommitterNeedsItsOptions(t *testing.T) {
	require.Panics(t, func() { NewCommitter(CommitterOptions{}) })
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := testEnv(1)
		inner, _ := newLog(t, env)
		start := openWriter(t, inner, env, 1)
		held := fault.NewHeld(nil)
		c := NewCommitter(CommitterOptions{Store: fault.New(inner, holdNext(held, isPut)), Env: env, Start: start})
		defer c.Close()
		var wg sync.WaitGroup
		wg.Go(func() { commit(t, c, raise(start, 1)) })
		<-held.Caught()
		for i := range maxQueued {
			wg.Go(func() { commit(t, c, raise(start, i+2)) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Commit(ctx, raise(start, 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrUnknown, "it was never queued")
		require.NoError(t, held.Apply(t.Context()))
		wg.Wait()
	})
}

// Whoever is woken together commits together: a batch is taken when its goroutine starts, not when the first edit comes.
// Close before that start leaves nothing to be sent.
func TestABatchIsTakenWhenItsGoroutineStarts(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			env := testEnv(1)
			inner, _ := newLog(t, env)
			start := openWriter(t, inner, env, 1)
			var mu sync.Mutex
			var starts []func()
			env.Go = func(_ string, f func()) {
				mu.Lock()
				defer mu.Unlock()
				starts = append(starts, f)
			}
			var count fault.Counter
			c := NewCommitter(CommitterOptions{Store: fault.New(inner, count.Hook), Env: env, Start: start})
			var wg sync.WaitGroup
			for n := 1; n <= 3; n++ {
				wg.Go(func() {
					_, err := c.Commit(t.Context(), raise(start, n))
					if closes {
						require.ErrorIs(t, err, ErrClosed)
						require.NotErrorIs(t, err, ErrUnknown)
					} else {
						require.NoError(t, err)
					}
				})
			}
			synctest.Wait()
			require.Len(t, starts, 1)
			require.Zero(t, count.Take().Requests())
			if closes {
				wg.Go(c.Close)
				synctest.Wait()
			}
			for i := 0; i < len(starts); i++ {
				starts[i]()
				synctest.Wait()
			}
			if !closes {
				require.Equal(t, fault.Counts{Put: 1}, count.Take().Requests())
				wg.Go(c.Close)
				synctest.Wait()
				starts[len(starts)-1]()
			}
			wg.Wait()
			require.Zero(t, count.Take().Requests())
		})
	}
}
