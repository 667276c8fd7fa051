package memtable

import (
	"bytes"
	"hash/maphash"
	"math"
)

const (
	minSlots  = 16
	slotBytes = 8
)

// keyIndex finds a key's state by hash: open addressing with linear probing,
// at most three quarters full.
//
// A slot holds 32 bits of the hash above the number of the state plus one, and
// is zero when it is free. The slot's place comes from the same 32 bits, so
// that growing needs no key; the bits that the place does not use tell keys
// apart before their bytes are compared.
type keyIndex struct {
	slots []uint64
}

// hash returns a key's 32 bits. The seed is random for each table: whoever
// chooses the keys cannot choose the collisions.
func (t *Table) hash(key []byte) uint32 { return uint32(maphash.Bytes(t.seed, key) >> 32) }

// find returns the number of the key's state by index, which is the table's own
// or about to become it.
func (t *Table) find(index keyIndex, key []byte, hash uint32) (uint32, bool) {
	if len(index.slots) == 0 {
		return 0, false
	}
	mask := uint32(len(index.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := index.slots[i]
		if slot == 0 {
			return 0, false
		}
		if uint32(slot>>32) != hash {
			continue
		}
		state := uint32(slot) - 1
		if bytes.Equal(t.key(t.states.at(state)), key) {
			return state, true
		}
	}
}

// insert enters a state whose key is not in the index. There must be room.
func (x keyIndex) insert(hash, state uint32) {
	mask := uint32(len(x.slots) - 1)
	i := hash & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = uint64(hash)<<32 | uint64(state+1)
}

// withRoom returns an index with room for keys keys: x itself or a larger copy.
// It does not change x, so that the writer can build the copy outside the lock.
func (x keyIndex) withRoom(keys uint64) keyIndex {
	size := uint64(len(x.slots))
	if keys <= size/4*3 {
		return x
	}
	if keys >= math.MaxUint32 {
		panic("memtable: more than 2^32 keys")
	}
	size = max(size, minSlots)
	for keys > size/4*3 {
		size *= 2
	}
	grown := keyIndex{slots: make([]uint64, size)}
	for _, slot := range x.slots {
		if slot != 0 {
			grown.insert(uint32(slot>>32), uint32(slot)-1)
		}
	}
	return grown
}

func (x keyIndex) bytes() int64 { return int64(len(x.slots)) * slotBytes }
