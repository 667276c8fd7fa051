package engine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/manifest"
)

// A pass over hashes gives each of them once, in order, whatever the room.
func TestHashPasses(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, limit := range []int{2, 3, 16, 1000, 5000} {
		for _, spread := range []uint64{1, 100, 1 << 20, 1 << 40} {
			var all []manifest.KeyHash
			for range 2000 {
				all = append(all, manifest.KeyHash(1<<40-1-rnd.Uint64N(spread)))
			}
			all = append(all, 0, 1<<40-1)
			want := slices.Compact(slices.Sorted(slices.Values(all)))
			var got []manifest.KeyHash
			passes := 0
			first := newHashPass(limit)
			for p := first; p != nil; p = p.next() {
				for _, h := range all {
					p.add(h)
				}
				got = append(got, p.end()...)
				passes++
			}
			require.Equal(t, want, got, "limit %d, spread %d", limit, spread)
			require.LessOrEqual(t, passes, len(want)/max(1, limit/2)+1)
		}
	}
}

// A fingerprint does not depend on the order, and tells sets apart that differ in one hash, or in
// two that have the same sum or parity.
func TestHashSet(t *testing.T) {
	of := func(hashes ...manifest.KeyHash) (s hashSet) {
		for _, h := range hashes {
			s.add(mix(h))
		}
		return s
	}
	require.Equal(t, of(1, 2, 3), of(3, 1, 2))
	require.NotEqual(t, of(1, 2, 3), of(1, 2))
	require.NotEqual(t, of(1, 2, 3), of(1, 2, 4))
	require.NotEqual(t, of(1, 4), of(2, 3), "the same sum")
	require.NotEqual(t, of(1, 2, 4), of(7, 3, 3), "the same parity")
	require.Equal(t, hashSet{}, of())
}

func BenchmarkHashSet(b *testing.B) {
	var s hashSet
	for i := 0; b.Loop(); i++ {
		s.add(mix(manifest.KeyHash(i)))
	}
	require.NotZero(b, s)
}

func BenchmarkHashPass(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := newHashPass(1 << 16)
	for b.Loop() {
		p.add(manifest.KeyHash(rnd.Uint64N(1 << 40)))
	}
}
