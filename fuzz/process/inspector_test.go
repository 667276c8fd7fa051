package process

import (
	"context"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
)

// inspect checks the whole log again and again, while everybody is at work on it: what engine.Check
// says must hold at any time. Where the store is out of reach it looks again.
func (w *world) inspect(ctx context.Context, store objstore.Store) {
	for {
		began := time.Now()
		report, err := engine.Check(ctx, store, engine.CheckOptions{})
		switch {
		case err != nil:
			w.note("inspector: %v", err)
		case report.Err() != nil:
			w.failf("a check beside the servers found damage: %w", report.Err())
		default:
			w.counts.inspected.Add(1)
		}
		// Most of the time is for the others.
		t := time.NewTimer(500*time.Millisecond + 5*time.Since(began))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}
