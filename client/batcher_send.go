package client

import (
	"errors"
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
	b.giveUp()
	b.pump()
}

// deliver sends a batch. Until all before it are acknowledged it may come too early: then it is sent again after a moment. Whatever
// else fails is left until its turn, so that what it is then told is for good.
func (b *Batcher) deliver(t *batch, request []byte) (AppendResult, error) {
	ctx := httptrace.WithClientTrace(b.ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) { b.wrote(t, info.Err) }})
	unknown := false
	for attempt := 0; !t.first(); attempt++ {
		res, err := b.c.attempt(ctx, request)
		if err == nil {
			return res, nil
		}
		unknown = !settled(err, unknown)
		var again <-chan time.Time
		if leavesGap(err) && !unknown {
			again = time.After(min(firstEarlyWait<<min(attempt, 20), lastEarlyWait))
		}
		select {
		case <-t.turn:
		case <-again:
		case <-b.ctx.Done():
			return AppendResult{}, asUnsettled(err, unknown)
		}
	}
	res, unknown, err := b.c.settle(ctx, request, unknown, b.o.RetryFor, passing)
	return res, asUnsettled(err, unknown)
}

// passing reports whether the oldest request may succeed later. All before it are durable: a server that misses one of them was passed by
// another one, and does not know it yet.
func passing(err error) bool { return Transient(err) || leavesGap(err) }

func leavesGap(err error) bool {
	var number *SequenceError
	return errors.As(err, &number)
}

// The waits before a request is sent again that overtook the one before it.
const (
	firstEarlyWait = 2 * time.Millisecond
	lastEarlyWait  = 100 * time.Millisecond
)

// first reports whether the batch is the oldest in flight.
func (t *batch) first() bool {
	select {
	case <-t.turn:
		return true
	default:
		return false
	}
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
		case i == 0:
			b.resolve(t, why)
		case t.acked || !NotAppended(why): // it may be there, and the one before it too; neither is acknowledged
			b.resolve(t, &UnsettledError{why})
		default:
			b.resolve(t, afterFailure(why)) // the log does not take it without the one before
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
	b.gaveUp = why
	b.giveUp()
}

// giveUp fails what is left of a Batcher that was given up, once nothing is in flight: the last request may have been acknowledged
// nevertheless. Callers hold mu.
func (b *Batcher) giveUp() {
	if b.gaveUp != nil && b.failure == nil && len(b.inFlight) == 0 && b.last() != nil {
		b.fail(b.gaveUp)
	}
}
