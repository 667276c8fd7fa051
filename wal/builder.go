package wal

import (
	"fmt"
	"math"
	"slices"

	"github.com/annalsdb/annals/internal/base"
)

// Builder makes one record object. Entries are appended to one buffer; nothing is
// allocated per record. Not safe for concurrent use.
//
// Its arguments come from the engine, not from a store: whatever would make an
// object that Decode refuses is a programmer's error and panics.
type Builder struct {
	header    rawHeader
	buf       []byte
	records   int
	timestamp int64 // of the last batch
	finished  bool
}

// NewBuilder begins an object. h.End is ignored: it follows from the batches, which
// begin at h.First. The object is built in buf's memory, which grows as needed;
// buf may be nil.
func NewBuilder(h Header, buf []byte) *Builder {
	if h.Epoch == 0 || h.ID == 0 || h.First < h.PrevEnd || h.Durable >= h.ID {
		panic(fmt.Sprintf("wal: build object %d/%d from sequence %d after %d", h.Epoch, h.ID, h.First, h.PrevEnd))
	}
	h.End = h.First
	b := &Builder{header: rawHeader{Header: h}, timestamp: math.MinInt64}
	b.buf = slices.Grow(buf[:0], minRecordSize)[:headerSize]
	return b
}

// BatchSize returns the bytes that AddBatch would add for recs.
func BatchSize(recs []base.Record) int {
	n := entryHeaderSize + batchHeaderSize + recordHeaderSize*len(recs)
	for i := range recs {
		n += recs[i].Size()
	}
	return n
}

// AddBatch adds the records of one append: sequences from first, which must be
// End(), all with the given timestamp, which must not be below the last batch's.
// The Sequence and Timestamp of recs are ignored; their bytes are copied.
func (b *Builder) AddBatch(first uint64, timestamp int64, recs []base.Record) {
	n := uint64(len(recs))
	switch {
	case n == 0 || first != b.header.End || first+n < first:
		panic(fmt.Sprintf("wal: add batch of %d records at sequence %d, object ends at %d", n, first, b.header.End))
	case timestamp < b.timestamp:
		panic(fmt.Sprintf("wal: add batch with timestamp %d after %d", timestamp, b.timestamp))
	}
	buf := b.begin(EntryBatch, BatchSize(recs))
	buf = le.AppendUint64(buf, first)
	buf = le.AppendUint64(buf, uint64(timestamp))
	buf = le.AppendUint32(buf, uint32(n))
	for i := range recs {
		r := &recs[i]
		buf = le.AppendUint64(buf, uint64(uint32(len(r.Key)))|uint64(len(r.Value))<<32)
		buf = append(buf, r.Key...)
		buf = append(buf, r.Value...)
	}
	b.buf = buf
	b.header.End = first + n
	b.records += len(recs)
	b.timestamp = timestamp
}

// AddCursor adds a change to a consumer's cursors.
func (b *Builder) AddCursor(c CursorChange) {
	badKey := c.Op == CursorDeleteConsumer && len(c.Key) != 0
	if c.Op < CursorSet || c.Op > CursorDeleteConsumer || badKey || (c.Op != CursorSet && c.Next != 0) {
		panic(fmt.Sprintf("wal: add cursor change %d with key of %d bytes and next %d", c.Op, len(c.Key), c.Next))
	}
	buf := b.begin(EntryCursor, entryHeaderSize+cursorHeaderSize+len(c.Consumer)+len(c.Key))
	buf = le.AppendUint32(buf, uint32(c.Op))
	buf = le.AppendUint32(buf, uint32(len(c.Consumer)))
	buf = le.AppendUint32(buf, uint32(len(c.Key)))
	buf = le.AppendUint64(buf, c.Next)
	buf = append(buf, c.Consumer...)
	b.buf = append(buf, c.Key...)
}

// AddProducer adds the mark of a batch that is already in this object.
func (b *Builder) AddProducer(p ProducerMark) {
	if p.Count == 0 || p.First < b.header.First || p.End() < p.First || p.End() > b.header.End {
		panic(fmt.Sprintf("wal: add producer mark of sequences [%d, %d) to object with [%d, %d)",
			p.First, p.End(), b.header.First, b.header.End))
	}
	buf := b.begin(EntryProducer, entryHeaderSize+producerFixedSize+len(p.Producer))
	buf = le.AppendUint32(buf, uint32(len(p.Producer)))
	buf = le.AppendUint32(buf, p.Count)
	buf = le.AppendUint64(buf, p.Sequence)
	buf = le.AppendUint64(buf, p.First)
	buf = le.AppendUint64(buf, uint64(p.Timestamp))
	b.buf = append(buf, p.Producer...)
}

// begin makes room for an entry of size bytes and appends its header.
func (b *Builder) begin(t EntryType, size int) []byte {
	if b.finished {
		panic("wal: add to a finished object")
	}
	if size > MaxObjectBytes-b.Size() {
		panic(fmt.Sprintf("wal: object of %d bytes cannot take an entry of %d", b.Size(), size))
	}
	b.header.entries++
	// Room for the checksum too, so that Finish does not move the object.
	buf := slices.Grow(b.buf, size+checksumSize)
	return le.AppendUint64(buf, uint64(t)|uint64(size-entryHeaderSize)<<32)
}

// Size returns the bytes that the object would have if it were finished now.
func (b *Builder) Size() int {
	if b.finished {
		return len(b.buf)
	}
	return len(b.buf) + checksumSize
}

// Records returns the number of records added.
func (b *Builder) Records() int { return b.records }

// Empty reports whether nothing was added, neither records nor state changes.
func (b *Builder) Empty() bool { return b.header.entries == 0 }

// End returns the sequence that the next batch must begin with.
func (b *Builder) End() uint64 { return b.header.End }

// Header returns the header as it would be if the object were finished now.
func (b *Builder) Header() Header { return b.header.Header }

// Finish sets the length and the checksum and returns the object. It must be called
// once; the builder then no longer refers to the returned bytes for writing.
func (b *Builder) Finish() []byte {
	if b.finished {
		panic("wal: finish an object twice")
	}
	b.header.length = uint64(b.Size())
	b.header.marshal(b.buf)
	b.buf = le.AppendUint64(b.buf, base.Checksum(b.header.seed(b.header.Epoch, b.header.ID), b.buf))
	b.finished = true
	return b.buf
}
