package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// maxPrefetch bounds the objects that Replay holds or reads at the same time.
const maxPrefetch = 4

// Replay reads the objects of a fenced epoch from an id on, in order, up to its first
// fence, whoever put it, and returns the fence's id. Every record object is checked
// against chain, which moves on, and passed to fn with its size; fn owns it. What
// lies behind the fence is dead and is not looked at (I2).
//
// A missing object before the fence gives an error that matches ErrMissing and
// names it, a damaged one base.ErrCorrupt: neither is ever the end of the log (I4, F14).
// Other failures to read are retried with backoff, a bounded number of times. An error
// of fn ends the replay and is returned as it is. Objects were passed to fn, and chain
// has moved, up to the error. It panics when epoch or from is 0.
//
// Up to four objects are read ahead; no goroutine is left when it returns.
func Replay(ctx context.Context, store objstore.Store, env *base.Env, ident Identity, epoch, from uint64, chain *Chain, fn func(o *Object, size int64) error) (fence uint64, err error) {
	if epoch == 0 || from == 0 {
		panic(fmt.Sprintf("wal: replay epoch %d from id %d", epoch, from))
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &replayer{ctx: ctx, store: store, env: env, ident: ident, epoch: epoch, next: from}
	defer func() {
		cancel()
		r.drain()
	}()
	// The read-ahead grows with what was delivered: an epoch that holds only a fence,
	// as a crash loop leaves many (F56), costs one GET.
	for id, ahead := from, 1; ; id, ahead = id+1, min(ahead+1, maxPrefetch) {
		got := r.read(ahead)
		name := base.WALName(ident.Tree, epoch, id)
		switch {
		case errors.Is(got.err, objstore.ErrNotFound):
			return 0, fmt.Errorf("replay %s: %w", name, ErrMissing)
		case got.err != nil:
			return 0, fmt.Errorf("replay: %w", got.err)
		case got.object.Fence:
			return id, nil
		}
		if err := chain.Accept(name, got.object); err != nil {
			return 0, fmt.Errorf("replay: %w", err)
		}
		if err := fn(got.object, got.size); err != nil {
			return 0, err
		}
	}
}

// replayer reads one epoch ahead. Used by one goroutine.
type replayer struct {
	ctx     context.Context
	store   objstore.Store
	env     *base.Env
	ident   Identity
	epoch   uint64
	next    uint64            // the next id to start reading
	pending []chan fetchedOne // one a started read, in id order; at most maxPrefetch
}

// fetchedOne is the outcome of reading one id.
type fetchedOne struct {
	object *Object
	size   int64
	err    error
}

// read makes sure that the next `ahead` objects are being read and waits for the first.
func (r *replayer) read(ahead int) fetchedOne {
	for len(r.pending) < ahead {
		r.start()
	}
	got := <-r.pending[0] // comes soon after ctx ends, at the latest
	r.pending = r.pending[1:]
	return got
}

// start begins to read the next id.
func (r *replayer) start() {
	id := r.next
	r.next++
	done := make(chan fetchedOne, 1) // the reader never waits for us
	r.pending = append(r.pending, done)
	r.env.Go("wal replay read", func() {
		var got fetchedOne
		got.err = retry(r.ctx, r.env, func(ctx context.Context) (err error) {
			got.object, got.size, err = Read(ctx, r.store, r.ident, r.epoch, id)
			return err
		})
		done <- got
	})
}

// drain waits for the reads that nobody wants any more.
func (r *replayer) drain() {
	for _, done := range r.pending {
		<-done
	}
}
