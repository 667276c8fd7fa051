package compaction

import "math/bits"

// Tiers
//
// Both the runs of an active segment and small sealed segments arrive one by one,
// newest last, and are merged FanIn to 1 by size. Let F be FanIn and S the size
// from which an item is done. An item of b bytes is in tier
//
//	t(b) = the least t >= 1 such that b * F^t >= S
//
// so that tier 1 holds [S/F, S), tier 2 [S/F^2, S/F) and so on, down to the tier
// tiers(S, F) = ceil(log_F S), which holds empty items too. F neighbours of one
// tier become an item that is at least one tier nearer to done: a byte is rewritten
// once a tier.
//
// Sizes need not fall from old to new: a large flush may follow a tiny one, which
// then has no neighbours of its own size ever more. Therefore an item counts as of the
// nearest-to-done tier among itself and everything newer, its *rank*. Ranks never
// get nearer to done from old to new, so that items of one rank are neighbours.
//
// Bound. When pickTier finds nothing, each rank has at most F-1 items, so that there
// are at most (F-1) * tiers(S, F) items. (It finds something whenever a rank has F
// items, and every merge leaves fewer items: plan and apply reach such a state.)
//
// Settled runs. An active segment's runs of S bytes and more that were merged once
// are left alone if no other run is older. With S = SegmentBytes/8F there are at
// most 8F of them. That makes MaxActiveRuns.
//
// Rewrites. Flushes of a size within [S/F, S) (with the defaults 8 to 128 MiB, so
// every full memtable) are of tier 1 and become settled by their first merge: one
// rewrite while active. So are larger flushes, which count as tier 1 until they are
// merged. Flushes of tier t are rewritten t times. In an
// unlucky order of sizes a merge may not lift its largest item to the next tier; see
// pickInRank for what limits that.

// tier returns t(b) for items that are not done; anything larger counts as tier 1.
func tier(b, s uint64, f int) int {
	t := 1
	for b = max(b, 1); ; t++ {
		hi, lo := bits.Mul64(b, uint64(f))
		if hi > 0 || lo >= s {
			return t
		}
		b = lo
	}
}

// tiers is the number of tiers: the tier of the smallest item.
func tiers(s uint64, f int) int { return tier(1, s, f) }

// window is the half-open interval of neighbours [from, to).
type window struct{ from, to int }

func (w window) len() int { return w.to - w.from }

// pickTier returns the neighbours to merge next, given the sizes from old to new:
// those of the smallest rank that has at least f items. It returns an empty
// window when there is none.
func pickTier(sizes []uint64, s uint64, f int) window {
	rank := tiers(s, f)
	end := len(sizes) // of the items of this rank
	for i := len(sizes) - 1; i >= 0; i-- {
		t := tier(sizes[i], s, f)
		if t >= rank {
			continue
		}
		// Item i begins, from the new end, a rank nearer to done.
		if end-(i+1) >= f {
			return pickInRank(sizes, window{i + 1, end}, rank, s, f)
		}
		rank, end = t, i+1
	}
	if end >= f {
		return pickInRank(sizes, window{0, end}, rank, s, f)
	}
	return window{}
}

// pickInRank chooses among the items w of one rank, at least f: the oldest f. But when
// one of those holds more than half of their bytes, or when there are many stuck
// neighbours (of lower tiers, between items of this rank), merging the oldest
// rewrites much and gains little: then stuck neighbours are merged with each other
// first, if there are any.
func pickInRank(sizes []uint64, w window, rank int, s uint64, f int) window {
	oldest := window{w.from, w.from + f}
	var stuck, cur window
	for i := w.from; i < w.to; i++ {
		if tier(sizes[i], s, f) == rank {
			cur = window{}
			continue
		}
		if cur.len() == 0 || cur.len() == f {
			cur = window{i, i}
		}
		cur.to = i + 1
		if cur.len() > stuck.len() {
			stuck = cur
		}
	}
	if stuck.len() >= 2 && (stuck.len() >= f/2 || !balanced(sizes[oldest.from:oldest.to])) {
		return stuck
	}
	return oldest
}

// balanced reports whether no item holds more than half of the bytes, so that a
// merge puts every byte into an item at least twice as large as before.
func balanced(sizes []uint64) bool {
	var total, largest uint64
	for _, b := range sizes {
		total, largest = addSaturating(total, b), max(largest, b)
	}
	return largest <= total/2
}

// pickCheapest returns the neighbours to merge when all items are to become one and
// at most limit can be merged at once: all of them, or else those with the fewest
// bytes, just as many as make the next merge full.
func pickCheapest(sizes []uint64, limit int) window {
	n := len(sizes)
	if n <= limit {
		return window{0, n}
	}
	width := min(limit, max(2, n-limit+1))
	var best window
	var least uint64
	for from := 0; from+width <= n; from++ {
		var sum uint64
		for _, b := range sizes[from : from+width] {
			sum = addSaturating(sum, b)
		}
		if from == 0 || sum < least {
			best, least = window{from, from + width}, sum
		}
	}
	return best
}

// pickClosed returns what to merge of items to which none will be added any more.
func pickClosed(sizes []uint64, f int) window {
	if len(sizes) >= f {
		return pickCheapest(sizes, f)
	}
	w := window{0, len(sizes)}
	for w.len() >= 2 && !balanced(sizes[w.from:w.to]) {
		// Leave out the largest, and what is on its shorter side.
		at := w.from
		for i := w.from; i < w.to; i++ {
			if sizes[i] > sizes[at] {
				at = i
			}
		}
		if at-w.from >= w.to-at-1 {
			w.to = at
		} else {
			w.from = at + 1
		}
	}
	if w.len() < 2 {
		return window{}
	}
	return w
}
