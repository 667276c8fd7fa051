package sst

import (
	"context"
	"errors"
)

// A long scan waits for the store again and again, unless what comes next is under way while it uses
// what it has. One request moves only so many bytes a second, so that several are under way, and
// the longer they are the fewer they are. Bounds (I9):
//
//   - a scan has never more fetched ahead than it has read before, or its hint asks for, so that
//     one that is left early has cost at most twice what it used;
//   - and at most MaxAhead bytes in at most maxAheadRuns reads of at most MaxRead each, beside the one
//     that it uses: what its Background grants;
//   - a read of large records, whose first and last block make it much larger than that, counts
//     with its own size.
const (
	// MaxAhead bounds the stored bytes that a scan has fetched, or is fetching, ahead.
	MaxAhead = 16 << 20
	// MaxRead is the most of them that one read fetches, apart from its first and last block.
	MaxRead = MaxAhead / 4

	maxAheadRuns = 16

	// boundedStart is how far a scan that says what it wants looks ahead at once, in reads.
	boundedStart = 4
)

// Background starts work for a scan and lends it memory. It is called by the goroutine that uses the
// iterator.
type Background interface {
	// Take lends memory for about n stored bytes, or refuses.
	Take(n int64) bool
	// Give gives back what one call of Take lent. A scan that has ended, or was left by Close, has given
	// back everything.
	Give(n int64)
	// Go runs f in another goroutine, with a context that lives as long as what f reads is
	// wanted. When it ends before the scan does, the scan ends with its error.
	Go(f func(context.Context))
}

// readAhead is what a scan has fetched, or is fetching, ahead.
type readAhead struct {
	queue []*aheadRun // in the order of the scan
	bytes int64       // for which what is in queue counts
	used  int64       // lent for the current run; 0: nothing
	read  int64       // stored bytes of the runs that were current

	before, held int64 // what Continue says
}

// aheadRun is a run that is fetched ahead.
type aheadRun struct {
	done chan struct{} // closed when err and the bytes of run are set; nil: they are, or late
	run  blockRun
	err  error
	size int64 // for which it counts
	lent int64 // by Background; 0: nothing, all is in memory, or late
	late bool  // it is too large to be fetched before its turn
}

// Continue says that the scan has returned so many bytes of values from other tables, so that it reads ahead at
// once if those are many, and that so many stored bytes are fetched ahead in another table, which count as its own.
func (it *Iter) Continue(bytes, held int64) { it.ahead.before, it.ahead.held = bytes, held }

// Ahead returns for how many stored bytes counts what is fetched ahead, or being fetched.
func (it *Iter) Ahead() int64 { return it.ahead.bytes }

// Ending reports that the last blocks of the scan were found, though not all of them may be fetched.
func (it *Iter) Ending() bool { return it.done }

// Close ends a scan that may not have come to its end. It does not wait for what its Background does.
func (it *Iter) Close() {
	it.giveBack()
	for _, next := range it.ahead.queue {
		if next.lent > 0 {
			it.r.opts.Background.Give(next.lent)
		}
	}
	it.ahead.queue, it.ahead.bytes = nil, 0
	it.err = errClosed
}

var errClosed = errors.New("sst: the scan was closed")

// LookAhead has the runs after the current one fetched, as far as it is time for that. Finding them costs a
// read only where the scan comes to another partition of the index. An error of it counts when the
// turn of its run comes.
func (it *Iter) LookAhead(ctx context.Context) {
	a, b := &it.ahead, it.r.opts.Background
	if b == nil || it.done || !it.run.cold && len(a.queue) == 0 {
		return
	}
	for !it.done && len(a.queue) < maxAheadRuns && !it.hint.metBy(it.found) {
		size := it.aheadSize()
		if size == 0 {
			return
		}
		if !b.Take(size) {
			if size = it.r.opts.ReadAhead; len(a.queue) > 0 || !b.Take(size) {
				return
			}
		}
		next := &aheadRun{}
		ok, err := it.find(ctx, &next.run, size)
		if next.err = err; !ok && err == nil {
			b.Give(size)
			return
		}
		a.queue = append(a.queue, next)
		next.settle(b, size)
		a.bytes += next.size
		if next.late {
			return
		}
		if next.lent == 0 {
			continue
		}
		next.done = make(chan struct{})
		b.Go(func(ctx context.Context) {
			defer close(next.done)
			next.err = next.run.fetch(ctx, it.r)
		})
	}
}

// settle keeps of the size that was lent before the run was found what it needs, or takes more.
func (next *aheadRun) settle(b Background, size int64) {
	next.size = next.run.size()
	switch {
	case next.err != nil || !next.run.cold:
		b.Give(size)
	case next.size <= size+size/4:
		next.size, next.lent = size, size
	default: // large records
		b.Give(size)
		if next.late = !b.Take(next.size); !next.late {
			next.lent = next.size
		}
	}
}

// aheadSize returns how much the next read ahead should fetch; 0: none yet.
func (it *Iter) aheadSize() int64 {
	a, least := &it.ahead, it.r.opts.ReadAhead
	far := a.before + a.read
	switch {
	case it.hint.bounded():
		far = max(far, boundedStart*least)
	case it.runs < 2 && far-it.run.size() < least:
		return 0 // many scans end within their first read
	}
	far = min(far, MaxAhead) - a.held
	size := max(least, min(far/4, MaxRead))
	if a.bytes+size > far && (a.held > 0 || len(a.queue) > 0) {
		return 0
	}
	return size
}

// takeAhead waits for the first run of the queue and makes it the current one.
func (it *Iter) takeAhead(ctx context.Context) error {
	next := it.ahead.queue[0]
	if next.done != nil {
		select {
		case <-next.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	it.giveBack()
	a := &it.ahead
	a.queue[0] = nil
	a.queue = a.queue[1:]
	a.bytes -= next.size
	a.used = next.lent
	it.run, it.late = next.run, next.late
	return next.err
}

// giveBack ends the use of the current run.
func (it *Iter) giveBack() {
	if used := it.ahead.used; used > 0 {
		it.ahead.used = 0
		it.r.opts.Background.Give(used)
	}
}
