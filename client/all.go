package client

import (
	"context"
	"errors"
	"iter"
)

// The iterators read page by page. Each may be used more than once, and begins anew then. A page that fails for now is
// asked for again, as Options.RetryReadsFor says; after an error, which comes with a zero value, the loop ends.

// ScanAll yields all records of the range, page by page, until a page is empty: what comes while it reads is read
// too, unless o.End is set. Limit and MaxBytes size the pages. Last and Follow are for single pages and must not be
// set. The Timeout of MinSequence is not repeated: ErrTimeout ends it.
func (c *Client) ScanAll(ctx context.Context, key []byte, o ScanOptions) iter.Seq2[Value, error] {
	if o.Last != 0 || o.Follow {
		panic("client: ScanAll with Last or Follow")
	}
	return all(ctx, c, func() pageFunc[Value] {
		o := o // where this loop is
		return func() ([]Value, bool, error) {
			page, err := c.Scan(ctx, key, o)
			if o.MinSequence > 0 && errors.Is(err, ErrTimeout) {
				err = &finalError{err}
			}
			if err == nil {
				o.Start, o.MinSequence = page.Next, 0
			}
			return page.Values, len(page.Values) > 0, err
		}
	})
}

// KeysAll yields distinct keys in byte order. Limit sizes the pages.
func (c *Client) KeysAll(ctx context.Context, o KeysOptions) iter.Seq2[[]byte, error] {
	return all(ctx, c, func() pageFunc[[]byte] {
		o := o
		return func() ([][]byte, bool, error) {
			page, err := c.Keys(ctx, o)
			if err == nil {
				o.After = page.Next
			}
			return page.Keys, page.Next != nil, err
		}
	})
}

// SegmentsAll yields segments, oldest first. Limit sizes the pages. One that was merged between two pages may come again,
// larger; none is left out.
func (c *Client) SegmentsAll(ctx context.Context, o SegmentsOptions) iter.Seq2[Segment, error] {
	return all(ctx, c, func() pageFunc[Segment] {
		o := o
		return func() ([]Segment, bool, error) {
			page, err := c.Segments(ctx, o)
			if len(page) > 0 {
				o.After = page[len(page)-1].LastID
			}
			return page, len(page) > 0, err
		}
	})
}

// CursorsAll yields a consumer's cursors in key order. Limit sizes the pages.
func (c *Client) CursorsAll(ctx context.Context, consumer string, o CursorsOptions) iter.Seq2[Cursor, error] {
	return all(ctx, c, func() pageFunc[Cursor] {
		o := o
		return func() ([]Cursor, bool, error) {
			page, err := c.Cursors(ctx, consumer, o)
			if err == nil {
				o.After = page.Next
			}
			return page.Cursors, page.Next != nil, err
		}
	})
}

// ConsumersAll yields the consumers that have cursors, in byte order. Limit sizes the pages.
func (c *Client) ConsumersAll(ctx context.Context, o ConsumersOptions) iter.Seq2[string, error] {
	return all(ctx, c, func() pageFunc[string] {
		o := o
		return func() ([]string, bool, error) {
			page, err := c.Consumers(ctx, o)
			if err == nil {
				o.After = page.Next
			}
			return page.Consumers, page.Next != "", err
		}
	})
}

// pageFunc reads the next page, or after an error the same one again, and reports whether there may be more.
type pageFunc[T any] func() (items []T, more bool, err error)

// all yields what pages hold. begin returns what reads them from the first one on.
func all[T any](ctx context.Context, c *Client, begin func() pageFunc[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		next := begin()
		for more := true; more; {
			var items []T
			err := c.retryReads(ctx, func() (err error) {
				items, more, err = next()
				return err
			})
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
		}
	}
}
