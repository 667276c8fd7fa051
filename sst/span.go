package sst

import (
	"bytes"
	"context"

	"github.com/annalsdb/annals/internal/base"
)

// Position is a place in the order of records: before the first record that is at
// or above (Key, Sequence).
type Position struct {
	Key      []byte
	Sequence uint64
}

// Compare orders positions.
func (p *Position) Compare(o *Position) int {
	return base.Compare(p.Key, p.Sequence, o.Key, o.Sequence)
}

// Span is the records from one position on and before another; nil means the end of
// the table on that side.
type Span struct {
	From, To *Position
}

// GroupReader reads the groups of one table. It is safe for concurrent use; the iterators
// that it makes belong to one goroutine each. It keeps the table's root in memory and, of the metadata that came
// with it, the index.
type GroupReader struct{ r *Reader }

// Groups returns a reader of the table's groups. It does not keep r, which holds more in memory.
func (r *Reader) Groups() *GroupReader {
	root := *r.root
	var index, filter entryCursor
	index.reset(root.index)
	index.forward()
	filter.reset(root.filter)
	filter.forward()
	begin := max(int64(index.f[fieldOffset]), root.tailOffset)
	end := max(begin, int64(filter.f[fieldOffset])) // which follows the index
	root.tail, root.tailOffset = bytes.Clone(root.tail[begin-root.tailOffset:end-root.tailOffset]), begin
	if begin == end {
		root.tailOffset = r.opts.Size
	}
	return &GroupReader{&Reader{opts: r.opts, root: &root}}
}

// blocks finds the data blocks that hold records of a span, by the index alone. The bytes [begin, end) are
// the blocks in question, of which the first and the last may hold other records too; c stands
// on the first of them. None: begin equals end.
func (r *Reader) blocks(ctx context.Context, span Span, c *blockCursor) (begin, end int64, err error) {
	end = r.opts.MetaOffset
	if to := span.To; to != nil {
		last := r.indexCursor()
		within, err := last.seek(ctx, to.Key, fieldSequence, to.Sequence)
		if err != nil {
			return 0, 0, err
		}
		ref := last.ref()
		if end = ref.offset; within && !(bytes.Equal(last.cur.key, to.Key) && ref.seq == to.Sequence) {
			end = ref.end()
		}
	}
	if from := span.From; from != nil {
		_, err = c.seek(ctx, from.Key, fieldSequence, from.Sequence)
	} else {
		_, err = c.next(ctx)
	}
	if err != nil {
		return 0, 0, err
	}
	begin = c.ref().offset
	return begin, max(begin, end), nil
}

// Sample is called with the position of the first record of a data block and with the stored
// bytes from there to the next sample, or to the end of the data. It may keep neither the
// position nor the key.
type Sample func(p Position, stored int64) error

// Samples divides the table into parts of at least every stored bytes, by the index alone.
func (g *GroupReader) Samples(ctx context.Context, every int64, visit Sample) error {
	r := g.r
	c := r.indexCursor()
	var part Position
	var begin int64
	for {
		ok, err := c.next(ctx)
		if err != nil {
			return err
		}
		at := r.opts.MetaOffset
		if ok {
			at = c.ref().offset
		}
		if at > begin && (!ok || at-begin >= every) {
			if err := visit(part, at-begin); err != nil {
				return err
			}
			begin = at
		}
		if !ok {
			return nil
		}
		if at == begin {
			part.Key, part.Sequence = append(part.Key[:0], c.cur.key...), c.ref().seq
		}
	}
}
