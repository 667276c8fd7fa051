package memtable

import (
	"math/bits"
	"sort"
)

// entry is one record without its key: 32 bytes, no pointers.
type entry struct {
	sequence  uint64
	timestamp int64
	value     place
	length    uint32
}

// A key's first entry lies in its state; the others in chunks of 2, 4, 8, ...
// maxChunk entries, then maxChunk each. Which chunk holds the key's record
// number i is arithmetic, so that no chunk needs a header, and a key with one
// record pays for one entry.
const (
	minChunkShift = 1
	maxChunkShift = 6
	maxChunk      = 1 << maxChunkShift
	lastGrowing   = maxChunkShift - minChunkShift // the first chunk of maxChunk entries
	growing       = 2*maxChunk - 1                // records of a key up to that chunk's end
	inFirstChunk  = 2<<minChunkShift - 1          // records of a key up to the first chunk's end
)

// chunkOf returns the chunk that holds record number i > 0 of a key, and its
// place in the chunk.
func chunkOf(i uint64) (chunk, offset int) {
	if i < growing {
		shift := bits.Len64(i+1) - 1
		return shift - minChunkShift, int(i + 1 - 1<<shift)
	}
	i -= growing
	return lastGrowing + 1 + int(i>>maxChunkShift), int(i & (maxChunk - 1))
}

// chunkStart returns the number of the first record in chunk c.
func chunkStart(c int) uint64 {
	if c <= lastGrowing {
		return 1<<(c+minChunkShift) - 1
	}
	return growing + uint64(c-lastGrowing-1)<<maxChunkShift
}

// chunkLen returns how many records chunk c has room for.
func chunkLen(c int) int { return 1 << min(c+minChunkShift, maxChunkShift) }

// keyState is what the table knows of one key: a cache line, no pointers.
//
// The key's place and the first entry never change; the rest is written under
// the table's lock.
type keyState struct {
	first     [1]entry // an array, to be sliced like a chunk
	key       place
	keyLength uint32
	// chunks is where the entries after the first are: with one chunk its
	// reference in Table.entries; with more, the reference in
	// Table.directories of an array of such references, whose room is the next
	// power of two.
	chunks uint32
	count  uint64
	last   uint64 // sequence
}

// stateList is a list of key states in order of arrival. The first block is
// replaced by one of twice the size until it is full-grown.
type stateList struct {
	blocks [][]keyState
	n      uint32
}

const (
	stateShift = 13
	stateBlock = 1 << stateShift // 512 KiB
	stateMask  = stateBlock - 1
	minStates  = 16

	keyStateBytes = 64
)

func (l *stateList) at(i uint32) *keyState { return &l.blocks[i>>stateShift][i&stateMask] }

// add appends a state and returns its number. A reader may hold a copy of the
// blocks slice without the lock if it reads nothing but the keys' places:
// therefore a replaced block is replaced in a new slice.
func (l *stateList) add(k keyState) uint32 {
	i := l.n
	switch block := int(i >> stateShift); {
	case block == len(l.blocks):
		size := stateBlock
		if block == 0 {
			size = minStates
		}
		l.blocks = append(l.blocks, make([]keyState, size))
	case int(i) == len(l.blocks[0]) && block == 0:
		grown := make([]keyState, 2*i)
		copy(grown, l.blocks[0])
		l.blocks = [][]keyState{grown}
	}
	*l.at(i) = k
	l.n++
	return i
}

func (l *stateList) bytes() int64 {
	if len(l.blocks) == 0 {
		return 0
	}
	states := (len(l.blocks)-1)*stateBlock + len(l.blocks[0])
	return int64(states)*keyStateBytes + int64(cap(l.blocks))*sliceHeaderBytes
}

// appendEntry adds the key's newest record, which is not its first. Called
// under the lock.
func (t *Table) appendEntry(k *keyState, e entry) {
	c, offset := chunkOf(k.count)
	if offset == 0 {
		t.addChunk(k, c)
	}
	k.count++
	k.last = e.sequence
	t.chunk(k, c)[offset] = e
}

// addChunk makes chunk c, the next one of the key, and enters it in the
// directory.
func (t *Table) addChunk(k *keyState, c int) {
	ref := t.entries.alloc(chunkLen(c))
	if c == 0 {
		k.chunks = ref
		return
	}
	if c&(c-1) == 0 { // the directory is full, or there was none
		directory := t.directories.alloc(2 * c)
		if c == 1 {
			t.directories.at(directory)[0] = k.chunks
		} else {
			copy(t.directories.at(directory), t.directories.at(k.chunks)[:c])
		}
		k.chunks = directory
	}
	t.directories.at(k.chunks)[c] = ref
}

// chunk returns chunk c of the key, with room beyond the key's last record.
func (t *Table) chunk(k *keyState, c int) []entry {
	ref := k.chunks
	if k.count > inFirstChunk {
		ref = t.directories.at(ref)[c]
	}
	return t.entries.at(ref)[:chunkLen(c)]
}

// stretch returns the key's entries from record number i on that lie together;
// the key has record i.
func (t *Table) stretch(k *keyState, i uint64) []entry {
	if i == 0 {
		return k.first[:]
	}
	c, offset := chunkOf(i)
	return t.chunk(k, c)[offset:min(uint64(chunkLen(c)), k.count-chunkStart(c))]
}

// stretchBack returns the key's entries up to record number i that lie
// together; the key has record i.
func (t *Table) stretchBack(k *keyState, i uint64) []entry {
	if i == 0 {
		return k.first[:]
	}
	c, offset := chunkOf(i)
	return t.chunk(k, c)[:offset+1]
}

// search returns the number of the key's first record for which reached is
// true, or its count. Once true, reached stays true for all later records.
//
// The newest chunk is tried first: a follower at the tip asks for it.
func (t *Table) search(k *keyState, reached func(*entry) bool) uint64 {
	if reached(&k.first[0]) {
		return 0
	}
	if k.count == 1 {
		return 1
	}
	c, _ := chunkOf(k.count - 1)
	if c > 0 && reached(&t.chunk(k, c)[0]) {
		c = max(0, sort.Search(c, func(c int) bool { return reached(&t.chunk(k, c)[0]) })-1)
	}
	start := chunkStart(c)
	chunk := t.chunk(k, c)[:min(uint64(chunkLen(c)), k.count-start)]
	return start + uint64(sort.Search(len(chunk), func(i int) bool { return reached(&chunk[i]) }))
}

// seek returns the number of the key's first record with a sequence of at
// least sequence, or its count.
func (t *Table) seek(k *keyState, sequence uint64) uint64 {
	if sequence <= k.first[0].sequence {
		return 0
	}
	if sequence > k.last {
		return k.count
	}
	return t.search(k, func(e *entry) bool { return e.sequence >= sequence })
}

// entryAt returns the key's record number i, which exists.
func (t *Table) entryAt(k *keyState, i uint64) *entry {
	if i == 0 {
		return &k.first[0]
	}
	c, offset := chunkOf(i)
	return &t.chunk(k, c)[offset]
}
