package manifest

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// The frame around the table lists and the table of contents of an index. Integers are little-endian.
//
//	0  1  codec
//	1  3  reserved, zero
//	4  4  decoded length
//	8  n  payload
//	   8  xxhash64 of everything before, seeded with the index's ULID and the frame's offset
const (
	offPartReserved = 1
	offPartLength   = 4
	partHeaderBytes = 8
	minPartBytes    = partHeaderBytes + sumBytes
)

// sealPart returns a message in a frame whose checksum is not set yet (closePart): it depends on where
// the frame will lie.
func sealPart(m proto.Message) ([]byte, error) {
	if n := proto.Size(m); n > MaxManifestBytes {
		return nil, fmt.Errorf("message of %d bytes: %w", n, ErrIndexTooLarge)
	}
	message, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	part, codec := pack(make([]byte, partHeaderBytes, partHeaderBytes+len(message)/2+sumBytes), message)
	part[0] = codec
	binary.LittleEndian.PutUint32(part[offPartLength:], uint32(len(message)))
	return append(part, make([]byte, sumBytes)...), nil
}

// closePart sets the checksum of a part that lies at off.
func closePart(id base.ObjectID, off int64, part []byte) {
	at := len(part) - sumBytes
	binary.LittleEndian.PutUint64(part[at:], indexSum(id, off, part[:at]))
}

// openPart checks the frame that lies at off in the index id, and reads the message in it (I8). It keeps
// nothing of part.
func openPart(id base.ObjectID, off int64, part []byte, m proto.Message) error {
	name := id.Name()
	if len(part) < minPartBytes {
		return base.Corruptf(name, off, "%d bytes, a frame has at least %d", len(part), minPartBytes)
	}
	checked, err := checkIndexSum(id, off, part)
	if err != nil {
		return err
	}
	if r := part[offPartReserved:offPartLength]; r[0]|r[1]|r[2] != 0 {
		return base.Corruptf(name, off+offPartReserved, "reserved bytes are not zero")
	}
	message, err := unpack(part[0], binary.LittleEndian.Uint32(part[offPartLength:]), checked[partHeaderBytes:])
	if err != nil {
		return base.Corruptf(name, off, "%v", err)
	}
	if err := proto.Unmarshal(message, m); err != nil {
		return base.Corruptf(name, off+partHeaderBytes, "%v", err)
	}
	return nil
}

// indexVersion is the format version of indexes that this binary reads and writes.
const indexVersion = 1

const indexMagic = "ANLS-IDX"

// The footer of an index, its last bytes. Integers are little-endian.
const (
	offFooterVersion    = 8  // u32
	offFooterShards     = 12 // u32
	offFooterShardBytes = 16 // u32
	offFooterSegments   = 20 // u32
	offFooterTOC        = 24 // u64
	offFooterTOCSize    = 32 // u32
	offFooterReserved   = 36 // u32, zero
	offFooterKeys       = 40 // u64
	offFooterSum        = 48 // u64, of all before, seeded with ULID and the footer's offset
	footerBytes         = offFooterSum + sumBytes

	// maxTOCBytes is the largest table of contents with its frame: with the footer it lies in the tail.
	maxTOCBytes = 56 << 10
)

// indexFooter says where everything else in an index lies.
type indexFooter struct {
	shape     Shape
	tocOffset uint64
	tocSize   uint32
	keys      uint64
}

// seal returns the footer as it lies at off.
func (f indexFooter) seal(id base.ObjectID, off int64) []byte {
	b := make([]byte, footerBytes)
	copy(b, indexMagic)
	binary.LittleEndian.PutUint32(b[offFooterVersion:], indexVersion)
	binary.LittleEndian.PutUint32(b[offFooterShards:], f.shape.Shards)
	binary.LittleEndian.PutUint32(b[offFooterShardBytes:], f.shape.ShardBytes)
	binary.LittleEndian.PutUint32(b[offFooterSegments:], uint32(f.shape.Segments))
	binary.LittleEndian.PutUint64(b[offFooterTOC:], f.tocOffset)
	binary.LittleEndian.PutUint32(b[offFooterTOCSize:], f.tocSize)
	binary.LittleEndian.PutUint64(b[offFooterKeys:], f.keys)
	closePart(id, off, b)
	return b
}

// openFooter reads the footer that lies at off. Errors: base.ErrCorrupt, ErrVersion.
func openFooter(id base.ObjectID, off int64, b []byte) (f indexFooter, err error) {
	name := id.Name()
	if string(b[:offFooterVersion]) != indexMagic {
		return f, base.Corruptf(name, off, "magic %q, want %q", b[:offFooterVersion], indexMagic)
	}
	if _, err := checkIndexSum(id, off, b); err != nil {
		return f, err
	}
	// Size, magic, version and checksum keep their places in every version, so that an intact newer
	// object can be told from a damaged one.
	if v := binary.LittleEndian.Uint32(b[offFooterVersion:]); v != indexVersion {
		return f, fmt.Errorf("read %s: index has format version %d, this binary knows %d: %w", name, v, indexVersion, ErrVersion)
	}
	segments := binary.LittleEndian.Uint32(b[offFooterSegments:])
	f = indexFooter{
		shape: Shape{
			Shards:     binary.LittleEndian.Uint32(b[offFooterShards:]),
			ShardBytes: binary.LittleEndian.Uint32(b[offFooterShardBytes:]),
			Segments:   int(segments),
		},
		tocOffset: binary.LittleEndian.Uint64(b[offFooterTOC:]),
		tocSize:   binary.LittleEndian.Uint32(b[offFooterTOCSize:]),
		keys:      binary.LittleEndian.Uint64(b[offFooterKeys:]),
	}
	reserved := binary.LittleEndian.Uint32(b[offFooterReserved:])
	if err := f.shape.check(); err != nil {
		return f, base.Corruptf(name, off+offFooterShards, "%v", err)
	}
	switch {
	case segments < 1 || segments > MaxGroupSegments:
		return f, base.Corruptf(name, off+offFooterSegments, "%d segments", segments)
	case reserved != 0:
		return f, base.Corruptf(name, off+offFooterReserved, "reserved bytes are not zero")
	case f.tocSize < minPartBytes || f.tocSize > maxTOCBytes || f.tocOffset != uint64(off)-uint64(f.tocSize):
		return f, base.Corruptf(name, off+offFooterTOC, "table of contents of %d bytes at %d, the footer at %d", f.tocSize, f.tocOffset, off)
	case f.shape.bytes() > f.tocOffset:
		return f, base.Corruptf(name, off+offFooterShards, "%d bytes of key shards, the table of contents at %d", f.shape.bytes(), f.tocOffset)
	}
	if err := f.shape.checkKeys(f.keys, f.shape.Segments); err != nil {
		return f, base.Corruptf(name, off+offFooterKeys, "%v", err)
	}
	return f, nil
}
