package history

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scene is a history that a test makes by hand. Times are small numbers; every record has the
// timestamp 1000 unless a test changes it. Process 1 is a writer that runs all the time.
type scene struct{ History }

func newScene() *scene {
	s := &scene{}
	s.Final = &Final{Records: make(map[string][]Record), Cursors: make(map[string]map[string]uint64)}
	s.process(Writer, 1, 2, 0)
	return s
}

// process adds one and returns its id. 0: it was never ready, or never ended.
func (s *scene) process(role Role, started, ready, ended int) int {
	id := len(s.Processes) + 1
	s.Processes = append(s.Processes, Process{ID: id, Name: fmt.Sprint(role, id), Role: role,
		Started: time.Duration(started), Ready: time.Duration(ready), Ended: time.Duration(ended)})
	return id
}

// do adds an operation that process 1 answered.
func (s *scene) do(call, ret int, o Operation) *Operation {
	o.Client, o.Process, o.Call, o.Return, o.Outcome = "c", 1, time.Duration(call), time.Duration(ret), OK
	s.Operations = append(s.Operations, o)
	return &s.Operations[len(s.Operations)-1]
}

// append adds one that was acknowledged with its first sequence. Records are "key=value".
func (s *scene) append(call, ret int, first uint64, records ...string) *Operation {
	return s.do(call, ret, Operation{Append: &Append{Records: keyValues(records), First: first, Timestamp: 1000}})
}

// unknown adds an append without an answer.
func (s *scene) unknown(call int, records ...string) *Operation {
	o := s.do(call, 0, Operation{Append: &Append{Records: keyValues(records)}})
	o.Outcome = Unknown
	return o
}

// refused adds an append that was refused.
func (s *scene) refused(call, ret int, records ...string) *Operation {
	o := s.do(call, ret, Operation{Append: &Append{Records: keyValues(records)}})
	o.Outcome = Refused
	return o
}

// scan adds a page of 100 from start on. Records are "sequence=value".
func (s *scene) scan(call, ret int, key string, start, next uint64, recs ...string) *Operation {
	return s.do(call, ret, Operation{Scan: &Scan{Key: key, Start: start, Limit: 100, Records: records(recs), Next: next}})
}

func (s *scene) count(call, ret int, key string, n uint64) *Operation {
	return s.do(call, ret, Operation{Count: &Count{Key: key, Count: n}})
}

func (s *scene) keys(call, ret int, keys ...string) *Operation {
	return s.do(call, ret, Operation{Keys: &Keys{Keys: keys}})
}

// follow adds a stream. Items are "key:sequence=value", or a number: all is complete up to there.
// They come one tick after the other from the call on.
func (s *scene) follow(call, ret int, streams []Stream, items ...string) *Operation {
	f := &Follow{Name: "f", Streams: streams}
	for i, text := range items {
		key, rec, is := strings.Cut(text, ":")
		it := Item{At: time.Duration(call + 1 + i)}
		if is {
			it.Key, it.Record = key, records([]string{rec})[0]
			it.Next = it.Sequence + 1
		} else {
			it.Complete, it.Next = true, number64(text)
		}
		f.Items = append(f.Items, it)
	}
	return s.do(call, ret, Operation{Follow: f})
}

func (s *scene) setCursor(call, ret int, value, answer uint64) *Operation {
	return s.do(call, ret, Operation{SetCursors: &SetCursors{Consumer: "u", Cursors: []KeySequence{{"k", value}}, Answer: []KeySequence{{"k", answer}}}})
}

func (s *scene) getCursor(call, ret int, value uint64) *Operation {
	g := &GetCursors{Consumer: "u", Keys: []string{"k"}}
	if value > 0 {
		g.Answer = []KeySequence{{"k", value}}
	}
	return s.do(call, ret, Operation{GetCursors: g})
}

// final says what a key has in the end.
func (s *scene) final(key string, recs ...string) {
	s.Final.Records[key] = records(recs)
	for _, r := range s.Final.Records[key] {
		s.Final.Frontier = max(s.Final.Frontier, r.Sequence+1)
	}
}

// at sets who answered an operation.
func (o *Operation) at(process int) *Operation {
	o.Process = process
	return o
}

func keyValues(texts []string) []KeyValue {
	var out []KeyValue
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		out = append(out, KeyValue{key, value})
	}
	return out
}

func records(texts []string) []Record {
	var out []Record
	for _, text := range texts {
		seq, value, _ := strings.Cut(text, "=")
		out = append(out, Record{Sequence: number64(seq), Timestamp: 1000, Value: value})
	}
	return out
}

func number64(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// rules returns those that a history breaks, each once.
func rules(v *Verdict) []Rule {
	var out []Rule
	for _, x := range v.Violations {
		out = append(out, x.Rule)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// requireBroken checks that a history breaks exactly these rules.
func requireBroken(t *testing.T, h *History, want ...Rule) {
	t.Helper()
	v := Check(h, Options{})
	slices.Sort(want)
	require.Equal(t, want, rules(v), "%v", v.Err())
	require.Error(t, v.Err())
	require.Empty(t, v.Undecided)
}

// requireRight checks that a history breaks none.
func requireRight(t *testing.T, h *History) {
	t.Helper()
	require.NoError(t, Check(h, Options{}).Err())
}
