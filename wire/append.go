package wire

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// KeyValue is one record of an append request. A nil slice means that the field
// was missing; an empty one that is not nil is legal.
type KeyValue struct {
	Key, Value []byte
}

// AppendBody is a decoded append request. The zero value is ready for use, and
// one that was used can be used again: decoding replaces its content and reuses its
// memory. Not safe for use by several goroutines.
type AppendBody struct {
	Records      []KeyValue
	AwaitDurable *bool // nil: the server's default
	ExpectedNext []ExpectedNext
	ProducerID   *string
	ProducerSeq  *uint64

	arena []byte // decoded keys and values of a JSON body
}

// ExpectedNext is the condition that no record of Key lies at or above
// Sequence.
type ExpectedNext struct {
	Key      []byte
	Sequence uint64
}

// Field numbers of wire.proto.
const (
	fieldAppendRecords      protowire.Number = 1
	fieldAppendAwaitDurable protowire.Number = 2
	fieldAppendExpectedNext protowire.Number = 100
	fieldAppendProducerID   protowire.Number = 101
	fieldAppendProducerSeq  protowire.Number = 102

	fieldRecordKey   protowire.Number = 1
	fieldRecordValue protowire.Number = 2

	fieldKeySequenceKey      protowire.Number = 1
	fieldKeySequenceSequence protowire.Number = 2
)

// Release drops what the body refers to, but keeps its memory for the next use
// unless that is larger than maxKept bytes or records.
func (b *AppendBody) Release(maxKept int) {
	records, arena := b.Records, b.arena
	*b = AppendBody{}
	if cap(records) <= maxKept {
		clear(records)
		b.Records = records[:0]
	}
	if cap(arena) <= maxKept {
		b.arena = arena[:0]
	}
}

func (b *AppendBody) reset() {
	*b = AppendBody{Records: b.Records[:0], arena: b.arena[:0]}
}

// Validate reports the first record without a key or value, or with one that is
// longer than allowed, and conditions and producers that are out of their bounds, as the
// API words it.
func (b *AppendBody) Validate(maxKey, maxValue int) error {
	for i, r := range b.Records {
		switch {
		case r.Key == nil:
			return fmt.Errorf("record[%d]: key is required", i)
		case r.Value == nil:
			return fmt.Errorf("record[%d]: value is required", i)
		case len(r.Key) > maxKey:
			return fmt.Errorf("record[%d]: key has %d bytes; at most %d are allowed", i, len(r.Key), maxKey)
		case len(r.Value) > maxValue:
			return fmt.Errorf("record[%d]: value has %d bytes; at most %d are allowed", i, len(r.Value), maxValue)
		}
	}
	for i, e := range b.ExpectedNext {
		if len(e.Key) > maxKey {
			return fmt.Errorf("expectedNext[%d]: key has %d bytes; at most %d are allowed", i, len(e.Key), maxKey)
		}
	}
	return b.validateProducer()
}

func (b *AppendBody) validateProducer() error {
	switch id := b.ProducerID; {
	case id == nil && b.ProducerSeq == nil:
		return nil
	case id == nil:
		return errors.New("producerSeq without producerId")
	case len(*id) == 0 || len(*id) > MaxProducerBytes:
		return fmt.Errorf("producerId has %d bytes; it must have 1 to %d", len(*id), MaxProducerBytes)
	case b.ProducerSeq == nil:
		return errors.New("producerId without producerSeq")
	}
	return nil
}

// UnmarshalProtobuf decodes an AppendRequest. Keys and values alias data. It
// accepts exactly what the generated code accepts, with the same result, except
// for more than MaxRecords records or MaxExpected conditions; a property test holds
// the two against each other.
func (b *AppendBody) UnmarshalProtobuf(data []byte) error {
	b.reset()
	if data == nil {
		data = []byte{} // so that no empty slice of it is nil
	}
	for len(data) > 0 {
		var f field
		var err error
		if f, data, err = nextField(data); err != nil {
			return err
		}
		if err := b.set(f); err != nil {
			return err
		}
	}
	return nil
}

// set takes in one field of an AppendRequest.
func (b *AppendBody) set(f field) error {
	switch {
	case f.isBytes(fieldAppendRecords):
		if len(b.Records) == MaxRecords {
			return ErrTooManyRecords
		}
		r, err := unmarshalRecord(f.bytes)
		if err != nil {
			return fmt.Errorf("record[%d]: %w", len(b.Records), err)
		}
		b.Records = append(b.Records, r)
	case f.isVarint(fieldAppendAwaitDurable):
		v := protowire.DecodeBool(f.varint)
		b.AwaitDurable = &v
	case f.isBytes(fieldAppendExpectedNext):
		e, err := unmarshalExpectedNext(f.bytes)
		if err != nil {
			return fmt.Errorf("expected_next[%d]: %w", len(b.ExpectedNext), err)
		}
		if len(b.ExpectedNext) == MaxExpected {
			return ErrTooManyExpected
		}
		b.ExpectedNext = append(b.ExpectedNext, e)
	case f.isBytes(fieldAppendProducerID):
		if !utf8.Valid(f.bytes) {
			return errors.New("producer_id is not UTF-8")
		}
		id := string(f.bytes)
		b.ProducerID = &id
	case f.isVarint(fieldAppendProducerSeq):
		seq := f.varint
		b.ProducerSeq = &seq
	}
	return nil
}

func unmarshalRecord(data []byte) (r KeyValue, err error) {
	for len(data) > 0 {
		var f field
		if f, data, err = nextField(data); err != nil {
			return KeyValue{}, err
		}
		switch {
		case f.isBytes(fieldRecordKey):
			r.Key = f.bytes
		case f.isBytes(fieldRecordValue):
			r.Value = f.bytes
		}
	}
	return r, nil
}

func unmarshalExpectedNext(data []byte) (e ExpectedNext, err error) {
	for len(data) > 0 {
		var f field
		if f, data, err = nextField(data); err != nil {
			return ExpectedNext{}, err
		}
		switch {
		case f.isBytes(fieldKeySequenceKey):
			e.Key = f.bytes
		case f.isVarint(fieldKeySequenceSequence):
			e.Sequence = f.varint
		}
	}
	return e, nil
}

// field is one field of a message. A known number with another wire type than
// it should have counts as unknown, as the protobuf rules want.
type field struct {
	num    protowire.Number
	typ    protowire.Type
	varint uint64
	bytes  []byte
}

func (f *field) isBytes(n protowire.Number) bool  { return f.num == n && f.typ == protowire.BytesType }
func (f *field) isVarint(n protowire.Number) bool { return f.num == n && f.typ == protowire.VarintType }

// nextField takes the first field off the message in data, which must not be empty.
func nextField(data []byte) (f field, rest []byte, err error) {
	num, typ, n := protowire.ConsumeTag(data)
	if n < 0 {
		return f, nil, protowire.ParseError(n)
	}
	if num > protowire.MaxValidNumber {
		return f, nil, errors.New("invalid field number")
	}
	data = data[n:]
	f = field{num: num, typ: typ}
	switch typ {
	case protowire.VarintType:
		f.varint, n = protowire.ConsumeVarint(data)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(data)
	default:
		n = protowire.ConsumeFieldValue(num, typ, data)
	}
	if n < 0 {
		return f, nil, protowire.ParseError(n)
	}
	return f, data[n:], nil
}
