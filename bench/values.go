package bench

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/annalsdb/annals/engine"
)

// Sizes says how the sizes of values are distributed around their mean.
type Sizes int

const (
	// FixedSizes: all are the mean.
	FixedSizes Sizes = iota
	// UniformSizes: from 1 to twice the mean.
	UniformSizes
	// LognormalSizes: many small and a few large ones, at most maxOfMean times the mean, and what a log takes by default.
	LognormalSizes
)

// Of LognormalSizes: the standard deviation of the logarithm (p99 is ten times the median), and what the
// largest may be.
const (
	lognormalSigma = 1.0
	maxOfMean      = 64
)

// ValueOptions say what values are like.
type ValueOptions struct {
	Size     int // the mean, in bytes
	Sizes    Sizes
	Compress float64 // how many times smaller a good codec makes them; 1: not at all
}

// MaxValueSize bounds the mean size of values.
const MaxValueSize = 1 << 20

// maxCompress bounds ValueOptions.Compress.
const maxCompress = 100

// Faults returns what is wrong with the options.
func (o ValueOptions) Faults() (faults []string) {
	if o.Size < 1 || o.Size > MaxValueSize {
		faults = append(faults, fmt.Sprintf("--value-size is %d; it must be from 1 to %d", o.Size, MaxValueSize))
	}
	if !(o.Compress >= 1 && o.Compress <= maxCompress) {
		faults = append(faults, fmt.Sprintf("--compress is %v; it must be from 1 to %d", o.Compress, maxCompress))
	}
	return faults
}

// Values makes values from bytes that were made once, so that making them costs nothing beside storing them. All
// methods may be called from any goroutine.
type Values struct {
	o     ValueOptions
	block int    // of the tape: random bytes, then zeros
	tape  []byte // blocks
}

const (
	// minTape is large enough that values in one block of a table are rarely parts of one another.
	minTape = 8 << 20
	// maxBlock is how far apart what is random and what compresses are in a value.
	maxBlock = 1 << 10
)

// NewValues makes the bytes, from the random numbers.
func NewValues(o ValueOptions, rnd *rand.Rand) *Values {
	v := &Values{o: o, block: min(o.Size, maxBlock)}
	blocks := max(minTape, 2*v.MaxSize())/v.block + 1
	v.tape = make([]byte, blocks*v.block)
	random := int(math.Round(float64(v.block) / o.Compress))
	for at := 0; at < len(v.tape); at += v.block {
		fill(v.tape[at:at+random], rnd)
	}
	return v
}

// fill puts random bytes into b.
func fill(b []byte, rnd *rand.Rand) {
	for len(b) > 0 {
		word := rnd.Uint64()
		for i := 0; i < 8 && len(b) > 0; i++ {
			b[0], b, word = byte(word), b[1:], word>>8
		}
	}
}

// MaxSize returns the largest size that Size can return.
func (v *Values) MaxSize() int {
	switch v.o.Sizes {
	case UniformSizes:
		return 2*v.o.Size - 1
	case LognormalSizes:
		return min(maxOfMean*v.o.Size, engine.DefaultMaxValueBytes)
	default:
		return v.o.Size
	}
}

// Size draws the size of a value.
func (v *Values) Size(rnd *rand.Rand) int {
	switch v.o.Sizes {
	case UniformSizes:
		return 1 + rnd.IntN(2*v.o.Size-1)
	case LognormalSizes:
		// The mean of exp(N(mu, sigma)) is exp(mu + sigma^2/2).
		size := float64(v.o.Size) * math.Exp(lognormalSigma*rnd.NormFloat64()-lognormalSigma*lognormalSigma/2)
		return int(min(max(1, math.Round(size)), float64(v.MaxSize())))
	default:
		return v.o.Size
	}
}

// Bytes draws a value of a size up to MaxSize. It is shared: it must not be changed.
func (v *Values) Bytes(rnd *rand.Rand, size int) []byte {
	at := v.block * rnd.IntN((len(v.tape)-size)/v.block+1)
	return v.tape[at : at+size : at+size]
}

// Next draws a value. It is shared: it must not be changed.
func (v *Values) Next(rnd *rand.Rand) []byte { return v.Bytes(rnd, v.Size(rnd)) }
