package client

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/annalsdb/annals/wire"
)

// Value is one record of a key.
type Value struct {
	Sequence  uint64
	Timestamp int64 // milliseconds since the Unix epoch
	Value     []byte
}

// ScanOptions choose what a scan returns. The zero value is the first page of
// everything, of the server's default size.
type ScanOptions struct {
	// Start is the first sequence, End the sequence to stop before; 0: no end.
	Start, End uint64
	// Limit bounds the records of a page, MaxBytes the bytes of its values. 0: the
	// server's defaults. It lowers what is above its own limits.
	Limit    int
	MaxBytes int64
	// Last, when above 0, selects the newest Last records of the range.
	Last int
	// SinceMs, when above 0, starts at the first record with this timestamp or a
	// later one.
	SinceMs int64
	// MinSequence waits, within Timeout, until the server's frontier has reached
	// it.
	MinSequence uint64
	// Follow waits, within Timeout, for a record when there is none.
	Follow bool
	// Timeout of the wait. 0: the server's default, 30 s.
	Timeout time.Duration
}

// Page is the answer to a scan.
type Page struct {
	Values []Value
	// Next is the cursor: the Start to go on with.
	Next uint64
	// First is the oldest sequence that the log holds.
	First uint64
}

// Scan reads one page of a key's records. ErrTimeout: MinSequence was not reached in time.
func (c *Client) Scan(ctx context.Context, key []byte, o ScanOptions) (Page, error) {
	var resp wire.ScanResponse
	if err := c.get(ctx, "scan", o.query(key), &resp); err != nil {
		return Page{}, fmt.Errorf("scan: %w", err)
	}
	p := Page{Next: resp.NextSequence, First: resp.GetFirstSequence(), Values: make([]Value, len(resp.Values))}
	for i, v := range resp.Values {
		p.Values[i] = Value{Sequence: v.Sequence, Timestamp: v.TimestampMs, Value: v.Value}
	}
	return p, nil
}

func (o *ScanOptions) query(key []byte) url.Values {
	q := url.Values{"key_b64": {encodeKey(key)}}
	setUint(q, "start_seq", o.Start)
	setUint(q, "end_seq", o.End)
	setInt(q, "limit", int64(o.Limit))
	setInt(q, "max_bytes", o.MaxBytes)
	setInt(q, "last", int64(o.Last))
	setInt(q, "since_ms", o.SinceMs)
	setUint(q, "min_sequence", o.MinSequence)
	if o.Follow {
		q.Set("follow", "true")
	}
	setInt(q, "timeout_ms", o.Timeout.Milliseconds())
	return q
}

// setInt passes negative numbers on: the server's message about them is clear.
func setInt(q url.Values, name string, v int64) {
	if v != 0 {
		q.Set(name, strconv.FormatInt(v, 10))
	}
}

// Count returns the exact number of a key's records from start up to, but not
// including, end; 0 as the end: no end.
func (c *Client) Count(ctx context.Context, key []byte, start, end uint64) (uint64, error) {
	q := url.Values{"key_b64": {encodeKey(key)}}
	setUint(q, "start_seq", start)
	setUint(q, "end_seq", end)
	var resp wire.CountResponse
	if err := c.get(ctx, "count", q, &resp); err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	return resp.Count, nil
}

// KeysOptions choose a page of keys. The zero value is the first page.
type KeysOptions struct {
	Prefix []byte
	// After is the Next of the page before; nil: from the first key.
	After []byte
	// StartSegment and EndSegment (exclusive; 0: no end) choose segments.
	StartSegment, EndSegment uint32
	// Limit of the page. 0: the server's default.
	Limit int
}

// KeysPage is one page of keys in byte order.
type KeysPage struct {
	Keys [][]byte
	// Next is not nil when there are more keys: the After of the next page.
	Next []byte
}

// Keys lists distinct keys.
func (c *Client) Keys(ctx context.Context, o KeysOptions) (KeysPage, error) {
	q := url.Values{}
	if len(o.Prefix) > 0 {
		q.Set("prefix_b64", encodeKey(o.Prefix))
	}
	if o.After != nil {
		q.Set("after_b64", encodeKey(o.After))
	}
	setUint(q, "start_segment", uint64(o.StartSegment))
	setUint(q, "end_segment", uint64(o.EndSegment))
	setInt(q, "limit", int64(o.Limit))
	var resp wire.KeysResponse
	if err := c.get(ctx, "keys", q, &resp); err != nil {
		return KeysPage{}, fmt.Errorf("list keys: %w", err)
	}
	p := KeysPage{Next: resp.NextKey, Keys: make([][]byte, len(resp.Keys))}
	for i, k := range resp.Keys {
		p.Keys[i] = k.Key
	}
	return p, nil
}

// SegmentsOptions choose segments. The zero value is all.
type SegmentsOptions struct {
	// Start and End (exclusive; 0: no end) choose the segments that overlap them.
	Start, End uint64
	// After selects segments that span an id above it: LastID of the last one before.
	After uint32
	// Limit of the page. 0: the server's default, 10,000.
	Limit int
}

// Segment is a window of the sequence space.
type Segment struct {
	ID      uint32
	LastID  uint32 // of the newest segment that was merged into it; ID if none was
	Start   uint64
	End     uint64 // exclusive; 0 while the segment is active
	StartMs int64  // timestamp of its first record; 0 while it has none
	Sealed  bool
	Records uint64
	Bytes   uint64
	Runs    uint32 // that its records are in; 0 while all are in memory, 1 once it is merged
}

// Segments lists segments, oldest first. To go on, pass the last one's LastID as After.
func (c *Client) Segments(ctx context.Context, o SegmentsOptions) ([]Segment, error) {
	q := url.Values{}
	setUint(q, "start_seq", o.Start)
	setUint(q, "end_seq", o.End)
	setUint(q, "after", uint64(o.After))
	setInt(q, "limit", int64(o.Limit))
	var resp wire.SegmentsResponse
	if err := c.get(ctx, "segments", q, &resp); err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	out := make([]Segment, len(resp.Segments))
	for i, s := range resp.Segments {
		out[i] = Segment{ID: s.Id, LastID: max(s.Id, s.GetLastId()), Start: s.StartSeq, End: s.GetEndSeq(), StartMs: s.StartTimeMs,
			Sealed: s.Sealed, Records: s.Records, Bytes: s.Bytes, Runs: s.Runs}
	}
	return out, nil
}
