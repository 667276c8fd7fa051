package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/metered"
)

// A server that was started again counts from 0: what it did meanwhile is not known, and not a number near 2^64.
func TestCountersThatWentBack(t *testing.T) {
	at := func(records, puts uint64) counters {
		c := counters{log: &LogCounts{AppendedRecords: records, Tables: 7}, store: &metered.Stats{}}
		c.store.Ops[metered.Put].Results[0] = puts
		return c
	}
	d := at(100, 30).since(at(40, 10))
	require.Equal(t, &LogCounts{AppendedRecords: 60, Tables: 7}, d.log)
	require.EqualValues(t, 20, d.store.Ops[metered.Put].Calls())

	d = at(40, 10).since(at(100, 30))
	require.Nil(t, d.log)
	require.Nil(t, d.store)
}
