package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// Snapshot is one version of a tree's state as it was read or written. It and the
// State are immutable.
type Snapshot struct {
	State *State
	// ETag is MANIFEST's: the condition of the commit that builds on this version.
	ETag string
	// Sent is Env.Elapsed() when the request that last proved this version
	// current was sent. What a reader may still rely on counts from here, not
	// from the answer (I7).
	Sent time.Duration
	// StoreTime is the store's time of an answer given when this version was in
	// force or had been.
	StoreTime time.Time
}

// LoadLog reads LOG. Errors: ErrNoLog, ErrVersion, ErrFeature, base.ErrCorrupt, and
// those of the store.
func LoadLog(ctx context.Context, store objstore.Store) (*Log, error) {
	obj, err := store.Get(ctx, base.LogName, objstore.GetOptions{MaxBytes: maxObjectBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, fmt.Errorf("read %s: %w", base.LogName, ErrNoLog)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", base.LogName, err)
	}
	return DecodeLog(base.LogName, obj.Body)
}

// Load reads LOG and a tree's MANIFEST and checks all that must be known before
// anything is written: format versions, required features, the structure of both, and that
// they belong together. It writes nothing.
//
// Errors: ErrNoLog, ErrMissingManifest, ErrMissingLog, ErrVersion, ErrFeature,
// base.ErrCorrupt, and those of the store.
func Load(ctx context.Context, store objstore.Store, env *base.Env, tree uint32) (*Snapshot, error) {
	h, err := readHeads(ctx, store, env, tree)
	if err != nil {
		return nil, err
	}
	if h.log == nil || h.snap == nil {
		return nil, fmt.Errorf("open %v: %w", store, ErrNoLog)
	}
	return h.snap, nil
}

// Poll reads a tree's MANIFEST unless its ETag is the given one (with an empty etag
// always). It returns nil if it is unchanged. sent is Env.Elapsed() when the
// request was sent, which the answer proves something about, changed or not.
//
// It does not look at LOG: the caller compares what it gets with what Load gave
// (CheckNext). Errors: ErrMissingManifest, ErrVersion, ErrFeature, base.ErrCorrupt,
// and those of the store.
func Poll(ctx context.Context, store objstore.Store, env *base.Env, tree uint32, etag string) (snap *Snapshot, sent time.Duration, err error) {
	name := base.ManifestName(tree)
	sent = env.Elapsed()
	obj, err := store.Get(ctx, name, objstore.GetOptions{IfNoneMatch: etag, MaxBytes: maxObjectBytes})
	switch {
	case errors.Is(err, objstore.ErrNotModified):
		return nil, sent, nil
	case errors.Is(err, objstore.ErrNotFound):
		return nil, sent, fmt.Errorf("read %s: %w", name, ErrMissingManifest)
	case err != nil:
		return nil, sent, fmt.Errorf("read %s: %w", name, err)
	}
	state, err := DecodeState(name, tree, obj.Body)
	if err != nil {
		return nil, sent, err
	}
	return &Snapshot{State: state, ETag: obj.ETag, Sent: sent, StoreTime: obj.Time}, sent, nil
}

// CheckNext returns an error that matches base.ErrCorrupt if next, read by a request
// sent when old was already known, cannot have followed it: another log, or an older
// or different version, as after a restored backup.
func CheckNext(old, next *Snapshot) error {
	name := base.ManifestName(old.State.Tree)
	o, n := old.State, next.State
	switch {
	case !bytes.Equal(o.LogId, n.LogId):
		return fmt.Errorf("%w: %w", ErrOtherLog, base.Corruptf(name, headerBytes, "log id became %x, was %x", n.LogId, o.LogId))
	case n.Version < o.Version:
		return base.Corruptf(name, headerBytes, "version went back to %d from %d", n.Version, o.Version)
	case n.Version == o.Version && !bytes.Equal(n.CommitId, o.CommitId):
		return base.Corruptf(name, headerBytes, "version %d by commit %x, was by %x", n.Version, n.CommitId, o.CommitId)
	}
	return nil
}

// heads is what is found of a log: LOG and one MANIFEST, each nil if absent.
type heads struct {
	log  *Log
	snap *Snapshot
}

// readHeads reads both heads. It returns damage as an error; what it returns without
// one is a complete log (both), a creation that did not finish (a snapshot of version
// 0 only), or nothing.
func readHeads(ctx context.Context, store objstore.Store, env *base.Env, tree uint32) (heads, error) {
	name := base.ManifestName(tree)
	// MANIFEST is made before LOG, and changes only after LOG was made: read in
	// this order, a MANIFEST in use without LOG is damage for sure.
	sent := env.Elapsed()
	obj, err := getIfThere(ctx, store, name)
	if err != nil {
		return heads{}, err
	}
	log, err := LoadLog(ctx, store)
	if err != nil && !errors.Is(err, ErrNoLog) {
		return heads{}, err
	}
	if obj == nil && log != nil {
		// Created in between, or lost: one more look tells.
		sent = env.Elapsed()
		if obj, err = getIfThere(ctx, store, name); err != nil {
			return heads{}, err
		}
		if obj == nil {
			return heads{}, fmt.Errorf("read %s: %w", name, ErrMissingManifest)
		}
	}
	if obj == nil {
		return heads{}, nil
	}
	// Decoded only now: LOG's required features were checked first.
	state, err := DecodeState(name, tree, obj.Body)
	if err != nil {
		return heads{}, err
	}
	switch {
	case log == nil && state.Version > 0:
		return heads{}, fmt.Errorf("read %s: %w", base.LogName, ErrMissingLog)
	case log != nil && !bytes.Equal(log.LogId, state.LogId):
		return heads{}, base.Corruptf(name, headerBytes, "log id is %x, LOG's is %x", state.LogId, log.LogId)
	}
	return heads{log, &Snapshot{State: state, ETag: obj.ETag, Sent: sent, StoreTime: obj.Time}}, nil
}

// getIfThere reads a whole object, or returns nil if it does not exist.
func getIfThere(ctx context.Context, store objstore.Store, name string) (*objstore.Object, error) {
	obj, err := store.Get(ctx, name, objstore.GetOptions{MaxBytes: maxObjectBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return &obj, nil
}
