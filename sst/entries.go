package sst

import (
	"bytes"
	"encoding/binary"
	"sort"
)

// restartInterval is the number of entries that share one restart: of each
// restart the key is stored whole and the numbers are not deltas.
const restartInterval = 16

// maxFields is the most numbers that an entry of any kind has.
const maxFields = 7

// listKind tells the entry lists apart that differ in shape.
type listKind struct {
	what   string
	fields int
	// sameKey allows neighbours with one key if their first number ascends.
	sameKey bool
}

var (
	indexKind     = listKind{"index", 7, true}
	directoryKind = listKind{"directory", 5, false}
	indexTopKind  = listKind{"index top", 7, true}
	plainTopKind  = listKind{"top", 5, false} // of directory and filter
)

// Numbers of entries, by kind. The first four are common to the index and to
// all tops, so that one search serves them.
const (
	fieldSequence = 0
	fieldTime     = 1 // as orderTime makes it
	fieldOffset   = 2
	fieldSize     = 3
	fieldRecords  = 4 // index and its top: records before
	fieldBytes    = 5 // index and its top: key + value bytes before
	fieldCount    = 6 // index: records of the block
	fieldBlocks   = 6 // index top: data blocks before
	fieldKeys     = 4 // directory and filter top: keys before

	dirFirst   = 0
	dirLast    = 1
	dirCount   = 2
	dirBlock   = 3
	dirOrdinal = 4
)

// listBuilder encodes an entry list.
type listBuilder struct {
	kind     listKind
	b        []byte
	restarts []byte
	n        int
	key      []byte
	last     [maxFields]uint64
}

// size is the length of the encoded list.
func (l *listBuilder) size() int { return len(l.b) + len(l.restarts) + 4 }

func (l *listBuilder) add(key []byte, fields [maxFields]uint64) {
	shared := 0
	if l.n%restartInterval == 0 {
		l.restarts = binary.LittleEndian.AppendUint32(l.restarts, uint32(len(l.b)))
		l.last = [maxFields]uint64{}
	} else {
		shared = sharedPrefix(l.key, key)
	}
	l.b = binary.AppendUvarint(l.b, uint64(shared))
	l.b = binary.AppendUvarint(l.b, uint64(len(key)-shared))
	l.b = append(l.b, key[shared:]...)
	for i := range l.kind.fields {
		l.b = binary.AppendUvarint(l.b, zigzag(int64(fields[i]-l.last[i])))
	}
	l.key = append(l.key[:shared], key[shared:]...)
	l.last = fields
	l.n++
}

// appendTo appends the encoded list to b and makes the builder empty.
func (l *listBuilder) appendTo(b []byte) []byte {
	b = append(b, l.b...)
	b = append(b, l.restarts...)
	b = binary.LittleEndian.AppendUint32(b, uint32(l.n))
	l.b, l.restarts, l.n = l.b[:0], l.restarts[:0], 0
	return b
}

func sharedPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// entryList is a validated entry list, used in its encoded form. Immutable.
type entryList struct {
	kind     listKind
	data     []byte // the entries
	restarts []byte // u32 each
	n        int
}

// parseEntries validates an encoded list completely, so that cursors over it
// need no checks. It returns what is wrong, or "".
func parseEntries(b []byte, kind listKind) (*entryList, string) {
	if len(b) < 4 {
		return nil, "shorter than its entry count"
	}
	n := uint64(binary.LittleEndian.Uint32(b[len(b)-4:]))
	restarts := (n + restartInterval - 1) / restartInterval
	if n == 0 || n*uint64(2+kind.fields)+restarts*4 > uint64(len(b)-4) {
		return nil, "has a wrong entry count"
	}
	end := len(b) - 4 - int(restarts)*4
	l := &entryList{kind: kind, data: b[:end:end], restarts: b[end : len(b)-4], n: int(n)}
	pos := 0
	var key, prev []byte
	var f [maxFields]uint64
	for i := range l.n {
		first := f[0]
		if i%restartInterval == 0 {
			if l.restart(i/restartInterval) != pos {
				return nil, "has a restart that points nowhere"
			}
			f = [maxFields]uint64{}
		}
		shared, next := uvarint(l.data, pos)
		if next < 0 || shared > uint64(len(prev)) || (i%restartInterval == 0 && shared != 0) {
			return nil, "has an entry that shares more than there is"
		}
		rest, next := uvarint(l.data, next)
		if next < 0 || rest > uint64(len(l.data)-next) || shared+rest > MaxKeyBytes {
			return nil, "has a key that runs past its end"
		}
		key = append(append(key[:0], prev[:shared]...), l.data[next:next+int(rest)]...)
		pos = next + int(rest)
		for j := range kind.fields {
			d, next := uvarint(l.data, pos)
			if next < 0 {
				return nil, "has a number that runs past its end"
			}
			f[j] += uint64(unzigzag(d))
			pos = next
		}
		if i > 0 {
			c := bytes.Compare(prev, key)
			if c > 0 || (c == 0 && !(kind.sameKey && first < f[0])) {
				return nil, "is not in order"
			}
		}
		key, prev = prev, key
	}
	if pos != end {
		return nil, "has bytes after its last entry"
	}
	return l, ""
}

func (l *entryList) restart(i int) int {
	return int(binary.LittleEndian.Uint32(l.restarts[4*i:]))
}

// memoryBytes is what the list occupies.
func (l *entryList) memoryBytes() int { return len(l.data) + len(l.restarts) + 96 }

// entryCursor stands on one entry of a list. It belongs to one goroutine. The
// key is valid until the cursor moves.
type entryCursor struct {
	l    *entryList
	i    int // ordinal of the entry; -1 before the first
	next int // where the entry after it begins
	key  []byte
	f    [maxFields]uint64
}

// reset puts the cursor before the first entry of l.
func (c *entryCursor) reset(l *entryList) {
	c.l, c.i, c.next = l, -1, 0
	c.key = c.key[:0]
}

// forward moves to the next entry, or reports that there is none.
func (c *entryCursor) forward() bool {
	if c.i+1 >= c.l.n {
		return false
	}
	c.i++
	if c.i%restartInterval == 0 {
		c.f = [maxFields]uint64{}
	}
	data := c.l.data
	shared, pos := uvarint(data, c.next)
	rest, pos := uvarint(data, pos)
	c.key = append(c.key[:shared], data[pos:pos+int(rest)]...)
	pos += int(rest)
	for j := range c.l.kind.fields {
		var d uint64
		d, pos = uvarint(data, pos)
		c.f[j] += uint64(unzigzag(d))
	}
	c.next = pos
	return true
}

// to moves to the entry with ordinal i, which must exist.
func (c *entryCursor) to(i int) {
	if i == c.i {
		return
	}
	if r := i / restartInterval; c.i < r*restartInterval || c.i > i {
		c.i, c.next = r*restartInterval-1, c.l.restart(r)
	}
	for c.i < i {
		c.forward()
	}
}

// seek moves to the last entry whose (key, number field) is at most (key, v),
// or reports that there is none and stands before the first. Field is 0 or 1.
func (c *entryCursor) seek(key []byte, field int, v uint64) bool {
	l := c.l
	restarts := len(l.restarts) / 4
	r := sort.Search(restarts, func(i int) bool {
		return l.compareNext(nil, nil, l.restart(i), key, field, v) > 0
	}) - 1
	if r < 0 {
		c.reset(l)
		return false
	}
	c.i, c.next = r*restartInterval-1, l.restart(r)
	c.forward()
	for (c.i+1)%restartInterval != 0 && c.nextAtMost(key, field, v) {
		c.forward()
	}
	return true
}

// nextAtMost reports whether there is a next entry and its (key, number field)
// is at most (key, v).
func (c *entryCursor) nextAtMost(key []byte, field int, v uint64) bool {
	switch i := c.i + 1; {
	case i >= c.l.n:
		return false
	case i%restartInterval == 0:
		return c.l.compareNext(nil, nil, c.next, key, field, v) <= 0
	}
	return c.l.compareNext(c.key, &c.f, c.next, key, field, v) <= 0
}

// compareNext compares the entry at pos, which follows an entry with key prev
// and numbers last (nil at a restart), with (key, v).
func (l *entryList) compareNext(prev []byte, last *[maxFields]uint64, pos int, key []byte, field int, v uint64) int {
	shared, pos := uvarint(l.data, pos)
	rest, pos := uvarint(l.data, pos)
	if c := compareParts(prev[:shared], l.data[pos:pos+int(rest)], key); c != 0 {
		return c
	}
	pos += int(rest)
	var d uint64
	for range field + 1 {
		d, pos = uvarint(l.data, pos)
	}
	have := uint64(unzigzag(d))
	if last != nil {
		have += last[field]
	}
	switch {
	case have < v:
		return -1
	case have > v:
		return 1
	}
	return 0
}

// compareParts compares the concatenation of a and b with t.
func compareParts(a, b, t []byte) int {
	if len(a) >= len(t) {
		if c := bytes.Compare(a, t); c != 0 || len(b) == 0 {
			return c
		}
		return 1
	}
	if c := bytes.Compare(a, t[:len(a)]); c != 0 {
		return c
	}
	return bytes.Compare(b, t[len(a):])
}

// entryBlock is a cached partition of the index or the directory.
type entryBlock struct{ *entryList }

// MemoryBytes implements Block.
func (b entryBlock) MemoryBytes() int { return b.memoryBytes() }
