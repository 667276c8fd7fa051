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

	named        map[base.ObjectID]struct{} // by version namedVersion
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
		if err := c.sweepPage(ctx, got); err != nil {
			errs = append(errs, fmt.Errorf("sweep: %w", err))
			if !partly(err) {
				return errors.Join(errs...) // the next round begins with this page
			}
		}
	}
	if err := c.leftovers(ctx, got); err != nil {
		return errors.Join(append(errs, fmt.Errorf("sweep: %w", err))...)
	}
	w.underWay, w.named = false, nil
	c.db.mu.Lock()
	c.db.stats.sweeps++
	c.db.mu.Unlock()
	return errors.Join(errs...)
}

// sweepPage looks at the next page of the walk. The cursor moves on when all of the
// page is dealt with, or the store refused single names, which the next walk tries again.
func (c *collector) sweepPage(ctx context.Context, got *Collected) error {
	w := &c.walk
	page, err := c.db.store.List(ctx, base.ObjectPrefix(tree, walkKinds[w.kind]), w.after, 0)
	if err != nil {
		return err
	}
	// Most pages hold nothing to delete, as the version at hand already tells.
	names := c.orphans(page, c.db.Head())
	if len(names) > 0 {
		snap, err := c.head(ctx)
		if err != nil {
			return err
		}
		names = c.orphans(page, snap.State)
	}
	n, err := c.deleteCounted(ctx, names)
	got.Orphans += n
	if err != nil && !partly(err) {
		return err
	}
	if page.More && len(page.Entries) > 0 {
		w.after = page.Entries[len(page.Entries)-1].Name
	} else {
		w.kind, w.after = w.kind+1, ""
	}
	return err
}

// orphans returns the objects of a page that belong to a passed epoch and are not
// named by the state. While groups, ranges of their segments, or pins name objects that are
// listed elsewhere, nothing is known to be unnamed.
func (c *collector) orphans(page objstore.Page, s *manifest.State) (names []string) {
	if len(s.GetGroups()) > 0 || len(s.GetPins()) > 0 {
		return nil
	}
	for _, o := range s.GetObsolete() {
		if o.GetSegmentsOnly() {
			return nil
		}
	}
	for _, e := range page.Entries {
		id, ok := base.ParseObjectName(e.Name)
		if !ok || id.Tree != tree {
			continue // not ours: leave it
		}
		current := s.GetWriter().GetEpoch()
		if id.Role == base.RoleCompactor {
			current = s.GetCompactor().GetEpoch()
		}
		if id.Epoch >= current {
			continue
		}
		if _, named := c.walk.namedBy(s)[id]; !named {
			names = append(names, e.Name)
		}
	}
	return names
}

// namedBy returns what a version names; it is kept for the pages to come.
func (w *walkCursor) namedBy(s *manifest.State) map[base.ObjectID]struct{} {
	if w.named == nil || w.namedVersion != s.GetVersion() {
		w.named, w.namedVersion = manifest.NamedObjects(s), s.GetVersion()
	}
	return w.named
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
