package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/wal"
)

// DB is the writer of a log, and its linearizable reader. All methods may be
// called from any goroutine. Open it with Open, end it with Close.
//
// How a record moves, and what guards what:
//
//   - Append assigns sequences under mu, adds the batch to the active memory and
//     to the WAL object under construction (builder).
//   - A cut moves the builder's bytes to cuts, from where they go to the uploader
//     in id order. The uploader calls onDurable in id order (I1).
//   - rotate freezes the active memory at a WAL object boundary; buildLoop turns
//     frozen memories into runs and starts their uploads, and commitLoop commits each by
//     one edit of the MANIFEST, oldest first (I5), never before it is durable.
//   - Changes of the small state (cursors, producers) go the same way: into the tables under mu and the
//     WAL object under construction. rotate takes a snapshot of the tables, which has exactly what the WAL objects
//     before the memory's end say, and the same edit puts it in force.
//   - Every change of the memories or of the MANIFEST publishes a new view under
//     mu; readers never take mu.
//
// mu is never held across a store call or a wait.
type DB struct {
	core

	opts      Options
	store     objstore.Store
	ident     wal.Identity
	owner     [16]byte
	epoch     uint64
	recovered uint64
	committer *manifest.Committer
	uploader  *wal.Uploader

	// life ends when the DB is closed or failed for good: background work runs
	// under it.
	life       context.Context
	end        context.CancelFunc
	background sync.WaitGroup
	flushWake  chan struct{} // capacity 1
	builtRuns  chan *builtRun
	// lastWritten is risingTime's: the store's time, of the last upload or seal. It belongs to the recovery, then to commitLoop.
	lastWritten time.Time
	failedCh    chan struct{} // closed by fail

	// Why the DB stopped for good (as failed), and why nothing can be read any more; nil: it did not, and it can be. They are
	// set under mu and read without it: every request asks, while appends hold mu for as long as they copy.
	failure, unreadable atomic.Pointer[error]

	mu            sync.Mutex
	failed        error // why the DB stopped for good; set once
	closing       bool  // no new appends
	closed        bool  // no reads either
	next          uint64
	durable       uint64 // every sequence below is durable
	durableID     uint64 // every WAL object of this epoch up to it is in the store
	landing       bool   // objects are being reported durable; onSpace comes behind the last
	seqLimit      uint64 // as committed (I3)
	raising       bool   // a commit that raises seqLimit is under way
	lastTimestamp int64
	storeClock    storeClock

	active     *memory
	frozen     []*memory // waiting to be flushed, oldest first
	built      int       // how many of frozen buildLoop has taken
	recent     []*memory // flushed, kept for readers at the tip, oldest first
	segment    segmentClock
	unflush    int64 // record bytes, and changes of the small state, in active and frozen
	frozenHeap int64 // heap of frozen
	flushes    broadcast
	line       []*ticket // appends that wait for room, first come first
	waiters    []*durableWaiter
	oldWaiters sync.Pool // those whose wait is over, for the next: else an append of one record allocates four times
	snapshot   *manifest.Snapshot
	small      smallState // as assigned
	stateLost  bool       // the base in force could not be read: the next one is a new one
	stateAt    place      // behind the last change of it

	builder      *wal.Builder // nil or the object under construction
	nextID       uint64       // its id
	lastCut      time.Duration
	stopCut      func() bool // of the armed cut timer, or nil
	stopSeal     func() bool // of the armed seal timer, or nil
	cuts         []cut
	spare        [][]byte // buffers of objects that landed, for the next ones
	tableBuffers [][]byte // of tables that were uploaded, for the next ones
	submitted    []cut    // at the uploader, not yet durable, in id order

	announced []Record // memory of wakeFollowersOf, which alone uses it

	collector *collector
	compactor *compactor // nil if disabled
	// stopCompactor makes it end and returns what is closed then.
	stopCompactor func() <-chan struct{}

	stats counters
}

// cut is a finished WAL object.
type cut struct {
	id   uint64
	end  uint64 // sequence after its last record
	body []byte
	at   time.Duration // Elapsed() when it was cut
}

// counters are guarded by DB.mu.
type counters struct {
	appendedRecords, appendedBytes uint64
	walObjects, walBytes           uint64
	flushes, flushedBytes          uint64
	flushFailures, seals           uint64
	commits                        uint64
	overloaded                     uint64
	segmentsDropped, bytesDropped  uint64
	retentionFailures              uint64
	conflicts, repeats             uint64
	stateObjects, stateObjectBytes uint64
	collected                      Collected
	collections, sweeps            uint64
	collectFailures                uint64
}

// storeClock estimates the store's time from its last answer. It is never ahead of it, and behind by as long
// as the answer took.
type storeClock struct {
	time time.Time     // what the store said
	at   time.Duration // Elapsed() when that had come
}

// set takes a later reading.
func (c *storeClock) set(t time.Time, at time.Duration) {
	if !t.IsZero() {
		c.time, c.at = t, at
	}
}

func (c *storeClock) now(elapsed time.Duration) time.Time { return c.time.Add(elapsed - c.at) }

// broadcast wakes everybody who waits, each time. Guarded by DB.mu.
type broadcast struct{ ch chan struct{} }

// wait returns a channel that the next signal closes.
func (b *broadcast) wait() <-chan struct{} {
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) signal() {
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// fail stops the DB for good. The first reason counts. What is pending ends
// with an unknown outcome.
func (db *DB) fail(err error) {
	db.mu.Lock()
	if db.failed != nil {
		db.mu.Unlock()
		return
	}
	db.failed = err
	db.failure.Store(&err)
	db.unreadable.Store(&err)
	waiters := db.waiters
	db.waiters = nil
	db.allInLine()
	db.flushes.signal()
	db.stopTimers()
	close(db.failedCh)
	db.mu.Unlock()
	db.end()
	for _, w := range waiters {
		w.done <- err
	}
	db.followers.wakeAll()
	db.opts.Logger.Error("the log stopped", "error", err)
}

// failWith turns the errors of the packages below into the engine's and stops
// the DB with it.
func (db *DB) failWith(err error) {
	if db.life.Err() != nil && !errors.Is(err, manifest.ErrFenced) && !errors.Is(err, wal.ErrFenced) {
		return // closing, or failed already: a consequence
	}
	db.fail(translate(err))
}

// translate makes fencing look the same wherever it was noticed.
func translate(err error) error {
	if errors.Is(err, manifest.ErrFenced) || errors.Is(err, wal.ErrFenced) {
		return fmt.Errorf("%w (%w)", ErrFenced, err)
	}
	return err
}

// Failed is closed when the DB stopped for good: it was fenced, or the store
// holds something that it must not. Err says why. Close it.
func (db *DB) Failed() <-chan struct{} { return db.failedCh }

// Err returns why the DB stopped for good, or nil.
func (db *DB) Err() error { return reason(&db.failure) }

// readErr returns why nothing can be read any more, or nil.
func (db *DB) readErr() error { return reason(&db.unreadable) }

func reason(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}

// spawn starts background work that Close waits for.
func (db *DB) spawn(name string, f func()) {
	db.background.Add(1)
	db.opts.Env.Go(name, func() {
		defer db.background.Done()
		f()
	})
}

// publishView installs the view of the current snapshot and memories. Callers
// hold mu.
func (db *DB) publishView(snapshotChanged bool) {
	memories := make([]*memory, 0, len(db.recent)+len(db.frozen)+1)
	memories = append(memories, db.recent...)
	memories = append(memories, db.frozen...)
	memories = append(memories, db.active)
	memories = db.withoutDropped(memories)
	if old := db.view.Load(); old != nil && !snapshotChanged {
		db.publish(old.withMemories(memories))
		return
	}
	db.publish(newView(db.snapshot, memories))
}

// onCommit adopts a version of the MANIFEST, ours or one that a poll found. The
// committer calls it in version order. A version of another writer ends this one
// (I2).
func (db *DB) onCommit(s *manifest.Snapshot) {
	if err := db.guard(s.State); err != nil {
		db.failWith(err)
		return
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.snapshot = s
	db.seqLimit = s.State.GetSeqLimit()
	db.stats.commits++
	db.publishView(true)
	db.provedAt(s.Sent)
	db.room()
}

// pollInterval is how often the writer looks whether it was passed, and proves
// its view current.
const pollInterval = time.Second

// pollLoop reads the MANIFEST every second until the DB ends.
func (db *DB) pollLoop() {
	for db.opts.Env.Sleep(db.life, pollInterval) == nil {
		err := db.poll(db.life)
		if db.life.Err() != nil {
			return
		}
		if errors.Is(err, manifest.ErrOtherLog) {
			db.failWith(err) // what it would acknowledge from now on would be in nobody's log
			return
		}
		db.troubles[HeadUnreadable].note(err)
		db.troubles[NotDurable].note(db.walTrouble())
		db.tables.tryAgain(db.life, db.spawn)
	}
}

// walTrouble returns why the oldest WAL object has not landed for some time, or nil.
func (db *DB) walTrouble() error {
	db.mu.Lock()
	var oldest cut
	if len(db.submitted) > 0 {
		oldest = db.submitted[0]
	}
	db.mu.Unlock()
	if oldest.id == 0 {
		return nil
	}
	age := db.env.Elapsed() - oldest.at
	last := db.uploader.Stats().LastError
	switch {
	case objstore.Lasting(last):
		return last // it does not end by itself
	case age < walLate:
		return nil
	}
	if last != nil {
		return fmt.Errorf("WAL object %d has not landed for %v: %w", oldest.id, age.Round(time.Second), last)
	}
	return fmt.Errorf("WAL object %d has not landed for %v: the store does not answer", oldest.id, age.Round(time.Second))
}

// walLate is how long a WAL object may be under way before that is trouble.
const walLate = 5 * time.Second

// poll reads the MANIFEST once.
func (db *DB) poll(ctx context.Context) error {
	s, err := db.committer.Refresh(ctx)
	if err != nil {
		// Wrong bytes may be one bad read. If they are really there, the view goes
		// stale and the next commit fails.
		return err
	}
	if err := db.guard(s.State); err != nil {
		return translate(err)
	}
	db.provedAt(s.Sent)
	return nil
}

// Ready returns nil when the store answered lately, nothing that this writer must be able to do fails, and it is not
// fenced, as far as it knows. A permission that is gone shows when it was needed: for records with the next append, for
// the head within 20 s, by the compactor's beat, if this process compacts.
func (db *DB) Ready(ctx context.Context) error {
	if err := db.readErr(); err != nil {
		return err
	}
	db.troubles[NotDurable].note(db.walTrouble())
	if err := db.troubles.stops(); err != nil {
		return err
	}
	age := db.env.Elapsed() - time.Duration(db.proved.Load())
	if age <= readyWithin {
		return nil
	}
	if err := db.poll(ctx); err != nil {
		return fmt.Errorf("%s: %w", HeadUnreadable.Says(), err)
	}
	return nil
}

// readyWithin is how old the last good answer of the store may be for a writer
// to call itself ready without asking again.
const readyWithin = 5 * time.Second

var _ LogReader = (*DB)(nil)

// newOwner draws the id of a process that opens the log.
func newOwner(env *base.Env) (id [16]byte) {
	env.Random(id[:])
	return id
}
