package sst

import (
	"bytes"
	"context"
	"math"

	"github.com/annalsdb/annals/internal/base"
)

// KeyInfo is what the directory knows about a key.
type KeyInfo struct {
	Key                         []byte
	FirstSequence, LastSequence uint64
	Count                       uint64 // records of the key in this table
}

// Key returns what the table's directory knows about key, or false if the key
// has no records in it. It reads one directory partition at most.
func (r *Reader) Key(ctx context.Context, key []byte) (KeyInfo, bool, error) {
	f, ok, err := r.lookup(ctx, key)
	if !ok || err != nil {
		return KeyInfo{}, false, err
	}
	return KeyInfo{Key: key, FirstSequence: f[dirFirst], LastSequence: f[dirLast], Count: f[dirCount]}, true, nil
}

// lookup returns the numbers of key's directory entry.
func (r *Reader) lookup(ctx context.Context, key []byte) (f [maxFields]uint64, ok bool, err error) {
	p := &r.root.props
	if bytes.Compare(key, p.FirstKey) < 0 || bytes.Compare(key, p.LastKey) > 0 {
		return f, false, nil
	}
	var c entryCursor
	var buf [128]byte
	c.key = buf[:0]
	c.reset(r.root.directory)
	c.seek(key, fieldSequence, 0)
	offset := int64(c.f[fieldOffset])
	list, err := r.listPart(ctx, directoryKind, &c)
	if err != nil {
		return f, false, err
	}
	c.reset(list)
	if !c.seek(key, dirFirst, math.MaxUint64) || !bytes.Equal(c.key, key) {
		return f, false, nil
	}
	f = c.f
	if f[dirFirst] > f[dirLast] || f[dirCount] == 0 || f[dirCount]-1 > f[dirLast]-f[dirFirst] ||
		f[dirOrdinal] >= p.Records || f[dirCount] > p.Records-f[dirOrdinal] {
		return f, false, base.Corruptf(r.opts.Name, offset, "the directory has an impossible entry for key %q", key)
	}
	return f, true, nil
}

// Count returns how many records key has with sequences in rng. It reads the
// directory, and only if rng begins or ends between the first and the last
// record of key also the index and at most two data blocks.
func (r *Reader) Count(ctx context.Context, key []byte, rng base.Range) (uint64, error) {
	if p := &r.root.props; rng.Intersect(base.Range{Start: p.FirstSequence, End: p.LastSequence + 1}).Empty() {
		return 0, nil
	}
	f, ok, err := r.lookup(ctx, key)
	if !ok || err != nil || rng.End <= f[dirFirst] || rng.Start > f[dirLast] {
		return 0, err
	}
	c := counter{r: r, key: key, ordinal: f[dirOrdinal], pos: r.indexCursor()}
	var edges [2]edge // of the range: the ordinals of the first record in it and of the first after it
	edges[0].rank = f[dirOrdinal]
	edges[1].rank = f[dirOrdinal] + f[dirCount]
	if rng.Start > f[dirFirst] {
		if edges[0], err = c.find(ctx, rng.Start); err != nil {
			return 0, err
		}
	}
	if rng.End <= f[dirLast] {
		if edges[1], err = c.find(ctx, rng.End); err != nil {
			return 0, err
		}
	}
	if err := c.resolve(ctx, &edges); err != nil {
		return 0, err
	}
	if edges[0].rank > edges[1].rank {
		return 0, base.Corruptf(r.opts.Name, r.root.rootOffset, "index and directory contradict each other for key %q", key)
	}
	return edges[1].rank - edges[0].rank, nil
}

// counter finds the ranks of a key's records: their ordinals in the table.
type counter struct {
	r       *Reader
	key     []byte
	ordinal uint64 // of the key's first record
	pos     blockCursor
}

// edge is the rank of the first record of the key with a sequence of at least seq. When block
// is set the rank is not yet known but lies in that block.
type edge struct {
	rank  uint64
	seq   uint64
	block *blockRef
	keyed bool // the block begins with the key
}

// find locates the edge at seq, which lies above the key's first record and not
// above its last.
func (c *counter) find(ctx context.Context, seq uint64) (edge, error) {
	if _, err := c.pos.seek(ctx, c.key, fieldSequence, seq); err != nil {
		return edge{}, err
	}
	ref := c.pos.ref()
	e := edge{rank: ref.records, seq: seq, keyed: c.pos.startsWith(c.key)}
	if !e.keyed || ref.seq != seq {
		e.block = &ref
	}
	return e, nil
}

// resolve reads the blocks of the edges, with one read if they are adjacent.
func (c *counter) resolve(ctx context.Context, edges *[2]edge) error {
	var run blockRun
	for i := range edges {
		b := edges[i].block
		if b == nil || i == 1 && edges[0].block != nil && edges[0].block.offset == b.offset {
			continue
		}
		if n := len(run.blocks); n > 0 && run.blocks[n-1].ref.end() != b.offset {
			if err := c.rankAll(ctx, &run, edges); err != nil {
				return err
			}
			run.reset()
		}
		run.blocks = append(run.blocks, runBlock{ref: *b, blk: c.r.cachedData(b)})
	}
	return c.rankAll(ctx, &run, edges)
}

// rankAll reads the blocks of run and computes the ranks that lie in them.
func (c *counter) rankAll(ctx context.Context, run *blockRun, edges *[2]edge) error {
	if err := run.fetch(ctx, c.r); err != nil {
		return err
	}
	for run.next < len(run.blocks) {
		b, err := run.take(c.r, true)
		if err != nil {
			return err
		}
		for i := range edges {
			e := &edges[i]
			if e.block == nil || e.block.offset != b.ref.offset {
				continue
			}
			g, _, ok := b.blk.find(c.key)
			if !ok {
				return base.Corruptf(c.r.opts.Name, b.ref.offset, "a data block lacks key %q, which the directory puts there", c.key)
			}
			if !e.keyed {
				e.rank = c.ordinal // the key begins in this block, behind others
			}
			for g.next() && g.seq < e.seq {
				e.rank++
			}
		}
	}
	return nil
}

// SeekTimestamp returns the sequence of the first record of key in rng whose
// timestamp is at least ts, or false if there is none. It reads filter, index
// and at most one data block.
func (r *Reader) SeekTimestamp(ctx context.Context, key []byte, rng base.Range, ts int64) (seq uint64, ok bool, err error) {
	p := &r.root.props
	rng = rng.Intersect(base.Range{Start: p.FirstSequence, End: p.LastSequence + 1})
	if rng.Empty() || ts > p.LastTimestamp {
		return 0, false, nil
	}
	if ok, err := r.MayContain(ctx, key); !ok || err != nil {
		return 0, false, err
	}
	pos := r.indexCursor()
	if err := pos.seekLater(ctx, key, rng.Start, ts); err != nil {
		return 0, false, err
	}
	// The record is in this block, or it is the first of the next one.
	ref := pos.ref()
	b, err := r.loadData(ctx, &ref)
	if err != nil {
		return 0, false, err
	}
	if g, _, found := b.find(key); found {
		for g.seek(rng.Start) && g.seq < rng.End {
			if g.ts >= ts {
				return g.seq, true, nil
			}
		}
	}
	if ok, err = pos.nextOf(ctx, key, rng.End); !ok || err != nil {
		return 0, false, err
	}
	return pos.cur.f[fieldSequence], true, nil
}

// seekLater moves to the later of two blocks: the last that begins at or below
// (key, start), and the last that begins below key's timestamp ts.
func (c *blockCursor) seekLater(ctx context.Context, key []byte, start uint64, ts int64) error {
	if ts == math.MinInt64 {
		_, err := c.seek(ctx, key, fieldSequence, start)
		return err
	}
	if _, err := c.seek(ctx, key, fieldTime, orderTime(ts)-1); err != nil {
		return err
	}
	offset := c.cur.f[fieldOffset]
	if _, err := c.seek(ctx, key, fieldSequence, start); err != nil {
		return err
	}
	if c.cur.f[fieldOffset] >= offset {
		return nil
	}
	_, err := c.seek(ctx, key, fieldTime, orderTime(ts)-1)
	return err
}
