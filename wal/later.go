package wal

import (
	"context"
	"fmt"
	"math"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// Later returns the name and the epoch of the first object, a record or a fence, of an epoch above the given one; "" if there
// is none. Whoever put it had a higher epoch in MANIFEST before.
func Later(ctx context.Context, store objstore.Store, tree uint32, epoch uint64) (name string, of uint64, err error) {
	prefix := base.WALPrefix(tree)
	err = objstore.ListAll(ctx, store, prefix, base.WALName(tree, epoch, math.MaxUint64), func(e objstore.Entry) (bool, error) {
		_, got, _, ok := base.ParseWALName(e.Name)
		if ok && got > epoch {
			name, of = e.Name, got
		}
		return name == "", nil
	})
	if err != nil {
		return "", 0, fmt.Errorf("list %s: %w", prefix, err)
	}
	return name, of, nil
}
