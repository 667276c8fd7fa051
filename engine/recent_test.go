package engine

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/mem"
)

// With the defaults a full memtable stays in memory after its flush: readers that are a little behind the tip cause
// no request then. It is frozen when it has passed its limit, so that a budget of just that would keep nothing.
func TestAFullMemtableStaysInMemory(t *testing.T) {
	db := openTest(t, mem.New(mem.Options{}), Options{FlushInterval: 2 * time.Millisecond, DisableCompaction: true})
	var recs []Record
	for range 256 {
		recs = append(recs, Record{Key: []byte("k"), Value: bytes.Repeat([]byte("v"), 4<<10)})
	}
	n := 0
	for db.Status().Flushes == 0 {
		_, err := db.Append(t.Context(), recs, AppendOptions{Ack: Memory})
		require.NoError(t, err)
		n += len(recs)
	}
	require.NoError(t, db.WaitDurable(t.Context(), uint64(n-1)))
	got := 0
	it := db.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
	for range it.All() {
		got++
	}
	require.NoError(t, it.Err())
	require.Equal(t, n, got)
	require.Zero(t, db.Status().TableReads)
}
