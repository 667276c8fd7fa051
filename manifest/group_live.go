package manifest

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// live is what a group's line says of its live segments together.
type live struct {
	firstSegment, lastSegment   uint32
	firstSequence, endSequence  uint64
	startTime                   int64
	firstSeal, lastSeal         int64
	segments, tables            uint32
	records, bytes, storedBytes uint64
}

// liveOf returns what a line says.
func liveOf(g *Group) live {
	return live{
		firstSegment: g.FirstSegment, lastSegment: g.LastSegment,
		firstSequence: g.FirstSequence, endSequence: g.EndSequence,
		startTime: g.StartTimeMs, firstSeal: g.FirstSealTimeMs, lastSeal: g.LastSealTimeMs,
		segments: g.Segments, tables: g.Tables,
		records: g.Records, bytes: g.Bytes, storedBytes: g.StoredBytes,
	}
}

// liveOfSegment returns what one segment of MANIFEST adds to a line.
func liveOfSegment(s *Segment) (live, error) {
	l := windowOf(s)
	for _, r := range s.Runs {
		for _, t := range r.Tables {
			if err := l.count(1, t.Records, t.Bytes, t.Size); err != nil {
				return l, fmt.Errorf("segment %d: %w", s.Id, err)
			}
		}
	}
	return l, nil
}

// liveOfIndexed returns what one segment of an index adds to a line.
func liveOfIndexed(x *IndexedSegment) live {
	l := windowOf(x.Segment)
	l.tables, l.records, l.bytes, l.storedBytes = x.Tables, x.Records, x.Bytes, x.StoredBytes
	return l
}

func windowOf(s *Segment) live {
	return live{
		firstSegment: s.Id, lastSegment: s.Last(),
		firstSequence: s.FirstSequence, endSequence: s.EndSequence,
		startTime: s.StartTimeMs, firstSeal: s.SealTimeMs, lastSeal: s.SealTimeMs, segments: 1,
	}
}

// set writes it into a line.
func (l live) set(g *Group) {
	g.FirstSegment, g.LastSegment = l.firstSegment, l.lastSegment
	g.FirstSequence, g.EndSequence = l.firstSequence, l.endSequence
	g.StartTimeMs, g.FirstSealTimeMs, g.LastSealTimeMs = l.startTime, l.firstSeal, l.lastSeal
	g.Segments, g.Tables = l.segments, l.tables
	g.Records, g.Bytes, g.StoredBytes = l.records, l.bytes, l.storedBytes
}

// join adds what follows: neighbours in the sequence space (I5). The zero value takes the first.
func (l *live) join(next live) error {
	if l.segments == 0 {
		*l = next
		return nil
	}
	switch {
	case next.firstSegment <= l.lastSegment:
		return fmt.Errorf("segment id %d does not follow %d", next.firstSegment, l.lastSegment)
	case next.firstSequence != l.endSequence:
		return fmt.Errorf("window starts at %d, the one before ends at %d", next.firstSequence, l.endSequence)
	}
	l.lastSegment, l.endSequence = next.lastSegment, next.endSequence
	// The latest, not that of the last: no clock went backwards for retention to drop by (F17).
	l.lastSeal = max(l.lastSeal, next.lastSeal)
	if uint64(l.segments)+uint64(next.segments) > MaxGroupSegments {
		return fmt.Errorf("more than %d segments", MaxGroupSegments)
	}
	l.segments += next.segments
	return l.count(next.tables, next.records, next.bytes, next.storedBytes)
}

// count adds to the totals. Sizes and counts may come from hostile bytes: they do not wrap around.
func (l *live) count(tables uint32, records, bytes, storedBytes uint64) error {
	var c1, c2, c3 uint64
	l.records, c1 = bits.Add64(l.records, records, 0)
	l.bytes, c2 = bits.Add64(l.bytes, bytes, 0)
	l.storedBytes, c3 = bits.Add64(l.storedBytes, storedBytes, 0)
	if c1|c2|c3 != 0 || l.tables > math.MaxUint32-tables {
		return errors.New("totals are too large to count")
	}
	l.tables += tables
	return nil
}

// String says it for errors.
func (l live) String() string {
	return fmt.Sprintf("%d segments %d to %d of [%d, %d), begun at %d, sealed at %d to %d, with %d tables, %d records, %d bytes, %d stored",
		l.segments, l.firstSegment, l.lastSegment, l.firstSequence, l.endSequence, l.startTime, l.firstSeal, l.lastSeal,
		l.tables, l.records, l.bytes, l.storedBytes)
}
