package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// scan serves GET /scan.
func (s *Server) scan(x *exchange) error {
	q, err := parseScan(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	if q.follow && acceptsEvents(x.r) {
		return invalid("text/event-stream is not supported by this server")
	}
	ctx := x.r.Context()
	// waiting ends when the time is up, the client is gone or the server shuts down.
	waiting, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	if err := s.waitFrontier(ctx, waiting, &q); err != nil {
		return err
	}
	for {
		body, page, err := s.readPage(ctx, x, &q)
		if err != nil {
			return err
		}
		if !q.follow || page.records > 0 || page.next >= q.rng.End || waiting.Err() != nil {
			s.metrics.scanRecords.Add(float64(page.records))
			s.metrics.scanBytes.Add(float64(page.bytes))
			x.respond(http.StatusOK, x.accepts().ContentType(), body)
			return nil
		}
		// Nothing below the cursor can still appear: all of it was readable.
		q.rng.Start = page.next
		if err := s.db.Wait(waiting, q.key, q.rng); err != nil && waiting.Err() == nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err // nobody is there to answer
		}
	}
}

// page is what one scan found.
type page struct {
	records int
	bytes   int64 // keys and values
	next    uint64
}

// readPage scans once and encodes the response into the exchange's buffer.
func (s *Server) readPage(ctx context.Context, x *exchange, q *scanQuery) ([]byte, page, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var p page
	var e wire.ScanEncoder
	e.Begin(x.borrow(), x.accepts(), q.key)
	it := s.db.Scan(ctx, q.key, q.rng, q.opts)
	for rec := range it.All() {
		if !x.take(int64(e.SizeOf(len(rec.Value)))) {
			return nil, p, &apiError{status: http.StatusServiceUnavailable, retryAfter: retryAfter,
				message: "too many bytes of responses are under way"}
		}
		e.Add(rec.Sequence, rec.Timestamp, rec.Value)
		p.records++
		p.bytes += int64(rec.Size())
	}
	if err := it.Err(); err != nil {
		return nil, p, err
	}
	p.next = it.Next()
	x.buf = e.End(p.next, s.db.FirstSequence())
	return x.buf, p, nil
}

// waitFrontier waits for min_sequence.
func (s *Server) waitFrontier(ctx, waiting context.Context, q *scanQuery) error {
	least := q.minSequence
	if s.db.Frontier() >= least {
		return nil
	}
	// A range of one sequence: whether the key has it or not, it is decided when
	// the frontier has passed it.
	err := s.db.Wait(waiting, q.key, engine.Between(least-1, least))
	switch {
	case err == nil || waiting.Err() == nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case s.draining.Err() != nil:
		return &apiError{status: http.StatusServiceUnavailable, message: "shutting down"}
	}
	return &apiError{status: http.StatusGatewayTimeout,
		message: fmt.Sprintf("min_sequence %d was not reached in time: the frontier is %d", least, s.db.Frontier())}
}

func acceptsEvents(r *http.Request) bool {
	for _, v := range r.Header["Accept"] {
		if strings.Contains(strings.ToLower(v), "text/event-stream") {
			return true
		}
	}
	return false
}

// keys serves GET /keys.
func (s *Server) keys(x *exchange) error {
	o, err := parseKeys(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	resp := &wire.KeysResponse{Status: wire.StatusSuccess}
	if o.EndSegment > o.StartSegment { // 0 as the end would mean the newest to the engine
		ctx, cancel := context.WithTimeout(x.r.Context(), readTimeout)
		defer cancel()
		page, err := s.db.Keys(ctx, o)
		if err != nil {
			return err
		}
		keys := make([]wire.Key, len(page.Keys))
		resp.Keys = make([]*wire.Key, len(page.Keys))
		for i, k := range page.Keys {
			keys[i].Key = k
			resp.Keys[i] = &keys[i]
		}
		if page.More {
			resp.NextKey = append([]byte{}, page.Keys[len(page.Keys)-1]...) // not nil: it is present even if empty
		}
	}
	return x.respondMessage(resp)
}

// segments serves GET /segments.
func (s *Server) segments(x *exchange) error {
	o, err := parseSegments(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	resp := &wire.SegmentsResponse{Status: wire.StatusSuccess}
	if !o.Range.Empty() { // the zero range would mean all to the engine
		ctx, cancel := context.WithTimeout(x.r.Context(), readTimeout)
		defer cancel()
		page, err := s.db.Segments(ctx, o)
		if err != nil {
			return err
		}
		for _, seg := range page.Segments {
			resp.Segments = append(resp.Segments, segmentMessage(seg))
		}
	}
	return x.respondMessage(resp)
}

func segmentMessage(s engine.SegmentInfo) *wire.Segment {
	m := &wire.Segment{Id: s.ID, StartSeq: s.Start, Sealed: s.Sealed, Records: s.Records, Bytes: s.Bytes}
	if !s.Started.IsZero() {
		m.StartTimeMs = s.Started.UnixMilli()
	}
	if s.Sealed {
		m.EndSeq = &s.End
	}
	return m
}

// count serves GET /count.
func (s *Server) count(x *exchange) error {
	key, rng, err := parseCount(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), readTimeout)
	defer cancel()
	n, err := s.db.Count(ctx, key, rng)
	if err != nil {
		return err
	}
	return x.respondMessage(&wire.CountResponse{Status: wire.StatusSuccess, Count: n})
}
