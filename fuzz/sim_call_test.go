package fuzz

import (
	"context"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/fault"
)

// simKind says what a client of the simulation asked for.
type simKind uint8

const (
	simAppend simKind = iota
	simScan
	simCount
	simKeys
	simSetCursors
	simDeleteCursors
	simCursors
	simFlush
	simFollow
)

// simCall is one request of a client to a process, and its answer. The world fills it in; the oracle reads it when all is idle.
type simCall struct {
	id    int // ascending, in the order in which they began
	proc  *simProcess
	kind  simKind
	began int // the step in which it was sent
	ended int // the step in which its answer came; 0: none yet

	// What was asked. Values differ from one another in the whole run, so that a value names its record.
	records  []engine.Record
	append   engine.AppendOptions
	ack      engine.Durability // in force: append.Ack, or what the process's options say
	key      []byte
	rng      engine.Range
	scan     engine.ScanOptions
	page     engine.KeysOptions
	consumer string
	cursors  []engine.Cursor
	force    bool

	// What was answered.
	res   engine.AppendResult // of append
	recs  []engine.Record     // of scan, and what a follow has delivered so far
	next  uint64              // of scan: where to go on
	first uint64              // of scan: the first sequence that the log had when it ended
	count uint64
	keys  [][]byte
	more  bool // of keys: the page is full
	found []engine.Cursor
	err   error

	cancel context.CancelFunc // the caller waits no longer
}

// simRole says what a process does.
type simRole uint8

const (
	simWriter simRole = iota
	simReplica
	simCompactor
)

// simProcess is one process of the simulated world.
type simProcess struct {
	id    int // ascending, in the order in which they began; never used again
	role  simRole
	began int
	epoch uint64           // of a writer, once it has opened
	log   engine.LogReader // nil before it has opened
	db    *engine.DB       // of a writer
	dead  bool             // killed: nothing that it does has any effect any more
	stall bool             // stopped: it does nothing until it is woken
	opts  engine.Options   // of a writer
	keys  engine.KeyRange  // of a replica: what it answers for
	stale time.Duration    // how long it may rely on a MANIFEST that was passed
	cut   bool             // the store gave it less than a whole body, and did not say so

	// Of the world.
	ctx     context.Context // of its opening, or of all that a compactor does
	cancel  context.CancelFunc
	env     *base.Env
	closing bool // it was asked to end cleanly
	killed  bool // dead, and not by itself
	settled bool // what became of its opening is known

	// Guarded by simWorld.mu: what its goroutines have to say.
	skew         time.Duration // of its wall clock
	started      bool          // its opening is over
	exited       bool          // it has ended
	startErr     error
	openedDB     *engine.DB
	openedReader *engine.Reader
}

// simOracle is told everything that happens, by one goroutine, while everything else is idle, and says what must not have
// happened. It has a record of the bucket of its own, made from what was put there.
type simOracle interface {
	// sent: the process asked the store for this. Whether it is ever applied is not decided.
	sent(p *simProcess, op fault.Op)
	// applied: the operation took effect now, with the store's true answer, whatever the process hears, and when.
	applied(p *simProcess, op fault.Op, err error)
	// opened: the process serves.
	opened(p *simProcess)
	// began and ended: a client sent a call, and got its answer.
	began(c *simCall)
	ended(c *simCall)
	// step: an event is over, and everything is idle.
	step(n int, alive []*simProcess)
	// finish: a new writer opened on the calm store at the end, and db is it.
	finish(db *engine.DB)
	// err is what was broken first, nil if nothing was. It names the invariant.
	err() error
}
