// Package state holds the small state of a tree: the named cursors of consumers and the last appends of
// idempotent producers. Tables keeps it in memory; a state object keeps it in the store.
//
// A state object is an exact snapshot at a position of the WAL. A base has everything, changes have what changed since
// a base; one base and at most one object of changes are in force. docs/format/state.md specifies the bytes.
//
// The package does no I/O. What it relies on and upholds:
//
//	I8  bytes are checked, with a seed, before they are believed, and cannot ask for more memory than a
//	    named multiple of their size
//	I9  producers and what is remembered of each are bounded; the caller bounds cursors, by Bytes
package state

// Limits of the small state (I9). The caller enforces those of names and keys.
const (
	// MaxConsumerBytes and MaxProducerBytes are the longest names.
	MaxConsumerBytes = 128
	MaxProducerBytes = 128
	// ProducerWindow is how many of its last appends are remembered of each producer.
	ProducerWindow = 64
)

// Cursor is where a consumer goes on with a key.
type Cursor struct {
	Key  []byte
	Next uint64
}

// Mark says that an append, number Sequence of its producer, was assigned the Count sequences from First
// and the timestamp.
type Mark struct {
	Sequence  uint64
	First     uint64
	Count     uint32
	Timestamp int64
}

// Found says what an append of a producer is.
type Found int

const (
	// Fresh: the next append of the producer, or the first of a producer that is not known.
	Fresh Found = iota
	// Repeat: it was applied before.
	Repeat
	// Gap: it is above the next one.
	Gap
	// TooOld: it was applied, or left out, before the appends that are remembered.
	TooOld
)

// Limits bound tables.
type Limits struct {
	// Producers are remembered at most; of more, the one that appended longest ago is forgotten. 0: none is.
	Producers int
	// Keep says whether cursors of a key are kept. Nil: all are. Tables that leave some out are
	// never written to a state object: EncodeBase and EncodeChanges panic.
	Keep func(key []byte) bool
}
