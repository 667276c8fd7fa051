package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
)

// statusClientGone is the status that metrics and logs show of a request whose
// client went away. Nobody receives it.
const statusClientGone = 499

// retryAfter is what an overloaded server asks clients to wait.
const retryAfter = time.Second

// apiError is an answer that is not a success.
type apiError struct {
	status     int
	message    string
	outcome    string        // of an append
	retryAfter time.Duration // 0: not said
	closes     bool          // the connection is at its end: the rest of the body was not read
	drains     bool          // with closes: the client may still be sending the body
	expected   bool          // a 504 that the client asked for
	refused    denial        // of a 401 or 403: why

	key             []byte  // of a condition that does not hold
	lastSequence    *uint64 // likewise; nil: there was none
	lastProducerSeq *uint64 // of a producer that numbers otherwise; nil: there was none
}

// Error implements error.
func (e *apiError) Error() string { return e.message }

// invalid is a 400 for input that is wrong.
func invalid(format string, args ...any) error {
	return &apiError{status: http.StatusBadRequest, message: "Invalid input: " + fmt.Sprintf(format, args...)}
}

// overloaded is a 503 for what is too much now and may do later.
func overloaded(format string, args ...any) error {
	return &apiError{status: http.StatusServiceUnavailable, message: fmt.Sprintf(format, args...), retryAfter: retryAfter}
}

func tooManyResponses() error { return overloaded("too many bytes of responses are under way") }

func shuttingDown() error {
	return &apiError{status: http.StatusServiceUnavailable, message: "shutting down"}
}

// stopped answers for a log that stopped for good, whatever the reason, before
// the request was looked at.
func stopped(err error, x *exchange) error {
	e := &apiError{status: http.StatusServiceUnavailable, message: "the log has stopped: " + err.Error()}
	if x.limited() { // why may be a table of others' keys
		e.message = "the log has stopped"
	}
	if x.endpoint == appendEndpoint {
		e.outcome = engine.NotAppended.String()
	}
	if x.r.Method == http.MethodPost || x.r.Method == http.MethodPut {
		e.closes, e.drains = true, true
	}
	return e
}

// answerOf decides how an error is answered.
func answerOf(err error) *apiError {
	var known *apiError
	if errors.As(err, &known) {
		return known
	}
	if e := conflictOf(err); e != nil {
		return e
	}
	e := &apiError{message: err.Error()}
	switch {
	case errors.Is(err, engine.ErrOverloaded): // before context errors: it may wrap one
		e.status, e.retryAfter = http.StatusTooManyRequests, retryAfter
	case errors.Is(err, engine.ErrFenced), errors.Is(err, engine.ErrClosed):
		e.status = http.StatusServiceUnavailable
	case errors.Is(err, engine.ErrStale):
		e.status, e.retryAfter = http.StatusServiceUnavailable, retryAfter
	case errors.Is(err, engine.ErrStateFull): // before ErrTooLarge: the request is not what is too large
		e.status = http.StatusInsufficientStorage
	case errors.Is(err, engine.ErrTooLarge):
		e.status = http.StatusRequestEntityTooLarge
	case errors.Is(err, engine.ErrOutOfRange):
		e.status = http.StatusMisdirectedRequest
	case errors.Is(err, engine.ErrInvalid):
		e.status, e.message = http.StatusBadRequest, "Invalid input: "+e.message
	case errors.Is(err, context.DeadlineExceeded):
		e.status = http.StatusGatewayTimeout
	case errors.Is(err, context.Canceled):
		e.status = statusClientGone
	case errors.Is(err, objstore.ErrUnavailable), objstore.Lasting(err) && !errors.Is(err, engine.ErrCorrupt):
		// The log tells why once, not with each request.
		e.status, e.retryAfter, e.message = http.StatusServiceUnavailable, retryAfter, "Storage error: "+e.message
	default: // a damaged object (ErrCorrupt, which names it), or something that nobody has thought of
		e.status, e.message = http.StatusInternalServerError, "Storage error: "+e.message
	}
	var failed *engine.AppendError
	if errors.As(err, &failed) && e.status >= http.StatusInternalServerError {
		e.outcome = failed.Outcome.String()
	}
	return e
}
