package fuzz

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxReruns bounds how often a failing run is repeated to make it smaller.
const maxReruns = 300

// simFailure is a run that failed, and what came of it.
type simFailure struct {
	run    simRun
	res    simResult
	reruns int
}

// shrink looks for a smaller run that breaks the same rule: one that ends in the step that broke it, and in which few steps
// disturb (delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
func shrink(t *testing.T, r simRun, res simResult) simFailure {
	best := simFailure{r, res, 0}
	rule := ruleOf(res.err)
	// try keeps a run with these steps if it breaks the rule too.
	try := func(steps []int) bool {
		if best.reruns == maxReruns {
			return false
		}
		best.reruns++
		smaller := r
		smaller.steps, smaller.keep = min(r.steps, best.res.step), map[int]bool{}
		for _, s := range steps {
			smaller.keep[s] = true
		}
		res := simulate(t, smaller)
		if res.err == nil || ruleOf(res.err) != rule {
			return false
		}
		best.run, best.res = smaller, res
		return true
	}
	steps := res.disturbed
	if !try(steps) {
		return best // not even the same run again: it depends on something else than the seed
	}
	for chunks := 2; len(steps) > 1; {
		size := (len(steps) + chunks - 1) / chunks
		smaller := false
		for from := 0; from < len(steps); from += size {
			rest := slices.Concat(steps[:from], steps[min(from+size, len(steps)):])
			if try(rest) {
				steps, chunks, smaller = best.res.disturbed, max(2, chunks-1), true
				break
			}
		}
		if !smaller {
			if size == 1 || best.reruns == maxReruns {
				break
			}
			chunks = min(2*chunks, len(steps))
		}
	}
	return best
}

var (
	invariant = regexp.MustCompile(`\bI[1-9]\b`)
	number    = regexp.MustCompile(`[0-9]+`)
)

// ruleOf names what an error says was broken: the invariant, or the text without its numbers.
func ruleOf(err error) string {
	text := err.Error()
	if i := invariant.FindString(text); i != "" {
		return i
	}
	text, _, _ = strings.Cut(number.ReplaceAllString(text, "#"), "\n")
	return text[:min(len(text), 60)]
}

// report says what was broken, how, and how to see it again.
func (f simFailure) report(t *testing.T) string {
	shown := f.run
	shown.trace = true
	res := simulate(t, shown)
	var steps []string
	for _, s := range slices.Sorted(maps.Keys(f.run.keep)) {
		steps = append(steps, fmt.Sprint(s))
	}
	return fmt.Sprintf("seed %d: %v\nshrunk to %d steps of which %d disturb, in %d runs; again:\n"+
		"ANNALS_SIM_SEED=%d ANNALS_SIM_LENGTH=%d ANNALS_SIM_STEPS=%s go test ./fuzz -run 'TestSimulation$'\n%s",
		f.run.seed, f.res.err, f.run.steps, len(steps), f.reruns, f.run.seed, f.run.steps, strings.Join(steps, ","), res.trace.folded())
}
