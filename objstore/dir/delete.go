//go:build linux || darwin

package dir

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/annalsdb/annals/objstore"
)

// deletesPerLock is how many names are deleted under one hold of the lock, so
// that a large batch does not hold up replacements.
const deletesPerLock = 100

// Delete implements objstore.Store. When it returns nil the deletion is durable.
// Folders stay.
func (s *Store) Delete(ctx context.Context, names []string) error {
	if err := objstore.CheckDelete(names); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
	}
	if len(names) == 0 {
		return nil
	}
	if s.readOnly {
		return fmt.Errorf("delete: %w", errReadOnly)
	}
	failed, err := s.remove(ctx, names)
	if err != nil {
		return fmt.Errorf("delete %d objects: %w", len(names), err)
	}
	if len(failed) > 0 {
		return &objstore.DeleteError{Failed: failed}
	}
	return nil
}

func (s *Store) remove(ctx context.Context, names []string) (failed []objstore.NameError, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, err := s.fs.stat(s.root); err != nil {
		return nil, s.failed(err)
	}
	folders := map[string]struct{}{}
	for batch := range slices.Chunk(names, deletesPerLock) {
		// The lock: a replacement that looked at the object must find it gone only
		// before it looked, or after it replaced it.
		unlock, err := s.lock(ctx)
		if err != nil {
			return nil, s.failed(err)
		}
		for _, name := range batch {
			gone, err := s.removeOne(name)
			switch {
			case err != nil:
				failed = append(failed, objstore.NameError{Name: name, Err: describe(err)})
			case gone:
				folders[parent(name)] = struct{}{}
			}
		}
		unlock()
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if err := s.syncFolder(folder); err != nil && !notThere(err) {
			return nil, s.failed(err)
		}
	}
	return failed, nil
}

// removeOne removes one object, if there is one.
func (s *Store) removeOne(name string) (gone bool, err error) {
	err = s.fs.unlink(s.path(name))
	if err == nil {
		return true, nil
	}
	if notThere(err) {
		return false, nil
	}
	if i, serr := s.fs.stat(s.path(name)); serr == nil && i.mode.IsDir() {
		return false, nil // a folder is no object
	}
	return false, err
}
