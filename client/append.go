package client

import (
	"context"
	"fmt"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/annalsdb/annals/wire"
)

// Record is one record to append. Nil and empty are the same.
type Record struct {
	Key, Value []byte
}

// Ack is what an append waits for.
type Ack int

const (
	// AckDefault waits for what the server's default says.
	AckDefault Ack = iota
	// AckDurable waits until the batch is in the object store.
	AckDurable
	// AckMemory does not wait; a crash of the server may lose the batch.
	AckMemory
)

// AppendOptions of one append.
type AppendOptions struct {
	Ack Ack
	// ExpectedNext are conditions, at most 10,000: the batch is appended only if each
	// holds, else the error is a *ConflictError. With conditions and no records they are only checked.
	ExpectedNext []KeySequence
	// Producer, if not empty, makes the append idempotent: a name of 1 to 128 bytes of UTF-8
	// whose appends are numbered with ProducerSequence, from any number on, each by one above
	// the one before. The log remembers the last 64 of each producer: a repeat of one is answered as
	// the first was and appends nothing. Another number is a *SequenceError. A
	// Client's Producer does the numbering.
	Producer         string
	ProducerSequence uint64
}

// KeySequence is the condition that no record of Key, kept or just given its sequence,
// lies at or above Next. Next is 0 for a key that has no records.
type KeySequence struct {
	Key  []byte
	Next uint64
}

// AppendResult says where the batch lies: its records have consecutive
// sequences from Start.
type AppendResult struct {
	Start     uint64
	Records   int
	Timestamp int64 // milliseconds since the Unix epoch
}

// Append appends the records as one batch, all or none. It sends the batch at
// most once. NotAppended tells what a failure means.
func (c *Client) Append(ctx context.Context, recs []Record, o AppendOptions) (AppendResult, error) {
	return c.append(ctx, encodeAppend(recs, o))
}

// append sends an encoded AppendRequest.
func (c *Client) append(ctx context.Context, request []byte) (AppendResult, error) {
	var resp wire.AppendResponse
	if err := c.do(ctx, http.MethodPost, "/api/v1/log/append", request, &resp); err != nil {
		return AppendResult{}, fmt.Errorf("append: %w", err)
	}
	return AppendResult{Start: resp.StartSequence, Records: int(resp.RecordsAppended), Timestamp: resp.TimestampMs}, nil
}

// Field numbers of wire.proto.
const (
	fieldRecords      protowire.Number = 1
	fieldAwaitDurable protowire.Number = 2
	fieldExpectedNext protowire.Number = 100
	fieldProducerID   protowire.Number = 101
	fieldProducerSeq  protowire.Number = 102
	fieldKey          protowire.Number = 1
	fieldValue        protowire.Number = 2
	fieldSequence     protowire.Number = 2
)

// encodeAppend encodes an AppendRequest without building its messages: a batch
// may hold many small records.
func encodeAppend(recs []Record, o AppendOptions) []byte {
	size := 2
	for i := range recs {
		size += encodedSize(&recs[i])
	}
	for i := range o.ExpectedNext {
		size += protowire.SizeTag(fieldExpectedNext) + protowire.SizeBytes(conditionSize(&o.ExpectedNext[i]))
	}
	if o.Producer != "" {
		size += protowire.SizeTag(fieldProducerID) + protowire.SizeBytes(len(o.Producer)) +
			protowire.SizeTag(fieldProducerSeq) + protowire.SizeVarint(o.ProducerSequence)
	}
	b := make([]byte, 0, size)
	for i := range recs {
		b = appendRecord(b, &recs[i])
	}
	return appendOptions(b, &o)
}

// appendRecord appends the encoding of one record.
func appendRecord(b []byte, r *Record) []byte {
	b = protowire.AppendTag(b, fieldRecords, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(recordSize(r)))
	b = protowire.AppendTag(b, fieldKey, protowire.BytesType)
	b = protowire.AppendBytes(b, r.Key)
	b = protowire.AppendTag(b, fieldValue, protowire.BytesType)
	return protowire.AppendBytes(b, r.Value)
}

// appendOptions appends the encoding of the fields that are not records.
func appendOptions(b []byte, o *AppendOptions) []byte {
	if o.Ack != AckDefault {
		b = protowire.AppendTag(b, fieldAwaitDurable, protowire.VarintType)
		b = protowire.AppendVarint(b, protowire.EncodeBool(o.Ack == AckDurable))
	}
	for i := range o.ExpectedNext {
		e := &o.ExpectedNext[i]
		b = protowire.AppendTag(b, fieldExpectedNext, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(conditionSize(e)))
		b = protowire.AppendTag(b, fieldKey, protowire.BytesType)
		b = protowire.AppendBytes(b, e.Key)
		b = protowire.AppendTag(b, fieldSequence, protowire.VarintType)
		b = protowire.AppendVarint(b, e.Next)
	}
	if o.Producer != "" {
		b = protowire.AppendTag(b, fieldProducerID, protowire.BytesType)
		b = protowire.AppendString(b, o.Producer)
		b = protowire.AppendTag(b, fieldProducerSeq, protowire.VarintType)
		b = protowire.AppendVarint(b, o.ProducerSequence)
	}
	return b
}

// encodedSize is what appendRecord appends.
func encodedSize(r *Record) int {
	return protowire.SizeTag(fieldRecords) + protowire.SizeBytes(recordSize(r))
}

func conditionSize(e *KeySequence) int {
	return protowire.SizeTag(fieldKey) + protowire.SizeBytes(len(e.Key)) +
		protowire.SizeTag(fieldSequence) + protowire.SizeVarint(e.Next)
}

func recordSize(r *Record) int {
	return protowire.SizeTag(fieldKey) + protowire.SizeBytes(len(r.Key)) +
		protowire.SizeTag(fieldValue) + protowire.SizeBytes(len(r.Value))
}
