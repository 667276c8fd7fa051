package sst

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// goldenParts returns the decoded blocks of the golden table, by kind.
func goldenParts(f *testing.F) (data, index, directory, filter [][]byte, root []byte, metaOffset, rootOffset int64) {
	ctx := context.Background()
	body, info := goldenTable()
	r, src := open(f, body, info, nil)
	part := func(off, size int64) []byte {
		b, _, err := decodeFrame(src.body[off:off+size], "", testID, off)
		require.NoError(f, err)
		return b
	}
	for _, t := range []struct {
		list *entryList
		out  *[][]byte
	}{{r.root.index, &index}, {r.root.directory, &directory}, {r.root.filter, &filter}} {
		var c entryCursor
		for c.reset(t.list); c.forward(); {
			*t.out = append(*t.out, part(int64(c.f[fieldOffset]), int64(c.f[fieldSize])))
		}
	}
	c := r.indexCursor()
	for {
		ok, err := c.next(ctx)
		require.NoError(f, err)
		if !ok {
			break
		}
		ref := c.ref()
		data = append(data, part(ref.offset, ref.size))
	}
	rootOffset = r.root.rootOffset
	return data, index, directory, filter, part(rootOffset, info.Size-footerSize-rootOffset), info.MetaOffset, rootOffset
}

// FuzzBlock: a block is refused, or its groups can be read without a check and
// encode to the same records.
func FuzzBlock(f *testing.F) {
	data, _, _, _, _, _, _ := goldenParts(f)
	for _, b := range data {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		blk, reason := parseBlock(b)
		if reason != "" {
			require.Nil(t, blk)
			return
		}
		var w blockBuilder
		var n uint64
		for i := range blk.groups {
			g, at, ok := blk.find(blk.keyAt(i))
			require.True(t, ok)
			require.Equal(t, i, at)
			for first := true; g.next(); first = false {
				n++
				rec := g.record()
				w.add(first, rec.Key, rec.Sequence, rec.Timestamp, rec.Value)
			}
		}
		require.Equal(t, blk.records, n)
		again, reason := parseBlock(w.finish())
		require.Empty(t, reason)
		require.Equal(t, blk.records, again.records)
		for i := range blk.groups {
			a, b := blk.group(i), again.group(i)
			for a.next() && b.next() {
				require.Equal(t, a.record(), b.record())
			}
		}
	})
}

// fuzzList: a list is refused, or all ways through it agree.
func fuzzList(t *testing.T, b []byte, kind listKind) *entryList {
	list, reason := parseEntries(b, kind)
	if reason != "" {
		require.Nil(t, list)
		return nil
	}
	var c, s, x entryCursor
	n := 0
	s.reset(list)
	x.reset(list)
	for c.reset(list); c.forward(); n++ {
		require.True(t, s.seek(c.key, fieldSequence, c.f[0]))
		require.Equal(t, c.i, s.i)
		require.Equal(t, c.f, s.f)
		require.True(t, bytes.Equal(c.key, s.key))
		if j := list.n - 1 - n; n < 64 {
			x.to(j)
			require.Equal(t, j, x.i)
		}
	}
	require.Equal(t, list.n, n)
	return list
}

func FuzzIndex(f *testing.F) {
	_, index, _, _, _, metaOffset, _ := goldenParts(f)
	for _, b := range index {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if list := fuzzList(t, b, indexKind); list != nil && checkIndex(list, metaOffset) == "" {
			var c entryCursor
			for c.reset(list); c.forward(); {
				require.LessOrEqual(t, c.f[fieldOffset]+c.f[fieldSize], uint64(metaOffset))
			}
		}
	})
}

func FuzzDirectory(f *testing.F) {
	_, _, directory, _, _, _, _ := goldenParts(f)
	for _, b := range directory {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { fuzzList(t, b, directoryKind) })
}

func FuzzFilter(f *testing.F) {
	_, _, _, filter, _, _, _ := goldenParts(f)
	for _, b := range filter {
		f.Add(b, []byte("hot"))
	}
	f.Fuzz(func(t *testing.T, b, key []byte) {
		if p, reason := parseFilter(b); reason == "" {
			p.mayContain(hashKey(key))
		}
		own, reason := parseFilter(appendFilter(nil, []uint64{hashKey(key), hashKey(b)}))
		require.Empty(t, reason)
		require.True(t, own.mayContain(hashKey(key)) && own.mayContain(hashKey(b)))
	})
}

func FuzzRoot(f *testing.F) {
	_, _, _, _, root, metaOffset, rootOffset := goldenParts(f)
	f.Add(root, metaOffset, rootOffset)
	f.Fuzz(func(t *testing.T, b []byte, metaOffset, rootOffset int64) {
		if metaOffset < 0 || rootOffset <= metaOffset {
			return // parseFooter has refused it
		}
		r, reason := parseRoot(b, metaOffset, rootOffset)
		if reason != "" {
			require.Nil(t, r)
			return
		}
		var c entryCursor
		for _, list := range []*entryList{r.directory, r.index, r.filter} {
			for c.reset(list); c.forward(); {
				require.LessOrEqual(t, c.f[fieldOffset]+c.f[fieldSize], uint64(rootOffset))
			}
		}
	})
}

func FuzzFooter(f *testing.F) {
	body, info := goldenTable()
	f.Add(body[len(body)-footerSize:], info.Size, info.MetaOffset)
	f.Fuzz(func(t *testing.T, b []byte, size, metaOffset int64) {
		if size < footerSize || metaOffset <= 0 || metaOffset >= size-footerSize {
			return // Open has refused it
		}
		reseal(b, footerChecksum, func() uint64 { return checksumFooter(b, testID, size-footerSize) }, len(b) == footerSize)
		ft, err := parseFooter(b, "test.sst", testID, size, metaOffset)
		if err == nil {
			require.Equal(t, b, ft.append(nil, testID, size-footerSize))
			require.Equal(t, uint64(size-footerSize), ft.rootOffset+ft.rootSize)
		}
	})
}

func reseal(b []byte, at int, sum func() uint64, ok bool) {
	if ok {
		binary.LittleEndian.PutUint64(b[at:], sum())
	}
}

// FuzzFrame seals the payload, so that what lies behind the checksum is reached.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("raw"), byte(codecRaw), uint32(3))
	f.Add(newEncoder().EncodeAll(bytes.Repeat([]byte("zstd "), 100), nil), byte(codecZstd), uint32(500))
	f.Add(s2.Encode(nil, bytes.Repeat([]byte("s2 "), 100)), byte(codecS2), uint32(300))
	f.Fuzz(func(t *testing.T, payload []byte, c byte, decoded uint32) {
		b, _, err := decodeFrame(frameOf(payload, codec(c), int(decoded)), "test.sst", testID, 0)
		if err != nil {
			require.ErrorIs(t, err, base.ErrCorrupt)
			return
		}
		require.Len(t, b, int(decoded))
		require.LessOrEqual(t, cap(b), maxDecoded(len(payload))+16)
	})
}

// resealTable puts right every checksum of a damaged table that it can find, so
// that what lies behind the checksums is reached.
func resealTable(body []byte, metaOffset int64) {
	size := int64(len(body))
	at := size - footerSize
	if metaOffset <= 0 || at <= metaOffset {
		return
	}
	foot := body[at:]
	reseal(foot, footerChecksum, func() uint64 { return checksumFooter(foot, testID, at) }, true)
	ft, err := parseFooter(foot, "", testID, size, metaOffset)
	if err != nil {
		return
	}
	frame := func(off, n uint64) []byte {
		if n < trailerSize || off > uint64(size) || n > uint64(size)-off {
			return nil
		}
		b := body[off : off+n]
		binary.LittleEndian.PutUint64(b[n-8:], base.Checksum(base.Seed(testID[:], off), b[:n-8]))
		data, _, err := decodeFrame(b, "", testID, int64(off))
		if err != nil {
			return nil
		}
		return data
	}
	root, reason := parseRoot(frame(ft.rootOffset, ft.rootSize), metaOffset, int64(ft.rootOffset))
	if reason != "" {
		return
	}
	var c, d entryCursor
	for _, top := range []*entryList{root.directory, root.index, root.filter} {
		for c.reset(top); c.forward(); {
			data := frame(c.f[fieldOffset], c.f[fieldSize])
			list, reason := parseEntries(data, indexKind)
			if top != root.index || reason != "" {
				continue
			}
			for d.reset(list); d.forward(); {
				frame(d.f[fieldOffset], d.f[fieldSize])
			}
		}
	}
}

// FuzzFile reads a damaged table, whose checksums were put right, in every way:
// any answer is allowed, a panic or an endless loop is not.
func FuzzFile(f *testing.F) {
	golden, err := os.ReadFile(goldenFile)
	require.NoError(f, err)
	_, info := goldenTable()
	f.Add(golden, info.MetaOffset)
	small, smallInfo := write(WriterOptions{}, goldenRecords()[:3])
	f.Add(small, smallInfo.MetaOffset)
	fast, fastInfo := goldenTableOf(Fast)
	f.Add(fast, fastInfo.MetaOffset)
	raw, rawInfo := rawTable(f)
	f.Add(raw, rawInfo.MetaOffset)
	f.Fuzz(func(t *testing.T, body []byte, metaOffset int64) {
		body = bytes.Clone(body)
		resealTable(body, metaOffset)
		readDamaged(t, body, metaOffset)
	})
}

// rawTable is a table in which nothing is compressed, so that each byte of it
// means something of its own.
func rawTable(t testing.TB) ([]byte, Info) {
	rng := rand.New(rand.NewPCG(5, 5))
	recs := goldenRecords()[:0]
	for i, key := range []string{"", "a", "hot", "hot", "hot", "hot", "hot", "hot", "key/20"} {
		recs = append(recs, base.Record{Key: []byte(key), Value: random(rng, 3), Sequence: uint64(10 + 7*i), Timestamp: int64(1_700_000_000_000 + i)})
	}
	body, info := write(WriterOptions{BlockBytes: 50, PartitionBytes: 20}, recs)
	r, _ := open(t, body, info, nil)
	require.Greater(t, r.root.index.n, 1)
	require.Greater(t, r.root.directory.n, 1)
	require.Greater(t, info.Properties.Blocks, uint64(2))
	require.Equal(t, byte(codecRaw), body[info.Size-footerSize-trailerSize], "the root is raw")
	return body, info
}

// TestEveryByteResealed changes every byte and puts the checksums right: the
// table of a broken writer. It must not panic, and what Verify passes must
// agree with itself.
func TestEveryByteResealed(t *testing.T) {
	body, info := rawTable(t)
	passed := 0
	for i := range body {
		for _, mask := range []byte{0x01, 0x40, 0xFF} {
			bad := bytes.Clone(body)
			bad[i] ^= mask
			resealTable(bad, info.MetaOffset)
			if !bytes.Equal(bad, body) && readDamaged(t, bad, info.MetaOffset) {
				passed++
			}
		}
	}
	// A changed value, segment, block size or filter bit that makes no key absent
	// cannot be told from a true one.
	t.Logf("%d of %d changes pass", passed, 3*len(body))
	require.Less(t, passed, len(body)/4)
	require.NotZero(t, passed)
}

// readDamaged reads a table in every way and returns whether Verify passed it.
func readDamaged(t *testing.T, body []byte, metaOffset int64) bool {
	ctx := context.Background()
	opts, _ := readerOptions(body, Info{Size: int64(len(body)), MetaOffset: metaOffset})
	opts.Cache = newMapCache()
	r, err := Open(ctx, opts)
	if err != nil {
		return false
	}
	verified := r.Verify(ctx, nil) == nil
	var n uint64
	for it := r.All(0); ; n++ {
		_, ok, err := it.Next(ctx)
		if err != nil || !ok {
			require.False(t, verified && err != nil, "verified, but: %v", err)
			break
		}
	}
	for _, key := range [][]byte{nil, []byte("hot"), []byte("key/20"), r.Properties().LastKey} {
		for _, rng := range []base.Range{base.All(), {Start: 20, End: 60}, {Start: 30, End: 40}} {
			fuzzKey(t, r, key, rng, verified)
		}
	}
	for it := r.Keys(nil); ; {
		if _, ok, err := it.Next(ctx); err != nil || !ok {
			require.False(t, verified && err != nil, "verified, but: %v", err)
			break
		}
	}
	return verified
}

// fuzzKey reads one key. In a verified table all reads must agree.
func fuzzKey(t *testing.T, r *Reader, key []byte, rng base.Range, verified bool) {
	ctx := context.Background()
	var counts [2]uint64
	for i, it := range []*Iter{r.Scan(key, rng, Hint{}), r.ScanBackward(key, rng, Hint{Records: 3})} {
		for {
			_, ok, err := it.Next(ctx)
			require.False(t, verified && err != nil, "verified, but: %v", err)
			if err != nil || !ok {
				break
			}
			counts[i]++
		}
	}
	n, err := r.Count(ctx, key, rng)
	_, _, err2 := r.SeekTimestamp(ctx, key, rng, math.MinInt64)
	_, _, err3 := r.SeekTimestamp(ctx, key, rng, 1_700_000_000_000)
	if verified {
		require.NoError(t, err)
		require.NoError(t, err2)
		require.NoError(t, err3)
		require.Equal(t, [2]uint64{n, n}, counts)
	}
}

// FuzzWriter is TestProperty on what a fuzzer draws.
func FuzzWriter(f *testing.F) {
	draws := make([]byte, 8<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(draws) // never fails
	f.Add(draws)
	f.Fuzz(rapid.MakeFuzz(property))
}
