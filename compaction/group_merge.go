package compaction

import (
	"context"
	"slices"

	"github.com/annalsdb/annals/manifest"
)

// hashCursor stands on the first entry of its part.
type hashCursor struct {
	stream hashStream
	hashPart
}

// mergeHashes passes the entries of all streams on to a builder, ascending. There are few
// streams: looking at each for every entry is cheaper than a heap.
func mergeHashes(ctx context.Context, b *manifest.IndexBuilder, streams []hashStream) error {
	cursors := make([]*hashCursor, 0, len(streams))
	for _, s := range streams {
		part, err := s.next(ctx)
		if err != nil {
			return err
		}
		if len(part.hashes) > 0 {
			cursors = append(cursors, &hashCursor{s, part})
		}
	}
	for len(cursors) > 0 {
		at := 0
		for i, c := range cursors {
			if c.hashes[0] < cursors[at].hashes[0] {
				at = i
			}
		}
		c := cursors[at]
		if c.add(b); len(c.hashes) > 0 {
			continue
		}
		if err := b.Err(); err != nil {
			return err
		}
		var err error
		if c.hashPart, err = c.stream.next(ctx); err != nil {
			return err
		}
		if len(c.hashes) == 0 {
			cursors = slices.Delete(cursors, at, at+1)
		}
	}
	return b.Err()
}

// add passes one entry on.
func (c *hashCursor) add(b *manifest.IndexBuilder) {
	mask := c.mask
	if c.masks != nil {
		mask, c.masks = c.masks[0], c.masks[1:]
	}
	b.Add(c.hashes[0], mask)
	c.hashes = c.hashes[1:]
}
