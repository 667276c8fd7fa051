package engine

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/objstore/s3sim"
)

// What a log of 2^40 stored bytes has: records of 1 KiB that compress 1.7 to 1, in segments of 16 GiB of them, which is
// 150 tables of 64 MiB each.
const (
	terabyteTable      = 64 << 20
	terabyteTables     = 1 << 40 / terabyteTable
	terabyteTableBytes = terabyteTable * 17 / 10 // of records
	terabyteRecords    = terabyteTableBytes / 1040
	terabytePerSegment = 16 << 30 / terabyteTableBytes
	// terabyteActive is how many runs the active segment has: as many as the planner leaves alone.
	terabyteActive = 233
)

// terabyteGroups are how many segments each group has, as compaction leaves 107 of them.
var terabyteGroups = []int{64, 8, 8, 8, 8, 8, 1, 1, 1}

// terabyte is such a log without its tables: the MANIFEST, and the indexes of groups with the lists of tables and the keys.
// The segment that was sealed last is not consolidated yet, and has the rest of the tables in runs of one.
type terabyte struct {
	store  *mem.Store
	env    *base.Env
	index  int64 // bytes of all indexes
	tables int
}

// newTerabyte makes one with so many keys, each of which is in all consolidated segments.
func newTerabyte(t testing.TB, env *base.Env, keys int) *terabyte {
	l := &terabyte{store: mem.New(mem.Options{}), env: env}
	require.NoError(t, l.open(t, l.store).Close(context.Background()))
	snap, err := manifest.Load(t.Context(), l.store, env, tree)
	require.NoError(t, err)

	hashes := make([]manifest.KeyHash, keys)
	for i := range hashes {
		hashes[i] = manifest.HashKey(benchKey(i))
	}
	slices.Sort(hashes)
	g := growing{
		env: env, records: terabyteRecords, size: terabyteTable, bytes: terabyteTableBytes,
		keys: keys/terabytePerSegment + 1, time: 1_700_000_000_000,
	}
	var groups []*manifest.Group
	for _, n := range terabyteGroups {
		line, body := g.group(t, n, hashes)
		_, err := l.store.Put(t.Context(), line.GetIndex().ID().Name(), body, objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)
		groups = append(groups, line)
		l.index += int64(len(body))
		l.tables += int(line.GetTables())
	}
	unsorted := g.newSegment()
	for ; l.tables < terabyteTables-terabyteActive; l.tables++ {
		unsorted.Runs = append(unsorted.Runs, g.run(1))
	}
	unsorted.Sealed, unsorted.EndSequence, unsorted.SealTimeMs = true, g.seq, g.time
	active := g.newSegment()
	for ; l.tables < terabyteTables; l.tables++ {
		active.Runs = append(active.Runs, g.run(1))
	}
	grow := manifest.Edit{Name: "grow", Apply: func(s *manifest.State) error {
		s.Groups, s.Segments, s.LastTimestampMs = groups, []*manifest.Segment{unsorted, active}, g.time
		s.FlushedEnd, s.SeqLimit, s.CleanNext = g.seq, g.seq+manifest.SeqReserve, &g.seq
		s.Compactor = &manifest.Owner{Epoch: 1, Id: make([]byte, 16)}
		return nil
	}}
	_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: l.store, Env: env, Tree: tree, Start: snap}, grow)
	require.NoError(t, err)
	return l
}

// group makes the index of so many segments of one run each, which all have all keys.
func (g *growing) group(t testing.TB, segments int, hashes []manifest.KeyHash) (*manifest.Group, []byte) {
	var lines []*manifest.Segment
	for range segments {
		s := g.newSegment()
		s.Runs = []*manifest.Run{g.run(terabytePerSegment)}
		s.Sealed, s.EndSequence, s.SealTimeMs = true, g.seq, g.time
		lines = append(lines, s)
	}
	b := manifest.NewIndexBuilder(lines)
	for i := range lines {
		b.SetKeys(i, uint64(terabytePerSegment*g.keys))
	}
	for _, h := range hashes {
		b.Add(h, 1<<segments-1)
	}
	ref := base.ObjectID{Tree: tree, Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: 1, ULID: g.env.NewULID()}
	body, line, err := b.Finish(ref)
	require.NoError(t, err)
	return line, body
}

// open opens the log through a store, with no background work that would need tables.
func (l *terabyte) open(t testing.TB, store objstore.Store) *DB {
	db, err := Open(t.Context(), store, Options{DisableCompaction: true, GCInterval: time.Hour, Env: l.env})
	require.NoError(t, err)
	return db
}

// overS3 returns the store, as slow as S3.
func (l *terabyte) overS3(seed uint64) *s3sim.Store {
	o := s3sim.Default()
	o.Seed = seed
	return s3sim.New(l.store, o)
}

// trail counts requests, and the round trips that they take: requests that begin when no other is under way.
type trail struct {
	objstore.Store
	mu             sync.Mutex
	underWay, trip int // guarded by mu
}

func (s *trail) begin() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.underWay == 0 {
		s.trip++
	}
	s.underWay++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.underWay--
	}
}

// trips returns the round trips so far.
func (s *trail) trips() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trip
}

func (s *trail) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	defer s.begin()()
	return s.Store.Put(ctx, name, body, o)
}

func (s *trail) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	defer s.begin()()
	return s.Store.Get(ctx, name, o)
}

func (s *trail) List(ctx context.Context, prefix, after string, limit int) (objstore.Page, error) {
	defer s.begin()()
	return s.Store.List(ctx, prefix, after, limit)
}

func (s *trail) Delete(ctx context.Context, names []string) error {
	defer s.begin()()
	return s.Store.Delete(ctx, names)
}

func (s *trail) ServerTime(ctx context.Context) (time.Time, error) {
	defer s.begin()()
	return s.Store.ServerTime(ctx)
}

// A log of a terabyte opens over S3 in less than a second, in 99 of 100 cases. The time is the simulated store's: what
// the processor does, BenchmarkOpenTerabyte says.
func TestOpenTerabyteOverS3(t *testing.T) {
	const opens = 100
	synctest.Test(t, func(t *testing.T) {
		l := newTerabyte(t, bubbleEnv(), 1000)
		require.Equal(t, terabyteTables, l.tables)
		took := make([]time.Duration, opens)
		for seed := range took {
			m := metered.New(l.overS3(uint64(seed)), metered.Options{})
			s := &trail{Store: m}
			began := time.Now()
			db := l.open(t, s)
			took[seed] = time.Since(began)
			stats, trips := m.Stats(), s.trips()
			require.Equal(t, terabyteTables, db.Status().Tables)
			// What each is for, docs/BENCHMARKS.md says.
			require.EqualValues(t, 4, stats.Ops[metered.Get].Calls())
			require.EqualValues(t, 7, stats.Ops[metered.Put].Calls())
			require.EqualValues(t, 2, stats.Ops[metered.List].Calls())
			require.EqualValues(t, 1, stats.Ops[metered.Delete].Calls())
			require.Equal(t, 14, trips)
			db.crash()
		}
		slices.Sort(took)
		t.Logf("%d opens over simulated S3: p50 %v, p99 %v, max %v", opens, took[opens/2], took[opens*99/100], took[opens-1])
		require.Less(t, took[opens*99/100], time.Second)
	})
}
