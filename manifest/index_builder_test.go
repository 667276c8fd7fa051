package manifest

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// Equal hashes unite, also where one chunk of entries ends.
func TestEqualHashesUnite(t *testing.T) {
	for _, segments := range []int{2, 9, 64} {
		const n = 10_000
		var lines []*Segment
		for i := range uint64(segments) {
			lines = append(lines, sealedSegment(uint32(i+1), i*n, (i+1)*n, 1))
		}
		b := NewIndexBuilder(lines)
		for i := range lines {
			b.SetKeys(i, n)
		}
		for h := range KeyHash(n) {
			for i := range segments {
				b.Add(h*(maxHash/n), 1<<i)
			}
			require.Equal(t, int(h+1)*EntryBytes(segments), b.Bytes())
		}
		body, line, err := b.Finish(indexID(1))
		require.NoError(t, err)
		require.Equal(t, uint64(n), line.Keys)
		lookup := index{id: indexID(1), body: body, line: line}.reader(t)
		for h := range KeyHash(n) {
			if mask, exact := lookup(h * (maxHash / n)); mask != maskOf(segments) || !exact {
				t.Fatalf("hash %d: mask %x", h, mask)
			}
		}
	}
}

// Keys that were made to fall into one shard make that shard vague. Nothing is lost, and the
// other shards stay sharp.
func TestCraftedKeysOverflowOneShard(t *testing.T) {
	c := someContents(1, 30_000, 3)
	const crafted = KeyHash(0x4242424242)
	for i := range 30_000 {
		c[crafted+KeyHash(i)] |= 1 << (i % 2)
	}
	x := c.build(t, indexID(1), 1, 0, 3, 1, nil)
	require.Less(t, x.line.Keys, uint64(len(c)))
	require.Equal(t, uint32(8), x.line.Shards)
	require.Greater(t, x.line.ShardBytes, uint32(MaxShardBytes-EntryBytes(3)), "as large as it may be")
	opened := x.open(t)
	kept := 0
	for i := range int(x.line.Shards) {
		s := x.shard(t, opened.Shape(), i)
		if first, last := s.Hashes(); first <= crafted && crafted <= last {
			require.Positive(t, s.Base())
		} else {
			require.Zero(t, s.Base())
		}
		kept += s.Len()
	}
	require.Equal(t, x.line.Keys, uint64(kept))
	lookup := x.reader(t)
	for h, want := range c {
		if mask, exact := lookup(h); want&^mask != 0 || exact && mask != want {
			t.Fatalf("hash %010x: mask %x, exact %t, want %x", h, mask, exact, want)
		}
	}
	mask, exact := lookup(crafted + 100_000)
	require.NotZero(t, mask, "absent, but who knows")
	require.False(t, exact)
}

// A single segment with too many keys gets an index that says "perhaps" to each; several do
// not get one.
func TestTooManyKeys(t *testing.T) {
	c := someContents(1, 1000, 1)
	limit := func(n int) func(*IndexBuilder) {
		return func(b *IndexBuilder) { b.limit = n * b.stride() }
	}
	x := c.build(t, indexID(1), 1, 0, 1, 2, limit(len(c)))
	require.Equal(t, uint64(len(c)), x.line.Keys)
	requireAnswers(t, x, 0)

	x = c.build(t, indexID(1), 1, 0, 1, 2, limit(len(c)-1))
	require.Zero(t, x.line.Keys)
	require.Equal(t, Shape{Shards: 1, ShardBytes: minShardBytes}, x.line.Shape())
	require.NoError(t, validIndexLine(x.line))
	requireAnswers(t, x, 1)
	require.Equal(t, uint64(1), x.shard(t, x.line.Shape(), 0).Base())

	c = someContents(1, 1000, 2)
	segments, _ := c.segmentsFor(1, 0, 2, 1)
	b := NewIndexBuilder(segments)
	limit(len(c) - 1)(b)
	for i, h := range c.hashes() {
		require.NoError(t, b.Err())
		require.Equal(t, i*6, b.Bytes())
		b.Add(h, c[h])
	}
	require.ErrorIs(t, b.Err(), ErrIndexTooLarge)
	require.False(t, b.Coarse())
	_, _, err := b.Finish(indexID(1))
	require.ErrorIs(t, err, ErrIndexTooLarge)
}

func TestTooManyTables(t *testing.T) {
	large := sealedSegment(1, 0, MaxGroupTables, MaxGroupTables)
	b := NewIndexBuilder([]*Segment{large, sealedSegment(2, MaxGroupTables, MaxGroupTables+1, 1)})
	require.ErrorIs(t, b.Err(), ErrIndexTooLarge)
	b.Add(1, 1) // does nothing
	_, _, err := b.Finish(indexID(1))
	require.ErrorIs(t, err, ErrIndexTooLarge)

	// Alone it is accepted, and its list does not lie in the tail.
	b = NewIndexBuilder([]*Segment{sealedSegment(1, 0, MaxGroupTables+1, MaxGroupTables+1)})
	b.SetKeys(0, MaxGroupTables+1)
	b.Add(1, 1)
	body, line, err := b.Finish(indexID(1))
	require.NoError(t, err)
	opened, err := ParseIndex(indexID(1), int64(len(body)), body[len(body)-IndexTailBytes:])
	require.NoError(t, err)
	require.NoError(t, opened.Check(line))
	_, inline := opened.Inline(0)
	require.False(t, inline)
	require.Less(t, opened.MemoryBytes(), 2000)
	off, n := opened.ListRange(0)
	tables, err := opened.ParseList(0, body[off:off+n])
	require.NoError(t, err)
	require.Len(t, tables, MaxGroupTables+1)
}

// The builder notices what cannot be right: an index that lacks keys would hide them for ever.
func TestBuilderRefuses(t *testing.T) {
	for _, x := range []struct {
		name, text string
		change     func(b *IndexBuilder, s []*Segment)
	}{
		{"no hash of a segment", "0 hashes for the 10 keys of segment 2", func(b *IndexBuilder, s []*Segment) { b.Add(5, 1) }},
		{"more hashes than keys", "2 hashes for the 1 keys of segment 1", func(b *IndexBuilder, s []*Segment) {
			b.SetKeys(0, 1)
			b.Add(5, 3)
			b.Add(6, 1)
		}},
		{"keys not set", "0 keys", func(b *IndexBuilder, s []*Segment) { b.SetKeys(0, 0); b.AddBase(0, maxHash, 3) }},
		{"more keys than in the tables", "11 keys in 2 tables with 10", func(b *IndexBuilder, s []*Segment) { b.SetKeys(0, 11); b.Add(5, 3) }},
		{"fewer keys than in the tables", "8 keys in 2 tables with 10", func(b *IndexBuilder, s []*Segment) { b.SetKeys(0, 8); b.Add(5, 3) }},
		{"not neighbours", "window starts at 11", func(b *IndexBuilder, s []*Segment) {
			s[1].FirstSequence++
			s[1].Runs[0].Start++
			s[1].Runs[0].Tables[0].FirstSequence++
			s[1].Runs[0].Tables[0].Records--
			s[1].Runs[0].Tables[0].Keys--
			b.SetKeys(1, 9)
			b.Add(5, 3)
		}},
		{"ids", "segment id 1 does not follow 1", func(b *IndexBuilder, s []*Segment) { s[1].Id = 1; b.Add(5, 3) }},
		{"run of another window", "starts at 11, want 10", func(b *IndexBuilder, s []*Segment) { s[1].Runs[0].Start++; b.Add(5, 3) }},
		{"no tables", "1 keys in 0 tables", func(b *IndexBuilder, s []*Segment) {
			s[1].Runs[0].Tables = nil
			b.SetKeys(1, 1)
			b.Add(5, 3)
		}},
		{"sizes that do not fit", "too large to count", func(b *IndexBuilder, s []*Segment) {
			s[0].Runs[0].Tables[0].Size, s[0].Runs[0].Tables[1].Size = math.MaxUint64, math.MaxUint64
			b.Add(5, 3)
		}},
		{"sizes that do not fit together", "too large to count", func(b *IndexBuilder, s []*Segment) {
			s[0].Runs[0].Tables[0].Bytes, s[1].Runs[0].Tables[1].Bytes = math.MaxUint64-1000, math.MaxUint64-1000
			b.Add(5, 3)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := []*Segment{sealedSegment(1, 0, 10, 2), sealedSegment(2, 10, 20, 2)}
			b := NewIndexBuilder(s)
			b.SetKeys(0, 10)
			b.SetKeys(1, 10)
			x.change(b, s)
			_, _, err := b.Finish(indexID(1))
			require.ErrorContains(t, err, x.text)
		})
	}
	ok := sealedSegment(1, 0, 10, 1)
	open, twoRuns := proto.CloneOf(ok), proto.CloneOf(ok)
	open.Sealed, twoRuns.Runs = false, append(twoRuns.Runs, twoRuns.Runs[0])
	for _, s := range [][]*Segment{nil, make([]*Segment, 65), {open}, {twoRuns}} {
		require.Panics(t, func() { NewIndexBuilder(s) })
	}
	b := NewIndexBuilder([]*Segment{ok})
	b.Add(5, 1)
	for _, f := range []func(){
		func() { b.Add(4, 1) }, func() { b.Add(5, 0) }, func() { b.Add(5, 2) }, func() { b.Add(maxHash+1, 1) },
		func() { b.AddBase(2, 1, 1) }, func() { b.AddBase(0, maxHash+1, 1) }, func() { b.AddBase(0, 1, 2) },
		func() { _, _, _ = b.Finish(ref(base.KindSST, 1).ID()) },
	} {
		require.Panics(t, f)
	}
}

// scale makes a builder with a sixteenth of all limits: what the shards look like does not depend on
// how many there are.
func scale(b *IndexBuilder) *IndexBuilder {
	b.limit, b.shardsLimit = MaxEntryBytes/16, maxShardsBytes/16
	return b
}

// The largest index: what the limits promise of its size, of the memory that it takes to make it, and that evenly
// spread keys fit.
func TestLargestIndex(t *testing.T) {
	const n = MaxEntryBytes / 16 / 6
	s := sealedSegment(1, 0, 2*n, 1)
	s.Runs[0].Tables[0].Keys = n
	rng := rand.New(rand.NewPCG(5, 6))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b := scale(NewIndexBuilder([]*Segment{s}))
	b.SetKeys(0, n)
	// Hashes in order, with gaps like those of a random set.
	at := 0.0
	for range n {
		at += -math.Log(1-rng.Float64()) * float64(maxHash) / (n * 1.001)
		b.Add(min(KeyHash(at), maxHash), 1)
	}
	body, line, err := b.Finish(indexID(1))
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(2*MaxIndexBytes/16), "in all, so at any time")
	require.LessOrEqual(t, len(body), MaxIndexBytes/16)
	require.Greater(t, line.Keys, uint64(n-n/1000), "few collide")
	require.NoError(t, validIndexLine(line))
	x := index{id: indexID(1), body: body, line: line}
	for i := range int(line.Shards) {
		require.Zero(t, x.shard(t, line.Shape(), i).Base(), "shard %d", i)
	}
	require.Equal(t, uint32(128), line.Shards)
}

// Crafted keys do not blow up the other shards without bound.
func TestLargestCraftedIndex(t *testing.T) {
	const n = MaxEntryBytes / 16 / 6
	b := scale(NewIndexBuilder([]*Segment{sealedSegment(1, 0, n, 1)}))
	b.SetKeys(0, n)
	for i := range KeyHash(n) {
		b.Add(i, 1)
	}
	body, line, err := b.Finish(indexID(1))
	require.NoError(t, err)
	require.LessOrEqual(t, len(body), MaxIndexBytes/16)
	x := index{id: indexID(1), body: body, line: line}
	for _, h := range []KeyHash{0, n / 2, n - 1, n} {
		mask, exact := x.reader(t)(h)
		require.Equal(t, uint64(1), mask)
		require.Equal(t, h < KeyHash(line.Keys), exact)
	}
}
