package compaction

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// indexed adds a group of one segment with these hashes of keys in so many tables, as the state and
// its index tell: there are no tables.
func (g *grouped) indexed(t testing.TB, hashes []manifest.KeyHash, tables int) {
	each := uint64(len(hashes) / tables)
	run := &manifest.Run{Id: g.id(), Start: g.s.FlushedEnd, End: g.s.FlushedEnd}
	for i := range tables {
		line := g.line(base.RoleWriter, run.End, run.End+each, each)
		line.Keys, line.LowerKey, line.UpperKey = each, fmt.Appendf(nil, "%08d", i), fmt.Appendf(nil, "%08d", i)
		run.Tables, run.End = append(run.Tables, line), run.End+each
	}
	s := g.active()
	s.Runs, g.s.FlushedEnd = []*manifest.Run{run}, run.End
	g.sealActive()
	b := manifest.NewIndexBuilder([]*manifest.Segment{s})
	for _, h := range hashes {
		b.Add(h, 1)
	}
	b.SetKeys(0, each*uint64(tables))
	ref := base.ObjectID{Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: testEpoch, ULID: g.env.NewULID()}
	body, out, err := b.Finish(ref)
	require.NoError(t, err)
	_, err = g.store.Put(t.Context(), ref.Name(), body, objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	edit := manifest.Regroup{Epoch: testEpoch, Output: out, Segments: []manifest.SegmentRef{{ID: s.Id, Run: s.Runs[0].Id}}}
	require.NoError(t, edit.Edit().Apply(g.s))
}

// manyKeys adds a sealed segment of n keys with one record each.
func (g *grouped) manyKeys(t testing.TB, n int) {
	g.append(t, n, func(i int) []byte {
		return fmt.Appendf(nil, "user/%016x", uint64(i)*uint64(1<<43)+g.rng.Uint64()>>21)
	}, func(int) []byte { return nil })
	g.model = nil
	g.sealActive()
}

// randomHashes makes n ascending hashes.
func randomHashes(rng *rand.Rand, n int) []manifest.KeyHash {
	hashes := make([]manifest.KeyHash, n)
	for i := range hashes {
		hashes[i] = manifest.KeyHash(rng.Uint64() >> 24)
	}
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// Groups that are too large for one index: the error says so, and nothing was written. What is
// too large here is the number of tables: it is cheaper to make than as many keys.
func TestRegroupTooLarge(t *testing.T) {
	g := newGrouped(20)
	for range 2 {
		g.indexed(t, randomHashes(g.rng, manifest.MaxGroupTables/2+1), manifest.MaxGroupTables/2+1)
	}
	g.requireValid(t)
	var requests fault.Counter
	res, err := g.runner(fault.New(g.store, requests.Hook)).Run(t.Context(), newGroupJob(g.s.Groups, nil))
	require.ErrorIs(t, err, manifest.ErrIndexTooLarge)
	require.Empty(t, res.Outputs)
	require.Equal(t, fault.Counts{Get: 4}, requests.Counts().Requests(), "tails and lists")
}

// Keys that were made to fall into one shard do not all fit into it: what it says of all
// keys instead is taken over, for them and for no other shard.
func TestRegroupTakesOverBaseMasks(t *testing.T) {
	g := newGrouped(25)
	crowd := make([]manifest.KeyHash, 40_000)
	for i := range crowd {
		crowd[i] = 7<<36 + manifest.KeyHash(i)
	}
	even := randomHashes(g.rng, 40_000)
	g.indexed(t, even, 1)
	g.indexed(t, crowd, 1)
	g.indexed(t, even, 1)
	require.Less(t, g.s.Groups[1].Keys, uint64(len(crowd)))
	require.Equal(t, uint32(8), g.s.Groups[1].Shards)
	res, err := g.runner(g.store).Run(t.Context(), newGroupJob(g.s.Groups, nil))
	require.NoError(t, err)
	line := res.Regroup.Output
	body := g.object(t, res.Outputs[0])
	mask := func(h manifest.KeyHash) uint64 {
		off, n := manifest.ShardRange(line, h)
		shard, err := manifest.ParseShard(line.Index.ID(), line.Shape(), off, body[off:off+n])
		require.NoError(t, err)
		m, _ := shard.Lookup(h)
		return m
	}
	for i := 0; i < len(crowd); i += 97 {
		require.Equal(t, uint64(0b010), mask(crowd[i])&0b010)
	}
	for i := 0; i < len(even); i += 97 {
		want := uint64(0b101)
		if even[i]>>37 == 3 { // the fourth of eight shards
			want = 0b111
		}
		require.Equal(t, want, mask(even[i]), "hash %010x", even[i])
	}
}

// groupPeak runs a job with a buffer and returns the most memory that it had in use at a request.
func groupPeak(t *testing.T, g *grouped, job Job, buffer int64) (peak int64, res *Result) {
	run := func(t *testing.T, hook fault.Hook) {
		r := g.runner(fault.New(discard{g.store}, hook))
		r.MaxBufferBytes = buffer
		var err error
		res, err = r.Run(t.Context(), job)
		require.NoError(t, err)
	}
	run(t, nil) // the decoder of frames keeps memory for each processor from its first use on
	return livePeak(t, run), res
}

// What is in memory is the index that is written, its entries, and a buffer of the size that was
// asked for: neither the directories nor the indexes that are read.
func TestGroupMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures memory, and is long")
	}
	const buffer = 512 << 10
	t.Run("group of 1", func(t *testing.T) {
		g := newGrouped(21)
		g.tableBytes = 128 << 10
		g.manyKeys(t, 200_000)
		require.Greater(t, len(g.s.Segments[0].Runs[0].Tables), 5*(dirAhead+1), "the directories of a few tables are few of all")
		peak, res := groupPeak(t, g, Plan(g.s, g.l)[0], buffer)
		t.Logf("%d MiB read, index of %.1f MiB: peak %.1f MiB above the start", res.BytesIn>>20, float64(res.BytesOut)/mib, float64(peak)/mib)
		require.Less(t, peak, int64(2*res.BytesOut)+buffer)
		require.Greater(t, res.BytesIn, uint64(7*mib))
	})
	t.Run("regroup", func(t *testing.T) {
		g := newGrouped(22)
		hashes := randomHashes(g.rng, 300_000) // recurring: the inputs are much larger than the output
		for range 8 {
			g.indexed(t, hashes, 1)
		}
		peak, res := groupPeak(t, g, newGroupJob(g.s.Groups, nil), buffer)
		t.Logf("%d MiB read, index of %.1f MiB: peak %.1f MiB above the start", res.BytesIn>>20, float64(res.BytesOut)/mib, float64(peak)/mib)
		require.Less(t, peak, int64(2*res.BytesOut)+buffer)
		require.Greater(t, res.BytesIn, 6*res.BytesOut)
	})
}

// Building the index of one segment from the directories of its tables.
func BenchmarkGroup(b *testing.B) {
	for _, buffer := range []int64{DefaultBufferBytes, 2 << 20} {
		keys := sized(1_000_000, 20_000)
		b.Run(fmt.Sprintf("keys=%d/buffer=%dMiB", keys, buffer>>20), func(b *testing.B) {
			g := newGrouped(23)
			g.tableBytes = 16 << 20
			g.manyKeys(b, keys)
			g.benchmark(b, Plan(g.s, g.l)[0], float64(keys), buffer)
		})
	}
}

// Regrouping eight indexes, of keys that recur in all, and of keys that do not.
func BenchmarkRegroup(b *testing.B) {
	for _, recur := range []bool{true, false} {
		keys := sized(500_000, 10_000)
		b.Run(fmt.Sprintf("groups=8/keys=%d/recurring=%t", keys, recur), func(b *testing.B) {
			g := newGrouped(24)
			hashes := randomHashes(g.rng, keys)
			for range 8 {
				if !recur {
					hashes = randomHashes(g.rng, keys)
				}
				g.indexed(b, hashes, 1)
			}
			g.benchmark(b, newGroupJob(g.s.Groups, nil), float64(8*keys), 0)
		})
	}
}

func (g *grouped) benchmark(b *testing.B, job Job, keys float64, buffer int64) {
	r := g.runner(discard{g.store})
	r.MaxBufferBytes = buffer
	before := cpuSeconds()
	for b.Loop() {
		if _, err := r.Run(b.Context(), job); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(keys*float64(b.N)/b.Elapsed().Seconds(), "keys/s")
	b.ReportMetric(keys*float64(b.N)/(cpuSeconds()-before), "keys/cpu-s")
}
