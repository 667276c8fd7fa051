package compaction

import (
	"context"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
)

// addGroup opens the index of an input group and takes over the lists of its live segments.
func (g *grouping) addGroup(ctx context.Context, line *manifest.Group) error {
	t, ref, size := g.task, line.Index.ID(), int64(line.IndexSize)
	n := min(size, manifest.IndexTailBytes)
	tail, err := t.getPart(ctx, ref, size, size-n, n)
	if err != nil {
		return err
	}
	x, err := manifest.ParseIndex(ref, size, tail)
	if err != nil {
		return err
	}
	if err := x.Check(line); err != nil {
		return err
	}
	from, to := x.Live(line)
	g.streams = append(g.streams, &shardStream{
		task: t, line: line, ref: ref, shape: x.Shape(), from: from, live: liveMask(to - from), to: len(g.segments),
	})
	for i := from; i < to; i++ {
		frame, ok := x.Inline(i)
		if !ok {
			off, n := x.ListRange(i)
			if frame, err = t.getPart(ctx, ref, size, off, n); err != nil {
				return err
			}
		}
		tables, err := x.ParseList(i, frame)
		if err != nil {
			return err
		}
		g.segments = append(g.segments, x.Full(i, tables))
		g.keys = append(g.keys, x.Segment(i).Keys)
	}
	return nil
}

// getPart reads a part of an input and counts its bytes.
func (t *task) getPart(ctx context.Context, id base.ObjectID, size, off, n int64) ([]byte, error) {
	body, err := t.get(ctx, id.Name(), size, off, n)
	t.bytesIn.Add(uint64(len(body)))
	return body, err
}

// liveMask has the bits of n segments, 1 to 64.
func liveMask(n int) uint64 { return ^uint64(0) >> (64 - n) }

// shardStream gives the entries of a group's index, a shard at a time. It reads several
// shards with one request, one request ahead.
type shardStream struct {
	task  *task
	line  *manifest.Group
	ref   base.ObjectID
	shape manifest.Shape
	// The live segments are from, from+1, ... in the index; live has a bit for each. They
	// are to, to+1, ... in the output.
	from, to int
	live     uint64

	b      *manifest.IndexBuilder
	chunk  int    // shards to read at once
	cur    []byte // shards that were read and not given, from shard number shard on
	shard  int
	ahead  *fetch // of what follows cur; nil: nothing
	hashes []manifest.KeyHash
	masks  []uint64
	seen   uint64 // entries
}

func (s *shardStream) begin(b *manifest.IndexBuilder, streams int) {
	s.b = b
	bytes := min(s.task.limits.ReadAhead, max(minChunk, s.task.bufferBytes()/int64(2*streams)))
	s.chunk = int(max(1, bytes/int64(s.shape.ShardBytes)))
}

// prefetch asks for the shards from number shard on.
func (s *shardStream) prefetch(ctx context.Context, shard int) {
	s.ahead = nil
	n := min(s.chunk, int(s.shape.Shards)-shard)
	if n <= 0 {
		return
	}
	f := &fetch{done: make(chan struct{})}
	s.ahead = f
	off, size := s.shape.Range(shard)
	s.task.start("compaction read index", func() {
		defer close(f.done)
		f.body, f.err = s.task.getPart(ctx, s.ref, int64(s.line.IndexSize), off, int64(n)*size)
	})
}

// next gives what the next shard that is not empty says of live segments.
func (s *shardStream) next(ctx context.Context) (hashPart, error) {
	if s.ahead == nil && s.shard == 0 && s.cur == nil {
		s.prefetch(ctx, 0)
	}
	for s.shard < int(s.shape.Shards) {
		if len(s.cur) == 0 {
			if err := s.advance(ctx); err != nil {
				return hashPart{}, err
			}
		}
		if err := s.take(); err != nil {
			return hashPart{}, err
		}
		if len(s.hashes) > 0 {
			return hashPart{hashes: s.hashes, masks: s.masks}, nil
		}
	}
	return hashPart{}, nil
}

// advance waits for the shards asked for and asks for those after them.
func (s *shardStream) advance(ctx context.Context) error {
	f := s.ahead
	select {
	case <-f.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.err != nil {
		return f.err
	}
	s.cur = f.body
	s.prefetch(ctx, s.shard+len(s.cur)/int(s.shape.ShardBytes))
	return nil
}

// take decodes the next shard. Its base mask goes to the builder at once.
func (s *shardStream) take() error {
	off, n := s.shape.Range(s.shard)
	shard, err := manifest.ParseShard(s.ref, s.shape, off, s.cur[:n:n])
	if err != nil {
		return err
	}
	s.cur, s.shard = s.cur[n:], s.shard+1
	first, last := shard.Hashes()
	s.b.AddBase(first, last, s.output(shard.Base()))
	s.hashes, s.masks = s.hashes[:0], s.masks[:0]
	for i := range shard.Len() {
		h, mask := shard.Entry(i)
		if mask = s.output(mask); mask != 0 {
			s.hashes, s.masks = append(s.hashes, h), append(s.masks, mask)
		}
	}
	s.seen += uint64(shard.Len())
	return nil
}

// output translates a mask of the index's segments into one of the output's.
func (s *shardStream) output(mask uint64) uint64 { return mask >> s.from & s.live << s.to }

func (s *shardStream) end(*manifest.IndexBuilder) error {
	if s.seen != s.line.Keys {
		return base.Corruptf(s.ref.Name(), 0, "%d entries in the key shards, the manifest says %d", s.seen, s.line.Keys)
	}
	return nil
}
