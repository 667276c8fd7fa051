package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"
)

// firstBodyBytes is what is allocated for a body on its client's word alone; the
// buffer grows as bytes arrive.
const firstBodyBytes = 1 << 20

// readBody reads the whole request body into the exchange's buffer.
func (x *exchange) readBody() ([]byte, error) {
	limit := x.s.opts.BodyLimit
	if x.r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	_ = x.control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not supported in tests without a connection
	defer func() { _ = x.control.SetReadDeadline(time.Time{}) }()

	body := x.borrow()
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
		x.buf = body
		if !x.take(int64(n)) {
			return nil, &apiError{status: http.StatusTooManyRequests, message: "too many bytes of requests are under way",
				retryAfter: retryAfter, closes: true}
		}
		if int64(len(body)) > limit {
			return nil, tooLarge(limit)
		}
		switch {
		case err == io.EOF:
			return body, nil
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

func tooLarge(limit int64) error {
	return &apiError{status: http.StatusRequestEntityTooLarge, closes: true,
		message: fmt.Sprintf("the body is larger than the limit of %d bytes", limit)}
}
