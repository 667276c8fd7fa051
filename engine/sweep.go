package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

const (
	// walkInterval is how often the whole bucket is walked over: a listing costs a
	// request per thousand objects, and finds only what crashes left behind.
	walkInterval = time.Hour
	// maxWalkPages bounds the listing of one round: ten thousand objects.
	maxWalkPages = 10
	// leftoverAge is the age by the store's time at which a probe object or an unfinished
	// multipart upload belongs to nobody: both are a matter of minutes.
	leftoverAge = 24 * time.Hour
)

// walkKinds are the objects that are written once, in the order of the walk.
var walkKinds = [...]base.Kind{base.KindSST, base.KindIndex, base.KindState, base.KindPin}

// walkCursor is how far the walk over the whole bucket has come.
type walkCursor struct {
	underWay bool
	ever     bool
	began    time.Duration // Elapsed() when the last walk began
	kind     int           // of walkKinds, the one at hand; len(walkKinds): only leftovers remain
	after    string        // the last name that was looked at

	namer        *namer // of version namedVersion
	namedVersion uint64
}

// uploadAborter is a store that can have unfinished multipart uploads.
type uploadAborter interface {
	// AbortUploads aborts uploads that began before a time of the store.
	AbortUploads(ctx context.Context, before time.Time) (int, error)
}

// sweep deletes what processes that are gone left unfinished: objects that never
// became part of the log, multipart uploads (F26), probe objects. It walks over the
// bucket in pages, a bounded number a round, and goes on where it stopped.
//
// An object is deleted if its name carries an epoch below the current one of its
// role, and the MANIFEST, read after the listing that showed it, does not name it. No
// clock takes part (F24, F52). Why that is safe: an edit that begins to name an object
// needs the epoch in the object's name to be in force. In the version that was read a
// later one is, and epochs only rise: no later version begins to name the object. Had
// an earlier one done so, this one would still name it, live or obsolete, unless its
// grace is over. An upload of the current epoch, which may be about to be
// committed, is left alone. It does not matter whether the process that sweeps still
// is the writer: the version that it read is what counts.
//
// A version also names the tables that its indexes list, in the live range of a group or in an
// obsolete range. The argument holds for them too:
//
//   - Regrouping, the edit that puts an index in force, begins to name one object only: the
//     index, which is of the compactor's epoch. The tables that it lists are those of its
//     inputs, which the version before named itself or by another index, and they stay named by the
//     same edit. Dropping moves segments from a group's range to an obsolete one of the
//     same index. So a table is named by every version from the commit of its run to the one
//     that forgets it, which comes after its deletion.
//   - What an index lists never changes, so it may be read after the MANIFEST, at any time. That it is
//     still there is not needed: where an index or a list cannot be read, or is not what
//     it should be, everything that it may list counts as named.
//   - One list is looked at for one table: that of the segment in the table's name, in the range
//     that spans it. A table is listed nowhere else; a list that says otherwise is damage.
func (c *collector) sweep(ctx context.Context, full bool, got *Collected) error {
	w := &c.walk
	now := c.db.env.Elapsed()
	if full || !w.underWay && (!w.ever || now-w.began >= walkInterval) {
		*w = walkCursor{underWay: true, ever: true, began: now}
		c.wal.clean = manifest.Pos{} // late PUTs of old writers: look at all names again
	}
	if !w.underWay {
		return nil
	}
	var errs []error
	for page := 0; w.kind < len(walkKinds); page++ {
		if !full && page == maxWalkPages {
			return errors.Join(errs...)
		}
		done, err := c.sweepPage(ctx, got)
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep: %w", err))
		}
		if !done {
			return errors.Join(errs...) // the next round begins with this page
		}
	}
	if err := c.leftovers(ctx, got); err != nil {
		return errors.Join(append(errs, fmt.Errorf("sweep: %w", err))...)
	}
	w.underWay, w.namer = false, nil
	c.db.mu.Lock()
	c.db.stats.sweeps++
	c.db.mu.Unlock()
	return errors.Join(errs...)
}

// sweepPage looks at the next page of the walk. The cursor moves on when all of the
// page is dealt with. Single names that the store refused to delete, and damaged indexes, do
// not hold it up: the next walk tries them again.
func (c *collector) sweepPage(ctx context.Context, got *Collected) (done bool, err error) {
	w := &c.walk
	page, err := c.db.store.List(ctx, base.ObjectPrefix(tree, walkKinds[w.kind]), w.after, 0)
	if err != nil {
		return false, err
	}
	names, damage, err := c.orphans(ctx, page)
	if err != nil {
		return false, errors.Join(damage, err)
	}
	n, err := c.deleteCounted(ctx, names)
	got.Orphans += n
	if err != nil && !partly(err) {
		return false, errors.Join(damage, err)
	}
	if page.More && len(page.Entries) > 0 {
		w.after = page.Entries[len(page.Entries)-1].Name
	} else {
		w.kind, w.after = w.kind+1, ""
	}
	return true, errors.Join(damage, err)
}

// orphans returns the objects of a page that belong to a passed epoch and are not named by a
// version that was read after the page. Damage is what kept it from knowing what some
// ranges of segments name: nothing of those is returned.
func (c *collector) orphans(ctx context.Context, page objstore.Page) (names []string, damage, err error) {
	ids := make([]base.ObjectID, 0, len(page.Entries))
	for _, e := range page.Entries {
		if id, ok := base.ParseObjectName(e.Name); ok && id.Tree == tree { // else not ours: leave it
			ids = append(ids, id)
		}
	}
	// Most pages hold nothing to delete, as the version at hand already tells.
	var errs []error
	ids, damage, err = c.unnamed(ctx, ids, c.db.Head())
	if len(ids) > 0 && err == nil {
		errs = append(errs, damage)
		var snap *manifest.Snapshot
		if snap, err = c.head(ctx); err == nil {
			ids, damage, err = c.unnamed(ctx, ids, snap.State)
		}
	}
	damage = errors.Join(append(errs, damage)...)
	if err != nil {
		return nil, damage, err
	}
	for _, id := range ids {
		names = append(names, id.Name())
	}
	return names, damage, nil
}

// unnamed returns those of a page's objects that belong to a passed epoch and that the state does not
// name. While something is pinned nothing is known to be unnamed: a pin keeps what its own
// copy of a manifest names.
func (c *collector) unnamed(ctx context.Context, page []base.ObjectID, s *manifest.State) (ids []base.ObjectID, damage, err error) {
	if len(s.GetPins()) > 0 {
		return nil, nil, nil
	}
	n := c.namerOf(s)
	known := len(n.damage)
	for _, id := range page {
		if !passed(s, id) {
			continue
		}
		named, err := n.names(ctx, id)
		if err != nil {
			return nil, errors.Join(n.damage[known:]...), err
		}
		if !named {
			ids = append(ids, id)
		}
	}
	return ids, errors.Join(n.damage[known:]...), nil
}

// passed reports whether an object's name carries an epoch below the current one of its role:
// nobody can commit it any more.
func passed(s *manifest.State, id base.ObjectID) bool {
	if id.Role == base.RoleCompactor {
		return id.Epoch < s.GetCompactor().GetEpoch()
	}
	return id.Epoch < s.GetWriter().GetEpoch()
}

// namerOf returns what tells which objects a version names; it is kept for the pages to come.
// What it read of an index holds for all versions.
func (c *collector) namerOf(s *manifest.State) *namer {
	w := &c.walk
	if w.namer != nil && w.namedVersion == s.GetVersion() {
		return w.namer
	}
	next := newNamer(uncached(c.db.store, c.db.env), s)
	if old := w.namer; old != nil {
		next.lists, next.part, next.named = old.lists, old.part, old.named
		next.broken, next.damage = old.broken, old.damage
	}
	w.namer, w.namedVersion = next, s.GetVersion()
	return next
}

// leftovers deletes old probe objects and unfinished uploads.
func (c *collector) leftovers(ctx context.Context, got *Collected) error {
	now, err := c.db.store.ServerTime(ctx)
	if err != nil {
		return fmt.Errorf("ask the store's time: %w", err)
	}
	before := now.Add(-leftoverAge)
	if err := c.probes(ctx, before, got); err != nil {
		return fmt.Errorf("delete probe objects: %w", err)
	}
	if store, ok := c.db.store.(uploadAborter); ok {
		n, err := store.AbortUploads(ctx, before)
		got.Uploads += uint64(n)
		if err != nil {
			return fmt.Errorf("abort unfinished uploads: %w", err)
		}
	}
	return nil
}

// probes deletes the probe objects that were written before a time of the store.
func (c *collector) probes(ctx context.Context, before time.Time, got *Collected) error {
	name := base.ProbeName(tree, base.ULID{})
	prefix, after := name[:len(name)-len(base.ULID{}.String())], ""
	for range maxWalkPages {
		page, err := c.db.store.List(ctx, prefix, after, 0)
		if err != nil {
			return err
		}
		var names []string
		for _, e := range page.Entries {
			after = e.Name
			if len(e.Name) == len(name) && e.Modified.Before(before) {
				names = append(names, e.Name)
			}
		}
		n, err := c.deleteCounted(ctx, names)
		got.Probes += n
		if err != nil || !page.More || len(page.Entries) == 0 {
			return err
		}
	}
	return nil // the next walk goes on
}
