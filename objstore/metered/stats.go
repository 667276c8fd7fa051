package metered

import (
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// bounds are the upper bounds of the buckets of call times: from a page in memory to a
// request that a store repeats until it gives up.
var bounds = [...]time.Duration{
	500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute,
}

// NumBuckets is the number of buckets of call times: one for each of Bounds, and one
// for what is above.
const NumBuckets = len(bounds) + 1

// Bounds returns the upper bounds of the buckets but for the last, which has none.
// A time equal to a bound is within it.
func Bounds() [NumBuckets - 1]time.Duration { return bounds }

// Stats are the counts of a Store since New. Calls that end while they are read
// may be in some and not yet in others.
type Stats struct {
	// Ops is by Op.
	Ops [NumOps]OpStats
	// DeletedNames are the names of Delete calls that are certainly gone: all of a call
	// that succeeded, and those of one that failed in part that are not listed as failed. Names
	// that did not exist count too.
	DeletedNames uint64
	// Sent are the requests that the store sent, if it counts them (objstore.Sender),
	// since it was opened; else nil.
	Sent []objstore.SentRequests
}

// OpStats are the counts of one operation.
type OpStats struct {
	// Results counts the calls by Result.
	Results [NumResults]uint64
	// Buckets counts the calls, whatever their result, by the time that they took: see
	// Bounds. Each call is in one bucket.
	Buckets [NumBuckets]uint64
	// Took is the time of all calls together.
	Took time.Duration
	// Bytes are those of the bodies of calls that succeeded: written by Put, read by
	// Get; 0 for all others.
	Bytes uint64
	// AnswerAge is the time since the store answered a call as it should, if not always with what was asked for: since
	// New if it never has.
	AnswerAge time.Duration
}

// Calls returns the number of calls.
func (o OpStats) Calls() (n uint64) {
	for _, of := range o.Results {
		n += of
	}
	return n
}

// Stats returns the counts. It costs no I/O.
func (s *Store) Stats() Stats {
	var st Stats
	for i := range s.ops {
		s.ops[i].read(&st.Ops[i])
		st.Ops[i].AnswerAge = max(0, s.elapsed()-time.Duration(s.ops[i].answered.Load()))
	}
	st.DeletedNames = s.deleted.Load()
	if s.sender != nil {
		st.Sent = s.sender.Sent()
	}
	return st
}

// meters are what a Store counts with.
type meters struct {
	ops     [NumOps]opMeters
	deleted atomic.Uint64
}

type opMeters struct {
	results [NumResults]atomic.Uint64
	buckets [NumBuckets]atomic.Uint64
	took    atomic.Int64 // nanoseconds
	bytes   atomic.Uint64

	answered atomic.Int64 // by the Store's clock, in nanoseconds: when the last answer came
}

// observe counts one call, which ended now.
func (m *opMeters) observe(r Result, now, took time.Duration, bytes int) {
	if r.answer() {
		m.answered.Store(int64(now)) // of two at the same time either is right
	}
	took = max(0, took)
	m.results[r].Add(1)
	m.buckets[bucketOf(took)].Add(1)
	m.took.Add(int64(took))
	if bytes > 0 {
		m.bytes.Add(uint64(bytes))
	}
}

func (m *opMeters) read(o *OpStats) {
	for i := range m.results {
		o.Results[i] = m.results[i].Load()
	}
	for i := range m.buckets {
		o.Buckets[i] = m.buckets[i].Load()
	}
	o.Took = time.Duration(m.took.Load())
	o.Bytes = m.bytes.Load()
}

// bucketOf returns the first bucket whose bound is not below the time.
func bucketOf(took time.Duration) int {
	for i, bound := range bounds[:] {
		if took <= bound {
			return i
		}
	}
	return len(bounds)
}
