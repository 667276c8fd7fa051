package wal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// Bounds on the retries of reads, listings and fences (I9). With them an operation
// gives up after half a minute or so, unless its context ends first.
const (
	maxAttempts  = 12
	firstBackoff = 50 * time.Millisecond
	maxBackoff   = 5 * time.Second
	// callTimeout bounds one try, in case a connection hangs.
	callTimeout = 2 * time.Minute
)

// Read gets and decodes one WAL object, in one try, and returns its size too. A
// missing object gives an error that matches objstore.ErrNotFound: for who follows a
// live epoch that is the normal case. Damage matches base.ErrCorrupt.
func Read(ctx context.Context, store objstore.Store, ident Identity, epoch, id uint64) (*Object, int64, error) {
	name := base.WALName(ident.Tree, epoch, id)
	got, err := store.Get(ctx, name, objstore.GetOptions{MaxBytes: MaxObjectBytes})
	if err != nil {
		return nil, 0, readError(name, err)
	}
	o, err := Decode(name, ident, epoch, id, got.Body)
	if err != nil {
		return nil, 0, err
	}
	return o, int64(len(got.Body)), nil
}

// readError turns a size that no WAL object has into damage.
func readError(name string, err error) error {
	if errors.Is(err, objstore.ErrTooLarge) {
		return base.Corruptf(name, MaxObjectBytes, "larger than any WAL object: %v", err)
	}
	return fmt.Errorf("read %s: %w", name, err)
}

// lasting reports whether the same request would fail in the same way again.
func lasting(err error) bool {
	for _, target := range []error{
		base.ErrCorrupt, ErrVersion, ErrMissing, objstore.ErrNotFound, objstore.ErrDenied, objstore.ErrNoBucket, objstore.ErrName,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// retry calls op until it succeeds or fails lastingly, at most maxAttempts times, with
// growing waits between. Each try has a context of its own that ends after callTimeout.
func retry(ctx context.Context, env *base.Env, op func(context.Context) error) error {
	for attempt := 0; ; attempt++ {
		err := try(ctx, env, op)
		if err == nil || lasting(err) || attempt+1 == maxAttempts {
			return err
		}
		if pause(ctx, env, attempt) != nil {
			return fmt.Errorf("%w (last failure: %w)", ctx.Err(), err)
		}
	}
}

// try calls op with a context that ends after callTimeout. That op then fails does not
// mean that ctx ended.
func try(ctx context.Context, env *base.Env, op func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := env.AfterFunc(callTimeout, func() { cancel(context.DeadlineExceeded) })
	defer stop()
	return op(ctx)
}

// pause waits before retry number attempt, or until ctx ends, whose error it returns.
func pause(ctx context.Context, env *base.Env, attempt int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return env.Sleep(ctx, env.Backoff(firstBackoff, maxBackoff, attempt))
}
