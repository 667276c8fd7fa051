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
	"github.com/annalsdb/annals/sst"
)

// DefaultBufferBytes is the default of Runner.MaxBufferBytes.
const DefaultBufferBytes = 32 << 20

const (
	// tableMemory is what all output tables of a Run that are in memory have together.
	tableMemory = 112 << 20
	// tableSlack is what the memory for a table has beyond the size at which it is cut.
	tableSlack = 64 << 10
)

// Runner does jobs. Its fields must not change once it is in use; Run may then be
// called from any goroutine, for several jobs at the same time.
//
// Memory of one Run, however large the job: MaxBufferBytes of input, 112 MiB of
// output tables (more only for a value that does not fit), per input and part its metadata
// and its current block, which is BlockBytes, and one value at a time that is larger. The garbage that Go's
// collector lets grow comes on top, in proportion to GOGC.
type Runner struct {
	Store objstore.Store
	Env   *base.Env
	Tree  uint32
	// Epoch is the compactor's; outputs carry it in their names.
	Epoch  uint64
	Limits Limits
	// MaxBufferBytes bounds the stored bytes of input data that are in memory or on
	// their way, for all inputs of all parts together: two requests each. Default 32
	// MiB. A request asks for at least 64 KiB.
	MaxBufferBytes int64

	// Parts is the number of key ranges that are merged at the same time. Default: as many as
	// there are cores, and as the size of the job justifies, at most 4. Output tables share a fixed memory: more parts make
	// smaller ones.
	Parts int
}

// Result is what a Run did.
type Result struct {
	// Edit puts the output in the place of the inputs; Compaction says the same in
	// parts. Only after success.
	Edit       manifest.Edit
	Compaction manifest.Compaction
	// Regroup says the same in parts, if the job's Kind was Group.
	Regroup manifest.Regroup
	// Output is the new run. Only after success.
	Output *manifest.Run
	// Outputs are the objects that were written or may have been, also when Run
	// failed: what to delete if the edit is not in force and can not come into force
	// any more.
	Outputs []base.ObjectID
	// BytesIn and BytesOut are the stored sizes of the input tables that were opened and
	// of the tables that were written; if the job's Kind was Group, the bytes of key
	// directories and indexes that were read, and of the index that was written.
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
// input is not what the manifest and its checksums say (F27); manifest.ErrIndexTooLarge,
// when what is to be grouped has too many keys or tables for one index, now and later; and
// what the store answered for so long that retries ended.
func (r *Runner) Run(ctx context.Context, job Job) (*Result, error) {
	if job.Kind == Group {
		return r.runGroup(ctx, job)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &task{r: r, job: job, limits: r.Limits.checked(), res: &Result{}, cancel: cancel, large: make(chan struct{}, 1)}
	parts, err := t.run(ctx)
	cancel()
	t.running.Wait() // everything that was started has ended
	tables := t.collect(parts)
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
	cancel  context.CancelFunc

	gets, puts, bytesIn atomic.Uint64

	mu   sync.Mutex
	err  error                    // guarded by mu: why the task failed
	seen map[*manifest.Table]bool // guarded by mu: tables that were opened

	// Set before the first part runs.
	shared     map[*manifest.Table]*sst.GroupReader // tables that all parts read
	chunk      int64                                // bytes of one request for data
	tableBytes int64                                // stored size at which a table is cut at the next key
	hardBytes  int64                                // and inside a key
	bodies     chan []byte                          // memory of tables that are not in use; nil: not allocated yet
	large      chan struct{}                        // room for large values that is in use
}

// start runs f in a goroutine that Run waits for.
func (t *task) start(name string, f func()) {
	t.running.Add(1)
	t.r.Env.Go(name, func() {
		defer t.running.Done()
		f()
	})
}

// fail ends the task with err, unless it failed before.
func (t *task) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
		t.cancel()
	}
}

// opened counts the stored bytes of a table, once.
func (t *task) opened(line *manifest.Table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen == nil {
		t.seen = make(map[*manifest.Table]bool)
	}
	if !t.seen[line] {
		t.seen[line] = true
		t.bytesIn.Add(line.Size)
	}
}

// run merges each part in a goroutine of its own and returns all parts, also those that failed.
func (t *task) run(ctx context.Context) ([]*part, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	parts, err := t.split(ctx)
	if err != nil {
		return nil, err
	}
	t.divideMemory(parts)
	var running sync.WaitGroup
	for _, p := range parts {
		running.Add(1)
		t.start("compaction merge", func() {
			defer running.Done()
			if err := p.run(ctx); err != nil {
				t.fail(err)
			}
		})
	}
	running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return parts, t.err
}

// divideMemory shares the memory of the task among its parts.
func (t *task) divideMemory(parts []*part) {
	inputs := 0
	for _, p := range parts {
		inputs += len(p.inputs)
	}
	t.chunk = min(t.limits.ReadAhead, max(minChunk, t.bufferBytes()/int64(2*max(1, inputs))))
	// Each part builds a table, and one more is uploaded meanwhile.
	bodies := len(parts) + 1
	t.hardBytes = min(t.limits.TableBytes+t.limits.TableBytes/8, tableMemory/int64(bodies)-tableSlack)
	t.tableBytes = t.hardBytes - t.hardBytes/9
	t.bodies = make(chan []byte, bodies)
	for range bodies {
		t.bodies <- nil
	}
}

// bodyBytes is the memory for one table: as much as it may need, so that it does not
// grow by copying.
func (t *task) bodyBytes() int64 {
	return min(t.hardBytes, int64(t.job.Stored)+int64(t.job.Stored)/8) + tableSlack
}

// collect gathers what the parts did, in the order of their keys.
func (t *task) collect(parts []*part) (tables []*manifest.Table) {
	res := t.res
	for _, p := range parts {
		tables = append(tables, p.out.tables...)
		res.RecordsIn += p.records
		res.RecordsOut += p.out.records
	}
	for _, line := range tables {
		res.Outputs = append(res.Outputs, line.Ref.ID())
		res.BytesOut += line.Size
	}
	res.BytesIn, res.Gets, res.Puts = t.bytesIn.Load(), t.gets.Load(), t.puts.Load()
	return tables
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
	if t.res.RecordsIn != t.job.Records || written != t.job.Records || t.res.RecordsOut != written {
		return fmt.Errorf("the manifest counts %d records, %d were read and %d written", t.job.Records, t.res.RecordsIn, written)
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
