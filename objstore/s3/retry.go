package s3

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// The store repeats requests itself instead of leaving it to the SDK: that bounds
// attempts and waits in one place, covers bodies that end early, takes clock and
// randomness from outside, and lets each operation say what a repetition means.
//
// Repeated are: transport errors, answers that end early or are malformed, requests that
// stood still or took too long, statuses 408, 429 and 5xx, and requests that were refused for credentials for
// which there are others by now. All operations are
// repeated, conditional Puts too: a try that was applied, but whose answer was lost,
// makes the next one fail with ErrPrecondition, which callers take as
// ambiguous by the contract. A 409 is returned at once.

// do calls try until it succeeds, fails for good, the attempts are used up, or ctx
// ends. try gets a context that ends at RequestTimeout, and must not leave anything
// running. The error names the request.
func (s *Store) do(ctx context.Context, r request, try func(context.Context) error) error {
	if ctx.Err() != nil {
		return ended(ctx, r, nil)
	}
	var last error
	for attempt := range s.opts.MaxAttempts {
		if attempt > 0 {
			if err := s.opts.Sleep(ctx, s.backoff(attempt-1)); err != nil {
				return ended(ctx, r, last)
			}
		}
		signed := s.keys.generation()
		err := s.attempt(ctx, try)
		if err == nil {
			return nil
		}
		f := r.translate(err)
		if ctx.Err() != nil {
			return ended(ctx, r, f.err)
		}
		if errors.Is(f.err, objstore.ErrCredentials) && s.keys.renew(ctx, signed) {
			f.retry = true
		}
		if !f.retry {
			return fmt.Errorf("%s: %w", r, f.err)
		}
		last = f.err
	}
	return fmt.Errorf("%s: gave up after %d attempts: %w: %w", r, s.opts.MaxAttempts, objstore.ErrUnavailable, last)
}

func (s *Store) attempt(ctx context.Context, try func(context.Context) error) error {
	cause := fmt.Errorf("%w: more than %v", errRequestTimeout, s.opts.RequestTimeout)
	attempt, cancel := context.WithTimeoutCause(ctx, s.opts.RequestTimeout, cause)
	defer cancel()
	return attemptError(ctx, attempt, try(attempt))
}

// ended is the error of a request whose caller's context has ended. What the last attempt
// said is for people only.
func ended(ctx context.Context, r request, last error) error {
	if last == nil {
		return fmt.Errorf("%s: %w", r, ctx.Err())
	}
	return fmt.Errorf("%s: %w (last attempt: %v)", r, ctx.Err(), last)
}

// backoff returns the wait before retry number n (from 0): exponential, with full
// jitter, so that clients that failed together do not come back together
// (M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).
func (s *Store) backoff(n int) time.Duration {
	limit := s.opts.FirstBackoff
	for range n {
		if limit >= s.opts.MaxBackoff/2 {
			limit = s.opts.MaxBackoff
			break
		}
		limit *= 2
	}
	limit = min(limit, s.opts.MaxBackoff)
	return time.Duration(s.opts.Random() * float64(limit))
}
