package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/annalsdb/annals/internal/base"
)

// usedBits says which files were read since the clock's hand passed them last,
// by a hash of their key: two files that share a bit are spared together, which
// costs little, and the memory is the same for a cache of any size.
type usedBits []atomic.Uint32

// usedBitCount bits take 1 MiB: a million files rarely share one.
const usedBitCount = 1 << 23

func newUsedBits() usedBits { return make(usedBits, usedBitCount/32) }

func (u usedBits) at(hash uint64) (word *atomic.Uint32, bit uint32) {
	i := hash % usedBitCount
	return &u[i/32], 1 << (i % 32)
}

func (u usedBits) set(hash uint64) {
	word, bit := u.at(hash)
	if word.Load()&bit == 0 {
		word.Or(bit)
	}
}

// clear clears a bit and reports whether it was set.
func (u usedBits) clear(hash uint64) bool {
	word, bit := u.at(hash)
	return word.And(^bit)&bit != 0
}

// clockHand is where the search for files to evict goes on: in a folder, after a
// name.
type clockHand struct {
	folder int
	after  string
}

// evictShare: eviction frees this part of the budget at once, so that not every
// write lists a folder.
const evictShare = 32

// makeRoom evicts until cost more bytes fit, by the clock algorithm (Corbato,
// 1968): the hand spares what was used since it last came by, once. It returns
// false if there is no room after two rounds, which spare nothing: files cannot
// be removed, or cost is too high.
func (d *diskCache) makeRoom(cost int64) bool {
	if d.bytes.Load()+cost <= d.budget {
		return true
	}
	target := max(0, d.budget-max(cost, d.budget/evictShare))
	for steps := 0; steps <= 2*diskFolders && d.bytes.Load() > target; steps++ {
		if d.folders[d.hand.folder] > 0 {
			d.evictFrom(target)
		}
		if d.bytes.Load() > target {
			d.hand = clockHand{folder: (d.hand.folder + 1) % diskFolders}
		}
	}
	return d.bytes.Load()+cost <= d.budget
}

// evictFrom moves the hand through the rest of its folder until no more than
// target bytes are left in the cache.
func (d *diskCache) evictFrom(target int64) {
	for _, k := range d.list(d.hand.folder) {
		name := k.name()
		if name <= d.hand.after {
			continue
		}
		if d.bytes.Load() <= target {
			return
		}
		d.hand.after = name
		if !d.used.clear(k.seed()) && d.remove(k) {
			d.evictions.Add(1)
		}
	}
}

// remove deletes a range's file and reports whether it is gone.
func (d *diskCache) remove(k diskKey) bool {
	if err := os.Remove(d.path(k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.failures.Add(1)
		return false
	}
	d.add(k.folder(), -diskCost(k.n))
	return true
}

// list returns the ranges in a folder, in the order of their names, and corrects
// what is believed to be there. Files with other names are somebody else's.
func (d *diskCache) list(folder int) []diskKey {
	entries, err := os.ReadDir(filepath.Join(d.dir, folderName(folder)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.failures.Add(1)
		return nil
	}
	keys := make([]diskKey, 0, len(entries))
	var bytes int64
	for _, e := range entries {
		if k, ok := parseDiskName(e.Name()); ok && k.folder() == folder {
			keys = append(keys, k)
			bytes += diskCost(k.n)
		}
	}
	d.add(folder, bytes-d.folders[folder])
	return keys
}

// forget removes all ranges of an object.
func (d *diskCache) forget(id base.ULID) {
	for _, k := range d.list(diskKey{id: id}.folder()) {
		if k.id == id {
			d.remove(k)
		}
	}
}
