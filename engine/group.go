package engine

import (
	"context"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// A group is up to 64 neighbouring consolidated segments of which the MANIFEST keeps
// one line. What is known of them lies in one index object, which is read by parts:
//
//   - one key shard says which segments may hold a key: one request, at a place that
//     the line tells;
//   - the tail says what the segments are: one request, only if one of them may;
//   - a segment's table list usually came with the tail, else it costs one more.
//
// All of them are kept with the metadata of tables, and are read like ranges of tables.

// viewGroup is a group with what a read needs to decide whether to look into it.
type viewGroup struct {
	line       *manifest.Group
	index      base.ObjectID
	start, end uint64      // the window of its live segments
	checked    atomic.Bool // the line agrees with the index
}

func newViewGroups(lines []*manifest.Group) []viewGroup {
	groups := make([]viewGroup, len(lines))
	for i, g := range lines {
		v := &groups[i]
		v.line, v.index, v.start, v.end = g, g.GetIndex().ID(), g.GetFirstSequence(), g.GetEndSequence()
	}
	return groups
}

// holdsSegment reports whether the segment that begins with this id is live in the group.
func (g *viewGroup) holdsSegment(id uint32) bool {
	return g.line.GetFirstSegment() <= id && id <= g.line.GetLastSegment()
}

// index returns what the index says of its segments; size is the object's. It costs one
// request unless it is cached. A missing index gives objstore.ErrNotFound.
func (ts *tables) index(ctx context.Context, ref base.ObjectID, size int64) (*manifest.Index, error) {
	return ts.loadIndex(ctx, ref, size, nil)
}

// indexTables returns the tables of segment i of an index. They are in the index's
// tail, or cost one request; they are not kept.
func (ts *tables) indexTables(ctx context.Context, x *manifest.Index, ref base.ObjectID, i int) ([]*manifest.Table, error) {
	return ts.loadTables(ctx, x, ref, i, nil)
}

// Where an index's parts are in the cache: a shard and a list at their offsets, the
// tail at the offset that equals the index's size. All that load them count in reads, if it is
// not nil, what was not in memory.

func (ts *tables) loadIndex(ctx context.Context, ref base.ObjectID, size int64, reads *atomic.Uint32) (*manifest.Index, error) {
	key := sst.BlockKey{ID: ref.ULID, Offset: uint64(size)}
	if x, ok := ts.cached(key).(*manifest.Index); ok {
		return x, nil
	}
	n := min(size, manifest.IndexTailBytes)
	tail, err := ts.source(ref, reads).ReadRange(ctx, size-n, n)
	if err != nil {
		return nil, fmt.Errorf("open the index of a group: %w", err)
	}
	x, err := manifest.ParseIndex(ref, size, tail)
	if err != nil {
		return nil, fmt.Errorf("open the index of a group: %w", err)
	}
	ts.keep(key, x)
	return x, nil
}

func (ts *tables) loadTables(ctx context.Context, x *manifest.Index, ref base.ObjectID, i int, reads *atomic.Uint32) ([]*manifest.Table, error) {
	if frame, ok := x.Inline(i); ok {
		if list, err := x.ParseList(i, frame); err == nil {
			return list, nil
		}
		// Opening an index says nothing of the lists that came with its tail, and it is kept: wrong bytes
		// of one read must not stay (F35).
	}
	off, n := x.ListRange(i)
	frame, err := ts.source(ref, reads).ReadRange(ctx, off, n)
	if err != nil {
		return nil, fmt.Errorf("list the tables of a group: %w", err)
	}
	list, err := x.ParseList(i, frame)
	if err != nil {
		return nil, fmt.Errorf("list the tables of a group: %w", err)
	}
	return list, nil
}

func (ts *tables) loadShard(ctx context.Context, g *manifest.Group, h manifest.KeyHash, reads *atomic.Uint32) (*manifest.Shard, error) {
	ref := g.GetIndex().ID()
	off, n := manifest.ShardRange(g, h)
	key := sst.BlockKey{ID: ref.ULID, Offset: uint64(off)}
	if s, ok := ts.cached(key).(*manifest.Shard); ok {
		return s, nil
	}
	body, err := ts.source(ref, reads).ReadRange(ctx, off, n)
	if err != nil {
		return nil, fmt.Errorf("look a key up in a group: %w", err)
	}
	s, err := manifest.ParseShard(ref, g.Shape(), off, body)
	if err != nil {
		return nil, fmt.Errorf("look a key up in a group: %w", err)
	}
	ts.keep(key, s)
	return s, nil
}

// groupIndex is loadIndex for a group of a view, whose line must agree with it.
func (c *core) groupIndex(ctx context.Context, g *viewGroup, reads *atomic.Uint32) (*manifest.Index, error) {
	if err := c.checkFresh(); err != nil {
		return nil, err
	}
	x, err := c.tables.loadIndex(ctx, g.index, int64(g.line.GetIndexSize()), reads)
	if err != nil {
		return nil, missing(g.index, 0, err)
	}
	if !g.checked.Load() {
		if err := x.Check(g.line); err != nil {
			return nil, err
		}
		g.checked.Store(true)
	}
	return x, nil
}

// indexedRun is one segment of a group: a run whose tables are in the index.
type indexedRun struct {
	group *viewGroup
	x     *manifest.Index
	at    int // its place in the index
	// exact: the index says for certain that the segment holds the key that was looked up.
	exact bool
}

func (r *indexedRun) segment() *manifest.Segment { return r.x.Segment(r.at).GetSegment() }

// lookUp appends the live segments of the group that overlap rng and may hold the key, oldest
// first. Usually that is one request, and none of them does.
func (c *core) lookUp(ctx context.Context, g *viewGroup, h manifest.KeyHash, rng Range, dst []indexedRun, reads *atomic.Uint32) ([]indexedRun, error) {
	if err := c.checkFresh(); err != nil {
		return nil, err
	}
	shard, err := c.tables.loadShard(ctx, g.line, h, reads)
	if err != nil {
		return nil, missing(g.index, 0, err)
	}
	mask, exact := shard.Lookup(h)
	if mask == 0 {
		return dst, nil
	}
	x, err := c.groupIndex(ctx, g, reads)
	if err != nil {
		return nil, err
	}
	if bits.Len64(mask) > x.Len() {
		off, _ := manifest.ShardRange(g.line, h)
		return nil, base.Corruptf(g.index.Name(), off, "a key shard names segment %d of %d", bits.Len64(mask), x.Len())
	}
	from, to := x.Live(g.line)
	for i := from; i < to; i++ {
		if mask>>i&1 == 0 {
			continue
		}
		if s := x.Segment(i).GetSegment(); s.GetFirstSequence() < rng.End && rng.Start < s.GetEndSequence() {
			dst = append(dst, indexedRun{group: g, x: x, at: i, exact: exact})
		}
	}
	return dst, nil
}

// listBlock is a cached table list.
type listBlock struct{ run viewRun }

// MemoryBytes implements sst.Block.
func (b *listBlock) MemoryBytes() int {
	n := 128
	for i := range b.run.tables {
		t := &b.run.tables[i]
		n += 208 + len(t.name) + len(t.lower) + len(t.upper)
	}
	return n
}

// held returns the run with its tables if that needs no request, else nil.
func (r *indexedRun) held(c *core) *viewRun {
	if b, ok := c.tables.cached(r.listKey()).(*listBlock); ok {
		return &b.run
	}
	frame, ok := r.x.Inline(r.at)
	if !ok {
		return nil
	}
	list, err := r.x.ParseList(r.at, frame)
	if err != nil {
		return nil // loading it gives the error, or a list that was read again
	}
	return r.keep(c, list)
}

// load returns the run with its tables.
func (r *indexedRun) load(ctx context.Context, c *core, reads *atomic.Uint32) (*viewRun, error) {
	if run := r.held(c); run != nil {
		return run, nil
	}
	if err := c.checkFresh(); err != nil {
		return nil, err
	}
	list, err := c.tables.loadTables(ctx, r.x, r.group.index, r.at, reads)
	if err != nil {
		return nil, missing(r.group.index, 0, err)
	}
	return r.keep(c, list), nil
}

func (r *indexedRun) keep(c *core, list []*manifest.Table) *viewRun {
	s := r.x.Full(r.at, list)
	b := &listBlock{newViewRun(s, s.GetRuns()[0])}
	for i := range b.run.tables {
		b.run.tables[i].grouped = s.GetId()
	}
	c.tables.keep(r.listKey(), b)
	return &b.run
}

func (r *indexedRun) listKey() sst.BlockKey {
	off, _ := r.x.ListRange(r.at)
	return sst.BlockKey{ID: r.group.index.ULID, Offset: uint64(off)}
}
