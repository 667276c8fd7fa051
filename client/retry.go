package client

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"
)

// The waits before a request is repeated, unless the server asks for a longer one.
const (
	firstRetryWait = 50 * time.Millisecond
	maxRetryWait   = 5 * time.Second
	// maxRetryAfter bounds what a server can ask for.
	maxRetryAfter = time.Minute
)

// DefaultRetryReadsFor is the default of Options.RetryReadsFor.
const DefaultRetryReadsFor = time.Minute

// Transient reports whether the same request may succeed later without a change to it: there was no answer, or one with
// 408, 429, 499 or 5xx, or no token to send. It is false for what context.Canceled ended, and for a server whose
// certificate is not trusted. It says nothing of what became of an append: NotAppended does.
func Transient(err error) bool {
	var answer *Error
	if !errors.As(err, &answer) {
		return err != nil && !errors.Is(err, context.Canceled) && !handshakeFailed(err)
	}
	switch answer.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, statusClientGone:
		return true
	}
	return answer.Status >= http.StatusInternalServerError
}

// handshakeFailed reports whether the server is not whom the client trusts, or speaks no TLS: nothing was sent.
func handshakeFailed(err error) bool {
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	return errors.As(err, &untrusted) ||
		errors.As(err, &plain) && plain.Conn != nil || // else the connection was one of TLS before: the request may have been sent
		errors.Is(err, http.ErrSchemeMismatch) // it speaks plain HTTP
}

// retryReads makes a read until it succeeds, fails for good, or has failed for as long as the client's options allow.
func (c *Client) retryReads(ctx context.Context, read func() error) error {
	end := time.Now().Add(c.retry)
	for attempt := 0; ; attempt++ {
		err := read()
		var final *finalError
		if errors.As(err, &final) {
			return final.error
		}
		if err == nil || ctx.Err() != nil || !Transient(err) {
			return err
		}
		wait := retryWait(err, attempt)
		if time.Now().Add(wait).After(end) || sleep(ctx, wait) != nil {
			return err
		}
	}
}

// finalError is an error for which a read is not made again, whatever it is.
type finalError struct{ error }

// retryWait returns how long to wait before a request is made again that failed as often before.
func retryWait(err error, attempt int) time.Duration {
	ceiling := min(maxRetryWait, firstRetryWait<<min(attempt, 20))
	wait := ceiling/2 + rand.N(ceiling/2+1)
	var answer *Error
	if errors.As(err, &answer) {
		wait = max(wait, min(answer.RetryAfter, maxRetryAfter))
	}
	return wait
}

// sleep waits, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
