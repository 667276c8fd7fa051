package server

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/auth"
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
	consumer string      // of a path about cursors, as it is encoded there
	token    *auth.Token // nil: there is none, or the server has none
	unknown  string      // what tells a token apart that is not known
	status   int         // of the answer; 0 until there is one
	began    time.Time   // when an answer without end began

	body      []byte // of the request; pooled
	bodyBytes int64  // taken of the budget of bodies

	page      []byte // the response to a scan; pooled
	pageInUse bool   // the connection may still read it: it must not be pooled
	pageBytes int64  // taken of the budget of responses
}

// accepts returns the format that the client wants.
func (x *exchange) accepts() wire.Format { return wire.FormatOf(x.r.Header["Accept"]) }

// respond sends the answer. A client has to take it piece by piece, each in its
// time: one that does not read is cut off soon and holds memory no longer.
func (x *exchange) respond(status int, contentType string, body []byte) {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.status = status
	x.extendWrite()
	x.w.WriteHeader(status)
	if x.r.Method == http.MethodHead {
		return
	}
	for len(body) > 0 {
		piece := body[:min(len(body), writePiece)]
		x.extendWrite()
		if _, err := x.w.Write(piece); err != nil {
			x.pageInUse = true // HTTP/2 may still be sending from it
			return
		}
		body = body[len(piece):]
	}
}

// extendWrite gives the client the time for one more piece.
func (x *exchange) extendWrite() {
	_ = x.control.SetWriteDeadline(time.Now().Add(x.s.pieceTimeout)) // not supported in tests without a connection
}

// respondMessage sends a success in the format that the client wants, of about size
// bytes at most.
func (x *exchange) respondMessage(m proto.Message, size int64) error {
	format := x.accepts()
	// Not a pooled buffer: keys and values of the request may still alias it.
	x.respond(http.StatusOK, format.ContentType(), wire.AppendMessage(make([]byte, 0, size), format, m))
	return nil
}

// fail sends the answer for an error.
func (x *exchange) fail(err error) {
	e := x.answerOf(err)
	switch {
	case e.status == http.StatusInternalServerError:
		x.s.failed.write("endpoint", x.endpoint, "error", err)
	case e.status == http.StatusGatewayTimeout && !e.expected:
		x.s.late.write("endpoint", x.endpoint, "error", err)
	}
	if e.refused != "" {
		x.refuse(e)
	}
	if e.retryAfter > 0 {
		x.w.Header().Set("Retry-After", strconv.Itoa(int(e.retryAfter/time.Second)))
	}
	closes := e.closes && x.r.ProtoMajor == 1 // on HTTP/2 it would end the other requests too
	if closes {
		x.w.Header().Set("Connection", "close")
	}
	if closes && e.drains {
		_ = x.control.EnableFullDuplex() // net/http does not touch the rest of the body
	}
	body := wire.ErrorBody{Status: wire.StatusError, Message: e.message, Outcome: e.outcome,
		Key: e.key, LastSequence: e.lastSequence, LastProducerSeq: e.lastProducerSeq}
	x.respond(e.status, wire.TypeJSON, body.AppendJSON(nil))
	if closes && e.drains {
		drainBody(x.control, x.r, x.s.drainTimeout)
	}
}

// takeBody takes bytes of the budget of bodies and reports whether there was room.
func (x *exchange) takeBody(n int64) bool {
	if !x.s.bodies.take(n) {
		return false
	}
	x.bodyBytes += n
	return true
}

// reserve takes n bytes of the budget of responses, before anything is read, and
// waits for them in line. The exchange holds none yet.
func (x *exchange) reserve(ctx context.Context, n int64) error {
	taken, err := x.s.responses.await(ctx, n)
	switch {
	case err == nil:
		x.pageBytes = taken
		return nil
	case x.r.Context().Err() != nil:
		return x.r.Context().Err() // nobody is there to answer
	}
	return tooManyResponses()
}

// alone reports whether the exchange holds the whole budget of responses.
func (x *exchange) alone() bool { return x.pageBytes == x.s.responses.total }

// holds makes sure that the exchange holds n bytes of the budget of responses,
// without waiting, and reports whether it does.
func (x *exchange) holds(n int64) bool {
	if n <= x.pageBytes {
		return true
	}
	step := max(n-x.pageBytes, growStep)
	if !x.s.responses.take(step) {
		return false
	}
	x.pageBytes += step
	return true
}

// settle gives back what is held of the budget of responses beyond n bytes.
func (x *exchange) settle(n int64) {
	if n < x.pageBytes {
		x.s.responses.give(x.pageBytes - n)
		x.pageBytes = n
	}
}

// dropPage gives back what the response holds.
func (x *exchange) dropPage() {
	if x.page != nil && !x.pageInUse {
		pool(&pages, x.page, maxPooledPage)
	}
	x.page = nil
	x.settle(0)
}

// release gives back what the exchange holds.
func (x *exchange) release() {
	x.dropPage()
	x.dropBody()
}

// dropBody gives back what the request's body holds.
func (x *exchange) dropBody() {
	if x.body != nil {
		pool(&bodies, x.body, maxPooledBody)
	}
	x.body = nil
	x.s.bodies.give(x.bodyBytes)
	x.bodyBytes = 0
}

// The largest buffers that are kept for later requests. Bodies come in one usual
// size; pages do not, and a small page must not hold much.
const (
	maxPooledBody = 16 << 20
	maxPooledPage = 1 << 20
)

var (
	bodies = sync.Pool{New: func() any { return &[]byte{} }}
	pages  = sync.Pool{New: func() any { return &[]byte{} }}
)

func pool(p *sync.Pool, buf []byte, limit int) {
	if cap(buf) <= limit {
		buf = buf[:0]
		p.Put(&buf)
	}
}

func pooled(p *sync.Pool) []byte { return (*p.Get().(*[]byte))[:0] }
