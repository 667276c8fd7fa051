package manifest

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Flush describes the commit of one frozen memtable: its run joins the active
// segment, and position and flushed_end pass it. Flushes must be committed in the
// order in which their memtables were frozen (I5): one whose predecessor is missing
// fails (F54).
//
// The caller commits it only once all WAL objects before To are durable (I1), and
// must not change what it points to afterwards.
type Flush struct {
	// Epoch is the writer's.
	Epoch uint64
	// From is the WAL position at which the memtable's content starts: position
	// must be there. To is where the next memtable's starts.
	From, To Pos
	// Run is what was written. The edit sets its Start and End. Without tables it covers
	// a gap only.
	Run *Run
	// Start and End are the run's interval of sequences. Start is flushed_end,
	// so that a gap after an unclean open belongs to the run.
	Start, End uint64
	// Next is the next sequence to be assigned when the memtable was frozen, or later, at least
	// End. seq_limit rises to at least Next + SeqReserve (I3).
	Next uint64
	// Segment is the id of the segment that the memtable belongs to (I6).
	Segment uint32
	// SegmentStartMs is the timestamp of the segment's first record. Used by the
	// segment's first run with records, ignored later.
	SegmentStartMs int64
	// LastTimestampMs is the highest timestamp of the run's records. Ignored when
	// it is below the tree's.
	LastTimestampMs int64
	// Seal, if not nil, also seals the segment at End and starts the next one there.
	Seal *Seal
	// State, if not nil, is the small state at To. Nil: nothing of it changed since From.
	State *StateUpdate
}

// Seal says how a flush seals its segment.
type Seal struct {
	// TimeMs is the store's time.
	TimeMs int64
}

// Edit returns the flush as an edit. Position past From means that it is already in
// force, even when a compaction has since merged its run (F49).
func (f Flush) Edit() Edit {
	return Edit{
		Name:  fmt.Sprintf("flush [%d, %d) from %v to %v", f.Start, f.End, f.From, f.To),
		Apply: f.apply,
	}
}

func (f Flush) apply(s *State) error {
	at := s.Position.Pos()
	if err := writerEdit(s, f.Epoch, func() bool { return f.From.Less(at) }); err != nil {
		return err
	}
	if err := f.check(s, at); err != nil {
		return err
	}
	g := activeSegment(s)
	if g.Id != f.Segment {
		return fmt.Errorf("segment %d is active, not %d", g.Id, f.Segment)
	}
	run := proto.CloneOf(f.Run)
	run.Start, run.End = f.Start, f.End
	if len(run.Tables) > 0 {
		if !hasTables(g) {
			g.StartTimeMs = f.SegmentStartMs
		}
		s.LastTimestampMs = max(s.LastTimestampMs, f.LastTimestampMs)
	}
	if err := moveTo(s, f.Epoch, f.To, f.State); err != nil {
		return err
	}
	g.Runs = append(g.Runs, run)
	s.FlushedEnd = f.End
	s.SeqLimit = max(s.SeqLimit, addSaturating(f.Next, SeqReserve))
	if f.Seal != nil {
		return sealActive(s, f.Segment, f.End, f.Seal.TimeMs)
	}
	return nil
}

// check refuses a flush that is out of order or would move anything backwards (F9).
func (f Flush) check(s *State, at Pos) error {
	switch {
	case at != f.From:
		return fmt.Errorf("position is %v: an earlier flush is missing", at)
	case !f.From.Less(f.To):
		return fmt.Errorf("position %v would not move forward", f.From)
	case f.Start != s.FlushedEnd:
		return fmt.Errorf("run starts at %d, flushed_end is %d", f.Start, s.FlushedEnd)
	case f.Start >= f.End:
		return errors.New("run is empty")
	case f.Next < f.End:
		return fmt.Errorf("next sequence %d is below the run's end", f.Next)
	case f.End > s.SeqLimit:
		// Sequences that were never reserved: the rule of I3 was broken by the caller.
		return fmt.Errorf("run ends above seq_limit %d", s.SeqLimit)
	case f.Run == nil:
		return errors.New("flush without a run")
	}
	return checkMove(s, f.To)
}

func hasTables(g *Segment) bool {
	for _, r := range g.Runs {
		if len(r.Tables) > 0 {
			return true
		}
	}
	return false
}
