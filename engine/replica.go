package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/trace"
	"github.com/annalsdb/annals/wal"
)

// Reader is a replica: it follows a log in the store and serves every read, and needs no
// more than to read there. What it returns is a prefix of the log: everything below its
// frontier, which never falls (I4). All methods may be called from any goroutine. Open
// it with OpenReader, end it with Close.
//
// Two goroutines keep it current, tailLoop and headLoop; see replica_tail.go and
// replica_adopt.go for what they may do. Neither is told anything by the writer: all
// they know they have read.
type Reader struct {
	core

	opts      ReaderOptions
	store     objstore.Store
	ident     wal.Identity
	committer *manifest.Committer // it polls, and never commits
	tail      *wal.Tail           // used by the one goroutine that runs step

	life       context.Context // ends when the replica is closed or failed
	end        context.CancelFunc
	background sync.WaitGroup
	moved      chan struct{} // capacity 1: a MANIFEST was adopted that the tail should know of
	closing    atomic.Bool
	failed     chan struct{}         // closed by fail
	stop       atomic.Pointer[error] // why nothing can be read any more

	walPolls, walObjects, manifestPolls, jumps atomic.Uint64

	mu sync.Mutex // guards what follows; never held across a store call or a wait
	tailState
	progress progress
}

// OpenReader opens a replica of the log in the store. It reads LOG and MANIFEST, and then the
// WAL as far as there is one: what was durable before the call is readable after it, unless
// the WAL cannot be read on or does not fit into TailBytes, which Ready and Status tell. A log
// that grows faster than it can be read is followed for half a minute first. ctx bounds
// the opening, not the replica's life.
//
// It writes nothing, and asks the store for nothing but objects. Errors: those of
// ReaderOptions.Validate, manifest.ErrNoLog (there is no log yet), ErrCorrupt, manifest's errors for a log
// of another version or a damaged one, and those of the store.
func OpenReader(ctx context.Context, store objstore.Store, o ReaderOptions) (*Reader, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	ctx, span := trace.Begin(o.Tracer, ctx, trace.Open)
	r, err := openReader(ctx, span, store, o)
	span.End(err)
	return r, err
}

// openReader is OpenReader with options that are complete.
func openReader(ctx context.Context, span trace.Span, store objstore.Store, o ReaderOptions) (*Reader, error) {
	snap, err := manifest.Load(ctx, store, o.Env, tree)
	if err != nil {
		return nil, fmt.Errorf("open a replica of %s: %w", store, err)
	}
	span.Phase("prepare")
	r := newReader(store, o, snap)
	r.catchUp(ctx)
	span.Phase("catch_up")
	span.Int("wal_objects", int64(r.walObjects.Load()))
	err = errors.Join(ctx.Err(), r.readErr())
	if err == nil {
		err = r.tables.openDisk(r.life, r.spawn, o.DiskCacheDir, o.DiskCacheBytes, r.troubles)
	}
	if err != nil {
		r.end()
		r.committer.Close()
		return nil, fmt.Errorf("open a replica of %s: %w", store, err)
	}
	r.spawn("replica tail", r.tailLoop)
	r.spawn("replica head", r.headLoop)
	return r, nil
}

func newReader(store objstore.Store, o ReaderOptions, snap *manifest.Snapshot) *Reader {
	r := &Reader{
		opts:   o,
		store:  store,
		ident:  wal.Identity{LogID: [16]byte(snap.State.GetLogId()), Tree: tree},
		moved:  make(chan struct{}, 1),
		failed: make(chan struct{}),
	}
	r.life, r.end = context.WithCancel(context.Background())
	r.env, r.tracer = o.Env, o.Tracer
	r.troubles = newTroubles(o.Logger, o.Env)
	if o.DiskCacheRequired {
		r.troubles.requireDisk()
	}
	r.tables = &tables{store: store, env: o.Env, cache: newBlockCache(o.CacheBytes), unreadable: &r.troubles[TablesUnreadable]}
	r.staleAfter = o.StaleAfter
	r.keys = o.Keys
	r.refresh = r.poll
	r.stopped = r.readErr
	r.readState = r.stateNow
	r.tail = wal.NewTail(store, o.Env, r.ident)
	r.progress = progress{caughtUp: snap.Sent, interval: o.PollInterval}
	r.start(snap)
	r.committer = manifest.NewCommitter(manifest.CommitterOptions{
		Store: store, Env: o.Env, Tree: tree, Start: snap, OnCommit: r.adopt,
	})
	return r
}

// maxCatchUp bounds how long OpenReader follows a WAL that grows faster than it is read.
const maxCatchUp = 30 * time.Second

// catchUp reads the WAL to its end. That an object is missing is the end only if a MANIFEST
// read afterwards has not passed it.
func (r *Reader) catchUp(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := r.env.AfterFunc(maxCatchUp, cancel)
	defer stop()
	for ctx.Err() == nil {
		r.step(ctx)
		r.mu.Lock()
		at, trouble := r.cursor, r.progress.trouble
		r.mu.Unlock()
		if passed, err := r.passed(ctx, at); trouble != nil || err != nil || !passed {
			return
		}
	}
}

// Close ends the replica and waits, within ctx, for its background work. After it nothing of
// the replica can be used. Close again returns ErrClosed.
func (r *Reader) Close(ctx context.Context) error {
	if !r.closing.CompareAndSwap(false, true) {
		return ErrClosed
	}
	closed := ErrClosed
	r.stop.CompareAndSwap(nil, &closed)
	r.end()
	r.followers.wakeAll()
	done := make(chan struct{})
	r.env.Go("replica close", func() {
		defer close(done)
		r.committer.Close()
		r.background.Wait()
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close: requests are still under way: %w", ctx.Err())
	}
}

// fail stops the replica for good. The first reason counts.
func (r *Reader) fail(err error) {
	if !r.stop.CompareAndSwap(nil, &err) {
		return
	}
	close(r.failed)
	r.end()
	r.followers.wakeAll()
	r.opts.Logger.Error("the replica stopped", "error", err)
}

// failsForGood reports whether the log needs a newer binary, or another log is in its place: nothing that comes later can be
// read by this one.
func failsForGood(err error) bool {
	return errors.Is(err, manifest.ErrOtherLog) || errors.Is(err, manifest.ErrVersion) || errors.Is(err, manifest.ErrFeature) || errors.Is(err, wal.ErrVersion) ||
		errors.Is(err, state.ErrVersion)
}

// Failed is closed when the replica stopped for good: the log needs a newer binary, or was deleted and another is in its
// place. Err says so. Close it. Whatever else happens in the store, a replica waits for it to end.
func (r *Reader) Failed() <-chan struct{} { return r.failed }

// Err returns why the replica stopped for good, or nil.
func (r *Reader) Err() error {
	select {
	case <-r.failed:
		return *r.stop.Load()
	default:
		return nil
	}
}

// readErr returns why nothing can be read any more, or nil. It takes no lock: followers ask
// while r.mu is held.
func (r *Reader) readErr() error {
	if err := r.stop.Load(); err != nil {
		return *err
	}
	return nil
}

// spawn starts background work that Close waits for.
func (r *Reader) spawn(name string, f func()) {
	r.background.Add(1)
	r.env.Go(name, func() {
		defer r.background.Done()
		f()
	})
}

// Ready returns nil when the replica has read the log's end lately, as far as it knows: it is at
// most max(5 s, 10 * PollInterval) behind, the MANIFEST was read within 5 s, or can be read now, and tables that were needed could be.
func (r *Reader) Ready(ctx context.Context) error {
	if err := r.readErr(); err != nil {
		return err
	}
	if err := r.troubles.stops(); err != nil {
		return err
	}
	if r.headAge() > readyWithin {
		if err := r.poll(ctx); err != nil {
			return fmt.Errorf("%s: %w", HeadUnreadable.Says(), err)
		}
	}
	lag, trouble := r.lag()
	switch {
	case lag <= r.opts.maxLag():
		return nil
	case trouble != nil:
		return fmt.Errorf("the replica is %v behind: %w", lag.Round(time.Second), trouble)
	}
	return fmt.Errorf("the replica is %v behind", lag.Round(time.Second))
}

// ReplicaStatus is the part of a Status that only replicas have. It is zero at a writer.
type ReplicaStatus struct {
	Replica        bool
	Keys           KeyRange      // what it keeps
	LagSequences   uint64        // known to exist and not yet readable here
	LagTime        time.Duration // since everything that was there was readable; 0: it was at the last poll
	WALPolls       uint64        // requests for WAL objects
	WALObjectsRead uint64        // of these, with an object that was applied
	ManifestPolls  uint64
	Jumps          uint64 // times that the tail went on behind objects that it had not read
}

// Status returns a consistent picture; it costs no I/O. Of a replica Next is 0: it does not know it.
func (r *Reader) Status() Status {
	v := r.view.Load()
	s := Status{Store: r.store.String(), LogID: r.ident.LogID, Epoch: v.snap.State.GetWriter().GetEpoch()}
	s.ReplicaStatus = ReplicaStatus{
		Replica: true, Keys: r.opts.Keys,
		WALPolls: r.walPolls.Load(), WALObjectsRead: r.walObjects.Load(),
		ManifestPolls: r.manifestPolls.Load(), Jumps: r.jumps.Load(),
	}
	s.LagTime, _ = r.lag()
	s.Troubles = r.troubles.list()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(v, &s)
	s.Durable = s.Frontier
	s.LagSequences = r.progress.waiting
	s.UnflushedBytes = r.unflushedBytes()
	if r.loaded {
		s.Consumers, s.Cursors, _ = r.small.tables.Counts()
		s.StateBytes = r.small.tables.Bytes()
	}
	return s
}

// Head returns the state of the MANIFEST that reads use now. It must not be changed.
func (r *Reader) Head() *manifest.State { return r.view.Load().snap.State }

var _ LogReader = (*Reader)(nil)
