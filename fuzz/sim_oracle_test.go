package fuzz

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// oracle is the simOracle: a record of the truth, made from what was put into the bucket and from nothing that the engine
// says of itself. Its parts:
//
//   - simLog: which WAL objects were sent, which of them are part of the log, and so what the log's records are (I1 to I4);
//   - simHead: the MANIFEST in force, and whether its runs hold exactly the log's records (I4 to I6, retention);
//   - references: what must be there (I7);
//   - simSmall: cursors and producers, by the log;
//   - answers: whether what a process said to a client can be.
//
// Whatever is wrong is noted once; what follows from it is of no interest. The work for an event depends on what it
// changed, and on the size of the MANIFEST, not on the size of the log.
type oracle struct {
	mu    sync.Mutex // at the end of a run the last writer works while the oracle reads
	store *mem.Store
	now   int // the step

	log   *simLog
	head  *simHead
	refs  *references
	small *simSmall

	values  map[string]*simValue // by value: what clients asked to append
	calls   map[int]*simAsked    // under way
	follows []*simAsked          // those of them that follow
	procs   map[int]*simSeen     // what processes have shown
	answers answers

	broken error
}

// simValue is a value of a client. In the whole run no two records have the same, but an append of a producer may be tried again.
type simValue struct {
	calls []*simCall // that asked to append it
	sent  bool       // a WAL object has it
	live  *simRecord // in the log
}

// simSeen is what a process has shown so far; it must not go back.
type simSeen struct {
	frontier uint64
	first    uint64         // its FirstSequence
	cursors  map[string]int // by consumer: the version of its cursors that was read last
}

// newSimOracle watches a store from the start, when it is empty.
func newSimOracle(store *mem.Store) simOracle { return newOracle(store) }

func newOracle(store *mem.Store) *oracle {
	o := &oracle{
		store: store, refs: newReferences(store),
		values: map[string]*simValue{}, calls: map[int]*simAsked{}, procs: map[int]*simSeen{},
	}
	o.refs.stale = 0 // the longest of the processes'
	o.log = newSimLog(o)
	o.head = newSimHead(o)
	o.small = newSimSmall(o)
	o.answers = answers{durable: map[simMarkKey]engine.AppendResult{}}
	return o
}

// broke notes what must not have happened, if it is the first.
func (o *oracle) broke(format string, args ...any) {
	if o.broken == nil {
		o.broken = fmt.Errorf("step %d: "+format, append([]any{o.now}, args...)...)
	}
}

func (o *oracle) err() error {
	defer o.enter()()
	return o.firstErr()
}

// enter begins a call from outside; what it returns ends it.
func (o *oracle) enter() (leave func()) {
	o.mu.Lock()
	return o.mu.Unlock
}

func (o *oracle) firstErr() error {
	if o.broken == nil && len(o.refs.broken) > 0 {
		o.broke("%w", o.refs.broken[0])
	}
	return o.broken
}

// time is the store's.
func (o *oracle) time() time.Time {
	now, err := o.store.ServerTime(context.Background())
	if err != nil {
		panic(err)
	}
	return now
}

// sent implements simOracle.
func (o *oracle) sent(p *simProcess, op fault.Op) {
	defer o.enter()()
	if op.Kind != fault.Put {
		return
	}
	if _, epoch, id, ok := base.ParseWALName(op.Name); ok {
		o.log.sent(p, op, manifest.Pos{Epoch: epoch, ID: id})
	}
	if op.Name == manifestName && !op.PutOptions.IfAbsent && op.PutOptions.IfMatch == "" {
		o.broke("I2: process %d puts MANIFEST without a condition", p.id)
	}
}

// applied implements simOracle.
func (o *oracle) applied(p *simProcess, op fault.Op, err error) {
	defer o.enter()()
	if err != nil {
		return
	}
	switch op.Kind {
	case fault.Put:
		if _, epoch, id, ok := base.ParseWALName(op.Name); ok {
			o.log.landed(manifest.Pos{Epoch: epoch, ID: id}, op.Body)
		}
		if op.Name == manifestName {
			o.head.replaced(p, op.Body)
		}
	case fault.Delete:
		for _, name := range op.Names {
			fence := false
			if _, epoch, id, ok := base.ParseWALName(name); ok {
				fence = o.log.fences[manifest.Pos{Epoch: epoch, ID: id}]
			}
			o.refs.deleted(name, fence, time.Now())
		}
	}
}

// opened implements simOracle. What a writer serves begins with everything that was durable before (I2).
func (o *oracle) opened(p *simProcess) {
	defer o.enter()()
	o.refs.stale = max(o.refs.stale, p.stale)
	if p.role == simWriter {
		o.small.limit(p.opts.MaxProducers)
	}
	s := o.head.state
	if s == nil {
		o.broke("process %d serves a log that is not there", p.id)
		return
	}
	o.look(p)
	if p.role != simWriter || !o.current(p) {
		return
	}
	if at := s.GetPosition().Pos(); at.Epoch != p.epoch {
		o.broke("I2: writer %d of epoch %d serves, and replay would start at %v", p.id, p.epoch, at)
	}
	if seen := o.procs[p.id]; seen.frontier < o.answers.floor {
		o.broke("I2: writer %d serves sequences below %d, and those below %d were acknowledged or read", p.id, seen.frontier, o.answers.floor)
	}
}

// current reports whether a process is the writer by the MANIFEST in force.
func (o *oracle) current(p *simProcess) bool {
	return p.role == simWriter && p.epoch != 0 && p.epoch == o.head.state.GetWriter().GetEpoch()
}

// step implements simOracle.
func (o *oracle) step(n int, alive []*simProcess) {
	defer o.enter()()
	o.now = n
	for _, p := range alive {
		o.look(p)
	}
	for _, a := range o.follows {
		o.followed(a)
	}
	o.follows = slices.DeleteFunc(o.follows, func(a *simAsked) bool { return a.call.proc.dead })
}

// look notes how far a process has come: its frontier and its first sequence never fall (I4), and tell of nothing that is not.
func (o *oracle) look(p *simProcess) {
	if p.log == nil || p.dead {
		return
	}
	seen := o.procs[p.id]
	if seen == nil {
		seen = &simSeen{cursors: map[string]int{}}
		o.procs[p.id] = seen
	}
	frontier, first := p.log.Frontier(), p.log.FirstSequence()
	if frontier < seen.frontier || first < seen.first {
		o.broke("I4: process %d went back from sequences [%d, %d) to [%d, %d)", p.id, seen.first, seen.frontier, first, frontier)
	}
	if frontier != seen.frontier {
		o.checkFrontier(p, frontier)
	}
	if _, ok := slices.BinarySearch(o.head.firsts, first); first != seen.first && !ok {
		o.broke("I4: process %d says that the log begins at %d; it begins at %d", p.id, first, o.head.first)
	}
	seen.frontier, seen.first = frontier, first
}

// checkFrontier looks at a frontier that a process shows: all below it is durable, where reads see durable records only,
// and batches are whole on either side of it (I4).
func (o *oracle) checkFrontier(p *simProcess, frontier uint64) {
	if b := o.log.batchAround(frontier); b != nil {
		o.broke("I4: process %d shows sequences below %d, the middle of the batch [%d, %d)", p.id, frontier, b.first, b.end)
	}
	if most := o.mostReadable(p); frontier > most {
		o.broke("I1: process %d shows sequences below %d; only those below %d are durable", p.id, frontier, most)
	}
}

// mostReadable is the highest frontier that a process may have.
func (o *oracle) mostReadable(p *simProcess) uint64 {
	if seesMemory(p) {
		return o.head.state.GetSeqLimit()
	}
	most := max(o.log.end, o.head.state.GetFlushedEnd())
	if e := o.log.epochs[p.epoch]; p.role == simWriter && e != nil {
		most = max(most, e.begins)
	}
	return most
}

// seesMemory reports whether reads of a process may see records that a crash takes back.
func seesMemory(p *simProcess) bool {
	return p.role == simWriter && p.opts.ReadVisibility == engine.Memory
}

// object reads an object of the bucket.
func (o *oracle) object(id base.ObjectID) ([]byte, error) {
	obj, err := o.store.Get(context.Background(), id.Name(), objstore.GetOptions{})
	return obj.Body, err
}

var _ simOracle = (*oracle)(nil)
