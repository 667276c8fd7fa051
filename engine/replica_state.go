package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/state"
)

// cursorState is the small state of a replica: what consumers' cursors were at the tail's place in the
// WAL, so that they are a prefix of the log as the records are (I4). Producers matter to a writer only and are not
// kept. Guarded by Reader.mu.
//
// Where the tail goes on at a position, the objects that it leaves out may have had changes of cursors. Then the
// state is that of the objects which the MANIFEST names, and nothing is applied before they were
// read: until then those who ask for cursors wait, while records are readable.
type cursorState struct {
	small  smallState
	loaded bool      // small is the state at the cursor; if not, the cursor is the position of the snapshot
	wake   broadcast // of those who wait until it is
}

// loadState reads the state at a position at which the tail goes on. It reports whether to go on at once, as take does.
func (r *Reader) loadState(ctx context.Context, at manifest.Pos, head *manifest.State) (more bool, err error) {
	limits := state.Limits{}
	if !r.keys.all() {
		limits.Keep = r.keys.Contains
	}
	tables, err := r.tables.loadState(ctx, head, limits)
	if err != nil {
		return r.doubtState(ctx, at, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cursor == at {
		r.small.replace(tables)
		r.loaded = true
		r.wake.signal()
	}
	return true, nil
}

// doubtState decides what it means that the state cannot be read: nothing, once another MANIFEST is in force.
func (r *Reader) doubtState(ctx context.Context, at manifest.Pos, cause error) (more bool, err error) {
	var gone *missingError
	if !errors.As(cause, &gone) && !isDamage(cause) {
		return false, cause // the store failed
	}
	passed, err := r.passed(ctx, at)
	switch {
	case err != nil:
		return false, fmt.Errorf("%w (and the head could not be read: %w)", cause, err)
	case passed:
		return true, nil
	case errors.Is(cause, objstore.ErrNotFound):
		return false, fmt.Errorf("%w: the manifest names an object that is not there: %w", base.ErrCorrupt, cause)
	}
	return false, cause
}

// stateNow returns the small state at the tail's place, which nobody changes.
func (r *Reader) stateNow(ctx context.Context) (*state.Tables, error) {
	for {
		if err := r.readErr(); err != nil {
			return nil, err
		}
		r.mu.Lock()
		if r.loaded {
			defer r.mu.Unlock()
			return r.small.share(), nil
		}
		wake, trouble := r.wake.wait(), r.progress.trouble
		r.mu.Unlock()
		select {
		case <-wake:
		case <-r.life.Done():
		case <-ctx.Done():
			if trouble != nil {
				return nil, fmt.Errorf("%w (%w)", ctx.Err(), trouble)
			}
			return nil, ctx.Err()
		}
	}
}
