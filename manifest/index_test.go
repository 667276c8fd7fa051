package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// goldenIndex has two segments of two tables, one of which spans merged ids.
func goldenIndex(t testing.TB) index {
	c := contents{}
	for i := range 20 {
		c[HashKey(fmt.Appendf(nil, "key-%d", i))] |= 1 << (i % 2)
	}
	c[HashKey([]byte("key-0"))] = 3
	segments, keys := c.segmentsFor(5, 100, 2, 2)
	segments[1].Id, segments[1].LastId = 6, 9
	b := NewIndexBuilder(segments)
	b.AddBase(0, maxHash, 2)
	for i, n := range keys {
		b.SetKeys(i, n)
	}
	for _, h := range c.hashes() {
		b.Add(h, c[h])
	}
	body, line, err := b.Finish(indexID(50))
	require.NoError(t, err)
	return index{indexID(50), segments, c, body, line}
}

// The golden file was written by version 1 and must be readable for ever. How zstd compresses
// may change with its library; the key shards may not change.
func TestGoldenIndex(t *testing.T) {
	x := goldenIndex(t)
	shards := x.line.Shape().bytes()
	made := x.body
	x.body = golden(t, "index.golden", x.body)
	require.Equal(t, made[:shards], x.body[:shards])
	x.line.IndexSize, x.line.TocOffset = uint64(len(x.body)), x.line.TocOffset+uint64(len(x.body)-len(made))
	requireAnswers(t, x, 2)
	require.Equal(t, KeyHash(0x44bc2cf5ad), HashKey([]byte("abc")), "the upper 40 bits of xxhash64's own test value")
	require.Equal(t, KeyHash(xxhash.Sum64(nil)>>24), HashKey(nil))
}

// requireAnswers checks all that a reader can learn from an index against what it was built from.
// Segments of vague may be named without need.
func requireAnswers(t testing.TB, x index, vague uint64) {
	t.Helper()
	opened := x.open(t)
	require.Equal(t, len(x.segments), opened.Len())
	for i, s := range x.segments {
		off, n := opened.ListRange(i)
		frame, inline := opened.Inline(i)
		require.Equal(t, off >= int64(len(x.body))-IndexTailBytes, inline)
		if inline {
			require.Equal(t, x.body[off:off+n], frame)
		}
		tables, err := opened.ParseList(i, x.body[off:off+n])
		require.NoError(t, err)
		requireEqual(t, s, opened.Full(i, tables))
		for _, id := range []uint32{s.Id, s.Last()} {
			p, ok := opened.Find(id)
			require.True(t, ok)
			require.Equal(t, i, p)
		}
	}
	for _, id := range []uint32{0, x.segments[0].Id - 1, x.line.LastSegment + 1, math.MaxUint32} {
		_, ok := opened.Find(id)
		require.False(t, ok, "segment %d", id)
	}
	shape := opened.Shape()
	require.Equal(t, x.line.Shape(), Shape{Shards: shape.Shards, ShardBytes: shape.ShardBytes})
	seen := 0
	for i := range int(shape.Shards) {
		s := x.shard(t, shape, i)
		first, last := s.Hashes()
		require.Zero(t, s.Base()&^vague)
		for j := range s.Len() {
			h, mask := s.Entry(j)
			// Of a key that was vague in one of several inputs, only the rest is known.
			if mask&^x.want[h] != 0 || x.want[h]&^mask&^vague != 0 || h < first || h > last {
				t.Fatalf("entry %010x has mask %x, want %x", h, mask, x.want[h])
			}
		}
		seen += s.Len()
	}
	require.Equal(t, x.line.Keys, uint64(seen))
	lookup := x.reader(t)
	for h, want := range x.want {
		mask, exact := lookup(h)
		if want&^mask != 0 || mask&^want&^vague != 0 || exact && mask != want {
			t.Fatalf("hash %010x: mask %x, exact %t, want %x", h, mask, exact, want)
		}
		if mask, exact := lookup(h ^ 1); x.want[h^1] == 0 && (mask&^vague != 0 || exact != (mask == 0)) {
			t.Fatalf("absent hash %010x: mask %x, exact %t", h^1, mask, exact)
		}
	}
}

// Whatever is put into an index comes out of it.
func TestIndexRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		segments := rapid.SampledFrom([]int{1, 2, 7, 8, 9, 33, 63, 64}).Draw(r, "segments")
		n := rapid.SampledFrom([]int{1, 100, 100, 2_000, 12_000}).Draw(r, "keys")
		tables := rapid.SampledFrom([]int{1, 3, 40}).Draw(r, "tables")
		c := someContents(rapid.Uint64().Draw(r, "seed"), n, segments)
		// The ends of the hashes, and neighbours.
		for _, h := range rapid.SliceOfN(rapid.SampledFrom([]KeyHash{0, 1, maxHash - 1, maxHash, maxHash / 2, maxHash/2 + 1}), 0, 4).Draw(r, "ends") {
			c[h] |= 1
		}
		x := c.build(t, indexID(1), 3, 1000, segments, tables, nil)
		requireAnswers(t, x, 0)
		require.NoError(t, validIndexLine(x.line))
		require.Equal(t, uint64(len(c)), x.line.Keys)
		shape := x.line.Shape()
		require.LessOrEqual(t, shape.ShardBytes, uint32(MaxShardBytes))
		if shape.Shards > 1 {
			require.Greater(t, len(c)*EntryBytes(segments)/int(shape.Shards), targetShardBytes/2-minShardBytes)
		}
	})
}

func TestMasks(t *testing.T) {
	for n := 1; n <= MaxGroupSegments; n++ {
		require.Equal(t, n, bits.OnesCount64(maskOf(n)))
		require.Equal(t, (n+7)/8, maskWidth(n))
		require.Equal(t, 5+(n+7)/8, EntryBytes(n))
	}
	s := Shape{Shards: 4, ShardBytes: 100}
	for i := range 4 {
		first, last := s.Hashes(i)
		for _, h := range []KeyHash{first, last} {
			off, n := ShardRange(&Group{Shards: 4, ShardBytes: 100}, h)
			require.Equal(t, int64(i*100), off)
			require.Equal(t, int64(100), n)
		}
	}
	first, last := Shape{Shards: 1}.Hashes(0)
	require.Equal(t, []KeyHash{0, maxHash}, []KeyHash{first, last})
	first, last = Shape{Shards: MaxShards}.Hashes(MaxShards - 1)
	require.Equal(t, []KeyHash{maxHash - 1<<24 + 1, maxHash}, []KeyHash{first, last})
}

// regroup makes one index of several, without the segments up to upTo, as compaction does: a merge of
// their shards by hash.
func regroup(t testing.TB, id base.ObjectID, inputs []index, upTo uint32) index {
	t.Helper()
	type entry struct {
		h    KeyHash
		mask uint64
	}
	out := index{id: id, want: contents{}}
	var keys []uint64
	var entries []entry
	var bases [][3]uint64
	for _, in := range inputs {
		opened := in.open(t)
		line := in.line
		if upTo >= line.FirstSegment {
			var err error
			line, err = opened.Trim(line, upTo)
			require.NoError(t, err)
			require.NoError(t, opened.Check(line))
		}
		from, to := opened.Live(line)
		shift := len(out.segments)
		move := func(mask uint64) uint64 { return mask & maskOf(to) >> from << shift }
		for i := from; i < to; i++ {
			tables, err := opened.ParseList(i, in.list(opened, i))
			require.NoError(t, err)
			out.segments = append(out.segments, opened.Full(i, tables))
			keys = append(keys, opened.Segment(i).Keys)
		}
		for h, mask := range in.want {
			if mask = move(mask); mask != 0 {
				out.want[h] |= mask
			}
		}
		for i := range int(line.Shards) {
			s := in.shard(t, opened.Shape(), i)
			first, last := s.Hashes()
			bases = append(bases, [3]uint64{uint64(first), uint64(last), move(s.Base())})
			for j := range s.Len() {
				if h, mask := s.Entry(j); move(mask) != 0 {
					entries = append(entries, entry{h, move(mask)})
				}
			}
		}
	}
	b := NewIndexBuilder(out.segments)
	for _, r := range bases {
		b.AddBase(KeyHash(r[0]), KeyHash(r[1]), r[2])
	}
	sortBy(entries, func(e entry) KeyHash { return e.h })
	for _, e := range entries {
		b.Add(e.h, e.mask)
	}
	for i, n := range keys {
		b.SetKeys(i, n)
	}
	var err error
	out.body, out.line, err = b.Finish(id)
	require.NoError(t, err)
	return out
}

func (x index) list(opened *Index, i int) []byte {
	off, n := opened.ListRange(i)
	return x.body[off : off+n]
}

// One index made of several answers as they did together, without the segments that were dropped; what was vague
// stays so, and nothing else becomes so.
func TestRegroupKeepsAnswers(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var inputs []index
		next, at := uint32(1), uint64(0)
		vague := uint64(0) // segments of the output, before the drop
		n := rapid.IntRange(1, 4).Draw(r, "inputs")
		for i := range n {
			segments := rapid.IntRange(1, 16).Draw(r, "segments")
			c := someContents(rapid.Uint64().Draw(r, "seed"), rapid.SampledFrom([]int{1, 300, 300, 3_000}).Draw(r, "keys"), segments)
			for h, mask := range someContents(4, 50, segments) { // keys that are in every input
				c[h] |= mask
			}
			var change func(*IndexBuilder)
			switch rapid.IntRange(0, 9).Draw(r, "vague") {
			case 0: // by its base mask
				mask := maskOf(segments) & rapid.Uint64().Draw(r, "mask")
				change = func(b *IndexBuilder) { b.AddBase(maxHash/3, maxHash/2, mask) }
				vague |= mask << (next - 1)
			case 1: // it has no keys
				segments = 1
				c = someContents(4, 50, 1)
				change = func(b *IndexBuilder) { b.limit = 49 * b.stride() }
				vague |= 1 << (next - 1)
			case 2: // a shard that overflows, and may do so together with others' keys
				for k := range 12_000 {
					c[KeyHash(k)] |= 1
				}
				vague = math.MaxUint64
			}
			x := c.build(t, indexID(i), next, at, segments, 2, change)
			inputs = append(inputs, x)
			next, at = next+uint32(segments), x.line.EndSequence
		}
		upTo := uint32(0)
		if live := inputs[0].line.Segments; live > 1 {
			upTo = rapid.Uint32Range(0, live-1).Draw(r, "drop")
		}
		out := regroup(t, indexID(100), inputs, upTo)
		require.Equal(t, int(next-1-upTo), len(out.segments))
		requireAnswers(t, out, vague>>upTo)
		// Once more, alone: the same answers.
		again := regroup(t, indexID(101), []index{out}, 0)
		requireAnswers(t, again, vague>>upTo)
		if vague == 0 {
			require.Equal(t, out.line.Keys, again.line.Keys)
		}
	})
}

func TestTrim(t *testing.T) {
	c := someContents(3, 100, 4)
	segments, keys := c.segmentsFor(10, 50, 4, 3)
	segments[2].LastId, segments[3].Id = 15, 16
	segments[1].SealTimeMs = 99_999 // the store's clock was wrong
	b := NewIndexBuilder(segments)
	for i, n := range keys {
		b.SetKeys(i, n)
	}
	for _, h := range c.hashes() {
		b.Add(h, c[h])
	}
	body, line, err := b.Finish(indexID(1))
	require.NoError(t, err)
	x := index{indexID(1), segments, c, body, line}
	opened := x.open(t)
	require.Equal(t, int64(99_999), line.LastSealTimeMs, "nothing is dropped before its time")
	line.ProtoReflect().SetUnknown([]byte{0x98, 0x3f, 1})

	trimmed := line
	for i, upTo := range []uint32{10, 11, 15} {
		next, err := opened.Trim(trimmed, upTo)
		require.NoError(t, err)
		require.NoError(t, opened.Check(next))
		from, to := opened.Live(next)
		require.Equal(t, []int{i + 1, 4}, []int{from, to})
		// The same in one step.
		direct, err := opened.Trim(line, upTo)
		require.NoError(t, err)
		requireEqual(t, next, direct)
		require.Equal(t, line.ProtoReflect().GetUnknown(), next.ProtoReflect().GetUnknown())
		trimmed = next
	}
	requireEqual(t, segments[3], opened.Full(3, segments[3].Runs[0].Tables))
	require.Equal(t, liveOfIndexed(opened.Segment(3)), liveOf(trimmed))
	require.Equal(t, uint32(10), line.FirstSegment, "it is not changed")

	for _, upTo := range []uint32{0, 9, 12, 13, 14, 16, 17, math.MaxUint32} {
		_, err := opened.Trim(line, upTo)
		require.ErrorContains(t, err, "cannot be cut", "%d", upTo)
		require.NotErrorIs(t, err, base.ErrCorrupt)
	}
	_, err = opened.Trim(trimmed, 15)
	require.ErrorContains(t, err, "cannot be cut")
}

// Only the oldest segments of an index are ever dropped.
func TestCheckRefusesALineThatEndsEarly(t *testing.T) {
	x := someContents(3, 100, 4).build(t, indexID(1), 10, 50, 4, 3, nil)
	opened := x.open(t)
	l, err := opened.liveFrom(0, 3)
	require.NoError(t, err)
	line := proto.CloneOf(x.line)
	l.set(line)
	require.ErrorContains(t, opened.Check(line), "only the first 3 of 4 segments are live")
	require.ErrorIs(t, opened.Check(line), base.ErrCorrupt)
}

// A line that differs in any field from what the index says is damage.
func TestCheckComparesTheLine(t *testing.T) {
	x := someContents(3, 100, 4).build(t, indexID(1), 10, 50, 4, 3, nil)
	opened := x.open(t)
	fields := x.line.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Name() == "id" {
			continue
		}
		g := proto.CloneOf(x.line)
		if f.Message() != nil {
			g.Index.Epoch++
		} else {
			bump(g.ProtoReflect(), f)
		}
		err := opened.Check(g)
		require.ErrorIs(t, err, base.ErrCorrupt, "%s", f.Name())
		require.ErrorContains(t, err, x.id.Name())
		_, err = opened.Trim(g, 10)
		require.ErrorIs(t, err, base.ErrCorrupt)
		require.True(t, errors.Is(opened.Check(&Group{}), base.ErrCorrupt))
	}
}

func TestEmptyKeyHasAHash(t *testing.T) {
	c := contents{HashKey(nil): 1, HashKey([]byte{}): 1, HashKey(bytes.Repeat([]byte{0xFF}, 4096)): 1}
	require.Len(t, c, 2)
	requireAnswers(t, c.build(t, indexID(1), 1, 0, 1, 1, nil), 0)
}
