package client

import (
	"net/http/httptrace"
	"time"
)

// pump sends what may be sent. Callers hold mu.
func (b *Batcher) pump() {
	for b.maySend() {
		var t *batch
		switch {
		case len(b.queue) > 0:
			t = b.queue[0]
			b.queue[0] = nil
			b.queue = b.queue[1:]
		case b.open != nil && b.open.due:
			t, b.open = b.open, nil
		default:
			return
		}
		request := appendOptions(t.request, &AppendOptions{Ack: AckDurable, Producer: b.id, ProducerSequence: b.next})
		t.request = nil
		b.next++
		if b.inFlight = append(b.inFlight, t); len(b.inFlight) == 1 {
			close(t.turn)
		}
		b.sending.Go(func() { b.send(t, request) })
	}
}

// maySend reports whether one more request may be under way. Behind another one it may only be if the server knows the
// Batcher, or it would take any number as its first; and it is not to overtake the other one, or it is refused. Callers hold mu.
func (b *Batcher) maySend() bool {
	n := len(b.inFlight)
	switch {
	case b.failure != nil || b.ctx.Err() != nil:
		return false
	case n == 0:
		return true
	}
	return n < b.o.MaxInFlight && b.inFlight[n-1].written && time.Since(b.ackedAt) < knownFor
}

// send sends a batch until its outcome is known.
func (b *Batcher) send(t *batch, request []byte) {
	res, err := b.deliver(t, request)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure != nil {
		return // all are resolved
	}
	if err == nil {
		t.res, t.acked, b.ackedAt = res, true, time.Now()
	}
	t.failed = err
	for len(b.inFlight) > 0 && b.inFlight[0].acked {
		b.resolve(b.inFlight[0], nil)
		b.inFlight[0] = nil
		if b.inFlight = b.inFlight[1:]; len(b.inFlight) > 0 {
			close(b.inFlight[0].turn)
		}
	}
	if len(b.inFlight) > 0 && b.inFlight[0].failed != nil {
		b.fail(b.inFlight[0].failed)
	}
	b.pump()
}

// deliver sends a batch: at once, and if that fails for whatever reason, again when all before it are acknowledged, so that
// what it is then told is for good.
func (b *Batcher) deliver(t *batch, request []byte) (AppendResult, error) {
	ctx := httptrace.WithClientTrace(b.ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) { b.wrote(t, info.Err) }})
	unknown := false
	select {
	case <-t.turn:
	default:
		res, err := b.c.attempt(ctx, request)
		if err == nil {
			return res, nil
		}
		unknown = !NotAppended(err)
		select {
		case <-t.turn:
		case <-b.ctx.Done():
			return AppendResult{}, asUnsettled(err, unknown)
		}
	}
	res, unknown, err := b.c.settle(ctx, request, unknown, b.o.RetryFor)
	return res, asUnsettled(err, unknown)
}

func asUnsettled(err error, unknown bool) error {
	if unknown {
		return &UnsettledError{err}
	}
	return err
}

// wrote notes that a request has left, so that the next one does not overtake it.
func (b *Batcher) wrote(t *batch, err error) {
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t.written = true
	b.pump()
}

// resolve tells a batch's outcome. Callers hold mu.
func (b *Batcher) resolve(t *batch, err error) {
	t.err, t.request = err, nil
	b.room.give(t.size)
	close(t.done)
}

// fail ends the Batcher because of its oldest batch. Callers hold mu.
func (b *Batcher) fail(why error) {
	b.failure = why
	b.cancel()
	for i, t := range b.inFlight {
		switch {
		case t.acked:
			b.resolve(t, nil)
		case i == 0:
			b.resolve(t, why)
		case NotAppended(why):
			b.resolve(t, afterFailure(why)) // the log does not take it without the one before
		default:
			b.resolve(t, &UnsettledError{why})
		}
	}
	if b.open != nil {
		b.seal()
	}
	for _, t := range b.queue {
		b.resolve(t, afterFailure(why))
	}
	b.inFlight, b.queue = nil, nil
	b.room.close(afterFailure(why))
}

// abandon gives up what is not acknowledged.
func (b *Batcher) abandon(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel() // what is in flight says how it ends
	if b.failure == nil && len(b.inFlight) == 0 && b.last() != nil {
		b.fail(why)
	}
}
