package fuzz

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/fault"
)

// maxCalmEnd bounds the steps in which processes may end cleanly when a run is over.
const maxCalmEnd = 400

// end ends all processes, opens the log once more and looks at everything.
func (w *simWorld) end() error {
	d := newDice(w.seed, laneEnd)
	w.calm = true
	if d.permille(500) {
		if err := w.endCleanly(); err != nil {
			return err
		}
	}
	for _, p := range w.alive() {
		w.kill(p)
	}
	if err := w.settle(); err != nil {
		return err
	}
	late := slices.DeleteFunc(slices.Clone(w.ops), func(o *simOp) bool { return o.applied || d.permille(300) })
	for _, o := range late {
		if d.permille(500) {
			w.apply(o)
		}
	}
	if err := w.settle(); err != nil {
		return err
	}
	w.hash = w.trace.hash() // what comes now is not the world's to decide
	w.direct(d, late)
	if err := w.oracle.err(); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	return w.broken
}

// endCleanly lets everybody go on undisturbed, and asks them to end.
func (w *simWorld) endCleanly() error {
	for _, p := range w.alive() {
		if p.stall {
			w.wake(p)
		}
		if !p.closing {
			w.close(p)
		}
		if err := w.settle(); err != nil {
			return err
		}
	}
	for n := 0; n < maxCalmEnd && len(w.alive()) > 0; n++ {
		w.step++
		w.ordinary()
		if err := w.settle(); err != nil {
			return err
		}
	}
	return nil
}

// direct opens the log on the calm store, without the world in between, and hands it to the oracle. What is still
// under way of the requests of dead processes is applied while it is open.
func (w *simWorld) direct(d *dice, late []*simOp) {
	p := w.newProcess(simWriter)
	var mu sync.Mutex // the oracle is told one thing at a time
	tell := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	store := simStore(func(ctx context.Context, op fault.Op) (a simAnswer) {
		if err := ctx.Err(); err != nil {
			return simAnswer{err: failed(op, err)}
		}
		tell(func() {
			w.oracle.sent(p, op)
			a = w.do(p, op)
		})
		return a
	})
	fails := func(what string, err error) {
		if err != nil {
			w.broke(fmt.Errorf("at the end: %s: %w", what, err))
		}
	}
	o := w.profile.writerOptions(d)
	began := time.Now()
	o.Env = base.SystemEnv()
	o.Env.Elapsed = func() time.Duration { return time.Hour + time.Since(began) }
	p.opts, p.stale = o, o.StaleAfter
	db, err := engine.Open(context.Background(), store, o)
	if err != nil {
		fails("open", err)
		return
	}
	p.db, p.log, p.epoch = db, db, db.Status().Epoch
	tell(func() { w.oracle.opened(p) })
	for _, op := range late {
		if !op.applied {
			tell(func() { w.apply(op) })
		}
	}
	synctest.Wait()
	w.oracle.finish(db)
	fails("close", db.Close(context.Background()))
	report, err := engine.Check(context.Background(), w.mem, engine.CheckOptions{Env: o.Env})
	fails("check", err)
	if err == nil {
		fails("check", report.Err())
	}
	synctest.Wait()
}

// longestEnd is how long what a dead process still runs may take to find out.
const longestEnd = time.Hour

// tearDown ends every goroutine that is left, whatever the run came to.
func (w *simWorld) tearDown() {
	for _, p := range w.alive() {
		w.kill(p)
	}
	w.mu.Lock()
	w.listTimers()
	w.mu.Unlock()
	for {
		synctest.Wait()
		s, ok := w.nextStart()
		if !ok {
			break
		}
		go w.guarded(s.proc, s.f)
	}
	time.Sleep(longestEnd)
	synctest.Wait()
}
