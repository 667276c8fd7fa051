package bench

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// drainTimeout bounds how long operations that are under way at the end of a run may go on.
const drainTimeout = 30 * time.Second

// maxOverdue bounds how many operations that were due and never started are counted one by one, as the schedule has them. What
// is beyond is counted by the rate: of a rate that no log can do they were more than there is time for.
const maxOverdue = 1_000_000

// MaxWorkers bounds the workers of a load.
const MaxWorkers = 100_000

// Load is a stream of operations.
type Load struct {
	// Schedule says when operations are due: an open loop. nil: a closed one, in which each worker begins the
	// next operation when the one before has ended, so that a stall delays what it should have hit.
	Schedule *Schedule
	// Workers is how many operations may be under way at the same time.
	Workers int
	// Limit ends the load after that many operations. 0: none.
	Limit uint64
	// Recorder gets each operation's latency, records and bytes, and failures. nil: only failures are kept, as of what
	// is done to prepare a run.
	Recorder *Recorder
}

// Op is one operation of a load.
type Op struct {
	N      uint64    // its number, from 0
	Due    time.Time // in a closed loop: when it began
	Worker int       // who does it, below Load.Workers: for what belongs to one goroutine
}

// Done is what an operation that succeeded did.
type Done struct {
	Records int
	Bytes   int64
}

// Pace says how a load kept to its schedule.
type Pace struct {
	Due        uint64        // operations that were due
	Started    uint64        // of them
	BehindMax  time.Duration // the longest that one was started late
	BehindLast time.Duration // how late the last one was started
}

// Unstarted returns how many operations were due and never begun: the load was more than could be done.
func (p Pace) Unstarted() uint64 { return p.Due - p.Started }

// Loop does the operations of a load until ctx, which Begin returned if they are measured, ends, or the limit is reached; then it waits for
// those under way, drainTimeout at most. An operation's latency is from when it was due; one whose workers are all busy starts
// late, and its latency says so. An error fails the operation; errors that cannot go away end the run.
func (r *Run) Loop(ctx context.Context, l Load, op func(ctx context.Context, o Op) (Done, error)) Pace {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { drain(work, cancel) })
	defer stop()
	d := &driver{run: r, load: l, op: op, work: work, began: time.Now()}
	var workers sync.WaitGroup
	if l.Schedule == nil {
		for w := range l.Workers {
			workers.Go(func() { d.closed(ctx, w) })
		}
	} else {
		ops := make(chan Op)
		for w := range l.Workers {
			workers.Go(func() {
				for o := range ops {
					o.Worker = w
					d.do(o)
				}
			})
		}
		d.dispatch(ctx, ops)
		close(ops)
	}
	workers.Wait()
	d.pace.Started = d.started.Load()
	if l.Schedule == nil {
		d.pace.Due = d.pace.Started
	}
	return d.pace
}

// drain gives the work under way its time to end.
func drain(work context.Context, cancel func()) {
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		cancel()
	case <-work.Done():
	}
}

// driver is a load under way.
type driver struct {
	run     *Run
	load    Load
	op      func(context.Context, Op) (Done, error)
	work    context.Context // of operations
	began   time.Time
	numbers atomic.Uint64 // closed loop: taken
	started atomic.Uint64
	pace    Pace // of the dispatcher
}

// do does one operation.
func (d *driver) do(o Op) {
	d.started.Add(1)
	done, err := d.op(d.work, o)
	end := time.Now()
	switch rec := d.load.Recorder; {
	case err != nil && rec == nil:
		d.run.failed("prepare", err)
	case err != nil:
		rec.Fail(end, err)
	case rec != nil:
		rec.Observe(o.Due, end, done.Records, done.Bytes)
	}
}

// closed is one worker of a closed loop.
func (d *driver) closed(ctx context.Context, worker int) {
	for ctx.Err() == nil {
		n := d.numbers.Add(1) - 1
		if d.load.Limit > 0 && n >= d.load.Limit {
			return
		}
		d.do(Op{N: n, Due: time.Now(), Worker: worker})
	}
}

// dispatch hands each operation to a worker when it is due, or later if all are busy.
func (d *driver) dispatch(ctx context.Context, ops chan<- Op) {
	sleep := newSleeper()
	defer sleep.close()
	for n := uint64(0); d.load.Limit == 0 || n < d.load.Limit; n++ {
		due := d.began.Add(d.load.Schedule.Next())
		if !sleep.until(ctx, due) {
			d.overdue(due) // the schedule may be ahead of what was handed out, even if no worker was busy
			return
		}
		select {
		case ops <- Op{N: n, Due: due}:
			d.pace.Due++
			d.pace.BehindLast = max(0, time.Since(due))
			d.pace.BehindMax = max(d.pace.BehindMax, d.pace.BehindLast)
		case <-ctx.Done():
			d.overdue(due)
			return
		}
	}
}

// overdue counts what was due and not handed out when the load ended, from an operation on that is due next.
func (d *driver) overdue(next time.Time) {
	end := time.Now()
	if to := time.Duration(d.run.to.Load()); end.Sub(d.run.began) > to {
		end = d.run.began.Add(to)
	}
	if next.After(end) {
		return
	}
	d.pace.BehindLast = end.Sub(next)
	d.pace.BehindMax = max(d.pace.BehindMax, d.pace.BehindLast)
	limit := d.load.Limit
	if limit == 0 {
		limit = math.MaxUint64
	}
	for range maxOverdue {
		if next.After(end) || d.pace.Due >= limit {
			return
		}
		d.pace.Due++
		next = d.began.Add(d.load.Schedule.Next())
	}
	rest := d.load.Schedule.Rate() * max(0, end.Sub(next)).Seconds()
	d.pace.Due += min(limit-d.pace.Due, uint64(min(rest, math.MaxInt64)))
}
