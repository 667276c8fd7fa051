package manifest

import (
	"context"
	"encoding/binary"
	"fmt"
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

func put(t testing.TB, store objstore.Store, name string, body []byte) {
	t.Helper()
	_, err := store.Put(t.Context(), name, body, objstore.PutOptions{})
	require.NoError(t, err)
}

func logOf(id []byte) *Log {
	return &Log{FormatVersion: 1, LogId: id, Trees: []*Tree{{Id: 0}}}
}

func TestCreateNewLog(t *testing.T) {
	env := testEnv(1)
	store := mem.New(mem.Options{Now: func() time.Time { return time.UnixMilli(5000) }})
	id, err := Create(t.Context(), store, env, 0)
	require.NoError(t, err)
	require.Len(t, id, 16)

	l, err := LoadLog(t.Context(), store)
	require.NoError(t, err)
	requireEqual(t, &Log{FormatVersion: 1, LogId: id, Trees: []*Tree{{Id: 0}}, CreatedMs: 5000}, l)
	snap := load(t, store, env)
	require.Equal(t, id, snap.State.LogId)
	require.Zero(t, snap.State.Version)
	require.Zero(t, snap.State.Writer.Epoch)
	require.Zero(t, snap.State.SeqLimit)
	require.Equal(t, Pos{1, 1}, snap.State.Position.Pos())
	require.Equal(t, time.UnixMilli(5000), snap.StoreTime)

	again, err := Create(t.Context(), store, env, 0)
	require.NoError(t, err)
	require.Equal(t, id, again, "an existing log is left as it is")
	require.Equal(t, snap.ETag, load(t, store, env).ETag)
}

// The exact number of requests.
func TestCreateAndLoadCost(t *testing.T) {
	var count fault.Counter
	env := testEnv(1)
	store := fault.New(mem.New(mem.Options{}), count.Hook)
	_, err := Create(t.Context(), store, env, 0)
	require.NoError(t, err)
	require.Equal(t, fault.Counts{Put: 2, Get: 6, Time: 1}, count.Take().Requests())
	_, err = Create(t.Context(), store, env, 0)
	require.NoError(t, err)
	require.Equal(t, fault.Counts{Get: 2}, count.Take().Requests())
	snap, err := Load(t.Context(), store, env, 0)
	require.NoError(t, err)
	require.Equal(t, fault.Counts{Get: 2}, count.Take().Requests())
	same, _, err := Poll(t.Context(), store, env, 0, snap.ETag)
	require.NoError(t, err)
	require.Nil(t, same)
	c := CommitterOptions{Store: store, Env: env, Start: snap}
	count.Take()
	_, err = CommitOne(t.Context(), c, OpenWriter(0, owner(1)))
	require.NoError(t, err)
	require.Equal(t, fault.Counts{Put: 1}, count.Take().Requests())
}

// What is found in the bucket, and what Create and Load make of it.
func TestFoundStates(t *testing.T) {
	fresh := emptyState(testEnv(1), 0)
	used := clone(fresh)
	used.Version = 1
	foreign := logOf(id16(77))
	newer := logOf(fresh.LogId)
	newer.RequiredFeatures = []string{"f"}
	v9 := EncodeLog(logOf(fresh.LogId))
	v9[offVersion] = 9
	binary.LittleEndian.PutUint64(v9[len(v9)-sumBytes:], logFrame.checksum(0, v9[:len(v9)-sumBytes]))
	for _, c := range []struct {
		name           string
		manifest, log  []byte
		create, load   error // nil: works
		createLeavesIt bool
	}{
		{"nothing", nil, nil, nil, ErrNoLog, false},
		{"creation that did not finish", EncodeState(fresh), nil, nil, ErrNoLog, false},
		{"complete", EncodeState(fresh), EncodeLog(logOf(fresh.LogId)), nil, nil, true},
		{"F55 LOG without MANIFEST", nil, EncodeLog(logOf(fresh.LogId)), ErrMissingManifest, ErrMissingManifest, true},
		{"MANIFEST in use without LOG", EncodeState(used), nil, ErrMissingLog, ErrMissingLog, true},
		{"another log's MANIFEST", EncodeState(fresh), EncodeLog(foreign), base.ErrCorrupt, base.ErrCorrupt, true},
		{"broken LOG", EncodeState(fresh), []byte("x"), base.ErrCorrupt, base.ErrCorrupt, true},
		{"empty MANIFEST", []byte{}, EncodeLog(logOf(fresh.LogId)), base.ErrCorrupt, base.ErrCorrupt, true},
		{"broken MANIFEST without LOG", []byte("x"), nil, base.ErrCorrupt, base.ErrCorrupt, true},
		{"newer feature", EncodeState(fresh), EncodeLog(newer), ErrFeature, ErrFeature, true},
		{"newer feature, MANIFEST beyond us", []byte("x"), EncodeLog(newer), ErrFeature, ErrFeature, true},
		{"newer version", EncodeState(fresh), v9, ErrVersion, ErrVersion, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			store, env := mem.New(mem.Options{}), testEnv(2)
			if c.manifest != nil {
				put(t, store, base.ManifestName(0), c.manifest)
			}
			if c.log != nil {
				put(t, store, base.LogName, c.log)
			}
			before := store.Len()
			check := func(err, want error) {
				t.Helper()
				if want == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, want)
				}
			}
			_, err := Load(t.Context(), store, env, 0)
			check(err, c.load)
			id, err := Create(t.Context(), store, env, 0)
			check(err, c.create)
			if c.createLeavesIt {
				require.Equal(t, before, store.Len())
			} else {
				require.Equal(t, id, load(t, store, env).State.LogId)
			}
			if c.create == nil && c.manifest != nil {
				require.Equal(t, fresh.LogId, id)
			}
		})
	}
}

// Create survives a fault of every single request, applied or not, and of a creator
// that dies there: the next one completes the same log.
func TestCreateFaultSweep(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for i := 0; ; i++ {
			hit := true
			synctest.Test(t, func(t *testing.T) {
				inner, env := mem.New(mem.Options{}), testEnv(1)
				rule := fault.FailNth(i, applied, nil)
				id, err := Create(t.Context(), fault.New(inner, rule.Hook), env, 0)
				require.NoError(t, err, "one fault, request %d, applied %t", i, applied)
				require.Equal(t, id, load(t, inner, env).State.LogId)
				hit = rule.Hit()

				// Everything from request i on fails: the creator gives up.
				inner = mem.New(mem.Options{})
				n := 0
				dying := fault.New(inner, func(context.Context, fault.Op) fault.Plan {
					if n++; n <= i {
						return fault.Plan{}
					}
					if n == i+1 && applied {
						return fault.Lose(fault.ErrInjected)
					}
					return fault.Refuse(fault.ErrInjected)
				})
				_, err = Create(t.Context(), dying, env, 0)
				if i < 9 {
					require.ErrorIs(t, err, fault.ErrInjected)
				}
				half, _ := getIfThere(t.Context(), inner, base.ManifestName(0))
				id, err = Create(t.Context(), inner, env, 0)
				require.NoError(t, err)
				if half != nil {
					s, err := DecodeState("M", 0, half.Body)
					require.NoError(t, err)
					require.Equal(t, s.LogId, id, "completed, not replaced")
				}
			})
			if !hit {
				require.GreaterOrEqual(t, i, 9)
				break
			}
		}
	}
}

func TestRacingCreatorsGetTheSameLog(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			store := mem.New(mem.Options{})
			var mu sync.Mutex
			ids := map[string]int{}
			var wg sync.WaitGroup
			for i := range 5 {
				wg.Go(func() {
					env := testEnv(seed*10 + uint64(i))
					slow := fault.New(store, fault.Latency(0, time.Millisecond, func(ctx context.Context, d time.Duration) error {
						return env.Sleep(ctx, time.Duration(env.Uint64()%5)*d)
					}))
					id, err := Create(t.Context(), slow, env, 0)
					require.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					ids[string(id)]++
				})
			}
			wg.Wait()
			require.Len(t, ids, 1)
			require.Equal(t, 2, store.Len())
		})
	}
}

func TestCreateGivesUp(t *testing.T) {
	for _, c := range []struct {
		err   error
		calls int
	}{{objstore.ErrDenied, 1}, {objstore.ErrNoBucket, 1}, {fault.ErrInjected, createAttempts}} {
		synctest.Test(t, func(t *testing.T) {
			store := fault.New(mem.New(mem.Options{}), fault.Always(fault.Refuse(c.err)))
			_, err := Create(t.Context(), store, testEnv(1), 0)
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, "create log at mem:")
			require.Equal(t, c.calls, store.Calls())
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Create(ctx, mem.New(mem.Options{}), testEnv(1), 0)
	require.ErrorIs(t, err, context.Canceled)
}

func TestPoll(t *testing.T) {
	env := testEnv(1)
	store, start := newLog(t, env)
	clock := 5 * time.Second
	env.Elapsed = func() time.Duration { clock += time.Second; return clock }
	snap, sent, err := Poll(t.Context(), store, env, 0, start.ETag)
	require.NoError(t, err)
	require.Nil(t, snap)
	require.Equal(t, 6*time.Second, sent, "taken once, before the request")

	opened := openWriter(t, store, env, 1)
	snap, sent, err = Poll(t.Context(), store, env, 0, start.ETag)
	require.NoError(t, err)
	requireEqual(t, opened.State, snap.State)
	require.Equal(t, opened.ETag, snap.ETag)
	require.Equal(t, sent, snap.Sent)

	_, _, err = Poll(t.Context(), store, env, 5, "")
	require.ErrorIs(t, err, ErrMissingManifest)
	_, _, err = Poll(t.Context(), fault.New(store, fault.Always(fault.Truncate(40))), env, 0, "")
	require.ErrorIs(t, err, base.ErrCorrupt)
	_, _, err = Poll(t.Context(), fault.New(store, fault.Always(fault.Refuse(fault.ErrInjected))), env, 0, "")
	require.ErrorIs(t, err, fault.ErrInjected)
}

func TestCheckNext(t *testing.T) {
	at := func(version uint64, commit, log int) *Snapshot {
		s := smallState()
		s.Version, s.CommitId, s.LogId = version, id16(commit), id16(log)
		return &Snapshot{State: s}
	}
	old := at(5, 1, 1)
	for want, next := range map[string]*Snapshot{
		"":                        at(6, 2, 1),
		"log id became":           at(6, 2, 2),
		"version went back":       at(4, 2, 1),
		"version 5 by commit a0a": at(5, 2, 1),
	} {
		err := CheckNext(old, next)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, base.ErrCorrupt)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, CheckNext(old, at(5, 1, 1)))
}

func ExampleCreate() {
	ctx, env, store := context.Background(), base.SystemEnv(), mem.New(mem.Options{})
	if _, err := Create(ctx, store, env, 0); err != nil {
		panic(err)
	}
	snap, err := Load(ctx, store, env, 0)
	if err != nil {
		panic(err)
	}
	c := NewCommitter(CommitterOptions{Store: store, Env: env, Start: snap})
	defer c.Close()
	snap, err = c.Commit(ctx, OpenWriter(snap.State.Writer.Epoch, [16]byte{1}))
	if err != nil {
		panic(err)
	}
	fmt.Println("version", snap.State.Version, "epoch", snap.State.Writer.Epoch, "first sequence", OpenedNext(snap.State))
	// Output: version 1 epoch 1 first sequence 0
}
