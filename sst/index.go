package sst

import (
	"bytes"
	"context"

	"github.com/annalsdb/annals/internal/base"
)

// blockRef is what the index knows about a data block.
type blockRef struct {
	offset, size int64
	seq, time    uint64 // of the first record; time as orderTime makes it
	count        uint64 // its records
	// Records, and key + value bytes, in all blocks before it.
	records, bytes uint64
}

// end is where the block ends in the table.
func (b *blockRef) end() int64 { return b.offset + b.size }

// blockCursor walks the entries of the index, that is, the data blocks in file
// order, over its partitions (or those of the directory: Verify does that). It
// keeps the partition that it stands on, so that moving within it needs neither
// I/O nor the cache. It belongs to one goroutine.
type blockCursor struct {
	r      *Reader
	kind   listKind
	parts  *entryList
	top    entryCursor
	cur    entryCursor
	loaded int // ordinal of cur's partition, plus 1; 0 for none
}

func (r *Reader) indexCursor() blockCursor {
	return blockCursor{r: r, kind: indexKind, parts: r.root.index}
}

func (r *Reader) directoryCursor() blockCursor {
	return blockCursor{r: r, kind: directoryKind, parts: r.root.directory}
}

// open loads the partition on which top stands, unless it is loaded, and puts
// cur before its first entry.
func (c *blockCursor) open(ctx context.Context) error {
	list := c.cur.l
	if c.loaded != c.top.i+1 {
		var err error
		if list, err = c.r.listPart(ctx, c.kind, &c.top); err != nil {
			return err
		}
		c.loaded = c.top.i + 1
	}
	c.cur.reset(list)
	return nil
}

// seek moves to the last block whose first record is at most (key, v) and
// returns true; v is a sequence or an orderTime, as field says. If there is none
// it moves to a block such that every record before it has a lower key, and
// returns false.
func (c *blockCursor) seek(ctx context.Context, key []byte, field int, v uint64) (bool, error) {
	c.top.reset(c.parts)
	c.top.seek(key, field, v) // finds one: the first separator is below everything
	if err := c.open(ctx); err != nil {
		return false, err
	}
	if c.cur.seek(key, field, v) {
		return true, nil
	}
	c.cur.forward()
	return false, nil
}

// next moves to the next block, or reports that there is none.
func (c *blockCursor) next(ctx context.Context) (bool, error) {
	if c.cur.l != nil && c.cur.forward() {
		return true, nil
	}
	if c.top.l == nil {
		c.top.reset(c.parts)
	}
	if !c.top.forward() {
		return false, nil
	}
	if err := c.open(ctx); err != nil {
		return false, err
	}
	return c.cur.forward(), nil
}

// nextOf moves to the next block if that begins with a record of key whose
// sequence is below end. A partition that cannot begin so is not loaded.
func (c *blockCursor) nextOf(ctx context.Context, key []byte, end uint64) (bool, error) {
	if !c.cur.forward() {
		if end == 0 || !c.top.nextAtMost(key, fieldSequence, end-1) {
			return false, nil
		}
		c.top.forward()
		if err := c.open(ctx); err != nil {
			return false, err
		}
		c.cur.forward()
	}
	return bytes.Equal(c.cur.key, key) && c.cur.f[fieldSequence] < end, nil
}

// prevOf moves to the block before if that may hold records of key with
// sequences from start on: if this one begins with a record of key above start.
func (c *blockCursor) prevOf(ctx context.Context, key []byte, start uint64) (bool, error) {
	seq := c.cur.f[fieldSequence]
	if !bytes.Equal(c.cur.key, key) || seq <= start {
		return false, nil
	}
	if c.cur.i > 0 {
		c.cur.to(c.cur.i - 1)
		return true, nil
	}
	// The partition before ends with key only if the separator repeats this entry.
	if c.top.i == 0 || c.top.f[fieldSequence] != seq || !bytes.Equal(c.top.key, key) {
		return false, nil
	}
	c.top.to(c.top.i - 1)
	if err := c.open(ctx); err != nil {
		return false, err
	}
	c.cur.to(c.cur.l.n - 1)
	return true, nil
}

// startsWith reports whether the current block begins with a record of key.
func (c *blockCursor) startsWith(key []byte) bool { return bytes.Equal(c.cur.key, key) }

// ref describes the block on which the cursor stands.
func (c *blockCursor) ref() blockRef {
	f := &c.cur.f
	return blockRef{
		offset: int64(f[fieldOffset]), size: int64(f[fieldSize]),
		seq: f[fieldSequence], time: f[fieldTime], count: f[fieldCount],
		records: f[fieldRecords], bytes: f[fieldBytes],
	}
}

// cachedData returns a data block from the cache, or nil.
func (r *Reader) cachedData(ref *blockRef) *dataBlock {
	b, _ := r.cached(ref.offset).(*dataBlock)
	return b
}

// parseData decodes the stored data block of ref. The block aliases stored only
// when shared is false: a small block must not keep a large read in memory.
func (r *Reader) parseData(stored []byte, ref *blockRef, shared bool) (*dataBlock, error) {
	data, c, err := decodeFrame(stored, r.opts.Name, r.opts.ID, ref.offset)
	if err != nil {
		return nil, err
	}
	if c == codecRaw && shared {
		data = bytes.Clone(data)
	}
	b, reason := parseBlock(data)
	if reason != "" {
		return nil, base.Corruptf(r.opts.Name, ref.offset, "a data block %s", reason)
	}
	if g := b.group(0); b.records != ref.count || g.seq != ref.seq || orderTime(g.ts) != ref.time {
		return nil, base.Corruptf(r.opts.Name, ref.offset, "a data block is not the one of which the index tells")
	}
	return b, nil
}

// loadData returns one data block, from the cache or with one read.
func (r *Reader) loadData(ctx context.Context, ref *blockRef) (*dataBlock, error) {
	if b := r.cachedData(ref); b != nil {
		return b, nil
	}
	stored, err := r.read(ctx, ref.offset, ref.size)
	if err != nil {
		return nil, err
	}
	b, err := r.parseData(stored, ref, false)
	if err != nil {
		return nil, err
	}
	r.keep(ref.offset, b, false)
	return b, nil
}
