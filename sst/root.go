package sst

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/annalsdb/annals/internal/base"
)

// Properties describe a whole table.
type Properties struct {
	// Segment is the segment for which the table was written.
	Segment uint32
	// Records, Keys and Blocks count records, distinct keys and data blocks.
	// Bytes are those of the records' keys and values, before compression; a
	// key counts with each of its records.
	Records, Keys, Bytes, Blocks uint64
	// BlockBytes is the size to which decoded data blocks were cut.
	BlockBytes uint64
	// FirstSequence and LastSequence are the lowest and the highest of all records.
	FirstSequence, LastSequence uint64
	// FirstTimestamp and LastTimestamp are the lowest and the highest of all
	// records, in milliseconds since the Unix epoch.
	FirstTimestamp, LastTimestamp int64
	// FirstKey and LastKey are the lowest and the highest key. Do not change them.
	FirstKey, LastKey []byte
}

// rootBlock is what Open reads: the root, and the bytes at the end of the file
// that came with it. Immutable.
type rootBlock struct {
	props                    Properties
	directory, index, filter *entryList
	rootOffset               int64
	// tail is the stored end of the file from tailOffset on. Metadata blocks in
	// it need no further read.
	tail       []byte
	tailOffset int64
}

// MemoryBytes implements Block.
func (r *rootBlock) MemoryBytes() int {
	return 256 + len(r.props.FirstKey) + len(r.props.LastKey) + len(r.tail) +
		r.directory.memoryBytes() + r.index.memoryBytes() + r.filter.memoryBytes()
}

// append encodes the properties, the first part of the root.
func (p *Properties) append(b []byte) []byte {
	for _, v := range []uint64{
		uint64(p.Segment), p.Records, p.Keys, p.Bytes, p.Blocks, p.BlockBytes,
		p.FirstSequence, p.LastSequence, zigzag(p.FirstTimestamp), zigzag(p.LastTimestamp),
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendBytes(b, p.FirstKey)
	return appendBytes(b, p.LastKey)
}

func appendBytes(b, s []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// validate returns what cannot be true of any table, or "".
func (p *Properties) validate() string {
	switch {
	case p.Keys == 0 || p.Blocks == 0 || p.Records < p.Keys || p.Records < p.Blocks:
		return "has impossible counts"
	case p.FirstSequence > p.LastSequence || p.LastSequence == base.MaxSequence:
		return "has impossible sequences"
	case p.LastSequence-p.FirstSequence < p.Records-1:
		return "has more records than sequences"
	case p.FirstTimestamp > p.LastTimestamp:
		return "has impossible timestamps"
	case bytes.Compare(p.FirstKey, p.LastKey) > 0 || (p.Keys == 1) != bytes.Equal(p.FirstKey, p.LastKey):
		return "has impossible keys"
	}
	return ""
}

// rootDecoder reads the fields of a root; bad is set at the first that is wrong.
type rootDecoder struct {
	b   []byte
	pos int
	bad bool
}

func (d *rootDecoder) number() uint64 {
	if d.bad {
		return 0
	}
	v, pos := uvarint(d.b, d.pos)
	if pos < 0 {
		d.bad = true
		return 0
	}
	d.pos = pos
	return v
}

func (d *rootDecoder) bytes() []byte {
	n := d.number()
	if d.bad || n > uint64(len(d.b)-d.pos) {
		d.bad = true
		return nil
	}
	s := d.b[d.pos : d.pos+int(n) : d.pos+int(n)]
	d.pos += int(n)
	return s
}

// parseRoot decodes and validates the decoded form of the root of a table whose
// metadata begins at metaOffset and whose root lies at rootOffset. It returns
// what is wrong, or "".
func parseRoot(b []byte, metaOffset, rootOffset int64) (*rootBlock, string) {
	d := rootDecoder{b: b}
	r := &rootBlock{rootOffset: rootOffset}
	p := &r.props
	segment := d.number()
	p.Records, p.Keys, p.Bytes, p.Blocks, p.BlockBytes = d.number(), d.number(), d.number(), d.number(), d.number()
	p.FirstSequence, p.LastSequence = d.number(), d.number()
	p.FirstTimestamp, p.LastTimestamp = unzigzag(d.number()), unzigzag(d.number())
	p.FirstKey, p.LastKey = d.bytes(), d.bytes()
	lists := [3][]byte{d.bytes(), d.bytes(), d.bytes()}
	if d.bad || d.pos != len(b) || segment > math.MaxUint32 {
		return nil, "the root has a field of a wrong length"
	}
	p.Segment = uint32(segment)
	if reason := p.validate(); reason != "" {
		return nil, "the root " + reason
	}
	next := uint64(metaOffset)
	for i, t := range []struct {
		name  string
		kind  listKind
		list  **entryList
		check func(*rootBlock, *entryCursor) bool
	}{
		{"directory", plainTopKind, &r.directory, checkKeysBefore},
		{"index", indexTopKind, &r.index, checkIndexTop},
		{"filter", plainTopKind, &r.filter, checkKeysBefore},
	} {
		list, reason := parseEntries(lists[i], t.kind)
		if reason != "" {
			return nil, "the " + t.name + "'s top " + reason
		}
		var c entryCursor
		for c.reset(list); c.forward(); {
			if c.f[fieldOffset] != next || c.f[fieldSize] < trailerSize || c.f[fieldSize] > uint64(rootOffset)-next {
				return nil, "the " + t.name + "'s partitions do not follow one another"
			}
			// Searches rely on it that the first separator is below everything.
			if split := c.f[fieldSequence] != 0 || c.f[fieldTime] != 0; c.i == 0 && (split || len(c.key) > 0) || split && !t.kind.sameKey {
				return nil, "the " + t.name + "'s top has a wrong separator"
			}
			if !t.check(r, &c) || (c.i == 0) != (c.f[fieldRecords] == 0) {
				return nil, "the " + t.name + "'s top has wrong counts"
			}
			next += c.f[fieldSize]
		}
		*t.list = list
	}
	if next != uint64(rootOffset) {
		return nil, "the partitions do not end at the root"
	}
	return r, ""
}

func checkKeysBefore(r *rootBlock, c *entryCursor) bool { return c.f[fieldKeys] < r.props.Keys }

func checkIndexTop(r *rootBlock, c *entryCursor) bool {
	return c.f[fieldRecords] < r.props.Records && c.f[fieldBlocks] < r.props.Blocks && c.f[fieldBytes] <= r.props.Bytes
}
