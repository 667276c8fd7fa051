package manifest

import (
	"encoding/binary"

	"github.com/annalsdb/annals/internal/base"
)

// Shard is one key shard of an index. It is immutable and safe for concurrent use.
type Shard struct {
	first, last KeyHash
	base        uint64
	width       int    // bytes of an entry's mask
	entries     []byte // of hashBytes + width each
}

// ParseShard reads the key shard that lies at off in the index id. The shard keeps body, which
// must not change. Errors match base.ErrCorrupt.
func ParseShard(id base.ObjectID, shape Shape, off int64, body []byte) (*Shard, error) {
	name := id.Name()
	if err := shape.check(); err != nil {
		return nil, base.Corruptf(name, off, "%v", err)
	}
	size := int64(shape.ShardBytes)
	if off < 0 || off%size != 0 || off/size >= int64(shape.Shards) {
		return nil, base.Corruptf(name, off, "no key shard of %d bytes begins here", size)
	}
	if int64(len(body)) != size {
		return nil, base.Corruptf(name, off, "key shard has %d bytes, want %d", len(body), size)
	}
	checked, err := checkIndexSum(id, off, body)
	if err != nil {
		return nil, err
	}
	s := &Shard{base: binary.LittleEndian.Uint64(checked[offShardBase:]), width: int(checked[offShardWidth])}
	s.first, s.last = shape.Hashes(int(off / size))
	if r := checked[offShardReserved:offShardBase]; r[0]|r[1]|r[2] != 0 {
		return nil, base.Corruptf(name, off+offShardReserved, "reserved bytes are not zero")
	}
	if s.width < 1 || s.width > maskWidth(MaxGroupSegments) ||
		shape.Segments != 0 && s.width != maskWidth(shape.Segments) {
		return nil, base.Corruptf(name, off+offShardWidth, "masks of %d bytes for %d segments", s.width, shape.Segments)
	}
	count, room := uint64(binary.LittleEndian.Uint32(checked)), checked[shardHeaderBytes:]
	stride := uint64(hashBytes + s.width)
	if count > uint64(len(room))/stride {
		return nil, base.Corruptf(name, off, "%d entries in %d bytes", count, len(room))
	}
	s.entries = room[: count*stride : count*stride]
	for _, b := range room[count*stride:] {
		if b != 0 {
			return nil, base.Corruptf(name, off, "padding is not zero")
		}
	}
	return s, s.check(name, off, shape)
}

// check checks what a lookup relies on: the order of the entries, and that nothing names a segment
// that the index does not have.
func (s *Shard) check(name string, off int64, shape Shape) error {
	all := maskOf(8 * s.width)
	if shape.Segments != 0 {
		all = maskOf(shape.Segments)
	}
	if s.base&^all != 0 {
		return base.Corruptf(name, off+offShardBase, "base mask %x of segments %x", s.base, all)
	}
	least := s.first
	for i := range s.Len() {
		h, mask := s.Entry(i)
		if h < least || h > s.last {
			return base.Corruptf(name, off+s.place(i), "hash %010x is not within %010x and %010x", h, least, s.last)
		}
		if mask == 0 || mask&^all != 0 {
			return base.Corruptf(name, off+s.place(i), "mask %x of segments %x", mask, all)
		}
		least = h + 1
	}
	return nil
}

// place is where entry i begins in the shard.
func (s *Shard) place(i int) int64 { return int64(shardHeaderBytes + i*(hashBytes+s.width)) }

// Lookup returns the segments that may hold a key: bit i is the index's segment i. One whose bit is
// not set does not hold it. Those that were dropped since are still named. exact reports that each bit stands for
// a key with this very hash, none comes from the base mask alone.
func (s *Shard) Lookup(h KeyHash) (mask uint64, exact bool) {
	from, to := 0, s.Len()
	for from < to {
		if mid := (from + to) / 2; s.hash(mid) < h {
			from = mid + 1
		} else {
			to = mid
		}
	}
	if from < s.Len() && s.hash(from) == h {
		_, mask = s.Entry(from)
	}
	return mask | s.base, s.base&^mask == 0
}

// Base returns the segments that may hold any key of the shard: which, is not known.
func (s *Shard) Base() uint64 { return s.base }

// Hashes returns the first and the last hash that the shard may hold.
func (s *Shard) Hashes() (first, last KeyHash) { return s.first, s.last }

// Len returns the number of entries.
func (s *Shard) Len() int { return len(s.entries) / (hashBytes + s.width) }

// Entry returns entry i, in ascending order of hashes.
func (s *Shard) Entry(i int) (KeyHash, uint64) {
	stride := hashBytes + s.width
	e := s.entries[i*stride : (i+1)*stride]
	return hashAt(e), maskAt(e[hashBytes:])
}

// MemoryBytes returns about how much memory the shard keeps.
func (s *Shard) MemoryBytes() int { return 96 + cap(s.entries) + minShardBytes }

func (s *Shard) hash(i int) KeyHash { return hashAt(s.entries[i*(hashBytes+s.width):]) }

// hashAt reads a hash: big-endian, so that entries ascend bytewise.
func hashAt(e []byte) KeyHash {
	return KeyHash(binary.BigEndian.Uint32(e))<<8 | KeyHash(e[4])
}

func putHash(e []byte, h KeyHash) {
	binary.BigEndian.PutUint32(e, uint32(h>>8))
	e[4] = byte(h)
}

// maskAt reads a mask that fills b: little-endian.
func maskAt(b []byte) (mask uint64) {
	switch len(b) { // of groups of up to 8, and of 64
	case 1:
		return uint64(b[0])
	case 8:
		return binary.LittleEndian.Uint64(b)
	}
	for i, x := range b {
		mask |= uint64(x) << (8 * i)
	}
	return mask
}

func putMask(b []byte, mask uint64) {
	if len(b) == 8 {
		binary.LittleEndian.PutUint64(b, mask)
		return
	}
	for i := range b {
		b[i] = byte(mask >> (8 * i))
	}
}
