package base

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Seed derives the seed of a checksum from what the checked bytes should be:
// the id of their object and their place in it (invariant I8), so that a block
// that is intact but misplaced fails too. A seed never includes a path: a
// restored or copied log stays valid.
//
// The seed is xxhash64 (seed 0) over id followed by each number as eight bytes
// little-endian.
func Seed(id []byte, place ...uint64) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(id)
	var b [8]byte
	for _, p := range place {
		binary.LittleEndian.PutUint64(b[:], p)
		_, _ = d.Write(b[:])
	}
	return d.Sum64()
}

// Checksum is xxhash64 with the given seed over the parts in order.
func Checksum(seed uint64, parts ...[]byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	for _, p := range parts {
		_, _ = d.Write(p)
	}
	return d.Sum64()
}
