package server

import (
	"context"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// Bounds of what answers take, beside the keys in them.
const (
	messageBytes = 512     // of an answer without lists
	keyBytes     = 160     // of each key: in the log's page, in the message and encoded
	segmentBytes = 512     // of each segment, likewise
	keysBytes    = 4 << 20 // the keys of one page, about which the log ends it
)

// keys serves GET /keys.
func (s *Server) keys(x *exchange) error {
	o, err := parseKeys(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	resp := &wire.KeysResponse{Status: wire.StatusSuccess}
	size := int64(messageBytes)
	if o.EndSegment > o.StartSegment { // 0 as the end would mean the newest to the engine
		ctx, cancel := context.WithTimeout(x.r.Context(), s.readTimeout)
		defer cancel()
		longest := int64(s.opts.MaxKeyBytes)
		most := min(int64(o.Limit)*longest, keysBytes+longest)
		// The keys, their encoding with the last one twice, and what is around them.
		reserved := chunkBytes + most + 2*(most+longest) + 2*int64(o.Limit)*keyBytes
		if x.limited() {
			reserved += most + int64(o.Limit)*keyBytes // it is put together of pages
		}
		if err := x.reserve(ctx, reserved); err != nil {
			return err
		}
		page, err := s.listKeys(ctx, x, o)
		if err != nil {
			return err
		}
		size += s.fillKeys(x, resp, &page)
	}
	return x.respondMessage(resp, size)
}

// fillKeys puts the page's keys into the response, as far as the memory that can
// be had goes, but at least one. It returns a bound of their encoded size.
func (s *Server) fillKeys(x *exchange, resp *wire.KeysResponse, page *engine.KeysPage) (size int64) {
	var all int64 // of keys that are held anyway
	for _, k := range page.Keys {
		all += int64(len(k)) + keyBytes
	}
	keys := make([]wire.Key, len(page.Keys))
	resp.Keys = make([]*wire.Key, 0, len(page.Keys))
	more := page.More
	var last []byte
	for i, k := range page.Keys {
		// 4/3 in base64, and once more as nextKey.
		add := int64(len(k))*3/2 + keyBytes
		if !x.holds(chunkBytes+all+size+add+int64(len(k))*3/2) && i > 0 {
			more = true
			break
		}
		size += add
		keys[i].Key, last = k, k
		resp.Keys = append(resp.Keys, &keys[i])
	}
	if more {
		resp.NextKey = append([]byte{}, last...) // not nil: it is present even if empty
		size += int64(len(last)) * 3 / 2
	}
	x.settle(messageBytes + all + size)
	return size
}

// segments serves GET /segments.
func (s *Server) segments(x *exchange) error {
	o, err := parseSegments(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	resp := &wire.SegmentsResponse{Status: wire.StatusSuccess}
	size := int64(messageBytes)
	if !o.Range.Empty() { // the zero range would mean all to the engine
		ctx, cancel := context.WithTimeout(x.r.Context(), s.readTimeout)
		defer cancel()
		if err := x.reserve(ctx, messageBytes+2*int64(o.Limit)*segmentBytes); err != nil {
			return err
		}
		page, err := s.db.Segments(ctx, o)
		if err != nil {
			return err
		}
		size += int64(len(page.Segments)) * segmentBytes
		x.settle(2 * size) // the message and its encoding
		for _, seg := range page.Segments {
			resp.Segments = append(resp.Segments, segmentMessage(seg))
		}
	}
	return x.respondMessage(resp, size)
}

func segmentMessage(s engine.SegmentInfo) *wire.Segment {
	m := &wire.Segment{Id: s.ID, StartSeq: s.Start, Sealed: s.Sealed, Records: s.Records, Bytes: s.Bytes, Runs: uint32(s.Runs)}
	if !s.Started.IsZero() {
		m.StartTimeMs = s.Started.UnixMilli()
	}
	if s.LastID != s.ID {
		m.LastId = &s.LastID
	}
	if s.End != 0 {
		m.EndSeq = &s.End
	}
	return m
}

// count serves GET /count.
func (s *Server) count(x *exchange) error {
	key, rng, err := parseCount(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	if err := x.covers(key); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.readTimeout)
	defer cancel()
	if err := x.reserve(ctx, s.reading()); err != nil { // a block that it looks into may hold any value
		return err
	}
	n, err := s.db.Count(ctx, key, rng)
	if err != nil {
		return err
	}
	x.settle(messageBytes)
	return x.respondMessage(&wire.CountResponse{Status: wire.StatusSuccess, Count: n}, messageBytes)
}
