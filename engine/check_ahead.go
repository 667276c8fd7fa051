package engine

import (
	"context"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
)

// Bounds of what Check holds of tables to which it has not come yet (I9). A store answers a request
// after many milliseconds and many requests at the same time: so tables are fetched in pieces, ahead of
// the one goroutine that looks at them in the order of the log. What it finds, and in which order, does not depend on
// which answer comes first.
const (
	// aheadPiece is how much one request reads.
	aheadPiece = 4 << 20
	// aheadBytes is what all pieces hold together, and aheadPieces how many there are at most.
	aheadBytes  = 64 << 20
	aheadPieces = 32
	// aheadMeta is the largest metadata of a table that is fetched ahead: it is wanted from the first to the last
	// record, so that it stays. Of a table with more, metadata is read as it is wanted.
	aheadMeta = 16 << 20
)

// aheadReader fetches tables before they are looked at. It belongs to one goroutine.
type aheadReader struct {
	ctx    context.Context
	cancel context.CancelFunc
	tables *tables

	expected []*manifest.Table // in order, not begun
	begun    []*aheadTable     // in order
	bytes    int64             // of all pieces that are held or under way
	pieces   int
	running  chan struct{} // a token for each request under way
}

func newAheadReader(ctx context.Context, ts *tables) *aheadReader {
	a := &aheadReader{tables: ts, running: make(chan struct{}, aheadPieces)}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// close ends what is under way and waits for it.
func (a *aheadReader) close() {
	a.cancel()
	for range cap(a.running) {
		a.running <- struct{}{}
	}
}

// expect says which tables will be looked at next, behind those that were expected before.
func (a *aheadReader) expect(tables []*manifest.Table) {
	a.expected = append(a.expected, tables...)
	a.fill()
}

// next returns the table to be looked at now. Expected ones before it will not be looked at any more.
func (a *aheadReader) next(t *manifest.Table) *aheadTable {
	id := t.GetRef().ID()
	for len(a.begun) > 0 && a.begun[0].id != id {
		a.done(a.begun[0])
	}
	if len(a.begun) == 0 {
		for len(a.expected) > 0 && a.expected[0].GetRef().ID() != id {
			a.expected = a.expected[1:]
		}
		if len(a.expected) == 0 {
			a.expected = append(a.expected, t)
		}
		a.begin()
	}
	a.fill()
	return a.begun[0]
}

// done forgets the first table.
func (a *aheadReader) done(t *aheadTable) {
	for _, p := range t.pieces {
		a.forget(p)
	}
	t.pieces = nil
	a.begun = a.begun[1:]
}

// begin makes the first expected table one that is fetched.
func (a *aheadReader) begin() {
	line := a.expected[0]
	a.expected = a.expected[1:]
	id := line.GetRef().ID()
	t := &aheadTable{reader: a, id: id, name: id.Name(), size: int64(line.GetSize()), meta: int64(line.GetMetaOffset())}
	t.metaNext = t.meta
	if t.size-t.meta > aheadMeta {
		t.metaNext = t.size
	}
	a.begun = append(a.begun, t)
}

// fill asks for pieces, those that are wanted first first, as far as there is room.
func (a *aheadReader) fill() {
	for i := 0; ; {
		if i == len(a.begun) {
			if len(a.expected) == 0 || a.pieces >= aheadPieces || a.bytes >= aheadBytes {
				return
			}
			a.begin()
		}
		off, n := a.begun[i].wants()
		switch {
		case n == 0:
			i++
		case a.pieces >= aheadPieces || a.bytes+n > aheadBytes:
			return
		default:
			a.fetch(a.begun[i], off, n)
		}
	}
}

// fetch asks for one piece of a table.
func (a *aheadReader) fetch(t *aheadTable, off, n int64) {
	p := &aheadOne{off: off, n: n, done: make(chan struct{})}
	t.pieces = append(t.pieces, p)
	t.asked(off, n)
	a.pieces, a.bytes = a.pieces+1, a.bytes+n
	a.running <- struct{}{} // waits only for requests of tables that were given up
	a.tables.env.Go("check read ahead", func() {
		defer func() { <-a.running }()
		defer close(p.done)
		obj, err := a.tables.readSized(a.ctx, t.name, off, n)
		p.body, p.size, p.err = obj.Body, obj.Size, err
	})
}

func (a *aheadReader) forget(p *aheadOne) { a.pieces, a.bytes = a.pieces-1, a.bytes-p.n }

// aheadTable is a table that is fetched in pieces. It is the source of its reader, for the goroutine that looks at it.
type aheadTable struct {
	reader     *aheadReader
	id         base.ObjectID
	name       string
	size, meta int64 // of the object, and where its metadata begins, by its line

	pieces   []*aheadOne // that are held or under way
	metaNext int64       // metadata was asked for up to here
	dataNext int64       // and data up to here
	actual   int64       // the size that the store tells; 0: not yet
}

// aheadOne is one piece. What follows done is set when that is closed.
type aheadOne struct {
	off, n int64
	done   chan struct{}
	body   []byte
	size   int64
	err    error
}

// wants returns the piece that is to be asked for next, of 0 bytes if there is none. Metadata comes first: a table is opened by it.
func (t *aheadTable) wants() (off, n int64) {
	switch {
	case t.meta <= 0 || t.meta >= t.size: // no table is like that, and its reader will say so
		return 0, 0
	case t.dataNext == 0 && t.metaNext == t.meta && t.size <= aheadPiece:
		return 0, t.size
	case t.metaNext < t.size:
		return t.metaNext, min(aheadPiece, t.size-t.metaNext)
	}
	return t.dataNext, min(aheadPiece, t.meta-t.dataNext)
}

// asked notes that a range was asked for.
func (t *aheadTable) asked(off, n int64) {
	if off < t.meta {
		t.dataNext = max(t.dataNext, min(off+n, t.meta))
	}
	if off+n > t.meta {
		t.metaNext = max(t.metaNext, off+n)
	}
}

// ReadRange implements sst.RangeReader. Data is read once, in order: what lies before it is dropped.
func (t *aheadTable) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	if off < t.meta {
		t.dropBefore(off)
	}
	var body []byte
	for at := off; at < off+n; {
		p := t.holding(at)
		if p == nil {
			return t.readNow(ctx, off, n)
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if p.size > 0 {
			t.actual = p.size
		}
		if p.err != nil {
			return nil, p.err
		}
		end := min(off+n, p.off+p.n)
		part := p.body[at-p.off : end-p.off : end-p.off]
		if at == off && end == off+n {
			body = part
		} else {
			body = append(body, part...)
		}
		at = end
	}
	t.reader.fill()
	return body, nil
}

// readNow reads a range that was not fetched ahead.
func (t *aheadTable) readNow(ctx context.Context, off, n int64) ([]byte, error) {
	t.asked(off, n)
	obj, err := t.reader.tables.readSized(ctx, t.name, off, n)
	if obj.Size > 0 {
		t.actual = obj.Size
	}
	return obj.Body, err
}

func (t *aheadTable) holding(at int64) *aheadOne {
	for _, p := range t.pieces {
		if p.off <= at && at < p.off+p.n {
			return p
		}
	}
	return nil
}

// dropBefore forgets pieces of data that end at or before off.
func (t *aheadTable) dropBefore(off int64) {
	kept := t.pieces[:0]
	for _, p := range t.pieces {
		if p.off+p.n <= off {
			t.reader.forget(p)
			continue
		}
		kept = append(kept, p)
	}
	clear(t.pieces[len(kept):])
	t.pieces = kept
}
