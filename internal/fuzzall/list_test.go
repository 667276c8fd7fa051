package main

import (
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestList(t *testing.T) {
	packages, err := list("../../...")
	require.NoError(t, err)
	found := make(map[string][]string)
	for _, p := range packages {
		found[path.Base(p.path)] = p.targets
	}
	require.Contains(t, found["wal"], "FuzzDecode")
	require.Contains(t, found["server"], "FuzzSurface")
	require.Contains(t, found["fuzz"], "FuzzMutatedLog")
	require.NotContains(t, found, "arch", "it has none")
	for name, targets := range found {
		slices.Sort(targets)
		require.Len(t, slices.Compact(targets), len(targets), name)
	}
}

func TestSummary(t *testing.T) {
	require.Equal(t, "execs: 9 (3/sec), new interesting: 1 (total: 2)", summary(
		"fuzz: elapsed: 3s, execs: 5 (1/sec)\nfuzz: elapsed: 6s, execs: 9 (3/sec), new interesting: 1 (total: 2)\nPASS\n"))
	require.Equal(t, "no progress", summary("panic: ..."))
}

func TestRanOut(t *testing.T) {
	const over = "fuzz: elapsed: 2s, execs: 11021 (5332/sec)\n--- FAIL: FuzzRoot (2.09s)\n    context deadline exceeded\nFAIL\n"
	require.True(t, ranOut(over))
	require.False(t, ranOut(over+"    Failing input written to testdata/fuzz/FuzzRoot/1\n"))
	require.False(t, ranOut("--- FAIL: FuzzRoot (2.09s)\n    --- FAIL: FuzzRoot (0.00s)\n        context deadline exceeded\n"))
	require.False(t, ranOut("PASS\n"))
}
