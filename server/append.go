package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// maxPooledRecords is the size up to which the memory of a decoded append is
// kept for the next one: records, conditions, and bytes of what was base64.
const maxPooledRecords = 1 << 20

// batch is the decoded form of one append request.
type batch struct {
	body     wire.AppendBody
	records  []engine.Record
	expected []engine.KeySequence
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// append serves POST /append.
func (s *Server) append(x *exchange) error {
	body, err := x.readBody()
	if err != nil {
		return err
	}
	// The engine copies keys and values before Append returns, however it ends; until
	// then they alias the pooled body.
	b := batches.Get().(*batch)
	defer b.release()
	if err := s.decodeAppend(x, body, &b.body); err != nil {
		return err
	}
	if err := x.coversBatch(&b.body); err != nil {
		return err
	}
	bytes := 0
	for _, r := range b.body.Records {
		b.records = append(b.records, engine.Record{Key: r.Key, Value: r.Value})
		bytes += len(r.Key) + len(r.Value)
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	options, began := s.appendOptions(x, b), time.Now()
	res, err := s.writer.Append(ctx, b.records, options)
	if err != nil {
		return err
	}
	s.metrics.acknowledged(options.Ack, time.Since(began))
	records := len(b.records)
	if res.Repeated { // answered as the first was, whatever is in this one
		records = int(res.Last - res.First + 1)
	} else {
		s.metrics.appendRecords.Add(float64(records))
		s.metrics.appendBytes.Add(float64(bytes))
	}
	return x.respondMessage(&wire.AppendResponse{
		Status:          wire.StatusSuccess,
		RecordsAppended: int32(records), // at most wire.MaxRecords
		StartSequence:   res.First,
		TimestampMs:     res.Timestamp,
	}, messageBytes)
}

// coversBatch returns the refusal of a batch that names a key that the token is not for, or nil.
func (x *exchange) coversBatch(b *wire.AppendBody) error {
	if !x.limited() {
		return nil
	}
	for i, r := range b.Records {
		if !x.token.Covers(r.Key) {
			return forbidden(refusedKeys, fmt.Sprintf("record[%d]: the token does not cover the key", i))
		}
	}
	for i, e := range b.ExpectedNext {
		if !x.token.Covers(e.Key) {
			return forbidden(refusedKeys, fmt.Sprintf("expectedNext[%d]: the token does not cover the key", i))
		}
	}
	return nil
}

// appendOptions returns what a checked request asks of the log.
func (s *Server) appendOptions(x *exchange, b *batch) engine.AppendOptions {
	o := engine.AppendOptions{Ack: s.ackOf(b.body.AwaitDurable)}
	for _, e := range b.body.ExpectedNext {
		b.expected = append(b.expected, engine.KeySequence{Key: e.Key, Next: e.Sequence})
	}
	o.ExpectedNext = b.expected
	if b.body.ProducerID != nil {
		o.Producer, o.ProducerSequence = *b.body.ProducerID, *b.body.ProducerSeq
		if x.token != nil {
			o.Producer = x.token.Producer(o.Producer)
		}
	}
	return o
}

// decodeAppend decodes and checks an append request.
func (s *Server) decodeAppend(x *exchange, data []byte, b *wire.AppendBody) error {
	format, name := wire.FormatOf(x.r.Header["Content-Type"]), "JSON"
	decode := b.UnmarshalJSON
	if format == wire.Protobuf {
		decode, name = b.UnmarshalProtobuf, "protobuf"
	} else if !x.takeBody(int64(len(data)) * 3 / 4) { // what the base64 texts in it may stand for
		return tooManyBodies()
	}
	err := decode(data)
	switch {
	case errors.Is(err, wire.ErrTooManyRecords):
		return &apiError{status: http.StatusRequestEntityTooLarge, message: "the batch has " + err.Error()}
	case errors.Is(err, wire.ErrTooManyExpected):
		return invalid("%v", err)
	case err != nil:
		return invalid("Invalid %s: %v", name, err)
	}
	if err := b.Validate(s.opts.MaxKeyBytes, s.opts.MaxValueBytes); err != nil {
		return invalid("%v", err)
	}
	return nil
}

func (s *Server) ackOf(awaitDurable *bool) engine.Durability {
	switch {
	case awaitDurable == nil:
		return s.opts.Ack
	case *awaitDurable:
		return engine.Durable
	default:
		return engine.Memory
	}
}

func (b *batch) release() {
	b.body.Release(maxPooledRecords)
	if cap(b.records) > maxPooledRecords {
		b.records = nil
	}
	clear(b.records)
	b.records = b.records[:0]
	clear(b.expected)
	b.expected = b.expected[:0]
	batches.Put(b)
}
