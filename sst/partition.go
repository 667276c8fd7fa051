package sst

import (
	"bytes"

	"github.com/annalsdb/annals/internal/base"
)

// partition is a finished block of metadata that waits for its place at the end
// of the table: its checksum depends on where it will lie.
type partition struct {
	payload []byte
	codec   codec
	decoded int
	// Its entry in the top index, but for offset and size.
	separator []byte
	fields    [maxFields]uint64
}

// partitioner collects the partitions of the directory, the index or the filter.
type partitioner struct {
	parts  []partition
	stored int // bytes of the finished ones, with their trailers
}

// open begins a partition whose first key is key and before which the table's
// last key is before. Numbers that belong to the separator must already be in fields.
func (p *partitioner) open(before, key []byte, fields [maxFields]uint64) {
	part := partition{fields: fields}
	switch {
	case len(p.parts) == 0:
		part.fields[fieldSequence], part.fields[fieldTime] = 0, 0
	case bytes.Equal(before, key):
		part.separator = bytes.Clone(key)
	default:
		// The shortest prefix of key that sorts above before.
		part.separator = bytes.Clone(key[:sharedPrefix(before, key)+1])
		part.fields[fieldSequence], part.fields[fieldTime] = 0, 0
	}
	p.parts = append(p.parts, part)
}

// close stores data as the contents of the partition that was opened last.
func (p *partitioner) close(payload []byte, c codec, decoded int) {
	part := &p.parts[len(p.parts)-1]
	part.payload, part.codec, part.decoded = payload, c, decoded
	p.stored += len(payload) + trailerSize
}

// closeList closes the last partition with the entries of l, compressed.
func (p *partitioner) closeList(l *listBuilder, scratch []byte, pack *packer) []byte {
	scratch = l.appendTo(scratch[:0])
	payload, c := pack.append(nil, scratch)
	p.close(payload, c, len(scratch))
	return scratch
}

// appendTo lays the partitions down behind the table body and returns it with
// their top index.
func (p *partitioner) appendTo(body []byte, kind listKind, id base.ULID) ([]byte, *listBuilder) {
	top := &listBuilder{kind: kind}
	for i := range p.parts {
		part := &p.parts[i]
		start := len(body)
		body = append(body, part.payload...)
		body = appendTrailer(body, start, part.codec, part.decoded, id, int64(start))
		part.fields[fieldOffset], part.fields[fieldSize] = uint64(start), uint64(len(body)-start)
		top.add(part.separator, part.fields)
	}
	return body, top
}
