package wal

import (
	"iter"

	"github.com/annalsdb/annals/internal/base"
)

// EntryType says what an entry of a record object is. Values are persisted: do
// not renumber.
type EntryType uint32

const (
	EntryBatch    EntryType = 1 // the records of one append
	EntryCursor   EntryType = 2 // a change to a consumer's named cursors
	EntryProducer EntryType = 3 // which append of an idempotent producer a batch was
)

// CursorOp says what a CursorChange does. Values are persisted: do not renumber.
type CursorOp uint32

const (
	CursorSet            CursorOp = 1 // the cursor of (Consumer, Key) is now Next
	CursorDelete         CursorOp = 2 // the cursor of (Consumer, Key) is gone
	CursorDeleteConsumer CursorOp = 3 // all cursors of Consumer are gone
)

// Sizes of the parts of entries that come before their variable bytes.
const (
	entryHeaderSize   = 8  // type, payload length
	batchHeaderSize   = 20 // first, timestamp, count
	recordHeaderSize  = 8  // key length, value length
	cursorHeaderSize  = 20 // operation, consumer length, key length, next
	producerFixedSize = 32 // id length, count, sequence, first, timestamp
)

// Entry is one entry of a record object. Only the member that Type names is set.
type Entry struct {
	Type     EntryType
	Batch    Batch
	Cursor   CursorChange
	Producer ProducerMark
}

// Size returns the bytes that the entry takes in its object.
func (e *Entry) Size() int {
	switch e.Type {
	case EntryBatch:
		return entryHeaderSize + batchHeaderSize + len(e.Batch.data)
	case EntryCursor:
		return entryHeaderSize + cursorHeaderSize + len(e.Cursor.Consumer) + len(e.Cursor.Key)
	default:
		return entryHeaderSize + producerFixedSize + len(e.Producer.Producer)
	}
}

// Batch is the records of one append: Count records, at least one, with
// consecutive sequences from First and one timestamp.
type Batch struct {
	First     uint64
	Timestamp int64
	Count     uint32
	data      []byte // checked: exactly Count records
}

// End returns the sequence after the batch's last record.
func (b Batch) End() uint64 { return b.First + uint64(b.Count) }

// Bytes returns the bytes of all keys and values.
func (b Batch) Bytes() int { return len(b.data) - recordHeaderSize*int(b.Count) }

// Records yields the batch's records in order. Keys and values alias the body
// that was decoded.
func (b Batch) Records() iter.Seq[base.Record] {
	return func(yield func(base.Record) bool) {
		data, seq := b.data, b.First
		for range b.Count {
			k := recordHeaderSize + int(le.Uint32(data))
			v := k + int(le.Uint32(data[4:]))
			rec := base.Record{
				Key: data[recordHeaderSize:k:k], Value: data[k:v:v],
				Sequence: seq, Timestamp: b.Timestamp,
			}
			if !yield(rec) {
				return
			}
			data = data[v:]
			seq++
		}
	}
}

// AppendRecords appends the batch's records to dst. Keys and values alias the
// body that was decoded.
func (b Batch) AppendRecords(dst []base.Record) []base.Record {
	for rec := range b.Records() {
		dst = append(dst, rec)
	}
	return dst
}

// CursorChange is a change to the tree's named cursors.
type CursorChange struct {
	Op       CursorOp
	Consumer string
	// Key is empty for CursorDeleteConsumer. When decoded it aliases the body.
	Key []byte
	// Next is the sequence from which the consumer goes on; CursorSet only.
	Next uint64
}

// ProducerMark says that the batch of Count records from First, in the same
// object, was append number Sequence of an idempotent producer.
type ProducerMark struct {
	Producer  string
	Sequence  uint64
	First     uint64
	Count     uint32
	Timestamp int64
}

// End returns the sequence after the last record of the append.
func (p ProducerMark) End() uint64 { return p.First + uint64(p.Count) }
