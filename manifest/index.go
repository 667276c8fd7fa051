package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/annalsdb/annals/internal/base"
)

// An index (an .idx object, docs/format/idx.md) holds what MANIFEST no longer says of the segments of one
// group: the list of each segment's tables, and which of the segments may hold a key. What must hold:
//
//   - A lookup never denies a segment that holds the key: it reads every key's hash, and
//     what does not fit is said of every key of a shard (the base mask).
//   - One read of a fixed range, known from the group's line alone, answers a lookup; one read of the
//     last IndexTailBytes opens the index.
//   - Bytes are believed only after their checksum, seeded with the object's ULID and their offset (I8).
//   - An index is written once. Segments that are dropped stay in it; the group's line says which are live.

// Limits of indexes (I9).
const (
	// MaxGroupSegments is the largest number of segments that share an index: one bit of a mask each.
	MaxGroupSegments = 64
	// MaxGroupTables is the largest number of tables of several segments in one index. A single
	// segment may have more.
	MaxGroupTables = 1 << 15
	// IndexTailBytes is the size of the read that opens an index: its table of contents
	// and footer always lie in so many last bytes.
	IndexTailBytes = 64 << 10
	// MaxShards is the largest number of key shards of an index.
	MaxShards = 1 << 16
	// MaxShardBytes is the largest size of a key shard.
	MaxShardBytes = 64 << 10
	// MaxIndexBytes is the largest index that is written, unless one segment alone has more than
	// MaxGroupTables tables.
	MaxIndexBytes = 96 << 20
	// MaxEntryBytes is the largest size of the entries of an index: so many entries, times
	// EntryBytes, fit for sure.
	MaxEntryBytes = 72 << 20
)

// ErrIndexTooLarge: several segments have too many keys (MaxEntryBytes) or tables (MaxGroupTables)
// for one index. Leave them in their own.
var ErrIndexTooLarge = errors.New("index would be too large")

// Persisted: the hash of a key, and the layout of a shard.
const (
	hashBits  = 40
	hashBytes = hashBits / 8
	maxHash   = KeyHash(1)<<hashBits - 1

	offShardWidth    = 4
	offShardReserved = 5
	offShardBase     = 8
	shardHeaderBytes = 16
	// A shard without an entry.
	minShardBytes = shardHeaderBytes + sumBytes
)

// KeyHash stands for a key in an index: the upper 40 bits of its xxhash64 (seed 0).
// Of n other keys, n / 2^40 have the same on average.
type KeyHash uint64

// HashKey returns the hash of a key.
func HashKey(key []byte) KeyHash { return KeyHash(xxhash.Sum64(key) >> (64 - hashBits)) }

// maskWidth is the number of bytes of a mask of so many segments.
func maskWidth(segments int) int { return (segments + 7) / 8 }

// maskOf has the bits of so many segments.
func maskOf(segments int) uint64 { return ^uint64(0) >> (64 - segments) }

// EntryBytes is the size of one key's entry in an index of so many segments (1 to MaxGroupSegments).
func EntryBytes(segments int) int { return hashBytes + maskWidth(segments) }

// Shape says how the key shards of an index lie: shard i begins at i * ShardBytes, and holds the
// hashes that begin with the log2(Shards) bits of i.
type Shape struct {
	Shards     uint32 // a power of two, at most MaxShards
	ShardBytes uint32 // at most MaxShardBytes
	// Segments of the index, live or not; 0: not known.
	Segments int
}

// Shape returns how the key shards of the group's index lie. How many segments it has, only the
// index knows.
func (x *Group) Shape() Shape { return Shape{Shards: x.GetShards(), ShardBytes: x.GetShardBytes()} }

// ShardRange returns the range of the group's index that answers a lookup of a key. The group must be of
// a validated state.
func ShardRange(g *Group, h KeyHash) (off, n int64) {
	s := g.Shape()
	return s.Range(s.shardOf(h))
}

// Range returns where shard i lies.
func (s Shape) Range(i int) (off, n int64) {
	return int64(i) * int64(s.ShardBytes), int64(s.ShardBytes)
}

// Hashes returns the first and the last hash that shard i may hold.
func (s Shape) Hashes(i int) (first, last KeyHash) {
	shift := s.shift()
	return KeyHash(i) << shift, KeyHash(i+1)<<shift - 1
}

func (s Shape) shift() int { return hashBits - bits.TrailingZeros32(s.Shards) }

func (s Shape) shardOf(h KeyHash) int { return int(h >> s.shift()) }

// bytes is the size of all shards.
func (s Shape) bytes() uint64 { return uint64(s.Shards) * uint64(s.ShardBytes) }

// check says what is wrong with a shape.
func (s Shape) check() error {
	switch {
	case bits.OnesCount32(s.Shards) != 1 || s.Shards > MaxShards:
		return fmt.Errorf("%d key shards", s.Shards)
	case s.ShardBytes < minShardBytes || s.ShardBytes > MaxShardBytes:
		return fmt.Errorf("key shards of %d bytes", s.ShardBytes)
	}
	return nil
}

// checkKeys says what is wrong with the number of entries of an index of this shape, which has at
// least so many segments.
func (s Shape) checkKeys(keys uint64, segments int) error {
	room := uint64(s.ShardBytes-minShardBytes) / uint64(EntryBytes(segments)) * uint64(s.Shards)
	if keys > room || keys == 0 && s.bytes() != minShardBytes {
		return fmt.Errorf("%d keys in %d shards of %d bytes", keys, s.Shards, s.ShardBytes)
	}
	return nil
}

// indexSum is the checksum of a part of an index.
func indexSum(id base.ObjectID, off int64, checked []byte) uint64 {
	return base.Checksum(base.Seed(id.ULID[:], uint64(off)), checked)
}

// checkIndexSum checks the checksum in the last bytes of a part of an index, and returns what is
// before it. It must be the first look at the part.
func checkIndexSum(id base.ObjectID, off int64, part []byte) ([]byte, error) {
	checked := part[:len(part)-sumBytes]
	if got, want := indexSum(id, off, checked), binary.LittleEndian.Uint64(part[len(checked):]); got != want {
		return nil, base.Corruptf(id.Name(), off, "checksum is %016x, content has %016x", want, got)
	}
	return checked, nil
}
