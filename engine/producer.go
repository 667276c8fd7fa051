package engine

import (
	"fmt"

	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/wal"
)

// ProducerError says that an append of a producer is neither the next one nor one of
// the last that are remembered. It matches ErrConflict; nothing was appended.
type ProducerError struct {
	Producer string
	Sequence uint64 // the number of the refused append
	Last     uint64 // of the producer's last append that was taken; the next one is Last + 1
}

// Error implements error.
func (e *ProducerError) Error() string {
	if e.Sequence > e.Last {
		return fmt.Sprintf("append %d of producer %.128q would leave a gap after %d: %v", e.Sequence, e.Producer, e.Last, ErrConflict)
	}
	return fmt.Sprintf("append %d of producer %.128q lies too far before its last, %d, to be remembered: %v", e.Sequence, e.Producer, e.Last, ErrConflict)
}

// Is makes it match ErrConflict.
func (e *ProducerError) Is(target error) bool { return target == ErrConflict }

func (a *appending) validateProducer() error {
	switch {
	case a.producer == "" && a.number != 0:
		return fmt.Errorf("%w: ProducerSequence %d without a Producer", ErrInvalid, a.number)
	case len(a.producer) > state.MaxProducerBytes:
		return fmt.Errorf("%w: the name of the producer has %d bytes; the limit is %d", ErrInvalid, len(a.producer), state.MaxProducerBytes)
	case a.producer != "" && len(a.recs) == 0:
		return fmt.Errorf("%w: an empty batch of a producer", ErrInvalid)
	}
	return nil
}

// repeat answers an append that its producer made before as it was answered then: when it is
// durable, wherever the first answer got lost. Callers hold mu.
func (db *DB) repeat(a *appending) (res AppendResult, waiter *durableWaiter, ok bool) {
	if a.producer == "" || db.failed != nil || db.closed {
		return res, nil, false
	}
	m, found := db.small.tables.Lookup(a.producer, a.number)
	if found != state.Repeat {
		return res, nil, false
	}
	db.stats.repeats++
	end := m.First + uint64(m.Count)
	// The mark is in the WAL object of the batch: with the one the other is durable.
	if at := (place{end: end}); a.ack == Durable && !db.isDurable(at) {
		waiter = db.addWaiter(at)
	}
	return AppendResult{First: m.First, Last: end - 1, Timestamp: m.Timestamp, Repeated: true}, waiter, true
}

// checkProducer refuses an append that is not its producer's next. Callers hold mu and have asked
// repeat.
func (db *DB) checkProducer(a *appending) error {
	if a.producer == "" {
		return nil
	}
	if _, found := db.small.tables.Lookup(a.producer, a.number); found == state.Fresh {
		return nil
	}
	last, _ := db.small.tables.LastOf(a.producer)
	return &ProducerError{Producer: a.producer, Sequence: a.number, Last: last}
}

// mark remembers an append of a producer, in the WAL object that its batch is in. Callers hold mu.
func (db *DB) mark(a *appending, res AppendResult) {
	m := state.Mark{Sequence: a.number, First: res.First, Count: uint32(len(a.recs)), Timestamp: res.Timestamp}
	db.change(func(object *wal.Builder) {
		object.AddProducer(wal.ProducerMark{
			Producer: a.producer, Sequence: m.Sequence, First: m.First, Count: m.Count, Timestamp: m.Timestamp,
		})
		db.small.tables.Mark(a.producer, m)
	})
}
