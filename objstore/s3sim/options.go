package s3sim

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// MaxLatency bounds what a request without a body takes, whatever is drawn: a client of S3
	// would have given it up. P99 is at most this.
	MaxLatency = time.Minute
	// MaxConcurrency bounds Options.PartConcurrency.
	MaxConcurrency = 64
	// maxParts is S3's limit for one upload.
	maxParts = 10_000

	// minBandwidth keeps the time that the largest body takes far below what a time.Duration holds.
	minBandwidth = 1000
)

// Latency is a log-normal distribution: half of all requests take at most P50, 99 of 100
// at most P99. Equal values make every request take the same time.
type Latency struct {
	P50, P99 time.Duration
}

// Options say how the store is to behave. Default returns a complete set.
type Options struct {
	// Put is the latency of a request that writes, without the transfer of its body.
	Put Latency
	// Get is that of a request for an object until the first byte of the answer. It holds too when
	// there is no body: not found, not modified, out of range.
	Get Latency
	// Head is that of a request for attributes.
	Head Latency
	// List is that of a page of a listing, whatever its length, and of asking for the time,
	// which package s3 does by a listing.
	List Latency
	// Delete is that of a batch of names, whatever its length.
	Delete Latency

	// Bandwidth is how many bytes of a body one request transfers in a second. It adds to the
	// latency of Put and Get. Requests that are under way together do not share it. At least 1,000.
	Bandwidth int64
	// PartSize is the size above which a body is uploaded in parts of that size, unless the
	// caller forbids it, and PartConcurrency how many of them are under way together: as
	// package s3 does it.
	PartSize        int64
	PartConcurrency int

	// Seed decides all latencies: the n-th request of a kind takes the same time in every
	// store of one seed. Which call is the n-th, callers at the same time decide.
	Seed uint64

	// Sleep waits for d or until ctx ends, whose error it then returns. It may be called from
	// any goroutine. Default: real time.
	Sleep func(ctx context.Context, d time.Duration) error
	// Elapsed is the clock of Sleep: it never goes back, and may be called from any
	// goroutine. Default: the process's monotonic clock.
	Elapsed func() time.Duration
}

// Default returns what a client in the bucket's region sees of S3 Standard with small objects.
//
//   - Put and Get: 30 and 15 ms for half of the requests, 120 and 90 ms for 99 of 100. Public
//     measurements of small objects are of this size; AWS's own guide to the performance of S3 speaks
//     of 100 to 200 ms, which is the tail.
//   - Head: no body, else what a Get does.
//   - List: 40 and 200 ms. The authors of Delta Lake (VLDB 2020) report tens to hundreds of
//     milliseconds for a page of 1,000. Prefixes with many deleted versions take seconds; annals needs no versions.
//   - Delete: as a Put. We know no public measurement of batches.
//   - Bandwidth: 90 MB/s, since the same guide advises one request in parallel for each 85 to
//     90 MB/s that are wanted.
//   - PartSize and PartConcurrency: the defaults of package s3.
func Default() Options {
	const ms = time.Millisecond
	return Options{
		Put:             Latency{30 * ms, 120 * ms},
		Get:             Latency{15 * ms, 90 * ms},
		Head:            Latency{15 * ms, 90 * ms},
		List:            Latency{40 * ms, 200 * ms},
		Delete:          Latency{30 * ms, 120 * ms},
		Bandwidth:       90_000_000,
		PartSize:        16 << 20,
		PartConcurrency: 4,
		Seed:            1,
	}
}

// Validate reports all faults of the options at once.
func (o Options) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for k, l := range o.latencies() {
		fault(l.P50 <= 0, "%v latency: p50 is %v, want more than 0", kind(k), l.P50)
		fault(l.P99 < l.P50, "%v latency: p99 (%v) is below p50 (%v)", kind(k), l.P99, l.P50)
		fault(l.P99 > MaxLatency, "%v latency: p99 is %v, the limit is %v", kind(k), l.P99, MaxLatency)
	}
	fault(o.Bandwidth < minBandwidth, "bandwidth: %d bytes a second, want at least %d", o.Bandwidth, minBandwidth)
	fault(o.PartSize <= 0, "part size: %d bytes, want more than 0", o.PartSize)
	fault(o.PartConcurrency < 1 || o.PartConcurrency > MaxConcurrency,
		"part concurrency: %d is not in [1, %d]", o.PartConcurrency, MaxConcurrency)
	fault((o.Sleep == nil) != (o.Elapsed == nil), "sleep and elapsed: want both or neither, they are one clock")
	return errors.Join(errs...)
}

// kind is what a latency is drawn for.
type kind uint8

const (
	kindPut kind = iota
	kindGet
	kindHead
	kindList
	kindDelete

	numKinds = iota
)

func (k kind) String() string { return [numKinds]string{"put", "get", "head", "list", "delete"}[k] }

func (o Options) latencies() [numKinds]Latency {
	return [numKinds]Latency{kindPut: o.Put, kindGet: o.Get, kindHead: o.Head, kindList: o.List, kindDelete: o.Delete}
}
