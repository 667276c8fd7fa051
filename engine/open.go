package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/memtable"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/trace"
	"github.com/annalsdb/annals/wal"
)

// tree is the only tree of a log until logs are split.
const tree = 0

// walHedgeMin is the least time after which a WAL PUT without an answer is sent
// again; a store that is usually slower raises it (1.5 times its p95).
const walHedgeMin = 250 * time.Millisecond

// skipEmptyEpochs is how many empty epochs an open passes before it commits
// that they need not be looked at again: a crash loop must not make every open
// slower than the one before (F56).
const skipEmptyEpochs = 16

// Open opens the log in the store for writing, and creates it if there is none.
// It fences every earlier writer, recovers what they made durable, and only
// then returns. Whatever was acknowledged as durable is readable.
//
// Nothing is written before LOG and MANIFEST were found valid. ctx bounds the
// open, not the DB's life. Errors: those of Options.Validate,
// objstore.ErrNoConditionalWrites, ErrFenced (another writer opened the log
// meanwhile), ErrCorrupt (it names the object), manifest's errors for a log of
// another version or a damaged one, and those of the store.
func Open(ctx context.Context, store objstore.Store, o Options) (*DB, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	ctx, span := trace.Begin(o.Tracer, ctx, trace.Open)
	db, err := openWriter(ctx, span, store, o)
	span.End(err)
	return db, err
}

// openWriter is Open with options that are complete.
func openWriter(ctx context.Context, span trace.Span, store objstore.Store, o Options) (*DB, error) {
	snap, err := prepare(ctx, store, o.Env)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", store, err)
	}
	span.Phase("prepare")
	db := newDB(store, o, snap)
	// Before the epoch is taken: where a disk cache is required and cannot be had, the log stays with whom it is.
	err = db.tables.openDisk(db.life, db.spawn, o.DiskCacheDir, o.DiskCacheBytes, db.troubles)
	if err == nil {
		err = db.open(ctx, span, snap)
	}
	if err != nil {
		db.abandon()
		return nil, fmt.Errorf("open %s: %w", store, translate(err))
	}
	return db, nil
}

func newDB(store objstore.Store, o Options, snap *manifest.Snapshot) *DB {
	db := &DB{
		opts:      o,
		store:     store,
		owner:     newOwner(o.Env),
		ident:     wal.Identity{LogID: [16]byte(snap.State.GetLogId()), Tree: tree},
		flushWake: make(chan struct{}, 1),
		// One more is in the hands of buildLoop, one in those of commitLoop.
		builtRuns: make(chan *builtRun, maxBuiltRuns-2),
		failedCh:  make(chan struct{}),
		snapshot:  snap,
		nextID:    1,
		// The first append goes out at once.
		lastCut: o.Env.Elapsed() - o.FlushInterval,
	}
	db.life, db.end = context.WithCancel(context.Background())
	db.env, db.tracer = o.Env, o.Tracer
	db.troubles = newTroubles(o.Logger, o.Env)
	if o.DiskCacheRequired {
		db.troubles.requireDisk()
	}
	db.tables = &tables{store: store, env: o.Env, cache: newBlockCache(o.CacheBytes), unreadable: &db.troubles[TablesUnreadable]}
	db.staleAfter = o.StaleAfter
	db.refresh = db.poll
	db.stopped = db.readErr
	db.readState = db.stateNow
	db.small.replace(state.New(state.Limits{Producers: o.MaxProducers}))
	return db
}

// open takes the epoch, recovers and starts the background work.
func (db *DB) open(ctx context.Context, span trace.Span, snap *manifest.Snapshot) error {
	oldEpoch := snap.State.GetWriter().GetEpoch()
	db.epoch = oldEpoch + 1
	db.active = emptyMemory(snap.State)
	db.publishView(true)
	db.committer = manifest.NewCommitter(manifest.CommitterOptions{
		Store:     db.store,
		Env:       db.env,
		Tree:      tree,
		Start:     snap,
		Guard:     db.guard,
		OnCommit:  db.onCommit,
		OnTrouble: db.troubles[HeadUnwritable].note,
		Tracer:    db.tracer,
	})
	opened, err := db.committer.Commit(ctx, manifest.OpenWriter(oldEpoch, db.owner))
	if err != nil {
		return err
	}
	// Work on from what this commit wrote: the old writer may have gone on since
	// snap was read.
	next := manifest.OpenedNext(opened.State)
	db.mu.Lock()
	db.active = emptyMemory(opened.State)
	db.publishView(true)
	db.mu.Unlock()
	db.storeClock.set(opened.StoreTime, db.env.Elapsed())
	if db.storeClock.time.IsZero() {
		if err := db.readStoreClock(ctx); err != nil {
			return err
		}
	}
	span.Phase("commit")
	r := &recovery{db: db, ctx: ctx}
	if err := r.run(opened.State, next); err != nil {
		return err
	}
	span.Phase("recover")
	span.Int("epoch", int64(db.epoch))
	span.Int("records", int64(r.records))
	db.mu.Lock()
	db.next, db.durable = next, next
	db.lastTimestamp = r.chain.LastTimestamp
	db.recovered = r.records
	db.active.from = manifest.Pos{Epoch: db.epoch, ID: 1}
	db.frontier.Store(next)
	db.segment = newSegmentClock(activeSegment(db.snapshot.State), db.env.Elapsed(), db.storeClock)
	db.armSealTimer()
	db.publishView(false)
	db.mu.Unlock()
	db.work()
	return nil
}

// work starts what a writer does from now on in the background.
func (db *DB) work() {
	db.uploader = wal.NewUploader(wal.UploaderOptions{
		Store:     db.store,
		Env:       db.env,
		Ident:     db.ident,
		Epoch:     db.epoch,
		Writer:    db.owner,
		FirstID:   1,
		InFlight:  db.opts.WALInFlight,
		HedgeMin:  walHedgeMin,
		OnDurable: db.onDurable,
		OnFailed:  db.failWith,
		OnSpace:   db.onSpace,
		Tracer:    db.tracer,
	})
	db.spawn("build runs", db.buildLoop)
	db.spawn("commit runs", db.commitLoop)
	db.spawn("poll", db.pollLoop)
	if !db.opts.DisableCompaction {
		db.compactor = &compactor{
			store: db.store, env: db.env, tracer: db.tracer, log: db.opts.Logger, commits: db.committer, limits: db.opts.compactionLimits(),
			fails: &db.troubles[NotCompacting],
		}
		compacting, stop := context.WithCancel(db.life)
		stopped := make(chan struct{})
		db.spawn("compact", func() {
			defer close(stopped)
			_ = db.compactor.run(compacting) // what ends it early is for pollLoop to find
		})
		db.stopCompactor = func() <-chan struct{} {
			stop()
			return stopped
		}
	}
	db.collector = newCollector(db)
	db.spawn("retention", db.retentionLoop)
	db.spawn("collect", db.collector.loop)
}

// emptyMemory continues what a state has in runs.
func emptyMemory(s *manifest.State) *memory {
	return &memory{
		table:   memtable.New(),
		segment: activeSegment(s).GetId(),
		start:   s.GetFlushedEnd(),
		from:    s.GetPosition().Pos(),
	}
}

// guard fences: every commit of this process needs that the epoch is still its
// own, or not yet taken (I2).
func (db *DB) guard(s *manifest.State) error {
	if s.GetWriter().GetEpoch() < db.epoch {
		return nil // the commit that opens is still to come
	}
	if [16]byte(s.GetWriter().GetId()) != db.owner {
		return fmt.Errorf("writer epoch is %d by another process, mine is %d: %w", s.GetWriter().GetEpoch(), db.epoch, manifest.ErrFenced)
	}
	return nil
}

func (db *DB) readStoreClock(ctx context.Context) error {
	now, err := db.store.ServerTime(ctx)
	if err != nil {
		return fmt.Errorf("ask the store's time: %w", err)
	}
	db.storeClock.set(now, db.env.Elapsed())
	return nil
}

// abandon ends what a failed open started.
func (db *DB) abandon() {
	db.end()
	if db.committer != nil {
		db.committer.Close()
	}
	db.background.Wait()
}

// recovery fences the epochs before the DB's own and brings what they made
// durable into runs, so that the new epoch starts with an empty memtable and at
// its own first WAL object. Every commit on the way moves position behind what
// is in runs already: a crash at any point loses nothing and repeats nothing
// (F11).
type recovery struct {
	db      *DB
	ctx     context.Context
	chain   wal.Chain
	at      manifest.Pos // position, as committed
	records uint64
}

func (r *recovery) run(opened *manifest.State, next uint64) error {
	active := activeSegment(opened)
	r.at = opened.GetPosition().Pos()
	r.chain = wal.Chain{
		Started:       true,
		End:           opened.GetFlushedEnd(),
		LastTimestamp: opened.GetLastTimestampMs(),
		Segment:       active.GetId(),
	}
	if err := r.loadState(opened); err != nil {
		if !errors.Is(err, ErrCorrupt) || !r.mayForget(opened) {
			return err
		}
		r.forgetState(err)
	}
	fences, err := r.fence()
	if err != nil {
		return err
	}
	for _, f := range fences {
		if err := r.replay(f); err != nil {
			return err
		}
	}
	if r.chain.End > next {
		return fmt.Errorf("%w: the WAL ends at sequence %d, above the %d that may have been assigned", ErrCorrupt, r.chain.End, next)
	}
	// The commit that ends the recovery also proves that the epoch is still ours:
	// if another writer passed us and went on, what we replayed may be short (F45).
	own := manifest.Pos{Epoch: r.db.epoch, ID: 1}
	if r.db.active.empty() {
		return r.skipTo(own)
	}
	return r.flush(own, false)
}

// fencedEpoch is an epoch that can no longer grow.
type fencedEpoch struct {
	epoch, from, fence uint64
}

// fence ends every epoch from position's to the one before ours. All are fenced
// before any is replayed.
func (r *recovery) fence() ([]fencedEpoch, error) {
	var fences []fencedEpoch
	for e := r.at.Epoch; e < r.db.epoch; e++ {
		from := uint64(1)
		if e == r.at.Epoch {
			from = r.at.ID
		}
		f, err := wal.FenceEpoch(r.ctx, r.db.store, r.db.env, r.db.ident, e, from, r.db.epoch)
		if err != nil {
			return nil, r.missing(err)
		}
		fences = append(fences, fencedEpoch{e, from, f})
		if f == from && len(fences) >= skipEmptyEpochs && allEmpty(fences) {
			if err := r.skipTo(manifest.Pos{Epoch: e + 1, ID: 1}); err != nil {
				return nil, err
			}
			fences = fences[:0]
		}
	}
	return fences, nil
}

func allEmpty(fences []fencedEpoch) bool {
	for _, f := range fences {
		if f.fence != f.from {
			return false
		}
	}
	return true
}

// replay reads one fenced epoch up to its first fence. What lies behind it is
// dead. Of an epoch without records, as a clean close or a crash loop leaves, nothing is read: who fenced it has seen
// that its first object is the fence.
func (r *recovery) replay(f fencedEpoch) error {
	if f.fence == f.from {
		return nil
	}
	_, err := wal.Replay(r.ctx, r.db.store, r.db.env, r.db.ident, f.epoch, f.from, &r.chain, r.object)
	return r.missing(err)
}

// missing explains an object that is not there: it was collected by a writer that
// passed us, or it is lost.
func (r *recovery) missing(err error) error {
	if !errors.Is(err, wal.ErrMissing) {
		return err
	}
	if perr := r.db.poll(r.ctx); perr != nil {
		return fmt.Errorf("%w (after: %w)", perr, err)
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// object takes one record object in.
func (r *recovery) object(o *wal.Object, _ int64) error {
	m := r.db.active
	here := manifest.Pos{Epoch: o.Epoch, ID: o.ID}
	if o.Segment != m.segment {
		if err := r.endSegment(here, o.Segment); err != nil {
			return err
		}
		m = r.db.active
	}
	var recs []Record
	for e := range o.Entries() {
		if e.Type == wal.EntryBatch {
			recs = e.Batch.AppendRecords(recs[:0])
			m.table.AddBatch(e.Batch.First, e.Batch.Timestamp, recs)
			m.bytes += int64(e.Batch.Bytes())
			m.end = e.Batch.End()
			r.records += uint64(e.Batch.Count)
			continue
		}
		r.db.small.apply(&e)
		m.changes += int64(e.Size())
	}
	if m.table.Bytes()+m.changes < r.db.opts.MemtableBytes {
		return nil
	}
	return r.flush(manifest.Pos{Epoch: o.Epoch, ID: o.ID + 1}, false)
}

// endSegment seals the active segment before an object of a later one. The old
// writer had sealed it there, or was about to.
func (r *recovery) endSegment(here manifest.Pos, next uint32) error {
	m := r.db.active
	if next != m.segment+1 {
		return base.Corruptf(base.WALName(tree, here.Epoch, here.ID), 0, "segment is %d, the one before it %d", next, m.segment)
	}
	if m.empty() {
		if err := r.skipTo(here); err != nil {
			return err
		}
	}
	return r.flush(here, true)
}

// flush writes the active memory, as a run and a state object, and commits it, with the same code as
// the flusher.
func (r *recovery) flush(to manifest.Pos, seal bool) error {
	m := r.db.active
	m.to, m.seal = to, seal
	m.table.Freeze()
	if m.changes > 0 {
		m.state = r.db.small.tables.Clone() // of all that was replayed: what comes before to
	}
	var err error
	if m.table.Empty() {
		m.end = m.start
		err = r.db.commitEmpty(r.ctx, m)
	} else {
		b := r.db.buildRun(m)
		if b.written, err = r.db.uploadRun(r.ctx, b); err == nil {
			err = r.db.commitRun(r.ctx, b)
		}
	}
	if err != nil {
		return err
	}
	r.at = to
	r.nextMemory(m, seal)
	return nil
}

// nextMemory starts an empty memory behind a flushed one.
func (r *recovery) nextMemory(m *memory, seal bool) {
	segment := m.segment
	if seal {
		segment++
	}
	r.db.mu.Lock()
	defer r.db.mu.Unlock()
	r.db.active = &memory{table: memtable.New(), segment: segment, start: m.end, from: r.at}
	r.db.publishView(false)
}

func (r *recovery) skipTo(to manifest.Pos) error {
	if !r.at.Less(to) {
		return nil
	}
	if _, err := r.db.committer.Commit(r.ctx, manifest.SkipTo(r.db.epoch, r.at, to, nil)); err != nil {
		return err
	}
	r.at = to
	r.db.active.from = to
	return nil
}

func activeSegment(s *manifest.State) *manifest.Segment {
	return s.GetSegments()[len(s.GetSegments())-1]
}
