package server

import (
	"bytes"
	"context"
	"errors"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// Listings for tokens that are limited to some prefixes: the pages that a listing of the whole log
// would have if there were no other keys. The prefixes are disjoint and in byte order, so the
// pages of one behind the other are in byte order, too.

// listKeys is Keys of the log, of the keys that the request's token is for.
func (s *Server) listKeys(ctx context.Context, x *exchange, o engine.KeysOptions) (engine.KeysPage, error) {
	prefixes, err := x.within(o.Prefix)
	if err != nil {
		return engine.KeysPage{}, err
	}
	if len(prefixes) == 1 {
		o.Prefix = prefixes[0]
		return s.db.Keys(ctx, o)
	}
	list := engine.KeysPage{}
	size, elsewhere := 0, 0
	for _, o.Prefix = range prefixes {
		outside, err := eachKey(ctx, s.db, o, o.Limit+1-len(list.Keys), func(key []byte) bool {
			if len(list.Keys) == o.Limit || size >= keysBytes {
				list.More = true
				return false
			}
			list.Keys = append(list.Keys, key)
			size += len(key)
			return true
		})
		switch {
		case errors.Is(err, engine.ErrOutOfRange) && elsewhere < len(prefixes)-1:
			elsewhere++ // a replica lists those in its range
		case err != nil:
			return engine.KeysPage{}, err
		case outside || list.More:
			return list, nil
		}
	}
	return list, nil
}

// eachKey calls add with the keys that the options select, limit at a time, until it returns false,
// and reports whether it did.
func eachKey(ctx context.Context, db DB, o engine.KeysOptions, limit int, add func(key []byte) bool) (stopped bool, err error) {
	if bytes.Compare(o.Prefix, o.After) < 0 && !bytes.HasPrefix(o.After, o.Prefix) {
		return false, nil // all of them lie before the page
	}
	o.Limit = min(limit, engine.MaxPage)
	for {
		page, err := db.Keys(ctx, o)
		if err != nil {
			return false, err
		}
		for _, key := range page.Keys {
			if !add(key) {
				return true, nil
			}
			o.After = key
		}
		if !page.More {
			return false, nil
		}
	}
}

// listCursors is Cursors of the log, of the keys that the request's token is for.
func (s *Server) listCursors(ctx context.Context, x *exchange, consumer string, o engine.CursorsOptions) (engine.CursorsPage, error) {
	if o.Keys != nil {
		for _, key := range o.Keys {
			if err := x.covers(key); err != nil {
				return engine.CursorsPage{}, err
			}
		}
		return s.db.Cursors(ctx, consumer, o)
	}
	if !x.limited() {
		return s.db.Cursors(ctx, consumer, o)
	}
	list := engine.CursorsPage{}
	size, limit := 0, o.Limit
	prefixes, err := x.within(nil)
	if err != nil {
		return list, err
	}
	for _, o.Prefix = range prefixes {
		for more := true; more; {
			o.Limit = min(limit+1-len(list.Cursors), engine.MaxPage)
			page, err := s.db.Cursors(ctx, consumer, o)
			if err != nil {
				return engine.CursorsPage{}, err
			}
			for _, c := range page.Cursors {
				if n := len(list.Cursors); n == limit || n > 0 && size+len(c.Key) > keysBytes {
					list.More = true
					return list, nil
				}
				list.Cursors = append(list.Cursors, c)
				size += len(c.Key)
				o.After = c.Key
			}
			more = page.More
		}
	}
	return list, nil
}

// listConsumers is Consumers of the log: those who have a cursor of a key that the request's token
// is for.
func (s *Server) listConsumers(ctx context.Context, x *exchange, after string, limit int) (engine.ConsumersPage, error) {
	if !x.limited() {
		return s.db.Consumers(ctx, after, limit)
	}
	list := engine.ConsumersPage{}
	for {
		page, err := s.db.Consumers(ctx, after, limit)
		if err != nil {
			return engine.ConsumersPage{}, err
		}
		for _, consumer := range page.Consumers {
			if err := ctx.Err(); err != nil { // to look takes no time, but there may be many
				return engine.ConsumersPage{}, err
			}
			shown, err := s.listCursors(ctx, x, consumer, engine.CursorsOptions{Limit: 1})
			if err != nil {
				return engine.ConsumersPage{}, err
			}
			if len(shown.Cursors) == 0 {
				continue
			}
			if len(list.Consumers) == limit {
				list.More = true
				return list, nil
			}
			list.Consumers = append(list.Consumers, consumer)
		}
		if !page.More {
			return list, nil
		}
		after = page.Consumers[len(page.Consumers)-1]
	}
}

// narrowPrefixes replaces prefixes to follow by those of their keys that the request's token is for. Each of
// the token's own is there once at most, from the lowest start of those that it lies within.
func (x *exchange) narrowPrefixes(asked []wire.FollowStream) ([]wire.FollowStream, error) {
	if !x.limited() {
		return asked, nil
	}
	narrowed := asked[:0]
	inside := make(map[string]int) // the token's prefixes, to their place in wider
	var wider []wire.FollowStream
	for _, s := range asked {
		list, err := x.within(s.Key)
		if err != nil {
			return nil, err
		}
		if x.token.Covers(s.Key) {
			narrowed = append(narrowed, s)
			continue
		}
		for _, prefix := range list {
			i, ok := inside[string(prefix)]
			if !ok {
				i = len(wider)
				inside[string(prefix)] = i
				wider = append(wider, wire.FollowStream{Key: prefix, Start: s.Start, Given: s.Given})
			}
			wider[i].Start = min(wider[i].Start, s.Start)
		}
	}
	return append(narrowed, wider...), nil
}
