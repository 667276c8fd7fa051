package fuzz

import (
	"bytes"
	"math"
	"time"

	"github.com/annalsdb/annals/manifest"
)

// simHead is the MANIFEST in force, and what the oracle knows of what it names.
type simHead struct {
	o       *oracle
	state   *manifest.State
	first   uint64                  // sequence at which the log begins
	firsts  []uint64                // all that it ever began at, ascending
	runs    map[string]*simKnownRun // by id: those that were compared with the log
	at      manifest.Pos            // its position
	flushed int                     // so many of the log's objects lie before position
}

func newSimHead(o *oracle) *simHead {
	return &simHead{o: o, runs: map[string]*simKnownRun{}}
}

// replaced takes in a version of MANIFEST that a process put.
func (h *simHead) replaced(p *simProcess, body []byte) {
	next, err := manifest.DecodeState(manifestName, 0, body)
	if err != nil {
		h.o.broke("I5: process %d puts a MANIFEST that cannot be read: %w", p.id, err)
		return
	}
	before := h.state
	h.state = next
	if before == nil {
		h.first = firstSequence(next)
		h.firsts = []uint64{h.first}
		h.o.refs.adopt(next, time.Now())
		return
	}
	h.checkVersion(p, before, next)
	if next.GetWriter().GetEpoch() > before.GetWriter().GetEpoch() {
		h.o.log.open(next.GetWriter().GetEpoch(), [16]byte(next.GetWriter().GetId()), manifest.OpenedNext(next))
	}
	h.checkPosition(next)
	h.checkWindows(next)
	h.checkRuns(next)
	h.checkFlushed(before, next)
	h.checkDropped(p, before, next)
	h.o.refs.adopt(next, time.Now())
	h.checkGroups(before, next)
	h.o.small.moved(before, next)
}

// checkVersion looks at what only grows.
func (h *simHead) checkVersion(p *simProcess, a, b *manifest.State) {
	v := b.GetVersion()
	switch {
	case v != a.GetVersion()+1:
		h.o.broke("I2: version %d follows version %d", v, a.GetVersion())
	case !bytes.Equal(a.GetLogId(), b.GetLogId()):
		h.o.broke("I2: version %d is of another log", v)
	case b.GetSeqLimit() < a.GetSeqLimit():
		h.o.broke("I3: version %d lowers seq_limit from %d to %d", v, a.GetSeqLimit(), b.GetSeqLimit())
	case b.GetFlushedEnd() < a.GetFlushedEnd():
		h.o.broke("I4: version %d lowers flushed_end from %d to %d", v, a.GetFlushedEnd(), b.GetFlushedEnd())
	case b.GetPosition().Pos().Less(a.GetPosition().Pos()):
		h.o.broke("I4: version %d moves position back from %v to %v", v, a.GetPosition().Pos(), b.GetPosition().Pos())
	case b.GetLastTimestampMs() < a.GetLastTimestampMs():
		h.o.broke("F17: version %d lowers the last timestamp from %d to %d", v, a.GetLastTimestampMs(), b.GetLastTimestampMs())
	case b.GetCompactorBeat() < a.GetCompactorBeat() && b.GetCompactorBeat() != 0 && sameOwner(a.GetCompactor(), b.GetCompactor()):
		h.o.broke("I2: version %d lowers the compactor's beat from %d to %d", v, a.GetCompactorBeat(), b.GetCompactorBeat())
	}
	h.checkOwner(v, "writer", a.GetWriter(), b.GetWriter())
	h.checkOwner(v, "compactor", a.GetCompactor(), b.GetCompactor())
	if c := b.CleanNext; c != nil && *c < h.o.log.end {
		h.o.broke("I3: version %d was closed at sequence %d by process %d; the log ends at %d", v, *c, p.id, h.o.log.end)
	}
}

func sameOwner(a, b *manifest.Owner) bool {
	return a.GetEpoch() == b.GetEpoch() && bytes.Equal(a.GetId(), b.GetId())
}

// checkOwner looks at an epoch: it goes up by one, with an id of its own, and none is taken twice (I2).
func (h *simHead) checkOwner(version uint64, who string, a, b *manifest.Owner) {
	taken := b.GetEpoch() == a.GetEpoch()+1 && !bytes.Equal(a.GetId(), b.GetId())
	if !sameOwner(a, b) && !taken {
		h.o.broke("I2: version %d has %s %d %x after %d %x", version, who, b.GetEpoch(), b.GetId(), a.GetEpoch(), a.GetId())
	}
}

// checkPosition looks at where replay starts: all before it is part of the log for good (F9), and all of that is flushed.
func (h *simHead) checkPosition(next *manifest.State) {
	at, l := next.GetPosition().Pos(), h.o.log
	if e := l.epochs[at.Epoch]; e != nil && at.ID > e.prefix+1 {
		h.o.broke("I1: version %d has position %v, objects are durable up to %d only", next.GetVersion(), at, e.prefix)
	}
	for epoch := max(1, h.at.Epoch); epoch < at.Epoch; epoch++ {
		if e := l.epochs[epoch]; e != nil && e.fence == 0 {
			h.o.broke("I2: version %d has position %v, and epoch %d has no fence", next.GetVersion(), at, epoch)
		}
	}
	h.at = at
	for ; h.flushed < len(l.objects); h.flushed++ {
		x := l.objects[h.flushed]
		if here := (manifest.Pos{Epoch: x.Epoch, ID: x.ID}); !here.Less(at) {
			break
		}
		if x.End > next.GetFlushedEnd() && x.count() > 0 {
			h.o.broke("I4: version %d has position %v and flushed_end %d, and object (%d, %d) ends at %d",
				next.GetVersion(), at, next.GetFlushedEnd(), x.Epoch, x.ID, x.End)
		}
		h.o.small.flush(x)
	}
	for i := h.flushed; i < len(l.objects); i++ {
		if x := l.objects[i]; x.count() > 0 {
			if x.First < next.GetFlushedEnd() {
				h.o.broke("I4: version %d has flushed_end %d, and object (%d, %d), which is to be replayed, begins at %d",
					next.GetVersion(), next.GetFlushedEnd(), x.Epoch, x.ID, x.First)
			}
			break // those behind it lie higher
		}
	}
}

// checkWindows looks at how segments, groups and runs lie: side by side, without a gap, up to flushed_end (I5).
func (h *simHead) checkWindows(s *manifest.State) {
	v, at, last := s.GetVersion(), firstSequence(s), uint32(0)
	begin := func(what string, first, last, before uint32, start, end uint64) {
		if start != at || end < start || first <= before || last < first {
			h.o.broke("I5: version %d has %s %d to %d with sequences [%d, %d) after %d, and segment %d before it", v, what, first, last, start, end, at, before)
		}
	}
	for _, g := range s.GetGroups() {
		begin("group", g.GetFirstSegment(), g.GetLastSegment(), last, g.GetFirstSequence(), g.GetEndSequence())
		at, last = g.GetEndSequence(), g.GetLastSegment()
	}
	for i, g := range s.GetSegments() {
		end := uint64(math.MaxUint64)
		if g.GetSealed() {
			end = g.GetEndSequence()
		}
		begin("segment", g.GetId(), g.Last(), last, g.GetFirstSequence(), end)
		for _, r := range g.GetRuns() {
			if r.GetStart() != at || r.GetEnd() <= r.GetStart() {
				h.o.broke("I5: version %d, segment %d: the run [%d, %d) follows sequence %d", v, g.GetId(), r.GetStart(), r.GetEnd(), at)
			}
			at = r.GetEnd()
		}
		active := i == len(s.GetSegments())-1
		if g.GetSealed() == active || g.GetSealed() && g.GetEndSequence() != at || active && s.GetFlushedEnd() != at {
			h.o.broke("I6: version %d, segment %d: runs up to sequence %d, sealed %v at %d, flushed_end %d",
				v, g.GetId(), at, g.GetSealed(), g.GetEndSequence(), s.GetFlushedEnd())
		}
		last = g.Last()
	}
}
