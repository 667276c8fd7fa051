package memtable

import (
	"fmt"
	"unsafe"
)

const (
	slabShift = 13
	slabBlock = 1 << slabShift // elements of a full-grown block
	slabMask  = slabBlock - 1
	minSlab   = 64
	maxBlocks = 1 << (32 - slabShift)
)

// slab hands out short arrays of a pointer-free type from large blocks. A
// reference is 32 bits: the block's number above the offset in the block.
//
// It is written only under the table's lock.
type slab[T any] struct {
	blocks [][]T
	open   int   // the block that is being filled
	used   int   // elements of it that are taken
	total  int64 // elements of all blocks
}

// alloc returns a reference to n zeroed elements that lie together.
func (s *slab[T]) alloc(n int) uint32 {
	if n > slabBlock {
		return s.addBlock(n) << slabShift // a block of its own; the open one stays open
	}
	if len(s.blocks) == 0 || s.used+n > len(s.blocks[s.open]) {
		s.open = int(s.addBlock(max(n, growth(s.total, minSlab, slabBlock))))
		s.used = 0
	}
	ref := uint32(s.open)<<slabShift | uint32(s.used)
	s.used += n
	return ref
}

func (s *slab[T]) addBlock(n int) uint32 {
	if len(s.blocks) == maxBlocks {
		panic(fmt.Sprintf("memtable: more than %d blocks in a slab", maxBlocks))
	}
	s.blocks = append(s.blocks, make([]T, n))
	s.total += int64(n)
	return uint32(len(s.blocks) - 1)
}

// at returns the elements from ref on to the end of its block.
func (s *slab[T]) at(ref uint32) []T {
	return s.blocks[ref>>slabShift][ref&slabMask:]
}

// bytes is the heap that the slab takes.
func (s *slab[T]) bytes() int64 {
	var t T
	return s.total*int64(unsafe.Sizeof(t)) + int64(cap(s.blocks))*sliceHeaderBytes
}
