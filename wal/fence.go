package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// FenceEpoch ends an epoch of an older writer and returns the id of its fence: the
// first id at or above from that holds no record object. After it returned, every
// object below the fence exists and nothing of the epoch at or above it will ever be
// durable (I2). fencer is the caller's epoch, already won in the manifest.
//
// A fence that is found, whoever put it, ends the epoch as well as the caller's own.
// The outcome of a refused or failed PUT is read back, never guessed. Failures are
// retried with backoff a bounded number of times within ctx. When it returns an
// error the epoch may or may not have been fenced; calling it again is safe.
//
// from must not lie below where replay starts: collected objects below it would look
// like gaps. A gap below an existing fence, or one that an object behind it knows to
// have been filled, is a loss, or the caller was passed and what lay there was collected:
// the error matches ErrMissing and names the object. It panics unless 1 <= epoch < fencer and from >= 1.
func FenceEpoch(ctx context.Context, store objstore.Store, env *base.Env, ident Identity, epoch, from, fencer uint64) (uint64, error) {
	if from == 0 || epoch == 0 || fencer <= epoch {
		panic(fmt.Sprintf("wal: fence epoch %d from id %d by epoch %d", epoch, from, fencer))
	}
	f := &fencing{store: store, env: env, ident: ident, epoch: epoch, fencer: fencer}
	for next := from; ; {
		id, exists, err := f.firstOpen(ctx, next)
		if err != nil {
			return 0, fmt.Errorf("fence epoch %d: %w", epoch, err)
		}
		fenced, err := f.settle(ctx, id, exists)
		if err != nil {
			return 0, fmt.Errorf("fence epoch %d: %w", epoch, err)
		}
		if fenced {
			return id, nil
		}
		next = id + 1 // a record object got there first: it counts
	}
}

// fencing is one call of FenceEpoch.
type fencing struct {
	store         objstore.Store
	env           *base.Env
	ident         Identity
	epoch, fencer uint64
}

// firstOpen returns the first id from an id on without a record object, and whether something of a fence's size is
// there. What a listing lacks and must exist is asked for by its name before it is called lost: a listing may lag behind.
func (f *fencing) firstOpen(ctx context.Context, from uint64) (id uint64, exists bool, err error) {
	for {
		id, exists, err = f.list(ctx, from)
		if !errors.Is(err, ErrMissing) {
			return id, exists, err
		}
		var there *Object
		rerr := retry(ctx, f.env, func(ctx context.Context) (err error) {
			there, _, err = Read(ctx, f.store, f.ident, f.epoch, id)
			return err
		})
		switch {
		case errors.Is(rerr, objstore.ErrNotFound):
			return 0, false, err
		case rerr != nil:
			return 0, false, rerr
		case there.Fence:
			return id, true, nil
		}
		from = id + 1
	}
}

// list lists the epoch from an id on and returns the first id without a record
// object, and whether something of a fence's size is there. Objects behind a gap are
// dead already: they can never become durable once the gap is fenced. With ErrMissing it returns the id of the
// object that must exist.
func (f *fencing) list(ctx context.Context, from uint64) (id uint64, exists bool, err error) {
	prefix := base.WALEpochPrefix(f.ident.Tree, f.epoch)
	id = from
	behind := uint64(0) // the last record object behind a gap at id
	visit := func(e objstore.Entry) (bool, error) {
		_, epoch, got, ok := base.ParseWALName(e.Name)
		if !ok || epoch != f.epoch || got < id {
			return true, nil // nothing that this package wrote
		}
		switch {
		case got == id && !IsFence(e.Size):
			id++
			return true, nil
		case got == id:
			exists = true
			return false, nil
		case IsFence(e.Size):
			// Whoever put it found every id below it taken.
			return false, fmt.Errorf("%s, below the fence %s: %w", base.WALName(f.ident.Tree, f.epoch, id), e.Name, ErrMissing)
		}
		behind = got
		return true, nil
	}
	err = retry(ctx, f.env, func(ctx context.Context) error {
		exists, behind = false, 0
		// What was counted by a failed try stays counted: WAL objects at or above from
		// do not vanish while this writer holds the newest epoch.
		return objstore.ListAll(ctx, f.store, prefix, base.WALName(f.ident.Tree, f.epoch, id-1), visit)
	})
	if err != nil {
		return id, false, fmt.Errorf("list %s: %w", prefix, err)
	}
	if behind > 0 && !exists {
		err = f.checkGap(ctx, id, behind)
	}
	return id, exists, err
}

// checkGap decides what a gap at id is that a record object lies behind. Usually the
// objects behind it were under way at the same time, were never acknowledged, and are
// dead. But the last of them knows up to which id all were in the store when it was made:
// if that is id or more, the gap is a loss.
func (f *fencing) checkGap(ctx context.Context, id, behind uint64) error {
	var o *Object
	err := retry(ctx, f.env, func(ctx context.Context) (err error) {
		o, _, err = Read(ctx, f.store, f.ident, f.epoch, behind)
		return err
	})
	switch {
	case errors.Is(err, objstore.ErrNotFound), errors.Is(err, base.ErrCorrupt), errors.Is(err, ErrVersion):
		return nil // it tells nothing
	case err != nil:
		return err
	case !o.Fence && o.Durable >= id:
		return fmt.Errorf("%s, which was in the store when %s was made: %w", base.WALName(f.ident.Tree, f.epoch, id),
			base.WALName(f.ident.Tree, f.epoch, behind), ErrMissing)
	}
	return nil
}

// settle fills an id with a fence unless something is there, and returns whether the
// id holds a fence (else it holds a record object).
func (f *fencing) settle(ctx context.Context, id uint64, exists bool) (fenced bool, err error) {
	name := base.WALName(f.ident.Tree, f.epoch, id)
	body := EncodeFence(f.ident, f.epoch, id, f.fencer)
	put := func(ctx context.Context) error {
		_, err := f.store.Put(ctx, name, body, objstore.PutOptions{IfAbsent: true, SinglePart: true})
		return err
	}
	var o *Object
	read := func(ctx context.Context) (err error) {
		o, _, err = Read(ctx, f.store, f.ident, f.epoch, id)
		return err
	}
	for attempt := 0; ; attempt++ {
		var putErr error
		if !exists {
			if putErr = try(ctx, f.env, put); putErr == nil {
				return true, nil
			}
			putErr = fmt.Errorf("put fence %s: %w", name, putErr)
		}
		err := try(ctx, f.env, read)
		switch {
		case err == nil:
			return o.Fence, nil
		case errors.Is(err, objstore.ErrNotFound):
			// Nothing landed, or not yet: a fence that lands later than the next try does
			// no harm, it has the same meaning.
			exists = false
		case lasting(err):
			return false, errors.Join(putErr, err)
		}
		err = errors.Join(putErr, err)
		if attempt+1 == maxAttempts || lasting(putErr) {
			return false, err
		}
		if pause(ctx, f.env, attempt) != nil {
			return false, fmt.Errorf("%w (last failure: %w)", ctx.Err(), err)
		}
	}
}
