package engine

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// With the default options a memtable that was full stays in memory when it has been flushed: readers that are a moment
// behind cause no request (the default was once just below the size of a full memtable, so that each was dropped at once).
func TestFlushedTipStaysInMemory(t *testing.T) {
	db := openTest(t, newStore(), Options{FlushInterval: time.Millisecond, DisableCompaction: true})
	value := bytes.Repeat([]byte{1}, 1<<20)
	var first AppendResult
	for i := 0; db.Status().Flushes == 0; i++ {
		res, err := db.Append(t.Context(), []Record{{Key: []byte("k"), Value: value}}, AppendOptions{})
		require.NoError(t, err)
		if i == 0 {
			first = res
		}
		require.Less(t, i, 10*DefaultMemtableBytes/len(value), "nothing was flushed")
	}
	it := db.Scan(t.Context(), []byte("k"), From(first.First), ScanOptions{})
	n := 0
	for range it.All() {
		n++
	}
	require.NoError(t, it.Err())
	require.GreaterOrEqual(t, n, DefaultMemtableBytes/len(value)-1)
	require.Zero(t, db.Status().TableReads)
}
