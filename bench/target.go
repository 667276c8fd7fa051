package bench

import (
	"context"

	"github.com/annalsdb/annals/engine"
)

// Record is one record to append: its Key and Value.
type Record = engine.Record

// Ack is what an append waits for.
type Ack = engine.Durability

// What an append may wait for.
const (
	Durable = engine.Durable
	Memory  = engine.Memory
)

// Target is the log under test: embedded, or behind HTTP. All methods but Close may be called from
// any goroutine. Keys and values that are passed in are the caller's again when a call has returned.
type Target interface {
	// Append appends the records as one batch, sent once, and returns the first one's sequence.
	// Overloaded tells whether an error means that it may be tried again.
	Append(ctx context.Context, recs []Record, ack Ack) (first uint64, err error)
	// Scan reads one page of a key's records.
	Scan(ctx context.Context, key []byte, o ScanOptions) (Page, error)
	// Count returns the number of a key's records.
	Count(ctx context.Context, key []byte) (uint64, error)
	// Keys lists the keys that begin with prefix and sort after a key (nil: from the first), at most limit of them.
	Keys(ctx context.Context, prefix, after []byte, limit int) (keys [][]byte, more bool, err error)
	// Close ends the use of the log. An embedded one is flushed and closed.
	Close(ctx context.Context) error
}

// ScanOptions choose a page.
type ScanOptions struct {
	From     uint64 // the first sequence
	Limit    int    // of records; 0: the target's own (embedded: none)
	MaxBytes int64  // of values; 0: the target's own (embedded: none)
	Last     int    // the newest that many; 0: from From on
}

// Page is the answer to a scan.
type Page struct {
	Records []Got
	Next    uint64 // the From to go on with
}

// Got is one record that was read. Its Value must not be changed.
type Got struct {
	Seq   uint64
	Value []byte
}
