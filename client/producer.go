package client

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Bounds of what a Producer and a Batcher repeat.
const (
	// attemptTimeout bounds each of their requests: one that hangs is sent again. A
	// server answers before, as its --append-timeout (30 s) says.
	attemptTimeout = time.Minute
	// DefaultRetryFor is the default of ProducerOptions.RetryFor.
	DefaultRetryFor = 5 * time.Minute
)

// ErrUnsettled reports an append of a Producer whose append before has an unknown
// outcome: Retry settles that first. Nothing was sent.
var ErrUnsettled = errors.New("the outcome of the producer's append before is unknown: call Retry")

// UnsettledError is the error of a Producer that gave up while the outcome of its append
// is unknown: it may be in the log, or be there later. The Producer keeps the batch, and
// Retry goes on with it. NotAppended is false for it.
type UnsettledError struct {
	Err error // of the last attempt, or ctx's
}

// Error implements error.
func (e *UnsettledError) Error() string {
	return fmt.Sprintf("the outcome is unknown: %v", e.Err)
}

// Unwrap returns the reason.
func (e *UnsettledError) Unwrap() error { return e.Err }

// ProducerOptions of NewProducer. The zero value of every field takes its default.
type ProducerOptions struct {
	// ID names the producer in the log: 1 to 128 bytes of UTF-8. No two producers may use
	// the same at the same time: one would be answered for the other's appends.
	// Default: 128 random bits.
	ID string
	// Next is the number of its first append. One that goes on with the ID of an earlier
	// producer goes on with its number, or with that of an append to be repeated. Default 0.
	Next uint64
	// RetryFor is how long one append is repeated, unless its context ends before. Default 5 min.
	RetryFor time.Duration
}

// Producer appends each batch exactly once: it numbers its appends, and repeats one
// whose outcome is unknown, or that is refused for now (429, 503), with the same
// number, so that the log knows it again.
//
// The log remembers the last 64 appends of as many producers as the server's
// --max-producers says. A producer that the server has forgotten since, because that many
// others appended, may append a batch again.
//
// With AckMemory a crash of the server may lose batches that were acknowledged; the
// next append is then refused with a *SequenceError.
//
// One goroutine at a time may use it.
type Producer struct {
	c        *Client
	id       string
	next     uint64
	retryFor time.Duration
	pending  []byte // the request whose outcome is unknown; nil: there is none
}

// NewProducer returns a producer. Nothing is sent yet.
func (c *Client) NewProducer(o ProducerOptions) *Producer {
	if o.ID == "" {
		var id [16]byte
		_, _ = cryptorand.Read(id[:]) // never fails
		o.ID = hex.EncodeToString(id[:])
	}
	if o.RetryFor == 0 {
		o.RetryFor = DefaultRetryFor
	}
	return &Producer{c: c, id: o.ID, next: o.Next, retryFor: o.RetryFor}
}

// ID returns the producer's name in the log.
func (p *Producer) ID() string { return p.id }

// Next returns the number of its next append, or of the one that is unsettled.
func (p *Producer) Next() uint64 { return p.next }

// Append appends the records as one batch, once. The options' Producer and
// ProducerSequence are its own. It returns when the batch is acknowledged, or with
//
//   - an *UnsettledError when ctx or RetryFor ended while the outcome is unknown: call Retry;
//   - any other error (NotAppended is true): nothing was appended, and the number is free again.
//
// A batch without records is not sent, and acknowledged, unless it has conditions.
func (p *Producer) Append(ctx context.Context, recs []Record, o AppendOptions) (AppendResult, error) {
	if p.pending != nil {
		return AppendResult{}, ErrUnsettled
	}
	if len(recs) == 0 {
		if len(o.ExpectedNext) == 0 {
			return AppendResult{}, nil
		}
		o.Producer = "" // there is nothing to append twice
		return p.c.Append(ctx, nil, o)
	}
	o.Producer, o.ProducerSequence = p.id, p.next
	return p.settle(ctx, encodeAppend(recs, o), false)
}

// Retry goes on with the append whose outcome is unknown, and returns as Append does. With
// none it returns zeros.
func (p *Producer) Retry(ctx context.Context) (AppendResult, error) {
	if p.pending == nil {
		return AppendResult{}, nil
	}
	return p.settle(ctx, p.pending, true)
}

// settle sends a request until its outcome is known, or time is up. unknown says that
// an earlier attempt may have appended it.
func (p *Producer) settle(ctx context.Context, request []byte, unknown bool) (AppendResult, error) {
	res, unknown, err := p.c.settle(ctx, request, unknown, p.retryFor, Transient)
	p.pending = nil
	switch {
	case err == nil:
		p.next++
	case unknown:
		p.pending = request
		err = &UnsettledError{err}
	}
	return res, err
}

// settle sends a numbered request until its outcome is known and not passing, or it was tried for so long, or ctx ends. It
// reports whether an attempt, or one before, may have appended what an error says was not.
func (c *Client) settle(ctx context.Context, request []byte, before bool, retryFor time.Duration, passing func(error) bool) (
	res AppendResult, unknown bool, err error) {
	unknown = before
	end := time.Now().Add(retryFor)
	for attempt := 0; ; attempt++ {
		if res, err = c.attempt(ctx, request); err == nil {
			return res, false, nil
		}
		unknown = !settled(err, unknown)
		if !unknown && !passing(err) {
			return AppendResult{}, false, err
		}
		wait := retryWait(err, attempt)
		if !time.Now().Add(wait).Before(end) || sleep(ctx, wait) != nil {
			return AppendResult{}, unknown, err
		}
	}
}

// attempt sends a request once.
func (c *Client) attempt(ctx context.Context, request []byte) (AppendResult, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return c.append(ctx, request)
}

// settled reports whether an error proves that the batch was not appended, also by
// an earlier attempt whose outcome was unknown.
func settled(err error, unknown bool) bool {
	if !NotAppended(err) || !unknown {
		return NotAppended(err)
	}
	// The log looks for a repeat first: had the earlier attempt been appended, this one
	// had been answered so. Other refusals may come before it looks; and that a number leaves
	// others out may be said by a server that was passed and does not know it, while the other one
	// has appended. A conflict with what is durable would be one there too.
	var conflict *ConflictError
	return errors.As(err, &conflict)
}
