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
	Bytes   int64 // of values
}

// Iter iterates over the records of one key, by Scan or ScanBackward. It
// belongs to one goroutine.
type Iter struct {
	r        *Reader
	key      []byte
	rng      base.Range
	backward bool
	hint     Hint
	records  int64 // returned so far
	bytes    int64 // of their values

	pos     blockCursor // on the last block that the scan fetched
	started bool
	done    bool // no block after pos belongs to the scan
	err     error

	run   blockRun
	runs  int       // made current, or primed, so far
	late  bool      // run is found, but not fetched
	ahead readAhead // the runs after run
	found extent    // of the scan up to the last run that was found
	group group     // of the key in the current block
	fresh bool      // the cursor of group stands on a record that is not yet returned
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
	cold   bool   // the first block was not cached
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
			it.bytes += int64(len(rec.Value))
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
	it.LookAhead(ctx) // before it waits for the current run
	if it.late {
		it.late = false
		if err := it.run.fetch(ctx, it.r); err != nil {
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

// Prime fetches what the first Next needs, in one read if it is not cached, so that
// this costs no time then; but not more than so many stored bytes of records: what
// is larger is left to Next, which reads at the same time whatever else the scan is known to want. Later it does nothing.
func (it *Iter) Prime(ctx context.Context, most int64) error {
	if it.err != nil || it.runs > 0 {
		return it.err
	}
	it.runs++
	var ok bool
	if ok, it.err = it.find(ctx, &it.run, it.r.opts.ReadAhead); !ok || it.err != nil {
		return it.err
	}
	it.ahead.read = it.run.size()
	if it.late = it.run.size() > most; !it.late {
		it.err = it.run.fetch(ctx, it.r)
	}
	return it.err
}

// fill makes the next blocks of the scan its run. Unless they were fetched ahead, they are not yet fetched.
func (it *Iter) fill(ctx context.Context) (ok bool, err error) {
	it.runs++
	if len(it.ahead.queue) > 0 {
		ok, err = true, it.takeAhead(ctx)
	} else {
		it.run.reset()
		it.giveBack()
		it.found = extent{records: it.records, bytes: it.bytes}
		ok, err = it.find(ctx, &it.run, it.r.opts.ReadAhead)
		it.late = true
	}
	if it.run.cold {
		it.ahead.read += it.run.size()
	}
	return ok, err
}

// find finds the next blocks of the scan that one read is to fetch: one, if that is
// cached, else as many as have about most stored bytes, or all that the hint asks for.
func (it *Iter) find(ctx context.Context, run *blockRun, most int64) (bool, error) {
	ok, err := it.advance(ctx)
	if !ok || err != nil {
		return false, err
	}
	before := it.found
	for {
		ref := it.pos.ref()
		blk := it.r.cachedData(&ref)
		run.blocks = append(run.blocks, runBlock{ref, blk, it.pos.startsWith(it.key)})
		if blk != nil {
			break
		}
		e := run.extent(len(it.key), it.backward)
		it.found = extent{records: before.records + e.records, bytes: before.bytes + e.bytes}
		if e.stored >= most || it.hint.metBy(it.found) {
			break
		}
		if ok, err = it.advance(ctx); err != nil {
			return false, err
		} else if !ok {
			break
		}
	}
	run.cold = run.blocks[0].blk == nil
	return true, nil
}

// Late reports whether Prime left to Next what is not cached.
func (it *Iter) Late() bool { return it.late && it.run.cold }

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

// bounded reports whether the hint says how much is wanted.
func (h Hint) bounded() bool { return h.Records > 0 || h.Bytes > 0 }

// metBy reports whether so much is all that the hint asks for.
func (h Hint) metBy(e extent) bool {
	return h.Records > 0 && e.records >= int64(h.Records) || h.Bytes > 0 && e.bytes >= h.Bytes
}

// extent is how much of a scan some blocks are known to hold at least.
type extent struct {
	records int64
	bytes   int64 // of their values
	stored  int64 // as ReadAhead counts it
}

// extent returns what the run is known to hold of the scan. How much of its first block belongs
// to the scan is not known, so that block does not count, nor do the bytes of the last.
func (run *blockRun) extent(keyBytes int, backward bool) extent {
	n := len(run.blocks)
	if n < 2 {
		return extent{}
	}
	first, second, last := &run.blocks[0].ref, &run.blocks[1].ref, &run.blocks[n-1].ref
	if backward {
		records := int64(first.records - last.records)
		return extent{records, int64(first.bytes-last.bytes) - records*int64(keyBytes), first.offset - last.end()}
	}
	records := int64(last.records - second.records)
	bytes := int64(last.bytes-second.bytes) - records*int64(keyBytes)
	return extent{records + int64(last.count), bytes, last.offset - second.offset}
}

// size is the stored size of the run's blocks together.
func (run *blockRun) size() (n int64) {
	for i := range run.blocks {
		n += run.blocks[i].ref.size
	}
	return n
}

func (run *blockRun) reset() {
	clear(run.blocks) // do not keep used blocks in memory
	run.blocks, run.next, run.cold, run.buf = run.blocks[:0], 0, false, nil
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
