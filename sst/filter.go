package sst

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

const (
	filterBitsPerKey = 10
	filterProbes     = 7 // about 10 * ln 2
	maxFilterProbes  = 30
)

// filterBlock is a partition of the filter: a Bloom filter over keys. Immutable.
type filterBlock struct {
	bits   []byte
	probes int
}

// MemoryBytes implements Block.
func (f *filterBlock) MemoryBytes() int { return len(f.bits) + 64 }

func hashKey(key []byte) uint64 { return xxhash.Sum64(key) }

// appendFilter encodes a filter over the keys with these hashes behind b.
func appendFilter(b []byte, hashes []uint64) []byte {
	start := len(b)
	n := (len(hashes)*filterBitsPerKey + 7) / 8
	b = append(b, make([]byte, n)...)
	array, m := b[start:], uint64(n)*8
	for _, h := range hashes {
		d := bits.RotateLeft64(h, 32) | 1
		for range filterProbes {
			bit, _ := bits.Mul64(h, m)
			array[bit/8] |= 1 << (bit % 8)
			h += d
		}
	}
	return append(b, filterProbes)
}

// parseFilter decodes a filter. It returns what is wrong, or "".
func parseFilter(b []byte) (*filterBlock, string) {
	if len(b) < 2 {
		return nil, "is empty"
	}
	n := len(b) - 1
	f := &filterBlock{bits: b[:n:n], probes: int(b[n])}
	if f.probes < 1 || f.probes > maxFilterProbes {
		return nil, "has a wrong number of probes"
	}
	return f, ""
}

// mayContain reports false only if no key with this hash was added.
func (f *filterBlock) mayContain(h uint64) bool {
	m := uint64(len(f.bits)) * 8
	d := bits.RotateLeft64(h, 32) | 1
	for range f.probes {
		bit, _ := bits.Mul64(h, m)
		if f.bits[bit/8]&(1<<(bit%8)) == 0 {
			return false
		}
		h += d
	}
	return true
}
