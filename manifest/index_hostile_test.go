package manifest

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// readAll reads every byte of an index as readers do: by the line, the tail, and ranges.
func readAll(id base.ObjectID, line *Group, body []byte) error {
	size := int64(len(body))
	x, err := ParseIndex(id, size, body[size-min(size, IndexTailBytes):])
	if err != nil {
		return err
	}
	if err := x.Check(line); err != nil {
		return err
	}
	for i := range int(x.Shape().Shards) {
		off, n := x.Shape().Range(i)
		if _, err := ParseShard(id, x.Shape(), off, body[off:off+n]); err != nil {
			return err
		}
	}
	for i := range x.Len() {
		off, n := x.ListRange(i)
		if _, err := x.ParseList(i, body[off:off+n]); err != nil {
			return err
		}
	}
	return nil
}

// smallIndex has three segments and several shards, in little space.
func smallIndex(t testing.TB, id base.ObjectID, seed uint64) index {
	c := someContents(seed, 60, 3)
	x := c.build(t, id, 5, 100, 3, 2, nil)
	segments, keys := c.segmentsFor(5, 100, 3, 2)
	b := NewIndexBuilder(segments)
	for i, n := range keys {
		b.SetKeys(i, n)
	}
	for _, h := range c.hashes() {
		b.Add(h, c[h])
	}
	// Four shards instead of one.
	parts, err := b.parts(4 * 300)
	require.NoError(t, err)
	shape := Shape{Shards: 4, ShardBytes: 300, Segments: 3}
	body := make([]byte, shape.bytes())
	n := b.putShards(body, id, shape)
	require.Equal(t, uint64(len(c)), n)
	for _, p := range parts {
		closePart(id, int64(len(body)), p)
		body = append(body, p...)
	}
	toc := parts[3]
	f := indexFooter{shape, uint64(len(body) - len(toc)), uint32(len(toc)), n}
	body = append(body, f.seal(id, int64(len(body)))...)
	line := proto.CloneOf(x.line)
	line.Shards, line.ShardBytes, line.TocOffset, line.IndexSize = 4, 300, f.tocOffset, uint64(len(body))
	return index{id, segments, c, body, line}
}

// Every truncation, and every flipped bit of a byte, is noticed by who reads that byte (I8), and
// named with the object.
func TestEveryDamagedByteOfAnIndexIsNoticed(t *testing.T) {
	x := smallIndex(t, indexID(1), 1)
	requireAnswers(t, x, 0)
	require.NoError(t, readAll(x.id, x.line, x.body))
	for n := range x.body {
		require.ErrorIs(t, readAll(x.id, x.line, x.body[:n]), base.ErrCorrupt, "cut to %d bytes", n)
	}
	require.ErrorIs(t, readAll(x.id, x.line, append(slices.Clip(x.body), 0)), base.ErrCorrupt, "one byte more")
	body := slices.Clone(x.body)
	for i := range body {
		for bit := range 8 {
			body[i] ^= 1 << bit
			err := readAll(x.id, x.line, body)
			require.ErrorIs(t, err, base.ErrCorrupt, "bit %d of byte %d", bit, i)
			require.ErrorContains(t, err, x.id.Name())
			body[i] ^= 1 << bit
		}
	}
}

// Intact parts in the wrong place or of another index fail (I8).
func TestMisplacedPartsOfAnIndex(t *testing.T) {
	x, other := smallIndex(t, indexID(1), 1), smallIndex(t, indexID(2), 1)
	require.Len(t, other.body, len(x.body))
	shape := x.open(t).Shape()
	for i := range 4 {
		off, n := shape.Range(i)
		for j := range 4 {
			at, _ := shape.Range(j)
			_, err := ParseShard(x.id, shape, at, x.body[off:off+n])
			require.Equal(t, i == j, err == nil, "shard %d read as %d", i, j)
			if i != j {
				require.ErrorIs(t, err, base.ErrCorrupt)
				require.ErrorContains(t, err, "checksum", "whatever is in it")
			}
		}
		_, err := ParseShard(x.id, shape, off, other.body[off:off+n])
		require.ErrorIs(t, err, base.ErrCorrupt, "of another index")
	}
	opened := x.open(t)
	for i := range 3 {
		for j := range 3 {
			_, err := opened.ParseList(j, x.list(opened, i))
			require.Equal(t, i == j, err == nil, "list %d read as %d", i, j)
		}
		_, err := opened.ParseList(i, other.list(opened, i))
		require.ErrorIs(t, err, base.ErrCorrupt, "of another index")
	}
	_, err := ParseIndex(other.id, int64(len(x.body)), x.body)
	require.ErrorIs(t, err, base.ErrCorrupt)
	// Any part of the one in the other.
	cuts := []int{0, 300, 600, 900, 1200}
	for i := range 3 {
		off, n := opened.ListRange(i)
		cuts = append(cuts, int(off+n))
	}
	cuts = append(cuts, len(x.body)-footerBytes, len(x.body))
	for i := range len(cuts) - 1 {
		spliced := slices.Concat(x.body[:cuts[i]], other.body[cuts[i]:cuts[i+1]], x.body[cuts[i+1]:])
		require.ErrorIs(t, readAll(x.id, x.line, spliced), base.ErrCorrupt, "bytes %d to %d", cuts[i], cuts[i+1])
	}
}

// forgeIndex puts a changed footer or table of contents into an index, with right checksums.
func forgeIndex(t testing.TB, x index, change func(f *indexFooter, c *IndexContents)) []byte {
	opened := x.open(t)
	f := opened.footer
	c := &IndexContents{}
	for i := range opened.Len() {
		c.Segments = append(c.Segments, proto.CloneOf(opened.Segment(i)))
	}
	was := f
	change(&f, c)
	body := slices.Clone(x.body[:was.tocOffset])
	toc, err := sealPart(c)
	require.NoError(t, err)
	closePart(x.id, int64(len(body)), toc)
	body = append(body, toc...)
	if f.tocSize == was.tocSize {
		f.tocSize = uint32(len(toc))
	}
	return append(body, f.seal(x.id, int64(len(body)))...)
}

// What is wrong under a right checksum is an error, too: hostile numbers cannot make a reader go
// astray.
func TestParseIndexRefuses(t *testing.T) {
	x := smallIndex(t, indexID(1), 1)
	for want, change := range map[string]func(f *indexFooter, c *IndexContents){
		"3 key shards":                     func(f *indexFooter, _ *IndexContents) { f.shape.Shards = 3 },
		"0 key shards":                     func(f *indexFooter, _ *IndexContents) { f.shape.Shards = 0 },
		"2147483648 key shards":            func(f *indexFooter, _ *IndexContents) { f.shape.Shards = 1 << 31 },
		"key shards of 23 bytes":           func(f *indexFooter, _ *IndexContents) { f.shape.ShardBytes = 23 },
		"key shards of 4294967295 bytes":   func(f *indexFooter, _ *IndexContents) { f.shape.ShardBytes = math.MaxUint32 },
		"0 segments":                       func(f *indexFooter, _ *IndexContents) { f.shape.Segments = 0 },
		"65 segments":                      func(f *indexFooter, _ *IndexContents) { f.shape.Segments = 65 },
		"3 segments, the footer says 4":    func(f *indexFooter, _ *IndexContents) { f.shape.Segments = 4 },
		"table of contents of 15 bytes":    func(f *indexFooter, _ *IndexContents) { f.tocSize = 15 },
		"table of contents of 57345 bytes": func(f *indexFooter, _ *IndexContents) { f.tocSize = maxTOCBytes + 1 },
		"table of contents of 4294967295":  func(f *indexFooter, _ *IndexContents) { f.tocSize = math.MaxUint32 },
		" bytes at 18446744073709551615":   func(f *indexFooter, _ *IndexContents) { f.tocOffset = math.MaxUint64 },
		"4800 bytes of key shards":         func(f *indexFooter, _ *IndexContents) { f.shape.Shards = 16 },
		"0 keys in":                        func(f *indexFooter, _ *IndexContents) { f.keys = 0 },
		"18446744073709551615 keys in":     func(f *indexFooter, _ *IndexContents) { f.keys = math.MaxUint64 },
		"want it at 600":                   func(f *indexFooter, _ *IndexContents) { f.shape.Shards = 2 },
		"2 segments, the footer says 3":    func(_ *indexFooter, c *IndexContents) { c.Segments = c.Segments[:2] },
		"ids 0 to 0":                       func(_ *indexFooter, c *IndexContents) { c.Segments[1].Segment = nil },
		"ids 5 to 4":                       func(_ *indexFooter, c *IndexContents) { c.Segments[0].Segment.LastId = 4 },
		"sealed is false":                  func(_ *indexFooter, c *IndexContents) { c.Segments[0].Segment.Sealed = false },
		"window [":                         func(_ *indexFooter, c *IndexContents) { c.Segments[0].Segment.EndSequence = 100 },
		"0 runs":                           func(_ *indexFooter, c *IndexContents) { c.Segments[0].Segment.Runs = nil },
		"2 runs": func(_ *indexFooter, c *IndexContents) {
			s := c.Segments[0].Segment
			s.Runs = append(s.Runs, s.Runs[0])
		},
		"id of 3 bytes":    func(_ *indexFooter, c *IndexContents) { c.Segments[0].Segment.Runs[0].Id = []byte("abc") },
		"and 1 tables":     func(_ *indexFooter, c *IndexContents) { c.Segments[0].Segment.Runs[0].Tables = []*Table{{}} },
		"run of [101, ":    func(_ *indexFooter, c *IndexContents) { c.Segments[0].Segment.Runs[0].Start++ },
		"run of [100, 1)":  func(_ *indexFooter, c *IndexContents) { c.Segments[0].Segment.Runs[0].End = 1 },
		"0 tables of":      func(_ *indexFooter, c *IndexContents) { c.Segments[2].Tables = 0 },
		"with 1 records":   func(_ *indexFooter, c *IndexContents) { c.Segments[2].Records = 1 },
		"tables of 1 byte": func(_ *indexFooter, c *IndexContents) { c.Segments[2].StoredBytes = 1 },
		"keys, 18446744":   func(_ *indexFooter, c *IndexContents) { c.Segments[2].Records = math.MaxUint64 },
		"0 keys, ":         func(_ *indexFooter, c *IndexContents) { c.Segments[2].Keys = 0 },
		"1000 keys, ":      func(_ *indexFooter, c *IndexContents) { c.Segments[2].Keys = 1000 },
		"id 5 does not follow 5": func(_ *indexFooter, c *IndexContents) {
			c.Segments[1].Segment.Id = 5
		},
		"window starts at": func(_ *indexFooter, c *IndexContents) {
			s := c.Segments[1].Segment
			s.FirstSequence++
			s.Runs[0].Start++
			c.Segments[1].Records--
			c.Segments[1].Keys--
		},
		"list of 15 bytes":     func(_ *indexFooter, c *IndexContents) { c.Segments[0].ListSize = 15 },
		"list of 4294967295":   func(_ *indexFooter, c *IndexContents) { c.Segments[0].ListSize = math.MaxUint32 },
		"bytes at 0, want it":  func(_ *indexFooter, c *IndexContents) { c.Segments[0].ListOffset = 0 },
		"bytes at 18446744073": func(_ *indexFooter, c *IndexContents) { c.Segments[2].ListOffset = math.MaxUint64 },
		"lists end at":         func(_ *indexFooter, c *IndexContents) { c.Segments[2].ListSize-- },
		"too large to count": func(_ *indexFooter, c *IndexContents) {
			c.Segments[0].Bytes, c.Segments[1].Bytes = math.MaxUint64, 1
		},
		"too large to count ": func(_ *indexFooter, c *IndexContents) {
			c.Segments[0].StoredBytes, c.Segments[1].StoredBytes = math.MaxUint64, math.MaxUint64
		},
	} {
		t.Run(want, func(t *testing.T) {
			body := forgeIndex(t, x, change)
			_, err := ParseIndex(x.id, int64(len(body)), body)
			require.ErrorIs(t, err, base.ErrCorrupt)
			require.ErrorContains(t, err, trimRight(want))
			require.ErrorContains(t, err, x.id.Name())
		})
	}
	same := forgeIndex(t, x, func(*indexFooter, *IndexContents) {})
	require.Equal(t, x.body, same)
	// Totals that do not fit are not read around the end of the numbers.
	for _, size := range []int64{0, 1, footerBytes, math.MinInt64, -1} {
		_, err := ParseIndex(x.id, size, nil)
		require.ErrorIs(t, err, base.ErrCorrupt)
	}
	for _, n := range []int{0, 1, footerBytes, len(x.body) - 1} {
		_, err := ParseIndex(x.id, int64(len(x.body)), x.body[len(x.body)-n:])
		require.ErrorIs(t, err, base.ErrCorrupt, "a short tail")
	}
	_, err := ParseIndex(x.id, int64(len(x.body))-1, x.body)
	require.ErrorIs(t, err, base.ErrCorrupt, "a long tail")
}

// An intact index of a later version is not taken for a damaged one.
func TestIndexOfALaterVersion(t *testing.T) {
	x := smallIndex(t, indexID(1), 1)
	at := len(x.body) - footerBytes
	footer := x.body[at:]
	binary.LittleEndian.PutUint32(footer[offFooterVersion:], 2)
	_, err := ParseIndex(x.id, int64(len(x.body)), x.body)
	require.ErrorIs(t, err, base.ErrCorrupt)
	footer[offFooterReserved] = 1
	closePart(x.id, int64(at), footer)
	_, err = ParseIndex(x.id, int64(len(x.body)), x.body)
	require.ErrorIs(t, err, ErrVersion)
	require.NotErrorIs(t, err, base.ErrCorrupt)
	require.ErrorContains(t, err, "index has format version 2, this binary knows 1")
	binary.LittleEndian.PutUint32(footer[offFooterVersion:], 1)
	closePart(x.id, int64(at), footer)
	_, err = ParseIndex(x.id, int64(len(x.body)), x.body)
	require.ErrorContains(t, err, "reserved bytes are not zero")
}

func TestParseShardRefuses(t *testing.T) {
	x := smallIndex(t, indexID(1), 1)
	shape := x.open(t).Shape()
	entry := func(b []byte, i int) []byte { return b[shardHeaderBytes+i*6:] }
	for _, c := range []struct {
		text   string
		change func(b []byte)
	}{
		{"is not within", func(b []byte) { copy(entry(b, 1), entry(b, 0)[:6]) }},
		{"is not within 4000000000 and 7fffffffff", func(b []byte) { entry(b, 0)[0] = 0x3F }},
		{"hash ffffffffff is not within", func(b []byte) { putHash(entry(b, 0), maxHash) }},
		{"mask 0 of", func(b []byte) { entry(b, 0)[5] = 0 }},
		{"mask 8 of segments 7", func(b []byte) { entry(b, 0)[5] = 8 }},
		{"base mask 8 of segments 7", func(b []byte) { b[offShardBase] = 8 }},
		{"base mask 8000000000000000 of", func(b []byte) { b[offShardBase+7] = 0x80 }},
		{"masks of 0 bytes", func(b []byte) { b[offShardWidth] = 0 }},
		{"masks of 2 bytes for 3 segments", func(b []byte) { b[offShardWidth] = 2 }},
		{"masks of 9 bytes", func(b []byte) { b[offShardWidth] = 9 }},
		{"reserved", func(b []byte) { b[offShardReserved+2] = 1 }},
		{"4294967295 entries in 276 bytes", func(b []byte) { binary.LittleEndian.PutUint32(b, math.MaxUint32) }},
		{"47 entries in 276 bytes", func(b []byte) { binary.LittleEndian.PutUint32(b, 47) }},
		{"hash 0000000000 is not", func(b []byte) { binary.LittleEndian.PutUint32(b, 46) }},
		{"padding is not zero", func(b []byte) { b[len(b)-sumBytes-1] = 1 }},
	} {
		t.Run(c.text, func(t *testing.T) {
			body := slices.Clone(x.body[300:600])
			c.change(body)
			_, err := ParseShard(x.id, shape, 300, body)
			require.ErrorIs(t, err, base.ErrCorrupt, "by its checksum")
			closePart(x.id, 300, body)
			_, err = ParseShard(x.id, shape, 300, body)
			require.ErrorIs(t, err, base.ErrCorrupt)
			require.ErrorContains(t, err, c.text)
		})
	}
	for _, off := range []int64{-300, 1, 299, 1200, math.MaxInt64 / 300 * 300} {
		_, err := ParseShard(x.id, shape, off, x.body[:300])
		require.ErrorIs(t, err, base.ErrCorrupt, "at %d", off)
	}
	for _, body := range [][]byte{nil, x.body[:299], x.body[:301]} {
		_, err := ParseShard(x.id, shape, 0, body)
		require.ErrorIs(t, err, base.ErrCorrupt)
	}
	for _, s := range []Shape{{}, {Shards: 4}, {Shards: 5, ShardBytes: 300}, {Shards: 1 << 31, ShardBytes: math.MaxUint32}} {
		_, err := ParseShard(x.id, s, 0, x.body[:300])
		require.ErrorIs(t, err, base.ErrCorrupt)
	}
}

func TestParseListRefuses(t *testing.T) {
	x := smallIndex(t, indexID(1), 1)
	for _, c := range []struct {
		text   string
		change func(l *TableList)
	}{
		{"1 tables", func(l *TableList) { l.Tables = l.Tables[:1] }},
		{"0 tables", func(l *TableList) { l.Tables = nil }},
		{"is referred to twice", func(l *TableList) { l.Tables[1].Ref = l.Tables[0].Ref }},
		{"reference is missing", func(l *TableList) { l.Tables[1].Ref = nil }},
		{"object of kind 2", func(l *TableList) { l.Tables[1].Ref = ref(base.KindIndex, 5) }},
		{"table 1", func(l *TableList) { l.Tables[0], l.Tables[1] = l.Tables[1], l.Tables[0] }},
		{"in a run of", func(l *TableList) { l.Tables[0].FirstSequence = 0 }},
		{"of 2001 bytes", func(l *TableList) { l.Tables[0].Size++ }},
		{"of 1001", func(l *TableList) { l.Tables[0].Bytes++ }},
		{"too large to count", func(l *TableList) { l.Tables[0].Size, l.Tables[1].Size = math.MaxUint64, math.MaxUint64 }},
		{"keys in 2 tables with", func(l *TableList) { l.Tables[0].Keys -= 2 }},
		{"records", func(l *TableList) { l.Tables[0].Records--; l.Tables[0].Keys-- }},
	} {
		t.Run(c.text, func(t *testing.T) {
			opened := x.open(t)
			list := &TableList{Tables: proto.CloneOf(&TableList{Tables: x.segments[1].Runs[0].Tables}).Tables}
			c.change(list)
			frame, err := sealPart(list)
			require.NoError(t, err)
			opened.segments[1].ListSize = uint32(len(frame))
			off, _ := opened.ListRange(1)
			closePart(x.id, off, frame)
			_, err = opened.ParseList(1, frame)
			require.ErrorIs(t, err, base.ErrCorrupt)
			require.ErrorContains(t, err, c.text)
		})
	}
	opened := x.open(t)
	for _, n := range []int{0, 15, len(x.list(opened, 0)) - 1} {
		_, err := opened.ParseList(0, x.list(opened, 0)[:n])
		require.ErrorIs(t, err, base.ErrCorrupt)
	}
}

// FuzzParseShard gets past the checksum.
func FuzzParseShard(f *testing.F) {
	x := smallIndex(f, indexID(1), 1)
	for i := range 4 {
		f.Add(x.body[i*300:(i+1)*300], uint32(4), uint32(300), byte(3), int64(i)*300)
	}
	f.Add(make([]byte, 24), uint32(1), uint32(24), byte(0), int64(0))
	f.Fuzz(func(t *testing.T, body []byte, shards, shardBytes uint32, segments byte, off int64) {
		shape := Shape{Shards: shards, ShardBytes: shardBytes, Segments: int(segments) % 65}
		body = slices.Clone(body)
		if len(body) >= sumBytes {
			closePart(x.id, off, body)
		}
		s, err := ParseShard(x.id, shape, off, body)
		if err != nil {
			require.ErrorIs(t, err, base.ErrCorrupt)
			return
		}
		first, last := s.Hashes()
		for i := range s.Len() {
			h, mask := s.Entry(i)
			got, _ := s.Lookup(h)
			require.Equal(t, mask|s.Base(), got)
			require.True(t, first <= h && h <= last)
		}
		_, _ = s.Lookup(first)
		_, _ = s.Lookup(maxHash)
	})
}

// FuzzParseIndex takes a tail as it is, and puts hostile messages and numbers under right checksums.
func FuzzParseIndex(f *testing.F) {
	x := smallIndex(f, indexID(1), 1)
	opened := x.open(f)
	toc, err := proto.Marshal(&IndexContents{Segments: opened.segments})
	require.NoError(f, err)
	f.Add(x.body, toc, byte(0), uint32(len(toc)), uint32(4), uint32(300), uint32(3), uint64(60))
	f.Add(x.body[1200:], zstdEncoder.EncodeAll(toc, nil), byte(1), uint32(len(toc)), uint32(1), uint32(24), uint32(1), uint64(0))
	f.Fuzz(func(t *testing.T, tail, payload []byte, codec byte, length, shards, shardBytes, segments uint32, keys uint64) {
		check := func(size int64, tail []byte) {
			x, err := ParseIndex(x.id, size, tail)
			if err != nil {
				return
			}
			all := &Group{Index: RefOf(x.id), IndexSize: uint64(size), TocOffset: x.footer.tocOffset,
				Shards: x.footer.shape.Shards, ShardBytes: x.footer.shape.ShardBytes, Keys: x.footer.keys}
			l, err := x.liveFrom(0, x.Len())
			require.NoError(t, err)
			l.set(all)
			require.NoError(t, x.Check(all))
			for i := range x.Len() {
				s := x.Segment(i).Segment
				p, ok := x.Find(s.Id)
				require.True(t, ok && p == i)
				if frame, ok := x.Inline(i); ok {
					_, _ = x.ParseList(i, frame)
				}
				if i+1 < x.Len() {
					g, err := x.Trim(all, s.Last())
					require.NoError(t, err)
					require.NoError(t, x.Check(g))
				}
			}
		}
		check(int64(len(tail)), tail)
		// The tail's lists and the hostile contents.
		body := slices.Clone(x.body[:opened.footer.tocOffset])
		part := make([]byte, partHeaderBytes, len(payload)+minPartBytes)
		part[0] = codec
		binary.LittleEndian.PutUint32(part[offPartLength:], length)
		part = append(append(part, payload...), make([]byte, sumBytes)...)
		closePart(x.id, int64(len(body)), part)
		toc := uint64(len(body))
		body = append(body, part...)
		foot := indexFooter{Shape{shards, shardBytes, int(segments)}, toc, uint32(len(part)), keys}
		body = append(body, foot.seal(x.id, int64(len(body)))...)
		check(int64(len(body)), body)
	})
}

// FuzzParseList gets past the checksum.
func FuzzParseList(f *testing.F) {
	x := smallIndex(f, indexID(1), 1)
	list, err := proto.Marshal(&TableList{Tables: x.segments[1].Runs[0].Tables})
	require.NoError(f, err)
	f.Add(list, byte(codecRaw), uint32(len(list)))
	f.Add(zstdEncoder.EncodeAll(list, nil), byte(codecZstd), uint32(len(list)))
	f.Fuzz(func(t *testing.T, payload []byte, codec byte, length uint32) {
		opened := x.open(t)
		frame := make([]byte, partHeaderBytes, len(payload)+minPartBytes)
		frame[0] = codec
		binary.LittleEndian.PutUint32(frame[offPartLength:], length)
		frame = append(append(frame, payload...), make([]byte, sumBytes)...)
		off, _ := opened.ListRange(1)
		closePart(x.id, off, frame)
		opened.segments[1].ListSize = uint32(len(frame))
		tables, err := opened.ParseList(1, frame)
		if err != nil {
			require.ErrorIs(t, err, base.ErrCorrupt)
			return
		}
		s := opened.Full(1, tables)
		require.NoError(t, checkTables(opened.Segment(1), s.Runs[0].Tables))
	})
}
