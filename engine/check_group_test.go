package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// groupedKeys makes a log of a group of two segments and one of three, with keys that are in all,
// some and one of them, several tables a segment, and a plain segment.
func (r *garbageRig) groupedKeys(o Options) *DB {
	r.t.Helper()
	o.TableBytes = 1 << 10
	db := r.open(o)
	r.takeCompactor(db)
	for i := range 6 {
		var recs []Record
		for k := range 40 {
			recs = append(recs, record(fmt.Sprintf("key %d", k%(10*(i+1))), fmt.Sprint(k, strings.Repeat("x", 100))))
		}
		recs = append(recs, record(fmt.Sprint("only in ", i), "v"))
		mustAppend(r.t, db, recs...)
		r.segment(db)
		switch i {
		case 1:
			r.group(db, 2)
		case 4:
			r.group(db, 3)
		}
	}
	return db
}

func TestCheckGroups(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.groupedKeys(r.manualOptions())
		report := checkStore(t, r.store)
		require.Equal(t, 2, report.Groups)
		require.Equal(t, 7, report.Segments, "five in groups, one sealed, one active")
		require.Equal(t, 6, report.Runs)
		require.Equal(t, uint64(6*41), report.TableRecords)
		tables := len(r.names(base.ObjectPrefix(tree, base.KindSST)))
		require.Greater(t, tables, 2*6, "several a segment")
		require.Equal(t, tables, report.Tables)
		require.Zero(t, report.Orphans)

		db.crash()
		db = r.open(db.opts)
		r.takeCompactor(db)
		require.Empty(t, checkStore(t, r.store).Orphans.Names, "all of it is of passed epochs, and named")
		orphans := []string{orphanOf(base.RoleWriter, 1, 2).Name(), orphanOf(base.RoleCompactor, 1, 4).Name(), orphanIndex(1).Name()}
		for _, name := range append(orphans, orphanIndex(2).Name()) {
			r.put(name, 10)
		}
		require.ElementsMatch(t, orphans, checkStore(t, r.store).Orphans.Names)
	})
}

// clone copies what the store holds, to be damaged.
func (r *garbageRig) clone() *mem.Store { return r.witness.Store.(*mem.Store).Clone() }

// replaceObject puts what change makes of an object in its place.
func replaceObject(t *testing.T, store objstore.Store, name string, change func(body []byte)) {
	t.Helper()
	obj, err := store.Get(t.Context(), name, objstore.GetOptions{})
	require.NoError(t, err)
	change(obj.Body)
	require.NoError(t, store.Delete(t.Context(), []string{name}))
	_, err = store.Put(t.Context(), name, obj.Body, objstore.PutOptions{})
	require.NoError(t, err)
}

// Damage of an index or of a table that it lists is reported with what it affects, and does not keep the
// rest from being looked at.
func TestCheckDamagedGroups(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.groupedKeys(r.manualOptions())
		g := db.Head().GetGroups()[1] // segments 3 to 5
		index := g.GetIndex().ID().Name()
		obj, err := r.store.Get(t.Context(), index, objstore.GetOptions{})
		require.NoError(t, err)
		x, err := manifest.ParseIndex(g.GetIndex().ID(), obj.Size, obj.Body)
		require.NoError(t, err)
		tables, err := tablesOf(r.store, g.GetIndex().ID(), 4, 4)
		require.NoError(t, err)
		table := sortedKeys(tables)[0]
		flip := func(at int64) func(*mem.Store) {
			return func(s *mem.Store) {
				replaceObject(t, s, index, func(body []byte) { body[at] ^= 1 })
			}
		}
		list, _ := x.ListRange(1)
		for name, c := range map[string]struct {
			damage func(s *mem.Store)
			want   []string
			lost   int // segments that are not looked at
		}{
			"footer":   {flip(int64(len(obj.Body)) - 9), []string{"segments 3 to 5, sequences 82 to 204, were not looked at", index}, 3},
			"contents": {flip(int64(g.GetTocOffset()) + 5), []string{"segments 3 to 5, sequences 82 to 204, were not looked at", index}, 3},
			"list":     {flip(list + 20), []string{"segment 4, sequences 123 to 163, was not looked at", index}, 1},
			"shard":    {flip(20), []string{"segments 3 to 5, sequences 82 to 204, keys with hashes 0000000000 to ffffffffff", index}, 0},
			"no index": {func(s *mem.Store) { require.NoError(t, s.Delete(t.Context(), []string{index})) }, []string{"were not looked at", index}, 3},
			"no table": {func(s *mem.Store) { require.NoError(t, s.Delete(t.Context(), []string{table})) }, []string{table}, 0},
			"table":    {func(s *mem.Store) { replaceObject(t, s, table, func(b []byte) { b[3] ^= 1 }) }, []string{table}, 0},
		} {
			s := r.clone()
			c.damage(s)
			report, err := Check(t.Context(), s, CheckOptions{})
			require.NoError(t, err, name)
			require.Len(t, report.Damage, 1, name)
			for _, want := range c.want {
				require.ErrorContains(t, report.Damage[0], want, name)
			}
			require.Equal(t, 6-c.lost, report.Runs, name)
			require.Empty(t, report.Orphans.Names, name)
		}
	})
}

// craft moves the store's first segments to a group, with an index that says what add makes it say.
func craft(t *testing.T, store objstore.Store, n int, add func(b *manifest.IndexBuilder, hashes []manifest.KeyHash, masks map[manifest.KeyHash]uint64)) {
	t.Helper()
	env := base.SystemEnv()
	snap, err := manifest.Load(t.Context(), store, env, tree)
	require.NoError(t, err)
	segments := snap.State.GetSegments()[:n]
	ref := base.ObjectID{
		Tree: tree, Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: snap.State.GetCompactor().GetEpoch(), ULID: env.NewULID(),
	}
	b := manifest.NewIndexBuilder(segments)
	edit := manifest.Regroup{Epoch: ref.Epoch}
	masks := map[manifest.KeyHash]uint64{}
	for i, s := range segments {
		edit.Segments = append(edit.Segments, manifest.SegmentRef{ID: s.GetId(), Run: s.GetRuns()[0].GetId()})
		keys := keysOf(t, store, s.GetRuns()[0])
		b.SetKeys(i, uint64(len(keys)))
		for _, k := range keys {
			masks[manifest.HashKey([]byte(k))] |= 1 << i
		}
	}
	var hashes []manifest.KeyHash
	for h := range masks {
		hashes = append(hashes, h)
	}
	slices.Sort(hashes)
	add(b, hashes, masks)
	body, line, err := b.Finish(ref)
	require.NoError(t, err)
	edit.Output = line
	_, err = store.Put(t.Context(), ref.Name(), body, objstore.PutOptions{})
	require.NoError(t, err)
	_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: store, Env: env, Start: snap}, edit.Edit())
	require.NoError(t, err)
}

// keysOf returns the distinct keys of a run.
func keysOf(t *testing.T, store objstore.Store, run *manifest.Run) []string {
	t.Helper()
	ts := uncached(store, base.SystemEnv())
	seen := map[string]bool{}
	for _, line := range run.GetTables() {
		id := line.GetRef().ID()
		table, err := openTable(t.Context(), line, &tableSource{tables: ts, name: id.Name(), id: id.ULID})
		require.NoError(t, err)
		for it := table.Keys(nil); ; {
			k, ok, err := it.Next(t.Context())
			require.NoError(t, err)
			if !ok {
				break
			}
			seen[string(k.Key)] = true
		}
	}
	return sortedKeys(seen)
}

// An index whose checksums are right must also say the truth: exactly which keys each segment has,
// unless it says that it does not know.
func TestCheckWhatShardsSay(t *testing.T) {
	type said func(b *manifest.IndexBuilder, hashes []manifest.KeyHash, masks map[manifest.KeyHash]uint64)
	each := func(change func(h manifest.KeyHash, mask uint64) (manifest.KeyHash, uint64)) said {
		return func(b *manifest.IndexBuilder, hashes []manifest.KeyHash, masks map[manifest.KeyHash]uint64) {
			for _, h := range hashes {
				if h, mask := change(h, masks[h]); mask != 0 {
					b.Add(h, mask)
				}
			}
		}
	}
	truth := each(func(h manifest.KeyHash, mask uint64) (manifest.KeyHash, uint64) { return h, mask })
	once := func(of uint64, change func(h manifest.KeyHash, mask uint64) (manifest.KeyHash, uint64)) func(manifest.KeyHash, uint64) (manifest.KeyHash, uint64) {
		done := false
		return func(h manifest.KeyHash, mask uint64) (manifest.KeyHash, uint64) {
			if done || mask != of {
				return h, mask
			}
			done = true
			return change(h, mask)
		}
	}
	all := manifest.KeyHash(1)<<40 - 1
	for name, c := range map[string]struct {
		said said
		want []string // damage, in order
	}{
		"the truth": {truth, nil},
		"a key is missing": {each(once(3, func(h manifest.KeyHash, _ uint64) (manifest.KeyHash, uint64) {
			return h, 0
		})), []string{"segment 1", "segment 2"}},
		"a key is missing from one segment": {each(once(3, func(h manifest.KeyHash, _ uint64) (manifest.KeyHash, uint64) {
			return h, 2
		})), []string{"segment 1"}},
		"another key": {each(once(3, func(h manifest.KeyHash, mask uint64) (manifest.KeyHash, uint64) {
			return h + 1, mask
		})), []string{"segment 1", "segment 2"}},
		"keys of the other segment": {each(func(h manifest.KeyHash, mask uint64) (manifest.KeyHash, uint64) {
			return h, mask>>1 | mask&1<<1 // as many in each
		}), []string{"segment 1", "segment 2"}},
		"one segment is not known": {func(b *manifest.IndexBuilder, hashes []manifest.KeyHash, masks map[manifest.KeyHash]uint64) {
			b.AddBase(0, all, 2)
			for _, h := range hashes {
				if mask := masks[h] & 1; mask != 0 {
					b.Add(h, mask)
				}
			}
		}, nil},
		"one is not known, the other wrong": {func(b *manifest.IndexBuilder, hashes []manifest.KeyHash, masks map[manifest.KeyHash]uint64) {
			b.AddBase(0, all, 2)
			for _, h := range hashes[2:] {
				b.Add(h, masks[h])
			}
		}, []string{"segment 1"}},
		"a wrong number of keys": {func(b *manifest.IndexBuilder, hashes []manifest.KeyHash, masks map[manifest.KeyHash]uint64) {
			truth(b, hashes, masks)
			b.SetKeys(1, 41) // keys that end a table and begin the next leave room for doubt
		}, []string{"segment 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				o := r.manualOptions()
				o.TableBytes = 1 << 10
				db := r.open(o)
				r.takeCompactor(db)
				for i := range 2 {
					var recs []Record
					for k := range 80 {
						recs = append(recs, record(fmt.Sprint("key ", k/2+20*i), strings.Repeat("x", 500)))
					}
					mustAppend(t, db, recs...)
					r.segment(db)
				}
				s := r.clone()
				craft(t, s, 2, c.said)
				report, err := Check(t.Context(), s, CheckOptions{})
				require.NoError(t, err)
				require.Len(t, report.Damage, len(c.want), "%v", report.Damage)
				for i, want := range c.want {
					require.ErrorIs(t, report.Damage[i], ErrCorrupt)
					require.ErrorContains(t, report.Damage[i], want)
				}
			})
		})
	}
}

// Keys of which one shard says nothing are left out of the comparison, those of others are not.
func TestCheckWhatSomeShardsSay(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.manualOptions()
		o.MemtableBytes, o.SegmentBytes, o.TableBytes = 64<<20, 64<<20, 1<<20
		db := r.open(o)
		r.takeCompactor(db)
		for range 2 {
			var recs []Record
			for k := range 12_000 {
				recs = append(recs, record(fmt.Sprint("key ", k), ""))
			}
			mustAppend(t, db, recs...)
			r.segment(db)
		}
		half := manifest.KeyHash(1) << 39
		for _, lie := range []bool{false, true} {
			s := r.clone()
			craft(t, s, 2, func(b *manifest.IndexBuilder, hashes []manifest.KeyHash, _ map[manifest.KeyHash]uint64) {
				b.AddBase(0, half-1, 1)
				for i, h := range hashes {
					switch {
					case h < half && i%2 == 0, lie && i == len(hashes)-1:
						b.Add(h, 2)
					default:
						b.Add(h, 3)
					}
				}
			})
			for _, limit := range []int{0, 1000} { // at once, and in many passes
				report, err := Check(t.Context(), s, CheckOptions{maxHashes: limit})
				require.NoError(t, err)
				if lie {
					require.Len(t, report.Damage, 1)
					require.ErrorContains(t, report.Err(), "segment 1, ")
					continue
				}
				require.NoError(t, report.Err())
			}
		}
	})
}

// The manifest's line must be what the index says.
func TestCheckTheLineOfAGroup(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		db := r.groupedKeys(r.manualOptions())
		for name, change := range map[string]func(g *manifest.Group){
			"records": func(g *manifest.Group) { g.Records-- },
			"stored":  func(g *manifest.Group) { g.StoredBytes++ },
			"keys":    func(g *manifest.Group) { g.Keys-- },
			"seal":    func(g *manifest.Group) { g.LastSealTimeMs++ },
		} {
			s := r.clone()
			snap, err := manifest.Load(t.Context(), s, db.env, tree)
			require.NoError(t, err)
			_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: s, Env: db.env, Start: snap}, manifest.Edit{
				Name: "test", Apply: func(s *manifest.State) error {
					change(s.Groups[1])
					return nil
				},
			})
			require.NoError(t, err, name)
			report, err := Check(t.Context(), s, CheckOptions{})
			require.NoError(t, err)
			require.Len(t, report.Damage, 1, name)
			require.ErrorContains(t, report.Err(), "segments 3 to 5", name)
		}
	})
}

// Check beside regrouping, retention and collection: what is gone since it began is no damage.
func TestCheckWhileGroupsChange(t *testing.T) {
	for _, what := range []string{".idx", "/sst/0000000001/", "/sst/0000000005/"} {
		simulated(t, func(t *testing.T, r *garbageRig) {
			db := r.groupedKeys(r.manualOptions())
			var gone atomic.Bool // a hedged GET comes from another goroutine
			beside := fault.New(r.witness, func(_ context.Context, op fault.Op) fault.Plan {
				if op.Kind != fault.Get || !strings.Contains(op.Name, what) || !gone.CompareAndSwap(false, true) {
					return fault.Plan{}
				}
				return fault.Plan{Before: func(context.Context) error {
					r.regroup(db, 0, 2)
					_, err := db.committer.Commit(t.Context(), manifest.DropSegments(db.epoch, 5, nil))
					require.NoError(t, err)
					afterGrace(t, db)
					mustCollect(t, db)
					return nil
				}}
			})
			report, err := Check(t.Context(), beside, CheckOptions{})
			require.NoError(t, err)
			require.NoError(t, report.Err())
			require.True(t, gone.Load())
			require.Len(t, r.names(base.ObjectPrefix(tree, base.KindIndex)), 0)
		})
	}
}

// Segments that are regrouped while Check looks at them are looked at all the same, once.
func TestCheckWhileGroupsAreRegrouped(t *testing.T) {
	at, met := 0, true
	for ; met; at++ {
		simulated(t, func(t *testing.T, r *garbageRig) {
			db := r.groupedKeys(r.manualOptions())
			var mu sync.Mutex // a hedged GET comes from another goroutine
			i := 0
			met = false
			beside := fault.New(r.witness, func(_ context.Context, op fault.Op) fault.Plan {
				if op.Kind != fault.Get || !strings.HasSuffix(op.Name, ".idx") {
					return fault.Plan{}
				}
				mu.Lock()
				defer mu.Unlock()
				if i++; met || i <= at {
					return fault.Plan{}
				}
				met = true
				return fault.Plan{Before: func(context.Context) error {
					r.regroup(db, 0, 2)
					r.do(db, groupJob(db.Head().GetGroups(), db.Head().GetSegments()[:1]))
					afterGrace(t, db)
					mustCollect(t, db)
					return nil
				}}
			})
			report, err := Check(t.Context(), beside, CheckOptions{})
			require.NoError(t, err)
			require.NoError(t, report.Err())
			require.Equal(t, uint64(6*41), report.TableRecords)
			require.Equal(t, []int{6, 7}, []int{report.Runs, report.Segments})
		})
	}
	require.Greater(t, at, 3)
}
