package client

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/annalsdb/annals/wire"
)

// Outcomes of a failed append, as servers word them.
const (
	OutcomeNotAppended = "not_appended"
	OutcomeUnknown     = "unknown"
)

// Error is an answer of the server that is not a success.
type Error struct {
	// Status is the HTTP status code.
	Status int
	// Message is the server's.
	Message string
	// Outcome of an append that failed inside the server: OutcomeNotAppended or
	// OutcomeUnknown; else empty.
	Outcome string
	// RetryAfter is how long the server asks to wait, or 0.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("the server answered %d %s: %s", e.Status, http.StatusText(e.Status), e.Message)
}

// ConflictError is the answer to an append one of whose conditions does not hold:
// nothing was appended.
type ConflictError struct {
	// Key has a record with LastSequence, the newest of it, at or above what was expected.
	Key          []byte
	LastSequence uint64
	// Answer is what the server said.
	Answer *Error
}

// Error implements error.
func (e *ConflictError) Error() string { return e.Answer.Error() }

// Unwrap returns the answer.
func (e *ConflictError) Unwrap() error { return e.Answer }

// SequenceError is the answer to an append whose ProducerSequence is not the one after
// the producer's last, nor one of its last 64 appends: this request appended nothing.
type SequenceError struct {
	// Last is the number of the producer's last append.
	Last uint64
	// Answer is what the server said.
	Answer *Error
}

// Error implements error.
func (e *SequenceError) Error() string { return e.Answer.Error() }

// Unwrap returns the answer.
func (e *SequenceError) Unwrap() error { return e.Answer }

// NotAppended reports whether an error of Append means that nothing was appended
// and nothing will be, so that sending the batch again cannot double it. When it
// returns false the batch may be in the log.
func NotAppended(err error) bool {
	var unsettled *UnsettledError
	if errors.As(err, &unsettled) {
		return false
	}
	var answer *Error
	if errors.As(err, &answer) {
		switch {
		case answer.Outcome != "":
			return answer.Outcome == OutcomeNotAppended
		default:
			// Requests that the server refuses are refused before they are
			// appended. An error behind the API (of a proxy, say) proves nothing.
			return answer.redirects() || answer.Status >= 400 && answer.Status < 500 && answer.Status != statusClientGone
		}
	}
	var token *tokenError
	if errors.As(err, &token) {
		return true
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" // there was never a connection
}

// redirects reports whether the answer sends the request elsewhere, undone.
func (e *Error) redirects() bool {
	switch e.Status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// statusClientGone is what some servers and proxies say of a client that went
// away, whatever became of its request.
const statusClientGone = 499

// errorOf reads the error of an answer.
func errorOf(answer *http.Response) error {
	e := &Error{Status: answer.StatusCode}
	if s, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 31); err == nil {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxErrorBytes))
	if err != nil {
		e.Message = fmt.Sprintf("(the message could not be read: %v)", err)
		return e
	}
	body, err := wire.ParseErrorBody(data)
	if err != nil { // not one of ours: a proxy's
		e.Message = strings.ToValidUTF8(strings.TrimSpace(string(data)), "\uFFFD")
		if to := answer.Header.Get("Location"); to != "" && e.redirects() {
			e.Message = fmt.Sprintf("it redirects to %q, which is not followed: use that server's URL", to)
		}
		return e
	}
	e.Message, e.Outcome = body.Message, body.Outcome
	switch {
	case e.Status == http.StatusConflict && body.LastSequence != nil:
		return &ConflictError{Key: body.Key, LastSequence: *body.LastSequence, Answer: e}
	case e.Status == http.StatusConflict && body.LastProducerSeq != nil:
		return &SequenceError{Last: *body.LastProducerSeq, Answer: e}
	}
	return e
}
