package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What compaction would have to do shows although nobody does it, and is gone once it
// is done.
func TestDebtWithoutACompactor(t *testing.T) {
	store := newStore()
	o := smallOptions()
	o.DisableCompaction = true
	db := openTest(t, store, o)
	require.Zero(t, db.Status().Compaction)
	for i := range 64 { // more than a segment, of several runs
		mustAppend(t, db, record(fmt.Sprintf("k%d", i%5), strings.Repeat("v", 8<<10)))
		require.NoError(t, db.Flush(t.Context()))
	}
	s := db.Status()
	require.NotZero(t, s.Seals)
	require.False(t, s.Compaction.Working)
	require.Greater(t, s.Compaction.Debt, uint64(o.SegmentBytes)/2)
	require.LessOrEqual(t, s.Compaction.Debt, s.AppendedBytes)
	require.NoError(t, db.Close(t.Context()))

	o.DisableCompaction = false
	db = openTest(t, store, o)
	require.Eventually(t, func() bool {
		c := db.Status().Compaction
		return c.Jobs > 0 && c.Debt == 0
	}, patience, 10*time.Millisecond)
}

func TestCacheBytes(t *testing.T) {
	store := newStore()
	db := openTest(t, store, smallOptions())
	mustAppend(t, db, record("k", strings.Repeat("v", 8<<10)))
	require.NoError(t, db.Close(t.Context()))
	db = openTest(t, store, smallOptions())
	require.Zero(t, db.Status().CacheBytes)
	require.Len(t, values(t, db, "k", All(), ScanOptions{}), 1)
	require.Greater(t, db.Status().CacheBytes, int64(8<<10))
	require.LessOrEqual(t, db.Status().CacheBytes, smallOptions().CacheBytes)
}

// Whoever stops a compactor gets no error, also when it has not begun.
func TestCompactStoppedAtOnce(t *testing.T) {
	store := newStore()
	require.NoError(t, openTest(t, store, smallOptions()).Close(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, Compact(ctx, store, CompactOptions{}))
	require.ErrorContains(t, Compact(t.Context(), newStore(), CompactOptions{}), "compact mem:")
}
