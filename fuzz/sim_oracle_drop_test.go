package fuzz

import (
	"time"

	"github.com/annalsdb/annals/manifest"
)

// simWindow is a sealed segment of a version.
type simWindow struct {
	id         uint32
	start, end uint64
	sealed     bool
	sealMs     int64
}

// checkDropped looks at what retention dropped: whole segments, the oldest, each old enough by the store's time, or while the
// log holds too much; and at seal times, from which their age counts.
func (h *simHead) checkDropped(p *simProcess, a, b *manifest.State) {
	h.checkSealTimes(a, b)
	first := firstSequence(b)
	if first == h.first {
		return
	}
	before := h.first
	if first < before {
		h.o.broke("I4: version %d moves the log's start back from %d to %d", b.GetVersion(), before, first)
		return
	}
	h.first, h.firsts = first, append(h.firsts, first)
	at := before
	for _, w := range h.windows(a) {
		if w.end > first || !w.sealed {
			break
		}
		h.checkDrop(p, b, w)
		at = w.end
	}
	if at != first {
		h.o.broke("I4: version %d drops sequences [%d, %d), which are not whole sealed segments", b.GetVersion(), before, first)
	}
}

// checkDrop looks at one segment that was dropped.
func (h *simHead) checkDrop(p *simProcess, b *manifest.State, w simWindow) {
	o, age := &p.opts, h.o.time().Sub(time.UnixMilli(w.sealMs))
	switch {
	case p.role != simWriter:
		h.o.broke("I4: process %d, which is no writer, drops segment %d", p.id, w.id)
	case o.Retention > 0 && age >= o.Retention:
	case o.RetentionBytes > 0 && h.o.heldFrom(w.start) > o.RetentionBytes:
	default:
		h.o.broke("F17: version %d drops segment %d, which was sealed %v ago; retention is %v; the log had %d bytes at most from there on, the limit is %d",
			b.GetVersion(), w.id, age, o.Retention, h.o.heldFrom(w.start), o.RetentionBytes)
	}
}

// heldFrom returns how many record bytes the writer may have held from a sequence on: those of the log, and those that are on their
// way into it.
func (o *oracle) heldFrom(seq uint64) int64 {
	return o.log.bytesFrom(seq) + o.answers.asked - o.log.bytes[len(o.log.records)]
}

// windows returns the segments of a version, those in groups first.
func (h *simHead) windows(s *manifest.State) (all []simWindow) {
	add := func(g *manifest.Segment) {
		all = append(all, simWindow{g.GetId(), g.GetFirstSequence(), g.GetEndSequence(), g.GetSealed(), g.GetSealTimeMs()})
	}
	for _, g := range s.GetGroups() {
		for _, x := range h.o.refs.indexes[g.GetIndex().ID()] {
			if x.first() >= g.GetFirstSegment() && x.last() <= g.GetLastSegment() {
				add(x.segment)
			}
		}
	}
	for _, g := range s.GetSegments() {
		add(g)
	}
	return all
}

// checkSealTimes looks at the seal times of new segments: by the store, in order, not in the future. One that was merged of
// several has that of the last.
func (h *simHead) checkSealTimes(a, b *manifest.State) {
	was := map[uint32]int64{} // by the id of the last segment
	latest := int64(0)
	for _, g := range a.GetGroups() {
		latest = g.GetLastSealTimeMs()
	}
	for _, g := range a.GetSegments() {
		if g.GetSealed() {
			was[g.Last()], latest = g.GetSealTimeMs(), g.GetSealTimeMs()
		}
	}
	now := h.o.time().UnixMilli()
	for _, g := range b.GetSegments() {
		if !g.GetSealed() {
			continue
		}
		is := g.GetSealTimeMs()
		old, known := was[g.Last()]
		if known && is != old || !known && (is < latest || is > now) {
			h.o.broke("F17: version %d has segment %d sealed at %d; it was %d, the one before %d, the store's time is %d",
				b.GetVersion(), g.GetId(), is, old, latest, now)
		}
		latest = max(latest, is)
	}
}
