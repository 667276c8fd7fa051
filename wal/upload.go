package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/trace"
)

const (
	// maxPuts bounds the PUTs of one id that are under way at the same time: one, and
	// another because the first is slow (a hedge) or because a second one failed.
	maxPuts = 2
	// minPutTimeout is how long any PUT or read-back may take before it is given up and
	// tried again; slowestPut bytes a second are allowed for on top.
	minPutTimeout = 30 * time.Second
	slowestPut    = 256 << 10
)

// upload is one object on its way into the store. Guarded by Uploader.mu, but for the
// first three fields, which never change.
type upload struct {
	id   uint64
	name string
	body []byte

	puts    []*call // PUTs under way; at most maxPuts
	check   *call   // the read-back under way, or nil
	retry   *timer  // armed while a retry waits
	hedge   *timer  // armed while the only PUT under way is not yet slow
	recheck bool    // the retry is a read-back, not a PUT
	sent    int     // PUTs ever sent
	attempt int     // retries ever scheduled

	landed    bool
	storeTime time.Time // of the answer that said that it landed
	// reusable: no PUT but one, which succeeded, was ever given the body.
	reusable bool
}

// call is one call of the store under way.
type call struct {
	cancel  context.CancelFunc
	timeout *timer
	began   time.Duration
}

// describe tells what is uploaded. It reads nothing that changes.
func (up *upload) describe(span trace.Span, try int) {
	var h rawHeader
	h.unmarshal(up.body)
	span.Int("wal_object", int64(up.id))
	span.Int("try", int64(try))
	span.Int("entries", int64(h.entries)) // batches, and changes of cursors
	span.Int("records", int64(h.End-h.First))
	span.Int("bytes", int64(len(up.body)))
}

// startUploads starts waiting uploads while the window has room. mu is held.
func (u *Uploader) startUploads() {
	for u.started < len(u.uploads) && u.running < u.opts.InFlight {
		up := u.uploads[u.started]
		u.started++
		u.running++
		u.put(up)
	}
}

// put sends one PUT (U1). mu is held.
func (u *Uploader) put(up *upload) {
	// A retry is armed by the end of a PUT or read-back, and while one is armed, or a
	// read-back is under way, nothing else puts: at most one PUT is under way here.
	if len(up.puts) >= maxPuts {
		panic(fmt.Sprintf("wal: %d PUTs of %s under way", len(up.puts), up.name))
	}
	up.sent++
	u.stats.Puts++
	u.stats.Bytes += uint64(len(up.body))
	try := up.sent
	c := u.begin("wal put", up, func(ctx context.Context, c *call) {
		ctx, span := trace.Begin(u.opts.Tracer, ctx, trace.WALPut)
		res, err := u.opts.Store.Put(ctx, up.name, up.body, objstore.PutOptions{IfAbsent: true, SinglePart: true})
		if span.Wanted() {
			up.describe(span, try)
		}
		span.End(err)
		u.putDone(up, c, res, err)
	})
	up.puts = append(up.puts, c)
	if len(up.puts) == 1 {
		u.disarm(&up.hedge)
		up.hedge = u.arm(u.hedgeDelay(), func(t *timer) { u.hedgeDue(up, t) })
	}
}

// begin runs a call of the store in its own goroutine, bounded in time. mu is held, not
// by do.
func (u *Uploader) begin(name string, up *upload, do func(context.Context, *call)) *call {
	ctx, cancel := context.WithCancelCause(u.ctx)
	c := &call{cancel: func() { cancel(nil) }, began: u.opts.Env.Elapsed()}
	limit := minPutTimeout + time.Duration(len(up.body))*time.Second/slowestPut
	c.timeout = u.arm(limit, func(*timer) { cancel(context.DeadlineExceeded) })
	u.spawn(name, func() {
		defer cancel(nil)
		do(ctx, c)
		u.deliver()
	})
	return c
}

// hedgeDelay returns how long a PUT may take before a second one is sent. mu is held.
func (u *Uploader) hedgeDelay() time.Duration {
	p95, ok := u.recent.p95()
	if !ok {
		return max(u.opts.HedgeMin, DefaultHedgeMin)
	}
	return max(u.opts.HedgeMin, p95+p95/2)
}

// hedgeDue sends a second PUT beside one that is slow. Whichever lands first counts,
// and that the other is then refused means nothing.
func (u *Uploader) hedgeDue(up *upload, t *timer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up.hedge != t {
		return
	}
	up.hedge = nil
	if len(up.puts) == 1 && up.check == nil && up.retry == nil {
		u.stats.Hedges++
		u.put(up)
	}
}

// putDone takes the answer of one PUT.
func (u *Uploader) putDone(up *upload, c *call, res objstore.PutResult, err error) {
	took := u.opts.Env.Elapsed() - c.began
	u.mu.Lock()
	defer u.mu.Unlock()
	u.disarm(&c.timeout)
	if u.over() || up.landed {
		return
	}
	up.puts = slices.DeleteFunc(up.puts, func(p *call) bool { return p == c })
	u.stats.LastError = err
	switch {
	case err == nil:
		u.recent.add(took)
		up.reusable = up.sent == 1
		u.land(up, res.Time)
	case errors.Is(err, objstore.ErrPrecondition), errors.Is(err, objstore.ErrConflict):
		u.readBack(up)
	default:
		// Unknown. If it was applied, the retry is refused and the read-back tells.
		u.retryLater(up)
	}
}

// retryLater arms the retry unless something that leads to it is under way (U4). mu is
// held.
func (u *Uploader) retryLater(up *upload) {
	if up.retry != nil || up.check != nil {
		return
	}
	wait := u.opts.Env.Backoff(firstBackoff, maxBackoff, up.attempt)
	up.attempt++
	up.retry = u.arm(wait, func(t *timer) { u.retryDue(up, t) })
}

// retryDue tries again.
func (u *Uploader) retryDue(up *upload, t *timer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up.retry != t {
		return
	}
	up.retry = nil
	if up.recheck {
		u.readBack(up)
		return
	}
	u.stats.Retries++
	u.put(up)
}

// readBack gets the object to find out what a refused PUT means. mu is held.
func (u *Uploader) readBack(up *upload) {
	if up.check != nil {
		return // a PUT refused meanwhile adds nothing: if this read sees nothing, the next PUT tells
	}
	u.disarm(&up.retry)
	u.stats.ReadBacks++
	up.check = u.begin("wal read back", up, func(ctx context.Context, c *call) {
		got, err := u.opts.Store.Get(ctx, up.name, objstore.GetOptions{MaxBytes: MaxObjectBytes})
		found, err := u.judge(up, got.Body, err)
		u.readBackDone(up, c, found, got.Time, err)
	})
}

// finding is what a read-back has shown.
type finding int

const (
	foundOwn     finding = iota // exactly our bytes: landed
	foundNothing                // nothing there, or not yet
	foundUnknown                // the read failed
	foundOther                  // something that we did not write: the error says what
)

// judge decides what the outcome of a read-back means, without a lock: it may have to
// check a large object.
func (u *Uploader) judge(up *upload, body []byte, err error) (finding, error) {
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return foundNothing, nil
	case errors.Is(err, objstore.ErrTooLarge):
		return foundOther, readError(up.name, err)
	case err != nil:
		return foundUnknown, err
	case bytes.Equal(body, up.body): // and with them writer id and checksum (U2)
		return foundOwn, nil
	}
	o, err := Decode(up.name, u.opts.Ident, u.opts.Epoch, up.id, body)
	switch {
	case err != nil:
		return foundOther, err
	case o.Fence:
		return foundOther, fmt.Errorf("put %s: %w: epoch %d ended this one", up.name, ErrFenced, o.Fencer)
	default:
		return foundOther, fmt.Errorf("put %s: %w: it holds an object of writer %x", up.name, ErrFenced, o.Writer)
	}
}

// readBackDone takes the outcome of a read-back.
func (u *Uploader) readBackDone(up *upload, c *call, found finding, storeTime time.Time, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.disarm(&c.timeout)
	if u.over() || up.landed {
		return
	}
	up.check = nil
	u.stats.LastError = err
	up.recheck = found == foundUnknown
	switch found {
	case foundOwn:
		u.land(up, storeTime)
	case foundNothing, foundUnknown:
		u.retryLater(up)
	case foundOther:
		u.fail(err)
	}
}

// land records that an object is in the store and calls off what else is under way for
// it. mu is held.
func (u *Uploader) land(up *upload, storeTime time.Time) {
	blocked := !u.canSubmit()
	up.landed = true
	up.storeTime = storeTime
	u.running--
	u.stats.Landed++
	u.quiesce(up)
	u.startUploads()
	if blocked && u.canSubmit() && u.opts.OnSpace != nil {
		u.space = true
	}
}

// quiesce cancels all calls and timers of an upload. mu is held.
func (u *Uploader) quiesce(up *upload) {
	u.disarm(&up.retry)
	u.disarm(&up.hedge)
	for _, c := range up.puts {
		c.cancel()
		u.disarm(&c.timeout)
	}
	up.puts = nil
	if up.check != nil {
		up.check.cancel()
		u.disarm(&up.check.timeout)
		up.check = nil
	}
}
