package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/trace"
)

// core is the read path. A writer keeps its view and frontier current; every
// read goes through it. Safe for concurrent use; it holds no lock across I/O.
//
// A read loads the frontier first and the view second: a view holds everything
// that was appended before it was loaded, so everything below a frontier that
// was loaded earlier is in it (invariant I4).
type core struct {
	env        *base.Env
	tracer     trace.Tracer
	tables     *tables
	troubles   *troubles
	staleAfter time.Duration
	keys       KeyRange // what reads may ask for: all keys, but at a scoped replica

	frontier atomic.Uint64
	view     atomic.Pointer[view]
	proved   atomic.Int64 // Elapsed() when the request that last proved the view current was sent

	// refresh reads the MANIFEST and publishes a new view if it changed.
	refresh func(ctx context.Context) error
	// stopped returns why nothing can be read any more, or nil.
	stopped func() error
	// readState returns the small state, which nobody changes: all of it that was acknowledged when it was
	// called is in it, and nothing that may be lost, where reads see durable records only.
	readState func(ctx context.Context) (*state.Tables, error)

	followers followers

	scannedRecords, scannedBytes atomic.Uint64
}

// Frontier implements LogReader.
func (c *core) Frontier() uint64 { return c.frontier.Load() }

// FirstSequence implements LogReader.
func (c *core) FirstSequence() uint64 { return c.view.Load().first }

// headAge returns how long ago the request was sent that last proved the view current.
func (c *core) headAge() time.Duration { return c.env.Elapsed() - time.Duration(c.proved.Load()) }

// checkFresh returns ErrStale when objects that the view names may have been
// collected (invariant I7).
func (c *core) checkFresh() error {
	if age := c.headAge(); age > c.staleAfter {
		return fmt.Errorf("%w: the log's head could not be read for %v", ErrStale, age.Round(time.Second))
	}
	return nil
}

// withView calls read with the current view. When read finds that an object is
// missing, the head is read again: if the object is still named, that is
// damage; if not, the view was old and read starts over with the new one. Wrong
// bytes that the disk cache may have kept are read again once (F35).
func (c *core) withView(ctx context.Context, read func(*view) error) error {
	for again := true; ; {
		v := c.view.Load()
		err := read(v)
		if again && c.tables.distrust(err) {
			again = false
			continue
		}
		if err == nil || !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
		if rerr := c.refresh(ctx); rerr != nil {
			return fmt.Errorf("%w (and the head could not be read: %w)", err, rerr)
		}
		var gone *missingError
		if !errors.As(err, &gone) {
			return err
		}
		if c.view.Load().names(gone) {
			return fmt.Errorf("%w: the manifest names an object that is not there: %w", ErrCorrupt, err)
		}
	}
}

// missingError says that an object was not there.
type missingError struct {
	id      base.ObjectID
	segment uint32 // in whose table list of an index it is; 0: the manifest itself listed it
	err     error
}

func (e *missingError) Error() string { return e.err.Error() }
func (e *missingError) Unwrap() error { return e.err }

// missing marks an error that may say that the object is not there.
func missing(id base.ObjectID, segment uint32, err error) error {
	if errors.Is(err, objstore.ErrNotFound) {
		return &missingError{id: id, segment: segment, err: err}
	}
	return err
}

func tableError(t *viewTable, err error) error {
	if err == nil {
		return nil
	}
	return missing(t.id, t.grouped, err)
}

// publish installs a view; the caller serialises.
func (c *core) publish(v *view) { c.view.Store(v) }

// provedAt records that the manifest was current when a request was sent. Late
// answers never move it back.
func (c *core) provedAt(sent time.Duration) {
	for {
		old := c.proved.Load()
		if int64(sent) <= old || c.proved.CompareAndSwap(old, int64(sent)) {
			return
		}
	}
}
