package sst

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/annalsdb/annals/internal/base"
)

// blockBuilder encodes one data block at a time. The columns of the group that
// is being built are kept apart until the group ends.
type blockBuilder struct {
	block   []byte // finished groups
	offsets []byte // u32 of each group
	records int    // in the block

	key     []byte // of the current group
	n       int    // records of the current group
	seq, at uint64 // first sequence, zigzag of the first timestamp
	lastSeq uint64
	lastAt  int64
	seqs    []byte
	times   []byte
	lengths []byte
	values  []byte
}

// recordOverhead bounds what a record adds to its group besides its value when
// its sequence and timestamp are near those before; groupOverhead what a group
// adds besides its key. They only steer where blocks are cut.
const (
	recordOverhead = 8
	groupOverhead  = 24
)

// size is about the decoded size of the block so far.
func (b *blockBuilder) size() int {
	s := len(b.block) + len(b.offsets)
	if b.n > 0 {
		s += groupOverhead + len(b.key) + len(b.seqs) + len(b.times) + len(b.lengths) + len(b.values)
	}
	return s
}

// add appends a record to the current group, or begins one.
func (b *blockBuilder) add(newKey bool, key []byte, seq uint64, ts int64, value []byte) {
	if newKey {
		b.endGroup()
	}
	if b.n == 0 {
		b.key = append(b.key[:0], key...)
		b.seq, b.at = seq, zigzag(ts)
	} else {
		b.seqs = binary.AppendUvarint(b.seqs, seq-b.lastSeq)
		b.times = binary.AppendUvarint(b.times, uint64(ts-b.lastAt))
	}
	b.lastSeq, b.lastAt = seq, ts
	b.lengths = binary.AppendUvarint(b.lengths, uint64(len(value)))
	b.values = append(b.values, value...)
	b.n++
	b.records++
}

// addGroup appends the records of a group to the current group, or begins one.
func (b *blockBuilder) addGroup(newKey bool, g *Group) {
	if newKey {
		b.endGroup()
	}
	if b.n == 0 {
		b.key = append(b.key[:0], g.Key...)
		b.seq, b.at = g.FirstSequence, zigzag(g.FirstTimestamp)
	} else {
		b.seqs = binary.AppendUvarint(b.seqs, g.FirstSequence-b.lastSeq)
		b.times = binary.AppendUvarint(b.times, uint64(g.FirstTimestamp-b.lastAt))
	}
	b.seqs = append(b.seqs, g.seqs...)
	b.times = append(b.times, g.times...)
	b.lengths = append(b.lengths, g.lengths...)
	b.values = append(b.values, g.values...)
	b.lastSeq, b.lastAt = g.LastSequence, g.LastTimestamp
	b.n += g.Records
	b.records += g.Records
}

func (b *blockBuilder) endGroup() {
	if b.n == 0 {
		return
	}
	b.offsets = binary.LittleEndian.AppendUint32(b.offsets, uint32(len(b.block)))
	out := binary.AppendUvarint(b.block, uint64(len(b.key)))
	out = append(out, b.key...)
	out = binary.AppendUvarint(out, uint64(b.n))
	out = binary.AppendUvarint(out, b.seq)
	out = binary.AppendUvarint(out, b.at)
	if b.n > 1 {
		out = binary.AppendUvarint(out, uint64(len(b.seqs)))
		out = binary.AppendUvarint(out, uint64(len(b.times)))
		out = binary.AppendUvarint(out, uint64(len(b.lengths)))
	}
	out = append(out, b.seqs...)
	out = append(out, b.times...)
	out = append(out, b.lengths...)
	b.block = append(out, b.values...)
	b.n = 0
	b.seqs, b.times, b.lengths, b.values = b.seqs[:0], b.times[:0], b.lengths[:0], b.values[:0]
}

// finish returns the decoded form of the block. It is valid until the next add.
func (b *blockBuilder) finish() []byte {
	b.endGroup()
	out := append(b.block, b.offsets...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b.offsets)/4))
	b.block, b.offsets, b.records = out[:0], b.offsets[:0], 0
	return out
}

// dataBlock is a validated data block. Immutable: records alias it.
type dataBlock struct {
	data    []byte // the groups
	offsets []byte // u32 of each group
	groups  int
	records uint64
}

// MemoryBytes implements Block.
func (b *dataBlock) MemoryBytes() int { return len(b.data) + len(b.offsets) + 96 }

// parseBlock validates the decoded form of a data block completely, so that
// reading its groups needs no checks. It returns what is wrong, or "".
func parseBlock(b []byte) (*dataBlock, string) {
	if len(b) < 4 {
		return nil, "shorter than its group count"
	}
	groups := uint64(binary.LittleEndian.Uint32(b[len(b)-4:]))
	if groups == 0 || groups*4 > uint64(len(b)-4) {
		return nil, "has a wrong group count"
	}
	end := len(b) - 4 - int(groups)*4
	blk := &dataBlock{data: b[:end:end], offsets: b[end : len(b)-4], groups: int(groups)}
	pos := 0
	var prev []byte
	for i := range blk.groups {
		if blk.offset(i) != pos {
			return nil, "has a group that does not begin where the one before ends"
		}
		g, ok := parseGroup(blk.data, pos)
		if !ok {
			return nil, "has a group that runs past its end"
		}
		if i > 0 && bytes.Compare(prev, g.key) >= 0 {
			return nil, "has groups out of order"
		}
		var reason string
		if pos, reason = g.validate(); reason != "" {
			return nil, reason
		}
		blk.records += uint64(g.count)
		prev = g.key
	}
	if pos != end {
		return nil, "has bytes after its last group"
	}
	return blk, ""
}

func (b *dataBlock) offset(i int) int { return int(binary.LittleEndian.Uint32(b.offsets[4*i:])) }

// keyAt returns the key of group i.
func (b *dataBlock) keyAt(i int) []byte {
	n, pos := uvarint(b.data, b.offset(i))
	return b.data[pos : pos+int(n)]
}

// group returns group i.
func (b *dataBlock) group(i int) group {
	g, _ := parseGroup(b.data, b.offset(i))
	return g
}

// find returns the group of key and its number.
func (b *dataBlock) find(key []byte) (g group, i int, ok bool) {
	lo, hi := 0, b.groups
	for lo < hi {
		mid := (lo + hi) / 2
		switch c := bytes.Compare(b.keyAt(mid), key); {
		case c == 0:
			return b.group(mid), mid, true
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return group{}, lo, false
}

// group is a key's records in one block, with a cursor over them that is before
// the first one at first.
type group struct {
	data  []byte
	key   []byte
	count int

	seq uint64 // of the current record; before the first: of the first
	ts  int64

	i                  int // ordinal of the current record, from 1
	seqPos, tsPos      int // deltas of the next record
	lenPos             int // length of the next value
	valuePos, valueEnd int // the current value

	seqEnd, tsEnd, lenEnd int // ends of the columns
}

// parseGroup decodes the header of the group at pos and checks that its
// columns, but not yet its values, lie inside data.
func parseGroup(data []byte, pos int) (group, bool) {
	var g group
	n, pos := uvarint(data, pos)
	if pos < 0 || n > MaxKeyBytes || n > uint64(len(data)-pos) {
		return g, false
	}
	g.data, g.key = data, data[pos:pos+int(n):pos+int(n)]
	count, pos := uvarint(data, pos+int(n))
	if pos < 0 || count == 0 || count > uint64(len(data)) {
		return g, false
	}
	g.count = int(count)
	if g.seq, pos = uvarint(data, pos); pos < 0 {
		return g, false
	}
	ts, pos := uvarint(data, pos)
	if pos < 0 {
		return g, false
	}
	g.ts = unzigzag(ts)
	var seqs, times, lengths uint64
	if g.count > 1 {
		if seqs, pos = uvarint(data, pos); pos < 0 {
			return g, false
		}
		if times, pos = uvarint(data, pos); pos < 0 {
			return g, false
		}
		if lengths, pos = uvarint(data, pos); pos < 0 {
			return g, false
		}
	} else {
		_, end := uvarint(data, pos)
		if end < 0 {
			return g, false
		}
		lengths = uint64(end - pos)
	}
	left := uint64(len(data) - pos)
	if seqs > left || times > left-seqs || lengths > left-seqs-times {
		return g, false
	}
	g.seqPos = pos
	g.tsPos = pos + int(seqs)
	g.lenPos = g.tsPos + int(times)
	g.valuePos = g.lenPos + int(lengths)
	g.valueEnd = g.valuePos
	g.seqEnd, g.tsEnd, g.lenEnd = g.tsPos, g.lenPos, g.valuePos
	return g, true
}

// validate checks all records of a group that parseGroup returned, and returns
// where the group ends.
func (g group) validate() (end int, reason string) {
	if g.count > g.lenEnd-g.lenPos {
		return 0, "has a group with more records than lengths"
	}
	for i := range g.count {
		if i > 0 {
			d, pos := uvarint(g.data[:g.seqEnd], g.seqPos)
			if pos < 0 || d == 0 || d > math.MaxUint64-g.seq {
				return 0, "has sequences that do not ascend"
			}
			g.seq, g.seqPos = g.seq+d, pos
			t, pos := uvarint(g.data[:g.tsEnd], g.tsPos)
			if pos < 0 || t > uint64(math.MaxInt64)-uint64(g.ts) {
				return 0, "has timestamps that fall"
			}
			g.ts, g.tsPos = g.ts+int64(t), pos
		}
		n, pos := uvarint(g.data[:g.lenEnd], g.lenPos)
		if pos < 0 || n > MaxValueBytes || n > uint64(len(g.data)-g.valuePos) {
			return 0, "has a value that runs past its end"
		}
		g.lenPos, g.valuePos = pos, g.valuePos+int(n)
	}
	if g.seq == base.MaxSequence {
		return 0, "has a sequence above the highest"
	}
	if g.seqPos != g.seqEnd || g.tsPos != g.tsEnd || g.lenPos != g.lenEnd {
		return 0, "has a group with too long a column"
	}
	return g.valuePos, ""
}

// next moves to the next record. It returns false after the last one.
func (g *group) next() bool {
	if g.i >= g.count {
		return false
	}
	var d uint64
	if g.i > 0 {
		d, g.seqPos = uvarint(g.data, g.seqPos)
		g.seq += d
		d, g.tsPos = uvarint(g.data, g.tsPos)
		g.ts += int64(d)
	}
	g.valuePos = g.valueEnd
	d, g.lenPos = uvarint(g.data, g.lenPos)
	g.valueEnd = g.valuePos + int(d)
	g.i++
	return true
}

// seek moves forward to the first record whose sequence is at least seq.
func (g *group) seek(seq uint64) bool {
	for g.next() {
		if g.seq >= seq {
			return true
		}
	}
	return false
}

// record returns the record on which the cursor stands.
func (g *group) record() base.Record {
	return base.Record{
		Key:       g.key,
		Value:     g.data[g.valuePos:g.valueEnd:g.valueEnd],
		Sequence:  g.seq,
		Timestamp: g.ts,
	}
}
