package sst

import (
	"math"

	"github.com/annalsdb/annals/internal/base"
)

// Group is a key's records in one data block: what a compaction moves at a time. The
// deltas of its columns do not depend on where it lies, so that a Writer appends it
// without looking at its records.
//
// A GroupIter makes it; it aliases the iterator's memory.
type Group struct {
	Key     []byte
	Records int // at least 1
	// Of its first and its last record. Sequences ascend and timestamps do not fall
	// from one record to the next.
	FirstSequence, LastSequence   uint64
	FirstTimestamp, LastTimestamp int64

	// Columns, as docs/format/sst.md has them: deltas of the second and of later
	// records, lengths of all values, the values.
	seqs, times, lengths, values []byte

	// frame is the stored block of which the group is all there is, or nil.
	frame *storedBlock
}

// storedBlock is the verified frame of a data block without what depends on its place.
type storedBlock struct {
	payload []byte
	codec   codec
	decoded int
}

// Bytes is the size of the records: of their keys, one for each, and values.
func (g *Group) Bytes() uint64 { return uint64(g.Records)*uint64(len(g.Key)) + uint64(len(g.values)) }

// StoredBytes bounds what the group adds to the data blocks of a table.
func (g *Group) StoredBytes() int {
	if g.frame != nil {
		return max(len(g.frame.payload), g.decodedBytes()) + trailerSize
	}
	return g.decodedBytes()
}

// decodedBytes bounds what the group takes in the decoded form of a block.
func (g *Group) decodedBytes() int {
	return groupOverhead + len(g.Key) + len(g.seqs) + len(g.times) + len(g.lengths) + len(g.values)
}

// decode makes g the group at pos of data, validated like parseBlock does, and returns where
// it ends, or what is wrong with it.
func (g *Group) decode(data []byte, pos int) (end int, reason string) {
	const runsPast = "has a group that runs past its end"
	n, pos := uvarint(data, pos)
	if pos < 0 || n > MaxKeyBytes || n > uint64(len(data)-pos) {
		return 0, runsPast
	}
	g.Key = data[pos : pos+int(n) : pos+int(n)]
	count, pos := uvarint(data, pos+int(n))
	if pos < 0 || count == 0 || count > uint64(len(data)) {
		return 0, runsPast
	}
	g.Records, g.frame = int(count), nil
	if g.FirstSequence, pos = uvarint(data, pos); pos < 0 {
		return 0, runsPast
	}
	ts, pos := uvarint(data, pos)
	if pos < 0 {
		return 0, runsPast
	}
	g.FirstTimestamp = unzigzag(ts)
	g.LastSequence, g.LastTimestamp = g.FirstSequence, g.FirstTimestamp
	if count > 1 {
		return g.decodeColumns(data, pos)
	}
	size, next := uvarint(data, pos)
	if next < 0 || size > MaxValueBytes || size > uint64(len(data)-next) {
		return 0, runsPast
	}
	if g.FirstSequence == base.MaxSequence {
		return 0, "has a sequence above the highest"
	}
	end = next + int(size)
	g.seqs, g.times, g.lengths, g.values = nil, nil, data[pos:next], data[next:end]
	return end, ""
}

// decodeColumns decodes the columns at pos of a group of several records.
func (g *Group) decodeColumns(data []byte, pos int) (end int, reason string) {
	var size [3]uint64
	for i := range size {
		if size[i], pos = uvarint(data, pos); pos < 0 || size[i] > uint64(len(data)) { // their sum does not wrap
			return 0, "has a group that runs past its end"
		}
	}
	if size[0]+size[1]+size[2] > uint64(len(data)-pos) {
		return 0, "has a group that runs past its end"
	}
	tsPos := pos + int(size[0])
	lenPos := tsPos + int(size[1])
	valuePos := lenPos + int(size[2])
	g.seqs, g.times, g.lengths = data[pos:tsPos], data[tsPos:lenPos], data[lenPos:valuePos]
	if g.Records > len(g.lengths) {
		return 0, "has a group with more records than lengths"
	}
	n, reason := g.walk(len(data) - valuePos)
	if reason != "" {
		return 0, reason
	}
	g.values = data[valuePos : valuePos+n]
	return valuePos + n, ""
}

// walk checks the columns of a group whose values lie in left bytes, finds its last record
// and returns the size of all values, or what is wrong.
func (g *Group) walk(left int) (size int, reason string) {
	seq, ts := g.FirstSequence, g.FirstTimestamp
	var s, t, l int
	for i := range g.Records {
		if i > 0 {
			var d uint64
			if d, s = uvarint(g.seqs, s); s < 0 || d == 0 || d > math.MaxUint64-seq {
				return 0, "has sequences that do not ascend"
			}
			seq += d
			if d, t = uvarint(g.times, t); t < 0 || d > uint64(math.MaxInt64)-uint64(ts) {
				return 0, "has timestamps that fall"
			}
			ts += int64(d)
		}
		var n uint64
		if n, l = uvarint(g.lengths, l); l < 0 || n > MaxValueBytes || n > uint64(left-size) {
			return 0, "has a value that runs past its end"
		}
		size += int(n)
	}
	if seq == base.MaxSequence {
		return 0, "has a sequence above the highest"
	}
	if s != len(g.seqs) || t != len(g.times) || l != len(g.lengths) {
		return 0, "has a group with too long a column"
	}
	g.LastSequence, g.LastTimestamp = seq, ts
	return size, ""
}

// groupCursor walks the records of a valid group. It is before the first one at first.
type groupCursor struct {
	g                        *Group
	i                        int // ordinal of the current record, from 1
	seq                      uint64
	ts                       int64
	seqs, times, lens, value int // what comes after the current record in the columns
	size                     int // of the current value
}

// next moves to the next record, or reports that there is none.
func (c *groupCursor) next() bool {
	g := c.g
	if c.i == g.Records {
		return false
	}
	var d uint64
	if c.i == 0 {
		c.seq, c.ts = g.FirstSequence, g.FirstTimestamp
	} else {
		d, c.seqs = uvarint(g.seqs, c.seqs)
		c.seq += d
		d, c.times = uvarint(g.times, c.times)
		c.ts += int64(d)
	}
	d, c.lens = uvarint(g.lengths, c.lens)
	c.size = int(d)
	c.value += c.size
	c.i++
	return true
}

// data returns the value of the current record.
func (c *groupCursor) data() []byte { return c.g.values[c.value-c.size : c.value] }

// below returns the part of g before its first record at or above seq, and the part
// from that one on. A part without records is one with Records 0.
func (g *Group) below(seq uint64) (low, high Group) {
	switch {
	case seq <= g.FirstSequence:
		return Group{}, *g
	case seq > g.LastSequence:
		return *g, Group{}
	}
	c := groupCursor{g: g}
	c.next()
	for {
		before := c
		c.next() // there is one: the last is not below seq
		if c.seq < seq {
			continue
		}
		low, high = *g, *g
		low.Records, low.LastSequence, low.LastTimestamp, low.frame = before.i, before.seq, before.ts, nil
		low.seqs, low.times = g.seqs[:before.seqs], g.times[:before.times]
		low.lengths, low.values = g.lengths[:before.lens], g.values[:before.value]
		high.Records, high.FirstSequence, high.FirstTimestamp, high.frame = g.Records-before.i, c.seq, c.ts, nil
		high.seqs, high.times = g.seqs[c.seqs:], g.times[c.times:]
		high.lengths, high.values = g.lengths[before.lens:], g.values[before.value:]
		return low, high
	}
}
