package manifest

import (
	"context"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// Unused makes sure, after ErrNoLog, that there never was a log in a tree: one that has lost both of its heads looks like
// none, and a new one in its place would take its objects for garbage. It returns nil too if a log has been created
// meanwhile. It costs one listing and writes nothing.
//
// Errors: ErrMissingHeads, those of Load but ErrNoLog, and those of the store.
func Unused(ctx context.Context, store objstore.Store, env *base.Env, tree uint32) error {
	var left string
	err := objstore.ListAll(ctx, store, base.TreePrefix(tree), "", func(e objstore.Entry) (bool, error) {
		_, _, _, record := base.ParseWALName(e.Name)
		_, object := base.ParseObjectName(e.Name)
		if record || object {
			left = e.Name
		}
		return left == "", nil
	})
	if err != nil {
		return fmt.Errorf("look for remains of a log: %w", err)
	}
	if left == "" {
		return nil
	}
	// Nothing of a log is there before its heads are: so they are lost, or were made since they were looked for.
	h, err := readHeads(ctx, store, env, tree)
	if err == nil && h.log == nil {
		err = fmt.Errorf("find %s: %w", left, ErrMissingHeads)
	}
	return err
}
