package history

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Limits bound what a Recorder holds. The zero value of a field takes its default.
type Limits struct {
	// Operations that begin. Default 1,000,000.
	Operations int
	// Records that appends, answers and streams have together. Default 4,000,000, of about 100 bytes
	// each beside the values.
	Records int
}

// ErrFull reports that a Recorder holds as much as its limits allow. What was to be recorded must not be
// done: a history that lacks an append cannot be judged.
var ErrFull = errors.New("the history is full")

// Recorder takes down operations of any number of goroutines, in the order in which they begin. Times are of
// one monotonic clock.
type Recorder struct {
	limits Limits
	start  time.Time

	mu         sync.Mutex
	last       time.Duration // guarded by mu, as all below
	processes  []Process
	operations []Operation
	records    int
	final      *Final
}

// NewRecorder returns a recorder whose clock starts now.
func NewRecorder(l Limits) *Recorder {
	if l.Operations == 0 {
		l.Operations = 1_000_000
	}
	if l.Records == 0 {
		l.Records = 4_000_000
	}
	return &Recorder{limits: l, start: time.Now()}
}

// now returns the time on the recorder's clock. No time comes twice, however coarse the system's clock is, so that what
// happened first has the lower one; and none is 0, which means "not yet". Callers hold mu.
func (r *Recorder) now() time.Duration {
	r.last = max(r.last+1, time.Since(r.start))
	return r.last
}

// Started notes that a server process is about to be executed, and returns its id. It must be called
// before.
func (r *Recorder) Started(role Role, name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := len(r.processes) + 1
	r.processes = append(r.processes, Process{ID: id, Name: name, Role: role, Started: r.now()})
	return id
}

// Ready notes that the process has the log open: it said so, or answered a request. Only the first
// call counts.
func (r *Recorder) Ready(process int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := &r.processes[process-1]; p.Ready == 0 {
		p.Ready = r.now()
	}
}

// Ended notes that the process has ended for sure: it was waited for.
func (r *Recorder) Ended(process int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := &r.processes[process-1]; p.Ended == 0 {
		p.Ended = r.now()
	}
}

// Call is an operation that has begun. One goroutine uses it.
type Call struct {
	// Operation is the caller's own, to put the answer into; End takes it down.
	Operation
	r     *Recorder
	index int
}

// Begin takes down what is about to be asked, and that it begins now. The error is ErrFull: then
// it must not be asked.
func (r *Recorder) Begin(op Operation) (*Call, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := op.size()
	if len(r.operations) == r.limits.Operations || r.records+n > r.limits.Records {
		return nil, ErrFull
	}
	r.records += n
	op.Call, op.Return, op.Outcome = r.now(), 0, Pending
	r.operations = append(r.operations, op.clone())
	return &Call{Operation: op, r: r, index: len(r.operations) - 1}, nil
}

// End takes down the outcome, the answer that the caller has put into the Operation, and that it was there now. The cause is
// why the outcome is not OK; it may be nil. The error is ErrFull: the answer of a read is
// then left out.
func (c *Call) End(outcome Outcome, cause error) error {
	c.Outcome = outcome
	if cause != nil {
		c.Note = cause.Error()
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.Return = c.r.now()
	if c.Follow != nil { // Deliver took its items down
		c.Follow = c.r.operations[c.index].Follow
	}
	grown := c.size() - c.r.operations[c.index].size()
	if c.Append == nil && c.r.records+grown > c.r.limits.Records {
		kept := &c.r.operations[c.index]
		kept.Outcome, kept.Return, kept.Note = Unknown, c.Return, ErrFull.Error()
		return ErrFull
	}
	c.r.records += grown
	c.r.operations[c.index] = c.clone()
	return nil
}

// Deliver takes down what came by a stream, and that it came now. The error is ErrFull: then
// the item was left out, and the stream must be ended.
func (c *Call) Deliver(item Item) error {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if c.r.records == c.r.limits.Records {
		return ErrFull
	}
	c.r.records++
	item.At = c.r.now()
	f := c.r.operations[c.index].Follow
	f.Items = append(f.Items, item)
	return nil
}

// Final takes down what a fresh writer has in the end.
func (r *Recorder) Final(f Final) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.final = &f
}

// Recorded returns how many operations and records there are.
func (r *Recorder) Recorded() (operations, records int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.operations), r.records
}

// History returns a copy of what was recorded up to now.
func (r *Recorder) History() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &History{Processes: slices.Clone(r.processes), Operations: make([]Operation, len(r.operations)), Final: r.final}
	for i := range r.operations {
		h.Operations[i] = r.operations[i].clone()
	}
	return h
}

// clone copies an operation so far that filling in the answer of one does not change the other.
func (o *Operation) clone() Operation {
	c := *o
	c.Append, c.Scan, c.Count, c.Keys = shallow(o.Append), shallow(o.Scan), shallow(o.Count), shallow(o.Keys)
	c.Follow, c.SetCursors, c.GetCursors = shallow(o.Follow), shallow(o.SetCursors), shallow(o.GetCursors)
	return c
}

func shallow[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// size is what an operation counts as, in records.
func (o *Operation) size() int {
	switch {
	case o.Append != nil:
		return len(o.Append.Records) + len(o.Append.ExpectedNext)
	case o.Scan != nil:
		return len(o.Scan.Records)
	case o.Keys != nil:
		return len(o.Keys.Keys)
	case o.Follow != nil:
		return len(o.Follow.Streams) + len(o.Follow.Items)
	case o.SetCursors != nil:
		return len(o.SetCursors.Cursors) + len(o.SetCursors.Answer)
	case o.GetCursors != nil:
		return len(o.GetCursors.Keys) + len(o.GetCursors.Answer)
	}
	return 0
}
