package bench

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func testRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

// polls returns the polls of the first while.
func polls(p *population, until time.Duration) (visits []visit) {
	for {
		v := p.take()
		if v.due >= until {
			return visits
		}
		visits = append(visits, v)
	}
}

// All together poll as often as asked, each at its own cadence, and nobody too often.
func TestPopulationPollsAtItsRate(t *testing.T) {
	for _, shape := range []Cadences{ZipfCadences, EvenCadences} {
		t.Run(string(shape), func(t *testing.T) {
			c := cadence{consumers: 10_000, perSecond: 1000, fastest: 200 * time.Millisecond, shape: shape}
			require.Empty(t, c.faults())
			got := polls(newPopulation(c, testRand(1)), 20*time.Second)
			require.InEpsilon(t, 20*c.perSecond, len(got), 0.05)
			last, count := map[uint32]time.Duration{}, map[uint32]int{}
			for i, v := range got {
				require.True(t, i == 0 || got[i-1].due <= v.due, "in the order in which they are due")
				if before, ok := last[v.consumer]; ok {
					require.GreaterOrEqual(t, v.due-before, c.fastest)
				}
				last[v.consumer] = v.due
				count[v.consumer]++
			}
			most := 0
			for _, n := range count {
				most = max(most, n)
			}
			if shape == EvenCadences {
				require.LessOrEqual(t, most, 3, "once in ten seconds each")
				require.Len(t, count, c.consumers)
			} else {
				require.Equal(t, 100, most, "five times a second")
			}
			require.Equal(t, got, polls(newPopulation(c, testRand(1)), 20*time.Second), "the seed decides everything")
			require.NotEqual(t, got, polls(newPopulation(c, testRand(2)), 20*time.Second))
		})
	}
}

// At any time the share of consumers is offline that was asked for; each comes back after its time, and polls at once.
func TestPopulationIsOfflineForAWhile(t *testing.T) {
	c := cadence{consumers: 1000, perSecond: 10_000, fastest: 100 * time.Millisecond, shape: EvenCadences, offline: 0.2, offlineFor: 3 * time.Second}
	require.Empty(t, c.faults())
	p := newPopulation(c, testRand(1))
	got := polls(p, 30*time.Second)
	require.InEpsilon(t, 0.8*30*c.perSecond, len(got), 0.03)
	require.InEpsilon(t, 0.2*30*c.perSecond, p.left(), 0.1)
	last := map[uint32]time.Duration{}
	gaps := 0
	for _, v := range got {
		if gap := v.due - last[v.consumer]; last[v.consumer] > 0 && gap > 150*time.Millisecond {
			require.GreaterOrEqual(t, gap, c.offlineFor)
			require.Less(t, gap, c.offlineFor+200*time.Millisecond)
			gaps++
		}
		last[v.consumer] = v.due
	}
	require.InEpsilon(t, 2*c.consumers, gaps, 0.1, "once in 15 s each")
}

func TestPopulationFaults(t *testing.T) {
	c := cadence{consumers: 10, perSecond: 1000, fastest: 100 * time.Millisecond, shape: "often", offline: 1}
	require.Len(t, c.faults(), 4)
}

func TestTide(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	d := newTide(100)
	d.saw(ms(1000), 200)
	d.saw(ms(1001), 201) // too soon to be a mark
	d.saw(ms(2000), 300)
	d.saw(ms(3000), 250) // seen by one who was slow
	require.Zero(t, d.age(300, ms(5000)), "at the end")
	require.Equal(t, ms(3000), d.age(299, ms(5000)))
	require.Equal(t, ms(3000), d.age(200, ms(5000)))
	require.Equal(t, ms(4000), d.age(199, ms(5000)))
	require.Equal(t, ms(4000), d.age(100, ms(5000)))
	require.Greater(t, d.age(99, ms(5000)), time.Hour, "behind before it began")
	require.EqualValues(t, 100, d.endAt(ms(999)))
	require.EqualValues(t, 200, d.endAt(ms(1999)))
	require.EqualValues(t, 300, d.endAt(ms(9999)))
	require.EqualValues(t, 100, d.endAt(-ms(1)))
}

// However long a run is, its marks are bounded; ages only get coarser.
func TestTideIsBounded(t *testing.T) {
	d := newTide(0)
	const n = 5 * maxMarks
	for i := 1; i <= n; i++ {
		d.saw(time.Duration(i)*tideStep, uint64(i))
	}
	require.LessOrEqual(t, len(d.marks), maxMarks)
	for _, back := range []int{1000, n / 2, n - 1000} {
		require.InDelta(t, float64(time.Duration(back)*tideStep), float64(d.age(n-uint64(back), n*tideStep)), float64(2*d.step))
	}
}
