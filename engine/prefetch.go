package engine

import (
	"context"
	"sync"
	"sync/atomic"
)

// A read of a cold log waits for the store, not for the processor, so that what it will
// need next is asked for while it still waits. Bounds (I9):
//
//   - one read has at most maxWindow requests under way beside its own; how many, it
//     learns: more while it meets what is not in memory, fewer while it does not;
//   - all reads together have at most maxAhead things fetched or being fetched ahead. Who gets no
//     share of them goes on one by one: that costs time, never the result;
//   - of those, what long scans fetch in reads that count for several leaves sharedAhead to the others.
const (
	// maxWindow is how many steps ahead one read looks.
	maxWindow = 16
	// maxAhead bounds the memory of what was fetched ahead: each of them holds maxPrefetch of a
	// table's records and 256 KiB of its metadata at most. One scan has maxWindow of them and
	// sst.MaxAhead at most, in the table at which it stands and the next one together.
	maxAhead = 128
	// sharedAhead is the part of maxAhead that is not for large reads.
	sharedAhead = maxAhead / 4
	// maxPrefetch is the most that is fetched of the records of a table to which a scan has not
	// come. It is above what one read of a scan takes, but for very large records.
	maxPrefetch = 5 << 18
)

// slots counts what was fetched ahead. The zero value is ready; safe for concurrent use.
type slots struct{ taken atomic.Int64 }

// slotsOf returns for how many things a read ahead of n stored bytes counts.
func slotsOf(n int64) int { return int((n + maxPrefetch - 1) / maxPrefetch) }

// take takes n slots, or none.
func (s *slots) take(n int) bool {
	most := int64(maxAhead)
	if n > 1 {
		most -= sharedAhead
	}
	if s.taken.Add(int64(n)) <= most {
		return true
	}
	s.taken.Add(int64(-n))
	return false
}

func (s *slots) give(n int) { s.taken.Add(int64(-n)) }

// parallel makes calls of one read at the same time. It belongs to one goroutine.
type parallel struct {
	c    *core
	cold bool // a call met what was not in memory
}

// each calls f for 0 to n-1, in no order, and returns its first error. f counts in reads what was
// not in memory: from the first such call on, others are made meanwhile, in up to maxWindow goroutines,
// whose end each waits for. After an error f is not called again, and the context of calls under
// way ends.
func (p *parallel) each(ctx context.Context, n int, f func(ctx context.Context, i int, reads *atomic.Uint32) error) error {
	var reads atomic.Uint32
	i := 0
	for ; i < n && !p.cold; i++ {
		if err := f(ctx, i, &reads); err != nil {
			return err
		}
		p.cold = reads.Load() > 0
	}
	if i == n {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	next.Store(int64(i))
	work := func() {
		for ctx.Err() == nil {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			if err := f(ctx, i, &reads); err != nil {
				cancel(err) // the first one counts
			}
		}
	}
	var helpers sync.WaitGroup
	for range min(n-i-1, maxWindow) {
		if !p.c.tables.ahead.take(1) {
			break
		}
		helpers.Add(1)
		p.c.env.Go("read in parallel", func() {
			defer helpers.Done()
			defer p.c.tables.ahead.give(1)
			work()
		})
	}
	work()
	helpers.Wait()
	return context.Cause(ctx)
}
