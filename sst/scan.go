package sst

import (
	"bytes"
	"context"

	"github.com/annalsdb/annals/internal/base"
)

// Hint says how much of a scan will be used; it limits what is read ahead and
// never what is returned. Zero fields mean no limit.
type Hint struct {
	Records int
	Bytes   int64 // of keys and values
}

// Iter iterates over the records of one key, by Scan or ScanBackward. It
// belongs to one goroutine.
type Iter struct {
	r        *Reader
	key      []byte
	rng      base.Range
	backward bool
	hint     Hint
	records  int   // returned so far
	bytes    int64 // of their keys and values

	pos     blockCursor // on the last block that the scan fetched
	started bool
	done    bool // no block after pos belongs to the scan
	err     error

	run   blockRun
	group group // of the key in the current block
	fresh bool  // the cursor of group stands on a record that is not yet returned
	// Backward only: the records of group that come next, the very next last,
	// and where the cursor stood before each strideRecords records before those.
	back  []place
	marks []group

	// First memory of the slices above, so that a short scan allocates once.
	keys   [2][64]byte
	blocks [4]runBlock
}

// strideRecords is how many records a backward scan finds at once in a group,
// whose columns can only be walked forward.
const strideRecords = 64

// place is where one record of a group lies.
type place struct {
	seq                uint64
	ts                 int64
	valuePos, valueEnd int
}

// blockRun is a series of adjacent blocks, the first of them next to be used.
// What was not cached came with one read and is decoded when its turn comes.
type blockRun struct {
	blocks []runBlock
	next   int
	buf    []byte // stored bytes of the blocks that are not decoded, from offset on
	offset int64
}

type runBlock struct {
	ref blockRef
	blk *dataBlock
	// keyed says that by the index the block begins with the key of the scan.
	keyed bool
}

// Scan returns the records of key with sequences in rng, in sequence order.
// Nothing is read before the first Next. Key must not change meanwhile.
func (r *Reader) Scan(key []byte, rng base.Range, hint Hint) *Iter {
	return r.newIter(key, rng, hint, false)
}

// ScanBackward returns the records of key with sequences in rng, newest first.
func (r *Reader) ScanBackward(key []byte, rng base.Range, hint Hint) *Iter {
	return r.newIter(key, rng, hint, true)
}

func (r *Reader) newIter(key []byte, rng base.Range, hint Hint, backward bool) *Iter {
	p := &r.root.props
	it := &Iter{r: r, key: key, hint: hint, backward: backward}
	it.rng = rng.Intersect(base.Range{Start: p.FirstSequence, End: p.LastSequence + 1})
	it.pos = r.indexCursor()
	it.pos.top.key, it.pos.cur.key = it.keys[0][:0], it.keys[1][:0]
	it.run.blocks = it.blocks[:0]
	it.done = it.rng.Empty()
	return it
}

// Next returns the next record, or false after the last one. The record aliases
// an immutable block: it stays valid and must not be changed. After an error
// Next returns the same error again.
func (it *Iter) Next(ctx context.Context) (base.Record, bool, error) {
	for it.err == nil {
		if rec, ok := it.nextInBlock(); ok {
			it.records++
			it.bytes += int64(rec.Size())
			return rec, true, nil
		}
		var ok bool
		if ok, it.err = it.nextBlock(ctx); !ok && it.err == nil {
			return base.Record{}, false, nil
		}
	}
	return base.Record{}, false, it.err
}

// nextInBlock returns the next record of the current block.
func (it *Iter) nextInBlock() (base.Record, bool) {
	g := &it.group
	if it.backward {
		for len(it.back) == 0 {
			if len(it.marks) == 0 {
				return base.Record{}, false
			}
			it.fillBack()
		}
		n := len(it.back) - 1
		p := it.back[n]
		it.back = it.back[:n]
		g.seq, g.ts, g.valuePos, g.valueEnd = p.seq, p.ts, p.valuePos, p.valueEnd
		return g.record(), true
	}
	if (it.fresh || g.next()) && g.seq < it.rng.End {
		it.fresh = false
		return g.record(), true
	}
	it.group, it.fresh = group{}, false
	return base.Record{}, false
}

// fillBack finds the records behind the last mark.
func (it *Iter) fillBack() {
	n := len(it.marks) - 1
	g := it.marks[n]
	it.marks = it.marks[:n]
	for range strideRecords {
		if !g.next() || g.seq >= it.rng.End {
			return
		}
		if g.seq >= it.rng.Start {
			it.back = append(it.back, place{g.seq, g.ts, g.valuePos, g.valueEnd})
		} else {
			it.marks = it.marks[:0] // all that come before are lower still
		}
	}
}

// nextBlock makes the next block that may hold records of the scan the current
// one, or reports that there is none.
func (it *Iter) nextBlock(ctx context.Context) (bool, error) {
	if it.run.next == len(it.run.blocks) {
		if ok, err := it.fill(ctx); !ok || err != nil {
			return false, err
		}
	}
	b, err := it.run.take(it.r, true)
	if err != nil {
		return false, err
	}
	g, _, ok := b.blk.find(it.key)
	switch {
	case ok:
		it.enter(g)
	case b.keyed:
		return false, base.Corruptf(it.r.opts.Name, b.ref.offset, "a data block lacks the key with which it begins by the index")
	}
	return true, nil // without the key, the block is the one before its first
}

// enter makes g, the key's group in the current block, ready for nextInBlock.
func (it *Iter) enter(g group) {
	if !it.backward {
		it.fresh = g.seek(it.rng.Start)
		it.group = g
		return
	}
	it.group, it.back, it.marks = g, it.back[:0], it.marks[:0]
	for i := 0; ; i++ {
		if i%strideRecords == 0 {
			it.marks = append(it.marks, g)
		}
		if !g.next() || g.seq >= it.rng.End {
			return
		}
	}
}

// fill finds the next blocks of the scan and fetches them with one read, unless
// the first is cached.
func (it *Iter) fill(ctx context.Context) (bool, error) {
	it.run.reset()
	ok, err := it.advance(ctx)
	if !ok || err != nil {
		return false, err
	}
	for {
		ref := it.pos.ref()
		blk := it.r.cachedData(&ref)
		it.run.blocks = append(it.run.blocks, runBlock{ref, blk, it.pos.startsWith(it.key)})
		if blk != nil || it.enough() {
			break
		}
		if ok, err = it.advance(ctx); err != nil {
			return false, err
		} else if !ok {
			break
		}
	}
	return true, it.run.fetch(ctx, it.r)
}

// advance moves pos to the next block of the scan.
func (it *Iter) advance(ctx context.Context) (ok bool, err error) {
	switch {
	case it.done:
		return false, nil
	case !it.started:
		it.started = true
		ok, err = it.seek(ctx)
	case it.backward:
		ok, err = it.pos.prevOf(ctx, it.key, it.rng.Start)
	default:
		ok, err = it.pos.nextOf(ctx, it.key, it.rng.End)
	}
	it.done = !ok
	return ok, err
}

// seek moves pos to the first block of the scan, if the filter passes the key.
func (it *Iter) seek(ctx context.Context) (bool, error) {
	if ok, err := it.r.MayContain(ctx, it.key); !ok || err != nil {
		return false, err
	}
	from := it.rng.Start
	if it.backward {
		from = it.rng.End - 1
	}
	exact, err := it.pos.seek(ctx, it.key, fieldSequence, from)
	if exact || err != nil {
		return exact, err
	}
	// No block begins at or below: only one that begins with key can hold it.
	first := &it.pos.cur
	return !it.backward && bytes.Equal(first.key, it.key) && first.f[fieldSequence] < it.rng.End, nil
}

// enough reports whether the run is as long as the hint and ReadAhead want it.
// How much of its first block belongs to the scan is not known, so that block
// does not count, nor do the bytes of the last.
func (it *Iter) enough() bool {
	b := it.run.blocks
	first, last := &b[0].ref, &b[len(b)-1].ref
	var records, size uint64
	var stored int64
	switch {
	case len(b) == 1:
	case it.backward:
		records, size, stored = first.records-last.records, first.bytes-last.bytes, first.offset-last.offset-last.size
	default:
		second := &b[1].ref
		records, size, stored = last.records+last.count-second.records, last.bytes-second.bytes, last.offset-second.offset
	}
	return stored >= it.r.opts.ReadAhead ||
		it.hint.Records > 0 && int64(records) >= int64(it.hint.Records-it.records) ||
		it.hint.Bytes > 0 && int64(size) >= it.hint.Bytes-it.bytes
}

func (run *blockRun) reset() {
	clear(run.blocks) // do not keep used blocks in memory
	run.blocks, run.next, run.buf = run.blocks[:0], 0, nil
}

// fetch reads, at once, the stored bytes of all blocks of the run that are not
// decoded. They are adjacent.
func (run *blockRun) fetch(ctx context.Context, r *Reader) error {
	var from, to int64
	for i := range run.blocks {
		b := &run.blocks[i]
		if b.blk != nil {
			continue
		}
		if end := b.ref.end(); to == 0 {
			from, to = b.ref.offset, end
		} else if b.ref.offset != to && end != from {
			return base.Corruptf(r.opts.Name, b.ref.offset, "a data block does not follow the one before it")
		} else {
			from, to = min(from, b.ref.offset), max(to, end)
		}
	}
	if to == 0 {
		return nil
	}
	var err error
	run.offset = from
	run.buf, err = r.read(ctx, from, to-from)
	return err
}

// take returns the next block of the run, which must not be used up, decoded.
// It is valid until the run is filled again.
func (run *blockRun) take(r *Reader, cache bool) (*runBlock, error) {
	b := &run.blocks[run.next]
	if b.blk == nil {
		at := b.ref.offset - run.offset
		stored := run.buf[at : at+b.ref.size]
		blk, err := r.parseData(stored, &b.ref, len(run.buf) > len(stored))
		if err != nil {
			return nil, err
		}
		if cache {
			r.keep(b.ref.offset, blk, false)
		}
		b.blk = blk
	}
	run.next++
	if run.next == len(run.blocks) {
		run.buf = nil
	}
	return b, nil
}
