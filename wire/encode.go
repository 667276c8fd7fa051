package wire

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
)

// AppendMessage appends the encoding of a response message in the format.
func AppendMessage(dst []byte, f Format, m proto.Message) []byte {
	if f == JSON {
		return AppendJSON(dst, m)
	}
	dst, err := proto.MarshalOptions{}.MarshalAppend(dst, m)
	if err != nil {
		// Messages of this package have no required fields, and their only strings
		// are the package's constants and names that ValidateConsumer passed.
		panic(fmt.Sprintf("wire: encode %T: %v", m, err))
	}
	return dst
}

// AppendJSON appends the JSON form of a response message: every field, in the
// order of wire.proto and also when it is zero or empty, except absent optional
// ones. It panics for messages that are not responses.
func AppendJSON(dst []byte, m proto.Message) []byte {
	switch m := m.(type) {
	case *AppendResponse:
		dst = appendStatus(dst, m.Status)
		dst = append(dst, `,"recordsAppended":`...)
		dst = strconv.AppendInt(dst, int64(m.RecordsAppended), 10)
		dst = append(dst, `,"startSequence":`...)
		dst = strconv.AppendUint(dst, m.StartSequence, 10)
		dst = append(dst, `,"timestampMs":`...)
		dst = strconv.AppendInt(dst, m.TimestampMs, 10)
	case *KeysResponse:
		dst = appendKeys(dst, m)
	case *SegmentsResponse:
		dst = appendSegments(dst, m)
	case *CountResponse:
		dst = appendStatus(dst, m.Status)
		dst = append(dst, `,"count":`...)
		dst = strconv.AppendUint(dst, m.Count, 10)
	case *CursorsResponse:
		dst = appendCursors(dst, m)
	case *DeleteCursorsResponse:
		dst = appendStatus(dst, m.Status)
	case *ConsumersResponse:
		dst = appendConsumers(dst, m)
	default:
		panic(fmt.Sprintf("wire: no JSON form of %T", m))
	}
	return append(dst, '}')
}

func appendStatus(dst []byte, status string) []byte {
	dst = append(dst, `{"status":`...)
	return appendString(dst, status)
}

func appendKeys(dst []byte, m *KeysResponse) []byte {
	dst = appendStatus(dst, m.Status)
	dst = append(dst, `,"keys":[`...)
	for i, k := range m.Keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"key":`...)
		dst = appendBytes(dst, k.Key)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	return appendNextKey(dst, m.NextKey)
}

func appendSegments(dst []byte, m *SegmentsResponse) []byte {
	dst = appendStatus(dst, m.Status)
	dst = append(dst, `,"segments":[`...)
	for i, s := range m.Segments {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"id":`...)
		dst = strconv.AppendUint(dst, uint64(s.Id), 10)
		if s.LastId != nil {
			dst = append(dst, `,"lastId":`...)
			dst = strconv.AppendUint(dst, uint64(*s.LastId), 10)
		}
		dst = append(dst, `,"startSeq":`...)
		dst = strconv.AppendUint(dst, s.StartSeq, 10)
		dst = append(dst, `,"startTimeMs":`...)
		dst = strconv.AppendInt(dst, s.StartTimeMs, 10)
		if s.EndSeq != nil {
			dst = append(dst, `,"endSeq":`...)
			dst = strconv.AppendUint(dst, *s.EndSeq, 10)
		}
		dst = append(dst, `,"sealed":`...)
		dst = strconv.AppendBool(dst, s.Sealed)
		dst = append(dst, `,"records":`...)
		dst = strconv.AppendUint(dst, s.Records, 10)
		dst = append(dst, `,"bytes":`...)
		dst = strconv.AppendUint(dst, s.Bytes, 10)
		dst = append(dst, `,"runs":`...)
		dst = strconv.AppendUint(dst, uint64(s.Runs), 10)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

func appendCursors(dst []byte, m *CursorsResponse) []byte {
	dst = appendStatus(dst, m.Status)
	dst = append(dst, `,"cursors":[`...)
	for i, c := range m.Cursors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"key":`...)
		dst = appendBytes(dst, c.Key)
		dst = append(dst, `,"nextSequence":`...)
		dst = strconv.AppendUint(dst, c.NextSequence, 10)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	return appendNextKey(dst, m.NextKey)
}

func appendConsumers(dst []byte, m *ConsumersResponse) []byte {
	dst = appendStatus(dst, m.Status)
	dst = append(dst, `,"consumers":[`...)
	for i, c := range m.Consumers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"consumer":`...)
		dst = appendString(dst, c.Consumer)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if m.NextConsumer != nil {
		dst = append(dst, `,"nextConsumer":`...)
		dst = appendString(dst, *m.NextConsumer)
	}
	return dst
}

// appendNextKey appends where the next page begins, if there is one.
func appendNextKey(dst, key []byte) []byte {
	if key == nil {
		return dst
	}
	return appendBytes(append(dst, `,"nextKey":`...), key)
}

// appendBytes appends bytes as base64 with padding, in quotes.
func appendBytes(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

func appendString(dst []byte, s string) []byte {
	// Invalid UTF-8 is replaced beforehand: it is AppendQuote's only error.
	dst, err := jsontext.AppendQuote(dst, strings.ToValidUTF8(s, "\uFFFD"))
	if err != nil {
		panic(fmt.Sprintf("wire: quote a string: %v", err))
	}
	return dst
}

// ErrorBody is the body of every answer that is not a success. It is always
// JSON.
type ErrorBody struct {
	Status  string `json:"status"`
	Message string `json:"message"`
	// Outcome of a failed append: "not_appended" or "unknown"; else empty.
	Outcome string `json:"outcome"`
	// Key has a record with LastSequence, which an append did not expect; else nil.
	Key          []byte  `json:"key"`
	LastSequence *uint64 `json:"lastSequence"`
	// LastProducerSeq is the last number of the producer whose append has another one
	// than it should; else nil.
	LastProducerSeq *uint64 `json:"lastProducerSeq"`
}

// AppendJSON appends the body's JSON form. What is empty or nil is left out; the key
// goes with LastSequence.
func (e *ErrorBody) AppendJSON(dst []byte) []byte {
	dst = appendStatus(dst, e.Status)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, e.Message)
	if e.Outcome != "" {
		dst = append(dst, `,"outcome":`...)
		dst = appendString(dst, e.Outcome)
	}
	if e.LastSequence != nil {
		dst = append(dst, `,"key":`...)
		dst = appendBytes(dst, e.Key)
		dst = append(dst, `,"lastSequence":`...)
		dst = strconv.AppendUint(dst, *e.LastSequence, 10)
	}
	if e.LastProducerSeq != nil {
		dst = append(dst, `,"lastProducerSeq":`...)
		dst = strconv.AppendUint(dst, *e.LastProducerSeq, 10)
	}
	return append(dst, '}')
}

// ParseErrorBody decodes an error answer.
func ParseErrorBody(data []byte) (ErrorBody, error) {
	var e ErrorBody
	if err := json.Unmarshal(data, &e); err != nil {
		return ErrorBody{}, fmt.Errorf("decode error answer: %w", err)
	}
	return e, nil
}
