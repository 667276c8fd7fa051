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
	st, err := s.scanPage(x)
	if err != nil || st == nil {
		return err
	}
	return st.serve()
}

// scanPage answers with a page, or returns a stream that is to be served.
func (s *Server) scanPage(x *exchange) (*stream, error) {
	q, err := parseScan(x.r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	if err := x.covers(q.key); err != nil {
		return nil, err
	}
	if q.follow && acceptsEvents(x.r) {
		return s.openEvents(x, &q)
	}
	ctx := x.r.Context()
	// waiting ends when the time is up, too.
	timed, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	waiting, free := x.whileWaiting(timed)
	defer free()
	if err := s.waitFrontier(x, waiting, &q); err != nil {
		return nil, err
	}
	for {
		p, err := s.readPage(ctx, x, &q)
		if err != nil {
			return nil, err
		}
		if !q.follow || p.records > 0 || p.next >= q.rng.End || waiting.Err() != nil {
			s.metrics.scanRecords.Add(float64(p.records))
			s.metrics.scanBytes.Add(float64(p.bytes))
			x.respond(http.StatusOK, x.accepts().ContentType(), x.page)
			return nil, nil
		}
		x.dropPage() // a wait may be long
		// Nothing below the cursor can still appear: all of it was readable.
		q.rng.Start = p.next
		if err := s.waitFor(waiting, q.key, q.rng); err != nil && waiting.Err() == nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err // nobody is there to answer
		}
		if err := x.over(); err != nil {
			return nil, err
		}
	}
}

// What one read of the log is taken to hold, beside the largest value: the
// chunk in which the log hands out records, and a first piece of the page.
const (
	chunkBytes = 3 << 19 // 1 MiB of values, and the records around them
	firstPage  = maxPooledPage
	growStep   = 256 << 10 // a page grows by this much at least

	recordBytes = 96 // of a record beside its value, in memory or encoded
)

// reading is what reading one chunk may hold. It must be taken before: how large
// a record is shows only when it is there.
func (s *Server) reading() int64 { return chunkBytes + int64(s.opts.MaxValueBytes) }

// readingPage is what reading a page may hold beside the page.
func (s *Server) readingPage(o *engine.ScanOptions) int64 {
	if o.Last == 0 {
		return s.reading()
	}
	// The newest records come all at once, and one may be too many.
	value := int64(s.opts.MaxValueBytes)
	return chunkBytes + min(max(o.MaxBytes, value)+value, int64(o.Last)*value)
}

// page is what one scan found. Its encoding is in the exchange.
type page struct {
	records int
	bytes   int64 // keys and values
	next    uint64
}

// readPage scans once and encodes the response. Memory is taken before it is
// used (invariant I9): a share to begin with, for which the request waits in line,
// and more as the page grows. When there is no more the page ends: the client goes
// on from nextSequence. If not even the first record fits, the request gives back
// what it has and waits for the larger share, holding nothing meanwhile.
func (s *Server) readPage(ctx context.Context, x *exchange, q *scanQuery) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, s.readTimeout)
	defer cancel()
	need := s.readingPage(&q.opts) + firstPage
	for {
		if err := x.reserve(ctx, need); err != nil {
			return page{}, err
		}
		p, missing, err := s.fillPage(ctx, x, q)
		if err != nil {
			return page{}, err
		}
		if missing == 0 {
			x.settle(int64(cap(x.page)))
			return p, nil
		}
		x.dropPage()
		need = missing
	}
}

// fillPage encodes the page with what the exchange holds and can get at once. If
// that is too little for any page it returns how much would do.
func (s *Server) fillPage(ctx context.Context, x *exchange, q *scanQuery) (p page, missing int64, err error) {
	x.page = pooled(&pages)
	var e wire.ScanEncoder
	e.Begin(x.page, x.accepts(), q.key)
	reading := s.readingPage(&q.opts)
	size := int64(e.SizeOf(len(q.key))) + recordBytes // with what End adds
	full := false
	it := s.db.Scan(ctx, q.key, q.rng, q.opts)
	for rec := range it.All() {
		more := int64(e.SizeOf(len(rec.Value)))
		want := reading + capacity(size+more)
		// Alone, a read may go beyond the budget for what has to be in its page: a
		// record that is larger than the budget could never be read otherwise.
		must := p.records == 0 || q.opts.Last > 0
		if full = !x.holds(want) && !(must && x.alone()); full {
			if q.opts.Last > 0 { // without its newest records it is not what was asked for
				most := int64(e.SizeOf(int(q.opts.MaxBytes))) + int64(q.opts.Last)*recordBytes
				return p, max(want, reading+capacity(size+most)), nil
			}
			if p.records == 0 {
				return p, want, nil
			}
			break
		}
		size += more
		e.Add(rec.Sequence, rec.Timestamp, rec.Value)
		p.records++
		p.bytes += int64(rec.Size())
		p.next = rec.Sequence + 1
	}
	if err := it.Err(); err != nil {
		return p, 0, err
	}
	if !full {
		p.next = it.Next() // which counts the record that was too much, if there was one
	}
	x.page = e.End(p.next, s.db.FirstSequence())
	return p, 0, nil
}

// capacity bounds what append makes of a buffer into which size bytes were
// written in pieces: it grows by a quarter, rounded up.
func capacity(size int64) int64 { return max(firstPage, size+size/2) }

// waitFrontier waits for min_sequence.
func (s *Server) waitFrontier(x *exchange, waiting context.Context, q *scanQuery) error {
	least := q.minSequence
	if s.db.Frontier() >= least {
		return nil
	}
	// A range of one sequence: whether the key has it or not, it is decided when
	// the frontier has passed it.
	err := s.waitFor(waiting, q.key, engine.Between(least-1, least))
	switch {
	case err == nil || waiting.Err() == nil:
		return err
	case x.r.Context().Err() != nil:
		return x.r.Context().Err()
	case x.over() != nil:
		return x.over()
	case s.draining.Err() != nil:
		return shuttingDown()
	}
	return &apiError{status: http.StatusGatewayTimeout, expected: true,
		message: fmt.Sprintf("min_sequence %d was not reached in time: the frontier is %d", least, s.db.Frontier())}
}

// waitFor waits like the log's Wait, as one of the followers.
func (s *Server) waitFor(ctx context.Context, key []byte, r engine.Range) error {
	if err := s.following.enter(polls); err != nil {
		return err
	}
	defer s.following.leave(polls)
	return s.db.Wait(ctx, key, r)
}

func acceptsEvents(r *http.Request) bool {
	for _, v := range r.Header["Accept"] {
		if strings.Contains(strings.ToLower(v), "text/event-stream") {
			return true
		}
	}
	return false
}
