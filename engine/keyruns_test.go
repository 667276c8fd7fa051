package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// KeyRuns counts runs that hold the key, in groups, in segments and in the active one, and no others.
func TestKeyRuns(t *testing.T) {
	keys := func(s int) []string {
		if s%3 == 0 {
			return []string{"k", "k", "other"}
		}
		return []string{"j", "other"} // by its bounds a table may hold "k"
	}
	l := newLayout(t)
	segment := func(s int) {
		names := keys(s)
		l.segment(true, l.records(len(names), func(i int) (string, string) { return names[i], "value" }))
	}
	for s := range 8 {
		segment(s)
	}
	l.group(4)
	l.group(2) // the last two stay outside
	l.segment(false, l.records(1, func(int) (string, string) { return "k", "active" }), l.records(1, func(int) (string, string) { return "x", "" }))
	c := l.open(l.metered(), 64<<20)

	table := func(segment uint32, records uint64) KeyTable {
		line := l.full[segment].Runs[0].Tables[0]
		return KeyTable{line.GetRef().ID().Name(), int64(line.GetMetaOffset()), records}
	}
	got, err := c.KeyRuns(t.Context(), []byte("k"), All())
	require.NoError(t, err)
	all := l.want("k", All())
	require.Equal(t, KeyRuns{Runs: 4, Tables: []KeyTable{table(1, 2), table(4, 2), table(7, 2), table(9, 1)}}, got)

	got, err = c.KeyRuns(t.Context(), []byte("k"), From(all[3].Sequence))
	require.NoError(t, err)
	require.Equal(t, KeyRuns{Runs: 3, Tables: []KeyTable{table(4, 1), table(7, 2), table(9, 1)}}, got)

	got, err = c.KeyRuns(t.Context(), []byte("nobody"), All())
	require.NoError(t, err)
	require.Zero(t, got)
}

// Records that are not in runs yet are counted apart.
func TestKeyRunsInMemory(t *testing.T) {
	db := openTest(t, newStore(), Options{})
	mustAppend(t, db, record("k", "1"), record("other", ""), record("k", "2"))
	got, err := db.KeyRuns(t.Context(), []byte("k"), All())
	require.NoError(t, err)
	require.Equal(t, KeyRuns{InMemory: 2}, got)
}
