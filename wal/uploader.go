package wal

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/trace"
)

// Defaults of UploaderOptions.
const (
	DefaultInFlight = 8
	DefaultHedgeMin = time.Second
	// pendingFactor times InFlight is the default of MaxPending: so far may PUTs run
	// ahead of one that does not land.
	pendingFactor = 4
)

// UploaderOptions say what an Uploader uploads and whom it tells.
type UploaderOptions struct {
	Store  objstore.Store
	Env    *base.Env
	Ident  Identity
	Epoch  uint64
	Writer WriterID
	// FirstID is the id of the first object; 0 means 1.
	FirstID uint64
	// InFlight is the window: how many objects are uploaded at the same time. More
	// give more throughput against a slow store, and cost memory and requests.
	// 0 means DefaultInFlight.
	InFlight int
	// MaxPending bounds the objects that were submitted and are not yet reported
	// durable. 0 means four times InFlight. At least InFlight.
	MaxPending int
	// HedgeMin is the least time after which a PUT without an answer is sent a second
	// time. 0 means DefaultHedgeMin.
	HedgeMin time.Duration

	// OnDurable is called for every object, once, in id order, when it and all
	// before it are in the store. Required.
	OnDurable func(Durable)
	// OnFailed is called at most once: the epoch was fenced (ErrFenced), or what the
	// store holds under an id makes no sense (base.ErrCorrupt, ErrVersion). Every object
	// not reported durable by then has an unknown outcome; none is reported any more.
	// Required.
	OnFailed func(error)
	// OnSpace, if not nil, is called when objects have landed and all that can be reported durable has been:
	// CanSubmit may have become true.
	OnSpace func()

	// Tracer, if not nil, is told of every PUT.
	Tracer trace.Tracer
}

// Durable says that an object, and every one before it, is in the store.
type Durable struct {
	ID uint64
	// StoreTime is the store's time of the answer that said so.
	StoreTime time.Time
	// Size is the object's size in bytes.
	Size int
	// Buffer is the body that was submitted, if the caller may write to it again, else
	// nil: after a retry or a hedge, bytes of a request that was given up may still be
	// on their way, and an id is bound to its bytes.
	Buffer []byte
}

// UploaderStats counts what an Uploader did.
type UploaderStats struct {
	Puts      uint64 // PUTs sent
	Retries   uint64 // of these, after a failure
	Hedges    uint64 // of these, because an earlier one was slow
	ReadBacks uint64 // GETs to find out what a refused PUT means
	Landed    uint64 // objects that are in the store
	Bytes     uint64 // bytes of the PUTs sent
	Pending   int    // objects submitted and not yet reported durable
	// LastError is the last failure of a PUT or GET, nil after one succeeded.
	LastError error
}

// Uploader puts the record objects of one epoch into the store, several at a time,
// and reports them durable in order. All methods may be called from any goroutine;
// callbacks come one at a time, from goroutines of the Uploader, and may call every
// method but Stop.
//
// Invariants:
//
//	U1 An id is bound to its bytes: every PUT of it carries the same body, IfAbsent,
//	   in a single part.
//	U2 An object has landed only if a PUT of it was answered with success, or its name
//	   was read back and held exactly its bytes. Every other answer is ambiguous.
//	U3 Id n is reported durable only after all ids before it (I1); after a failure
//	   nothing is (I2).
//	U4 An id that has started and not landed has a PUT or a read-back under way, or a
//	   retry timer armed: it goes on for ever, until it lands, the uploader fails or
//	   is stopped.
//	U5 No lock is held across a call of the store or of a callback.
//
// It is a state machine: the ends of store calls and timers are its events, each
// handled under mu, and no goroutine waits for another.
type Uploader struct {
	opts   UploaderOptions
	ctx    context.Context // of all store calls; ends at failure and at Stop
	cancel context.CancelFunc
	idle   chan struct{} // closed when stopped and active == 0

	mu         sync.Mutex // guards what follows, and every upload and timer
	next       uint64     // the id that Submit expects
	uploads    []*upload  // submitted and not yet reported durable, in id order
	started    int        // uploads[:started] have been started
	running    int        // started and not landed; at most opts.InFlight
	failed     error      // why nothing is durable any more
	reported   bool       // OnFailed was or is being called
	space      bool       // OnSpace is owed
	stopped    bool
	delivering bool // a goroutine is calling callbacks
	active     int  // goroutines and armed timers
	recent     latencies
	stats      UploaderStats
}

// NewUploader returns an Uploader that waits for its first object. It panics on
// options that make no sense.
func NewUploader(o UploaderOptions) *Uploader {
	if o.FirstID == 0 {
		o.FirstID = 1
	}
	if o.InFlight == 0 {
		o.InFlight = DefaultInFlight
	}
	if o.MaxPending == 0 {
		o.MaxPending = pendingFactor * o.InFlight
	}
	if o.HedgeMin == 0 {
		o.HedgeMin = DefaultHedgeMin
	}
	switch {
	case o.Store == nil || o.Env == nil || o.OnDurable == nil || o.OnFailed == nil:
		panic("wal: uploader without store, environment or callbacks")
	case o.Epoch == 0 || o.InFlight < 0 || o.MaxPending < o.InFlight || o.HedgeMin < 0:
		panic(fmt.Sprintf("wal: uploader of epoch %d with window %d, limit %d, hedge after %v",
			o.Epoch, o.InFlight, o.MaxPending, o.HedgeMin))
	}
	u := &Uploader{opts: o, next: o.FirstID, idle: make(chan struct{})}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	return u
}

// Submit hands over the next object, as Builder.Finish returned it. The body belongs
// to the uploader until OnDurable gives it back. It never blocks: an object beyond the
// window waits its turn. It panics when the body is not that object, when an id is left
// out or comes twice, and when MaxPending objects are pending. After a failure or Stop
// it does nothing.
func (u *Uploader) Submit(id uint64, body []byte) {
	u.checkBody(id, body)
	u.mu.Lock()
	defer u.mu.Unlock()
	if id != u.next {
		panic(fmt.Sprintf("wal: submit object %d, want %d", id, u.next))
	}
	if u.over() {
		u.next++
		return
	}
	if len(u.uploads) == u.opts.MaxPending {
		panic(fmt.Sprintf("wal: submit object %d with %d pending", id, len(u.uploads)))
	}
	u.next++
	u.uploads = append(u.uploads, &upload{
		id: id, name: base.WALName(u.opts.Ident.Tree, u.opts.Epoch, id), body: body,
	})
	u.startUploads()
}

// checkBody panics unless body is a record object of this uploader with this id.
func (u *Uploader) checkBody(id uint64, body []byte) {
	if len(body) < minRecordSize || len(body) > MaxObjectBytes {
		panic(fmt.Sprintf("wal: submit an object of %d bytes", len(body)))
	}
	var h rawHeader
	h.unmarshal(body)
	if h.Identity != u.opts.Ident || h.Writer != u.opts.Writer || h.Epoch != u.opts.Epoch || h.ID != id || h.length != uint64(len(body)) {
		panic(fmt.Sprintf("wal: submit object %d/%d of writer %x as %d/%d of writer %x", h.Epoch, h.ID, h.Writer, u.opts.Epoch, id, u.opts.Writer))
	}
}

// InFlight returns the number of objects that are being uploaded: at most the window.
func (u *Uploader) InFlight() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running
}

// CanSubmit reports whether an object submitted now would be put at once. False after
// a failure or Stop.
func (u *Uploader) CanSubmit() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.canSubmit()
}

func (u *Uploader) canSubmit() bool {
	waiting := len(u.uploads) - u.started
	return !u.over() && u.running+waiting < u.opts.InFlight && len(u.uploads) < u.opts.MaxPending
}

// Stats returns the counters.
func (u *Uploader) Stats() UploaderStats {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.stats
	s.Pending = len(u.uploads)
	return s
}

// Stop gives up what has not landed: its PUTs are cancelled, its outcome is unknown.
// It returns when no goroutine or timer of the uploader is left, and no callback
// comes after that. It must not be called from a callback. It may be called again.
func (u *Uploader) Stop() {
	u.mu.Lock()
	if !u.stopped {
		u.stopped = true
		u.abandon()
		if u.active == 0 {
			close(u.idle)
		}
	}
	u.mu.Unlock()
	<-u.idle
}

// over reports that nothing new is to be begun. mu is held.
func (u *Uploader) over() bool { return u.stopped || u.failed != nil }

// fail ends the uploader's work: from here on nothing is durable (U3). mu is held.
func (u *Uploader) fail(err error) {
	if u.over() {
		return
	}
	u.failed = err
	u.abandon()
}

// abandon cancels all calls and timers. mu is held.
func (u *Uploader) abandon() {
	u.cancel()
	for _, up := range u.uploads {
		u.quiesce(up)
	}
}

// deliver calls the callbacks that are due. One goroutine at a time does; another that
// finds it at work leaves its news in the state, where the first one looks again
// before it ends.
func (u *Uploader) deliver() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.delivering {
		return
	}
	u.delivering = true
	for call := u.nextCallback(); call != nil; call = u.nextCallback() {
		u.mu.Unlock()
		call()
		u.mu.Lock()
	}
	u.delivering = false
}

// nextCallback takes the next callback that is due, or returns nil. mu is held.
func (u *Uploader) nextCallback() func() {
	switch {
	case u.stopped || u.reported:
		return nil
	case u.failed != nil:
		u.reported = true
		err := u.failed
		return func() { u.opts.OnFailed(err) }
	case len(u.uploads) > 0 && u.uploads[0].landed: // U3
		up := u.uploads[0]
		u.uploads[0] = nil
		u.uploads = u.uploads[1:]
		u.started--
		u.space = u.opts.OnSpace != nil
		d := Durable{ID: up.id, StoreTime: up.storeTime, Size: len(up.body)}
		if up.reusable {
			d.Buffer = up.body
		}
		return func() { u.opts.OnDurable(d) }
	case u.space:
		u.space = false
		return u.opts.OnSpace
	}
	return nil
}

// timer is an armed timer of the uploader.
type timer struct{ stop func() bool }

// arm calls fire after d, unless disarmed. fire must check, under mu, that the timer
// is still the one that its owner has. mu is held.
func (u *Uploader) arm(d time.Duration, fire func(*timer)) *timer {
	t := &timer{}
	u.active++
	t.stop = u.opts.Env.AfterFunc(d, func() {
		defer u.exit()
		fire(t)
	})
	return t
}

// disarm stops the timer that *t points to, if any, and forgets it. mu is held.
func (u *Uploader) disarm(t **timer) {
	if *t != nil && (*t).stop() {
		u.active--
	}
	*t = nil
}

// spawn starts a goroutine. mu is held.
func (u *Uploader) spawn(name string, f func()) {
	u.active++
	u.opts.Env.Go(name, func() {
		defer u.exit()
		f()
	})
}

// exit is the last thing that a goroutine or a fired timer does.
func (u *Uploader) exit() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.active--
	if u.stopped && u.active == 0 {
		close(u.idle)
	}
}
