package sst

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// groupsOf returns an iterator over a span that is ready for Next.
func groupsOf(t require.TestingT, r *Reader, span Span) *GroupIter {
	it := r.Groups().Span(span)
	begin, end, err := it.Find(context.Background())
	require.NoError(t, err)
	require.LessOrEqual(t, begin, end)
	it.Read(&exactSource{r.opts.Source, begin, end}, nil)
	return it
}

// exactSource fails reads outside of what Find has told, or that go back.
type exactSource struct {
	RangeReader
	begin, end int64
}

func (s *exactSource) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	if off < s.begin || off+n > s.end {
		panic("a read outside of the data of the span")
	}
	s.begin = off + n
	return s.RangeReader.ReadRange(ctx, off, n)
}

// collectGroups returns all records of an iterator that must not fail, and calls visit for
// every group.
func collectGroups(t require.TestingT, it *GroupIter, visit func(*Group)) []base.Record {
	var out []base.Record
	for {
		ok, err := it.Next(context.Background())
		require.NoError(t, err)
		if !ok {
			return out
		}
		key, seq := bytes.Clone(it.Key()), it.Sequence()
		g, err := it.Group(context.Background())
		require.NoError(t, err)
		require.True(t, bytes.Equal(key, g.Key))
		require.Equal(t, seq, g.FirstSequence)
		var n uint64
		for c := (groupCursor{g: g}); c.next(); {
			rec := base.Record{Key: key, Value: bytes.Clone(c.data()), Sequence: c.seq, Timestamp: c.ts}
			n += uint64(rec.Size())
			out = append(out, rec)
		}
		last := out[len(out)-1]
		require.Equal(t, n, g.Bytes())
		require.Equal(t, []any{last.Sequence, last.Timestamp}, []any{g.LastSequence, g.LastTimestamp})
		if visit != nil {
			visit(g)
		}
	}
}

// TestGroupsProperty: the groups of any span are the records in it, and a Writer that is
// given groups writes what it writes when it is given records.
func TestGroupsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		recs := drawRecords(t)
		opts := WriterOptions{
			Segment:        7,
			BlockBytes:     rapid.SampledFrom([]int{1, 100, 1000, 32 << 10}).Draw(t, "block"),
			PartitionBytes: rapid.SampledFrom([]int{1, 20, 200, 64 << 10}).Draw(t, "partition"),
			Compression:    rapid.SampledFrom([]Compression{Dense, Fast}).Draw(t, "compression"),
		}
		body, info := write(opts, recs)
		r := reopen(t, body, info)
		spans := []Span{{}}
		for range 5 {
			var s Span
			if rapid.IntRange(0, 3).Draw(t, "from") > 0 {
				s.From = ptr(drawPosition(t, recs))
			}
			if rapid.IntRange(0, 3).Draw(t, "to") > 0 {
				s.To = ptr(drawPosition(t, recs))
			}
			spans = append(spans, s)
		}
		for _, s := range spans {
			var want []base.Record
			for _, rec := range recs {
				p := Position{rec.Key, rec.Sequence}
				if (s.From == nil || s.From.Compare(&p) <= 0) && (s.To == nil || p.Compare(s.To) < 0) {
					want = append(want, rec)
				}
			}
			requireRecords(t, want, collectGroups(t, groupsOf(t, r, s), nil), "%v", s)
		}

		// Two neighbouring spans, into one table.
		middle := drawPosition(t, recs)
		opts.ID = testID
		opts.BlockBytes = rapid.SampledFrom([]int{1, 100, 1000, 32 << 10}).Draw(t, "new block")
		opts.Compression = rapid.SampledFrom([]Compression{Dense, Fast}).Draw(t, "new compression")
		plain, whole := NewWriter(opts), NewWriter(opts)
		frames := 0
		for _, s := range []Span{{To: &middle}, {From: &middle}} {
			collectGroups(t, groupsOf(t, r, s), func(g *Group) {
				before := whole.block.size()
				whole.AddGroup(g)
				require.LessOrEqual(t, whole.block.size(), max(before, opts.BlockBytes)+g.StoredBytes()+64)
				if g.frame != nil {
					frames++
				}
				g.frame = nil
				plain.AddGroup(g)
			})
		}
		direct, directInfo := write(opts, recs)
		body, info = plain.Finish()
		require.True(t, bytes.Equal(direct, body), "a table from groups differs from one from records")
		require.True(t, ptr(directInfo.Properties).equal(&info.Properties))

		body, info = whole.Finish()
		require.Equal(t, directInfo.Properties.Records, info.Properties.Records)
		r = reopen(t, body, info)
		require.NoError(t, r.Verify(context.Background(), nil))
		requireRecords(t, recs, collect(t, r.All(0)))
		if opts.Compression == Dense {
			require.Zero(t, dataCodecs(t, r, body)[codecS2])
		}
	})
}

func reopen(t require.TestingT, body []byte, info Info) *Reader {
	opts, _ := readerOptions(body, info)
	r, err := Open(context.Background(), opts)
	require.NoError(t, err)
	return r
}

func drawPosition(t *rapid.T, recs []base.Record) Position {
	rec := recs[rapid.IntRange(0, len(recs)-1).Draw(t, "position")]
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		return Position{Key: rec.Key}
	case 1:
		return Position{Key: append(bytes.Clone(rec.Key), 0), Sequence: 5}
	}
	return Position{Key: rec.Key, Sequence: rec.Sequence + uint64(rapid.IntRange(0, 1).Draw(t, "after"))}
}

// TestStoredBlocksAreTaken: blocks of a hot key, and large values, are not compressed again,
// and blocks do not shrink from rewrite to rewrite.
func TestStoredBlocksAreTaken(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	key := []byte("hot")
	value := func(int) []byte { return halfRandom(rng, 200) }
	recs := stream(2000, func(int) []byte { return key }, value)
	large := base.Record{Key: []byte("large"), Value: halfRandom(rng, 1<<20), Sequence: 9000, Timestamp: recs[0].Timestamp}
	recs = append(recs, large)
	var blocks []uint64
	var first []byte
	for range 4 {
		w := NewWriter(WriterOptions{ID: testID, BlockBytes: 4 << 10})
		if first == nil {
			for _, rec := range recs {
				w.Add(rec.Key, rec.Sequence, rec.Timestamp, rec.Value)
			}
		} else {
			r, _ := open(t, first, Info{Size: int64(len(first)), MetaOffset: metaOf(first)}, nil)
			w.Add([]byte("a"), 1, 1, []byte("one more, so that blocks are moved"))
			taken := 0
			collectGroups(t, groupsOf(t, r, Span{From: &Position{Key: []byte("b")}}), func(g *Group) {
				if g.frame != nil && w.takesFrame(g) {
					taken++
				}
				w.AddGroup(g)
			})
			require.Greater(t, taken, 90)
		}
		body, info := w.Finish()
		blocks = append(blocks, info.Properties.Blocks)
		first = body
		r, _ := open(t, body, info, nil)
		require.NoError(t, r.Verify(context.Background(), nil))
	}
	require.Less(t, blocks[3], blocks[0]+5, "%v", blocks)
}

// TestStoredBlocksOfEachCompression: a table that is kept takes no block of S2; otherwise stored
// blocks are taken, whatever compressed them.
func TestStoredBlocksOfEachCompression(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	recs := stream(2000, func(int) []byte { return []byte("hot") }, func(int) []byte { return halfRandom(rng, 200) })
	for _, c := range []struct {
		in, out Compression
		want    codec
	}{{Fast, Fast, codecS2}, {Fast, Dense, codecZstd}, {Dense, Dense, codecZstd}, {Dense, Fast, codecZstd}} {
		opts := WriterOptions{BlockBytes: 4 << 10, Compression: c.in}
		body, info := write(opts, recs)
		r := reopen(t, body, info)
		opts.ID, opts.Compression = testID, c.out
		w := NewWriter(opts)
		collectGroups(t, groupsOf(t, r, Span{}), w.AddGroup)
		body, info = w.Finish()
		r = reopen(t, body, info)
		requireRecords(t, recs, collect(t, r.All(0)))
		blocks := dataCodecs(t, r, body)
		require.GreaterOrEqual(t, blocks[c.want], int(info.Properties.Blocks)-1, "%+v: all but the short last one", c)
		if c.out == Dense {
			require.Zero(t, blocks[codecS2])
		}
	}
}

// TestRawBlocksOfFastTables: what S2 left as it was, since it codes repetitions alone, a table that is kept compresses if
// zstd can, from the next probe on.
func TestRawBlocksOfFastTables(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	hexadecimal := func(int) []byte { return hex.AppendEncode(nil, random(rng, 100)) }
	incompressible := func(int) []byte { return random(rng, 200) }
	hot := func(int) []byte { return []byte("hot") }
	const n = 2 * probeEvery * 32 << 10 / 200
	for _, c := range []struct {
		value   func(int) []byte
		smaller bool
	}{{hexadecimal, true}, {incompressible, false}} {
		recs := stream(n, hot, c.value)
		direct, _ := write(WriterOptions{}, recs)
		body, info := write(WriterOptions{Compression: Fast}, recs)
		r := reopen(t, body, info)
		require.GreaterOrEqual(t, dataCodecs(t, r, body)[codecRaw], int(info.Properties.Blocks)-1)
		w := NewWriter(WriterOptions{ID: testID})
		collectGroups(t, groupsOf(t, r, Span{}), w.AddGroup)
		body, info = w.Finish()
		r = reopen(t, body, info)
		requireRecords(t, recs, collect(t, r.All(0)))
		blocks := dataCodecs(t, r, body)
		if c.smaller {
			require.Less(t, len(body), len(direct)*11/10)
			require.GreaterOrEqual(t, blocks[codecZstd], int(info.Properties.Blocks)-1)
		} else {
			require.GreaterOrEqual(t, blocks[codecRaw], int(info.Properties.Blocks)-1)
		}
	}
}

func metaOf(body []byte) int64 {
	f, err := parseFooter(body[len(body)-footerSize:], "test.sst", testID, int64(len(body)), int64(binary.LittleEndian.Uint64(body[len(body)-footerSize:])))
	if err != nil {
		panic(err)
	}
	return int64(f.metaOffset)
}

// TestLargeBlocksAreNotKept: an iterator that has moved past a huge value does not hold its
// memory (F42).
func TestLargeBlocksAreNotKept(t *testing.T) {
	var recs []base.Record
	for i := range 10 {
		recs = append(recs, base.Record{Key: []byte{byte(i)}, Value: make([]byte, 1+i%2*keepDecoded), Sequence: uint64(i)})
	}
	body, info := write(WriterOptions{}, recs)
	r, _ := open(t, body, info, nil)
	it := groupsOf(t, r, Span{})
	for range recs {
		ok, err := it.Next(context.Background())
		require.True(t, ok)
		require.NoError(t, err)
		if !it.loaded {
			require.LessOrEqual(t, cap(it.buf), keepDecoded)
			require.Nil(t, it.data)
			require.Nil(t, it.frame.payload)
			require.Equal(t, Group{}, it.group)
		}
		_, err = it.Group(context.Background())
		require.NoError(t, err)
	}
}

// TestGroupsOfBadTables: a wrong byte anywhere gives an error (I8).
func TestGroupsOfBadTables(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	recs := stream(300, func(i int) []byte { return []byte{byte(i * 7 % 11)} }, func(i int) []byte { return halfRandom(rng, 40) })
	body, info := write(WriterOptions{BlockBytes: 500, PartitionBytes: 300}, recs)
	walk := func(body []byte) error {
		opts, _ := readerOptions(body, info)
		r, err := Open(context.Background(), opts)
		if err != nil {
			return err
		}
		it := r.Groups().Span(Span{})
		if _, _, err := it.Find(context.Background()); err != nil {
			return err
		}
		it.Read(opts.Source, nil)
		for {
			ok, err := it.Next(context.Background())
			if err == nil && ok {
				_, err = it.Group(context.Background())
			}
			if !ok || err != nil {
				_, again := it.Next(context.Background())
				require.Equal(t, err, again)
				return err
			}
		}
	}
	require.NoError(t, walk(body))
	for i := int64(0); i < info.MetaOffset; i++ {
		bad := bytes.Clone(body)
		bad[i] ^= 1 << (i % 8)
		require.ErrorIs(t, walk(bad), base.ErrCorrupt, "byte %d", i)
	}
}

// FuzzGroup: a block is walked group by group exactly if it is valid as a whole.
func FuzzGroup(f *testing.F) {
	var w blockBuilder
	w.add(true, []byte("a"), 3, 4, []byte("value"))
	w.add(false, []byte("a"), 5, 4, nil)
	w.add(true, []byte("b"), 1, -1, []byte("v"))
	f.Add(bytes.Clone(w.finish()))
	w.add(true, nil, 1<<40, 1<<40, make([]byte, 300))
	f.Add(bytes.Clone(w.finish()))
	f.Fuzz(func(t *testing.T, b []byte) {
		blk, want := parseBlock(b)
		got := walkBlock(b)
		require.Equal(t, want == "", got == "", "%q, %q", want, got)
		if blk == nil {
			return
		}
		for i := range blk.groups {
			var g Group
			_, reason := g.decode(blk.data, blk.offset(i))
			require.Empty(t, reason)
			c := groupCursor{g: &g}
			for h := blk.group(i); h.next(); {
				require.True(t, c.next())
				rec := h.record()
				require.Equal(t, []any{rec.Sequence, rec.Timestamp, len(rec.Value)}, []any{c.seq, c.ts, len(c.data())})
			}
			require.False(t, c.next())
		}
	})
}

// walkBlock walks a decoded block like a GroupIter, and returns what is wrong.
func walkBlock(b []byte) string {
	groups, end, reason := groupTable(b)
	if reason != "" {
		return reason
	}
	it := &GroupIter{r: &Reader{}, data: b[:end:end], offsets: b[end : len(b)-4]}
	for range groups {
		if err := it.decode(it.group.Key); err != nil {
			return err.Error()
		}
	}
	if it.at != end {
		return "bytes after the last group"
	}
	return ""
}

func TestSamples(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	recs := stream(3000, func(i int) []byte { return []byte{byte(i * 7 % 31)} }, func(i int) []byte { return random(rng, 40) })
	body, info := write(WriterOptions{BlockBytes: 500, PartitionBytes: 300}, recs)
	r, _ := open(t, body, info, nil)
	for _, every := range []int64{1, 3000, 1 << 30} {
		var n int
		var sum int64
		var last Position
		require.NoError(t, r.Groups().Samples(context.Background(), every, func(p Position, stored int64) error {
			require.True(t, n == 0 || last.Compare(&p) < 0)
			last = Position{bytes.Clone(p.Key), p.Sequence}
			require.True(t, stored >= every || sum+stored == info.MetaOffset)
			sum += stored
			n++
			return nil
		}))
		require.Equal(t, info.MetaOffset, sum)
		require.Equal(t, max(1, info.MetaOffset/every) <= 1, n == 1)
	}
	failed := context.Canceled
	require.Equal(t, failed, r.Groups().Samples(context.Background(), 1, func(Position, int64) error { return failed }))
}
