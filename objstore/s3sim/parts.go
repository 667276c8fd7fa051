package s3sim

import (
	"slices"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// putRequest draws the latency of a Put. A large body goes in parts, as package s3 sends it: one
// request begins the upload, some carry the parts, a few of them at a time, and the last makes the object
// of them.
func (s *Store) putRequest(name string, size int64, opts objstore.PutOptions) request {
	if size <= s.opts.PartSize || opts.SinglePart {
		r := s.request(kindPut, putObject, "put", name)
		return r.later(s.transfer(size))
	}
	begin := s.dice[kindPut].next()
	partSize := max(s.opts.PartSize, (size+maxParts-1)/maxParts)
	parts := int((size + partSize - 1) / partSize)
	lanes := make([]time.Duration, min(parts, s.opts.PartConcurrency)) // when each is free for the next part
	for sent := int64(0); sent < size; sent += partSize {
		free := slices.Index(lanes, slices.Min(lanes))
		lanes[free] += s.dice[kindPut].next() + s.transfer(min(partSize, size-sent))
	}
	r := s.request(kindPut, completeUpload, "put", name)
	r.parts = parts
	return r.later(begin + slices.Max(lanes))
}

// later returns the request, sent after d.
func (r request) later(d time.Duration) request {
	r.arrives += d
	r.answered += d
	return r
}
