package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/trace"
)

// collector deletes objects that nothing needs any more. It works in rounds of
// independent steps, each of which may stop anywhere and be run again: a name that
// is not there counts as deleted. What must hold, for each step on its own, even if a
// request of it is delayed for ever or its process has been passed by another writer:
//
//   - Nothing is deleted that a MANIFEST names as live or may yet name, nor what a
//     view within its staleness limit refers to (I7).
//   - Obsolete objects: an object on the obsolete list never becomes live again, nor do
//     segments of an index that are on it. They
//     go once their stamp, a time that the store told when they were on the list
//     already, is older than the grace by a time that the store told before the
//     deletion. A stamp is at or after the moment from which no poll can answer with a
//     version that names them as live, and every view of such a version is stale
//     when the grace is over (F51).
//   - An index goes last: not before every range of its segments that is on the list was
//     forgotten. Only the index says which tables those are.
//   - WAL objects: those below the position of a MANIFEST that was committed. Position never
//     goes back, so they are not replayed again. Fences stay for ever: they keep old
//     writers out.
//   - Unnamed objects: see sweep.
//
// The fields belong to the round under way.
type collector struct {
	db   *DB
	busy chan struct{} // holds a token while a round is under way
	wal  walCursor
	walk walkCursor

	// damaged are entries whose index cannot be read, and when to look again, by Elapsed().
	damaged map[droppedKey]time.Duration
}

// Collected counts what the collector removed.
type Collected struct {
	Obsolete   uint64 // obsolete objects whose grace was over, tables of dropped segments included
	Bytes      uint64 // their bytes
	WALObjects uint64 // below the position where replay starts
	Orphans    uint64 // objects of a passed epoch that never became part of the log
	Probes     uint64 // objects of conditional-write tests that were left behind
	Uploads    uint64 // unfinished multipart uploads
}

func (c *Collected) add(o Collected) {
	c.Obsolete += o.Obsolete
	c.Bytes += o.Bytes
	c.WALObjects += o.WALObjects
	c.Orphans += o.Orphans
	c.Probes += o.Probes
	c.Uploads += o.Uploads
}

func newCollector(db *DB) *collector {
	return &collector{db: db, busy: make(chan struct{}, 1)}
}

// loop runs rounds at intervals until the DB ends.
func (c *collector) loop() {
	c.db.maintain(GarbageStays, c.db.opts.GCInterval, func(ctx context.Context) error {
		_, err := c.round(ctx, false)
		return err
	})
}

// CollectGarbage runs a full round of the collector now and returns what it
// removed: obsolete objects whose grace is over, WAL objects that replay does not
// need, and, by a walk over the whole bucket, what earlier processes left
// unfinished. The DB does the same by itself at Options.GCInterval, with the walk
// spread over an hour. It waits for a round that is under way.
//
// An error says what could not be done; the rest was done, and every part of it can be repeated. Errors:
// ErrFenced, ErrClosed, ctx's error, those of the store.
func (db *DB) CollectGarbage(ctx context.Context) (Collected, error) {
	if err := db.readErr(); err != nil {
		return Collected{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	db.env.Go("end a collection", func() {
		select {
		case <-db.life.Done():
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	})
	got, err := db.collector.round(ctx, true)
	if err != nil {
		err = fmt.Errorf("collect garbage: %w", translate(err))
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	return got, err
}

// round runs every step once; full also walks over the whole bucket, without bounds. A step that
// fails does not keep the others from their work, except that all stop once this
// writer was passed.
func (c *collector) round(ctx context.Context, full bool) (Collected, error) {
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-ctx.Done():
		return Collected{}, ctx.Err()
	}
	ctx, span := trace.Begin(c.db.tracer, ctx, trace.Garbage)
	var sum Collected
	var errs []error
	for _, step := range []func(context.Context, bool, *Collected) error{
		c.stamp, c.obsolete, c.walObjects, c.sweep, // a method each, none relies on another
	} {
		var got Collected
		err := step(ctx, full, &got)
		sum.add(got)
		c.count(got, err)
		if err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil || errors.Is(err, manifest.ErrFenced) {
			break
		}
	}
	c.db.mu.Lock()
	c.db.stats.collections++
	c.db.mu.Unlock()
	err := errors.Join(errs...)
	span.Int("objects", int64(sum.Obsolete+sum.WALObjects+sum.Orphans+sum.Probes))
	span.End(err)
	return sum, err
}

func (c *collector) count(got Collected, err error) {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	c.db.stats.collected.add(got)
	if err != nil {
		c.db.stats.collectFailures++
	}
}

// head reads the MANIFEST and returns a version that was in force when the request
// was sent, or a later one. If it is another writer's, this one has been passed.
func (c *collector) head(ctx context.Context) (*manifest.Snapshot, error) {
	if err := c.db.poll(ctx); err != nil {
		return nil, err
	}
	return c.db.committer.Current(), nil
}

// stamp begins the grace of what came onto the obsolete list since the last round.
func (c *collector) stamp(ctx context.Context, _ bool, _ *Collected) error {
	if !manifest.HasUnstamped(c.db.Head()) {
		return nil
	}
	snap, err := c.head(ctx)
	if err != nil {
		return fmt.Errorf("stamp obsolete objects: %w", err)
	}
	_, err = c.db.committer.Commit(ctx, manifest.StampObsolete(snap))
	return err
}

// obsolete deletes what is on the obsolete list and whose grace is over, and then takes it off the
// list, batch by batch: a crash between the two costs that one batch is deleted again. Indexes
// whose last range goes here go in the same round.
func (c *collector) obsolete(ctx context.Context, full bool, got *Collected) error {
	if len(c.db.Head().GetObsolete()) == 0 {
		return nil
	}
	now, err := c.db.store.ServerTime(ctx) // before the list is read: a deletion comes later than now
	if err != nil {
		return fmt.Errorf("ask the store's time: %w", err)
	}
	snap, err := c.head(ctx)
	if err != nil {
		return fmt.Errorf("read the obsolete list: %w", err)
	}
	errs := []error{c.removeDue(ctx, c.due(snap.State, now), got)}
	indexes, err := c.dropped(ctx, snap.State, now, full, got)
	errs = append(errs, err)
	if len(indexes) > 0 {
		due := slices.DeleteFunc(c.due(c.db.committer.Current().State, now), func(o *manifest.Obsolete) bool {
			return !indexes[o.GetRef().ID()]
		})
		errs = append(errs, c.removeDue(ctx, due, got))
	}
	return errors.Join(errs...)
}

// removeDue deletes the objects of entries and forgets the entries.
func (c *collector) removeDue(ctx context.Context, due []*manifest.Obsolete, got *Collected) error {
	var errs []error
	for batch := range slices.Chunk(due, objstore.MaxDeleteBatch) {
		gone, err := c.removeObsolete(ctx, batch, got)
		if err != nil {
			errs = append(errs, fmt.Errorf("delete obsolete objects: %w", err))
		}
		if len(gone) > 0 {
			if _, err := c.db.committer.Commit(ctx, manifest.ForgetObsolete(c.db.epoch, gone)); err != nil {
				errs = append(errs, err)
				break
			}
		}
		if err != nil && !partly(err) {
			break // the store does not answer now
		}
	}
	return errors.Join(errs...)
}

// removeObsolete deletes the objects of entries, at most objstore.MaxDeleteBatch, and
// returns those that are gone.
func (c *collector) removeObsolete(ctx context.Context, entries []*manifest.Obsolete, got *Collected) (gone []base.ObjectID, err error) {
	names := make([]string, len(entries))
	for i, o := range entries {
		names[i] = o.GetRef().ID().Name()
	}
	deleted, err := c.delete(ctx, names)
	for i, o := range entries {
		if deleted(names[i]) {
			gone = append(gone, o.GetRef().ID())
			got.Obsolete++
			got.Bytes += o.GetSize()
		}
	}
	return gone, err
}

// due returns the entries of whole objects whose grace is over at a time of the store. Not among
// them: an index of which ranges of segments are listed still; objects of other trees, which are
// not ours to delete; and everything as long as something is pinned, since a pin keeps
// what its own copy of a manifest lists.
func (c *collector) due(s *manifest.State, now time.Time) []*manifest.Obsolete {
	if len(s.GetPins()) > 0 {
		return nil
	}
	ranges := make(map[base.ObjectID]bool)
	for _, o := range s.GetObsolete() {
		if o.GetSegmentsOnly() {
			ranges[o.GetRef().ID()] = true
		}
	}
	var due []*manifest.Obsolete
	for _, o := range s.GetObsolete() {
		id := o.GetRef().ID()
		if !o.GetSegmentsOnly() && !ranges[id] && id.Tree == tree && c.graceOver(o.GetSinceMs(), now) {
			due = append(due, o)
		}
	}
	return due
}

// graceOver reports whether an entry that was stamped at since may be deleted at
// now, both by the store's clock. 0 is no stamp.
func (c *collector) graceOver(since int64, now time.Time) bool {
	return since > 0 && now.Sub(time.UnixMilli(since)) >= c.db.opts.GCGrace
}

// delete deletes objects, at most objstore.MaxDeleteBatch, and tells which are gone
// for certain: all, if there is no error; all but those that it is about, if the
// error is about single names (F31); else none.
func (c *collector) delete(ctx context.Context, names []string) (gone func(name string) bool, err error) {
	err = c.db.store.Delete(ctx, names)
	if err != nil && !partly(err) {
		return func(string) bool { return false }, err
	}
	kept := make(map[string]bool)
	var failed *objstore.DeleteError
	if errors.As(err, &failed) {
		for _, f := range failed.Failed {
			kept[f.Name] = true
		}
	}
	return func(name string) bool { return !kept[name] }, err
}

// deleteCounted is delete for names of which nothing is noted elsewhere; it returns how many are gone.
func (c *collector) deleteCounted(ctx context.Context, names []string) (n uint64, err error) {
	if len(names) == 0 {
		return 0, nil
	}
	gone, err := c.delete(ctx, names)
	for _, name := range names {
		if gone(name) {
			n++
		}
	}
	return n, err
}

// partly reports whether a deletion failed for single names only.
func partly(err error) bool {
	var failed *objstore.DeleteError
	return errors.As(err, &failed)
}
