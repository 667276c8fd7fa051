package main

import "slices"

// didYouMean is the end of a fault about an unknown name: the known one that is most like it, or nothing where none is.
func didYouMean(dashes, name string, known []string) string {
	// A third of its letters may be wrong: what is further off is another word.
	best, distance := "", len(name)/3+1
	for _, k := range slices.Sorted(slices.Values(known)) {
		if d := editDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; do you mean " + dashes + best + "?"
}

// maxComparedName bounds the work of editDistance: no name is near as long.
const maxComparedName = 100

// editDistance is the number of bytes to insert, delete or replace, or of neighbours to swap, that make b of a.
func editDistance(a, b string) int {
	if len(a) > maxComparedName || len(b) > maxComparedName {
		return len(a) + len(b)
	}
	var before []int // the row before the last
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			replaced := row[j]
			if a[i] != b[j] {
				replaced++
			}
			next[j+1] = min(replaced, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
