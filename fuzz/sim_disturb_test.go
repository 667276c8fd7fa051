package fuzz

import (
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// disturb does what the dice say, and reports whether that could be done.
func (w *simWorld) disturb(d *dice) bool {
	ev := simEvent(d.weighted(w.profile.events[:]))
	if d.permille(100) && !slices.ContainsFunc(w.alive(), func(p *simProcess) bool { return p.role == simWriter && !p.stall }) {
		ev = evWriter // somebody looks after it
	}
	if !w.doEvent(ev, d) {
		return false
	}
	w.count("event: " + simEventNames[ev])
	return true
}

func (w *simWorld) doEvent(ev simEvent, d *dice) bool {
	alive := w.alive()
	of := func(role simRole) int {
		return len(slices.DeleteFunc(slices.Clone(alive), func(p *simProcess) bool { return p.role != role }))
	}
	pick := func(want func(*simProcess) bool) *simProcess {
		some := slices.DeleteFunc(slices.Clone(alive), func(p *simProcess) bool { return !want(p) })
		if len(some) == 0 {
			return nil
		}
		return some[d.below(len(some))]
	}
	act := func(p *simProcess, f func(*simProcess)) bool {
		if p != nil {
			f(p)
		}
		return p != nil
	}
	switch ev {
	case evStore:
		return w.serve(d)
	case evTimer:
		return w.fireTimer(d)
	case evCall:
		return w.startCall(d)
	case evGiveUp:
		return w.giveUp(d)
	case evWriter:
		if of(simWriter) >= w.profile.writers { // one makes room: one that has failed, if there is one
			p := pick(func(p *simProcess) bool { return p.db != nil && p.db.Err() != nil })
			if p == nil && d.permille(300) {
				p = pick(func(p *simProcess) bool { return p.role == simWriter })
			}
			return act(p, w.kill)
		}
		w.startWriter(d)
		return true
	case evReplica:
		if of(simReplica) >= w.profile.replicas || w.head == nil {
			return false
		}
		w.startReplica(d)
		return true
	case evCompactor:
		if of(simCompactor) > 0 || w.head == nil {
			return false
		}
		w.startCompactor()
		return true
	case evKill:
		return act(pick(func(*simProcess) bool { return true }), w.kill)
	case evStop:
		return act(pick(func(p *simProcess) bool { return !p.stall }), w.stop)
	case evWake:
		return act(pick(func(p *simProcess) bool { return p.stall }), w.wake)
	case evClose:
		return act(pick(func(p *simProcess) bool { return !p.stall && !p.closing }), w.close)
	case evClock:
		return act(pick(func(*simProcess) bool { return true }), func(p *simProcess) {
			by := oneOf(d, -time.Hour, time.Hour, 365*24*time.Hour, -time.Second)
			w.note(p, "clock jumps", by.String(), 0, "")
			w.mu.Lock()
			defer w.mu.Unlock()
			p.skew += by
		})
	case evLeap:
		by := oneOf(d, 100*time.Millisecond, time.Second, 10*time.Second, 10*time.Second, 70*time.Second, 70*time.Second, time.Hour)
		w.note(nil, "time passes", by.String(), 0, "")
		time.Sleep(by)
		return true
	}
	panic("not reached")
}

// giveUp ends the context of a call.
func (w *simWorld) giveUp(d *dice) bool {
	running := slices.DeleteFunc(slices.Clone(w.calls), func(c *simCall) bool { return c.proc.stall })
	if len(running) == 0 {
		return false
	}
	c := running[d.below(len(running))]
	w.note(c.proc, "gives up", fmt.Sprint(c.id), 0, "")
	c.cancel()
	return true
}

// serve lets something happen to a request.
func (w *simWorld) serve(d *dice) bool {
	able := slices.DeleteFunc(slices.Clone(w.ops), func(o *simOp) bool {
		return o.applied && o.proc.stall || o.left && d.permille(w.profile.linger)
	})
	if len(able) == 0 {
		return false
	}
	o := able[d.early(len(able))]
	if o.left { // nobody waits for it any more
		return w.serveGhost(o, d)
	}
	if o.applied {
		w.reply(o, o.answer)
		return true
	}
	f := w.fault(o, d)
	if f != faultNone {
		w.count("fault: " + simFaultNames[f])
	}
	w.suffer(o, f, d)
	return true
}

// fault draws what happens to a request that was not applied yet.
func (w *simWorld) fault(o *simOp, d *dice) simFault {
	if o.proc.stall {
		return faultApply // it hears nothing yet
	}
	weights := w.profile.faults
	conditional := o.op.Kind == fault.Put && (o.op.PutOptions.IfAbsent || o.op.PutOptions.IfMatch != "")
	if !conditional {
		weights[faultRace], weights[faultLie] = 0, 0
	}
	if o.op.Kind != fault.Get {
		weights[faultCut] = 0
	}
	if f := simFault(d.weighted(weights[:])); f >= 0 {
		return f
	}
	return faultNone
}

// suffer makes a fault happen to a request.
func (w *simWorld) suffer(o *simOp, f simFault, d *dice) {
	fails := func(err error) { w.reply(o, simAnswer{err: failed(o.op, err)}) }
	switch f {
	case faultNone:
		w.apply(o)
		w.reply(o, o.answer)
	case faultApply:
		w.apply(o)
	case faultReset:
		fails(errSimReset)
	case faultBusy:
		fails(objstore.ErrUnavailable)
	case faultRace:
		fails(objstore.ErrConflict)
	case faultLost:
		w.apply(o)
		fails(oneOf(d, errSimReset, objstore.ErrUnavailable))
	case faultLie:
		w.apply(o)
		fails(objstore.ErrPrecondition)
	case faultCut:
		w.apply(o)
		a := o.answer
		if n := len(a.obj.Body); n > 0 {
			a.obj.Body = a.obj.Body[:d.below(n)]
			o.proc.cut = true
		}
		w.reply(o, a)
	}
}

// serveGhost applies a request that nobody waits for, or lets it vanish.
func (w *simWorld) serveGhost(o *simOp, d *dice) bool {
	if o.op.Kind == fault.Put || o.op.Kind == fault.Delete {
		if d.permille(500) {
			w.apply(o)
			w.count("fault: applied after its caller left")
			return true
		}
		w.count("fault: vanished after its caller left")
	}
	w.note(o.proc, "vanishes "+o.op.Kind.String(), o.op.Name, o.sig, "")
	o.applied = true // and so it is listed no longer
	return true
}
