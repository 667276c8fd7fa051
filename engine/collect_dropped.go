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

// droppedKey identifies an entry of the obsolete list that is a range of segments of an index.
type droppedKey struct {
	index base.ObjectID
	first uint32
}

func keyOfDropped(o *manifest.Obsolete) droppedKey {
	return droppedKey{o.GetRef().ID(), o.GetFirstSegment()}
}

// dropped deletes the tables of dropped segments that an index lists and whose grace is over, entry
// by entry, and returns the indexes of the entries that it took off the list.
//
// An index that cannot be read is damage: a range of it is listed, so it was not deleted
// by a collector. It is reported, and looked at again when the next walk is due, or in a full round; the
// others go on.
func (c *collector) dropped(ctx context.Context, s *manifest.State, now time.Time, full bool, got *Collected) (indexes map[base.ObjectID]bool, _ error) {
	indexes = make(map[base.ObjectID]bool)
	damaged := make(map[droppedKey]time.Duration)
	defer func() { c.damaged = damaged }()
	var errs []error
	sizes := sizesOfIndexes(s)
	for _, o := range c.dueDropped(s, now) {
		key, at := keyOfDropped(o), c.db.env.Elapsed()
		if again, ok := c.damaged[key]; ok && at < again && !full {
			damaged[key] = again
			continue
		}
		r := droppedRange(o, sizes[key.index])
		gone, err := c.removeDropped(ctx, &r, got)
		if gone {
			indexes[key.index] = true
		}
		if err == nil {
			continue
		}
		errs = append(errs, fmt.Errorf("delete the tables of %s, listed in %s: %w", &r, r.index.Name(), err))
		switch {
		case isDamage(err):
			damaged[key] = at + walkInterval
		case !partly(err):
			return indexes, errors.Join(errs...) // the store does not answer now, or this writer was passed
		}
	}
	return indexes, errors.Join(errs...)
}

// dueDropped returns the entries that are ranges of segments of an index and whose grace is over.
func (c *collector) dueDropped(s *manifest.State, now time.Time) (due []*manifest.Obsolete) {
	if len(s.GetPins()) > 0 {
		return nil
	}
	for _, o := range s.GetObsolete() {
		if o.GetSegmentsOnly() && o.GetRef().GetTree() == tree && c.graceOver(o.GetSinceMs(), now) {
			due = append(due, o)
		}
	}
	return due
}

// removeDropped deletes the tables of a range and then takes the range off the obsolete list. A
// crash before that costs that they are deleted again (F31): the index is still there.
func (c *collector) removeDropped(ctx context.Context, r *listedRange, got *Collected) (gone bool, _ error) {
	lists, err := openLists(ctx, uncached(c.db.store, c.db.env), r)
	if errors.Is(err, objstore.ErrNotFound) {
		// It went after the range was forgotten, which only a later writer can have done.
		if _, herr := c.head(ctx); herr != nil {
			return false, herr
		}
	}
	if err != nil {
		return false, err
	}
	from, to, err := lists.positions(r)
	if err != nil {
		return false, err
	}
	d := droppedTables{c: c}
	for i := from; i < to; i++ {
		list, err := lists.list(ctx, i)
		if isDamage(err) {
			d.errs = append(d.errs, err) // its tables stay; those of the other segments need not
			continue
		}
		if err != nil {
			return false, err
		}
		for _, t := range list {
			if err := d.add(ctx, t); err != nil {
				return false, err
			}
		}
	}
	if err := d.flush(ctx); err != nil {
		return false, err
	}
	if len(d.errs) > 0 {
		return false, errors.Join(d.errs...)
	}
	if _, err := c.db.committer.Commit(ctx, manifest.ForgetSegments(c.db.epoch, r.index, r.first, r.last)); err != nil {
		return false, err
	}
	got.Obsolete += d.deleted.Obsolete // once they are forgotten: each counts once
	got.Bytes += d.deleted.Bytes
	return true, nil
}

// droppedTables deletes tables in batches.
type droppedTables struct {
	c       *collector
	names   []string
	deleted Collected
	errs    []error // what could not be deleted, or told
}

// add deletes a table, with the next batch. Its error says that the store does not answer.
func (d *droppedTables) add(ctx context.Context, t *manifest.Table) error {
	id := t.GetRef().ID()
	if id.Tree != tree {
		return nil // not ours to delete
	}
	d.names = append(d.names, id.Name())
	d.deleted.Obsolete++
	d.deleted.Bytes += t.GetSize()
	if len(d.names) < objstore.MaxDeleteBatch {
		return nil
	}
	return d.flush(ctx)
}

func (d *droppedTables) flush(ctx context.Context) error {
	if len(d.names) == 0 {
		return nil
	}
	err := d.c.db.store.Delete(ctx, d.names)
	d.names = d.names[:0]
	if partly(err) {
		d.errs = append(d.errs, err)
		return nil
	}
	return err
}
