package sst

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
)

// keepDecoded is the largest memory for a decoded block that a GroupIter keeps for
// the next one: many iterators that are open at the same time must not each hold what one
// huge value needed (F42).
const keepDecoded = 128 << 10

// largeValue is the size, stored or decoded, from which a block of one record is let through a
// Gate.
const largeValue = 1 << 20

// Gate limits how many large values are in memory at the same time, over many iterators.
type Gate interface {
	// Enter waits until there is room for one more, or ctx ends, whose error it then returns.
	Enter(ctx context.Context) error
	// Leave gives the room back.
	Leave()
}

// GroupIter walks the groups of a table, or of a part of it, in order. It belongs to
// one goroutine.
//
// It is made for merging many tables: which key comes next is known from the index, and a
// block is read and decoded only when it is that key's turn; the memory of one
// block serves all.
type GroupIter struct {
	r      *Reader
	source RangeReader
	gate   Gate // or nil
	inside bool // the gate was entered
	span   Span
	err    error

	pos        blockCursor
	ready      bool  // pos stands on the block that comes next
	begin, end int64 // of the blocks of the span

	ref    blockRef // the current block
	any    bool     // there is one
	loaded bool     // it is decoded: group is valid
	done   bool

	data    []byte // the groups of the current block
	offsets []byte // u32 of each
	groups  int
	next    int // number of the group after the current one
	at      int // and where it begins
	records uint64
	frame   storedBlock
	group   Group

	buf []byte // memory of decoded blocks
}

// Span returns an iterator over the groups of a span. Find must be called before
// anything else.
func (g *GroupReader) Span(span Span) *GroupIter {
	return &GroupIter{r: g.r, span: span, pos: g.r.indexCursor()}
}

// Find looks up where the data of the span begins and ends, and reads the index only.
// An empty range: the span holds no records. All data is then read from source, which
// may be the one of the Reader: block by block in ascending order.
func (it *GroupIter) Find(ctx context.Context) (begin, end int64, err error) {
	it.begin, it.end, it.err = it.r.blocks(ctx, it.span, &it.pos)
	it.ready = true
	return it.begin, it.end, it.err
}

// Read sets what data is read from, and the gate for values of more than 1 MiB, if that is not
// nil: room is taken when one is read and given back by the next Next. Read must be called before the first
// Next.
func (it *GroupIter) Read(source RangeReader, gate Gate) { it.source, it.gate = source, gate }

// Next moves to the next group, or reports that there is none; if Group was not called for the
// current one, to the next block. After an error it
// returns the same error again. What Key and Group returned before is not valid any
// more.
func (it *GroupIter) Next(ctx context.Context) (bool, error) {
	for it.err == nil && !it.done {
		var ok bool
		if it.loaded && it.next < it.groups {
			ok, it.err = it.advance()
		} else {
			ok, it.err = it.nextBlock(ctx)
		}
		if ok && it.err == nil {
			return true, nil
		}
	}
	return false, it.err
}

// Key returns the key of the current group.
func (it *GroupIter) Key() []byte {
	if it.loaded {
		return it.group.Key
	}
	return it.pos.cur.key
}

// Group returns the current group, after its block has been read if it is
// the first one in it.
func (it *GroupIter) Group(ctx context.Context) (*Group, error) {
	if !it.loaded && it.err == nil {
		it.err = it.load(ctx)
	}
	return &it.group, it.err
}

// Sequence returns the first sequence of the current group.
func (it *GroupIter) Sequence() uint64 {
	if it.loaded {
		return it.group.FirstSequence
	}
	return it.ref.seq
}

func (it *GroupIter) corrupt(what string) error {
	return base.Corruptf(it.r.opts.Name, it.ref.offset, "a data block %s", what)
}

// nextBlock moves to the next block without reading it, unless the span begins inside.
// False without an error: look again.
func (it *GroupIter) nextBlock(ctx context.Context) (bool, error) {
	if it.loaded && (it.at != len(it.data) || it.records != it.ref.count) {
		return false, it.corrupt("has bytes after its last group, or another number of records than the index tells")
	}
	it.leave()
	if !it.ready {
		ok, err := it.pos.next(ctx)
		if err != nil {
			return false, err
		}
		if !ok {
			it.done = true
			return false, it.checkEnd()
		}
	}
	it.ready = false
	ref := it.pos.ref()
	if it.done = ref.offset >= it.end; it.done {
		return false, nil
	}
	before, last := it.ref, &it.group
	it.ref = ref
	if it.any && (ref.offset != before.end() || ref.records != before.records+before.count) {
		return false, it.corrupt("does not follow the one before it")
	}
	if it.loaded && base.Compare(last.Key, last.LastSequence, it.pos.cur.key, ref.seq) >= 0 {
		return false, it.corrupt("is not above the one before it")
	}
	it.any, it.loaded = true, false
	it.data, it.offsets, it.frame, it.group = nil, nil, storedBlock{}, Group{} // may alias what was read
	if cap(it.buf) > keepDecoded {
		it.buf = nil
	}
	if from := it.span.From; from == nil || base.Compare(from.Key, from.Sequence, it.pos.cur.key, ref.seq) <= 0 {
		return true, nil
	}
	if ref.count == 1 {
		return false, nil // the one record is before the span
	}
	return it.skip(ctx)
}

// leave gives back the room for the large value that was read last.
func (it *GroupIter) leave() {
	if it.inside {
		it.inside = false
		it.gate.Leave()
	}
}

// enter takes room for the current block if it is one large value of so many bytes.
func (it *GroupIter) enter(ctx context.Context, size int64) error {
	if it.gate == nil || it.inside || size < largeValue || it.ref.count > 1 {
		return nil
	}
	if err := it.gate.Enter(ctx); err != nil {
		return err
	}
	it.inside = true
	return nil
}

// checkEnd checks that the last block of the table was the last of its records.
func (it *GroupIter) checkEnd() error {
	if it.ref.end() != it.r.opts.MetaOffset || it.ref.records+it.ref.count != it.r.root.props.Records {
		return base.Corruptf(it.r.opts.Name, it.r.root.rootOffset, "the table has %d records, not %d",
			it.ref.records+it.ref.count, it.r.root.props.Records)
	}
	return nil
}

// load reads and decodes the current block and makes its first group current.
func (it *GroupIter) load(ctx context.Context) error {
	if err := it.enter(ctx, it.ref.size); err != nil {
		return err
	}
	b, err := it.source.ReadRange(ctx, it.ref.offset, it.ref.size)
	if err != nil {
		return fmt.Errorf("read %s at offset %d: %w", it.r.opts.Name, it.ref.offset, err)
	}
	if int64(len(b)) != it.ref.size {
		return base.Corruptf(it.r.opts.Name, it.ref.offset, "a read of %d bytes gave %d", it.ref.size, len(b))
	}
	if err := it.enter(ctx, claimedSize(b)); err != nil {
		return err
	}
	data, c, err := decodeFrameTo(it.buf, b, it.r.opts.Name, it.r.opts.ID, it.ref.offset)
	if err != nil {
		return err
	}
	if c != codecRaw {
		it.buf = data[:0]
	}
	it.frame = storedBlock{payload: b[:len(b)-trailerSize], codec: c, decoded: len(data)}
	groups, end, reason := groupTable(data)
	if reason != "" {
		return it.corrupt(reason)
	}
	it.data, it.offsets, it.groups = data[:end:end], data[end:len(data)-4], groups
	it.next, it.at, it.records = 0, 0, 0
	if err := it.decode(nil); err != nil {
		return err
	}
	g := &it.group
	if !bytes.Equal(g.Key, it.pos.cur.key) || g.FirstSequence != it.ref.seq || orderTime(g.FirstTimestamp) != it.ref.time {
		return it.corrupt("is not the one of which the index tells")
	}
	it.loaded = true
	if it.groups == 1 && it.at == len(it.data) && it.records == it.ref.count {
		g.frame = &it.frame
	}
	it.trim()
	return nil
}

// decode makes the next group of the block current; prev is the key before it in the block.
func (it *GroupIter) decode(prev []byte) error {
	if int(binary.LittleEndian.Uint32(it.offsets[4*it.next:])) != it.at {
		return it.corrupt("has a group that does not begin where the one before ends")
	}
	end, reason := it.group.decode(it.data, it.at)
	if reason != "" {
		return it.corrupt(reason)
	}
	if it.next > 0 && bytes.Compare(prev, it.group.Key) >= 0 {
		return it.corrupt("has groups out of order")
	}
	it.next, it.at = it.next+1, end
	it.records += uint64(it.group.Records)
	return nil
}

// advance moves to the next group of the block, or reports that the span ends before it.
func (it *GroupIter) advance() (bool, error) {
	if err := it.decode(it.group.Key); err != nil {
		return false, err
	}
	if to := it.span.To; to != nil && it.ref.end() >= it.end && base.Compare(it.group.Key, it.group.FirstSequence, to.Key, to.Sequence) >= 0 {
		it.done = true
		it.leave()
		return false, nil
	}
	it.trim()
	return true, nil
}

// trim cuts what the span does not include off the current group, of which it includes a
// part.
func (it *GroupIter) trim() {
	g := &it.group
	if to := it.span.To; to != nil && it.ref.end() >= it.end && bytes.Equal(g.Key, to.Key) && g.LastSequence >= to.Sequence {
		*g, _ = g.below(to.Sequence)
	}
}

// skip moves, in the first block, to the first group that is not wholly before the span. False:
// the block holds none.
func (it *GroupIter) skip(ctx context.Context) (bool, error) {
	from := it.span.From
	if err := it.load(ctx); err != nil {
		return false, err
	}
	for base.Compare(it.group.Key, it.group.LastSequence, from.Key, from.Sequence) < 0 {
		if it.next == it.groups {
			return false, nil
		}
		if ok, err := it.advance(); !ok || err != nil {
			return false, err
		}
	}
	if g := &it.group; bytes.Equal(g.Key, from.Key) && g.FirstSequence < from.Sequence {
		_, *g = g.below(from.Sequence)
	}
	return true, nil
}

// groupTable returns the number of groups of a decoded data block and where they
// end, or what is wrong.
func groupTable(b []byte) (groups, end int, reason string) {
	if len(b) < 4 {
		return 0, 0, "shorter than its group count"
	}
	n := uint64(binary.LittleEndian.Uint32(b[len(b)-4:]))
	if n == 0 || n*4 > uint64(len(b)-4) {
		return 0, 0, "has a wrong group count"
	}
	return int(n), len(b) - 4 - int(n)*4, ""
}
