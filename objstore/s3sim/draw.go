package s3sim

import (
	"math"
	"sync/atomic"
	"time"
)

// p99Deviations is how many standard deviations the 99th percentile of a normal
// distribution is above its median.
const p99Deviations = 2.3263478740408408

// dice draws the latencies of one kind of request. The n-th draw depends on the seed and n
// alone, so that drawing needs no lock.
type dice struct {
	mu, sigma float64 // of the logarithm of nanoseconds
	seed      uint64
	drawn     atomic.Uint64
}

func (d *dice) init(l Latency, seed uint64) {
	d.mu = math.Log(float64(l.P50))
	d.sigma = math.Log(float64(l.P99)/float64(l.P50)) / p99Deviations
	d.seed = seed
}

// next draws a latency.
func (d *dice) next() time.Duration {
	return d.at(d.drawn.Add(1))
}

// at returns the n-th latency.
func (d *dice) at(n uint64) time.Duration {
	deviations := normal(scramble(d.seed+n*goldenGamma) >> (64 - uniformBits))
	return time.Duration(min(math.Exp(d.mu+d.sigma*deviations), float64(MaxLatency)))
}

// uniformBits are the bits of a random number. With one more the largest would round to 1,
// where the inverse of the normal distribution is infinite.
const uniformBits = 52

// normal makes a number of the standard normal distribution of uniformBits random bits.
func normal(bits uint64) float64 {
	uniform := (float64(bits) + 0.5) / (1 << uniformBits)
	return math.Sqrt2 * math.Erfinv(2*uniform-1)
}

// goldenGamma and scramble are SplitMix64 (Steele, Lea and Flood, 2014): the scrambled
// multiples of an odd number are as good as random.
const goldenGamma = 0x9E3779B97F4A7C15

func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
