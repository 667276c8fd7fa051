package engine

import (
	"context"
	"time"

	"github.com/annalsdb/annals/internal/base"
)

// Record is one entry of the log. An appender fills in Key and Value only.
// Records that reads return must not be changed; they stay valid for ever.
type Record = base.Record

// Range is a half-open interval of sequences.
type Range = base.Range

// All is every sequence.
func All() Range { return base.All() }

// From is every sequence from seq on.
func From(seq uint64) Range { return Range{Start: seq, End: base.MaxSequence} }

// Between is the sequences from start up to, but not including, end.
func Between(start, end uint64) Range { return Range{Start: start, End: end} }

// LogReader is what can be read from a log, by the writer or a replica. All
// methods may be called from any goroutine. After ErrFenced or ErrClosed none
// of them works again.
type LogReader interface {
	// Scan reads the records of one key within a range, in sequence order. No
	// work is done before the iterator is used, and none goes on when its loop is
	// left. While it is used it reads ahead, in other goroutines, under ctx.
	Scan(ctx context.Context, key []byte, r Range, o ScanOptions) *Iterator
	// Count returns the exact number of readable records of one key within a
	// range. It reads indexes, and at most two data blocks a run.
	Count(ctx context.Context, key []byte, r Range) (uint64, error)
	// Keys lists distinct keys in byte order, one page at a time. A replica lists those in its range, and answers
	// ErrOutOfRange for a prefix of which none can be.
	Keys(ctx context.Context, o KeysOptions) (KeysPage, error)
	// Segments lists the segments that overlap o.Range, oldest first, one page
	// at a time. It costs one request for each group of consolidated segments on
	// the page that is not cached, and none for other segments.
	Segments(ctx context.Context, o SegmentsOptions) (SegmentsPage, error)
	// Wait returns nil as soon as a record of key with a sequence in r is readable,
	// or when the frontier has reached r.End: nothing more can come. It is woken by
	// the commit, not by a timer. Otherwise it returns ctx's error, ErrClosed,
	// ErrFenced, or why the records that are there already could not be read.
	Wait(ctx context.Context, key []byte, r Range) error
	// Follow returns the records of all the streams: those that are there, then those that come. It does no
	// I/O. Streams may name a key several times, by prefixes too: its records come once, from the lowest start
	// of all that cover it. Errors: ErrInvalid (no stream, more than MaxStreams, a key that no log can have), ctx's error,
	// ErrClosed, ErrFenced. The Follower lives under ctx; close it.
	Follow(ctx context.Context, streams ...Stream) (*Follower, error)
	// SeekTime returns a sequence at or below the frontier below which every record, of any key, is older than t
	// (milliseconds): where to begin to look for what came since. It is as near as the log knows without looking into
	// tables: few of the records behind it may be older, too. It costs at most one request, which is cached, and none
	// for a time that no group of consolidated segments holds. A log without records that are older gives FirstSequence.
	SeekTime(ctx context.Context, t time.Time) (uint64, error)
	// Cursors lists a consumer's cursors in key order, or those of the given keys.
	Cursors(ctx context.Context, consumer string, o CursorsOptions) (CursorsPage, error)
	// Consumers lists who has cursors.
	Consumers(ctx context.Context, after string, limit int) (ConsumersPage, error)
	// Frontier is the first sequence that is not yet readable. It never falls.
	Frontier() uint64
	// FirstSequence is the oldest sequence that the log still holds: the start of
	// its oldest segment.
	FirstSequence() uint64
}

// ScanOptions limit a scan. The zero value reads everything in the range.
type ScanOptions struct {
	// Limit is the largest number of records; 0: no limit. Below 0: ErrInvalid.
	Limit int
	// MaxBytes stops the scan before the record with which the values together
	// (keys do not count) would exceed it; the first record is always returned. 0:
	// no limit. Below 0: ErrInvalid.
	MaxBytes int64
	// Last, when above 0, selects the newest Last records of the range; they still
	// come oldest first. They are held in memory, so bound them. A Limit then only
	// lowers Last: the scan counts as drained. Below 0: ErrInvalid.
	Last int
	// Since, when not zero, starts at the first record whose timestamp is at or
	// after it (milliseconds).
	Since time.Time
}

// KeysOptions choose a page of keys. The zero value is the first page of all keys.
type KeysOptions struct {
	// Prefix selects the keys that begin with it.
	Prefix []byte
	// After selects the keys that sort after it; nil: from the first (the empty
	// key is a key, so After with a length of 0 skips it).
	After []byte
	// Segments [StartSegment, EndSegment) are looked at, whole: one that was merged of
	// several if it spans any of the ids. EndSegment 0: to the newest.
	StartSegment, EndSegment uint32
	// Limit is the size of the page, at most MaxPage; 0: MaxPage.
	Limit int
}

// MaxPage is the largest page of keys or segments.
const MaxPage = 10_000

// KeysPage is one page of keys. When More, the next page is After the last key. A
// page holds at most about 4 MiB of keys, so it may have fewer than Limit and yet
// More.
type KeysPage struct {
	Keys [][]byte
	More bool
}

// SegmentsOptions choose a page of segments.
type SegmentsOptions struct {
	// Range selects the segments whose window overlaps it. The zero value is all.
	Range Range
	// After selects segments that span an id above it: SegmentInfo.LastID of the last one of the
	// page before. One that was merged meanwhile may come again, larger; none is left out.
	After uint32
	// Limit is the size of the page, at most MaxPage; 0: MaxPage.
	Limit int
}

// SegmentsPage is one page of segments.
type SegmentsPage struct {
	Segments []SegmentInfo
	More     bool
}

// SegmentInfo describes one segment. Of the active one Records and Bytes count
// what is readable or still in memory.
type SegmentInfo struct {
	ID       uint32
	LastID   uint32    // of the newest segment that was merged into it; ID if none was
	Start    uint64    // first sequence of the window
	End      uint64    // exclusive end of the window; 0 while active
	Sealed   bool      // false until the flush is committed that seals it, when End is known already
	Started  time.Time // timestamp of its first record; zero while it has none
	SealedAt time.Time // store time; zero while active
	Records  uint64
	Bytes    uint64 // key + value, before compression
	Runs     int
}
