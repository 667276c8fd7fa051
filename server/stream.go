package server

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

const (
	// pieceBytes is how many bytes of values a stream takes from the log, and how many
	// encoded ones its client has to take, at a time.
	pieceBytes = 32 << 10
	// firstPiece is what a piece of usual records takes encoded.
	firstPiece = 64 << 10
	// cursorInterval is how often a stream that follows many keys says up to where it is
	// complete, while records come.
	cursorInterval = time.Second
)

// pieces are the buffers of streams. A stream that waits has none.
var pieces = sync.Pool{New: func() any { return &[]byte{} }}

// Headers of streams, which all of them share.
var (
	typeOfFraming = map[wire.Framing][]string{
		wire.Events:      {wire.Events.ContentType()},
		wire.PlainEvents: {wire.PlainEvents.ContentType()},
		wire.Lines:       {wire.Lines.ContentType()},
	}
	noStore     = []string{"no-store"}
	notBuffered = []string{"no"} // or nginx would hold records back
)

// stream is one answer without end. It belongs to the request's goroutine, but for what
// the goroutine that tends it looks at. While it waits for records it and its exchange
// are all that the server holds for it, so it is small.
type stream struct {
	x        *exchange
	kind     followKind
	streams  int // taken of all that are followed
	follower *engine.Follower
	read     engine.FollowRead
	framing  wire.Framing
	since    int64         // records with older timestamps are left out
	cursor   uint64        // the last one that was sent apart from records
	cursorAt time.Duration // when

	place   int          // of following.mu
	sent    atomic.Int64 // when something was sent last
	writing atomic.Int64 // when the write under way began; 0: none is

	mu   sync.Mutex
	over bool // the answer is at its end, the connection is another request's; or it was cut off
}

// open makes the stream follow, so that it has to be closed, unless it returns an error.
// What a request holds until here is not on the stack of serve.
func (st *stream) open(x *exchange, streams []engine.Stream) error {
	g := x.s.following
	st.x = x
	if err := g.enter(st.kind); err != nil {
		return err
	}
	err := g.takeStreams(st.streams)
	if err == nil {
		if st.follower, err = x.s.db.Follow(x.r.Context(), streams...); err == nil {
			st.read = engine.FollowRead{MaxBytes: pieceBytes, Log: st.reserve}
			st.sent.Store(int64(g.now()))
			if g.add(st) {
				x.dropBody() // the follower has keys of its own
				return nil
			}
			st.follower.Close()
			err = shuttingDown()
		}
		g.giveStreams(st.streams)
	}
	g.leave(st.kind)
	return err
}

func (st *stream) close() {
	g := st.x.s.following
	g.remove(st)
	st.follower.Close()
	st.mu.Lock()
	st.over = true
	st.mu.Unlock()
	g.giveStreams(st.streams)
	g.leave(st.kind)
}

// serve answers with the records of an open stream until the client goes away, the server
// shuts down or the log stops. Whatever is on the stack here is there for as long.
func (st *stream) serve() error {
	defer st.close()
	if st.begin() != nil {
		return nil // nobody is there
	}
	for st.handle(st.follower.Next(st.read)) {
	}
	return nil
}

// begin sends the head of the answer.
func (st *stream) begin() error {
	x := st.x
	h := x.w.Header()
	h["Content-Type"] = typeOfFraming[st.framing]
	h["Cache-Control"] = noStore
	h["X-Accel-Buffering"] = notBuffered
	x.status, x.began = http.StatusOK, time.Now()
	st.writing.Store(int64(x.s.following.now()))
	defer st.wrote()
	x.w.WriteHeader(http.StatusOK)
	return x.control.Flush()
}

// handle sends what the follower returned. It reports whether the stream goes on.
func (st *stream) handle(recs []engine.Record, err error) bool {
	switch s := st.x.s; {
	case err != nil:
		st.end(err)
		return false
	case s.draining.Err() != nil:
		st.end(nil)
		return false
	case st.x.over() != nil:
		st.end(st.x.over())
		return false
	case len(recs) > 0:
		err = st.deliver(recs)
	case s.following.now()-time.Duration(st.sent.Load()) >= s.following.keepAlive:
		err = st.sendCursor()
	}
	return err == nil
}

// reserve takes the memory that reading tables may need, and waits for it in line.
func (st *stream) reserve(ctx context.Context) (func(), error) {
	s := st.x.s
	ctx, cancel := context.WithTimeout(ctx, s.readTimeout)
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	if err := st.x.reserve(ctx, s.reading()+firstPiece); err != nil {
		return nil, err
	}
	return st.release, nil
}

func (st *stream) release() { st.x.settle(0) }

// deliver sends records. They are encoded at once, so that a client that takes them
// slowly keeps nothing of the log alive, and their encoding is counted as a response.
func (st *stream) deliver(recs []engine.Record) error {
	if st.since > 0 { // those of one key never fall, but there may be many
		recs = slices.DeleteFunc(recs, func(r engine.Record) bool { return r.Timestamp < st.since })
	}
	if len(recs) == 0 {
		return nil
	}
	buf, err := st.encode(recs)
	if err != nil {
		st.end(err)
		return err
	}
	return st.sendPiece(buf)
}

// encode returns the records' encoding, with a cursor behind them now and then, for
// which the stream holds memory.
func (st *stream) encode(recs []engine.Record) ([]byte, error) {
	x := st.x
	var size, counted int64
	for i := range recs {
		r := wireRecord(&recs[i])
		size += int64(r.SizeOf())
		counted += int64(recs[i].Size())
	}
	size = max(size, firstPiece)
	// What was read from tables is held until it is encoded.
	want := size
	if x.pageBytes > 0 {
		want += chunkBytes + counted
	}
	if !x.holds(want) && !x.alone() {
		var err error
		if recs, err = st.wait(recs, size); err != nil {
			return nil, err
		}
	}
	buf := pooled(&pieces)
	for i := range recs {
		r := wireRecord(&recs[i])
		buf = st.framing.AppendRecord(buf, &r)
	}
	if st.framing != wire.Events {
		buf = st.appendCursor(buf)
	}
	x.settle(max(size, int64(cap(buf))))
	m := x.s.metrics
	m.followedRecords.Add(float64(len(recs)))
	m.followedBytes.Add(float64(counted))
	m.followReads.Inc()
	return buf, nil
}

// wait waits for the memory of an encoding of size bytes, holding none meanwhile. A
// large record is dropped and read again; small ones stay, for a while, and are in memory
// anyway.
func (st *stream) wait(recs []engine.Record, size int64) ([]engine.Record, error) {
	x := st.x
	s := x.s
	ctx, cancel := context.WithTimeout(x.r.Context(), s.pieceTimeout)
	defer cancel()
	if len(recs) > 1 || size == firstPiece {
		if x.pageBytes > 0 {
			return nil, tooManyResponses() // many records with long keys; rare, and to wait would be to hold
		}
		return recs, x.reserve(ctx, size)
	}
	key, seq := bytes.Clone(recs[0].Key), recs[0].Sequence
	clear(recs)
	x.settle(0)
	if err := x.reserve(ctx, s.reading()+size); err != nil {
		return nil, err
	}
	ctx, cancel = context.WithTimeout(x.r.Context(), s.readTimeout)
	defer cancel()
	recs = recs[:0]
	it := s.db.Scan(ctx, key, engine.Between(seq, seq+1), engine.ScanOptions{})
	for rec := range it.All() {
		recs = append(recs, rec)
	}
	return recs, it.Err()
}

// appendCursor appends a cursor behind records if the last one was some time ago.
func (st *stream) appendCursor(buf []byte) []byte {
	now := st.x.s.following.now()
	if now-st.cursorAt < cursorInterval {
		return buf
	}
	st.cursorAt = now // also if it stands still: to ask takes time for each key that is behind
	next := st.follower.Cursor()
	if next <= st.cursor {
		return buf
	}
	st.cursor = next
	return st.framing.AppendCursor(buf, next)
}

// sendCursor keeps a silent stream alive.
func (st *stream) sendCursor() error {
	st.cursor, st.cursorAt = st.follower.Cursor(), st.x.s.following.now()
	return st.sendPiece(st.framing.AppendCursor(pooled(&pieces), st.cursor))
}

// end sends why the stream ends, and nil for a shutdown. The client that went away, or
// did not take what was sent, gets nothing.
func (st *stream) end(why error) {
	x := st.x
	if x.r.Context().Err() != nil {
		return
	}
	buf := pooled(&pieces)
	switch {
	case why != nil && x.s.draining.Err() == nil:
		e := x.answerOf(why)
		if e.status == http.StatusInternalServerError {
			x.s.failed.write("endpoint", x.endpoint, "error", why)
		}
		buf = st.framing.AppendEnd(buf, &wire.ErrorBody{Status: wire.StatusError, Message: e.message})
	case st.framing != wire.Lines:
		buf = append(buf, ": shutting down\n\n"...)
	default:
		return
	}
	_ = st.sendPiece(buf) // it is over either way
}

// errGone says that the client went away or is too slow.
var errGone = errors.New("the client does not take what is sent")

// sendPiece sends a pooled buffer, and gives back the memory that the stream holds.
func (st *stream) sendPiece(buf []byte) error {
	x := st.x
	defer x.settle(0)
	for rest := buf; len(rest) > 0; {
		piece := rest[:min(len(rest), pieceBytes)]
		st.writing.Store(int64(x.s.following.now()))
		_, err := x.w.Write(piece)
		if err == nil {
			err = x.control.Flush()
		}
		st.wrote()
		if err != nil {
			return errGone // the buffer is not pooled: HTTP/2 may still be sending from it
		}
		rest = rest[len(piece):]
	}
	pool(&pieces, buf, firstPiece)
	return nil
}

// wrote notes that a write is over.
func (st *stream) wrote() {
	st.sent.Store(int64(st.x.s.following.now()))
	st.writing.Store(0)
}

// due reports whether the stream needs tending: it has been silent, its client does not take what is sent, or
// its token is over, so that it has to end.
func (st *stream) due(now time.Duration) bool {
	g := st.x.s.following
	over := st.x.over() != nil
	if began := st.writing.Load(); began != 0 {
		limit := st.x.s.pieceTimeout
		if over || st.x.s.draining.Err() != nil {
			limit = min(limit, drainedPiece)
		}
		return now-time.Duration(began) > limit
	}
	return over || now-time.Duration(st.sent.Load()) >= g.keepAlive
}

// tend makes a silent stream say something, or end, or cuts off one whose client does not take
// what it is sent.
func (st *stream) tend(now time.Duration) {
	if st.writing.Load() == 0 {
		st.follower.Wake()
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.over || st.writing.Load() == 0 || !st.due(now) {
		return
	}
	st.over = true
	st.x.s.metrics.followersCut.Inc()
	// The write under way fails, and all later ones on this stream or connection of HTTP/1.1.
	_ = st.x.control.SetWriteDeadline(time.Now().Add(-time.Second)) // not supported in tests without a connection
}

func wireRecord(r *engine.Record) wire.StreamRecord {
	return wire.StreamRecord{Key: r.Key, Sequence: r.Sequence, TimestampMs: r.Timestamp, Value: r.Value}
}
