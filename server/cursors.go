package server

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

const (
	cursorsPath  = apiPrefix + "/cursors"
	consumerPath = cursorsPath + "/{consumer}" // as metrics name it

	cursorBytes   = 192                           // of each cursor beside its key: in the log's page, in the message and encoded
	consumerBytes = 3*wire.MaxConsumerBytes + 192 // of each consumer, likewise; quoting at most doubles it
)

// consumerRoute returns the route of a path that has a consumer's name as its last
// segment, and the name as it is encoded there. Dots alone are a path's, not a name.
func (s *Server) consumerRoute(path string) (rt *route, encoded string) {
	encoded, ok := strings.CutPrefix(path, cursorsPath+"/")
	if !ok || encoded == "" || encoded == "." || encoded == ".." || strings.Contains(encoded, "/") {
		return nil, ""
	}
	return s.routes[consumerPath], encoded
}

// withConsumer decodes the consumer's name for a handler.
func withConsumer(handle func(x *exchange, consumer string) error) func(*exchange) error {
	return func(x *exchange) error {
		consumer, err := url.PathUnescape(x.consumer)
		if err == nil {
			err = wire.ValidateConsumer(consumer)
		}
		if err != nil {
			return invalid("%v", err)
		}
		return handle(x, consumer)
	}
}

// cursorsOf serves /cursors/{consumer}. Only a log that can be written has the
// methods that do.
func (s *Server) cursorsOf(x *exchange, consumer string) error {
	switch x.r.Method {
	case http.MethodPut:
		return s.setCursors(x, consumer)
	case http.MethodDelete:
		return s.deleteCursors(x, consumer)
	}
	return s.getCursors(x, consumer)
}

// setCursors serves PUT /cursors/{consumer}.
func (s *Server) setCursors(x *exchange, consumer string) error {
	data, err := x.readBody()
	if err != nil {
		return err
	}
	var body wire.CursorsBody
	if err := s.decodeCursors(x, data, &body); err != nil {
		return err
	}
	size := int64(0) // of the cursors, and twice their answer
	cursors := make([]engine.Cursor, len(body.Cursors))
	for i, c := range body.Cursors {
		if err := x.covers(c.Key); err != nil {
			return err
		}
		cursors[i] = engine.Cursor{Key: c.Key, Next: c.Next}
		size += 4*int64(len(c.Key)) + cursorBytes
	}
	if !x.takeBody(size) {
		return tooManyBodies()
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	after, err := s.writer.SetCursors(ctx, consumer, cursors, engine.CursorOptions{Force: body.Force})
	if err != nil {
		return err
	}
	s.metrics.cursorsSet.Add(float64(len(cursors)))
	return x.respondMessage(cursorsMessage(after), messageBytes+size/2)
}

// decodeCursors decodes and checks a request that sets cursors.
func (s *Server) decodeCursors(x *exchange, data []byte, b *wire.CursorsBody) error {
	name, decode := "JSON", b.UnmarshalJSON
	if wire.FormatOf(x.r.Header["Content-Type"]) == wire.Protobuf {
		name, decode = "protobuf", b.UnmarshalProtobuf
	} else if !x.takeBody(int64(len(data)) * 3 / 4) { // what the base64 texts in it may stand for
		return tooManyBodies()
	}
	err := decode(data)
	switch {
	case errors.Is(err, wire.ErrTooManyCursors):
		return invalid("%v", err)
	case err != nil:
		return invalid("Invalid %s: %v", name, err)
	}
	if err := b.Validate(s.opts.MaxKeyBytes); err != nil {
		return invalid("%v", err)
	}
	return nil
}

// deleteCursors serves DELETE /cursors/{consumer}.
func (s *Server) deleteCursors(x *exchange, consumer string) error {
	keys, err := parseCursorKeys(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	if len(keys) == 0 && x.limited() {
		return forbidden(refusedKeys, "the consumer may have cursors of keys that the token does not cover: name the keys")
	}
	for _, key := range keys {
		if err := x.covers(key); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	if err := s.writer.DeleteCursors(ctx, consumer, keys...); err != nil {
		return err
	}
	return x.respondMessage(&wire.DeleteCursorsResponse{Status: wire.StatusSuccess}, messageBytes)
}

// getCursors serves GET /cursors/{consumer}.
func (s *Server) getCursors(x *exchange, consumer string) error {
	o, err := parseCursors(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.readTimeout)
	defer cancel()
	longest := int64(s.opts.MaxKeyBytes)
	n := int64(max(o.Limit, len(o.Keys)))
	most := min(n*longest, keysBytes+longest)
	if len(o.Keys) > 0 {
		most = 0
		for _, k := range o.Keys {
			most += int64(len(k))
		}
	}
	// The keys, their encoding with the last one twice, and what is around them.
	if err := x.reserve(ctx, messageBytes+most+2*(most+longest)+n*cursorBytes); err != nil {
		return err
	}
	page, err := s.listCursors(ctx, x, consumer, o)
	if err != nil {
		return err
	}
	resp, size := s.fillCursors(x, &page)
	return x.respondMessage(resp, size)
}

// fillCursors makes the response of a page, as far as the memory that can be had
// goes, but of at least one cursor. It returns a bound of its encoded size.
func (s *Server) fillCursors(x *exchange, page *engine.CursorsPage) (*wire.CursorsResponse, int64) {
	var all int64 // of cursors that are held anyway
	for _, c := range page.Cursors {
		all += int64(len(c.Key)) + cursorBytes/2
	}
	size := int64(messageBytes)
	list, more := page.Cursors, page.More
	for i, c := range list {
		// 4/3 in base64, and once more as nextKey.
		add := int64(len(c.Key))*3/2 + cursorBytes/2
		if !x.holds(all+size+add+int64(len(c.Key))*3/2) && i > 0 {
			list, more = list[:i], true
			break
		}
		size += add
	}
	resp := cursorsMessage(list)
	if more && len(list) > 0 {
		last := list[len(list)-1].Key
		resp.NextKey = append([]byte{}, last...) // not nil: it is present even if empty
		size += int64(len(last)) * 3 / 2
	}
	x.settle(all + size)
	return resp, size
}

func cursorsMessage(list []engine.Cursor) *wire.CursorsResponse {
	m := &wire.CursorsResponse{Status: wire.StatusSuccess, Cursors: make([]*wire.Cursor, len(list))}
	cursors := make([]wire.Cursor, len(list))
	for i, c := range list {
		cursors[i].Key, cursors[i].NextSequence = c.Key, c.Next
		m.Cursors[i] = &cursors[i]
	}
	return m
}

// consumers serves GET /cursors.
func (s *Server) consumers(x *exchange) error {
	after, limit, err := parseConsumers(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.readTimeout)
	defer cancel()
	if err := x.reserve(ctx, messageBytes+2*int64(limit)*consumerBytes); err != nil {
		return err
	}
	page, err := s.listConsumers(ctx, x, after, limit)
	if err != nil {
		return err
	}
	size := messageBytes + int64(len(page.Consumers))*consumerBytes
	x.settle(2 * size) // the message and its encoding
	resp := &wire.ConsumersResponse{Status: wire.StatusSuccess}
	for _, name := range page.Consumers {
		resp.Consumers = append(resp.Consumers, &wire.Consumer{Consumer: name})
	}
	if n := len(page.Consumers); page.More && n > 0 {
		resp.NextConsumer = &page.Consumers[n-1]
	}
	return x.respondMessage(resp, size)
}
