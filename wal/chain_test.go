package wal

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// chained returns a decoded object with one record a sequence in [first, end).
func chained(t *testing.T, epoch, id, prevEnd, first, end uint64, change func(*Header)) *Object {
	h := Header{Identity: testIdent, Writer: WriterID{byte(epoch)}, Epoch: epoch, ID: id, Segment: 4, PrevEnd: prevEnd, First: first}
	if change != nil {
		change(&h)
	}
	o, err := Decode("x", testIdent, epoch, id, objectOf(h, end))
	require.NoError(t, err)
	return o
}

func TestChain(t *testing.T) {
	segment := func(n uint32) func(*Header) { return func(h *Header) { h.Segment = n } }
	writer := func(h *Header) { h.Writer[7] = 1 }
	begun := Chain{Started: true, End: 100, LastTimestamp: 1099, Segment: 4}
	mid := begun
	require.NoError(t, mid.Accept("x", chained(t, 2, 7, 100, 100, 110, nil)))
	require.EqualValues(t, 110, mid.End)
	require.EqualValues(t, 1109, mid.LastTimestamp)

	for _, c := range []struct {
		name   string
		chain  Chain
		object *Object
		ok     bool
	}{
		{"zero chain takes any object", Chain{}, chained(t, 9, 33, 500, 500, 510, nil), true},
		{"position in mid-epoch", begun, chained(t, 2, 7, 100, 100, 110, nil), true},
		{"position in mid-epoch, behind objects without records that began above", begun, chained(t, 2, 7, 101, 101, 110, nil), true},
		{"position in mid-epoch, overlap", begun, chained(t, 2, 7, 99, 100, 110, nil), false},
		{"new epoch", begun, chained(t, 2, 1, 100, 100, 110, nil), true},
		{"new epoch above", begun, chained(t, 2, 1, 5000, 5000, 5001, nil), true},
		{"new epoch below", begun, chained(t, 2, 1, 99, 100, 110, nil), false},
		{"older segment", begun, chained(t, 2, 1, 100, 100, 110, segment(3)), false},
		{"newer segment", begun, chained(t, 2, 1, 100, 100, 110, segment(5)), true},
		{"older timestamp", Chain{Started: true, End: 100, LastTimestamp: 1101}, chained(t, 2, 1, 100, 100, 110, nil), false},
		{"no record, no timestamp", Chain{Started: true, End: 100, LastTimestamp: 1101}, chained(t, 2, 1, 100, 100, 100, nil), true},
		{"next", mid, chained(t, 2, 8, 110, 110, 111, nil), true},
		{"next without records", mid, chained(t, 2, 8, 110, 110, 110, nil), true},
		{"next, sequences given to nobody", mid, chained(t, 2, 8, 110, 115, 120, nil), true},
		{"next, gap", mid, chained(t, 2, 8, 111, 111, 112, nil), false},
		{"next, overlap", mid, chained(t, 2, 8, 109, 110, 111, nil), false},
		{"same again", mid, chained(t, 2, 7, 110, 110, 111, nil), false},
		{"id left out", mid, chained(t, 2, 9, 110, 110, 111, nil), false},
		{"another writer", mid, chained(t, 2, 8, 110, 110, 111, writer), false},
		{"later epoch", mid, chained(t, 4, 1, 200, 200, 201, nil), true},
		{"later epoch, not its start", mid, chained(t, 4, 2, 110, 110, 111, nil), false},
		{"earlier epoch", mid, chained(t, 1, 1, 110, 110, 111, nil), false},
	} {
		before := c.chain
		err := c.chain.Accept("object 77", c.object)
		if c.ok {
			require.NoError(t, err, c.name)
			require.Equal(t, c.object.End, c.chain.End, c.name)
			require.Equal(t, c.object.Segment, c.chain.Segment, c.name)
			continue
		}
		require.ErrorIs(t, err, base.ErrCorrupt, c.name)
		require.ErrorContains(t, err, "object 77", c.name)
		require.Equal(t, before, c.chain, c.name)
	}
}

// Timestamps may be negative, also when no record has been seen yet.
func TestChainFromAnObjectWithoutRecords(t *testing.T) {
	var c Chain
	require.NoError(t, c.Accept("x", chained(t, 1, 1, 0, 0, 0, nil)))
	b := NewBuilder(Header{Identity: testIdent, Writer: WriterID{1}, Epoch: 1, ID: 2, Segment: 4}, nil)
	b.AddBatch(0, -5, []base.Record{{}})
	o, err := Decode("x", testIdent, 1, 2, b.Finish())
	require.NoError(t, err)
	require.NoError(t, c.Accept("x", o))
	require.EqualValues(t, -5, c.LastTimestamp)
}
