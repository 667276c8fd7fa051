package history

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// How many worlds there are, and how long each lives.
const (
	worlds     = 200
	worldSteps = 1500
)

// Whatever a correct log does is found right.
func TestWorldsAreRight(t *testing.T) {
	var all Verdict
	seen := map[string]int{}
	for seed := range uint64(worlds) {
		w := newWorld(seed, worldSteps)
		v := Check(&w.h, Options{})
		require.NoError(t, v.Err(), "seed %d", seed)
		all.add(v)
		w.tally(seen)
	}
	t.Log(&all)
	t.Log(seen)
	for what, n := range seen {
		require.Greater(t, n, worlds, "%s: the worlds are too dull", what)
	}
	require.Equal(t, worlds*len(worldKeys), all.Linearized)
}

func (v *Verdict) add(o *Verdict) {
	v.Appends += o.Appends
	v.Acknowledged += o.Acknowledged
	v.Unknown += o.Unknown
	v.Reads += o.Reads
	v.StrongReads += o.StrongReads
	v.Followed += o.Followed
	v.Linearized += o.Linearized
}

// tally counts what must happen for a world to be worth its while.
func (w *world) tally(seen map[string]int) {
	count := func(what string, is bool) {
		if seen[what] += 0; is {
			seen[what]++
		}
	}
	for i := range w.h.Operations {
		o := &w.h.Operations[i]
		a := o.Append
		count("unknown appends that took effect", a != nil && o.Outcome == Unknown && a.Producer == "" && inFinal(&w.h, o))
		count("unknown appends that did not", a != nil && o.Outcome == Unknown && !inFinal(&w.h, o))
		count("appends from memory that were lost", a != nil && o.Outcome == OK && a.Memory && !inFinal(&w.h, o))
		count("refused appends", a != nil && o.Outcome == Refused)
		count("conditions that held", a != nil && o.Outcome == OK && len(a.ExpectedNext) > 0)
		count("producers' appends", a != nil && o.Outcome == OK && a.Producer != "")
		count("reads of zombies", o.kind() != "append" && o.Outcome == OK && w.servers[o.Process-1].passed && w.servers[o.Process-1].role == Writer)
		count("reads of replicas", o.kind() != "append" && o.Outcome == OK && w.servers[o.Process-1].role == Replica)
	}
	for range w.servers {
		count("processes", true)
	}
}

// Whatever else a log does is found wrong: a right history with one thing changed.
func TestMutationsAreWrong(t *testing.T) {
	for name, m := range mutations {
		t.Run(name, func(t *testing.T) {
			applied := 0
			for seed := range uint64(30) {
				w := newWorld(seed, worldSteps)
				if !m.apply(&w.h, rand.New(rand.NewPCG(seed, 7))) {
					continue
				}
				applied++
				v := Check(&w.h, Options{})
				require.True(t, slices.ContainsFunc(m.rules, func(r Rule) bool { return slices.Contains(rules(v), r) }),
					"seed %d: none of %v: %v", seed, m.rules, v.Err())
			}
			require.Greater(t, applied, 10)
		})
	}
}
