package manifest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// Create's retries (I9): enough to outlast a burst of errors, not an outage.
const (
	createAttempts     = 12
	createBackoffFirst = 50 * time.Millisecond
	createBackoffLimit = 2 * time.Second
)

// Create makes an empty log with one tree, or completes one whose creation did not
// finish, or does nothing if there is one; it returns the log's id (16 bytes).
// Any number of processes may call it at once: all get the same log.
//
// MANIFEST is put first, then LOG, both only if absent. A refused or failed put is
// ambiguous; each step looks at what is there and does the next thing that is missing.
//
// Errors: ErrMissingManifest and ErrMissingLog (damage; nothing is created, F55),
// ErrVersion, ErrFeature, base.ErrCorrupt, and those of the store when a few tries
// did not help.
func Create(ctx context.Context, store objstore.Store, env *base.Env, tree uint32) ([]byte, error) {
	last := errors.New("the store does not show what was written to it")
	failures := 0
	for range createAttempts {
		h, err := readHeads(ctx, store, env, tree)
		if err == nil {
			if h.log != nil {
				return h.log.LogId, nil
			}
			err = putMissing(ctx, store, env, tree, h)
		}
		if err == nil {
			continue
		}
		last = err
		if ctx.Err() != nil || isLasting(err) {
			break
		}
		if err := env.Sleep(ctx, env.Backoff(createBackoffFirst, createBackoffLimit, failures)); err != nil {
			break
		}
		failures++
	}
	return nil, fmt.Errorf("create log at %v: %w", store, last)
}

// putMissing puts the next object that is missing.
func putMissing(ctx context.Context, store objstore.Store, env *base.Env, tree uint32, h heads) error {
	if h.snap == nil {
		name := base.ManifestName(tree)
		if _, err := store.Put(ctx, name, EncodeState(emptyState(env, tree)), objstore.PutOptions{IfAbsent: true}); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		return nil
	}
	now, err := store.ServerTime(ctx)
	if err != nil {
		return fmt.Errorf("ask the store's time: %w", err)
	}
	log := &Log{
		FormatVersion: FormatVersion,
		LogId:         h.snap.State.LogId,
		Trees:         []*Tree{{Id: tree}},
		CreatedMs:     now.UnixMilli(),
	}
	if _, err := store.Put(ctx, base.LogName, EncodeLog(log), objstore.PutOptions{IfAbsent: true}); err != nil {
		return fmt.Errorf("write %s: %w", base.LogName, err)
	}
	return nil
}

// emptyState is version 0 of a new log. Position (1, 1) is where the first writer,
// which takes epoch 1, will begin: no epoch lies between, so it fences none.
func emptyState(env *base.Env, tree uint32) *State {
	return &State{
		FormatVersion: FormatVersion,
		LogId:         randomID(env),
		Tree:          tree,
		Writer:        &Owner{},
		Compactor:     &Owner{},
		Position:      Pos{Epoch: 1, ID: 1}.Proto(),
		Segments:      []*Segment{{Id: 1}},
		CommitId:      randomID(env),
	}
}

func randomID(env *base.Env) []byte {
	id := make([]byte, idBytes)
	env.Random(id)
	return id
}

// isLasting reports whether trying again cannot help.
func isLasting(err error) bool {
	for _, e := range []error{
		objstore.ErrDenied, objstore.ErrNoBucket, objstore.ErrName, objstore.ErrTooLarge,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isDamage(err)
}

// isDamage reports whether err is about what the store holds, not about reaching it.
func isDamage(err error) bool {
	for _, e := range []error{
		base.ErrCorrupt, ErrVersion, ErrFeature, ErrMissingManifest, ErrMissingLog, objstore.ErrTooLarge,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// LostLog returns the bytes of LOG made anew from the MANIFEST of a log whose LOG was lost: in this format version
// LOG holds nothing that MANIFEST does not, but for the time of creation, which is then 0. It writes nothing. Whoever puts them in place must be sure that the LOG is
// lost and that no copy of it is left. Errors: ErrLogExists, ErrNoLog, ErrVersion, ErrFeature, base.ErrCorrupt, and those of the store.
func LostLog(ctx context.Context, store objstore.Store, env *base.Env, tree uint32) ([]byte, error) {
	_, err := store.Head(ctx, base.LogName)
	switch {
	case err == nil:
		return nil, ErrLogExists
	case !errors.Is(err, objstore.ErrNotFound):
		return nil, fmt.Errorf("look at %s: %w", base.LogName, err)
	}
	snap, _, err := Poll(ctx, store, env, tree, "")
	if errors.Is(err, ErrMissingManifest) {
		err = fmt.Errorf("read %s: %w", base.ManifestName(tree), ErrNoLog)
	}
	if err != nil {
		return nil, err
	}
	s := snap.State
	return EncodeLog(&Log{
		FormatVersion: FormatVersion, RequiredFeatures: s.RequiredFeatures, LogId: s.LogId, Trees: []*Tree{{Id: tree}},
	}), nil
}
