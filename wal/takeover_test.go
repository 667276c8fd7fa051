package wal

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

// takeover is one random history: a writer uploads through a store that fails in every
// way that the contract allows, and maybe another writer ends its epoch meanwhile.
type takeover struct {
	t     *testing.T
	seed  uint64
	store *faultyStore
	up    *Uploader

	mu      sync.Mutex // guards what follows; the fake network is concurrent
	rng     *rand.Rand
	late    sync.WaitGroup // requests still in the network
	bodies  map[uint64][]byte
	durable []uint64
	failed  error
	next    uint64
	end     uint64
}

const takeoverObjects = 24

func (r *takeover) chance(percent int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.IntN(100) < percent
}

func (r *takeover) latency(limit time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Duration(r.rng.Int64N(int64(limit)))
}

// put is the network between a writer and the store.
func (r *takeover) put(ctx context.Context, _ string, _ int, apply func() (objstore.PutResult, error)) (objstore.PutResult, error) {
	if err := sleepOr(ctx, r.latency(80*time.Millisecond)); err != nil {
		if r.chance(50) {
			_, _ = apply() // it had been sent
		}
		return objstore.PutResult{}, err
	}
	switch {
	case r.chance(60):
		return apply()
	case r.chance(25): // applied, the answer is lost
		_, _ = apply()
		return objstore.PutResult{}, errFlaky
	case r.chance(25): // repeated inside the store's client
		_, _ = apply()
		return apply()
	case r.chance(25): // still in the network when its caller gives up
		wait := r.latency(20 * time.Second)
		r.late.Go(func() {
			time.Sleep(wait) // in the bubble
			_, _ = apply()
		})
		return objstore.PutResult{}, errFlaky
	case r.chance(20): // a very slow answer
		if err := sleepOr(ctx, r.latency(10*time.Second)); err != nil {
			return objstore.PutResult{}, err
		}
		return apply()
	case r.chance(50):
		return objstore.PutResult{}, objstore.ErrConflict
	}
	return objstore.PutResult{}, errFlaky
}

func (r *takeover) get(ctx context.Context, _ string, _ int, apply func() (objstore.Object, error)) (objstore.Object, error) {
	if err := sleepOr(ctx, r.latency(40*time.Millisecond)); err != nil {
		return objstore.Object{}, err
	}
	if r.chance(20) {
		return objstore.Object{}, errFlaky
	}
	return apply()
}

// submit fills the window. The lock keeps ids in order between callers.
func (r *takeover) submit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.next <= takeoverObjects && r.up.CanSubmit() {
		end := r.end + uint64(r.rng.IntN(4))
		body := testObject(r.next, r.end, end)
		r.bodies[r.next] = bytes.Clone(body)
		r.up.Submit(r.next, body)
		r.next, r.end = r.next+1, end
	}
}

func (r *takeover) onDurable(d Durable) {
	require.NoError(r.t, r.failed, "seed %d", r.seed)
	require.EqualValues(r.t, len(r.durable)+1, d.ID, "seed %d", r.seed)
	r.durable = append(r.durable, d.ID)
	for i := range d.Buffer { // what is given back is written over
		d.Buffer[i] = 0xDD
	}
	r.submit()
}

// replay checks that the epoch holds exactly its fence and, before it, the objects that
// were submitted.
func (r *takeover) replay() uint64 {
	n := uint64(0)
	fence, err := Replay(r.t.Context(), r.store.Store, testEnv(r.seed), testIdent, testEpoch, 1, &Chain{Started: true}, func(o *Object, _ int64) error {
		n++
		require.Equal(r.t, n, o.ID)
		got, err := r.store.Store.Get(r.t.Context(), walName(n), objstore.GetOptions{})
		require.NoError(r.t, err)
		r.mu.Lock()
		want := r.bodies[n]
		r.mu.Unlock()
		require.Equal(r.t, want, got.Body, "seed %d: id %d is bound to its bytes", r.seed, n)
		return nil
	})
	require.NoError(r.t, err, "seed %d", r.seed)
	require.Equal(r.t, n+1, fence)
	return fence
}

// run plays the history. after is when the epoch is ended; 0: never.
func (r *takeover) run(after time.Duration) {
	r.store.onPut, r.store.onGet = r.put, r.get
	r.up = NewUploader(UploaderOptions{
		Store: r.store, Env: testEnv(r.seed), Ident: testIdent, Epoch: testEpoch, Writer: testWriter,
		InFlight: 1 + int(r.seed%8), HedgeMin: 20 * time.Millisecond,
		OnDurable: r.onDurable,
		OnFailed:  func(err error) { r.failed = err },
		OnSpace:   r.submit,
	})
	r.submit()
	if after == 0 {
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		require.Len(r.t, r.durable, takeoverObjects, "seed %d: everything lands in the end", r.seed)
		require.NoError(r.t, r.failed)
		r.up.Stop()
		r.late.Wait()
		return
	}
	time.Sleep(after)
	fence, err := FenceEpoch(r.t.Context(), r.store, testEnv(r.seed+1), testIdent, testEpoch, 1, testEpoch+1)
	require.NoError(r.t, err, "seed %d", r.seed)
	// I4: what the new writer reads does not change, whatever lands from now on.
	require.Equal(r.t, fence, r.replay(), "seed %d", r.seed)
	time.Sleep(30 * time.Minute)
	r.late.Wait()
	synctest.Wait()
	require.Equal(r.t, fence, r.replay(), "seed %d", r.seed)
	// I1, I2: all that was reported durable, even after the fence, lies before it.
	require.Less(r.t, uint64(len(r.durable)), fence, "seed %d", r.seed)
	if fence <= takeoverObjects {
		require.ErrorIs(r.t, r.failed, ErrFenced, "seed %d", r.seed)
	}
	before := len(r.durable)
	r.up.Stop()
	require.Len(r.t, r.durable, before)
	require.Zero(r.t, r.up.active)
}

// Many random histories: nothing durable is lost, nothing is durable or read behind the
// fence, a second replay reads the same (I1, I2, I4; F1 to F6, F8, F12).
func TestTakeover(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 50
	}
	fenced := 0
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			r := &takeover{
				t: t, seed: seed, store: newFaultyStore(), bodies: map[uint64][]byte{}, next: 1,
				rng: rand.New(rand.NewPCG(seed, 7)),
			}
			after := time.Duration(0)
			if seed%8 != 0 {
				after = 1 + r.latency(3*time.Second)
			}
			r.run(after)
			if r.failed != nil {
				fenced++
			}
		})
		if t.Failed() {
			fmt.Printf("failed with seed %d\n", seed)
			return
		}
	}
	require.NotZero(t, fenced, "histories that end in a fence")
}
