package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

const (
	// maxFollowBody is the largest body of POST /follow.
	maxFollowBody = 64 << 20
	// cursorPage is how many stored cursors are looked up at a time.
	cursorPage = 1000
)

// follow serves POST /follow.
func (s *Server) follow(x *exchange) error {
	st, err := s.openFollow(x)
	if err != nil {
		return err
	}
	return st.serve()
}

// openFollow opens the stream for POST /follow.
func (s *Server) openFollow(x *exchange) (*stream, error) {
	streams, since, err := s.readStreams(x)
	if err != nil {
		return nil, err
	}
	st := &stream{kind: follows, framing: wire.PlainEvents, streams: len(streams), since: since}
	if acceptsLines(x.r) {
		st.framing = wire.Lines
	}
	return st, st.open(x, streams)
}

// readStreams reads what is to be followed, and below which timestamp records are left out.
func (s *Server) readStreams(x *exchange) (streams []engine.Stream, since int64, err error) {
	if wire.FormatOf(x.r.Header["Content-Type"]) == wire.Protobuf {
		return nil, 0, &apiError{status: http.StatusUnsupportedMediaType, closes: true, drains: true, message: "the body must be JSON"}
	}
	// A third of the bodies' budget, so that there is room for what it is decoded into.
	data, err := x.readBodyUpTo(min(maxFollowBody, s.opts.InFlightBytes/3))
	if err != nil {
		return nil, 0, err
	}
	if !x.takeBody(wire.FollowMemory(int64(len(data)), s.opts.MaxFollowStreams)) {
		return nil, 0, tooManyBodies()
	}
	b, err := wire.ParseFollowBody(data, s.opts.MaxFollowStreams, s.opts.MaxKeyBytes)
	if err != nil {
		return nil, 0, invalid("%v", err)
	}
	for i, st := range b.Streams {
		if x.covers(st.Key) != nil {
			return nil, 0, forbidden(refusedKeys, fmt.Sprintf("streams[%d]: the token does not cover the key", i))
		}
	}
	if err := s.placeStreams(x, b); err != nil {
		return nil, 0, err
	}
	if b.Prefixes, err = x.narrowPrefixes(b.Prefixes); err != nil {
		return nil, 0, err
	}
	streams = make([]engine.Stream, 0, len(b.Streams)+len(b.Prefixes))
	for _, k := range b.Streams {
		streams = append(streams, engine.Stream{Key: k.Key, From: k.Start})
	}
	for _, p := range b.Prefixes {
		streams = append(streams, engine.Stream{Key: p.Key, From: p.Start, Prefix: true})
	}
	return streams, sinceOf(b), nil
}

// startAtCursors sets the starts that were not given to the consumer's cursors.
func (s *Server) startAtCursors(ctx context.Context, consumer string, streams []wire.FollowStream) error {
	at := make(map[string][]*wire.FollowStream) // a key may be there twice
	keys := make([][]byte, 0, min(cursorPage, len(streams)))
	for i := range streams {
		if st := &streams[i]; !st.Given {
			if len(at[string(st.Key)]) == 0 {
				keys = append(keys, st.Key)
			}
			at[string(st.Key)] = append(at[string(st.Key)], st)
		}
		if len(keys) == 0 || len(keys) < cursorPage && i < len(streams)-1 {
			continue
		}
		page, err := s.db.Cursors(ctx, consumer, engine.CursorsOptions{Keys: keys, Limit: len(keys)})
		if err != nil {
			return err
		}
		for _, c := range page.Cursors {
			for _, st := range at[string(c.Key)] {
				st.Start = c.Next
			}
		}
		clear(at)
		keys = keys[:0]
	}
	return nil
}

func acceptsLines(r *http.Request) bool {
	for _, v := range r.Header["Accept"] {
		if strings.Contains(strings.ToLower(v), wire.TypeLines) {
			return true
		}
	}
	return false
}
