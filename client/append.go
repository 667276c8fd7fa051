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
	var resp wire.AppendResponse
	if err := c.do(ctx, http.MethodPost, "/api/v1/log/append", encodeAppend(recs, o), &resp); err != nil {
		return AppendResult{}, fmt.Errorf("append: %w", err)
	}
	return AppendResult{Start: resp.StartSequence, Records: int(resp.RecordsAppended), Timestamp: resp.TimestampMs}, nil
}

// Field numbers of wire.proto.
const (
	fieldRecords      protowire.Number = 1
	fieldAwaitDurable protowire.Number = 2
	fieldKey          protowire.Number = 1
	fieldValue        protowire.Number = 2
)

// encodeAppend encodes an AppendRequest without building its messages: a batch
// may hold many small records.
func encodeAppend(recs []Record, o AppendOptions) []byte {
	size := 2
	for i := range recs {
		n := recordSize(&recs[i])
		size += protowire.SizeTag(fieldRecords) + protowire.SizeBytes(n)
	}
	b := make([]byte, 0, size)
	for i := range recs {
		r := &recs[i]
		b = protowire.AppendTag(b, fieldRecords, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(recordSize(r)))
		b = protowire.AppendTag(b, fieldKey, protowire.BytesType)
		b = protowire.AppendBytes(b, r.Key)
		b = protowire.AppendTag(b, fieldValue, protowire.BytesType)
		b = protowire.AppendBytes(b, r.Value)
	}
	if o.Ack != AckDefault {
		b = protowire.AppendTag(b, fieldAwaitDurable, protowire.VarintType)
		b = protowire.AppendVarint(b, protowire.EncodeBool(o.Ack == AckDurable))
	}
	return b
}

func recordSize(r *Record) int {
	return protowire.SizeTag(fieldKey) + protowire.SizeBytes(len(r.Key)) +
		protowire.SizeTag(fieldValue) + protowire.SizeBytes(len(r.Value))
}
