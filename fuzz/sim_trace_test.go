package fuzz

import (
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// simTrace is what happened, an event a line. Two runs of a seed must have the same, but for the lines that are
// only shown.
type simTrace struct {
	digest *xxhash.Digest
	buf    []byte
	keep   bool // the lines, to show them
	lines  []simLine
}

type simLine struct {
	step int
	calm bool
	text string
	only bool // shown: no part of what two runs must have in common
}

func newSimTrace(keep bool) *simTrace { return &simTrace{digest: xxhash.New(), keep: keep} }

// add adds an event: what, to which object, hash of its content, outcome.
func (t *simTrace) add(step int, calm bool, proc int, what, name string, content uint64, outcome string) {
	t.buf = fmt.Appendf(t.buf[:0], "%d p%d %s", step, proc, what)
	for _, part := range []string{name, outcome} {
		if part != "" {
			t.buf = append(append(t.buf, ' '), part...)
		}
	}
	if content != 0 {
		t.buf = fmt.Appendf(t.buf, " %016x", content)
	}
	t.buf = append(t.buf, '\n')
	_, _ = t.digest.Write(t.buf)
	if t.keep {
		t.lines = append(t.lines, simLine{step, calm, string(t.buf), false})
	}
}

// show adds a line that helps to understand the others.
func (t *simTrace) show(step int, calm bool, proc int, what, name string) {
	if t.keep {
		t.lines = append(t.lines, simLine{step, calm, fmt.Sprintf("%d p%d %s %s\n", step, proc, what, name), true})
	}
}

func (t *simTrace) hash() uint64 { return t.digest.Sum64() }

// String returns all lines.
func (t *simTrace) String() string {
	var b strings.Builder
	for _, l := range t.lines {
		b.WriteString(l.text)
	}
	return b.String()
}

// maxCalmShown is how many lines of a calm stretch a folded trace shows at each of its ends.
const maxCalmShown = 3

// folded returns the lines without the middle of stretches in which nothing was disturbed.
func (t *simTrace) folded() string {
	var b strings.Builder
	for i := 0; i < len(t.lines); {
		end := i
		for end < len(t.lines) && t.lines[end].calm == t.lines[i].calm {
			end++
		}
		for j := i; j < end; j++ {
			if t.lines[i].calm && j == i+maxCalmShown && end-j > maxCalmShown {
				fmt.Fprintf(&b, "... %d calm events\n", end-maxCalmShown-j)
				j = end - maxCalmShown
			}
			b.WriteString(t.lines[j].text)
		}
		i = end
	}
	return b.String()
}
