package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// firstBodyBytes is what is allocated for a body on its client's word alone; the
// buffer grows as bytes arrive.
const firstBodyBytes = 1 << 20

// Bounds of what is read of a body that was refused. Many clients look at the
// answer only when they have sent everything; if the connection were closed
// before, they would see that instead.
const (
	drainBytes   = 64 << 20
	drainTimeout = 5 * time.Second
)

// readBody reads the whole request body into the exchange's buffer.
func (x *exchange) readBody() ([]byte, error) { return x.readBodyUpTo(x.s.opts.BodyLimit) }

// readBodyUpTo is readBody with a limit of its own.
func (x *exchange) readBodyUpTo(limit int64) ([]byte, error) {
	for _, v := range x.r.Header["Content-Encoding"] {
		if v != "" && !strings.EqualFold(v, "identity") {
			return nil, &apiError{status: http.StatusUnsupportedMediaType, closes: true, drains: true,
				message: fmt.Sprintf("Content-Encoding %q is not supported: send the body as it is", v)}
		}
	}
	if x.r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	_ = x.control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not supported in tests without a connection
	defer func() { _ = x.control.SetReadDeadline(time.Time{}) }()

	body := pooled(&bodies)
	size := limit + 1 // one more than allowed, to see that it is too much
	if x.r.ContentLength >= 0 {
		size = x.r.ContentLength + 1 // to see the end without growing
	}
	for {
		if len(body) == cap(body) {
			body = slices.Grow(body, int(min(size, max(firstBodyBytes, 2*int64(cap(body))))-int64(len(body))))
		}
		n, err := x.r.Body.Read(body[len(body):min(int64(cap(body)), limit+1)])
		body = body[:len(body)+n]
		x.body = body
		if !x.takeBody(int64(n)) {
			e := tooManyBodies()
			e.closes, e.drains = true, true
			return nil, e
		}
		if int64(len(body)) > limit {
			return nil, tooLarge(limit)
		}
		switch {
		case err == io.EOF:
			return body, x.over() // a removed token must not go on for as long as a body may take
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, &apiError{status: http.StatusRequestTimeout, message: "the body did not arrive in time", closes: true}
		case err != nil && x.r.Context().Err() != nil:
			return nil, x.r.Context().Err()
		case err != nil:
			e := invalid("read body: %v", err).(*apiError)
			e.closes = true
			return nil, e
		}
	}
}

// drainBody reads the rest of a body whose request was answered already.
func drainBody(control *http.ResponseController, r *http.Request, timeout time.Duration) {
	if r.Header.Get("Expect") != "" {
		return // the client waits for leave to send the body, and got the answer instead
	}
	if control.Flush() != nil {
		return
	}
	_ = control.SetReadDeadline(time.Now().Add(timeout)) // not supported in tests without a connection
	_, _ = io.CopyN(io.Discard, r.Body, drainBytes)      // however it ends, the connection is closed
}

// boundUnread bounds how long the body of a request is waited for that nobody reads. net/http reads up to freeBody of it
// before it sends the answer: without an end whoever has no token could hold connections for ever. readBody gives
// those that are read their own time.
func boundUnread(control *http.ResponseController, r *http.Request, timeout time.Duration) {
	if r.ContentLength != 0 {
		_ = control.SetReadDeadline(time.Now().Add(timeout)) // not supported in tests without a connection
	}
}

func tooLarge(limit int64) error {
	return &apiError{status: http.StatusRequestEntityTooLarge, closes: true, drains: true,
		message: fmt.Sprintf("the body is larger than the limit of %d bytes", limit)}
}

func tooManyBodies() *apiError {
	return &apiError{status: http.StatusTooManyRequests, message: "too many bytes of requests are under way", retryAfter: retryAfter}
}
