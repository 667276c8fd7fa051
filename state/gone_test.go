package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Two snapshots are frozen at the same time, and both are written as bases: what went after the second is in its changes.
func TestGoneSurvivesTwoBases(t *testing.T) {
	live := New(everything)
	live.SetCursor("c", []byte("a"), 1)
	live.SetCursor("c", []byte("b"), 1)
	live.SetCursor("c", []byte("z"), 1)
	m1 := live.Clone() // frozen
	live.DeleteCursor("c", []byte("b"))
	m2 := live.Clone() // frozen, while m1 is being written
	live.DeleteCursor("c", []byte("a"))
	// m1 is committed as a base
	live.Rebase(m1)
	m2.Rebase(m1)
	// m2 is committed as a base
	base2 := m2.EncodeBase(idOf(2))
	live.Rebase(m2)
	// the next flush writes changes of m2's base
	m3 := live.Clone()
	changes := m3.EncodeChanges(idOf(3), idOf(2))
	got, err := DecodeBase("x", idOf(2), base2, everything)
	require.NoError(t, err)
	require.NoError(t, got.DecodeChanges("y", idOf(3), idOf(2), changes))
	require.Equal(t, contentsOf(t, live), contentsOf(t, got))
}
