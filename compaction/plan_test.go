package compaction

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/manifest"
)

func TestLimitsValidate(t *testing.T) {
	require.NoError(t, Limits{}.Validate())
	err := Limits{FanIn: 1, SegmentBytes: -1, MergeWithin: -1, TableBytes: -1, BlockBytes: 1, ReadAhead: 1}.Validate()
	for _, what := range []string{"fan-in", "segment bytes", "merge span", "table bytes", "block bytes", "read-ahead"} {
		require.ErrorContains(t, err, what)
	}
	require.Panics(t, func() { Plan(newTree(Limits{}).s, Limits{FanIn: 1}) })
	require.Equal(t, 8*16+15*7, Limits{}.MaxActiveRuns())
}

func TestTier(t *testing.T) {
	for _, c := range []struct {
		b    uint64
		want int
	}{{1 << 62, 1}, {128 * mib, 1}, {128*mib - 1, 1}, {8 * mib, 1}, {8*mib - 1, 2}, {512 * kib, 2}, {512*kib - 1, 3}, {1, 7}, {0, 7}} {
		require.Equal(t, c.want, tier(c.b, 128*mib, 16), "%d bytes", c.b)
	}
	require.Equal(t, 1, tiers(1, 2))
}

// repeat makes n items of a size.
func repeat(n int, size uint64) []uint64 { return slices.Repeat([]uint64{size}, n) }

func TestPickTier(t *testing.T) {
	const s, f = 4096, 4 // tiers from 1: [1024, ...), [256, 1024), [64, 256), ...
	for name, c := range map[string]struct {
		sizes []uint64
		want  window
	}{
		"none":                         {nil, window{}},
		"too few":                      {repeat(3, 2000), window{}},
		"four":                         {repeat(4, 2000), window{0, 4}},
		"the oldest four":              {repeat(9, 2000), window{0, 4}},
		"the smallest tier first":      {append(repeat(4, 2000), repeat(4, 70)...), window{4, 8}},
		"gaps are the smallest tier":   {repeat(4, 0), window{0, 4}},
		"ordinary ladder":              {[]uint64{2000, 2000, 300, 300, 300, 70, 70}, window{}},
		"small before large: ranked":   {[]uint64{70, 2000, 2000, 2000}, window{0, 4}},
		"one large one: its elders":    {[]uint64{70, 70, 70, 2000}, window{0, 3}},
		"no pair of elders: all":       {[]uint64{2000, 1, 1500, 1, 1024, 1}, window{0, 4}},
		"large first, stuck ones":      {[]uint64{4000, 1, 1, 1, 1100}, window{1, 4}},
		"stuck ones by the longest":    {[]uint64{1, 1, 4000, 1, 1, 1, 1, 1, 1100}, window{3, 7}},
		"huge, never merged: tier 1":   {repeat(4, 1<<40), window{0, 4}},
		"sums beyond 64 bits are fine": {repeat(4, 1<<63), window{0, 4}},
	} {
		require.Equal(t, c.want, pickTier(c.sizes, s, f), name)
	}
}

func TestPickCheapestAndClosed(t *testing.T) {
	require.Equal(t, window{0, 4}, pickCheapest([]uint64{1, 2, 3, 4}, 4))
	require.Equal(t, window{2, 4}, pickCheapest([]uint64{9, 2, 1, 1, 9}, 4), "two, so that the next merge is full")
	require.Equal(t, window{1, 5}, pickCheapest([]uint64{9, 1, 1, 1, 1, 1, 9, 9}, 4))
	require.Equal(t, window{0, 4}, pickCheapest(repeat(100, 5), 4), "the oldest of equals")

	require.Equal(t, window{0, 3}, pickClosed([]uint64{5, 5, 5}, 4))
	require.Equal(t, window{}, pickClosed([]uint64{5, 100}, 4), "a lot would be rewritten for little")
	require.Equal(t, window{1, 3}, pickClosed([]uint64{100, 5, 5}, 4))
	require.Equal(t, window{}, pickClosed([]uint64{5}, 4))
	require.Equal(t, window{}, pickClosed(nil, 4))
	require.Equal(t, window{1, 3}, pickClosed([]uint64{100, 1, 1, 1, 1}, 4), "too many of them: whatever the sizes")
}

func TestPlanTable(t *testing.T) {
	hour := time.Hour
	for name, c := range map[string]struct {
		build func(*tree)
		want  []string
	}{
		"empty": {func(*tree) {}, nil},
		"active below the fan-in": {func(t *tree) {
			for range 15 {
				t.flush(64 * mib)
			}
		}, nil},
		"relief": {func(t *tree) {
			for range 20 {
				t.flush(64 * mib)
			}
		}, []string{"relieve 1-1: 16"}},
		"a sealed segment with one run": {func(t *tree) { t.flush(mib); t.seal(hour) }, nil},
		"consolidation, with a gap": {func(t *tree) {
			t.flush(mib)
			t.flush(0)
			t.flush(mib)
			t.seal(hour)
		}, []string{"consolidate 1-1: 3"}},
		"a very fragmented segment comes in parts": {func(t *tree) {
			for range 200 {
				t.flush(mib)
			}
			t.seal(hour)
		}, []string{"consolidate 1-1: 64"}},
		"relief comes before consolidation": {func(t *tree) {
			t.flush(mib)
			t.flush(mib)
			t.seal(hour)
			for range 16 {
				t.flush(mib)
			}
		}, []string{"relieve 2-2: 16", "consolidate 1-1: 2"}},
		"a merge waits for a consolidation": {func(t *tree) {
			for i := range 16 {
				t.flush(mib)
				if i == 5 {
					t.flush(mib)
				}
				t.seal(time.Duration(i) * hour)
			}
		}, []string{"consolidate 6-6: 2"}},
		"sixteen small segments": {func(t *tree) {
			for i := range 17 {
				t.flush(mib)
				t.seal(time.Duration(i) * hour)
			}
		}, []string{"merge 1-16: 16"}},
		"fifteen small segments wait": {func(t *tree) {
			for i := range 15 {
				t.flush(mib)
				t.seal(time.Duration(i) * hour)
			}
		}, nil},
		"a full segment closes a series": {func(t *tree) {
			for i := range 3 {
				t.flush(mib)
				t.seal(time.Duration(i) * hour)
			}
			t.flush(9 * gib)
			t.seal(4 * hour)
		}, []string{"merge 1-3: 3"}},
		"large segments are merged until they are full": {func(t *tree) {
			for i := range 4 {
				t.flush(6 * gib)
				t.seal(time.Duration(i) * hour)
			}
		}, []string{"merge 1-3: 3"}},
		"a series ends after 31 days": {func(t *tree) {
			for i := range 7 {
				t.flush(mib)
				t.seal(time.Duration(i) * 10 * 24 * hour)
			}
		}, []string{"merge 1-4: 4"}},
	} {
		tree := newTree(Limits{})
		c.build(tree)
		tree.requireValid(t)
		var got []string
		for _, j := range Plan(tree.s, tree.l) {
			got = append(got, fmt.Sprintf("%s %d-%d: %d", j.Kind, j.First, j.Last, len(j.Inputs)))
		}
		require.Equal(t, c.want, got, name)
		tree.settle(t)
		tree.requireValid(t)
	}
}

func TestJobString(t *testing.T) {
	tree := newTree(Limits{FanIn: 2})
	tree.flush(1000)
	tree.seal(time.Hour)
	tree.flush(2000)
	tree.seal(2 * time.Hour)
	jobs := Plan(tree.s, tree.l)
	require.Len(t, jobs, 1)
	require.Equal(t, "merge segments 1 to 2: 2 runs, 20 records, 3000 bytes, 1700 stored", jobs[0].String())
	require.Equal(t, "Kind(9)", Kind(9).String())
}

// What the active segment costs: bytes rewritten for each byte flushed, and the most
// runs there were. The planner works after each flush.
func TestActiveSegmentIsBounded(t *testing.T) {
	for _, c := range []struct {
		name    string
		sizes   func(i int) uint64
		flushes int
		rewrite float64 // at most, while active
		runs    int
	}{
		{"16 GiB of 64 MiB flushes", func(int) uint64 { return 64 * mib }, 256, 1, 31},
		{"16 GiB of 20 to 60 MiB flushes", func(i int) uint64 { return uint64(20+i*7%41) * mib }, 400, 1, 40},
		{"16 GiB of 256 MiB flushes", func(int) uint64 { return 256 * mib }, 64, 1, 19},
		{"16 GiB of 4 MiB flushes", func(int) uint64 { return 4 * mib }, 4096, 2, 46},
		{"tiny flushes", func(int) uint64 { return 1000 }, 50_000, 4, 80},
		{"empty flushes", func(int) uint64 { return 0 }, 3000, 0, 16},
		{"tiny ones among full ones", func(i int) uint64 {
			if i%3 == 0 {
				return 64 * mib
			}
			return 2000
		}, 768, 1, 64},
		{"one full one among 15 tiny ones", func(i int) uint64 {
			if i%16 == 15 {
				return 64 * mib
			}
			return 2000
		}, 4096, 1.1, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := newTree(Limits{})
			var flushed uint64
			most := 0
			for i := range c.flushes {
				tree.flush(c.sizes(i))
				flushed += c.sizes(i)
				tree.settle(t)
				most = max(most, len(tree.active().Runs))
			}
			tree.requireValid(t)
			rewritten := float64(tree.moved[Relieve]) / float64(max(flushed, 1))
			t.Logf("rewritten %.2f times, at most %d runs, at the end %d, %d jobs", rewritten, most, len(tree.active().Runs), tree.jobs[Relieve])
			require.LessOrEqual(t, rewritten, c.rewrite)
			require.LessOrEqual(t, most, c.runs)
			require.LessOrEqual(t, most, tree.l.MaxActiveRuns())

			tree.seal(time.Hour)
			tree.settle(t)
			require.Len(t, tree.all(), 1, "one segment with one run")
			require.LessOrEqual(t, float64(tree.moved[Consolidate]), 1.3*float64(flushed), "consolidation")
		})
	}
}

// A slow log: one record an hour for a year, a segment each.
func TestYearOfTinySegments(t *testing.T) {
	tree := newTree(Limits{})
	most := 0
	for h := range 365 * 24 {
		at := time.Duration(h) * time.Hour
		tree.flush(100)
		tree.active().StartTimeMs = at.Milliseconds()
		tree.seal(at + 30*time.Minute)
		before := tree.moved[Merge]
		tree.settle(t)
		require.LessOrEqual(t, tree.moved[Merge]-before, uint64(32*24*100), "one more tiny segment never rewrites more than a month")
		most = max(most, len(tree.s.Segments))
		requireSettled(t, tree)
	}
	tree.requireValid(t)
	rewritten := float64(tree.moved[Merge]) / float64(365*24*100)
	t.Logf("%d groups and %d segments at the end, at most %d, rewritten %.2f times by %d jobs",
		len(tree.s.Groups), len(tree.s.Segments), most, rewritten, tree.jobs[Merge])
	require.LessOrEqual(t, most, 1+2+15+15+3)
	require.LessOrEqual(t, len(tree.all()), 12+2+15+15+3)
	require.LessOrEqual(t, rewritten, 4.0)
	requireSpans(t, tree, 31*24*time.Hour)
}

// requireSpans checks that no merged segment holds data that retention would have
// dropped earlier by more than within: segment ids are hours here.
func requireSpans(t *testing.T, tree *tree, within time.Duration) {
	for _, g := range tree.all() {
		require.LessOrEqual(t, time.Duration(g.LastSegment-g.FirstSegment)*time.Hour, within, "segments %d to %d", g.FirstSegment, g.LastSegment)
	}
}

// Retention of a week drops segments meanwhile: at most a tenth of it goes into one.
func TestMergingUnderRetention(t *testing.T) {
	const retention = 7 * 24 * time.Hour
	tree := newTree(Limits{MergeWithin: retention / 10})
	var flushed uint64
	for h := range 24 * 60 {
		at := time.Duration(h) * time.Hour
		size := uint64(100+h%50) * mib
		flushed += size
		tree.flush(size)
		tree.active().StartTimeMs = at.Milliseconds()
		tree.seal(at)
		tree.retain(t, (at - retention).Milliseconds())
		tree.settle(t)
		requireSpans(t, tree, retention/10)
		requireSettled(t, tree)
		require.LessOrEqual(t, len(tree.all()), 40)
	}
	rewritten := float64(tree.moved[Merge]) / float64(flushed)
	t.Logf("%d segments, rewritten %.2f times", len(tree.all()), rewritten)
	require.LessOrEqual(t, rewritten, 1.1)
	require.LessOrEqual(t, len(tree.all()), 11+17)
}

// Whatever comes: jobs apply, states stay valid, planning ends, and what is left is
// bounded.
func TestPlanProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := Limits{
			FanIn:        rapid.SampledFrom([]int{2, 3, 4, 16}).Draw(rt, "fan-in"),
			SegmentBytes: rapid.SampledFrom([]int64{1, 1000, 1 << 20, 1 << 34}).Draw(rt, "segment bytes"),
			MergeWithin:  time.Duration(rapid.SampledFrom([]int{1, 100, 1 << 30}).Draw(rt, "within")) * time.Second,
		}
		tree := newTree(l)
		var at time.Duration
		size := rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(1, 300), rapid.Uint64Range(1, uint64(l.SegmentBytes)))
		var active uint64
		for range rapid.IntRange(1, 250).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1:
				if active > 0 {
					at += time.Duration(rapid.IntRange(-1, 50).Draw(rt, "pause")) * time.Second
					tree.seal(at)
					active = 0
				}
			case 2:
				tree.settle(rt)
			case 3: // only some of the jobs are done
				for _, j := range Plan(tree.s, l) {
					if rapid.Bool().Draw(rt, "do") {
						tree.apply(rt, j)
					}
				}
			default:
				b := size.Draw(rt, "bytes")
				if active+b <= uint64(l.SegmentBytes) {
					tree.flush(b)
					active += b
				}
			}
			require.NoError(rt, manifest.Validate(tree.s))
			checkJobs(rt, tree.s, l)
		}
		tree.settle(rt)
		require.NoError(rt, manifest.Validate(tree.s))
		require.LessOrEqual(rt, len(tree.active().Runs), l.MaxActiveRuns())
		requireSettled(rt, tree)
		for _, g := range tree.s.Segments {
			require.True(rt, !g.Sealed || len(g.Runs) == 1)
		}
	})
}

// checkJobs checks what Plan promises of every list of jobs.
func checkJobs(t *rapid.T, s *manifest.State, l Limits) {
	jobs := Plan(s, l)
	require.Equal(t, fmt.Sprint(jobs), fmt.Sprint(Plan(s, l)), "planning is repeatable")
	touched := map[uint32]bool{}
	kind := Relieve
	for _, j := range jobs {
		require.GreaterOrEqual(t, j.Kind, kind, "urgent ones come first")
		kind = j.Kind
		if j.Kind != Group {
			require.GreaterOrEqual(t, len(j.Inputs), 2)
			require.LessOrEqual(t, len(j.Inputs), inputsPerFanIn*l.FanIn)
		}
		for _, g := range s.Groups {
			if g.LastSegment >= j.First && g.FirstSegment <= j.Last {
				require.Equal(t, Group, j.Kind)
				require.True(t, g.FirstSegment >= j.First && g.LastSegment <= j.Last, "a part of group %x", g.Id)
				require.False(t, touched[g.LastSegment], "group %x is in two jobs", g.Id)
				touched[g.LastSegment] = true
			}
		}
		for _, g := range s.Segments {
			if g.Id >= j.First && g.Id <= j.Last {
				require.False(t, touched[g.Id], "segment %d is in two jobs", g.Id)
				touched[g.Id] = true
				require.Equal(t, j.Kind != Relieve, g.Sealed)
			}
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	tree := newTree(Limits{})
	for i := range 4000 {
		tree.flush(uint64(1+i%7) * gib)
		tree.seal(time.Duration(i) * time.Hour)
	}
	for range 200 {
		tree.flush(mib)
	}
	for b.Loop() {
		Plan(tree.s, tree.l)
	}
}
