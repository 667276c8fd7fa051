package manifest

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// How a builder lays out key shards.
const (
	// targetShardBytes is the most that a shard has on average: hashes are spread evenly, so that
	// the fullest is not much larger.
	targetShardBytes = 48 << 10
	// maxShardsBytes bounds all key shards together: keys that were made to fall into one shard
	// must not blow up the others. The rest of MaxIndexBytes is for the lists of MaxGroupTables tables.
	maxShardsBytes = 88 << 20
	// baseBits is the resolution at which AddBase notes: no index has more shards.
	baseBits    = 16
	baseBuckets = 1 << baseBits
	// Entries are collected in chunks that are never moved, each as large as all before it.
	minChunkBytes = 4 << 10
	maxChunkBytes = 1 << 20
)

// IndexBuilder makes an index. Its memory is at most MaxEntryBytes until Finish, and about the
// object's size more during it. It is for one goroutine.
type IndexBuilder struct {
	segments []*Segment
	keys     []uint64 // of each segment
	all      uint64   // the mask of all segments
	width    int      // bytes of an entry's mask

	limit       int // of bytes of entries
	shardsLimit int // of bytes of all shards

	chunks [][]byte // entries, as in a shard
	bytes  int      // of all entries
	last   KeyHash  // of the last Add
	base   []uint64 // nil, or base masks of baseBuckets equal parts of the hashes
	coarse bool     // one segment with too many keys: no entries
	err    error
}

// NewIndexBuilder makes a builder for an index of neighbouring sealed segments in order (1 to MaxGroupSegments), each
// with exactly one run and its tables. It panics if they are not that. It keeps the segments and
// does not change them.
func NewIndexBuilder(segments []*Segment) *IndexBuilder {
	if len(segments) < 1 || len(segments) > MaxGroupSegments {
		panic(fmt.Sprintf("manifest: index of %d segments", len(segments)))
	}
	b := &IndexBuilder{
		segments: segments,
		keys:     make([]uint64, len(segments)),
		all:      maskOf(len(segments)),
		width:    maskWidth(len(segments)),

		limit:       MaxEntryBytes,
		shardsLimit: maxShardsBytes,
	}
	tables := 0
	for _, s := range segments {
		if !s.Sealed || len(s.Runs) != 1 {
			panic(fmt.Sprintf("manifest: index of segment %d, sealed %t, with %d runs", s.Id, s.Sealed, len(s.Runs)))
		}
		tables += len(s.Runs[0].Tables)
	}
	if len(segments) > 1 && tables > MaxGroupTables {
		b.err = fmt.Errorf("%d tables in %d segments: %w", tables, len(segments), ErrIndexTooLarge)
	}
	return b
}

// SetKeys tells how many distinct keys segment i (from 0) has. It must be called for each.
func (b *IndexBuilder) SetKeys(i int, n uint64) { b.keys[i] = n }

// Add says that the segments of mask hold a key with this hash. Hashes must not descend; equal ones
// unite. It panics on a hash that does, and on a mask without a segment or with another's.
func (b *IndexBuilder) Add(h KeyHash, mask uint64) {
	if h > maxHash || h < b.last || mask == 0 || mask&^b.all != 0 {
		panic(fmt.Sprintf("manifest: add hash %010x after %010x with mask %x of %x", h, b.last, mask, b.all))
	}
	again := h == b.last && b.bytes > 0
	b.last = h
	switch {
	case b.coarse || b.err != nil:
	case again:
		chunk := b.chunks[len(b.chunks)-1]
		tail := chunk[len(chunk)-b.width:]
		putMask(tail, maskAt(tail)|mask)
	case b.bytes+b.stride() > b.limit:
		b.overflow()
	default:
		e := b.grow()
		putHash(e, h)
		putMask(e[hashBytes:], mask)
	}
}

// AddBase says that the segments of mask may hold any key with a hash from first to last: which, is not
// known, as in the shards of an index that this one replaces. It may be called at any time before Finish.
func (b *IndexBuilder) AddBase(first, last KeyHash, mask uint64) {
	if first > last || last > maxHash || mask&^b.all != 0 {
		panic(fmt.Sprintf("manifest: add base mask %x of %x from %010x to %010x", mask, b.all, first, last))
	}
	if mask == 0 {
		return
	}
	if b.base == nil {
		b.base = make([]uint64, baseBuckets)
	}
	for i := first >> (hashBits - baseBits); i <= last>>(hashBits-baseBits); i++ {
		b.base[i] |= mask
	}
}

// Bytes returns the size of the entries so far.
func (b *IndexBuilder) Bytes() int { return b.bytes }

// Coarse reports that the index of a single segment has become so large that it will be written without
// keys: lookups say that the segment may hold each. Further calls of Add do nothing.
func (b *IndexBuilder) Coarse() bool { return b.coarse }

// Err returns ErrIndexTooLarge once several segments have too many keys or tables. Finish returns it too.
func (b *IndexBuilder) Err() error { return b.err }

func (b *IndexBuilder) stride() int { return hashBytes + b.width }

// grow returns the place of one more entry.
func (b *IndexBuilder) grow() []byte {
	stride := b.stride()
	if n := len(b.chunks); n == 0 || len(b.chunks[n-1])+stride > cap(b.chunks[n-1]) {
		size := min(max(b.bytes, minChunkBytes), maxChunkBytes)
		b.chunks = append(b.chunks, make([]byte, 0, size/stride*stride))
	}
	chunk := &b.chunks[len(b.chunks)-1]
	n := len(*chunk)
	*chunk = (*chunk)[: n+stride : cap(*chunk)]
	b.bytes += stride
	return (*chunk)[n:]
}

// overflow gives up what was added.
func (b *IndexBuilder) overflow() {
	b.chunks, b.bytes = nil, 0
	if len(b.segments) == 1 {
		b.coarse = true
		return
	}
	b.err = fmt.Errorf("more than %d bytes of keys in %d segments: %w", b.limit, len(b.segments), ErrIndexTooLarge)
}

// each calls f with every entry, in order.
func (b *IndexBuilder) each(f func(h KeyHash, mask uint64, entry []byte)) {
	stride := b.stride()
	for _, chunk := range b.chunks {
		for ; len(chunk) > 0; chunk = chunk[stride:] {
			e := chunk[:stride]
			f(hashAt(e), maskAt(e[hashBytes:]), e)
		}
	}
}

// Finish returns the bytes of the index and the line of a new group of all its segments. The group has the index's
// ULID as its id. The builder must not be used after it.
//
// It compares what it was told: an error says that the keys, segments or tables cannot be right, or
// matches ErrIndexTooLarge.
func (b *IndexBuilder) Finish(ref base.ObjectID) (body []byte, line *Group, err error) {
	if ref.Kind != base.KindIndex {
		panic("manifest: index under the name " + ref.Name())
	}
	if b.err != nil {
		return nil, nil, b.err
	}
	if err := b.checkKeys(); err != nil {
		return nil, nil, fmt.Errorf("build index: %w", err)
	}
	shape := b.shape()
	parts, err := b.parts(shape.bytes())
	if err != nil {
		return nil, nil, fmt.Errorf("build index: %w", err)
	}
	size := shape.bytes() + footerBytes
	for _, p := range parts {
		size += uint64(len(p))
	}
	body = make([]byte, shape.bytes(), size)
	keys := b.putShards(body, ref, shape)
	for _, p := range parts {
		closePart(ref, int64(len(body)), p)
		body = append(body, p...)
	}
	toc := parts[len(parts)-1]
	footer := indexFooter{shape: shape, tocOffset: uint64(len(body) - len(toc)), tocSize: uint32(len(toc)), keys: keys}
	body = append(body, footer.seal(ref, int64(len(body)))...)

	// Read it as everybody will. It checks the segments, too.
	x, err := ParseIndex(ref, int64(len(body)), body)
	if err != nil {
		return nil, nil, fmt.Errorf("build index: %w", err)
	}
	l, err := x.liveFrom(0, x.Len())
	if err != nil {
		return nil, nil, fmt.Errorf("build index: %w", err)
	}
	line = &Group{
		Id: append([]byte(nil), ref.ULID[:]...), Index: RefOf(ref), IndexSize: size,
		TocOffset: footer.tocOffset, Shards: shape.Shards, ShardBytes: shape.ShardBytes, Keys: keys,
	}
	l.set(line)
	return body, line, nil
}

// checkKeys compares the hashes with the numbers of keys: a segment whose keys are missing would
// never be read again.
func (b *IndexBuilder) checkKeys() error {
	if b.coarse {
		return nil
	}
	var unknown uint64
	for _, mask := range b.base {
		unknown |= mask
	}
	var hashes [MaxGroupSegments]uint64
	b.each(func(_ KeyHash, mask uint64, _ []byte) {
		for ; mask != 0; mask &= mask - 1 {
			hashes[bits.TrailingZeros64(mask)]++
		}
	})
	for i, s := range b.segments {
		if n := hashes[i]; n > b.keys[i] || n == 0 && unknown>>i&1 == 0 {
			return fmt.Errorf("%d hashes for the %d keys of segment %d", n, b.keys[i], s.Id)
		}
	}
	return nil
}

// shape chooses the number of shards, and their size so that the fullest fits if it may.
func (b *IndexBuilder) shape() Shape {
	s := Shape{Shards: 1, ShardBytes: minShardBytes, Segments: len(b.segments)}
	for b.bytes/int(s.Shards) > targetShardBytes-minShardBytes {
		s.Shards *= 2
	}
	counts := make([]int, s.Shards)
	fullest := 0
	b.each(func(h KeyHash, _ uint64, _ []byte) {
		i := s.shardOf(h)
		counts[i]++
		fullest = max(fullest, counts[i])
	})
	room := min(MaxShardBytes, b.shardsLimit/int(s.Shards)) - minShardBytes
	s.ShardBytes += uint32(min(fullest, room/b.stride()) * b.stride())
	return s
}

// putShards writes the key shards to the start of body, which is zero, and returns the number of entries in them.
func (b *IndexBuilder) putShards(body []byte, ref base.ObjectID, shape Shape) (keys uint64) {
	room := (int(shape.ShardBytes) - minShardBytes) / b.stride()
	shard := func(i int) []byte {
		off, n := shape.Range(i)
		return body[off : off+n]
	}
	counts, bases := make([]int, shape.Shards), b.bases(shape)
	b.each(func(h KeyHash, mask uint64, entry []byte) {
		i := shape.shardOf(h)
		if counts[i] == room { // what does not fit is said of every key of the shard
			bases[i] |= mask
			return
		}
		copy(shard(i)[shardHeaderBytes+counts[i]*len(entry):], entry)
		counts[i]++
		keys++
	})
	for i := range counts {
		s := shard(i)
		binary.LittleEndian.PutUint32(s, uint32(counts[i]))
		s[offShardWidth] = byte(b.width)
		binary.LittleEndian.PutUint64(s[offShardBase:], bases[i])
		off, _ := shape.Range(i)
		closePart(ref, off, s)
	}
	return keys
}

// bases returns what is known of every key of each shard.
func (b *IndexBuilder) bases(shape Shape) []uint64 {
	bases := make([]uint64, shape.Shards)
	for i, mask := range b.base {
		bases[i/(baseBuckets/int(shape.Shards))] |= mask
	}
	if b.coarse {
		bases[0] = b.all
	}
	return bases
}

// parts returns the frames of the table lists, and that of the table of contents, that follow at an offset.
func (b *IndexBuilder) parts(at uint64) ([][]byte, error) {
	contents := &IndexContents{}
	var parts [][]byte
	for i, s := range b.segments {
		tables := s.Runs[0].Tables
		list, err := sealPart(&TableList{Tables: tables})
		if err != nil {
			return nil, fmt.Errorf("list of segment %d: %w", s.Id, err)
		}
		l, err := liveOfSegment(s)
		if err != nil {
			return nil, err
		}
		x := &IndexedSegment{
			Segment: proto.CloneOf(s), ListOffset: at, ListSize: uint32(len(list)),
			Tables: l.tables, Records: l.records, Bytes: l.bytes, StoredBytes: l.storedBytes, Keys: b.keys[i],
		}
		x.Segment.Runs[0].Tables = nil
		if err := checkTables(x, tables); err != nil {
			return nil, fmt.Errorf("segment %d: %w", s.Id, err)
		}
		contents.Segments = append(contents.Segments, x)
		parts, at = append(parts, list), at+uint64(len(list))
	}
	toc, err := sealPart(contents)
	if err == nil && len(toc) > maxTOCBytes {
		err = fmt.Errorf("%d bytes: %w", len(toc), ErrIndexTooLarge)
	}
	if err != nil {
		return nil, fmt.Errorf("table of contents: %w", err)
	}
	return append(parts, toc), nil
}
