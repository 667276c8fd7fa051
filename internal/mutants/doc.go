// Package mutants breaks the guards of annals on purpose, one at a time, and requires that a test
// notices each: a checksum that is not compared, an append that is acknowledged before its object landed, a
// grace period that is over at once. It has no code of its own beside its tests.
//
// A mutant is one small change of the text of one source file. The compiler is given the changed file
// in the place of the real one (go test -overlay): nothing in the tree is touched.
//
//	go test ./internal/mutants                                                    every change still fits its file
//	ANNALS_MUTANTS=all go test ./internal/mutants -v -timeout 60m                 make all of them, and run the tests
//	ANNALS_MUTANTS='fence' go test ./internal/mutants -v                          those whose name matches
package mutants
