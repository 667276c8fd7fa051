package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/annalsdb/annals/wire"
)

// Stream says what to follow: the records of one key, or of all keys with a prefix, from
// a sequence on.
type Stream struct {
	Key    []byte
	Prefix bool // all keys that begin with Key, those that are yet to come too
	// Start is the first sequence.
	Start uint64
	// AtCursor starts a key at its stored cursor of FollowOptions.Consumer, or at 0 if it
	// has none, instead of at Start. It means nothing for a prefix: cursors are of keys. A connection that
	// is made anew before the key's first record asks for the cursor again, which others may have moved.
	AtCursor bool
}

// FollowedRecord is one record of a stream.
type FollowedRecord struct {
	Key []byte
	Value
	// Next is where to go on with this key: the sequence behind this one.
	Next uint64
}

// FollowOptions of Follow.
type FollowOptions struct {
	// Consumer is whose cursors AtCursor means.
	Consumer string
	// FromNow starts what has no start otherwise (Start is 0, or AtCursor finds no cursor) at the log's end, as it is
	// when the Follower connects first: only records that come are returned.
	FromNow bool
	// SinceMs, when above 0, leaves out records with lower timestamps (milliseconds since the Unix epoch), wherever
	// the streams start. Those that are long past are not read.
	SinceMs int64
	// OnRetry, when not nil, is called before the Follower connects again: with why it
	// has to, and after which wait.
	OnRetry func(err error, wait time.Duration)
}

// Bounds of following.
const (
	// silence is how long a server says nothing at most, three times over: it sends a sign
	// of life every 15 s.
	silence = 45 * time.Second
	// The waits before a connection is made again, for random times around them.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Follower returns the records of streams, those that are there and then those that come, for as
// long as its context allows: a connection that is lost, or a server that is not ready, is
// tried again from where it was. The records of one key come in sequence order, none missing,
// none twice, however often that happens; records of different keys come in any order.
//
// It keeps a cursor for each key of which records came since the server last said up to where all
// keys are complete, which it does every 15 seconds or sooner. Not safe for use by several
// goroutines.
type Follower struct {
	c       *Client
	ctx     context.Context
	o       FollowOptions
	streams []Stream
	err     error

	connected bool // an answer came that was a success

	now      *uint64           // where FromNow is; nil: not known yet
	complete uint64            // every record of all streams below it was returned
	next     map[string]uint64 // by key, where above complete

	silence, firstRetry time.Duration // as the constants say, but for tests
}

// Follow follows the streams, one at least. Nothing is sent before All is used.
func (c *Client) Follow(ctx context.Context, o FollowOptions, streams ...Stream) *Follower {
	return &Follower{c: c, ctx: ctx, o: o, streams: streams, next: make(map[string]uint64), silence: silence, firstRetry: firstRetry}
}

// All yields records as they come. It ends when the context ends, and when the server refuses the
// request for good: as wrong (ErrInvalid), for its token (ErrUnauthorized, ErrForbidden), as unknown (ErrNotFound)
// or as out of its range (ErrOutOfRange), or with any other status for which Transient is false; or when at the first connection the
// server's certificate is not trusted. Err then says why. The loop may be left early and All called
// again: it goes on behind the last record.
func (f *Follower) All() iter.Seq[FollowedRecord] {
	return func(yield func(FollowedRecord) bool) {
		f.err = nil
		wait := f.firstRetry
		for {
			began := f.returned()
			left, err := f.once(yield)
			if left {
				return
			}
			if f.returned() != began {
				wait = f.firstRetry // it works in principle
			}
			if f.err = f.final(err); f.err != nil {
				return
			}
			pause := wait/2 + rand.N(wait) // so that not all come back at once
			var answer *Error
			if errors.As(err, &answer) {
				pause = max(pause, min(answer.RetryAfter, maxRetryAfter))
			}
			if f.o.OnRetry != nil {
				f.o.OnRetry(err, pause)
			}
			select {
			case <-f.ctx.Done():
				f.err = fmt.Errorf("follow: %w", f.ctx.Err())
				return
			case <-time.After(pause):
			}
			wait = min(2*wait, lastRetry)
		}
	}
}

// Err returns why All ended; nil if its loop was left.
func (f *Follower) Err() error { return f.err }

// Cursor returns a sequence below which every record of the streams was returned: a Start to
// go on with later, for all of them. Records at or above it may have been returned too; for a single key
// none was.
func (f *Follower) Cursor() uint64 {
	if len(f.streams) == 1 && !f.streams[0].Prefix {
		return max(f.complete, f.next[string(f.streams[0].Key)])
	}
	return f.complete
}

// returned changes with whatever a server sent.
func (f *Follower) returned() [2]uint64 { return [2]uint64{f.complete, f.newest()} }

func (f *Follower) newest() (n uint64) {
	for _, next := range f.next {
		n = max(n, next)
	}
	return n
}

// final returns why it makes no sense to try again, or nil.
func (f *Follower) final(err error) error {
	if ctxErr := f.ctx.Err(); ctxErr != nil {
		return fmt.Errorf("follow: %w", ctxErr)
	}
	var answer *Error
	if !Transient(err) && (errors.As(err, &answer) || !f.connected) || errors.Is(err, errNoFrontier) {
		return fmt.Errorf("follow: %w", err)
	}
	return nil
}

// errNoFrontier says that the server ignored FromNow: it would send all that there is.
var errNoFrontier = errors.New("the server is too old to follow from now")

// connect takes in the head of an answer.
func (f *Follower) connect(answer *http.Response) error {
	f.connected = true
	if !f.o.FromNow || f.now != nil {
		return nil
	}
	frontier, err := strconv.ParseUint(answer.Header.Get(wire.HeaderFrontier), 10, 64)
	if err != nil {
		return errNoFrontier
	}
	f.now = &frontier
	return nil
}

// once connects once, and yields what comes. It reports whether the loop was left.
func (f *Follower) once(yield func(FollowedRecord) bool) (left bool, err error) {
	ctx, cancel := context.WithCancelCause(f.ctx)
	defer cancel(nil)
	alive := time.AfterFunc(f.silence, func() { cancel(errSilent) })
	defer alive.Stop()
	req, err := f.request(ctx)
	if err != nil {
		return false, err
	}
	answer, err := f.c.send(req)
	if err != nil {
		return false, causeOf(ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return false, errorOf(answer)
	}
	if err := f.connect(answer); err != nil {
		return false, err
	}
	in := newItems(&signs{answer.Body, alive, f.silence})
	for {
		item, err := in.next()
		switch {
		case err != nil:
			return false, causeOf(ctx, err)
		case item.End != nil:
			return false, fmt.Errorf("the stream ended: %s", item.End.Message)
		case item.Key == nil:
			f.completed(item.Next)
		case f.fresh(&item):
			v := Value{Sequence: item.Sequence, Timestamp: item.TimestampMs, Value: item.Value}
			if !yield(FollowedRecord{Key: item.Key, Value: v, Next: item.Next}) {
				return true, nil
			}
		}
	}
}

var errSilent = errors.New("the server is silent for too long")

// causeOf says why a request was cut off, if it was.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err == io.EOF {
		return errors.New("the stream ended")
	}
	return err
}

// signs is a body of which every byte is a sign of life. The timer runs while it is read.
type signs struct {
	io.Reader
	alive   *time.Timer
	silence time.Duration
}

func (s *signs) Read(p []byte) (int, error) {
	s.alive.Reset(s.silence)
	defer s.alive.Stop()
	return s.Reader.Read(p)
}

// completed takes in that every record below next was returned.
func (f *Follower) completed(next uint64) {
	if next <= f.complete {
		return
	}
	f.complete = next
	for key, n := range f.next {
		if n <= next {
			delete(f.next, key)
		}
	}
}

// fresh takes in a record, and reports whether it was not returned before.
func (f *Follower) fresh(item *wire.StreamItem) bool {
	if item.Sequence < max(f.complete, f.next[string(item.Key)]) {
		return false
	}
	f.next[string(item.Key)] = item.Next
	return true
}

// request asks for what was not yet returned. One key is followed by an event stream,
// which proxies know; all else by POST /follow.
func (f *Follower) request(ctx context.Context) (*http.Request, error) {
	if len(f.streams) == 1 && !f.streams[0].Prefix && !f.streams[0].AtCursor && !f.o.FromNow && f.o.SinceMs == 0 {
		q := url.Values{"key_b64": {encodeKey(f.streams[0].Key)}, "follow": {"true"}}
		setUint(q, "start_seq", max(f.streams[0].Start, f.Cursor()))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.c.base+"/api/v1/log/scan?"+q.Encode(), nil)
		if err == nil {
			req.Header.Set("Accept", wire.TypeEvents)
		}
		return req, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.c.base+"/api/v1/log/follow", bytes.NewReader(f.body()))
	if err == nil {
		req.Header.Set("Content-Type", wire.TypeJSON)
		req.Header.Set("Accept", wire.TypeLines)
	}
	return req, err
}

// body is the request's body, with the streams' cursors as they are now.
func (f *Follower) body() []byte {
	b := wire.FollowBody{SinceMs: uint64(max(0, f.o.SinceMs)), FromNow: f.o.FromNow && f.now == nil}
	switch { // of keys without a cursor
	case f.now != nil:
		b.Start = max(*f.now, f.complete)
	case !b.FromNow:
		b.Start = f.complete
	}
	for _, s := range f.streams {
		w := wire.FollowStream{Key: s.Key, Start: max(s.Start, f.complete)}
		if f.o.FromNow && s.Start == 0 {
			w.Start = max(w.Start, b.Start)
		}
		w.Given = w.Start > 0 || !b.FromNow
		if s.Prefix {
			b.Prefixes = append(b.Prefixes, w)
			continue
		}
		next, came := f.next[string(s.Key)]
		w.Start = max(w.Start, next)
		if s.AtCursor {
			// The stored cursor may lie above what is complete for all, and still holds.
			w.Given = came
		}
		b.Streams = append(b.Streams, w)
	}
	if f.o.Consumer != "" {
		b.Consumer = &f.o.Consumer
	}
	return b.AppendJSON(nil)
}
