package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Options of Check. The zero value takes the defaults.
type Options struct {
	// Timeout bounds the search for a linear order, for all keys together. Default 1 min.
	Timeout time.Duration
}

// Rule names what a Violation breaks.
type Rule string

const (
	// RuleWellFormed: the driver recorded what cannot be judged (values used twice, no final log).
	RuleWellFormed Rule = "well-formed"
	// RuleLost: what was acknowledged as durable, or read by anyone, is in the final log, once and whole (I1, I2).
	RuleLost Rule = "nothing lost"
	// RuleInvented: what was refused is not in it, what is unknown is there once at most, and nothing else is.
	RuleInvented Rule = "nothing invented"
	// RuleReused: a sequence names one record for ever (I3).
	RuleReused Rule = "one record a sequence"
	// RuleAtomic: the records of a batch have consecutive sequences, and are visible together.
	RuleAtomic Rule = "batches are whole"
	// RuleOrder: sequences agree with real time, timestamps with sequences, conditions with both.
	RuleOrder Rule = "one order"
	// RuleLinear: appends and reads of a key at the current writer are linearizable, by porcupine (I2).
	RuleLinear Rule = "linearizable"
	// RuleStale: the current writer's reads have all that was acknowledged, or read there, before (I2).
	RuleStale Rule = "current at the writer"
	// RulePrefix: every read is what the final log has below some frontier (I4).
	RulePrefix Rule = "a prefix of the log"
	// RuleBack: the frontier of a process never runs back (I4).
	RuleBack Rule = "no process goes back"
	// RuleStream: a follower gets each record once, in order (I4).
	RuleStream Rule = "followers miss nothing"
	// RuleNumbers: each number of a producer is taken once, and remembered.
	RuleNumbers Rule = "producers' numbers"
	// RuleCursors: cursors move forward only, and acknowledged ones survive.
	RuleCursors Rule = "cursors"
)

// Violation is what no correct log could have answered.
type Violation struct {
	Rule       Rule
	Message    string
	Operations []int // indexes into the history
	Key        string
	Sequence   uint64
}

// maxViolations bounds what is kept of each rule: one damage breaks many operations.
const maxViolations = 8

// Verdict is what Check found.
type Verdict struct {
	Violations []Violation
	// Undecided are keys for which the search for a linear order took too long.
	Undecided []string
	// More counts the violations of a rule that were left out.
	More map[Rule]int

	// What was checked.
	Appends, Acknowledged, Unknown, Reads, StrongReads, Followed int
	Linearized                                                   int // keys whose linear order was found

	h *History
}

// ErrUndecided reports that nothing wrong was found, and that not everything could be searched in time.
var ErrUndecided = errors.New("undecided within the time")

// Err returns nil if the whole history was judged and found right; else an error that names all
// violations with their operations, or wraps ErrUndecided.
func (v *Verdict) Err() error {
	var errs []error
	for i := range v.Violations {
		errs = append(errs, errors.New(v.describe(&v.Violations[i])))
	}
	for rule, n := range v.More {
		errs = append(errs, fmt.Errorf("%s: %d more", rule, n))
	}
	if len(v.Undecided) > 0 {
		errs = append(errs, fmt.Errorf("linearizability of %d keys (%.200q): %w", len(v.Undecided), v.Undecided, ErrUndecided))
	}
	return errors.Join(errs...)
}

// String says what was checked.
func (v *Verdict) String() string {
	return fmt.Sprintf("%d appends (%d acknowledged as durable, %d of unknown outcome), %d reads (%d at the current writer), %d items of streams; %d keys linearizable, %d undecided, %d violations",
		v.Appends, v.Acknowledged, v.Unknown, v.Reads, v.StrongReads, v.Followed, v.Linearized, len(v.Undecided), len(v.Violations))
}

// describe writes a violation with its operations.
func (v *Verdict) describe(x *Violation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", x.Rule, x.Message)
	for _, i := range x.Operations {
		fmt.Fprintf(&b, "\n    %d: %s", i, v.h.describe(i))
	}
	return b.String()
}

// failf adds a violation, unless there are many of its rule already.
func (v *Verdict) failf(x Violation, format string, args ...any) {
	n := 0
	for i := range v.Violations {
		if v.Violations[i].Rule == x.Rule {
			n++
		}
	}
	if n == maxViolations {
		v.More[x.Rule]++
		return
	}
	x.Message = fmt.Sprintf(format, args...)
	v.Violations = append(v.Violations, x)
}

// Check judges a history. The order in which the final log has its records is the only one that can be right, since
// it is read when everything else is over; everything else is held against it:
//
//   - The log itself: who appended what it has, and what it must and must not have (log.go).
//   - Every observation bounds the frontier of the process that made it. Frontiers that fit all
//     observations exist, or not (frontier.go): that is a strict linear order of the whole log, not of one key.
//   - Porcupine searches a linear order of each key by itself (linear.go, search.go).
//   - Streams (follow.go), producers (numbers.go) and cursors (cursors.go).
func Check(h *History, o Options) *Verdict {
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	v := &Verdict{h: h, More: make(map[Rule]int)}
	if h.Final == nil {
		v.failf(Violation{Rule: RuleWellFormed}, "the history has no final log")
		return v
	}
	c := &checker{h: h, v: v, passed: passed(h.Processes)}
	if !c.wellFormed() {
		return v
	}
	if c.log = buildLog(h, v); len(v.Violations) > 0 {
		return v
	}
	c.checkLog()
	c.checkSightings()
	c.checkConditions()
	c.checkNumbers()
	c.checkFrontiers()
	c.checkStreams()
	c.checkCursors()
	c.checkLinear(o.Timeout)
	return v
}

// checker is one run of Check.
type checker struct {
	h      *History
	v      *Verdict
	log    *log
	passed []time.Duration // by process id - 1: from when on it may have been passed
}

// wellFormed checks what all else relies on.
func (c *checker) wellFormed() bool {
	for i := range c.h.Operations {
		o := &c.h.Operations[i]
		switch {
		case o.Process < 0 || o.Process > len(c.h.Processes):
			c.v.failf(Violation{Rule: RuleWellFormed, Operations: []int{i}}, "there is no such process")
		case o.kind() == "":
			c.v.failf(Violation{Rule: RuleWellFormed, Operations: []int{i}}, "it asked for nothing, or for several things")
		case o.Outcome == OK && o.Return < o.Call:
			c.v.failf(Violation{Rule: RuleWellFormed, Operations: []int{i}}, "it was answered before it began")
		}
	}
	return len(c.v.Violations) == 0
}

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)

// passed returns from when on each process may have been passed by another writer (Process says why).
func passed(processes []Process) []time.Duration {
	at := make([]time.Duration, len(processes))
	for i, p := range processes {
		if p.Role == Writer {
			at[i] = never
		}
		for _, q := range processes {
			opened := q.Ready != 0 && q.Ready < p.Started || q.Ended != 0 && q.Ended < p.Started
			if q.ID != p.ID && q.Role == Writer && !opened {
				at[i] = min(at[i], q.Started)
			}
		}
	}
	return at
}

// strong reports whether an answered operation was answered by the current writer for sure.
func (c *checker) strong(o *Operation) bool {
	return o.Process > 0 && o.Return < c.passed[o.Process-1]
}

// unique returns indexes sorted, without repeats.
func unique(ops ...int) []int {
	ops = slices.Clone(ops)
	slices.Sort(ops)
	return slices.Compact(ops)
}
