package wire

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Framing is how the objects of an answer without end are told apart.
type Framing int

const (
	// Events are server-sent events, each with an id: where to go on. For answers that
	// follow one key.
	Events Framing = iota
	// PlainEvents are server-sent events without ids.
	PlainEvents
	// Lines are JSON objects, one a line.
	Lines
)

// ContentType returns the media type of the framing.
func (f Framing) ContentType() string {
	if f == Lines {
		return TypeLines
	}
	return TypeEvents
}

// Names of server-sent events that are not records.
const (
	EventCursor = "cursor"
	EventEnd    = "end"
)

// StreamRecord is one record of an answer without end.
type StreamRecord struct {
	Key         []byte
	Sequence    uint64
	TimestampMs int64
	Value       []byte
}

// SizeOf is an upper bound of what AppendRecord appends.
func (r *StreamRecord) SizeOf() int {
	return base64.StdEncoding.EncodedLen(len(r.Key)) + base64.StdEncoding.EncodedLen(len(r.Value)) + 192 // names, integers and the frame
}

// AppendRecord appends one record.
func (f Framing) AppendRecord(dst []byte, r *StreamRecord) []byte {
	next := r.Sequence + 1
	switch f {
	case Events:
		dst = append(dst, "id: "...)
		dst = strconv.AppendUint(dst, next, 10)
		dst = append(dst, "\ndata: "...)
	case PlainEvents:
		dst = append(dst, "data: "...)
	}
	dst = append(dst, `{"key":`...)
	dst = appendBytes(dst, r.Key)
	dst = append(dst, `,"sequence":`...)
	dst = strconv.AppendUint(dst, r.Sequence, 10)
	dst = append(dst, `,"timestampMs":`...)
	dst = strconv.AppendInt(dst, r.TimestampMs, 10)
	dst = append(dst, `,"value":`...)
	dst = appendBytes(dst, r.Value)
	dst = append(dst, `,"nextSequence":`...)
	dst = strconv.AppendUint(dst, next, 10)
	return f.end(append(dst, '}'))
}

// AppendCursor appends a cursor: every record that the answer is about, with a
// sequence below next, was sent. With Events it is a comment and an id.
func (f Framing) AppendCursor(dst []byte, next uint64) []byte {
	switch f {
	case Events:
		dst = append(dst, ":\nid: "...)
		dst = strconv.AppendUint(dst, next, 10)
		return append(dst, "\n\n"...)
	case PlainEvents:
		dst = append(dst, "event: "+EventCursor+"\ndata: "...)
	}
	dst = append(dst, `{"nextSequence":`...)
	dst = strconv.AppendUint(dst, next, 10)
	return f.end(append(dst, '}'))
}

// AppendEnd appends why the answer ends.
func (f Framing) AppendEnd(dst []byte, e *ErrorBody) []byte {
	if f != Lines {
		dst = append(dst, "event: "+EventEnd+"\ndata: "...)
	}
	return f.end(e.AppendJSON(dst))
}

func (f Framing) end(dst []byte) []byte {
	if f == Lines {
		return append(dst, '\n')
	}
	return append(dst, "\n\n"...)
}

// StreamItem is one object of an answer without end: a record, a cursor, or why it
// ends.
type StreamItem struct {
	StreamRecord            // Key is nil if it is none
	Next         uint64     // of the record's key, or the cursor
	End          *ErrorBody // nil: it goes on
}

// UnmarshalJSON decodes one object. Its bytes are in memory of its own.
func (i *StreamItem) UnmarshalJSON(data []byte) error {
	*i = StreamItem{}
	r := jsonReader{
		dec:   jsontext.NewDecoder(bytes.NewBuffer(data)),
		arena: make([]byte, 0, base64.RawStdEncoding.DecodedLen(len(data))),
	}
	var sequence, next *uint64
	var status, message *string
	err := r.object(func(name []byte) error {
		switch string(name) {
		case "key":
			return r.bytes(&i.Key)
		case "value":
			return r.bytes(&i.Value)
		case "sequence":
			return r.number(&sequence)
		case "nextSequence":
			return r.number(&next)
		case "timestampMs":
			return r.integer(&i.TimestampMs)
		case "status":
			return r.text(&status)
		case "message":
			return r.text(&message)
		}
		return r.dec.SkipValue()
	})
	if err == nil {
		err = r.end()
	}
	switch {
	case err != nil:
		return jsonError(err)
	case status != nil && message != nil:
		i.End = &ErrorBody{Status: *status, Message: *message}
		return nil
	case next == nil:
		return fmt.Errorf("nextSequence is required")
	case i.Key != nil && (sequence == nil || i.Value == nil):
		return fmt.Errorf("sequence and value of a record are required")
	}
	i.Next = *next
	if i.Key != nil {
		i.Sequence = *sequence
	}
	return nil
}

func (r *jsonReader) integer(to *int64) error {
	v, err := r.scalar(jsontext.KindNumber, "a number")
	if v == nil {
		return err
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return r.errorf("an integer of 64 bits is expected")
	}
	*to = n
	return nil
}
