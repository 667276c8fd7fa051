//go:build !race

package server

// raceEnabled: the race detector makes everything ten times slower.
const raceEnabled = false
