package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/wal"
)

// maxWALPages bounds the listing of one round: a million objects. The next round
// goes on where it stopped.
const maxWALPages = 1000

// walCursor remembers how far the WAL was cleaned, so that a round lists only what
// was written since, and not the fences of all epochs again.
type walCursor struct {
	// clean: what a listing found below it is gone, but for fences. A PUT that was
	// delayed may put an object there again; every walk begins anew.
	clean manifest.Pos
}

// walObjects deletes the WAL objects below the position where replay starts, dead
// ones behind fences of past epochs too. Fences, which are told by their size, stay.
//
// No grace is needed: whoever is about to read what is deleted here reads the
// MANIFEST again when it is not there. A replica jumps to its position (F33), a
// writer that is just opening finds that it was passed (F45).
func (c *collector) walObjects(ctx context.Context, full bool, got *Collected) error {
	if full {
		c.wal.clean = manifest.Pos{}
	}
	position := c.db.Head().GetPosition().Pos() // committed: it only moves on
	clean, after := c.wal.clean, nameBefore(c.wal.clean)
	var errs []error
	for page := 0; clean.Less(position) && (full || page < maxWALPages); page++ {
		listed, err := c.db.store.List(ctx, base.WALPrefix(tree), after, 0)
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list WAL objects: %w", err))...)
		}
		var names []string
		names, clean = collectable(listed, clean, position)
		n, err := c.deleteCounted(ctx, names)
		got.WALObjects += n
		if err != nil {
			errs = append(errs, fmt.Errorf("delete WAL objects: %w", err))
			if !partly(err) {
				break
			}
		}
		if len(errs) == 0 {
			c.wal.clean = clean // else the next round looks at these again
		}
		if len(listed.Entries) > 0 {
			after = listed.Entries[len(listed.Entries)-1].Name
		}
	}
	return errors.Join(errs...)
}

// nameBefore returns a name behind which a listing begins with the objects at a position.
func nameBefore(at manifest.Pos) string {
	if at.ID == 0 {
		return ""
	}
	return base.WALName(tree, at.Epoch, at.ID-1)
}

// collectable returns the record objects of a page that lie below position, and how
// far the WAL is clean once they are gone, if it was clean up to the page.
func collectable(page objstore.Page, clean, position manifest.Pos) (names []string, _ manifest.Pos) {
	for _, e := range page.Entries {
		of, epoch, id, ok := base.ParseWALName(e.Name)
		if !ok || of != tree {
			continue // not ours: leave it
		}
		if at := (manifest.Pos{Epoch: epoch, ID: id}); !at.Less(position) {
			return names, position
		}
		clean = manifest.Pos{Epoch: epoch, ID: id + 1}
		if !wal.IsFence(e.Size) {
			names = append(names, e.Name)
		}
	}
	if !page.More {
		clean = position
	}
	return names, clean
}
