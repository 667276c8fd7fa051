// Package fuzz holds the tests that attack the engine as a whole: failure cases
// that other systems really had (named F1 to F56), sweeps of one fault over every
// store operation, crashes at any point, and random operations against a model.
//
// Run them with: go test ./fuzz
//
// ANNALS_FUZZ_RUNS is the number of random histories (TestRandomHistories) for each
// set of options, 10 by default: about half a minute for 50. A history that fails
// is made as small as possible, and kept under testdata/rapid; it says how to run it
// again.
package fuzz
