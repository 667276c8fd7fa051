package server

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// maxPooledRecords is the size up to which the memory of a decoded append is
// kept for the next one: records, and bytes of what was base64.
const maxPooledRecords = 1 << 20

// batch is the decoded form of one append request.
type batch struct {
	body    wire.AppendBody
	records []engine.Record
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
	bytes := 0
	for _, r := range b.body.Records {
		b.records = append(b.records, engine.Record{Key: r.Key, Value: r.Value})
		bytes += len(r.Key) + len(r.Value)
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	res, err := s.db.Append(ctx, b.records, engine.AppendOptions{Ack: s.ackOf(b.body.AwaitDurable)})
	if err != nil {
		return err
	}
	s.metrics.appendRecords.Add(float64(len(b.records)))
	s.metrics.appendBytes.Add(float64(bytes))
	return x.respondMessage(&wire.AppendResponse{
		Status:          wire.StatusSuccess,
		RecordsAppended: int32(len(b.records)), // at most wire.MaxRecords
		StartSequence:   res.First,
		TimestampMs:     res.Timestamp,
	}, messageBytes)
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
	if err := decode(data); errors.Is(err, wire.ErrTooManyRecords) {
		return &apiError{status: http.StatusRequestEntityTooLarge, message: "the batch has " + err.Error()}
	} else if err != nil {
		return invalid("Invalid %s: %v", name, err)
	}
	switch {
	case len(b.ExpectedNext) > 0:
		return invalid("expectedNext is not supported by this server")
	case b.ProducerID != nil || b.ProducerSeq != nil:
		return invalid("producerId and producerSeq are not supported by this server")
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
	batches.Put(b)
}
