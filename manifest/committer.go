package manifest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/trace"
)

// Bounds of a committer (I9).
const (
	// maxQueued edits wait for the committer; further Commit calls wait for room.
	maxQueued = 1024
	// maxBatch edits are folded into one commit.
	maxBatch = 64
	// A refused or failed commit is tried again after a jittered wait that doubles from
	// the first to a limit, for as long as the committer is open. The limit is low while it is
	// other processes' commits that get in the way, so that nobody starves.
	commitBackoffFirst   = 20 * time.Millisecond
	commitBackoffLimit   = 5 * time.Second
	conflictBackoffLimit = 250 * time.Millisecond
	// callTimeout bounds one request to the store; what it did is then unknown.
	callTimeout = 30 * time.Second
)

// CommitterOptions configure a Committer. Store, Env and Start are required.
type CommitterOptions struct {
	Store objstore.Store
	Env   *base.Env
	Tree  uint32
	// Start is the version that the process works from, as Load or another committer
	// gave it.
	Start *Snapshot
	// Guard, if not nil, is run on every state before edits are applied to it. Its error
	// fails all edits that wait: WriterGuard and CompactorGuard.
	Guard func(*State) error
	// OnCommit, if not nil, is called with every newer version that the committer
	// adopts, written by itself or read, serialised and in version order (versions may be
	// missing), and before Commit returns a version. It must return soon and call no
	// method but Current.
	OnCommit func(*Snapshot)
	// OnTrouble, if not nil, is called whenever the store fails a commit, which is then tried again, and with nil when a
	// commit has come to its end. By one goroutine at a time; it must return soon and not call the Committer.
	OnTrouble func(error)
	// Tracer, if not nil, is told of every batch of edits that is committed.
	Tracer trace.Tracer
}

// Committer commits the edits of one process to one tree's MANIFEST: it folds
// what is queued into one compare-and-swap, and after every failure looks at what is
// there and applies each edit again by its precondition. So nothing is applied
// twice, nothing that another process wrote is overwritten (F18, F19, F21), and
// every edit's result is reported exactly once.
//
// All methods may be called from any goroutine, except that OnCommit and Edit.Apply
// may call Current only.
type Committer struct {
	opts CommitterOptions
	name string

	ctx     context.Context // ends at Close; bounds the committer's own requests
	cancel  context.CancelFunc
	queue   chan *pending
	stopped chan struct{} // closed when it has come to rest after Close

	runMu   sync.Mutex
	running bool // a goroutine runs, or is about to start
	ended   sync.Once

	// adoptMu serialises changes of current and the calls of OnCommit. It is held
	// over no I/O.
	adoptMu sync.Mutex
	current atomic.Pointer[Snapshot]
	// lastErr is what the store last failed with, for the errors of callers who gave up.
	lastErr atomic.Pointer[error]
}

// pending is one edit on its way. Only the committer's goroutine uses the fields below
// done.
type pending struct {
	edit Edit
	done chan outcome // capacity 1, sent to once

	sentETags []string // If-Match of every commit that was sent with this edit in it
	decided   bool     // by the current fold: the edit is not part of next ...
	err       error    // ... because of this; nil: it is already in force
}

type outcome struct {
	snap *Snapshot
	err  error
}

// EditError is the error of an edit that was not, or not provably, applied. It
// matches (errors.Is) its cause, and ErrUnknown unless it is certain that the edit was never
// sent to the store and never will be.
type EditError struct {
	// Name is the edit's.
	Name string
	// Err is the cause: the edit's own error, ErrFenced, ErrClosed, the caller's
	// context's, or damage.
	Err error
	// SentETags are the ETags that the commits with this edit named as their condition.
	// Such a commit may still land for as long as MANIFEST has that ETag: a
	// failed job deletes its outputs only if a MANIFEST read afterwards has another
	// one and does not name them (F50).
	SentETags []string
	// Pending: the caller stopped waiting; the committer goes on with the edit, and
	// SentETags is not filled in.
	Pending bool
}

// Error implements error.
func (e *EditError) Error() string {
	if e.unknown() {
		return fmt.Sprintf("commit %s: %v: %v", e.Name, ErrUnknown, e.Err)
	}
	return fmt.Sprintf("commit %s: %v", e.Name, e.Err)
}

// Unwrap returns the cause.
func (e *EditError) Unwrap() error { return e.Err }

// Is reports whether target is ErrUnknown and the outcome is unknown.
func (e *EditError) Is(target error) bool { return target == ErrUnknown && e.unknown() }

func (e *EditError) unknown() bool { return e.Pending || len(e.SentETags) > 0 }

// NewCommitter starts a committer. The caller must Close it.
func NewCommitter(opts CommitterOptions) *Committer {
	if opts.Store == nil || opts.Env == nil || opts.Start == nil {
		panic("manifest: committer needs a store, an environment and a version to start from")
	}
	c := &Committer{
		opts:    opts,
		name:    base.ManifestName(opts.Tree),
		queue:   make(chan *pending, maxQueued),
		stopped: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.current.Store(opts.Start)
	return c
}

// CommitOne commits one edit with a committer of its own: for openings and commands. When
// ctx ends first the outcome is unknown.
func CommitOne(ctx context.Context, opts CommitterOptions, e Edit) (*Snapshot, error) {
	c := NewCommitter(opts)
	defer c.Close()
	return c.Commit(ctx, e)
}

// Commit applies an edit and returns the version that it is part of: the one that its commit
// wrote or, when an answer was lost, a version in which it was found to be in force. Edits of
// one committer are applied in the order of the Commit calls.
//
// ctx bounds the caller's wait only: after it the committer still tries to apply an edit
// that was queued. Any error is an *EditError; nothing but Close, a failing Guard, the edit's
// own precondition and damage ends the committer's tries.
func (c *Committer) Commit(ctx context.Context, e Edit) (*Snapshot, error) {
	p := &pending{edit: e, done: make(chan outcome, 1)}
	if err := ctx.Err(); err != nil {
		return nil, &EditError{Name: e.Name, Err: err}
	}
	select {
	case c.queue <- p: // if there is room, whatever else has happened: run knows
	default:
		select {
		case c.queue <- p:
		case <-ctx.Done():
			return nil, &EditError{Name: e.Name, Err: c.gaveUp(ctx)}
		case <-c.ctx.Done():
			return nil, &EditError{Name: e.Name, Err: ErrClosed}
		}
	}
	c.start()
	select {
	case o := <-p.done:
		return o.snap, o.err
	case <-ctx.Done():
	case <-c.stopped:
	}
	// A result that is there already wins.
	select {
	case o := <-p.done:
		return o.snap, o.err
	default:
	}
	select {
	case <-c.stopped: // queued after the committer had come to rest: it is never sent
		return nil, &EditError{Name: e.Name, Err: ErrClosed}
	default:
		return nil, &EditError{Name: e.Name, Err: c.gaveUp(ctx), Pending: true}
	}
}

// gaveUp is the error of a caller whose context ended, with what the store last said.
func (c *Committer) gaveUp(ctx context.Context) error {
	if last := c.lastErr.Load(); last != nil {
		return fmt.Errorf("%w (the store's last error: %v)", ctx.Err(), *last)
	}
	return ctx.Err()
}

// failed takes what the store said to a commit, which is tried again. That somebody else was first is no trouble, nor that
// the Committer is closed.
func (c *Committer) failed(err error) {
	c.lastErr.Store(&err)
	if c.ctx.Err() == nil && !errors.Is(err, objstore.ErrPrecondition) && !errors.Is(err, objstore.ErrConflict) {
		c.trouble(err)
	}
}

// trouble tells of what fails, or with nil that nothing does any more.
func (c *Committer) trouble(err error) {
	if c.opts.OnTrouble != nil {
		c.opts.OnTrouble(err)
	}
}

// Current returns the newest version that the committer knows.
func (c *Committer) Current() *Snapshot { return c.current.Load() }

// Refresh asks the store whether there is a newer version, adopts it, and returns the newest
// that is known afterwards: its Sent is then that of this request or a later one. It
// works beside a commit that hangs, and after Close. It does not run Guard.
//
// Errors: ErrMissingManifest, ErrOtherLog, ErrVersion, ErrFeature, base.ErrCorrupt (also when the
// version went back), and those of the store.
func (c *Committer) Refresh(ctx context.Context) (*Snapshot, error) {
	call, end := c.bound(ctx)
	defer end()
	known := c.current.Load()
	snap, sent, err := Poll(call, c.opts.Store, c.opts.Env, c.opts.Tree, known.ETag)
	if err != nil {
		if ctx.Err() == nil && call.Err() != nil {
			err = fmt.Errorf("read %s: no answer within %v: %w", c.name, callTimeout, err)
		}
		return nil, err
	}
	if snap == nil {
		snap = &Snapshot{State: known.State, ETag: known.ETag, Sent: sent, StoreTime: known.StoreTime}
	} else if err := CheckNext(known, snap); err != nil {
		return nil, err
	}
	c.adopt(snap)
	return c.current.Load(), nil
}

// Close ends the committer and waits for its goroutine. Edits that are queued or under way fail
// with ErrClosed; those that were sent may have been applied (ErrUnknown). It may be
// called more than once.
func (c *Committer) Close() {
	c.cancel()
	c.start()
	<-c.stopped
}

// adopt makes snap the current version unless a newer one is known.
func (c *Committer) adopt(snap *Snapshot) {
	c.adoptMu.Lock()
	defer c.adoptMu.Unlock()
	cur := c.current.Load()
	if snap.State.Version < cur.State.Version {
		return // an answer that was overtaken
	}
	// What was proven of the older version at a later request holds for the newer
	// too: it came after.
	merged := *snap
	merged.Sent = max(snap.Sent, cur.Sent)
	if cur.StoreTime.After(snap.StoreTime) && snap.State.Version == cur.State.Version {
		merged.StoreTime = cur.StoreTime
	}
	c.current.Store(&merged)
	if snap.State.Version > cur.State.Version && c.opts.OnCommit != nil {
		c.opts.OnCommit(&merged)
	}
}

// bound derives the context of one request to the store.
func (c *Committer) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := c.opts.Env.AfterFunc(callTimeout, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() { stop(); cancel(nil) }
}

// start lets a goroutine take what is queued, unless there is one.
func (c *Committer) start() {
	c.runMu.Lock()
	defer c.runMu.Unlock()
	if !c.running {
		c.running = true
		c.opts.Env.Go("manifest committer", c.run)
	}
}

// run brings one batch to its end and hands over to a goroutine for the next one. Each is a start of its own, so that
// everybody whom the last event woke comes first: which edits share a batch, and whether one more is sent before
// Close, does not depend on which of them the scheduler prefers.
func (c *Committer) run() {
	batch := c.take()
	switch {
	case len(batch) == 0 && c.rest():
		return
	case c.ctx.Err() != nil:
		fail(batch, ErrClosed)
	case len(batch) > 0:
		ctx, span := trace.Begin(c.opts.Tracer, c.ctx, trace.Commit)
		span.Text("edit", batch[0].edit.Name) // most often the only one
		span.Int("edits", int64(len(batch)))
		err := c.commit(ctx, batch)
		span.Int("version", int64(c.current.Load().State.GetVersion()))
		span.End(err)
	}
	c.opts.Env.Go("manifest committer", c.run)
}

// rest ends the goroutine, unless something was queued meanwhile.
func (c *Committer) rest() bool {
	c.runMu.Lock()
	defer c.runMu.Unlock()
	if len(c.queue) > 0 {
		return false
	}
	c.running = false
	if c.ctx.Err() != nil {
		c.ended.Do(func() { close(c.stopped) })
	}
	return true
}

// take returns the queued edits, at most maxBatch.
func (c *Committer) take() []*pending {
	var batch []*pending
	for len(batch) < maxBatch {
		select {
		case p := <-c.queue:
			batch = append(batch, p)
		default:
			return batch
		}
	}
	return batch
}

// commit brings every edit of the batch to an end. Commit and its recovery are one
// loop: whatever a write came to, what is there decides. Its error is why the whole batch failed; ctx is
// the committer's.
func (c *Committer) commit(ctx context.Context, batch []*pending) error {
	defer c.trouble(nil)
	var wait backoff
	for {
		at := c.current.Load()
		if c.opts.Guard != nil {
			if err := c.opts.Guard(at.State); err != nil {
				fail(batch, err)
				return err
			}
		}
		next := c.fold(at.State, batch)
		if next == nil {
			settle(batch, at)
			return nil
		}
		snap, err := c.send(ctx, at, next, batch)
		if err == nil {
			c.lastErr.Store(nil)
			c.adopt(snap)
			settle(batch, snap)
			return nil
		}
		c.failed(err)
		if err := c.reread(ctx, &wait); err != nil {
			fail(batch, err)
			return err
		}
		wait.conflict = c.current.Load().State.Version != at.State.Version
	}
}

// backoff is how the tries of one batch have gone so far.
type backoff struct {
	failures int
	conflict bool // the last one was another process's commit
}

// sleep waits before the next look. The first look is at once: most refusals are a
// commit of another process.
func (b *backoff) sleep(ctx context.Context, env *base.Env) error {
	n := b.failures
	b.failures++
	if n == 0 {
		return ctx.Err()
	}
	limit := commitBackoffLimit
	if b.conflict {
		limit = conflictBackoffLimit
	}
	return env.Sleep(ctx, env.Backoff(commitBackoffFirst, limit, n-1))
}

// fold applies the batch's edits, in order, to a clone of the state. An edit that
// fails takes no part and harms no other: the fold begins again without it. It
// returns nil if no edit changed anything. What edits that take no part came to (decided, err)
// is final only if next was committed or is nil: they may have failed because of an
// edit before them.
func (c *Committer) fold(state *State, batch []*pending) *State {
	for _, p := range batch {
		p.decided, p.err = false, nil
	}
	for {
		next, changed, ok := foldOnce(state, batch)
		switch {
		case !ok: // one edit more takes no part
		case !changed:
			return nil
		default:
			next.Version = state.Version + 1
			next.CommitId = randomID(c.opts.Env)
			return next
		}
	}
}

// foldOnce applies the edits that still take part, until one fails (ok is false).
func foldOnce(state *State, batch []*pending) (next *State, changed, ok bool) {
	next = clone(state)
	for _, p := range batch {
		if p.decided {
			continue
		}
		if err := apply(p.edit, next); err != nil {
			p.decided = true
			if !errors.Is(err, ErrApplied) {
				p.err = err
			}
			return nil, false, false
		}
		changed = true
	}
	return next, changed, true
}

// apply applies one edit and refuses what must not be written.
func apply(e Edit, next *State) error {
	if err := e.Apply(next); err != nil {
		return err
	}
	if err := Validate(next); err != nil {
		return fmt.Errorf("the edit would break the manifest: %w", err)
	}
	if n := proto.Size(next); n > MaxManifestBytes {
		return fmt.Errorf("the edit would make a manifest of %d bytes, the limit is %d", n, MaxManifestBytes)
	}
	return nil
}

// send writes next in the place of at.
func (c *Committer) send(ctx context.Context, at *Snapshot, next *State, batch []*pending) (*Snapshot, error) {
	for _, p := range batch {
		if !p.decided && (len(p.sentETags) == 0 || p.sentETags[len(p.sentETags)-1] != at.ETag) {
			p.sentETags = append(p.sentETags, at.ETag)
		}
	}
	call, end := c.bound(ctx)
	defer end()
	sent := c.opts.Env.Elapsed()
	res, err := c.opts.Store.Put(call, c.name, EncodeState(next), objstore.PutOptions{IfMatch: at.ETag, SinglePart: true})
	if err != nil {
		if ctx.Err() == nil && call.Err() != nil {
			err = fmt.Errorf("no answer within %v: %w", callTimeout, err)
		}
		return nil, fmt.Errorf("write %s: %w", c.name, err)
	}
	return &Snapshot{State: next, ETag: res.ETag, Sent: sent, StoreTime: res.Time}, nil
}

// reread reads MANIFEST after a write that failed, until the store answers. Its error ends
// the batch: ErrClosed or damage.
func (c *Committer) reread(ctx context.Context, wait *backoff) error {
	for {
		if wait.sleep(ctx, c.opts.Env) != nil {
			return ErrClosed
		}
		_, err := c.Refresh(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ErrClosed
		case isDamage(err):
			return err
		}
		c.failed(err)
		wait.conflict = false
	}
}

// settle reports the results of a fold that was committed as snap, or that found
// nothing left to do in snap.
func settle(batch []*pending, snap *Snapshot) {
	for _, p := range batch {
		if p.err != nil {
			p.done <- outcome{err: &EditError{Name: p.edit.Name, Err: p.err, SentETags: p.sentETags}}
			continue
		}
		p.done <- outcome{snap: snap}
	}
}

// fail reports err to every edit of the batch.
func fail(batch []*pending, err error) {
	for _, p := range batch {
		p.done <- outcome{err: &EditError{Name: p.edit.Name, Err: err, SentETags: p.sentETags}}
	}
}
