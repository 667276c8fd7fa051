package engine

import (
	"slices"

	"github.com/annalsdb/annals/manifest"
)

// hashSet is a fingerprint of a set of key hashes, whatever the order in which they come. Two sets
// that differ have the same one with a chance of about 2^-64 for each way to differ: the hashes
// are mixed, so that their sum and their parity say different things.
type hashSet struct{ count, sum, parity uint64 }

func (s *hashSet) add(mixed uint64) {
	s.count, s.sum, s.parity = s.count+1, s.sum+mixed, s.parity^mixed
}

// mix is the mixer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014).
func mix(h manifest.KeyHash) uint64 {
	x := uint64(h) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// maxHashes bounds the key hashes in memory (I9): 8 bytes each. A segment with more keys is read in
// several passes; an index that says which keys a segment has names at most about 16 million.
const maxHashes = 8 << 20

// hashPass collects the distinct hashes of a set that lie in a range, which becomes smaller when
// they are too many. The next pass is about the hashes above it.
type hashPass struct {
	low, high manifest.KeyHash // inclusive
	limit     int              // of hashes, at least 2
	hashes    []manifest.KeyHash
}

// allHashes is the highest key hash.
const allHashes = manifest.KeyHash(1)<<40 - 1

// newHashPass returns the first pass.
func newHashPass(limit int) *hashPass { return &hashPass{high: allHashes, limit: limit} }

// add takes a hash, in any order, more than once if it comes more than once.
func (p *hashPass) add(h manifest.KeyHash) {
	if h < p.low || h > p.high {
		return
	}
	if len(p.hashes) == p.limit {
		if p.sort(); len(p.hashes) > p.limit/2 {
			p.high = p.hashes[p.limit/2-1]
			p.hashes = p.hashes[:p.limit/2]
		}
		if h > p.high {
			return
		}
	}
	p.hashes = append(p.hashes, h)
}

func (p *hashPass) sort() {
	slices.Sort(p.hashes)
	p.hashes = slices.Compact(p.hashes)
}

// end returns the distinct hashes of the range, once all were added.
func (p *hashPass) end() []manifest.KeyHash {
	p.sort()
	return p.hashes
}

// next returns the pass after this one, or nil if this was the last.
func (p *hashPass) next() *hashPass {
	if p.high == allHashes {
		return nil
	}
	return &hashPass{low: p.high + 1, high: allHashes, limit: p.limit, hashes: p.hashes[:0]}
}
