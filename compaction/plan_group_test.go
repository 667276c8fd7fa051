package compaction

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/manifest"
)

// mostLoose is the bound of docs/COMPACTION.md on segments that are in no group, when there is nothing to do.
func mostLoose(l Limits) int {
	l = l.checked()
	return (l.FanIn-1)*tiers(l.fullBytes(), l.FanIn) + 1
}

// mostGroups is its bound on groups.
func mostGroups(groups []*manifest.Group) int {
	weight := 0.0
	for _, g := range groups {
		weight += float64(g.Segments)/manifest.MaxGroupSegments +
			float64(g.Keys)*float64(manifest.EntryBytes(manifest.MaxGroupSegments))/manifest.MaxEntryBytes +
			float64(g.Tables)/manifest.MaxGroupTables
	}
	return int(2*weight) + 10
}

// requireSettled checks what must hold when there is nothing to do: bounded lines in
// MANIFEST, and nothing waits for what can not come any more.
func requireSettled(tb require.TestingT, t *tree) {
	l := t.l.checked()
	require.Empty(tb, Plan(t.s, t.l))
	require.LessOrEqual(tb, len(t.s.Segments), mostLoose(l))
	require.LessOrEqual(tb, len(t.s.Groups), mostGroups(t.s.Groups))
	series := cutSeries(t.s, l)
	require.LessOrEqual(tb, len(series), 1, "closed series leave")
	if len(series) == 1 {
		require.False(tb, series[0].closed)
	}
}

func TestPlanGroups(t *testing.T) {
	full := func(t *tree, n int) {
		for range n {
			t.flush(9 * gib)
			t.seal(time.Duration(len(t.s.Segments)) * time.Hour)
		}
	}
	for name, c := range map[string]struct {
		build func(*tree)
		want  []string
	}{
		"an active segment only": {func(t *tree) {
			for range 10 {
				t.flush(9 * gib)
			}
		}, nil},
		"one sealed segment that others may join": {func(t *tree) { t.flush(mib); t.seal(time.Hour) }, nil},
		"a full one":                             {func(t *tree) { full(t, 1) }, []string{"group 1-1: 0+1"}},
		"several full ones: one after the other": {func(t *tree) { full(t, 5) }, []string{"group 1-1: 0+1"}},
		"not before it is consolidated": {func(t *tree) {
			t.flush(9 * gib)
			full(t, 1)
		}, []string{"consolidate 1-1: 0+0"}},
		"not while its series is merged": {func(t *tree) {
			for range 3 {
				t.flush(mib)
				t.seal(time.Hour)
			}
			full(t, 1)
		}, []string{"merge 1-3: 0+0"}},
		"not behind a segment that waits": {func(t *tree) {
			t.flush(mib)
			t.seal(time.Hour)
			t.flush(mib)
			t.seal(2 * time.Hour)
			full(t, 1)
			t.flush(mib)
		}, []string{"merge 1-2: 0+0"}},
		"a small one that nobody may join": {func(t *tree) {
			t.flush(mib)
			t.seal(time.Hour)
			t.flush(mib)
			t.seal(40 * 24 * time.Hour)
		}, []string{"group 1-1: 0+1"}},
		"too different to be merged": {func(t *tree) {
			t.flush(mib)
			t.seal(time.Hour)
			t.flush(7 * gib)
			t.seal(2 * time.Hour)
			full(t, 1)
		}, []string{"group 1-1: 0+1"}},
	} {
		tree := newTree(Limits{})
		c.build(tree)
		var got []string
		for _, j := range Plan(tree.s, tree.l) {
			got = append(got, fmt.Sprintf("%s %d-%d: %d+%d", j.Kind, j.First, j.Last, len(j.Groups), len(j.Segments)))
		}
		require.Equal(t, c.want, got, name)
		tree.settle(t)
		tree.requireValid(t)
		requireSettled(t, tree)
	}
}

// groups makes a tree with groups of so many live segments and keys, and an active segment.
func groups(tb testing.TB, keys uint64, segments ...int) *tree {
	t := newTree(Limits{})
	for _, n := range segments {
		var parts []*manifest.Group
		for range n {
			t.flush(9 * gib)
			t.seal(time.Hour)
			parts = append(parts, partOf(t.s.Segments[0]))
			t.s.Segments = t.s.Segments[1:]
		}
		t.keysOf = func(uint32, uint32) uint64 { return keys }
		t.s.Groups = append(t.s.Groups, t.groupOf(parts))
	}
	t.requireValid(tb)
	return t
}

func TestPlanRegroups(t *testing.T) {
	for name, c := range map[string]struct {
		keys     uint64
		segments []int
		want     []string // inputs of each job
	}{
		"none":                             {0, nil, nil},
		"seven of one":                     {0, repeatInt(7, 1), nil},
		"eight of one":                     {0, repeatInt(8, 1), []string{"1-8"}},
		"sixteen of one: two jobs":         {0, repeatInt(17, 1), []string{"1-8", "9-16"}},
		"behind seven of eight":            {0, append(repeatInt(7, 8), repeatInt(8, 1)...), []string{"1-56", "57-64"}},
		"two of eight":                     {0, []int{8, 8, 1}, []string{"1-16"}},
		"eight of eight":                   {0, append(repeatInt(8, 8), repeatInt(7, 1)...), []string{"1-64"}},
		"both at once":                     {0, append(repeatInt(8, 8), repeatInt(8, 1)...), []string{"1-64", "65-72"}},
		"full ones stay":                   {0, repeatInt(20, 64), nil},
		"a trimmed one before a full one":  {0, []int{3, 64, 1, 1}, nil},
		"a trimmed one counts as its next": {0, []int{3, 8, 8, 8, 8, 8, 8, 8}, []string{"1-59"}},
		"as many as fit":                   {0, append([]int{40}, repeatInt(7, 8)...), []string{"1-64", "65-96"}},
		"one that fits with none":          {0, append([]int{60}, repeatInt(8, 8)...), []string{"61-124"}},
		"only that, and one more":          {0, []int{60, 8, 1}, nil},
		"a stretch between full ones":      {0, append(append([]int{64}, repeatInt(8, 8)...), 64), []string{"65-128"}},
		"many keys":                        {3_000_000, repeatInt(8, 1), []string{"1-4"}},
		"so many that two fit":             {6_000_000, repeatInt(9, 1), []string{"1-2"}},
		"more than two hold":               {7_000_000, repeatInt(8, 1), nil},
		"wide masks":                       {1_000_000, repeatInt(8, 8), []string{"1-48", "49-64"}},
		"an index without entries":         {0, repeatInt(8, 2), []string{"1-16"}},
	} {
		tree := groups(t, c.keys, c.segments...)
		var got []string
		jobs := Plan(tree.s, tree.l)
		for _, j := range jobs {
			require.Equal(t, Group, j.Kind)
			got = append(got, fmt.Sprintf("%d-%d", j.First, j.Last))
		}
		require.Equal(t, c.want, got, name)
		tree.settle(t)
		tree.requireValid(t)
		requireSettled(t, tree)
	}
}

func repeatInt(n, of int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = of
	}
	return s
}

// Too many tables for one index: each group stays within the bound.
func TestPlanRegroupsByTables(t *testing.T) {
	tree := groups(t, 0, repeatInt(8, 1)...)
	for _, g := range tree.s.Groups {
		g.Tables = manifest.MaxGroupTables / 3
	}
	jobs := Plan(tree.s, tree.l)
	require.Len(t, jobs, 1)
	require.Len(t, jobs[0].Groups, 3)
}

func TestPlanChangesNothing(t *testing.T) {
	tree := groups(t, 1000, append(repeatInt(8, 8), repeatInt(8, 1)...)...)
	tree.flush(9 * gib)
	tree.seal(time.Hour)
	before := manifest.EncodeState(tree.s)
	require.Len(t, Plan(tree.s, tree.l), 3)
	require.Equal(t, before, manifest.EncodeState(tree.s))
	require.Equal(t, "group segments 1 to 64: 8 groups, 0 segments, 640 records, 618475290624 bytes, 309237651712 stored",
		Plan(tree.s, tree.l)[0].String())
}

// Years of segments of all sizes: what MANIFEST lists stays bounded, with and without
// retention.
func TestYearsOfSegments(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine, and long")
	}
	const day = 24 * time.Hour
	rng := new(rand.Rand)
	for _, c := range []struct {
		name      string
		years     int
		every     time.Duration
		size      func(i int) uint64
		retention time.Duration
		keys      func(first, last uint32) uint64
		groups    int // most lines of groups beside those of 64 segments
		loose     int // most segments in no group
	}{
		{name: "a full one in two hours", years: 1, every: 2 * time.Hour, size: func(int) uint64 { return 16 * gib }, groups: 8, loose: 1},
		{name: "with a retention of 90 days", years: 1, every: 2 * time.Hour, size: func(int) uint64 { return 16 * gib }, retention: 90 * day, groups: 9, loose: 1},
		{name: "100 MiB in two hours", years: 2, every: 2 * time.Hour, size: func(int) uint64 { return 100 * mib }, groups: 8, loose: 25},
		{name: "a tiny one an hour", years: 1, every: time.Hour, size: func(int) uint64 { return 100 }, groups: 7, loose: 38},
		{name: "one a month", years: 100, every: 40 * day, size: func(int) uint64 { return 1000 }, groups: 8, loose: 2},
		{name: "one a day, a month of retention", years: 5, every: day, size: func(int) uint64 { return gib }, retention: 30 * day, groups: 9, loose: 12},
		{name: "all sizes", years: 1, every: time.Hour, size: func(int) uint64 { return uint64(1) << rng.IntN(35) }, groups: 8, loose: 38},
		{name: "all sizes, a retention of half a year", years: 1, every: 2 * time.Hour,
			size: func(int) uint64 { return uint64(1) << rng.IntN(35) }, retention: 180 * day, groups: 9, loose: 37},
		{name: "4 million new keys each", years: 1, every: 8 * time.Hour, size: func(int) uint64 { return 16 * gib },
			keys: func(first, last uint32) uint64 { return 4_000_000 * uint64(last-first+1) }, groups: 369, loose: 1},
		{name: "the same 4 million keys", years: 1, every: 8 * time.Hour, size: func(int) uint64 { return 16 * gib },
			keys: func(uint32, uint32) uint64 { return 4_000_000 }, groups: 46, loose: 1},
		{name: "the same 500,000 keys", years: 1, every: 8 * time.Hour, size: func(int) uint64 { return 16 * gib },
			keys: func(uint32, uint32) uint64 { return 500_000 }, groups: 9, loose: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			*rng = *rand.New(rand.NewPCG(1, 2))
			l := Limits{}
			if c.retention > 0 {
				l.MergeWithin = c.retention / 10
			}
			tree := newTree(l)
			tree.keysOf = c.keys
			var most, loose, notFull int
			n := int(time.Duration(c.years) * 365 * day / c.every)
			for i := range n {
				at := time.Duration(i+1) * c.every
				tree.flush(c.size(i))
				tree.active().StartTimeMs = (at - c.every/2).Milliseconds()
				tree.seal(at)
				if c.retention > 0 {
					tree.retain(t, (at - c.retention).Milliseconds())
				}
				tree.settle(t)
				if i%10 == 0 {
					requireSettled(t, tree)
				}
				notFull = 0
				for _, g := range tree.s.Groups {
					if g.Segments < manifest.MaxGroupSegments {
						notFull++
					}
				}
				most, loose = max(most, notFull), max(loose, len(tree.s.Segments))
			}
			tree.requireValid(t)
			t.Logf("%d seals: %d full groups, %d others, of %d segments; at most %d not full and %d segments in none; %d merges, %d group jobs",
				n, len(tree.s.Groups)-notFull, notFull, len(tree.all()), most, loose, tree.jobs[Merge], tree.jobs[Group])
			require.LessOrEqual(t, most, c.groups)
			require.LessOrEqual(t, loose, c.loose)
		})
	}
}

// Whatever comes, in whatever order jobs end, and some of them never: states stay valid
// and bounded.
func TestPlanGroupsProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := Limits{
			FanIn:        rapid.SampledFrom([]int{2, 4, 16}).Draw(rt, "fan-in"),
			SegmentBytes: 1000,
			MergeWithin:  time.Duration(rapid.SampledFrom([]int{1, 20, 1000}).Draw(rt, "within")) * time.Second,
		}
		tree := newTree(l)
		unit := rapid.SampledFrom([]uint64{0, 1000, 300_000, 2_000_000, 9_000_000}).Draw(rt, "keys")
		again := rapid.Bool().Draw(rt, "keys recur")
		tree.keysOf = func(first, last uint32) uint64 {
			if again {
				return unit
			}
			return min(unit*uint64(last-first+1), manifest.MaxEntryBytes/6)
		}
		var at time.Duration
		for range rapid.IntRange(1, 400).Draw(rt, "steps") {
			switch rapid.IntRange(0, 19).Draw(rt, "step") {
			case 0:
				tree.settle(rt)
				requireSettled(rt, tree)
			case 1, 2, 3: // only some of the jobs are done
				for _, j := range Plan(tree.s, l) {
					if rapid.Bool().Draw(rt, "do") {
						tree.apply(rt, j)
					}
				}
			case 4:
				tree.retain(rt, (at - time.Duration(rapid.IntRange(0, 2000).Draw(rt, "retention"))*time.Second).Milliseconds())
			default:
				tree.flush(rapid.Uint64Range(1, 1200).Draw(rt, "bytes"))
				at += time.Duration(rapid.IntRange(-1, 20).Draw(rt, "pause")) * time.Second
				tree.seal(max(0, at))
			}
			require.NoError(rt, manifest.Validate(tree.s))
			checkJobs(rt, tree.s, l)
		}
		tree.settle(rt)
		requireSettled(rt, tree)
		require.NoError(rt, manifest.Validate(tree.s))
	})
}
