package process

import (
	"math/rand/v2"
)

// options are the flags of the programs of one run.
type options struct {
	writer, both, compactor []string
	compactorBeside         bool // one runs in a process of its own
	replicas                int
}

// pick returns one of several values.
func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// chooseOptions draws the options of a run: small ones, so that all that happens in days happens in seconds.
func chooseOptions(rng *rand.Rand, cache string, s3 bool) options {
	segment := pick(rng, "64KiB", "256KiB", "1MiB")
	o := options{
		writer: []string{
			"--flush-interval", pick(rng, "1ms", "5ms", "50ms"),
			"--wal-object-bytes", pick(rng, "1KiB", "32KiB", "8MiB"),
			"--memtable-bytes", pick(rng, "16KiB", "64KiB", "256KiB"),
			"--segment-bytes", segment,
			"--segment-min-bytes", pick(rng, "1KiB", "32KiB"),
			"--segment-interval", pick(rng, "500ms", "2s"),
			"--gc-interval", "500ms",
			"--gc-grace", "6m",
			"--append-timeout", "3s",
			"--shutdown-timeout", "20s",
			"--max-value-bytes", "64KiB",
		},
		both:            []string{"--cache-bytes", pick(rng, "1B", "64KiB", "64MiB")},
		compactor:       []string{"--segment-bytes", segment},
		compactorBeside: rng.IntN(4) > 0,
		replicas:        1 + rng.IntN(2),
	}
	if s3 && rng.IntN(2) == 0 {
		o.writer = append(o.writer, "--disk-cache", cache)
	}
	return o
}
