package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/trace"
)

// A tree has one compactor at a time: the owner of its compactor epoch. It raises a
// number in the MANIFEST, its beat, while it lives, and sets it to 0 when it stops; others stand
// by and take the next epoch when the beat is 0 or has not moved for a while.
const (
	// beatEvery is how often the compactor shows that it lives.
	beatEvery = 20 * time.Second
	// takeOverAfter is how long a standby sees no beat before it takes over.
	takeOverAfter = time.Minute
	// watchEvery is how often a standby looks, and an idle compactor plans.
	watchEvery = 2 * time.Second
	// epochFor is how long a compactor keeps its epoch: with the next one, what
	// jobs of the old one left behind can be swept.
	epochFor = 24 * time.Hour
	// A job that failed is tried again after a wait that doubles up to the limit;
	// jobs on other segments go on meanwhile (F29).
	jobBackoffFirst = time.Second
	jobBackoffLimit = 5 * time.Minute
	// releaseWithin bounds how long a compactor that stops tries to say so.
	releaseWithin = 5 * time.Second
)

// compactor stands by, takes the epoch, and works on what the planner says,
// until its context ends. Its methods are called from one goroutine; stats may be
// read from any.
type compactor struct {
	store   objstore.Store
	env     *base.Env
	tracer  trace.Tracer
	log     *slog.Logger
	commits *manifest.Committer
	limits  compaction.Limits
	alone   bool // without a writer: nobody else keeps commits current, and its jobs are all that there is to tell of
	fails   *trouble

	mu     sync.Mutex
	counts CompactionCounters // guarded by mu
}

// CompactionCounters are what operators see of a compactor. All but Planned and Debt are zero where
// another process compacts.
type CompactionCounters struct {
	Working           bool   // this process holds the compactor's epoch
	Epoch             uint64 // the last one that it held
	Jobs, Failures    uint64
	BytesIn, BytesOut uint64 // stored bytes read and written by finished jobs: tables and indexes
	Records           uint64 // records rewritten by finished jobs
	Planned           int    // jobs that the state of the log calls for now; what they lead to may call for more
	Debt              uint64 // record bytes that these jobs would rewrite
}

func (c *compactor) snapshot() CompactionCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

func (c *compactor) note(change func(*CompactionCounters)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.counts)
}

// run works until ctx ends, and returns nil; or until another log is in the place of this one.
func (c *compactor) run(ctx context.Context) error {
	for ctx.Err() == nil {
		epoch, err := c.standBy(ctx)
		if err == nil {
			c.fails.note(nil)
			c.note(func(n *CompactionCounters) { n.Working, n.Epoch = true, epoch })
			c.log.Info("compacting", "compactor_epoch", epoch)
			err = c.work(ctx, epoch)
			c.note(func(n *CompactionCounters) { n.Working, n.Planned, n.Debt = false, 0, 0 })
			c.release(ctx, epoch)
		}
		if err != nil && ctx.Err() == nil {
			switch {
			case errors.Is(err, manifest.ErrOtherLog):
				return err
			case errors.Is(err, manifest.ErrFenced):
				c.log.Warn("compaction paused", "error", err) // another process has it now
				c.fails.note(nil)                             // and tells what fails
			default:
				c.fails.note(err)
			}
			_ = c.env.Sleep(ctx, watchEvery) // its error is ctx's
		}
	}
	return nil
}

// release lets another compactor begin at once. If it fails, the others wait for takeOverAfter.
func (c *compactor) release(ctx context.Context, epoch uint64) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer c.env.AfterFunc(releaseWithin, cancel)()
	if _, err := c.commits.Commit(ctx, manifest.ReleaseCompactor(epoch)); err != nil && !errors.Is(err, manifest.ErrFenced) {
		c.log.Warn("the compactor's epoch was not released", "compactor_epoch", epoch, "error", err)
	}
}

// current returns the newest state that is known, after a look if nobody else looks.
func (c *compactor) current(ctx context.Context) (*manifest.State, error) {
	if !c.alone {
		return c.commits.Current().State, nil
	}
	s, err := c.commits.Refresh(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the log's head: %w", err)
	}
	return s.State, nil
}

// standBy waits until no compactor lives, and takes the next epoch.
func (c *compactor) standBy(ctx context.Context) (uint64, error) {
	var seen struct{ epoch, beat uint64 }
	since, known := c.env.Elapsed(), false
	for {
		s, err := c.current(ctx)
		if err != nil {
			return 0, err
		}
		epoch, beat := s.GetCompactor().GetEpoch(), s.GetCompactorBeat()
		if !known || epoch != seen.epoch || beat != seen.beat {
			if known && beat != 0 {
				c.fails.note(nil) // another compactor is at work
			}
			known, seen.epoch, seen.beat = true, epoch, beat
			since = c.env.Elapsed()
		}
		if beat == 0 || c.env.Elapsed()-since >= takeOverAfter {
			_, err := c.commits.Commit(ctx, manifest.OpenCompactor(epoch, newOwner(c.env)))
			if err == nil {
				return epoch + 1, nil
			}
			if !errors.Is(err, manifest.ErrFenced) {
				return 0, err
			}
			known = false // another standby was first
		}
		if err := c.env.Sleep(ctx, watchEvery); err != nil {
			return 0, err
		}
	}
}

// work runs jobs until the epoch is lost, or old, or ctx ends.
func (c *compactor) work(ctx context.Context, epoch uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var beating sync.WaitGroup
	beating.Add(1)
	c.env.Go("compactor beat", func() {
		defer beating.Done()
		cancel(c.beat(ctx, epoch))
	})
	defer beating.Wait()
	defer cancel(nil)

	began := c.env.Elapsed()
	aside := newSetAside()
	for c.env.Elapsed()-began < epochFor {
		s, err := c.current(ctx)
		if err != nil {
			return err
		}
		if s.GetCompactor().GetEpoch() != epoch {
			return fmt.Errorf("compactor epoch is %d, mine is %d: %w", s.GetCompactor().GetEpoch(), epoch, manifest.ErrFenced)
		}
		job, ok := c.next(s, aside)
		if !ok {
			if c.env.Sleep(ctx, watchEvery) != nil {
				return context.Cause(ctx)
			}
			continue
		}
		err = c.do(ctx, epoch, job)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, manifest.ErrFenced):
			return err
		case errors.Is(err, manifest.ErrGone): // dropped meanwhile: the next plan knows
		case errors.Is(err, manifest.ErrIndexTooLarge):
			aside.refuse(job)
			c.log.Info("too many keys for one index", "job", job.String(), "error", err)
		case err != nil:
			f := aside.failed[job.First]
			f.until = c.env.Elapsed() + c.env.Backoff(jobBackoffFirst, jobBackoffLimit, f.times)
			f.times++
			aside.failed[job.First] = f
			c.note(func(n *CompactionCounters) { n.Failures++ })
			c.fails.note(err)
		default:
			delete(aside.failed, job.First)
			if len(aside.failed) == 0 {
				c.fails.note(nil)
			}
		}
	}
	return nil
}

// setAside are the jobs that are left alone although they are planned.
type setAside struct {
	failed map[uint32]jobFailure // for a while; by the first segment
	// tooLarge are groups that made a job too large for one index, by their last segment, which
	// retention does not change. It would be too large again: any job with one of them waits until
	// the epoch ends.
	tooLarge map[uint32]bool
}

// jobFailure is why a segment is left alone for a while.
type jobFailure struct {
	times int
	until time.Duration // Elapsed()
}

func newSetAside() setAside {
	return setAside{failed: make(map[uint32]jobFailure), tooLarge: make(map[uint32]bool)}
}

// refuse leaves the inputs of a job of groups as they are.
func (a setAside) refuse(job compaction.Job) {
	for _, id := range groupInputs(job) {
		a.tooLarge[id] = true
	}
}

// has reports whether a job is left alone at a time.
func (a setAside) has(job compaction.Job, now time.Duration) bool {
	return now < a.failed[job.First].until ||
		slices.ContainsFunc(groupInputs(job), func(id uint32) bool { return a.tooLarge[id] })
}

// groupInputs returns the last segments of what a job of groups puts together.
func groupInputs(job compaction.Job) (last []uint32) {
	for _, g := range job.Groups {
		last = append(last, g.LastSegment)
	}
	for _, s := range job.Segments {
		last = append(last, s.Last())
	}
	return last
}

// next returns the most urgent job that is not set aside, if there is one.
func (c *compactor) next(s *manifest.State, aside setAside) (compaction.Job, bool) {
	jobs := compaction.Plan(s, c.limits)
	c.note(func(n *CompactionCounters) { n.Planned, n.Debt = len(jobs), debtOf(jobs) })
	maps.DeleteFunc(aside.failed, func(first uint32, _ jobFailure) bool { // dropped, or done by another job
		return !slices.ContainsFunc(jobs, func(j compaction.Job) bool { return j.First == first })
	})
	if len(aside.failed) == 0 {
		c.fails.note(nil)
	}
	for _, j := range jobs {
		if !aside.has(j, c.env.Elapsed()) {
			return j, true
		}
	}
	return compaction.Job{}, false
}

// debtOf returns the record bytes that the jobs rewrite.
func debtOf(jobs []compaction.Job) (bytes uint64) {
	for _, j := range jobs {
		if j.Kind == compaction.Group {
			continue // moves lists of tables only
		}
		bytes += j.Bytes
	}
	return bytes
}

// do runs one job and commits it. Outputs of a job that failed are deleted, if that
// is certain to be safe; else the collector sweeps them once their epoch has passed.
func (c *compactor) do(ctx context.Context, epoch uint64, job compaction.Job) error {
	began := c.env.Elapsed()
	ctx, span := trace.Begin(c.tracer, ctx, trace.Compaction)
	runner := &compaction.Runner{Store: c.store, Env: c.env, Tree: tree, Epoch: epoch, Limits: c.limits}
	res, err := runner.Run(ctx, job)
	span.Phase("merge")
	if err == nil {
		_, err = c.commits.Commit(ctx, res.Edit)
		span.Phase("commit")
	}
	if span.Wanted() {
		describeJob(span, job, res)
	}
	span.End(err)
	if err != nil {
		if res != nil && len(res.Outputs) > 0 {
			c.discard(ctx, epoch, res.Outputs, err)
		}
		return fmt.Errorf("%s: %w", job, err)
	}
	c.note(func(n *CompactionCounters) {
		n.Jobs++
		n.BytesIn += res.BytesIn
		n.BytesOut += res.BytesOut
		n.Records += res.RecordsOut
	})
	level := slog.LevelDebug
	if c.alone {
		level = slog.LevelInfo
	}
	c.log.Log(ctx, level, "compacted", "job", job.String(), "bytes_in", res.BytesIn, "bytes_out", res.BytesOut,
		"records", res.RecordsOut, "took", (c.env.Elapsed() - began).Round(time.Millisecond).String())
	return nil
}

// describeJob tells of a job. res may be nil, or a part, if it failed.
func describeJob(span trace.Span, job compaction.Job, res *compaction.Result) {
	span.Text("job", job.String())
	if res != nil {
		span.Int("bytes_in", int64(res.BytesIn))
		span.Int("bytes_out", int64(res.BytesOut))
		span.Int("records", int64(res.RecordsOut))
	}
}

// discard deletes the outputs of a failed job. That is allowed only when a MANIFEST
// read now is still of this epoch, names none of them, live or obsolete, itself or by the
// index of a group, and is not the version that a commit of this job named as its condition: else such a
// commit could still land and make them live (F50).
func (c *compactor) discard(ctx context.Context, epoch uint64, outputs []base.ObjectID, cause error) {
	now, err := c.commits.Refresh(ctx)
	if err != nil || now.State.GetCompactor().GetEpoch() != epoch {
		return
	}
	var edit *manifest.EditError
	if errors.As(cause, &edit) {
		if edit.Pending {
			return
		}
		for _, etag := range edit.SentETags {
			if etag == now.ETag {
				return
			}
		}
	}
	namer := newNamer(uncached(c.store, c.env), now.State)
	names := make([]string, 0, len(outputs))
	for _, id := range outputs {
		named, err := namer.names(ctx, id)
		if err != nil {
			c.log.Warn("outputs of a failed compaction are left to the collector", "error", err)
			return
		}
		if !named {
			names = append(names, id.Name())
		}
	}
	for len(names) > 0 {
		n := min(len(names), objstore.MaxDeleteBatch)
		if err := c.store.Delete(ctx, names[:n]); err != nil {
			c.log.Warn("outputs of a failed compaction are left to the collector", "error", err)
			return
		}
		names = names[n:]
	}
}

// beat raises the beat until ctx ends or the epoch is lost, and returns why.
func (c *compactor) beat(ctx context.Context, epoch uint64) error {
	for c.env.Sleep(ctx, beatEvery) == nil {
		to := c.commits.Current().State.GetCompactorBeat() + 1
		if _, err := c.commits.Commit(ctx, manifest.Beat(epoch, to)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// CompactOptions of Compact. The zero value of every field takes its default.
type CompactOptions struct {
	// SegmentBytes, TableBytes, BlockBytes, Retention: as in Options; they should be
	// those of the writer.
	SegmentBytes int64
	TableBytes   int64
	BlockBytes   int
	Retention    time.Duration
	// Logger gets what operators want to know. Default: discarded.
	Logger *slog.Logger
	// Tracer is told of jobs and commits. Default nil: nobody is.
	Tracer trace.Tracer
	// Env is the clock, randomness and goroutine starts. Default: the system's.
	Env *base.Env
}

// Compact runs a compactor without a writer, until ctx ends: another process, or
// another machine, that needs only the store. Any number may run; one works, the
// others stand by. It returns nil when ctx ends, and an error when the log cannot be
// opened, or when another log is in its place (manifest.ErrOtherLog).
func Compact(ctx context.Context, store objstore.Store, o CompactOptions) error {
	full := Options{
		SegmentBytes: o.SegmentBytes, TableBytes: o.TableBytes, BlockBytes: o.BlockBytes,
		Retention: o.Retention, Logger: o.Logger, Env: o.Env,
	}
	if err := full.Validate(); err != nil {
		return err
	}
	full = full.withDefaults()
	snap, err := manifest.Load(ctx, store, full.Env, tree)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("compact %s: %w", store, err)
	}
	troubles := newTroubles(full.Logger, full.Env)
	commits := manifest.NewCommitter(manifest.CommitterOptions{
		Store: store, Env: full.Env, Tree: tree, Start: snap, Tracer: o.Tracer, OnTrouble: troubles[HeadUnwritable].note,
	})
	defer commits.Close()
	c := &compactor{
		store: store, env: full.Env, tracer: o.Tracer, log: full.Logger, commits: commits, limits: full.compactionLimits(), alone: true,
		fails: &troubles[NotCompacting],
	}
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("compact %s: %w", store, err)
	}
	return nil
}

// mergeWithin is the span of time that a merged segment may have in a log without
// retention; with one it is a tenth of it.
const mergeWithin = 31 * 24 * time.Hour

func (o *Options) compactionLimits() compaction.Limits {
	within := mergeWithin
	if o.Retention > 0 {
		within = o.Retention / 10
	}
	return compaction.Limits{
		FanIn:        min(16, max(2, o.MaxRuns)),
		SegmentBytes: o.SegmentBytes,
		MergeWithin:  within,
		TableBytes:   o.TableBytes,
		BlockBytes:   min(max(o.BlockBytes, minCompactedBlock), maxCompactedBlock),
	}
}

// Blocks of compacted tables are within these bounds, whatever the writer's are.
const (
	minCompactedBlock = 256
	maxCompactedBlock = 4 << 20
)
