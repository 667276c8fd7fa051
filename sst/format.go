// Package sst is the codec of sorted tables: immutable files of records in
// (key, sequence) order, in compressed blocks with a block index, a directory
// of keys and a filter. docs/format/sst.md specifies the bytes.
//
// A Writer builds a table in memory. A Reader reads one through a RangeReader,
// with an optional Cache of decoded blocks. The invariants of the design that
// this package upholds:
//
//   - I4: for one key, records come in sequence order, none missing, none
//     twice; what cannot be read is an error, never a shorter result.
//   - I8: bytes from the store are not trusted. A block's checksum is seeded
//     with the table's id and the block's offset; lengths are checked before
//     anything is sliced or allocated; a wrong byte gives a base.CorruptError.
//   - I9: what a read fetches, holds and allocates is bounded by ReadAhead, by
//     the block's stored size (maxDecoded) and by the sizes of the tail reads.
package sst

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
)

// ErrVersion is matched (errors.Is) by Open's error for an intact table of a
// format version that this program does not know. Nothing is wrong with the
// table: a newer program reads it.
var ErrVersion = errors.New("unknown sst format version")

// Version is the format version that Writer writes. Reader reads it and those from
// oldestVersion on.
const (
	Version       = 2
	oldestVersion = 1 // lacks codecS2
)

// Limits of a record. Writer.Add panics above them: the log's own limits are
// lower and are checked before.
const (
	MaxKeyBytes   = 1<<16 - 1
	MaxValueBytes = 1 << 30
)

// Defaults and sizes of reads.
const (
	DefaultBlockBytes     = 32 << 10
	DefaultPartitionBytes = 64 << 10
	DefaultReadAhead      = 1 << 20

	// wholeMetadata is the most metadata that Open reads whole.
	wholeMetadata = 256 << 10
	// tailBytes is what Open reads of larger metadata.
	tailBytes = 64 << 10
)

const magic = "ANNALSST"

// footerSize and the places in the footer.
const (
	footerSize     = 48
	footerChecksum = 28
	footerVersion  = 36
	footerMagic    = 40
)

// footer is the fixed-size end of a table.
type footer struct {
	metaOffset uint64
	rootOffset uint64
	rootSize   uint64
}

// append encodes f as the footer that lies at offset.
func (f footer) append(b []byte, id base.ULID, offset int64) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint64(b, f.metaOffset)
	b = binary.LittleEndian.AppendUint64(b, f.rootOffset)
	b = binary.LittleEndian.AppendUint64(b, f.rootSize)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint32(b, Version)
	b = append(b, magic...)
	binary.LittleEndian.PutUint64(b[start+footerChecksum:], checksumFooter(b[start:], id, offset))
	return b
}

// parseFooter decodes and validates the footer b of a table of size bytes whose
// metadata begins at metaOffset.
func parseFooter(b []byte, name string, id base.ULID, size, metaOffset int64) (footer, error) {
	offset := size - footerSize
	if len(b) != footerSize || string(b[footerMagic:]) != magic {
		return footer{}, base.Corruptf(name, offset, "the footer lacks the magic %q", magic)
	}
	if binary.LittleEndian.Uint64(b[footerChecksum:]) != checksumFooter(b, id, offset) {
		return footer{}, base.Corruptf(name, offset, "footer checksum does not match")
	}
	if v := binary.LittleEndian.Uint32(b[footerVersion:]); v < oldestVersion || v > Version {
		return footer{}, fmt.Errorf("open table %s: %w %d (this program knows versions %d to %d)", name, ErrVersion, v, oldestVersion, Version)
	}
	f := footer{
		metaOffset: binary.LittleEndian.Uint64(b),
		rootOffset: binary.LittleEndian.Uint64(b[8:]),
		rootSize:   binary.LittleEndian.Uint64(b[16:]),
	}
	if binary.LittleEndian.Uint32(b[24:]) != 0 {
		return footer{}, base.Corruptf(name, offset, "a reserved field of the footer is not 0")
	}
	if f.metaOffset != uint64(metaOffset) {
		return footer{}, base.Corruptf(name, offset, "metadata begins at %d by the footer, at %d by the manifest", f.metaOffset, metaOffset)
	}
	if f.rootOffset <= f.metaOffset || f.rootOffset >= uint64(offset) || f.rootSize != uint64(offset)-f.rootOffset {
		return footer{}, base.Corruptf(name, offset, "the root (%d bytes at %d) does not end at the footer", f.rootSize, f.rootOffset)
	}
	return f, nil
}

func checksumFooter(b []byte, id base.ULID, offset int64) uint64 {
	return base.Checksum(base.Seed(id[:], uint64(offset)), b[:footerChecksum], b[footerVersion:footerSize])
}

// orderTime maps a timestamp to the number whose unsigned order is the order of
// timestamps.
func orderTime(ts int64) uint64 { return uint64(ts) ^ 1<<63 }

func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

// uvarint decodes the number at b[pos:] and returns the position after it, or a
// negative position when there is none.
func uvarint(b []byte, pos int) (uint64, int) {
	if uint(pos) < uint(len(b)) && b[pos] < 0x80 {
		return uint64(b[pos]), pos + 1
	}
	return longUvarint(b, pos)
}

func longUvarint(b []byte, pos int) (uint64, int) {
	if pos < 0 || pos > len(b) {
		return 0, -1
	}
	if pos+1 < len(b) && b[pos+1] < 0x80 {
		return uint64(b[pos]&0x7F) | uint64(b[pos+1])<<7, pos + 2
	}
	v, n := binary.Uvarint(b[pos:])
	if n <= 0 {
		return 0, -1
	}
	return v, pos + n
}
