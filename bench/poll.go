package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// PollOptions say who polls, and what is appended meanwhile.
type PollOptions struct {
	// BatchOptions: the keys, of which each has one consumer, and what is appended.
	BatchOptions
	Preload   uint64  // records that are appended before anybody polls
	Rate      float64 // key and value bytes a second that are appended meanwhile; 0: none
	Arrivals  Arrivals
	Appenders int // each has one batch under way, and the keys of its own residue
	Ack       Ack

	PollsPerSecond float64 // of all consumers together
	Cadences       Cadences
	Fastest        time.Duration // the fastest cadence
	Offline        float64       // the share of consumers that is offline at any time
	OfflineFor     time.Duration // how long each of them is
	// Behind, when not negative, replaces cursors and cadences: each poll reads a key drawn at random
	// from where the log ended that long ago.
	Behind time.Duration

	Limit   int // records of a poll
	Pollers int // polls under way at the same time
}

// Poll is the workload of many consumers, one for each key, that poll while others append.
type Poll struct {
	o PollOptions

	load    *numberedLoad
	marks   *tide
	readers *readers
	began   time.Time // of the marks
	buckets [len(ages)]pollBucket
	catchUp *Recorder
}

// NewPoll returns the workload.
func NewPoll(o PollOptions) *Poll { return &Poll{o: o} }

// Name implements Workload.
func (p *Poll) Name() string { return "poll" }

// maxConsumers bounds a population: about 40 bytes are kept of each.
const maxConsumers = 100_000_000

// Faults implements Workload.
func (p *Poll) Faults() []string {
	o := &p.o
	faults := o.BatchOptions.Faults()
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, faultf(format, args...))
		}
	}
	fault(o.Keys > maxConsumers, "--keys is %d; there may be %d consumers", o.Keys, maxConsumers)
	fault(o.Size < numberBytes, "--value-size is %d; a value carries a number of %d bytes", o.Size, numberBytes)
	fault(o.Rate < 0, "--rate is %v; it must be 0 (nothing is appended) or above", o.Rate)
	fault(o.Appenders < 1 || o.Appenders > MaxWorkers, "--appenders is %d; it must be from 1 to %d", o.Appenders, MaxWorkers)
	fault(o.Appenders > 0 && o.Keys < uint64(o.Appenders), "--keys is %d; each of %d appenders needs one: lower --appenders", o.Keys, o.Appenders)
	fault(o.Limit < 1, "--limit is %d; it must be at least 1", o.Limit)
	fault(o.Pollers < 1 || o.Pollers > MaxWorkers, "--pollers is %d; it must be from 1 to %d", o.Pollers, MaxWorkers)
	if o.Behind < 0 {
		c := o.cadence()
		return append(faults, c.faults()...)
	}
	fault(o.PollsPerSecond <= 0, "--polls-per-second is %v; it must be above 0", o.PollsPerSecond)
	return faults
}

func (o *PollOptions) cadence() cadence {
	return cadence{int(min(o.Keys, maxConsumers)), o.PollsPerSecond, o.Fastest, o.Cadences, o.Offline, o.OfflineFor}
}

// Streams of random numbers of this workload.
const (
	streamPollValues = iota
	streamPollConsumers
	streamPollArrivals
	streamPollAppenders // and one more for each appender
)

// Run implements Workload.
func (p *Poll) Run(ctx context.Context, r *Run) error {
	polls := r.Recorder("poll")
	p.catchUp = r.Recorder("catch_up")
	appends := r.Recorder("append")
	for i := range p.buckets {
		p.buckets[i].recorder = r.Recorder("poll_" + ages[i].name)
	}
	p.began = time.Now()
	var err error
	if p.load, err = newNumberedLoad(ctx, r, p.o); err != nil {
		return err
	}
	p.marks = newTide(p.load.start)
	p.load.appended = func(end uint64) { p.marks.saw(time.Since(p.began), end) }
	if err := p.load.preload(ctx, r); err != nil {
		return err
	}
	p.readers = newReaders(p.load, p.load.end.Load())
	turns := p.turns(r)

	window := r.Begin(ctx)
	var appending sync.WaitGroup
	if p.o.Rate > 0 {
		for a := range p.load.parts {
			appending.Go(func() { p.load.run(window, r, a, appends) })
		}
	}
	load := Load{Schedule: NewScheduleOf(p.o.PollsPerSecond, turns.next), Workers: p.o.Pollers, Recorder: polls}
	pace := r.Loop(window, load, func(ctx context.Context, o Op) (Done, error) {
		return p.poll(ctx, r, o, turns.take(o.N))
	})
	appending.Wait()
	r.End()
	if ctx.Err() == nil {
		p.verifyEnd(ctx, r)
	}
	r.LoadResults(load, pace, "poll")
	p.report(r, polls, appends, turns)
	return nil
}

// poll is one poll of a consumer: a page from its cursor, and further ones at once as long as they are full.
func (p *Poll) poll(ctx context.Context, r *Run, o Op, consumer uint32) (Done, error) {
	if p.o.Behind >= 0 {
		from := p.marks.endAt(o.Due.Sub(p.began) - p.o.Behind)
		got, err := p.page(ctx, r, o.Due, consumer, from, true)
		if err == nil {
			p.readers.checkAlone(r, consumer, from, got.Records)
		}
		return doneOf(got), err
	}
	defer p.readers.claim(consumer)()
	first, err := p.page(ctx, r, o.Due, consumer, p.readers.cursors[consumer], true)
	if err != nil {
		return Done{}, err
	}
	p.readers.check(r, consumer, first)
	for got := first; full(got) && ctx.Err() == nil; {
		began := time.Now()
		if got, err = p.page(ctx, r, began, consumer, p.readers.cursors[consumer], false); err != nil {
			p.catchUp.Fail(time.Now(), err)
			break // it goes on from there at its next poll
		}
		p.catchUp.Observe(began, time.Now(), len(got.Records), doneOf(got).Bytes)
		p.readers.check(r, consumer, got)
	}
	return doneOf(first), nil
}

// full reports whether a page ended because of its limit: the next one may have more.
func full(p Page) bool {
	n := len(p.Records)
	return n > 0 && p.Next == p.Records[n-1].Seq+1
}

func doneOf(p Page) Done {
	d := Done{Records: len(p.Records)}
	for i := range p.Records {
		d.Bytes += int64(len(p.Records[i].Value))
	}
	return d
}

// page reads one page, and counts it by how far its cursor was behind; its latency, if it is the first of a poll.
func (p *Poll) page(ctx context.Context, r *Run, due time.Time, consumer uint32, from uint64, first bool) (Page, error) {
	bucket := &p.buckets[bucketOf(p.marks.age(from, due.Sub(p.began)))]
	ctx, asked := r.attribute(ctx)
	got, err := r.Target.Scan(ctx, p.load.key(consumer), ScanOptions{From: from, Limit: p.o.Limit})
	end := time.Now()
	if err != nil {
		return got, fmt.Errorf("poll key %d from %d: %w", consumer, from, err)
	}
	p.marks.saw(end.Sub(p.began), got.Next)
	if r.within(due) {
		bucket.costs.count(asked, len(got.Records))
	}
	if first {
		d := doneOf(got)
		bucket.recorder.Observe(due, end, d.Records, d.Bytes)
	}
	return got, nil
}

// verifyTimeout bounds the last look at what consumers have not read yet, and maxVerified how many of them.
const (
	verifyTimeout = 2 * time.Minute
	maxVerified   = 2000
)

// verifyEnd reads what some consumers have not read yet: all that was appended must be there.
func (p *Poll) verifyEnd(ctx context.Context, r *Run) {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	verified, err := p.verifySome(ctx, r)
	if err != nil && !errors.Is(err, errUnknownEnd) {
		r.Violation("the last records could not be read: %v", err)
	}
	r.Result("verified_consumers", "consumers that then read to the end", verified, Plain)
}

// errUnknownEnd: an append failed, so that nobody knows what must be there.
var errUnknownEnd = errors.New("the outcome of an append is unknown")

func (p *Poll) verifySome(ctx context.Context, r *Run) (verified int, err error) {
	if p.load.unknown.Load() {
		return 0, errUnknownEnd
	}
	if err := p.load.settle(ctx, r); err != nil {
		return 0, err
	}
	n := len(p.readers.cursors)
	for i := range min(n, maxVerified) {
		consumer := uint32(i * n / min(n, maxVerified)) // spread over all
		for more := true; more; {
			got, err := r.Target.Scan(ctx, p.load.key(consumer), ScanOptions{From: p.readers.cursors[consumer], Limit: p.o.Limit})
			if err != nil {
				return verified, err
			}
			p.readers.check(r, consumer, got)
			more = full(got)
		}
		p.readers.checkEnd(r, consumer)
		verified++
	}
	return verified, nil
}
