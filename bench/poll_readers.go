package bench

import "sync"

// readers are the consumers' cursors, and what each must find next. A consumer's are used by whoever has claimed it.
type readers struct {
	load    *numberedLoad
	cursors []uint64 // by consumer: the sequence to go on with
	numbers []uint32 // by consumer: the number that the next record has

	shards [claimShards]claims
}

// claims are the consumers that are polling now.
type claims struct {
	mu   sync.Mutex
	busy map[uint32]chan struct{} // closed when it is over
	_    [64]byte                 // no two in one cache line
}

const claimShards = 64

// newReaders returns consumers that have read all that the load has appended so far.
func newReaders(l *numberedLoad, end uint64) *readers {
	r := &readers{load: l, cursors: make([]uint64, len(l.written)), numbers: make([]uint32, len(l.written))}
	copy(r.numbers, l.written)
	for i := range r.cursors {
		r.cursors[i] = end
	}
	for i := range r.shards {
		r.shards[i].busy = make(map[uint32]chan struct{})
	}
	return r
}

// claim waits until the consumer's poll before is over, and returns what ends this one: a consumer makes one poll at a
// time. How long it waits is part of the poll's latency.
func (r *readers) claim(consumer uint32) (release func()) {
	s := &r.shards[consumer%claimShards]
	done := make(chan struct{})
	for {
		s.mu.Lock()
		before, busy := s.busy[consumer]
		if !busy {
			s.busy[consumer] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, consumer)
				s.mu.Unlock()
				close(done)
			}
		}
		s.mu.Unlock()
		<-before
	}
}

// check moves the consumer's cursor behind a page, which must go on exactly where the page before ended.
func (r *readers) check(run *Run, consumer uint32, page Page) {
	next, want := r.cursors[consumer], r.numbers[consumer]
	for _, got := range page.Records {
		if got.Seq < next {
			run.Violation("key %d: sequence %d came at or after cursor %d", consumer, got.Seq, next)
		}
		next = got.Seq + 1
		number, ours := r.load.read(got.Value)
		if !ours {
			continue // another load writes the same keys
		}
		if number != want {
			run.Violation("key %d: sequence %d has record %d of the key; %d is the next one that its consumer must see", consumer, got.Seq, number, want)
		}
		want = number + 1
	}
	if page.Next < next {
		run.Violation("key %d: the next cursor is %d, but the page has sequence %d", consumer, page.Next, next-1)
	}
	r.cursors[consumer], r.numbers[consumer] = max(next, page.Next), want
}

// checkAlone checks a page of no consumer: its records must follow one another.
func (r *readers) checkAlone(run *Run, key uint32, from uint64, records []Got) {
	next, before, known := from, uint32(0), false
	for _, got := range records {
		if got.Seq < next {
			run.Violation("key %d: sequence %d came at or after cursor %d", key, got.Seq, next)
		}
		next = got.Seq + 1
		number, ours := r.load.read(got.Value)
		if !ours {
			continue
		}
		if known && number != before+1 {
			run.Violation("key %d: sequence %d has record %d of the key, behind record %d", key, got.Seq, number, before)
		}
		before, known = number, true
	}
}

// checkEnd checks that a consumer that has read to the end has seen all that was appended.
func (r *readers) checkEnd(run *Run, consumer uint32) {
	if got, want := r.numbers[consumer], r.load.written[consumer]; got != want {
		run.Violation("key %d: its consumer has seen %d of its %d records", consumer, got, want)
	}
}

// checkLast checks the newest record of a key.
func (r *readers) checkLast(run *Run, key uint32, page Page) {
	want := r.load.written[key]
	if len(page.Records) == 0 {
		if want > 0 {
			run.Violation("key %d: it has no record, but %d were appended", key, want)
		}
		return
	}
	if number, ours := r.load.read(page.Records[0].Value); ours && number+1 != want {
		run.Violation("key %d: its newest record is number %d of %d", key, number, want)
	}
}
