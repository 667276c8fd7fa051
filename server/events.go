package server

import (
	"context"
	"math"
	"net/http"
	"strconv"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// openEvents opens the stream for GET /scan with follow=true as server-sent events. It is
// nil when there is nothing to wait for.
func (s *Server) openEvents(x *exchange, q *scanQuery) (*stream, error) {
	from, err := s.startEvents(x, q)
	if err != nil {
		return nil, err
	}
	if x.r.Method == http.MethodHead {
		x.respond(http.StatusOK, wire.TypeEvents, nil)
		return nil, nil
	}
	st := &stream{kind: events, framing: wire.Events, since: q.since()}
	return st, st.open(x, []engine.Stream{{Key: q.key, From: from}})
}

// startEvents returns where an event stream starts, after what the request waits for
// before it.
func (s *Server) startEvents(x *exchange, q *scanQuery) (from uint64, err error) {
	if q.paged != "" {
		return 0, invalid("%s does not go with an event stream, which has no end", q.paged)
	}
	if len(q.key) > s.opts.MaxKeyBytes {
		return 0, invalid("key has %d bytes; at most %d are allowed", len(q.key), s.opts.MaxKeyBytes)
	}
	from = q.rng.Start
	// An EventSource that lost its connection repeats the same URL and says what it had.
	if id := x.r.Header.Get("Last-Event-ID"); id != "" {
		if from, err = strconv.ParseUint(id, 10, 64); err != nil {
			return 0, invalid("Last-Event-ID is %q; it must be an integer from 0 to %d", id, uint64(math.MaxUint64))
		}
	}
	if q.minSequence > 0 {
		timed, cancel := context.WithTimeout(x.r.Context(), q.timeout)
		defer cancel()
		waiting, free := x.whileWaiting(timed)
		defer free()
		if err := s.waitFrontier(x, waiting, q); err != nil {
			return 0, err
		}
	}
	if !q.opts.Since.IsZero() {
		return s.findSince(x, q, from)
	}
	return from, nil
}

// findSince returns where the records since a time begin, or may come to begin.
func (s *Server) findSince(x *exchange, q *scanQuery, from uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(x.r.Context(), s.readTimeout)
	defer cancel()
	if err := x.reserve(ctx, s.reading()); err != nil {
		return 0, err
	}
	defer x.settle(0)
	it := s.db.Scan(ctx, q.key, engine.From(from), engine.ScanOptions{Limit: 1, Since: q.opts.Since})
	for rec := range it.All() {
		return rec.Sequence, nil
	}
	return max(from, it.Next()), it.Err()
}
