package fuzz

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// dice are numbers that follow from what they were made of, and from nothing else.
type dice struct{ state uint64 }

// newDice makes dice of a seed and whatever tells this use of it from others.
func newDice(seed uint64, parts ...uint64) *dice {
	var b [8]byte
	h := xxhash.NewWithSeed(seed)
	for _, p := range parts {
		binary.LittleEndian.PutUint64(b[:], p)
		_, _ = h.Write(b[:])
	}
	return &dice{h.Sum64()}
}

// next is splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
func (d *dice) next() uint64 {
	d.state += 0x9E3779B97F4A7C15
	z := d.state
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// below returns a number from 0 to n-1; n must be above 0.
func (d *dice) below(n int) int { return int(d.next() % uint64(n)) }

// early returns a number from 0 to n-1, more often a low one.
func (d *dice) early(n int) int { return min(d.below(n), d.below(n)) }

// permille reports true so often in a thousand times.
func (d *dice) permille(n int) bool { return d.below(1000) < n }

// weighted returns the index of one of the weights, each as often as it says; -1 if all are 0.
func (d *dice) weighted(weights []int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	if sum == 0 {
		return -1
	}
	at := d.below(sum)
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	panic("not reached")
}

// oneOf returns one of the values.
func oneOf[T any](d *dice, values ...T) T { return values[d.below(len(values))] }

// fill makes random bytes.
func (d *dice) fill(p []byte) {
	for len(p) > 0 {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], d.next())
		p = p[copy(p, b[:]):]
	}
}
