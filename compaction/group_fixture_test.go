package compaction

import (
	"fmt"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// grouped is a fixture whose segments are full, so that Plan groups each, and what they hold.
type grouped struct {
	*fixture
	was  map[uint32]*manifest.Segment // as they were in the state
	keys map[string][]uint32          // segments of each key, ascending
	env  *base.Env                    // of all runners: it never gives the same ULID twice
	// Shards that were read.
	shards map[string]*manifest.Shard
}

func newGrouped(seed uint64) *grouped {
	g := &grouped{
		fixture: newFixture(seed, Limits{SegmentBytes: 2}), was: map[uint32]*manifest.Segment{},
		keys: map[string][]uint32{}, env: testEnv(seed), shards: map[string]*manifest.Shard{},
	}
	g.env.Now = func() time.Time { return time.UnixMilli(1_700_000_000_000) }
	g.tableBytes = 2 << 10
	return g
}

func (g *grouped) runner(store objstore.Store) *Runner {
	r := g.fixture.runner(store)
	r.Env = g.env
	return r
}

// segment adds a sealed segment with one run of n records.
func (g *grouped) segment(t testing.TB, n int, key func(i int) []byte) {
	id := g.active().Id
	g.append(t, n, func(i int) []byte {
		k := key(i)
		if s := g.keys[string(k)]; len(s) == 0 || s[len(s)-1] != id {
			g.keys[string(k)] = append(s, id)
		}
		return k
	}, func(int) []byte { return g.value(g.rng.IntN(40)) })
	g.was[id] = g.active()
	g.sealActive()
}

// someSegment adds a segment of random keys. One of them has many records, so that it
// spans tables.
func (g *grouped) someSegment(t testing.TB) {
	wide, many := 1+g.rng.IntN(300), g.rng.IntN(100)
	g.segment(t, 1+g.rng.IntN(400), func(i int) []byte {
		if i%4 == 0 {
			return fmt.Appendf(nil, "many%02d", many)
		}
		return fmt.Appendf(nil, "k%04d", g.rng.IntN(wide)*7)
	})
}

// next runs and commits the next job of the plan, if there is one.
func (g *grouped) next(t testing.TB) (*Result, bool) {
	jobs := Plan(g.s, g.l)
	if len(jobs) == 0 {
		return nil, false
	}
	require.Equal(t, Group, jobs[0].Kind)
	res, err := g.runner(g.store).Run(t.Context(), jobs[0])
	require.NoError(t, err)
	require.Equal(t, []base.ObjectID{res.Regroup.Output.Index.ID()}, res.Outputs)
	require.Equal(t, res.Regroup.Output.IndexSize, res.BytesOut)
	require.NoError(t, res.Edit.Apply(g.s))
	g.requireValid(t)
	require.ErrorIs(t, res.Edit.Apply(g.s), manifest.ErrApplied) // F22
	return res, true
}

// settleGroups runs what there is to do.
func (g *grouped) settleGroups(t testing.TB) {
	for more := true; more; {
		_, more = g.next(t)
	}
}

// index opens the index of a group as a reader does.
func (g *grouped) index(t testing.TB, line *manifest.Group) *manifest.Index {
	id := line.Index.ID()
	obj, err := g.store.Get(t.Context(), id.Name(), objstore.GetOptions{Suffix: manifest.IndexTailBytes})
	require.NoError(t, err)
	require.Equal(t, int64(line.IndexSize), obj.Size)
	x, err := manifest.ParseIndex(id, obj.Size, obj.Body)
	require.NoError(t, err)
	require.NoError(t, x.Check(line))
	return x
}

// lookup asks a group for the segments that may hold a key.
func (g *grouped) lookup(t testing.TB, line *manifest.Group, x *manifest.Index, key []byte) (ids []uint32, exact bool) {
	h := manifest.HashKey(key)
	off, n := manifest.ShardRange(line, h)
	id := line.Index.ID()
	at := fmt.Sprint(id.ULID, off)
	shard := g.shards[at]
	if shard == nil {
		obj, err := g.store.Get(t.Context(), id.Name(), objstore.GetOptions{Offset: off, Length: n})
		require.NoError(t, err)
		shard, err = manifest.ParseShard(id, x.Shape(), off, obj.Body)
		require.NoError(t, err)
		g.shards[at] = shard
	}
	mask, exact := shard.Lookup(h)
	from, to := x.Live(line)
	for ; mask != 0; mask &= mask - 1 {
		if i := bits.TrailingZeros64(mask); i >= from && i < to {
			ids = append(ids, x.Segment(i).Segment.Id)
		}
	}
	return ids, exact
}

// requireGroups checks all groups against the model: what they list is what the state
// listed, and each key is found where it is, and nowhere else.
func (g *grouped) requireGroups(t testing.TB) {
	t.Helper()
	for _, line := range g.s.Groups {
		x := g.index(t, line)
		from, to := x.Live(line)
		for i := from; i < to; i++ {
			frame, ok := x.Inline(i)
			if !ok {
				off, n := x.ListRange(i)
				obj, err := g.store.Get(t.Context(), line.Index.ID().Name(), objstore.GetOptions{Offset: off, Length: n})
				require.NoError(t, err)
				frame = obj.Body
			}
			tables, err := x.ParseList(i, frame)
			require.NoError(t, err)
			s := x.Full(i, tables)
			require.Equal(t, encoded(g.was[s.Id]), encoded(s), "segment %d", s.Id)
			require.Equal(t, g.distinct(s.Id), x.Segment(i).Keys)
		}
		for key, in := range g.keys {
			ids, exact := g.lookup(t, line, x, []byte(key))
			var want []uint32
			for _, id := range in {
				if id >= line.FirstSegment && id <= line.LastSegment {
					want = append(want, id)
				}
			}
			require.Equal(t, want, ids, "key %q", key)
			require.True(t, exact)
		}
		for i := range 50 {
			ids, _ := g.lookup(t, line, x, fmt.Appendf(nil, "absent %d", i))
			require.Empty(t, ids)
		}
	}
}

// encoded are the bytes of a segment.
func encoded(s *manifest.Segment) []byte {
	return manifest.EncodeState(&manifest.State{Segments: []*manifest.Segment{s}})
}

func (g *grouped) distinct(id uint32) (n uint64) {
	for _, in := range g.keys {
		for _, s := range in {
			if s == id {
				n++
			}
		}
	}
	return n
}

// dropReal drops the segments up to an id as the engine does: by the edit, with the trimmed line.
func (g *grouped) dropReal(t testing.TB, upTo uint32) {
	var trimmed *manifest.Group
	for _, line := range g.s.Groups {
		if line.FirstSegment <= upTo && line.LastSegment > upTo {
			var err error
			trimmed, err = g.index(t, line).Trim(line, upTo)
			require.NoError(t, err)
		}
	}
	require.NoError(t, manifest.DropSegments(g.s.Writer.Epoch, upTo, trimmed).Apply(g.s))
	g.requireValid(t)
}

// live is the number of segments in groups.
func (g *grouped) live() (n int) {
	for _, line := range g.s.Groups {
		n += int(line.Segments)
	}
	return n
}

// requireNoOrphan checks that every object that a failed run may have written is among
// its outputs.
func (g *grouped) requireNoOrphan(t testing.TB, res *Result) {
	named := manifest.NamedObjects(g.s)
	for _, id := range res.Outputs {
		named[id] = struct{}{}
	}
	require.NoError(t, objstore.ListAll(t.Context(), g.store, base.ObjectPrefix(0, base.KindIndex), "", func(e objstore.Entry) (bool, error) {
		id, ok := base.ParseObjectName(e.Name)
		require.True(t, ok)
		require.Contains(t, named, id)
		return true, nil
	}))
}

// object returns the bytes of an object.
func (g *grouped) object(t testing.TB, id base.ObjectID) []byte {
	obj, err := g.store.Get(t.Context(), id.Name(), objstore.GetOptions{})
	require.NoError(t, err)
	return obj.Body
}
