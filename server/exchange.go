package server

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/wire"
)

const typeText = "text/plain; charset=utf-8"

// exchange is one request and its answer. It belongs to the request's goroutine.
type exchange struct {
	s        *Server
	w        http.ResponseWriter
	r        *http.Request
	control  *http.ResponseController
	endpoint string
	status   int // of the answer; 0 until there is one

	buf   []byte // pooled: the body of the request, or the response
	inUse bool   // the connection may still read buf: it must not be pooled
	taken int64  // bytes of the server's budget
}

// accepts returns the format that the client wants.
func (x *exchange) accepts() wire.Format { return wire.FormatOf(x.r.Header["Accept"]) }

// respond sends the answer.
func (x *exchange) respond(status int, contentType string, body []byte) {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.status = status
	_ = x.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not supported in tests without a connection
	x.w.WriteHeader(status)
	if x.r.Method == http.MethodHead {
		return
	}
	if _, err := x.w.Write(body); err != nil {
		x.inUse = true // HTTP/2 may still be sending from it
	}
}

// respondMessage sends a success in the format that the client wants.
func (x *exchange) respondMessage(m proto.Message) error {
	format := x.accepts()
	// Not the pooled buffer: keys and values of the request may still alias it.
	x.respond(http.StatusOK, format.ContentType(), wire.AppendMessage(nil, format, m))
	return nil
}

// fail sends the answer for an error.
func (x *exchange) fail(err error) {
	e := answerOf(err)
	switch e.status {
	case http.StatusInternalServerError:
		x.s.log.Error("request failed", "endpoint", x.endpoint, "error", err)
	case http.StatusGatewayTimeout:
		x.s.log.Warn("request ran out of time", "endpoint", x.endpoint, "error", err)
	}
	if e.retryAfter > 0 {
		x.w.Header().Set("Retry-After", strconv.Itoa(int(e.retryAfter/time.Second)))
	}
	if e.closes && x.r.ProtoMajor == 1 { // on HTTP/2 it would end the other requests too
		x.w.Header().Set("Connection", "close")
	}
	body := wire.ErrorBody{Status: wire.StatusError, Message: e.message, Outcome: e.outcome}
	x.respond(e.status, wire.TypeJSON, body.AppendJSON(nil))
}

// take reserves bytes of the server's budget for this exchange and reports
// whether there was room.
func (x *exchange) take(n int64) bool {
	if !x.s.budget.take(n) {
		return false
	}
	x.taken += n
	return true
}

// borrow returns the exchange's buffer, empty.
func (x *exchange) borrow() []byte {
	if x.buf == nil {
		x.buf = *buffers.Get().(*[]byte)
	}
	return x.buf[:0]
}

// release gives back what the exchange holds.
func (x *exchange) release() {
	x.s.budget.give(x.taken)
	x.taken = 0
	if x.buf != nil && !x.inUse && cap(x.buf) <= maxPooledBytes {
		buf := x.buf[:0]
		buffers.Put(&buf)
	}
	x.buf = nil
}

// maxPooledBytes is the largest buffer that is kept for the next request.
const maxPooledBytes = 16 << 20

var buffers = sync.Pool{New: func() any { return &[]byte{} }}

// budget bounds the bytes of the bodies and responses under way (invariant I9).
// Safe for concurrent use.
type budget struct {
	total int64
	left  atomic.Int64
}

func newBudget(total int64) *budget {
	b := &budget{total: total}
	b.left.Store(total)
	return b
}

func (b *budget) take(n int64) bool {
	if b.left.Add(-n) < 0 {
		b.left.Add(n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.left.Add(n) }

// used returns the bytes that are reserved.
func (b *budget) used() int64 { return b.total - b.left.Load() }
