package memtable

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// Block sizes are powers of two (or, above 32 KiB, multiples of a page): then
// the allocator rounds nothing up and what is counted is what is used.
const (
	minArenaBlock = 4 << 10
	maxArenaBlock = 1 << 20

	// A piece larger than this part of the next block gets a block of its own,
	// which bounds what is lost at the end of a block to the same part of it.
	ownBlockPart = 8
)

const sliceHeaderBytes = int64(unsafe.Sizeof([]byte(nil)))

// noBytes is what an empty value or key reads as: not nil.
var noBytes = []byte{}

// place is where a piece of bytes begins in an arena.
type place struct {
	block, offset uint32
}

// arena holds immutable pieces of bytes in few large blocks, so that the
// collector sees a block, not a record.
//
// The blocks slice is append-only and a stored piece is never written again: a
// reader may hold a copy of the slice and resolve every place in it while the
// writer goes on adding.
type arena struct {
	blocks [][]byte
	open   uint32 // the block that is being filled
	free   []byte // its unused end
	total  int64  // bytes of all blocks
}

// add copies p and returns where. Blocks double from minArenaBlock to
// maxArenaBlock, so that a small table is small.
func (a *arena) add(p []byte) place {
	if len(p) == 0 {
		return place{}
	}
	if len(p) > len(a.free) {
		size := growth(a.total, minArenaBlock, maxArenaBlock)
		if len(p) > size/ownBlockPart {
			return a.addOwn(p)
		}
		a.open = a.addBlock(make([]byte, size))
		a.free = a.blocks[a.open]
	}
	at := place{a.open, uint32(len(a.blocks[a.open]) - len(a.free))}
	copy(a.free, p)
	a.free = a.free[len(p):]
	return at
}

// addOwn copies p into a block that holds nothing else. The open block stays
// open.
func (a *arena) addOwn(p []byte) place {
	if uint64(len(p)) > math.MaxUint32 {
		panic(fmt.Sprintf("memtable: a key or value of %d bytes", len(p)))
	}
	return place{block: a.addBlock(append([]byte(nil), p...))} // append, unlike make, does not clear first
}

func (a *arena) addBlock(b []byte) uint32 {
	a.blocks = append(a.blocks, b)
	a.total += int64(cap(b))
	return uint32(len(a.blocks) - 1)
}

// bytes is the heap that the arena takes.
func (a *arena) bytes() int64 {
	return a.total + int64(cap(a.blocks))*sliceHeaderBytes
}

// piece returns the n bytes at p. They are immutable; appending to the result
// copies it.
func piece(blocks [][]byte, p place, n uint32) []byte {
	if n == 0 {
		return noBytes
	}
	end := uint64(p.offset) + uint64(n)
	return blocks[p.block][p.offset:end:end]
}

// growth returns the size of the next block of something that has total units
// so far and doubles by each block: a power of two within [least, most].
func growth(total int64, least, most int) int {
	if total >= int64(most) {
		return most
	}
	if total <= int64(least) {
		return least
	}
	return 1 << (bits.Len64(uint64(total)) - 1)
}
