package fuzz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/engine"
)

// newProcess adds a process to the world.
func (w *simWorld) newProcess(role simRole) *simProcess {
	p := &simProcess{id: w.lastProcess + 1, role: role, began: w.step}
	w.lastProcess++
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.env = w.newEnv(p)
	w.processes = append(w.processes, p)
	return p
}

// launch starts a goroutine of a process that is none of the engine's own.
func (w *simWorld) launch(p *simProcess, f func()) { go w.guarded(p, f) }

// startWriter starts a process that opens the log for writing.
func (w *simWorld) startWriter(d *dice) {
	p := w.newProcess(simWriter)
	p.opts = w.profile.writerOptions(d)
	p.opts.Env, p.stale = p.env, p.opts.StaleAfter
	if slices.ContainsFunc(w.alive(), func(o *simProcess) bool { return o.role == simWriter && o != p && o.log != nil }) {
		w.count("takeover")
	}
	w.note(p, "writer", "", 0, "")
	w.launch(p, func() {
		db, err := engine.Open(p.ctx, w.storeOf(p), p.opts)
		w.started(p, err, func() { p.openedDB = db })
	})
}

// startReplica starts a process that reads only, some of a part of the keys.
func (w *simWorld) startReplica(d *dice) {
	p := w.newProcess(simReplica)
	o := w.profile.readerOptions(d)
	o.Env, p.keys, p.stale = p.env, o.Keys, o.StaleAfter
	w.note(p, "replica", "", 0, "")
	w.launch(p, func() {
		r, err := engine.OpenReader(p.ctx, w.storeOf(p), o)
		w.started(p, err, func() { p.openedReader = r })
	})
}

// started notes that the opening of a process is over.
func (w *simWorld) started(p *simProcess, err error, took func()) {
	w.mu.Lock()
	if err == nil {
		took()
	}
	p.startErr, p.started = err, true
	killed := p.killed
	w.mu.Unlock()
	if killed { // while it opened
		bury(p)
	}
}

// startCompactor starts a process that compacts only.
func (w *simWorld) startCompactor() {
	p := w.newProcess(simCompactor)
	o := w.profile.compactOptions()
	o.Env = p.env
	w.note(p, "compactor", "", 0, "")
	w.launch(p, func() {
		err := engine.Compact(p.ctx, w.storeOf(p), o)
		w.mu.Lock()
		defer w.mu.Unlock()
		p.startErr, p.exited = err, true
	})
}

// adoptProcesses takes in what has become of processes since the last event. Callers hold mu.
func (w *simWorld) adoptProcesses() (opened, exited []*simProcess) {
	for _, p := range w.processes {
		if p.started && !p.settled {
			p.settled = true
			switch {
			case p.startErr != nil:
				p.exited = true
			case p.openedDB != nil:
				p.db, p.log, p.epoch = p.openedDB, p.openedDB, p.openedDB.Status().Epoch
			default:
				p.log = p.openedReader
			}
			if !p.dead && p.startErr == nil {
				opened = append(opened, p)
			}
			if !p.killed {
				w.trace.add(w.step, w.calm, p.id, "serves", "", 0, errText(p.startErr))
			}
		}
		if p.exited && !p.dead {
			exited = append(exited, p)
		}
	}
	return opened, exited
}

// kill ends a process here and now.
func (w *simWorld) kill(p *simProcess) {
	w.note(p, "killed", "", 0, "")
	w.gone(p)
}

// gone ends all that is left of a process: whatever it still does has no effect. Requests that are under way may
// take effect yet.
func (w *simWorld) gone(p *simProcess) {
	w.mu.Lock()
	p.dead, p.killed, p.stall = true, true, false
	for _, o := range w.ops {
		if o.proc == p && !o.answered && !o.left {
			o.answered, o.left = true, true
			o.heard = simAnswer{err: failed(o.op, errSimDead)}
			close(o.done)
		}
	}
	w.ghosts(p)
	if p.openedReader != nil && p.openedReader.Status().Jumps > 0 {
		w.countLocked("replica jump")
	}
	if p.openedDB != nil && errors.Is(p.openedDB.Err(), engine.ErrFenced) {
		w.countLocked("fenced")
	}
	w.mu.Unlock()
	p.cancel()
	for _, c := range w.calls {
		if c.proc == p {
			c.cancel()
		}
	}
	w.calls = slices.DeleteFunc(w.calls, func(c *simCall) bool { return c.proc == p })
	w.launch(p, func() { bury(p) })
}

// ghosts keeps the requests of a process under way that were not applied. Callers hold mu.
func (w *simWorld) ghosts(p *simProcess) {
	for i, o := range w.ops {
		if o.proc == p && !o.applied {
			ghost := *o
			ghost.left, ghost.answered, ghost.done = true, false, nil
			w.ops[i] = &ghost
		}
	}
}

// bury ends what a dead process still runs.
func bury(p *simProcess) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if p.openedDB != nil {
		_ = p.openedDB.Close(ctx)
	}
	if p.openedReader != nil {
		_ = p.openedReader.Close(ctx)
	}
}

// stop stops a process: time goes on, and it does nothing.
func (w *simWorld) stop(p *simProcess) {
	w.note(p, "stopped", "", 0, "")
	w.mu.Lock()
	defer w.mu.Unlock()
	p.stall = true
}

// wake lets a stopped process go on.
func (w *simWorld) wake(p *simProcess) {
	w.note(p, "woken", "", 0, "")
	if p.role == simWriter && p.log != nil && w.epoch > p.epoch {
		w.count("zombie woken after it was passed")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.stall = false
}

// closeTimeout is how long a process that is asked to end may take.
const closeTimeout = 20 * time.Second

// close asks a process to end cleanly.
func (w *simWorld) close(p *simProcess) {
	w.note(p, "closes", "", 0, "")
	p.closing = true
	if p.role == simCompactor || p.log == nil {
		p.cancel()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	stop := p.env.AfterFunc(closeTimeout, cancel)
	w.launch(p, func() {
		defer stop()
		defer cancel()
		var err error
		if p.db != nil {
			err = p.db.Close(ctx)
		} else {
			err = p.openedReader.Close(ctx)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if err == nil {
			w.countLocked("clean close")
		} else {
			err = fmt.Errorf("close: %w", err)
		}
		p.startErr, p.exited = err, true
	})
}

// alive returns the processes that were not killed and have not ended.
func (w *simWorld) alive() []*simProcess {
	return slices.DeleteFunc(slices.Clone(w.processes), func(p *simProcess) bool { return p.dead })
}
