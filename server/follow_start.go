package server

import (
	"context"
	"strconv"
	"time"

	"github.com/annalsdb/annals/wire"
)

// placeStreams sets where each stream of a POST /follow starts: at what it says itself, else a key at the consumer's
// cursor, else at what the request says for all; and behind records that are all too old.
func (s *Server) placeStreams(x *exchange, b *wire.FollowBody) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), s.readTimeout)
	defer cancel()
	frontier := s.db.Frontier()
	x.w.Header()[wire.HeaderFrontier] = []string{strconv.FormatUint(frontier, 10)}
	start := b.Start
	if b.FromNow {
		start = frontier
	}
	for _, streams := range [][]wire.FollowStream{b.Streams, b.Prefixes} {
		for i := range streams {
			if !streams[i].Given {
				streams[i].Start = start
			}
		}
	}
	if b.Consumer != nil {
		if err := wire.ValidateConsumer(*b.Consumer); err != nil {
			return invalid("consumer: %v", err)
		}
		if err := s.startAtCursors(ctx, *b.Consumer, b.Streams); err != nil {
			return err
		}
	}
	if b.SinceMs > 0 {
		return s.startSince(ctx, x, b)
	}
	return nil
}

// startSince moves starts on to where records of the time can lie.
func (s *Server) startSince(ctx context.Context, x *exchange, b *wire.FollowBody) error {
	if err := x.reserve(ctx, s.reading()); err != nil {
		return err
	}
	defer x.settle(0)
	seq, err := s.db.SeekTime(ctx, time.UnixMilli(sinceOf(b)))
	if err != nil {
		return err
	}
	for _, streams := range [][]wire.FollowStream{b.Streams, b.Prefixes} {
		for i := range streams {
			streams[i].Start = max(streams[i].Start, seq)
		}
	}
	return nil
}

// sinceOf returns the timestamp below which records are left out.
func sinceOf(b *wire.FollowBody) int64 { return int64(min(b.SinceMs, maxSinceMs)) }
