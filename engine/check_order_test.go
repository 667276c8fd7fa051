package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The order of a run is checked alike with every record at hand and in spans, but for
// timestamps that fall within a span.
func TestOrderChecker(t *testing.T) {
	type rec = sequenceTime
	for name, c := range map[string]struct {
		end    uint64
		recs   []rec
		last   int64
		want   string // "": all is well
		missed bool   // in spans

	}{
		"empty":                         {end: 10},
		"gaps":                          {end: 100, recs: []rec{{3, 5}, {90, 5}, {40, 5}}, last: 5},
		"twice":                         {end: 100, recs: []rec{{3, 5}, {40, 5}, {3, 5}}, want: "two records of the run have sequence 3"},
		"falls":                         {end: 100, recs: []rec{{3, 7}, {40, 6}}, want: "is before that of an earlier one"},
		"falls from the run before":     {end: 100, recs: []rec{{3, 7}, {40, 8}}, last: 8, want: "is before that of an earlier one"},
		"falls across an empty stretch": {end: 1 << 27, recs: []rec{{3, 7}, {1 << 26, 6}}, want: "is before that of an earlier one"},
		"falls within a span":           {end: 1 << 27, recs: []rec{{3, 7}, {4, 6}}, want: "is before that of an earlier one", missed: true},
		"twice, in a wide interval":     {end: 1 << 60, recs: []rec{{3, 5}, {3, 5}}, want: "sequence 3", missed: true},
		"falls, in the widest interval": {end: 1<<64 - 1, recs: []rec{{3, 7}, {1<<64 - 2, 6}}, want: "is before that of an earlier one"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, wide := range []bool{false, true} {
				o := newOrderChecker(0, c.end)
				for i, r := range c.recs {
					if wide && i == len(c.recs)/2 {
						o.widen()
					}
					o.add(r.seq, r.time)
				}
				err := o.check(c.last)
				if c.want == "" || wide && c.missed {
					require.NoError(t, err)
					continue
				}
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

// More records than are kept one by one, in any order.
func TestOrderCheckerOfALargeRun(t *testing.T) {
	const n = 50_000
	step := uint64(1_000_003) // visits all sequences: it has no divisor in common with n
	run := func(change func(seq uint64, time int64) (uint64, int64)) error {
		o := newOrderChecker(500, 500+n)
		o.limit = 20_000
		for i := range uint64(n) {
			seq := 500 + i*step%n
			o.add(change(seq, int64(seq/3)))
		}
		require.True(t, o.wide)
		require.Nil(t, o.exact)
		return o.check(0)
	}
	same := func(seq uint64, time int64) (uint64, int64) { return seq, time }
	require.NoError(t, run(same))
	at := 500 + rand.Uint64N(n-1)
	require.ErrorContains(t, run(func(seq uint64, time int64) (uint64, int64) {
		if seq == at {
			seq++
		}
		return seq, time
	}), "two records of the run")
	require.ErrorContains(t, run(func(seq uint64, time int64) (uint64, int64) {
		if seq == 1000 {
			time += 1000
		}
		return seq, time
	}), "is before that of an earlier one")
}
