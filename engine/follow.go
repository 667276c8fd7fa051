package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Stream says what a Follower follows: the records of one key, or of all keys with a prefix,
// from a sequence on.
type Stream struct {
	Key []byte
	// Prefix selects all keys that begin with Key, those that are yet to come too. An empty
	// prefix selects all keys.
	Prefix bool
	// From is the first sequence. It may be above the frontier.
	From uint64
}

// MaxStreams is the largest number of streams of one Follower.
const MaxStreams = 1_000_000

// ErrFollowerClosed: Close of the Follower was called.
var ErrFollowerClosed = errors.New("follower is closed")

// Follow implements LogReader.
func (c *core) Follow(ctx context.Context, streams ...Stream) (*Follower, error) {
	switch {
	case len(streams) == 0:
		return nil, fmt.Errorf("%w: follow without a stream", ErrInvalid)
	case len(streams) > MaxStreams:
		return nil, fmt.Errorf("%w: follow %d streams: the limit is %d", ErrInvalid, len(streams), MaxStreams)
	}
	for i := range streams {
		if n := len(streams[i].Key); n > maxKeyBytes {
			return nil, fmt.Errorf("%w: follow a key of %d bytes: the limit is %d", ErrInvalid, n, maxKeyBytes)
		}
		if err := c.checkStream(&streams[i]); err != nil {
			return nil, err
		}
	}
	if err := c.stopped(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f := &Follower{}
	roots := rootsOf(streams)
	f.init(c, ctx, roots)
	c.followers.enter(f, roots)
	return f, nil
}

// root is a stream that no other stream of the follower covers.
type root struct {
	Stream
	covered []covered // streams below it that start earlier, ascending by their start
}

// covered is a stream that others cover, from its start up to where they start: behind that they return
// its records.
type covered struct {
	Stream
	end uint64
}

// rootsOf makes streams disjoint: each record that any of them wants is wanted by one root, or by one
// of what it covers. A key that is named twice, and a prefix within another one, count from
// the lowest start of all that cover them.
func rootsOf(streams []Stream) []root {
	if len(streams) == 1 {
		return []root{{Stream: streams[0]}}
	}
	sorted := slices.Clone(streams)
	slices.SortFunc(sorted, func(a, b Stream) int { // whatever covers another one comes before it
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		switch {
		case a.Prefix == b.Prefix:
			return cmp.Compare(a.From, b.From)
		case a.Prefix:
			return -1
		}
		return 1
	})
	sorted = slices.CompactFunc(sorted, func(a, b Stream) bool { return a.Prefix == b.Prefix && bytes.Equal(a.Key, b.Key) })
	var roots []root
	var within []Stream // prefixes that cover the next stream, outermost first, with falling starts
	for i := range sorted {
		s := sorted[i]
		for len(within) > 0 && !bytes.HasPrefix(s.Key, within[len(within)-1].Key) {
			within = within[:len(within)-1]
		}
		switch {
		case len(within) == 0:
			roots = append(roots, root{Stream: s})
		case s.From >= within[len(within)-1].From:
			continue
		default:
			r := &roots[len(roots)-1]
			r.covered = append(r.covered, covered{Stream: s, end: within[len(within)-1].From})
		}
		if s.Prefix {
			within = append(within, s)
		}
	}
	for i := range roots {
		// What lies within another one starts before it, and so is read before it.
		slices.SortStableFunc(roots[i].covered, func(a, b covered) int { return cmp.Compare(a.From, b.From) })
	}
	return roots
}
