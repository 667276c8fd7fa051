package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// ErrGone: what an edit names is not in the state any more, or not as it was when the edit
// was planned: it was dropped, trimmed, compacted, merged or regrouped by another edit (F21, F23). Plan
// again from a newer state. The outputs of a compaction that failed so are of no use, unless it
// was applied before and its segment moved to a group since: then the group's index lists them.
var ErrGone = errors.New("gone since it was planned")

// Compaction describes the commit of one compaction: neighbouring runs become one
// run with the same records. The tables of the inputs become obsolete in the same
// commit (I7). Runs that are flushed meanwhile, and a seal, do not disturb it.
//
// It needs the compactor's epoch only, so it may also be committed after the writer has closed
// cleanly: clean_next stays. The caller must not change what it points to afterwards.
type Compaction struct {
	// Epoch is the compactor's. ErrFenced from this edit means that the compactor
	// was passed, which says nothing about the writer.
	Epoch uint64
	// First and Last are ids of segments, as the state names them (Segment.Id). If they are the
	// same, Inputs are neighbouring runs of that segment. If not, all segments from
	// First to Last, which must be sealed, become one segment with one run, and
	// Inputs are all their runs.
	First, Last uint32
	// Inputs are the ids of the runs, in sequence order; at least one.
	Inputs [][]byte
	// Output is the new run, under an id of its own. The edit sets its Start and End. Its tables must be
	// new, and named by this tree, the compactor's role and Epoch: one of a passed epoch
	// may have been swept before this commit (F52). It has no tables if the inputs have none.
	Output *Run
}

// Edit returns the compaction as an edit. It is already in force when a state
// names its output, live or obsolete (F22, F50). Inputs that are not all there give
// ErrGone.
func (c Compaction) Edit() Edit {
	return Edit{
		Name:  fmt.Sprintf("compact %d runs of segments %d to %d", len(c.Inputs), c.First, c.Last),
		Apply: c.apply,
	}
}

func (c Compaction) apply(s *State) error {
	if err := checkEpoch("compactor", s.Compactor.GetEpoch(), c.Epoch); err != nil {
		return err
	}
	outputs, err := c.check(s)
	if err != nil {
		return err
	}
	if err := c.checkNew(s, outputs); err != nil {
		return err
	}
	segments, err := c.segments(s)
	if err != nil {
		return err
	}
	var runs []*Run
	for _, g := range segments {
		runs = append(runs, g.Runs...)
	}
	at, err := c.find(runs)
	if err != nil {
		return err
	}
	if len(segments) > 1 && len(c.Inputs) != len(runs) {
		return fmt.Errorf("%d of the %d runs of segments %d to %d", len(c.Inputs), len(runs), c.First, c.Last)
	}
	inputs, rest := runs[at:at+len(c.Inputs)], runs[at+len(c.Inputs):]
	if in, out := extentOf(inputs...), extentOf(c.Output); in != out {
		return fmt.Errorf("inputs hold %v, the output %v", in, out) // F27
	}
	output := proto.CloneOf(c.Output)
	output.Start, output.End = inputs[0].Start, inputs[len(inputs)-1].End
	retire(s, inputs)
	merged := mergeSegments(s, segments)
	merged.Runs = slices.Concat(runs[:at], []*Run{output}, rest)
	return nil
}

// check refuses what no state could make right, and returns the output's tables.
func (c Compaction) check(s *State) (map[base.ObjectID]bool, error) {
	switch {
	case len(c.Inputs) == 0:
		return nil, errors.New("compaction without inputs")
	case c.Output == nil:
		return nil, errors.New("compaction without an output")
	case c.First > c.Last:
		return nil, fmt.Errorf("segments %d to %d", c.First, c.Last)
	case c.isInput(c.Output.Id):
		return nil, fmt.Errorf("output has the id of its input %x", c.Output.Id)
	}
	outputs := make(map[base.ObjectID]bool, len(c.Output.Tables))
	for i, t := range c.Output.Tables {
		id, err := t.Ref.parse()
		if err != nil {
			return nil, fmt.Errorf("output table %d: %w", i, err)
		}
		if id.Tree != s.Tree || id.Kind != base.KindSST || id.Role != base.RoleCompactor || id.Epoch != c.Epoch {
			return nil, fmt.Errorf("output table %d: %s is not an SST of tree %d by the compactor of epoch %d",
				i, id.Name(), s.Tree, c.Epoch)
		}
		outputs[id] = true
	}
	return outputs, nil
}

func (c Compaction) isInput(id []byte) bool {
	return slices.ContainsFunc(c.Inputs, func(in []byte) bool { return bytes.Equal(in, id) })
}

// checkNew returns ErrApplied if the state names the output's id or one of its tables. The
// list of obsolete objects counts: the output may have been compacted or dropped since (F50).
func (c Compaction) checkNew(s *State, outputs map[base.ObjectID]bool) error {
	for _, g := range s.Segments {
		for _, r := range g.Runs {
			if bytes.Equal(r.Id, c.Output.Id) {
				return ErrApplied
			}
			for _, t := range r.Tables {
				switch id := t.Ref.ID(); {
				case !outputs[id]:
				case c.isInput(r.Id): // live and obsolete at once it would be
					return fmt.Errorf("output keeps %s of its input %x", id.Name(), r.Id)
				default:
					return ErrApplied
				}
			}
		}
	}
	for _, o := range s.Obsolete {
		if outputs[o.Ref.ID()] {
			return ErrApplied
		}
	}
	return nil
}

// segments returns the segments that the compaction is about.
func (c Compaction) segments(s *State) ([]*Segment, error) {
	index := func(id uint32) int {
		return slices.IndexFunc(s.Segments, func(g *Segment) bool { return g.Id == id })
	}
	from, to := index(c.First), index(c.Last)
	if from < 0 || to < 0 {
		return nil, fmt.Errorf("segments %d to %d: %w", c.First, c.Last, ErrGone)
	}
	if to > from && !s.Segments[to].Sealed { // those before the last always are
		return nil, fmt.Errorf("segment %d is active", c.Last)
	}
	return slices.Clone(s.Segments[from : to+1]), nil
}

// find returns where the inputs begin among the runs.
func (c Compaction) find(runs []*Run) (int, error) {
	place := make(map[string]int, len(runs))
	for i, r := range runs {
		place[string(r.Id)] = i
	}
	at := place[string(c.Inputs[0])]
	for i, id := range c.Inputs {
		p, ok := place[string(id)]
		if !ok {
			return 0, fmt.Errorf("run %x: %w", id, ErrGone)
		}
		if p != at+i {
			return 0, fmt.Errorf("run %x does not follow the input before it", id) // I5
		}
	}
	return at, nil
}

// mergeSegments makes the first of neighbouring segments span all of them, and returns it. Its
// start time stays: a sealed segment has a record, so that is the first record's of all.
func mergeSegments(s *State, segments []*Segment) *Segment {
	first, last := segments[0], segments[len(segments)-1]
	if first == last {
		return first
	}
	// The last one's seal time, the latest: retention drops nothing early.
	first.LastId, first.EndSequence, first.SealTimeMs = last.Last(), last.EndSequence, last.SealTimeMs
	from := slices.Index(s.Segments, first)
	s.Segments = slices.Delete(s.Segments, from+1, from+len(segments))
	return first
}

// extent is what a compaction must not change of its records, as far as tables tell.
type extent struct {
	records, bytes                uint64
	firstSequence, lastSequence   uint64
	firstTimestamp, lastTimestamp int64
}

func extentOf(runs ...*Run) (e extent) {
	for _, r := range runs {
		for _, t := range r.Tables {
			if e.records == 0 {
				e.firstSequence, e.lastSequence = t.FirstSequence, t.LastSequence
				e.firstTimestamp, e.lastTimestamp = t.FirstTimestampMs, t.LastTimestampMs
			}
			e.records, e.bytes = e.records+t.Records, e.bytes+t.Bytes
			e.firstSequence, e.lastSequence = min(e.firstSequence, t.FirstSequence), max(e.lastSequence, t.LastSequence)
			e.firstTimestamp, e.lastTimestamp = min(e.firstTimestamp, t.FirstTimestampMs), max(e.lastTimestamp, t.LastTimestampMs)
		}
	}
	return e
}

// String says it for errors.
func (e extent) String() string {
	return fmt.Sprintf("%d records of %d bytes with sequences %d to %d and timestamps %d to %d",
		e.records, e.bytes, e.firstSequence, e.lastSequence, e.firstTimestamp, e.lastTimestamp)
}
