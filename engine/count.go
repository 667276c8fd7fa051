package engine

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/trace"
)

// Count implements LogReader.
func (c *core) Count(ctx context.Context, key []byte, r Range) (uint64, error) {
	if err := c.stopped(); err != nil {
		return 0, err
	}
	if err := c.checkKey(key); err != nil {
		return 0, err
	}
	r.End = min(r.End, c.frontier.Load())
	if r.Empty() {
		return 0, nil
	}
	ctx, span := trace.Begin(c.tracer, ctx, trace.Count)
	span.Key("key", key)
	var n uint64
	err := c.withView(ctx, func(v *view) (err error) {
		n, err = c.count(ctx, v, key, r)
		return err
	})
	span.Int("records", int64(n))
	span.End(err)
	return n, err
}

// candidate is a table that may hold a key.
type candidate struct {
	table *viewTable
	known bool // it holds the key, as an index says
}

// candidates appends the tables of the run that may hold the key with a sequence of rng.
func (r *viewRun) candidates(dst []candidate, key []byte, rng Range, exact bool) []candidate {
	tables := r.covering(key)
	for i := range tables {
		if t := &tables[i]; t.overlaps(rng) {
			// Of several tables one may have the key, or all: their filters know.
			dst = append(dst, candidate{t, exact && len(tables) == 1})
		}
	}
	return dst
}

// countBatch is how many groups, and then how many segments of them, a count looks at together: it bounds
// the indexes and the table lists that it holds (I9).
const countBatch = 64

// count implements Count on one view.
func (c *core) count(ctx context.Context, v *view, key []byte, r Range) (uint64, error) {
	onDisk := v.onDisk(r)
	q := counting{c: c, parallel: parallel{c: c}, key: key, rng: onDisk}
	n, err := q.groups(ctx, v.groupsIn(onDisk))
	if err != nil {
		return 0, err
	}
	var tables []candidate
	runs := v.runsIn(onDisk)
	for i := range runs {
		tables = runs[i].candidates(tables, key, onDisk, false)
	}
	m, err := q.tables(ctx, tables)
	if err != nil {
		return 0, err
	}
	n += m
	for i := v.memoriesFrom(r.Start); i < len(v.memories); i++ {
		if mr := v.memoryRange(i, r); !mr.Empty() {
			n += v.memories[i].table.Count(key, mr)
		}
	}
	return n, nil
}

// counting is the part of a count that memory does not serve. It belongs to one goroutine.
type counting struct {
	c        *core
	parallel parallel
	key      []byte
	rng      Range
}

// groups counts the key's records in groups.
func (q *counting) groups(ctx context.Context, groups []viewGroup) (n uint64, err error) {
	hash := manifest.HashKey(q.key)
	for batch := range slices.Chunk(groups, countBatch) {
		found := make([][]indexedRun, len(batch))
		err := q.parallel.each(ctx, len(batch), func(ctx context.Context, i int, reads *atomic.Uint32) (err error) {
			found[i], err = q.c.lookUp(ctx, &batch[i], hash, q.rng, nil, reads)
			return err
		})
		if err != nil {
			return 0, err
		}
		for segments := range slices.Chunk(slices.Concat(found...), countBatch) {
			m, err := q.segments(ctx, segments)
			if err != nil {
				return 0, err
			}
			n += m
		}
	}
	return n, nil
}

// segments counts the key's records in segments of groups.
func (q *counting) segments(ctx context.Context, segments []indexedRun) (uint64, error) {
	runs := make([]*viewRun, len(segments))
	err := q.parallel.each(ctx, len(segments), func(ctx context.Context, i int, reads *atomic.Uint32) (err error) {
		runs[i], err = segments[i].load(ctx, q.c, reads)
		return err
	})
	if err != nil {
		return 0, err
	}
	var tables []candidate
	for i, run := range runs {
		tables = run.candidates(tables, q.key, q.rng, segments[i].exact)
	}
	return q.tables(ctx, tables)
}

// tables counts the key's records in tables.
func (q *counting) tables(ctx context.Context, tables []candidate) (uint64, error) {
	var n atomic.Uint64
	err := q.parallel.each(ctx, len(tables), func(ctx context.Context, i int, reads *atomic.Uint32) error {
		m, err := q.table(ctx, tables[i], reads)
		n.Add(m)
		return tableError(tables[i].table, err)
	})
	return n.Load(), err
}

func (q *counting) table(ctx context.Context, t candidate, reads *atomic.Uint32) (uint64, error) {
	if err := q.c.checkFresh(); err != nil {
		return 0, err
	}
	reader, err := q.c.tables.open(ctx, t.table, opening{known: t.known, reads: reads})
	if err != nil {
		return 0, err
	}
	if ok, err := reader.MayContain(ctx, q.key); err != nil || !ok {
		return 0, err
	}
	return reader.Count(ctx, q.key, q.rng)
}
