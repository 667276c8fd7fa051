package engine

import (
	"context"
	"errors"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/wal"
)

// prepare validates what is there, tests the store, and creates the log if
// there is none.
func prepare(ctx context.Context, store objstore.Store, env *base.Env) (*manifest.Snapshot, error) {
	snap, err := loadNewest(ctx, store, env)
	if err != nil {
		return nil, err
	}
	if err := objstore.ProbeConditionalWrites(ctx, store, base.ProbeName(tree, env.NewULID())); err != nil {
		return nil, err
	}
	if snap != nil {
		return snap, nil
	}
	if _, err := manifest.Create(ctx, store, env, tree); err != nil {
		return nil, err
	}
	return manifest.Load(ctx, store, env, tree)
}

// loadNewest reads the heads, and returns nil if there never was a log. It refuses a MANIFEST that was put back from an old
// copy, as far as it can be told: sequences would be used again (I3), and what was committed after the copy would be swept.
// It is told by the WAL, in which nothing has an epoch that MANIFEST did not have before, and fences stay for ever. It must
// be told before an epoch is taken: each open that failed later would come one epoch nearer to those of the WAL.
func loadNewest(ctx context.Context, store objstore.Store, env *base.Env) (*manifest.Snapshot, error) {
	snap, err := manifest.Load(ctx, store, env, tree)
	if errors.Is(err, manifest.ErrNoLog) {
		return nil, manifest.Unused(ctx, store, env, tree)
	}
	if err != nil {
		return nil, err
	}
	name, epoch, err := wal.Later(ctx, store, tree, snap.State.GetWriter().GetEpoch())
	if err != nil || name == "" {
		return snap, err
	}
	// Another writer may have opened the log since MANIFEST was read: then it is no longer ours to take.
	now, err := manifest.Load(ctx, store, env, tree)
	if err != nil {
		return nil, err
	}
	if mine := now.State.GetWriter().GetEpoch(); mine < epoch {
		return nil, base.Corruptf(base.ManifestName(tree), 0, "it is older than the log: its writer epoch is %d, and there is %s", mine, name)
	}
	return snap, nil
}
