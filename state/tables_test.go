package state

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCursors(t *testing.T) {
	tables := New(everything)
	_, ok := tables.Cursor("mailer", []byte("k"))
	require.False(t, ok)
	key := []byte("k")
	tables.SetCursor("mailer", key, 5)
	key[0] = 'x' // it was copied
	next, ok := tables.Cursor("mailer", []byte("k"))
	require.True(t, ok)
	require.EqualValues(t, 5, next)
	_, ok = tables.Cursor("mailer", []byte("x"))
	require.False(t, ok)
	_, ok = tables.Cursor("mail", []byte("k"))
	require.False(t, ok)
	tables.SetCursor("mailer", []byte("k"), 3) // forward only is the caller's rule
	next, _ = tables.Cursor("mailer", []byte("k"))
	require.EqualValues(t, 3, next)

	// What changes nothing has no version.
	version := tables.version
	tables.SetCursor("mailer", []byte("k"), 3)
	tables.DeleteCursor("mailer", []byte("l"))
	tables.DeleteCursor("other", []byte("k"))
	tables.DeleteConsumer("other")
	require.Equal(t, version, tables.version)

	tables.DeleteCursor("mailer", []byte("k"))
	require.Greater(t, tables.version, version)
	consumers, cursors, _ := tables.Counts()
	require.Zero(t, consumers)
	require.Zero(t, cursors)
	checkTables(t, tables)
}

// Pages are complete and in order, whatever their limits; each has one cursor at least.
func TestCursorPages(t *testing.T) {
	tables := New(everything)
	var want []string
	for i := range 1000 {
		key := fmt.Sprintf("%04d", i*3)
		want = append(want, key)
		tables.SetCursor("b", []byte(key), uint64(i))
	}
	tables.SetCursor("a", []byte("9"), 1)
	tables.SetCursor("c", []byte("0"), 1)
	for _, limits := range [][2]int{{1, math.MaxInt}, {7, math.MaxInt}, {1000, math.MaxInt}, {math.MaxInt, 1}, {math.MaxInt, 4}, {math.MaxInt, 13}, {5, 16}} {
		var got []string
		var after []byte
		for more := true; more; {
			var page []Cursor
			page, more = tables.Cursors([]Cursor{{Next: 77}}, "b", after, after != nil, limits[0], limits[1])
			require.EqualValues(t, 77, page[0].Next, "it appends")
			page = page[1:]
			require.NotEmpty(t, page)
			require.LessOrEqual(t, len(page), limits[0])
			require.LessOrEqual(t, len(page), max(1, limits[1]/4))
			for _, c := range page {
				require.EqualValues(t, len(got), c.Next)
				got = append(got, string(c.Key))
			}
			after = page[len(page)-1].Key
		}
		require.Equal(t, want, got)
	}
	// After a key that is not there; after the last; at the empty key; no such consumer.
	page, more := tables.Cursors(nil, "b", []byte("0004"), true, 1, 100)
	require.Equal(t, []Cursor{{[]byte("0006"), 2}}, page)
	require.True(t, more)
	page, _ = tables.Cursors(nil, "b", []byte("0006"), false, 1, 100)
	require.Equal(t, []Cursor{{[]byte("0006"), 2}}, page, "from on")
	page, _ = tables.Cursors(nil, "b", []byte("0004"), false, 1, 100)
	require.Equal(t, []Cursor{{[]byte("0006"), 2}}, page)
	page, more = tables.Cursors(nil, "b", []byte("2997"), true, 1, 100)
	require.Empty(t, page)
	require.False(t, more)
	page, more = tables.Cursors(nil, "b", nil, false, 0, 100)
	require.Empty(t, page)
	require.True(t, more)
	tables.SetCursor("b", nil, 3)
	page, _ = tables.Cursors(nil, "b", nil, false, 1, 100)
	require.Equal(t, []Cursor{{[]byte{}, 3}}, page)
	page, _ = tables.Cursors(nil, "b", nil, true, 1, 100)
	require.Equal(t, []Cursor{{[]byte("0000"), 0}}, page)
	page, more = tables.Cursors(nil, "bb", nil, false, 1, 100)
	require.Empty(t, page)
	require.False(t, more)
	// The keys are the caller's.
	page, _ = tables.Cursors(nil, "a", nil, false, 1, 100)
	page[0].Key[0] = 'x'
	_, ok := tables.Cursor("a", []byte("9"))
	require.True(t, ok)
}

func TestConsumerPages(t *testing.T) {
	tables := New(everything)
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprintf("c%02d", i))
		tables.SetCursor(want[i], []byte("k"), 1)
	}
	for _, limit := range []int{1, 7, 100, math.MaxInt} {
		var got []string
		after := ""
		for more := true; more; {
			got, more = tables.Consumers(got, after, limit)
			after = got[len(got)-1]
		}
		require.Equal(t, want, got)
	}
	list, more := tables.Consumers(nil, "c98x", 1)
	require.Equal(t, []string{"c99"}, list)
	require.False(t, more)
	list, more = tables.Consumers(nil, "", 0)
	require.Empty(t, list)
	require.True(t, more)
}

// Cursors of keys that are not kept are never there, and such tables are never a snapshot.
func TestKeep(t *testing.T) {
	l := Limits{Keep: func(key []byte) bool { return key[0] < 'm' }}
	tables, err := DecodeBase("base", idOf(1), func() []byte {
		all := New(everything)
		all.SetCursor("c", []byte("a"), 1)
		all.SetCursor("c", []byte("z"), 1)
		all.SetCursor("d", []byte("z"), 1)
		all.Mark("p", Mark{Count: 1})
		return all.EncodeBase(idOf(1))
	}(), l)
	require.NoError(t, err)
	tables.SetCursor("e", []byte("z"), 1)
	tables.SetCursor("e", []byte("b"), 1)
	tables.DeleteCursor("e", []byte("z"))
	require.Equal(t, contents{Cursors: map[string]map[string]uint64{"c": {"a": 1}, "e": {"b": 1}}, Producers: map[string][]Mark{}}, contentsOf(t, tables))
	checkTables(t, tables)
	require.Panics(t, func() { tables.EncodeBase(idOf(2)) })
	require.Panics(t, func() { tables.EncodeChanges(idOf(2), idOf(1)) })
}

func TestLookup(t *testing.T) {
	tables := New(Limits{Producers: 2})
	_, found := tables.Lookup("p", 0)
	require.Equal(t, Fresh, found)
	_, found = tables.Lookup("p", 1<<60)
	require.Equal(t, Fresh, found, "any first value")
	_, ok := tables.LastOf("p")
	require.False(t, ok)
	for i := range uint64(100) {
		tables.Mark("p", Mark{Sequence: 1000 + i, First: 10 * i, Count: uint32(i + 1), Timestamp: int64(i)})
	}
	last, ok := tables.LastOf("p")
	require.True(t, ok)
	require.EqualValues(t, 1099, last)
	for sequence, want := range map[uint64]Found{
		0: TooOld, 1035: TooOld, 1036: Repeat, 1098: Repeat, 1099: Repeat, 1100: Fresh, 1101: Gap, math.MaxUint64: Gap,
	} {
		m, found := tables.Lookup("p", sequence)
		require.Equal(t, want, found, "%d", sequence)
		if found == Repeat {
			i := sequence - 1000
			require.Equal(t, Mark{Sequence: sequence, First: 10 * i, Count: uint32(i + 1), Timestamp: int64(i)}, m)
		} else {
			require.Zero(t, m)
		}
	}
	// The last possible sequence has no next one.
	tables.Mark("q", Mark{Sequence: math.MaxUint64, First: 2000, Count: 1})
	_, found = tables.Lookup("q", 0)
	require.Equal(t, TooOld, found)
	_, found = tables.Lookup("q", math.MaxUint64)
	require.Equal(t, Repeat, found)

	// One that does not follow begins anew: its producer had been forgotten under a lower limit.
	tables.Mark("p", Mark{Sequence: 7, First: 3000, Count: 1})
	_, found = tables.Lookup("p", 1099)
	require.Equal(t, Gap, found)
	_, found = tables.Lookup("p", 6)
	require.Equal(t, TooOld, found)

	// A third one: the one that appended longest ago is forgotten.
	tables.Mark("r", Mark{Sequence: 1, First: 4000, Count: 1})
	_, ok = tables.LastOf("q")
	require.False(t, ok)
	_, ok = tables.LastOf("p")
	require.True(t, ok)
	checkTables(t, tables)

	none := New(Limits{})
	none.Mark("p", Mark{Sequence: 1, Count: 1})
	_, _, producers := none.Counts()
	require.Zero(t, producers)
	require.Zero(t, none.ChangesBytes())
}

// A lower limit than that under which the object was written: those that appended longest ago go, whatever their names, and the
// tables differ from the objects in force.
func TestLowerLimitOfProducers(t *testing.T) {
	all := New(everything)
	for i := range uint64(10) {
		all.Mark(fmt.Sprintf("p%d", i*7%10), Mark{Sequence: 1, First: 100 + i, Count: 1})
	}
	body := all.EncodeBase(idOf(1))
	all.Rebase(all.Clone())
	all.Mark("p0", Mark{Sequence: 2, First: 200, Count: 1}) // was the oldest
	changes := all.EncodeChanges(idOf(2), idOf(1))

	tables, err := DecodeBase("base", idOf(1), body, Limits{Producers: 3})
	require.NoError(t, err)
	require.Positive(t, tables.ChangesBytes())
	require.Equal(t, []string{"p3", "p6", "p9"}, slices.Sorted(producersOf(tables)))
	require.NoError(t, tables.DecodeChanges("changes", idOf(2), idOf(1), changes))
	require.Equal(t, []string{"p0", "p3", "p6"}, slices.Sorted(producersOf(tables)))
	checkTables(t, tables)

	// Written as changes of that base, it is read as it is.
	again, err := DecodeBase("base", idOf(1), body, everything)
	require.NoError(t, err)
	require.NoError(t, again.DecodeChanges("changes", idOf(3), idOf(1), tables.EncodeChanges(idOf(3), idOf(1))))
	require.Equal(t, contentsOf(t, tables), contentsOf(t, again))

	tables, err = DecodeBase("base", idOf(1), body, Limits{})
	require.NoError(t, err)
	require.Zero(t, tables.ChangesBytes())
	require.Zero(t, tables.producers.Len())
}

func producersOf(t *Tables) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		t.producers.Ascend(func(p producerItem) bool { return yield(p.name) })
	}
}

// Changes are what changed since the snapshot that is the base, also when it changed while that was written.
func TestRebase(t *testing.T) {
	tables := New(everything)
	tables.SetCursor("c", []byte("a"), 1)
	tables.SetCursor("c", []byte("z"), 1)
	first := tables.Clone()
	tables.SetCursor("c", []byte("b"), 1)
	tables.DeleteCursor("c", []byte("z"))
	second := tables.Clone()
	tables.DeleteConsumer("c")
	for _, c := range []*Tables{tables, second} {
		c.Rebase(first)
		c.Rebase(first)
		c.Rebase(New(everything)) // an older one takes nothing back
	}
	info, err := Verify("changes", idOf(2), second.EncodeChanges(idOf(2), idOf(1)))
	require.NoError(t, err)
	require.Equal(t, Counts{Frames: 1, Consumers: 1, Cursors: 1, CursorsGone: 1}, info.Counts, "only what came after the first clone")
	info, err = Verify("changes", idOf(2), tables.EncodeChanges(idOf(2), idOf(1)))
	require.NoError(t, err)
	require.Equal(t, Counts{Frames: 1, Consumers: 1}, info.Counts)
	tables.Rebase(second)
	require.Positive(t, tables.ChangesBytes())
	tables.Rebase(tables.Clone())
	require.Zero(t, tables.ChangesBytes())
	checkTables(t, tables)
}

// Tables and their clones are changed in goroutines of their own: run with -race.
func TestClonesAreIndependent(t *testing.T) {
	tables := rich(true)
	for i := range 1000 {
		tables.SetCursor("mailer", fmt.Appendf(nil, "user/%d", i), uint64(i))
	}
	want := contentsOf(t, tables)
	clones := []*Tables{tables.Clone(), tables.Clone(), tables.Clone()}
	frozen := tables.Clone()
	var wg sync.WaitGroup
	for n, c := range append(clones, tables) {
		wg.Go(func() {
			for i := range 1000 {
				switch i % 5 {
				case 0:
					c.DeleteCursor("mailer", fmt.Appendf(nil, "user/%d", i))
				case 1:
					c.Mark("edge-1", Mark{Sequence: uint64(45 + i/5), First: uint64(3000 + i), Count: uint32(n + 1)})
				default:
					c.SetCursor("mailer", fmt.Appendf(nil, "user/%d", i), uint64(n))
				}
				if i == 500 {
					c.Rebase(frozen)
				}
			}
		})
	}
	wg.Go(func() {
		body := frozen.EncodeBase(idOf(1))
		_, err := Verify("base", idOf(1), body)
		require.NoError(t, err)
	})
	wg.Wait()
	require.Equal(t, want, contentsOf(t, frozen))
	for n, c := range append(clones, tables) {
		checkTables(t, c)
		next, ok := c.Cursor("mailer", []byte("user/4"))
		require.True(t, ok)
		require.EqualValues(t, n, next)
	}
}

// Many cursors of a consumer that go leave no sparse blocks behind.
func TestBlocksAreJoined(t *testing.T) {
	tables := New(everything)
	for i := range 64_000 {
		tables.SetCursor("c", fmt.Appendf(nil, "%08d", i), 1)
	}
	blocks := tables.cursors.tree.Len()
	for i := range 64_000 {
		if i%50 > 0 {
			tables.DeleteCursor("c", fmt.Appendf(nil, "%08d", i))
		}
	}
	checkTables(t, tables)
	require.Less(t, tables.cursors.tree.Len(), blocks/8, "a block has 8 cursors at least, on average")
	for i := 0; i < 64_000; i += 50 {
		tables.DeleteCursor("c", fmt.Appendf(nil, "%08d", i))
	}
	require.Zero(t, tables.cursors.tree.Len())
	require.Zero(t, tables.goneCursors.tree.Len(), "the consumer as a whole is gone")
	checkTables(t, tables)
}
