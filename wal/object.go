package wal

import (
	"fmt"
	"iter"

	"github.com/annalsdb/annals/internal/base"
)

// Object is a decoded WAL object: a fence or a record object.
//
// It aliases the body that it was decoded from, which must not change while the
// object is in use. Safe for concurrent reading.
type Object struct {
	// Header of a record object. A fence has only Identity, Epoch and ID.
	Header
	// Fence says that the object ends its epoch; it then has no entries.
	Fence bool
	// Fencer is the epoch of the writer that put the fence.
	Fencer uint64
	// FirstTimestamp and LastTimestamp are those of the first and the last batch;
	// without a batch (First == End) both are 0 and mean nothing.
	FirstTimestamp, LastTimestamp int64

	entries int
	data    []byte // the entries, checked
}

// Len returns the number of entries.
func (o *Object) Len() int { return o.entries }

// Records returns the number of records in all batches.
func (o *Object) Records() uint64 { return o.End - o.First }

// Entries yields the object's entries in the order in which they were added.
func (o *Object) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		d := decoder{name: "decoded WAL object", body: o.data}
		for at := 0; at < len(o.data); {
			e, next, err := d.entry(at)
			if err != nil {
				panic(fmt.Sprintf("wal: the body of a decoded object was changed: %v", err))
			}
			if !yield(e) {
				return
			}
			at = next
		}
	}
}

// Decode checks every byte of an object that was read from the store and returns
// what it holds. The object must belong to want and be number id of epoch. name is
// used in errors only. Errors match base.ErrCorrupt, or ErrVersion. The returned
// object aliases body; beside it only names of at most body's length are allocated.
func Decode(name string, want Identity, epoch, id uint64, body []byte) (*Object, error) {
	d := decoder{name: name, body: body}
	if err := d.frame(want.seed(epoch, id)); err != nil {
		return nil, err
	}
	o := &Object{}
	var err error
	if len(body) == FenceSize {
		err = d.fence(o)
	} else {
		err = d.record(o)
	}
	if err != nil {
		return nil, err
	}
	switch {
	// The checksum's seed has made sure already; this does not rely on that.
	case o.Identity != want:
		return nil, d.corrupt(offTree, "belongs to tree %d of log %x, want tree %d of log %x", o.Tree, o.LogID, want.Tree, want.LogID)
	case o.Epoch != epoch || o.ID != id:
		return nil, d.corrupt(offTree, "is object %d/%d, want %d/%d", o.Epoch, o.ID, epoch, id)
	}
	return o, nil
}

// Built returns the object that a Builder of this process made, without checking its bytes: body must be what
// Finish returned. It costs nothing. Its timestamps are not set, and it aliases body.
func Built(body []byte) *Object {
	var h rawHeader
	h.unmarshal(body)
	return &Object{Header: h.Header, entries: int(h.entries), data: body[headerSize : len(body)-checksumSize]}
}

// decoder reads one body. Offsets are into body; every method checks the length
// before it slices (I8).
type decoder struct {
	name string
	body []byte
}

func (d *decoder) corrupt(at int, format string, args ...any) error {
	return base.Corruptf(d.name, int64(at), format, args...)
}

// frame checks what every format version keeps: sizes, magic, checksum, version,
// in this order, so that damage is never reported as an unknown version.
func (d *decoder) frame(seed uint64) error {
	n := len(d.body)
	magic := recordMagic
	switch {
	case n == FenceSize:
		magic = fenceMagic
	case n < FenceSize:
		return d.corrupt(n, "%d bytes are fewer than any WAL object has", n)
	case n > MaxObjectBytes:
		return d.corrupt(offLength, "%d bytes are more than any WAL object has", n)
	}
	if got := d.body[:len(magic)]; string(got) != magic {
		return d.corrupt(offMagic, "magic is %q, want %q", got, magic)
	}
	at := n - checksumSize
	if got, want := le.Uint64(d.body[at:]), base.Checksum(seed, d.body[:at]); got != want {
		return d.corrupt(at, "checksum is %016x, want %016x: damaged, or another object", got, want)
	}
	if v := le.Uint32(d.body[offVersion:]); v != Version {
		return fmt.Errorf("decode %s: %w: it has version %d, this binary knows version %d", d.name, ErrVersion, v, Version)
	}
	return nil
}

// fence decodes a body of FenceSize bytes.
func (d *decoder) fence(o *Object) error {
	b := d.body
	o.Fence = true
	o.Tree = le.Uint32(b[offTree:])
	o.LogID = [16]byte(b[offLogID:])
	o.Epoch = le.Uint64(b[offFenceEpoch:])
	o.ID = le.Uint64(b[offFenceID:])
	o.Fencer = le.Uint64(b[offFencer:])
	if o.Fencer <= o.Epoch {
		return d.corrupt(offFencer, "epoch %d is fenced by epoch %d", o.Epoch, o.Fencer)
	}
	return nil
}

// record decodes a body that is not of FenceSize.
func (d *decoder) record(o *Object) error {
	n := len(d.body)
	if n < minRecordSize {
		return d.corrupt(n, "%d bytes are fewer than a record object has", n)
	}
	var h rawHeader
	h.unmarshal(d.body)
	switch {
	case h.length != uint64(n):
		return d.corrupt(offLength, "length is %d, the object has %d bytes", h.length, n)
	case h.Durable >= h.ID:
		return d.corrupt(offDurable, "object %d says that %d is durable", h.ID, h.Durable)
	case h.First < h.PrevEnd || h.End < h.First:
		return d.corrupt(offFirst, "sequences [%d, %d) after %d", h.First, h.End, h.PrevEnd)
	case d.body[offCodec] != codecNone:
		return d.corrupt(offCodec, "unknown codec %d", d.body[offCodec])
	}
	for at := offReserved; at < offDurable; at++ {
		if d.body[at] != 0 {
			return d.corrupt(at, "reserved byte is %d", d.body[at])
		}
	}
	o.Header = h.Header
	return d.entries(o, h.entries)
}

// entries checks that the count entries fill the body exactly and that their
// batches cover the object's sequences.
func (d *decoder) entries(o *Object, count uint32) error {
	end := len(d.body) - checksumSize
	sub := decoder{name: d.name, body: d.body[:end]}
	next, batches, seen := o.First, 0, uint32(0)
	at := headerSize
	for at < end {
		e, after, err := sub.entry(at)
		if err != nil {
			return err
		}
		switch e.Type {
		case EntryBatch:
			if e.Batch.First != next || e.Batch.End() < next || e.Batch.End() > o.End {
				return d.corrupt(at, "batch of %d records at sequence %d, want %d and at most to %d", e.Batch.Count, e.Batch.First, next, o.End)
			}
			if batches == 0 {
				o.FirstTimestamp = e.Batch.Timestamp
			} else if e.Batch.Timestamp < o.LastTimestamp {
				return d.corrupt(at, "timestamp %d after %d", e.Batch.Timestamp, o.LastTimestamp)
			}
			o.LastTimestamp = e.Batch.Timestamp
			next = e.Batch.End()
			batches++
		case EntryProducer:
			p := &e.Producer
			if p.First < o.First || p.End() < p.First || p.End() > o.End {
				return d.corrupt(at, "producer mark of %d records at sequence %d in object with [%d, %d)", p.Count, p.First, o.First, o.End)
			}
		}
		at = after
		seen++
	}
	if seen != count {
		return d.corrupt(offEntries, "entry count is %d, the object has %d", count, seen)
	}
	if next != o.End {
		return d.corrupt(offEnd, "batches end at sequence %d, want %d", next, o.End)
	}
	o.entries = int(count)
	o.data = d.body[headerSize:end]
	return nil
}

// entry decodes the entry at an offset and returns the offset behind it. It checks
// the entry by itself, not its place in the object.
func (d *decoder) entry(at int) (e Entry, next int, err error) {
	if len(d.body)-at < entryHeaderSize {
		return e, 0, d.corrupt(at, "%d bytes are left, an entry has %d at least", len(d.body)-at, entryHeaderSize)
	}
	e.Type = EntryType(le.Uint32(d.body[at:]))
	size := uint64(le.Uint32(d.body[at+4:]))
	start := at + entryHeaderSize
	if left := len(d.body) - start; size > uint64(left) {
		return e, 0, d.corrupt(at, "entry of %d bytes, %d are left", size, left)
	}
	next = start + int(size)
	p := d.body[start:next:next]
	switch e.Type {
	case EntryBatch:
		e.Batch, err = d.batch(start, p)
	case EntryCursor:
		e.Cursor, err = d.cursor(start, p)
	case EntryProducer:
		e.Producer, err = d.producer(start, p)
	default:
		err = d.corrupt(at, "unknown entry type %d", uint32(e.Type))
	}
	return e, next, err
}

// batch decodes the payload p of a batch, which lies at offset at.
func (d *decoder) batch(at int, p []byte) (Batch, error) {
	if len(p) < batchHeaderSize {
		return Batch{}, d.corrupt(at, "batch of %d bytes", len(p))
	}
	b := Batch{
		First:     le.Uint64(p),
		Timestamp: int64(le.Uint64(p[8:])),
		Count:     le.Uint32(p[16:]),
		data:      p[batchHeaderSize:],
	}
	if b.Count == 0 {
		return Batch{}, d.corrupt(at, "batch without records")
	}
	rest := b.data
	for i := range b.Count {
		if len(rest) < recordHeaderSize {
			return Batch{}, d.corrupt(at+len(p)-len(rest), "batch ends in record %d of %d", i, b.Count)
		}
		size := uint64(le.Uint32(rest)) + uint64(le.Uint32(rest[4:]))
		if left := len(rest) - recordHeaderSize; size > uint64(left) {
			return Batch{}, d.corrupt(at+len(p)-len(rest), "record of %d bytes, %d are left", size, left)
		}
		rest = rest[recordHeaderSize+int(size):]
	}
	if len(rest) != 0 {
		return Batch{}, d.corrupt(at+len(p)-len(rest), "%d bytes behind the last record of a batch", len(rest))
	}
	return b, nil
}

// cursor decodes the payload p of a cursor change, which lies at offset at.
func (d *decoder) cursor(at int, p []byte) (CursorChange, error) {
	if len(p) < cursorHeaderSize {
		return CursorChange{}, d.corrupt(at, "cursor change of %d bytes", len(p))
	}
	c := CursorChange{Op: CursorOp(le.Uint32(p)), Next: le.Uint64(p[12:])}
	consumer, key := uint64(le.Uint32(p[4:])), uint64(le.Uint32(p[8:]))
	rest := p[cursorHeaderSize:]
	switch {
	case c.Op < CursorSet || c.Op > CursorDeleteConsumer:
		return CursorChange{}, d.corrupt(at, "unknown cursor operation %d", uint32(c.Op))
	case consumer+key != uint64(len(rest)):
		return CursorChange{}, d.corrupt(at, "consumer of %d and key of %d bytes in %d", consumer, key, len(rest))
	case c.Op == CursorDeleteConsumer && key != 0:
		return CursorChange{}, d.corrupt(at, "deletion of a consumer with a key")
	case c.Op != CursorSet && c.Next != 0:
		return CursorChange{}, d.corrupt(at, "deletion of a cursor with next sequence %d", c.Next)
	}
	c.Consumer = string(rest[:consumer])
	c.Key = rest[consumer:]
	return c, nil
}

// producer decodes the payload p of a producer mark, which lies at offset at.
func (d *decoder) producer(at int, p []byte) (ProducerMark, error) {
	if len(p) < producerFixedSize {
		return ProducerMark{}, d.corrupt(at, "producer mark of %d bytes", len(p))
	}
	m := ProducerMark{
		Count:     le.Uint32(p[4:]),
		Sequence:  le.Uint64(p[8:]),
		First:     le.Uint64(p[16:]),
		Timestamp: int64(le.Uint64(p[24:])),
		Producer:  string(p[producerFixedSize:]),
	}
	if n := uint64(le.Uint32(p)); n != uint64(len(m.Producer)) {
		return ProducerMark{}, d.corrupt(at, "producer id of %d bytes in %d", n, len(m.Producer))
	}
	if m.Count == 0 {
		return ProducerMark{}, d.corrupt(at, "producer mark without records")
	}
	return m, nil
}
