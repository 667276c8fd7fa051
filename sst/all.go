package sst

import (
	"context"

	"github.com/annalsdb/annals/internal/base"
)

// AllIter iterates over every record of a table. It belongs to one goroutine.
type AllIter struct {
	r         *Reader
	readAhead int64
	pos       blockCursor
	ready     bool // pos stands on a block that is not yet read
	done      bool
	err       error

	run   blockRun
	blk   *dataBlock
	next  int // number of the next group of blk
	group group

	records uint64
	last    base.Record
}

// All returns every record in (key, sequence) order. It reads readAhead stored
// bytes at a time, or one block if that is larger (0 means the Reader's
// ReadAhead), holds about as much, and leaves no data block in the cache. Order
// and number of the records are checked on the way.
func (r *Reader) All(readAhead int64) *AllIter {
	if readAhead <= 0 {
		readAhead = r.opts.ReadAhead
	}
	return &AllIter{r: r, readAhead: readAhead, pos: r.indexCursor()}
}

// Next returns the next record, or false after the last one. The record aliases
// an immutable block: it stays valid and must not be changed. After an error
// Next returns the same error again.
func (it *AllIter) Next(ctx context.Context) (base.Record, bool, error) {
	for it.err == nil && !it.done {
		if it.group.next() {
			rec := it.group.record()
			if it.records > 0 && base.Compare(it.last.Key, it.last.Sequence, rec.Key, rec.Sequence) >= 0 {
				it.err = base.Corruptf(it.r.opts.Name, it.run.blocks[it.run.next-1].ref.offset, "a data block is not above the one before it")
				break
			}
			it.last = rec
			it.records++
			return rec, true, nil
		}
		if it.blk != nil && it.next < it.blk.groups {
			it.group = it.blk.group(it.next)
			it.next++
			continue
		}
		var more bool
		if more, it.err = it.nextBlock(ctx); it.err == nil && !more {
			it.done = true
			if it.records != it.r.root.props.Records {
				it.err = base.Corruptf(it.r.opts.Name, it.r.root.rootOffset, "the table has %d records, not %d", it.records, it.r.root.props.Records)
			}
		}
	}
	return base.Record{}, false, it.err
}

// nextBlock makes the next block current, or reports that there is none.
func (it *AllIter) nextBlock(ctx context.Context) (bool, error) {
	if it.run.next == len(it.run.blocks) {
		if err := it.fill(ctx); err != nil || len(it.run.blocks) == 0 {
			return false, err
		}
	}
	b, err := it.run.take(it.r, false)
	if err != nil {
		return false, err
	}
	it.blk, it.next = b.blk, 0
	b.blk = nil // it is current; the run need not hold it
	return true, nil
}

// fill fetches the next blocks with one read.
func (it *AllIter) fill(ctx context.Context) error {
	it.run.reset()
	var size int64
	for {
		if !it.ready {
			ok, err := it.pos.next(ctx)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			it.ready = true
		}
		ref := it.pos.ref()
		if len(it.run.blocks) > 0 && size+ref.size > it.readAhead {
			break
		}
		it.run.blocks = append(it.run.blocks, runBlock{ref: ref})
		it.ready = false
		size += ref.size
	}
	return it.run.fetch(ctx, it.r)
}
