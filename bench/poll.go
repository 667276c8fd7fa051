package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// PollOptions say who polls, and what is appended meanwhile.
type PollOptions struct {
	// BatchOptions: the keys, of which each has one consumer, and what is appended.
	BatchOptions
	Preload   uint64  // records that are appended before anybody polls
	Rate      float64 // key and value bytes a second that are appended meanwhile; 0: none
	Arrivals  Arrivals
	Appenders int // each has one batch under way, and keys of its own; there are at most as many as keys
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
	r.LoadResults(load, pace, "poll")
	p.report(r, polls, appends, turns)
	if ctx.Err() != nil {
		return nil
	}
	return p.verifyEnd(ctx, r)
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

const (
	// verifyTimeout bounds the last look at what consumers have not read yet: the report says how many that was.
	verifyTimeout = time.Minute
	// maxVerified bounds them, and verifiers how many are looked at at the same time.
	maxVerified = 2000
	verifiers   = 64
)

// verifyEnd reads what some consumers have not read yet: all that was appended must be there.
func (p *Poll) verifyEnd(ctx context.Context, r *Run) error {
	if p.load.unknown.Load() {
		return nil // an append failed: nobody knows what must be there
	}
	if err := p.load.settle(ctx, r); err != nil {
		return fmt.Errorf("append the last record: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	all := uint64(len(p.readers.cursors))
	some := min(all, maxVerified)
	var next, verified atomic.Uint64
	var verifying sync.WaitGroup
	for range verifiers {
		verifying.Go(func() {
			for n := next.Add(1) - 1; n < some; n = next.Add(1) - 1 {
				if err := p.verify(ctx, r, uint32(n*all/some)); ctx.Err() != nil { // spread over all
					return
				} else if err != nil {
					p.catchUp.Fail(time.Now(), err)
				}
				verified.Add(1)
			}
		})
	}
	verifying.Wait()
	r.Result("verified_consumers", "consumers read to the end", verified.Load(), Plain)
	return nil
}

// verify reads a key to its end.
func (p *Poll) verify(ctx context.Context, r *Run, consumer uint32) error {
	o := ScanOptions{From: p.readers.cursors[consumer], Limit: p.o.Limit}
	if p.o.Behind >= 0 { // nobody has read it from its beginning: its newest record must be there
		o = ScanOptions{Last: 1}
	}
	for more := true; more; {
		got, err := r.Target.Scan(ctx, p.load.key(consumer), o)
		if err != nil {
			return fmt.Errorf("read key %d to its end: %w", consumer, err)
		}
		if o.Last > 0 {
			p.readers.checkLast(r, consumer, got)
			return nil
		}
		p.readers.check(r, consumer, got)
		o.From, more = p.readers.cursors[consumer], full(got)
	}
	p.readers.checkEnd(r, consumer)
	return nil
}
