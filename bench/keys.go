package bench

import (
	"fmt"
	"math/rand/v2"
)

// KeyDistribution says which keys of a population records have.
type KeyDistribution int

const (
	// UniformKeys: each is as likely as any other.
	UniformKeys KeyDistribution = iota
	// ZipfKeys: few have most of the records; key 0 the most.
	ZipfKeys
	// SequentialKeys: one after the other, and around again.
	SequentialKeys
)

// zipfExponent: the i-th key has about 1/i^zipfExponent of what the first has.
const zipfExponent = 1.1

// KeyOptions say what keys there are.
type KeyOptions struct {
	Keys         uint64 // how many
	Distribution KeyDistribution
}

// MaxKeys bounds a population: what is kept of each key must fit into memory.
const MaxKeys = 1_000_000_000

// Faults returns what is wrong with the options.
func (o KeyOptions) Faults() (faults []string) {
	if o.Keys < 1 || o.Keys > MaxKeys {
		faults = append(faults, fmt.Sprintf("--keys is %d; it must be from 1 to %d", o.Keys, uint64(MaxKeys)))
	}
	return faults
}

// KeyPrefix begins the keys of all workloads, so that one can read what another wrote.
const KeyPrefix = "key-"

// keyDigits is how many digits follow: keys sort as their numbers do.
const keyDigits = 12

// AppendKey appends the key with a number to dst.
func AppendKey(dst []byte, number uint64) []byte {
	dst = append(dst, KeyPrefix...)
	for range keyDigits {
		dst = append(dst, '0')
	}
	for i := len(dst) - 1; number > 0 && i >= len(dst)-keyDigits; i-- {
		dst[i] = '0' + byte(number%10)
		number /= 10
	}
	return dst
}

// KeySize is the length of a key.
const KeySize = len(KeyPrefix) + keyDigits

// KeyPicker draws the numbers of keys. It belongs to one goroutine.
type KeyPicker struct {
	o    KeyOptions
	rnd  *rand.Rand
	zipf *rand.Zipf
}

// NewKeyPicker returns a picker that draws from rnd, which the caller may go on using, and seed again, between two picks.
func NewKeyPicker(o KeyOptions, rnd *rand.Rand) *KeyPicker {
	p := &KeyPicker{o: o, rnd: rnd}
	if o.Distribution == ZipfKeys {
		p.zipf = rand.NewZipf(rnd, zipfExponent, 1, o.Keys-1)
	}
	return p
}

// Pick draws the number of the key of the n-th record.
func (p *KeyPicker) Pick(n uint64) uint64 {
	switch p.o.Distribution {
	case ZipfKeys:
		return p.zipf.Uint64()
	case SequentialKeys:
		return n % p.o.Keys
	default:
		return p.rnd.Uint64N(p.o.Keys)
	}
}
