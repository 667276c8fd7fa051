//go:build !race

package fuzz

// raceEnabled: the race detector makes everything ten times slower.
const raceEnabled = false
