package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/wire"
)

// Cursor is where a consumer goes on with a key: at the sequence Next.
type Cursor struct {
	Key  []byte
	Next uint64
}

// CursorsPage is one page of a consumer's cursors, in key order.
type CursorsPage struct {
	Cursors []Cursor
	// Next is not nil when there are more: the After of the next page.
	Next []byte
}

// CursorsOptions choose a page of cursors. The zero value is the first page.
type CursorsOptions struct {
	// After is the Next of the page before; nil: from the first key.
	After []byte
	// Limit of the page, at most 10,000. 0: the server's default, 1,000.
	Limit int
}

// SetCursors stores cursors of a consumer, at most 10,000, and returns those of these keys that are in
// force then, durably. A cursor only moves forward, unless force is set: so a late request
// of an earlier run does no harm. The name of a consumer has 1 to 128 bytes of UTF-8
// without slashes and control characters.
func (c *Client) SetCursors(ctx context.Context, consumer string, cursors []Cursor, force bool) ([]Cursor, error) {
	req := &wire.CursorsRequest{Force: force}
	for _, cur := range cursors {
		req.Cursors = append(req.Cursors, &wire.Cursor{Key: cur.Key, NextSequence: cur.Next})
	}
	body, err := proto.MarshalOptions{}.MarshalAppend([]byte{}, req) // not nil: it is a body even if empty
	if err != nil {
		return nil, fmt.Errorf("set cursors: %w", err)
	}
	var resp wire.CursorsResponse
	if err := c.do(ctx, http.MethodPut, consumerPath(consumer), body, &resp); err != nil {
		return nil, fmt.Errorf("set cursors: %w", err)
	}
	return cursorsOf(&resp), nil
}

// Cursors reads one page of a consumer's cursors.
func (c *Client) Cursors(ctx context.Context, consumer string, o CursorsOptions) (CursorsPage, error) {
	q := url.Values{}
	if o.After != nil {
		q.Set("after_b64", encodeKey(o.After))
	}
	setInt(q, "limit", int64(o.Limit))
	var resp wire.CursorsResponse
	if err := c.do(ctx, http.MethodGet, consumerPath(consumer)+"?"+q.Encode(), nil, &resp); err != nil {
		return CursorsPage{}, fmt.Errorf("get cursors: %w", err)
	}
	return CursorsPage{Cursors: cursorsOf(&resp), Next: resp.NextKey}, nil
}

// CursorsOf reads a consumer's cursors of some keys, in their order. Those that have none are
// left out. The keys travel in the URL, so some thousands are too many for one call.
func (c *Client) CursorsOf(ctx context.Context, consumer string, keys ...[]byte) ([]Cursor, error) {
	if len(keys) == 0 {
		return nil, nil // the server would return a page of all
	}
	var resp wire.CursorsResponse
	if err := c.do(ctx, http.MethodGet, consumerPath(consumer)+"?"+keysQuery(keys), nil, &resp); err != nil {
		return nil, fmt.Errorf("get cursors: %w", err)
	}
	return cursorsOf(&resp), nil
}

// DeleteCursors deletes the cursors of some keys. With no keys it does nothing: see
// DeleteConsumer.
func (c *Client) DeleteCursors(ctx context.Context, consumer string, keys ...[]byte) error {
	if len(keys) == 0 {
		return nil
	}
	return c.deleteCursors(ctx, consumerPath(consumer)+"?"+keysQuery(keys))
}

// DeleteConsumer deletes all cursors of a consumer.
func (c *Client) DeleteConsumer(ctx context.Context, consumer string) error {
	return c.deleteCursors(ctx, consumerPath(consumer))
}

func (c *Client) deleteCursors(ctx context.Context, path string) error {
	if err := c.do(ctx, http.MethodDelete, path, nil, &wire.DeleteCursorsResponse{}); err != nil {
		return fmt.Errorf("delete cursors: %w", err)
	}
	return nil
}

// ConsumersOptions choose a page of consumers. The zero value is the first page.
type ConsumersOptions struct {
	// After is the Next of the page before; empty: from the first.
	After string
	// Limit of the page, at most 10,000. 0: the server's default, 1,000.
	Limit int
}

// ConsumersPage is one page of the names of consumers, in byte order.
type ConsumersPage struct {
	Consumers []string
	// Next is not empty when there are more: the After of the next page.
	Next string
}

// Consumers lists the consumers that have cursors.
func (c *Client) Consumers(ctx context.Context, o ConsumersOptions) (ConsumersPage, error) {
	q := url.Values{}
	if o.After != "" {
		q.Set("after", o.After)
	}
	setInt(q, "limit", int64(o.Limit))
	var resp wire.ConsumersResponse
	if err := c.get(ctx, "cursors", q, &resp); err != nil {
		return ConsumersPage{}, fmt.Errorf("list consumers: %w", err)
	}
	p := ConsumersPage{Consumers: make([]string, len(resp.Consumers)), Next: resp.GetNextConsumer()}
	for i, m := range resp.Consumers {
		p.Consumers[i] = m.Consumer
	}
	return p, nil
}

// consumerPath is the path of a consumer's cursors. A name of dots is encoded, or
// what lies on the way may take it for a step up.
func consumerPath(consumer string) string {
	name := url.PathEscape(consumer)
	if name == "." || name == ".." {
		name = strings.ReplaceAll(name, ".", "%2E")
	}
	return "/api/v1/log/cursors/" + name
}

func keysQuery(keys [][]byte) string {
	var b strings.Builder
	for i, k := range keys {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString("key_b64=")
		b.WriteString(encodeKey(k))
	}
	return b.String()
}

func cursorsOf(resp *wire.CursorsResponse) []Cursor {
	out := make([]Cursor, len(resp.Cursors))
	for i, c := range resp.Cursors {
		out[i] = Cursor{Key: c.Key, Next: c.NextSequence}
	}
	return out
}
