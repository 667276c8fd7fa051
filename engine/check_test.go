package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/dir"
	"github.com/annalsdb/annals/objstore/fault"
)

// What the store holds is sorted by what the log has to do with it.
func TestCheckObjects(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db, obsolete, walObjects, orphans := r.garbage(r.manualOptions())
		r.put("notes/about-this-log", 7)
		r.put("trees/00000001/MANIFEST", 8)
		r.put(base.WALName(1, 1, 1), 9)
		uncommitted := orphan(base.RoleWriter, db.epoch).Name()
		r.put(uncommitted, 11)
		report := checkStore(t, r.witness.Store)
		require.Equal(t, orphans, report.Orphans.Objects)
		require.Equal(t, obsolete+walObjects+1, report.Waiting.Objects, "and a probe")
		require.Equal(t, CheckedObjects{Objects: 1, Bytes: 11, Names: []string{uncommitted}}, report.Uncommitted)
		require.Equal(t, CheckedObjects{
			Objects: 3, Bytes: 24, Names: []string{"notes/about-this-log", "trees/00000001/MANIFEST", base.WALName(1, 1, 1)},
		}, report.Foreign)
		require.Equal(t, 1, report.WALObjects)

		// While something is pinned, nobody knows what is an orphan.
		l := &liar{t, r.clone()}
		l.pinned(l.get(base.ManifestName(tree)))
		report = checkStore(t, l.store)
		require.Zero(t, report.Orphans.Objects)
		require.Equal(t, orphans+1, report.Uncommitted.Objects)
		require.Equal(t, 1, report.Pins)
	})
}

// A report holds the first of what is wrong, and counts the rest.
func TestCheckBoundsItsReport(t *testing.T) {
	const tables, foreign = maxCheckDamage + 200, maxCheckNames + 300
	store := newStore()
	db, err := Open(t.Context(), store, smallOptions())
	require.NoError(t, err)
	db.crash()
	l := &liar{t, store}
	l.state(func(s *manifest.State) {
		active := activeSegment(s)
		for i := range tables {
			id := base.ObjectID{Tree: tree, Kind: base.KindSST, Role: base.RoleWriter, Epoch: 1, Segment: active.Id, ULID: base.SystemEnv().NewULID()}
			run := &manifest.Run{Id: id.ULID[:], Start: uint64(i), End: uint64(i + 1)}
			run.Tables = []*manifest.Table{{
				Ref: manifest.RefOf(id), Size: 1 << 40, MetaOffset: 1 << 39, LowerKey: []byte("k"), UpperKey: []byte("k"),
				FirstSequence: uint64(i), LastSequence: uint64(i), Records: 1, Keys: 1,
			}}
			active.Runs = append(active.Runs, run)
		}
		s.FlushedEnd = tables
	})
	for i := range foreign {
		l.put(fmt.Sprintf("foreign/%04d", i), []byte("x"))
	}
	report, err := Check(t.Context(), store, CheckOptions{})
	require.NoError(t, err)
	require.Equal(t, tables, report.DamageFound)
	require.Len(t, report.Damage, maxCheckDamage)
	require.Equal(t, tables-maxCheckDamage, report.DamageLeftOut)
	require.ErrorContains(t, report.Err(), "and 200 more")
	for i, d := range report.Damage {
		require.Equal(t, DamageMissing, d.Kind)
		require.Equal(t, uint64(i), d.Affected.FirstSequence, "in the order of the log")
		require.Equal(t, fmt.Sprintf(`segment 1, sequences %d to %d, keys "k" to "k"`, i, i), d.Affected.String())
	}
	require.Equal(t, foreign, report.Foreign.Objects)
	require.Len(t, report.Foreign.Names, maxCheckNames)
}

// zeros is a store of objects of any size that hold nothing but zeros. It counts what is read at the same time.
type zeros struct {
	objstore.Store
	mu          sync.Mutex
	size        int64
	held, most  int64
	calls, peak int
}

func (z *zeros) Get(ctx context.Context, _ string, o objstore.GetOptions) (objstore.Object, error) {
	z.mu.Lock()
	z.calls++
	z.held += o.Length
	z.most, z.peak = max(z.most, z.held), max(z.peak, z.calls)
	z.mu.Unlock()
	time.Sleep(50 * time.Millisecond) // simulated
	z.mu.Lock()
	defer z.mu.Unlock()
	z.calls--
	z.held -= o.Length
	return objstore.Object{Body: make([]byte, o.Length), Attributes: objstore.Attributes{Size: z.size}}, ctx.Err()
}

// However large a table is, what is read ahead of it is bounded, and much is under way at the same time.
func TestCheckReadsAheadWithinBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, meta = 1 << 30, 1<<30 - 64<<10
		z := &zeros{size: size}
		a := newAheadReader(t.Context(), uncached(z, base.SystemEnv()))
		line := func(i byte) *manifest.Table {
			ref := manifest.RefOf(base.ObjectID{Tree: tree, Kind: base.KindSST, Role: base.RoleWriter, ULID: base.ULID{i}})
			return &manifest.Table{Ref: ref, Size: size, MetaOffset: meta}
		}
		a.expect([]*manifest.Table{line(0), line(1), line(2)})
		for _, i := range []byte{0, 2} { // table 1 is given up
			table := a.next(line(i))
			body, err := table.ReadRange(t.Context(), meta, size-meta)
			require.NoError(t, err)
			require.Len(t, body, size-meta)
			started := time.Now()
			const n = 1<<20 + 17
			for off := int64(0); off < 256<<20; off += n {
				body, err := table.ReadRange(t.Context(), off, n)
				require.NoError(t, err)
				require.Len(t, body, n)
				require.LessOrEqual(t, a.bytes, int64(aheadBytes))
				require.LessOrEqual(t, a.pieces, aheadPieces)
			}
			require.Less(t, time.Since(started), 256*50*time.Millisecond/10, "one request after the other would take longer")
			a.done(table)
		}
		a.close()
		time.Sleep(time.Second) // simulated: of a request that was sent twice, one is still there
		require.LessOrEqual(t, z.most, int64(2*aheadBytes), "what was given up included")
		require.Greater(t, z.peak, 8)
		require.Zero(t, z.calls)
	})
}

// A report does not depend on which answer comes first, and many are waited for at the same time.
func TestCheckIsTheSameEachTime(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		r.groupedKeys(r.manualOptions()).crash()
		store := r.clone()
		rnd := rand.New(rand.NewPCG(1, 2))
		names := r.names(base.ObjectPrefix(tree, base.KindSST))
		for _, i := range rnd.Perm(len(names))[:5] {
			replaceObject(t, store, names[i], func(body []byte) { body[rnd.IntN(len(body))] ^= 1 })
		}
		var first []byte
		for seed := range 5 {
			var mu sync.Mutex
			rnd := rand.New(rand.NewPCG(3, uint64(seed)))
			slow := fault.New(store, func(_ context.Context, op fault.Op) fault.Plan {
				mu.Lock()
				defer mu.Unlock()
				wait := time.Duration(rnd.IntN(100)) * time.Millisecond
				return fault.Plan{Before: func(context.Context) error {
					time.Sleep(wait) // simulated
					return nil
				}}
			})
			began := time.Now()
			report, err := Check(t.Context(), slow, CheckOptions{})
			require.NoError(t, err)
			require.Equal(t, 5, report.DamageFound)
			require.Less(t, time.Since(began), time.Duration(len(names))*50*time.Millisecond/2)
			got, err := json.Marshal(report)
			require.NoError(t, err)
			if first == nil {
				first = got
			}
			require.Equal(t, string(first), string(got))
		}
	})
}

// Check writes nothing: a store that may only be read is enough.
func TestCheckOnlyReads(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		r.lyingLog()
		r.rule(func(_ context.Context, op fault.Op) fault.Plan {
			if op.Kind == fault.Put || op.Kind == fault.Delete {
				t.Errorf("%v", op)
			}
			return fault.Plan{}
		})
		checkStore(t, r.store)
	})
	path := t.TempDir()
	store, err := dir.Open(path)
	require.NoError(t, err)
	db, err := Open(t.Context(), store, smallOptions())
	require.NoError(t, err)
	mustAppend(t, db, record("k", "v"))
	require.NoError(t, db.Close(t.Context()))
	readOnly, err := dir.OpenReadOnly(path)
	require.NoError(t, err)
	require.True(t, checkStore(t, readOnly).Sound)
}

// When the store does not answer, that is no damage; what was found until then is said.
func TestCheckCannotLook(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		_, err := Check(t.Context(), newStore(), CheckOptions{})
		require.ErrorIs(t, err, manifest.ErrNoLog)
		r.lyingLog()
		store := r.clone()
		replaceObject(t, store, r.names(base.ObjectPrefix(tree, base.KindSST))[0], func(body []byte) { body[0] ^= 1 })
		for n, met := 0, true; met; n++ {
			met = false
			var mu sync.Mutex
			i := 0
			down := fault.New(store, func(context.Context, fault.Op) fault.Plan {
				mu.Lock()
				defer mu.Unlock()
				if i++; i <= n {
					return fault.Plan{}
				}
				met = true
				return fault.Refuse(objstore.ErrUnavailable)
			})
			report, err := Check(t.Context(), down, CheckOptions{})
			require.Equal(t, met, err != nil)
			require.Equal(t, !met, report.Complete)
			require.False(t, report.Sound)
			require.LessOrEqual(t, report.DamageFound, 1, "%v", report.Damage)
			if met {
				require.ErrorIs(t, err, objstore.ErrUnavailable)
			} else {
				require.Equal(t, 1, report.DamageFound)
			}
		}
	})
}

// It stops soon after its context ends, wherever it is, and nothing goes on behind it.
func TestCheckIsInterrupted(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		r.lyingLog()
		for i := 1; ; i++ { // objects before it is interrupted
			ctx, cancel := context.WithCancel(t.Context())
			n := 0
			report, err := Check(ctx, r.witness, CheckOptions{Progress: func(p CheckProgress) {
				require.Equal(t, n+1, p.Objects)
				require.Greater(t, p.Total, int64(0))
				if n++; n == i {
					cancel()
				}
			}})
			cancel()
			if err == nil {
				require.Less(t, n, i)
				require.True(t, report.Sound)
				return
			}
			require.ErrorIs(t, err, context.Canceled)
			require.Zero(t, report.DamageFound)
		}
	})
}

// Check beside a busy writer, its compactor, retention and collector, over and over, each time slowly: it never
// takes for damage that the log goes on.
func TestCheckBesideABusyWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := agingOptions()
		o.StaleAfter, o.GCGrace, o.GCInterval = 5*time.Second, 5*time.Second+graceMargin, time.Second
		o.SegmentBytes, o.RetentionBytes, o.RetentionInterval = 8<<10, 300<<10, 7*time.Second
		store := newStore()
		db := openTest(t, store, o)
		rnd := rand.New(rand.NewPCG(7, 8))
		i := 0
		write := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			var writer sync.WaitGroup
			writer.Go(func() {
				for ; ctx.Err() == nil; i++ {
					recs := []Record{record(fmt.Sprint("key ", i%50), strings.Repeat("v", rnd.IntN(1500)))}
					_, err := db.Append(t.Context(), recs, AppendOptions{Producer: "p", ProducerSequence: uint64(i)})
					require.NoError(t, err)
					mustSet(t, db, "c", cursor(fmt.Sprint("key ", i%50), uint64(i)))
					time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
				}
			})
			return func() {
				cancel()
				writer.Wait()
			}
		}
		stop := write()
		var mu sync.Mutex
		slowly := rand.New(rand.NewPCG(9, 10))
		slow := fault.New(store, func(context.Context, fault.Op) fault.Plan {
			mu.Lock()
			defer mu.Unlock()
			wait := time.Duration(slowly.IntN(400)) * time.Millisecond
			pause := func(context.Context) error {
				time.Sleep(wait)
				return nil
			}
			if wait%2 == 0 {
				return fault.Plan{After: pause}
			}
			return fault.Plan{Before: pause}
		})
		began, checks, groups, waiting := time.Now(), 0, 0, 0
		for ; time.Since(began) < 4*time.Minute; checks++ {
			if checks == 20 { // a takeover
				stop()
				old := db
				db = openTest(t, store, o)
				old.crash()
				stop = write()
			}
			report, err := Check(t.Context(), slow, CheckOptions{})
			require.NoError(t, err)
			require.NoError(t, report.Err())
			require.True(t, report.Sound)
			groups, waiting = max(groups, report.Groups), max(waiting, report.Waiting.Objects)
		}
		stop()
		require.Greater(t, checks, 20)
		require.Greater(t, groups, 2)
		require.Greater(t, waiting, 10)
		require.Greater(t, db.FirstSequence(), uint64(0), "retention has worked")
	})
}
