package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// prepare builds the log, or looks whether it is there.
func (s *Reads) prepare(ctx context.Context, r *Run) error {
	if s.o.Reuse {
		keys, _, err := r.Target.Keys(ctx, []byte(KeyPrefix), nil, 1)
		if err == nil && len(keys) == 0 {
			err = fmt.Errorf("the log has no key that begins with %q: build it first, without --reuse", KeyPrefix)
		}
		if err != nil {
			return err
		}
	} else if err := s.build(ctx, r); err != nil {
		return fmt.Errorf("build the log: %w", err)
	}
	if err := s.reopen(ctx, r); err != nil { // so that all of it is in tables
		return err
	}
	if s.o.Consolidate {
		if err := s.consolidate(ctx, r); err != nil {
			return err
		}
	}
	if e := r.Embedded(); e != nil {
		status := e.DB.Status()
		r.Result("segments", "segments", status.Segments, Plain)
		r.Result("runs", "runs", status.Runs, Plain)
		r.Result("tables", "tables", status.Tables, Plain)
		r.Result("stored_bytes", "bytes in tables", status.StoredBytes, Bytes)
		return nil
	}
	r.Result("reopened", "caches", "as the server had them: a running server is not opened again", Plain)
	return nil
}

// build appends all records as fast as the log takes them, those of the large key among them at even distances.
func (s *Reads) build(ctx context.Context, r *Run) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hot := uint64(s.o.HotBytes) / uint64(s.o.Size)
	total := s.o.Records + hot
	perBatch := uint64(s.o.BatchOptions.Records)
	batches := r.Batches(streamScanBatches, s.o.BatchOptions)
	began := time.Now()
	var next, done atomic.Uint64
	var appending sync.WaitGroup
	for range s.o.Appenders {
		appending.Go(func() {
			maker := batches.Maker()
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				from := n * perBatch
				if from >= total {
					return
				}
				recs, _ := maker.Make(n)
				recs = recs[:min(perBatch, total-from)]
				for i := range recs {
					if at := from + uint64(i); mulDiv(at+1, hot, total) > mulDiv(at, hot, total) {
						recs[i].Key = s.hot
					}
				}
				if _, _, err := AppendRetrying(ctx, r.Target, recs, Durable); err != nil {
					cancel(err)
					return
				}
				r.Progress("build: %d of %d records", done.Add(uint64(len(recs))), total)
			}
		})
	}
	appending.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.Result("built_records", "records built", total, Plain)
	r.Result("built_records_per_second", "built at", ratio(float64(total), time.Since(began).Seconds()), PerSecond)
	return nil
}

// mulDiv is a*b/c for what a load has: a is at most c.
func mulDiv(a, b, c uint64) uint64 { return uint64(float64(a) / float64(c) * float64(b)) }

const (
	// settledFor is how long nothing may change until compaction counts as done: longer than it takes between two of
	// its looks.
	settledFor = 5 * time.Second
	// settleLooks is how often it is looked at.
	settleLooks = 100 * time.Millisecond
)

// consolidate waits until compaction has nothing left to do.
func (s *Reads) consolidate(ctx context.Context, r *Run) error {
	e := r.Embedded()
	if e == nil {
		return errors.New("--consolidate needs the engine in this process: use --store")
	}
	if e.options.DisableCompaction {
		return errors.New("--consolidate with --compaction off would wait for ever")
	}
	type state struct {
		runs, segments, groups int
		jobs, failures, debt   uint64
	}
	look := func() state {
		s := e.DB.Status()
		c := s.Compaction
		return state{s.Runs, s.Segments, s.Groups, c.Jobs, c.Failures, c.Debt}
	}
	ticker := time.NewTicker(settleLooks)
	defer ticker.Stop()
	last, since := look(), time.Now()
	for last.debt > 0 || time.Since(since) < s.settled {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if now := look(); now != last {
			last, since = now, time.Now()
		}
		r.Progress("compaction: %s left in %d runs", formatBytes(float64(last.debt)), last.runs)
	}
	return nil
}
