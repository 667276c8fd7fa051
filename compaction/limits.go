package compaction

import (
	"errors"
	"fmt"
	"math/bits"
	"time"
)

// Defaults of Limits.
const (
	DefaultFanIn        = 16
	DefaultSegmentBytes = 16 << 30
	DefaultMergeWithin  = 31 * 24 * time.Hour
	DefaultTableBytes   = 64 << 20
	DefaultBlockBytes   = 32 << 10
	DefaultReadAhead    = 4 << 20
)

// Bounds of Limits: beyond them a mistake is more likely than an intention.
const (
	minFanIn, maxFanIn           = 2, 64
	maxTableBytes                = 1 << 30
	minBlockBytes, maxBlockBytes = 256, 4 << 20
	minReadAhead, maxReadAhead   = 64 << 10, 64 << 20
)

const (
	// inputsPerFanIn times FanIn is the most runs that one consolidation merges
	// (I9): each open input costs memory.
	inputsPerFanIn = 4
	// settledPerFanIn times FanIn is the most settled runs of an active segment of
	// SegmentBytes: a run is settled when it is so large a part of the segment.
	settledPerFanIn = 8
)

// Limits steer the planner and the size of what a Runner writes. The zero value of
// every field takes its default. Byte counts are of keys and values before
// compression, unless they are said to be stored bytes.
type Limits struct {
	// FanIn is the number of small runs of the active segment, and of small sealed
	// segments, that are merged at once. Default 16. Higher: fewer rewrites, more
	// runs that a read looks at.
	FanIn int
	// SegmentBytes is the size at which the writer seals a segment; smaller sealed
	// neighbours are merged until they reach it. Default 16 GiB.
	SegmentBytes int64
	// MergeWithin is the longest span between the first and the last seal time that
	// go into one segment: retention drops data so much later at most. Default 31
	// days; with a retention, a tenth of that.
	MergeWithin time.Duration

	// TableBytes is the stored size at which an output is cut at the next key; at an
	// eighth more it is cut inside a key. Default 64 MiB. Two such tables are in
	// memory.
	TableBytes int64
	// BlockBytes is the size of a data block before compression. Default 32 KiB.
	BlockBytes int
	// ReadAhead is the most stored bytes that one request for input data asks for.
	// Default 4 MiB; less when many inputs share a Runner's MaxBufferBytes.
	ReadAhead int64
}

// Validate reports all faults of the limits. Plan and Run panic on limits that it
// refuses.
func (l Limits) Validate() error {
	l = l.withDefaults()
	var errs []error
	for _, f := range []struct {
		name           string
		is, least, top int64
	}{
		{"fan-in", int64(l.FanIn), minFanIn, maxFanIn},
		{"segment bytes", l.SegmentBytes, 1, 1 << 50},
		{"merge span in ns", int64(l.MergeWithin), 0, 1<<63 - 1},
		{"table bytes", l.TableBytes, 1, maxTableBytes},
		{"block bytes", int64(l.BlockBytes), minBlockBytes, maxBlockBytes},
		{"read-ahead", l.ReadAhead, minReadAhead, maxReadAhead},
	} {
		if f.is < f.least || f.is > f.top {
			errs = append(errs, fmt.Errorf("%s is %d, not within %d and %d", f.name, f.is, f.least, f.top))
		}
	}
	return errors.Join(errs...)
}

// checked returns the limits with defaults; bad ones are a programmer's error.
func (l Limits) checked() Limits {
	if err := l.Validate(); err != nil {
		panic("compaction: limits that were not validated: " + err.Error())
	}
	return l.withDefaults()
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.FanIn, DefaultFanIn)
	setDefault(&l.SegmentBytes, DefaultSegmentBytes)
	setDefault(&l.MergeWithin, DefaultMergeWithin)
	setDefault(&l.TableBytes, DefaultTableBytes)
	setDefault(&l.BlockBytes, DefaultBlockBytes)
	setDefault(&l.ReadAhead, DefaultReadAhead)
	return l
}

func setDefault[T int | int64 | time.Duration](p *T, def T) {
	if *p == 0 {
		*p = def
	}
}

// MaxActiveRuns is the most runs that an active segment of at most SegmentBytes
// has when Plan finds nothing to relieve; tiers.go has the proof. With the
// defaults: 233. A limit on a segment's runs must be higher, or it stops the writer
// for ever (F30).
func (l Limits) MaxActiveRuns() int {
	l = l.checked()
	return settledPerFanIn*l.FanIn + (l.FanIn-1)*tiers(l.settledBytes(), l.FanIn)
}

// settledBytes is the size from which a merged run of the active segment is left
// alone until the segment is sealed.
func (l Limits) settledBytes() uint64 {
	parts := uint64(settledPerFanIn * l.FanIn)
	return (uint64(l.SegmentBytes) + parts - 1) / parts
}

// fullBytes is the size from which a sealed segment is not merged any more. Half of
// SegmentBytes: to rewrite two halves saves one segment and costs more than that.
func (l Limits) fullBytes() uint64 { return max(1, uint64(l.SegmentBytes)/2) }

// addSaturating returns a + b, or the largest uint64: counts come from a manifest.
func addSaturating(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return 1<<64 - 1
	}
	return sum
}
