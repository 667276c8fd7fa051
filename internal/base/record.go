// Package base holds the vocabulary that every part of annals shares: records,
// sequences, key ranges, object names, seeded checksums, errors, and the clock,
// randomness and goroutine starts that protocol code takes from outside.
//
// It imports no other package of the project and does no I/O.
package base

import (
	"bytes"
	"cmp"
	"math"
)

// MaxSequence is the exclusive upper end of the sequence space. No record ever
// has it as its sequence.
const MaxSequence uint64 = math.MaxUint64

// Record is one entry of the log.
//
// Key and Value are arbitrary bytes and may be empty. Sequence and Timestamp
// are assigned by the writer; an appender leaves them zero. Sequences start at
// 0 and are unique in the whole log. Timestamp is in milliseconds since the
// Unix epoch and never decreases as the sequence rises.
type Record struct {
	Key       []byte
	Value     []byte
	Sequence  uint64
	Timestamp int64
}

// Size returns the bytes of the record that count against byte limits: key and
// value.
func (r *Record) Size() int { return len(r.Key) + len(r.Value) }

// Compare orders records by key (bytewise), then by sequence: the order of
// every sorted file.
func Compare(aKey []byte, aSeq uint64, bKey []byte, bSeq uint64) int {
	if c := bytes.Compare(aKey, bKey); c != 0 {
		return c
	}
	return cmp.Compare(aSeq, bSeq)
}

// Range is the half-open interval [Start, End) of sequences.
type Range struct {
	Start, End uint64
}

// All is the range of every sequence.
func All() Range { return Range{0, MaxSequence} }

// Empty reports whether the range holds no sequence.
func (r Range) Empty() bool { return r.Start >= r.End }

// Overlaps reports whether the two ranges share a sequence; an empty one shares none.
func (r Range) Overlaps(o Range) bool { return !r.Intersect(o).Empty() }

// Intersect returns the sequences that are in both ranges. The result may be
// empty.
func (r Range) Intersect(o Range) Range {
	return Range{max(r.Start, o.Start), min(r.End, o.End)}
}

// MaxBoundBytes is the length to which key bounds are rounded before they are
// written to a manifest.
const MaxBoundBytes = 32

// LowerBound rounds key down to at most MaxBoundBytes bytes: the result sorts
// at or before key.
func LowerBound(key []byte) []byte {
	return bytes.Clone(key[:min(len(key), MaxBoundBytes)])
}

// UpperBound rounds key up to at most MaxBoundBytes bytes: the result sorts at
// or after key and after every key that shares its first MaxBoundBytes bytes.
// A short key is its own bound. It returns false when there is no such bound
// (the first MaxBoundBytes bytes are all 0xFF), in which case the bound is
// infinite.
func UpperBound(key []byte) ([]byte, bool) {
	if len(key) <= MaxBoundBytes {
		return bytes.Clone(key), true
	}
	return PrefixEnd(key[:MaxBoundBytes])
}

// PrefixEnd returns the smallest key that sorts after every key with the given
// prefix, or false when there is none (the prefix is empty or all 0xFF).
func PrefixEnd(prefix []byte) ([]byte, bool) {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xFF {
			end := bytes.Clone(prefix[:i+1])
			end[i]++
			return end, true
		}
	}
	return nil, false
}
