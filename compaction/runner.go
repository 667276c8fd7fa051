package compaction

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// DefaultBufferBytes is the default of Runner.MaxBufferBytes.
const DefaultBufferBytes = 32 << 20

// Runner does jobs. Its fields must not change once it is in use; Run may then be
// called from any goroutine, for several jobs at the same time.
//
// Memory of one Run, however large the job: MaxBufferBytes of input, two output
// tables (each TableBytes, an eighth more, and one value), per input at most 400 KiB
// of metadata and its current block, which is BlockBytes or one value if that is larger, and
// three batches of 256 KiB or one value. With the defaults and 31 inputs about
// 200 MiB are in use; the garbage that Go's collector lets grow comes on top, in
// proportion to GOGC.
type Runner struct {
	Store objstore.Store
	Env   *base.Env
	Tree  uint32
	// Epoch is the compactor's; outputs carry it in their names.
	Epoch  uint64
	Limits Limits
	// MaxBufferBytes bounds the stored bytes of input data that are in memory or on
	// their way, for all inputs together: two requests an input. Default 32 MiB. A
	// request asks for at least 64 KiB.
	MaxBufferBytes int64
}

// Result is what a Run did.
type Result struct {
	// Edit puts the output in the place of the inputs; Compaction says the same in
	// parts. Only after success.
	Edit       manifest.Edit
	Compaction manifest.Compaction
	// Output is the new run. Only after success.
	Output *manifest.Run
	// Outputs are the objects that were written or may have been, also when Run
	// failed: what to delete if the edit is not in force and can not come into force
	// any more.
	Outputs []base.ObjectID
	// BytesIn and BytesOut are the stored sizes of the input tables that were opened and
	// of the tables that were written.
	BytesIn, BytesOut uint64
	// RecordsIn and RecordsOut were read and written.
	RecordsIn, RecordsOut uint64
	// Gets and Puts are the requests sent, with those that were repeated.
	Gets, Puts uint64
}

// Run merges the inputs of a job into new tables and returns the edit that puts them
// in force. It commits and deletes nothing. The Result is never nil.
//
// Errors: ctx's; objstore.ErrNotFound, wrapped, when an input is gone, which is to be
// expected when it was dropped or compacted meanwhile; base.ErrCorrupt when an
// input is not what the manifest and its checksums say (F27); and what the store
// answered for so long that retries ended.
func (r *Runner) Run(ctx context.Context, job Job) (*Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &task{r: r, job: job, limits: r.Limits.checked(), res: &Result{}}
	tables, err := t.run(ctx)
	cancel()
	t.running.Wait() // everything that was started has ended
	t.res.BytesIn, t.res.RecordsIn = t.bytesIn.Load(), t.recordsIn
	t.res.Gets, t.res.Puts = t.gets.Load(), t.puts.Load()
	if err == nil {
		err = t.finish(tables)
	}
	if err != nil {
		return t.res, fmt.Errorf("%s: %w", job, err)
	}
	return t.res, nil
}

// task is one Run.
type task struct {
	r       *Runner
	job     Job
	limits  Limits
	res     *Result        // of the goroutine of Run
	running sync.WaitGroup // goroutines

	gets, puts, bytesIn atomic.Uint64
	recordsIn           uint64 // of the merging goroutine until it has ended
	chunk               int64  // bytes of one request for data; set before the first
}

// start runs f in a goroutine that Run waits for.
func (t *task) start(name string, f func()) {
	t.running.Add(1)
	t.r.Env.Go(name, func() {
		defer t.running.Done()
		f()
	})
}

// run merges in one goroutine, builds tables in this one and uploads them in a third.
func (t *task) run(ctx context.Context) ([]*manifest.Table, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	m := newMerger(t)
	t.start("compaction merge", func() { m.run(ctx) })
	out := output{task: t}
	for b := range m.full {
		for i := range b.items {
			if err := out.add(ctx, &b.items[i]); err != nil {
				return nil, err
			}
		}
		b.reset()
		m.free <- b // has room for all batches
	}
	if m.err != nil {
		return nil, m.err
	}
	return out.end(ctx)
}

// check refuses inputs that are not neighbours (I5).
func (t *task) check() error {
	in := t.job.Inputs
	if len(in) == 0 {
		return errors.New("no inputs")
	}
	for i, r := range in[1:] {
		if in[i].End != r.Start {
			return fmt.Errorf("run %x does not begin where run %x ends", r.Id, in[i].Id)
		}
	}
	return nil
}

// finish compares the counts (F27) and makes the edit.
func (t *task) finish(tables []*manifest.Table) error {
	var written uint64
	for _, line := range tables {
		written += line.Records
	}
	if t.recordsIn != t.job.Records || written != t.job.Records || t.res.RecordsOut != written {
		return fmt.Errorf("the manifest counts %d records, %d were read and %d written", t.job.Records, t.recordsIn, written)
	}
	in := t.job.Inputs
	id := t.r.Env.NewULID()
	t.res.Output = &manifest.Run{Id: id[:], Start: in[0].Start, End: in[len(in)-1].End, Tables: tables}
	c := manifest.Compaction{Epoch: t.r.Epoch, First: t.job.First, Last: t.job.Last, Output: t.res.Output}
	for _, r := range in {
		c.Inputs = append(c.Inputs, r.Id)
	}
	t.res.Compaction, t.res.Edit = c, c.Edit()
	return nil
}

func (t *task) bufferBytes() int64 {
	if t.r.MaxBufferBytes > 0 {
		return t.r.MaxBufferBytes
	}
	return DefaultBufferBytes
}
