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

// What an *Error can be told to be by errors.Is, whichever call it is of.
var (
	// ErrInvalid (400, 413): the request is wrong, or too large, and will be the next time.
	ErrInvalid = errors.New("the request is wrong")
	// ErrUnauthorized (401): the server wants a token and got none, or not one that it knows.
	ErrUnauthorized = errors.New("the token is missing or unknown")
	// ErrForbidden (403): the token is not for this call, or not for this key.
	ErrForbidden = errors.New("the token does not allow it")
	// ErrNotFound (404): the server has no such route: a replica does not take appends; or the URL is wrong.
	ErrNotFound = errors.New("the server does not offer it")
	// ErrConflict (409): what an append expects does not hold; *ConflictError and *SequenceError say more.
	ErrConflict = errors.New("what the append expects does not hold")
	// ErrOutOfRange (421): the key is not in the range of a replica.
	ErrOutOfRange = errors.New("the server does not have the key")
	// ErrOverloaded (429): the write path is full. Nothing was appended; try again later.
	ErrOverloaded = errors.New("the server is overloaded")
	// ErrUnavailable (502, 503): the server is not ready, shuts down, was passed by another writer, or has
	// too much to do. Try again later.
	ErrUnavailable = errors.New("the server is not available")
	// ErrTimeout (504): the server's time was up. What became of an append is told by NotAppended.
	ErrTimeout = errors.New("the server ran out of time")
)

// Is makes an answer match the error of its status.
func (e *Error) Is(target error) bool { return target == sentinelOf(e.Status) && target != nil }

func sentinelOf(status int) error {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		return ErrInvalid
	case http.StatusUnauthorized:
		return ErrUnauthorized
	case http.StatusForbidden:
		return ErrForbidden
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusConflict:
		return ErrConflict
	case http.StatusMisdirectedRequest:
		return ErrOutOfRange
	case http.StatusTooManyRequests:
		return ErrOverloaded
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return ErrUnavailable
	case http.StatusGatewayTimeout:
		return ErrTimeout
	}
	return nil
}

// Outcomes of a failed append, as servers word them.
const (
	OutcomeNotAppended = "not_appended"
	OutcomeUnknown     = "unknown"
)

// Error is an answer of the server that is not a success. It matches ErrUnauthorized and the like, by its status.
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
	switch {
	case errors.Is(err, ErrAfterFailure): // whatever became of that one
		return true
	case errors.As(err, &unsettled):
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
	if errors.As(err, &token) || handshakeFailed(err) {
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

// errorOf reads the error of an answer, usually an *Error.
func errorOf(answer *http.Response) error {
	e := &Error{Status: answer.StatusCode}
	if s, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 31); err == nil {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxErrorBytes))
	if err != nil { // what is missing may be what matters: it counts as no answer
		return fmt.Errorf("read an answer of status %d: %w", e.Status, err)
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
