package bench

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/annalsdb/annals/bench/crowd"
	"github.com/annalsdb/annals/engine"
)

// followersUnderWay are followers that were started.
type followersUnderWay interface {
	// ended is closed when they end by themselves.
	ended() <-chan struct{}
	// cpu is the processor time of their own process; 0 if they have none.
	cpu() time.Duration
	// stop ends them, and returns what their process took, and why they ended before, if they did.
	stop() (crowd.Usage, error)
}

// start starts the followers.
func (w *Follow) start(r *Run) (followersUnderWay, error) {
	if w.o.Form == FollowEngine {
		return w.inEngine(r.Embedded().DB)
	}
	o := crowd.Options{URL: w.url, Token: w.token, Form: crowd.Form(w.o.Form), Followers: w.o.Followers,
		PerConnection: w.perConnection(), From: w.readable, Run: w.run}
	if !w.o.ClientsInProcess {
		p, err := crowd.Start(w.o.ClientProcess, os.Environ(), o, w.d)
		return processFollowers{p}, err
	}
	f := newInside()
	go func() {
		f.err = crowd.Run(f.ctx, o, w.d)
		close(f.done)
	}()
	return f, nil
}

// processFollowers are in a process of their own.
type processFollowers struct{ *crowd.Process }

func (p processFollowers) ended() <-chan struct{}     { return p.Done() }
func (p processFollowers) cpu() time.Duration         { return p.CPU() }
func (p processFollowers) stop() (crowd.Usage, error) { return p.Stop() }

// insideFollowers are in this process.
type insideFollowers struct {
	ctx    context.Context
	cancel func()
	done   chan struct{}
	err    error // read after done
}

func newInside() *insideFollowers {
	f := &insideFollowers{done: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

func (f *insideFollowers) ended() <-chan struct{} { return f.done }
func (f *insideFollowers) cpu() time.Duration     { return 0 }
func (f *insideFollowers) stop() (crowd.Usage, error) {
	f.cancel()
	<-f.done
	return crowd.Usage{}, f.err
}

// inEngine follows without HTTP, a goroutine a follower.
func (w *Follow) inEngine(db *engine.DB) (followersUnderWay, error) {
	f := newInside()
	all := make([]*engine.Follower, w.o.Followers)
	for i := range all {
		var err error
		if all[i], err = db.Follow(f.ctx, engine.Stream{Key: AppendKey(nil, uint64(i)), From: w.readable}); err != nil {
			for _, opened := range all[:i] {
				opened.Close()
			}
			f.cancel()
			return nil, err
		}
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	for i, follower := range all {
		running.Go(func() {
			defer follower.Close()
			if err := w.follow(follower, uint32(i)); f.ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				f.err = err
			}
		})
	}
	go func() {
		running.Wait()
		close(f.done)
	}()
	return f, nil
}

// follow passes on what a follower gets, and returns why it ended.
func (w *Follow) follow(follower *engine.Follower, i uint32) error {
	w.d.Opened(1)
	for {
		recs, err := follower.Next(engine.FollowRead{})
		if err != nil {
			return err
		}
		at := time.Now().UnixNano()
		for _, rec := range recs {
			stamp, ok := crowd.StampOf(rec.Value)
			w.d.Delivered(crowd.Delivery{Stamp: stamp, Follower: i, Seq: rec.Sequence, At: at, Foreign: !ok || stamp.Run != w.run})
		}
	}
}
