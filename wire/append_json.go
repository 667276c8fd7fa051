package wire

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// UnmarshalJSON decodes the JSON form of an AppendRequest. Keys and values are
// decoded into memory of the body's own. Unknown fields are ignored; a repeated
// field, a field of another type than it should have, and anything behind the
// object are errors. A null field counts as missing.
func (b *AppendBody) UnmarshalJSON(data []byte) error {
	b.reset()
	// One allocation holds all keys and values: base64 is longer than what it stands for.
	if n := base64.RawStdEncoding.DecodedLen(len(data)); cap(b.arena) < n {
		b.arena = make([]byte, 0, n)
	}
	r := jsonReader{dec: jsontext.NewDecoder(bytes.NewBuffer(data)), arena: b.arena}
	err := r.object(func(name []byte) error {
		switch string(name) {
		case "records":
			return r.array(func() error {
				if len(b.Records) == MaxRecords {
					return ErrTooManyRecords
				}
				kv, err := r.keyValue()
				b.Records = append(b.Records, kv)
				return err
			})
		case "awaitDurable":
			return r.boolean(&b.AwaitDurable)
		case "expectedNext":
			return r.array(func() error {
				if len(b.ExpectedNext) == MaxExpected {
					return ErrTooManyExpected
				}
				e, err := r.expectedNext()
				b.ExpectedNext = append(b.ExpectedNext, e)
				return err
			})
		case "producerId":
			return r.text(&b.ProducerID)
		case "producerSeq":
			return r.number(&b.ProducerSeq)
		}
		return r.dec.SkipValue()
	})
	b.arena = r.arena
	return r.finish(err)
}

// jsonReader reads values of the expected types from a decoder.
type jsonReader struct {
	dec     *jsontext.Decoder
	arena   []byte
	scratch []byte // base64 texts without their escapes
}

// finish returns the error of a body whose value was read with err: its own, or that
// something follows it.
func (r *jsonReader) finish(err error) error {
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return jsonError(err)
	}
	return nil
}

// errorf returns an error that names the value that was read last.
func (r *jsonReader) errorf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if at := r.dec.StackPointer(); at != "" {
		return fmt.Errorf("%s: %w", at, err)
	}
	return err
}

// object reads an object and calls member with the name of each field, which
// must read its value. The name is valid until then.
func (r *jsonReader) object(member func(name []byte) error) error {
	tok, err := r.dec.ReadToken()
	if err != nil {
		return err
	}
	if tok.Kind() != jsontext.KindBeginObject {
		return r.errorf("an object is expected, not %s", kindName(tok.Kind()))
	}
	for r.dec.PeekKind() != jsontext.KindEndObject {
		v, err := r.dec.ReadValue()
		if err != nil {
			return err
		}
		name := []byte(v[1 : len(v)-1])
		if bytes.IndexByte(name, '\\') >= 0 {
			if name, err = jsontext.AppendUnquote(nil, v); err != nil {
				return err
			}
		}
		if err := member(name); err != nil {
			return err
		}
	}
	_, err = r.dec.ReadToken()
	return err
}

// array reads an array, or null for an empty one, and calls element for each
// element, which must read it.
func (r *jsonReader) array(element func() error) error {
	tok, err := r.dec.ReadToken()
	if err != nil || tok.Kind() == jsontext.KindNull {
		return err
	}
	if tok.Kind() != jsontext.KindBeginArray {
		return r.errorf("an array is expected, not %s", kindName(tok.Kind()))
	}
	for r.dec.PeekKind() != jsontext.KindEndArray {
		if err := element(); err != nil {
			return err
		}
	}
	_, err = r.dec.ReadToken()
	return err
}

func (r *jsonReader) keyValue() (kv KeyValue, err error) {
	err = r.object(func(name []byte) error {
		switch string(name) {
		case "key":
			return r.bytes(&kv.Key)
		case "value":
			return r.bytes(&kv.Value)
		}
		return r.dec.SkipValue()
	})
	return kv, err
}

func (r *jsonReader) expectedNext() (e ExpectedNext, err error) {
	key, sequence, err := r.keyNumber("sequence")
	return ExpectedNext{Key: key, Sequence: sequence}, err
}

// keyNumber reads an object of a key and a number of the given name, both required.
func (r *jsonReader) keyNumber(number string) (key []byte, n uint64, err error) {
	var value *uint64
	err = r.object(func(name []byte) error {
		switch string(name) {
		case "key":
			return r.bytes(&key)
		case number:
			return r.number(&value)
		}
		return r.dec.SkipValue()
	})
	if err != nil {
		return nil, 0, err
	}
	if key == nil || value == nil {
		return nil, 0, r.errorf("key and %s are required", number)
	}
	return key, *value, nil
}

// scalar reads a value of the given kind and returns its text, or nil for null.
func (r *jsonReader) scalar(kind jsontext.Kind, what string) (jsontext.Value, error) {
	if k := r.dec.PeekKind(); k != kind && k != jsontext.KindNull && k != jsontext.KindInvalid {
		_, err := r.dec.ReadToken() // so that the pointer names this value
		if err != nil {
			return nil, err
		}
		return nil, r.errorf("%s is expected, not %s", what, kindName(k))
	}
	v, err := r.dec.ReadValue()
	if err != nil || v.Kind() == jsontext.KindNull {
		return nil, err
	}
	return v, nil
}

func (r *jsonReader) bytes(to *[]byte) error {
	v, err := r.scalar(jsontext.KindString, "a base64 string")
	if v == nil {
		return err
	}
	src := []byte(v[1 : len(v)-1])
	if bytes.IndexByte(src, '\\') >= 0 {
		if r.scratch, err = jsontext.AppendUnquote(r.scratch[:0], v); err != nil {
			return err
		}
		src = r.scratch
	}
	start := len(r.arena)
	if r.arena, err = AppendBase64(r.arena, src); err != nil {
		return r.errorf("%w", err)
	}
	// The capacity is cut so that no append through this slice reaches its neighbour.
	*to = r.arena[start:len(r.arena):len(r.arena)]
	return nil
}

func (r *jsonReader) text(to **string) error {
	v, err := r.scalar(jsontext.KindString, "a string")
	if v == nil {
		return err
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return err
	}
	s := string(b)
	*to = &s
	return nil
}

func (r *jsonReader) number(to **uint64) error {
	v, err := r.scalar(jsontext.KindNumber, "a number")
	if v == nil {
		return err
	}
	n, err := strconv.ParseUint(string(v), 10, 64)
	if err != nil {
		return r.errorf("an integer from 0 to 2^64-1 is expected")
	}
	*to = &n
	return nil
}

func (r *jsonReader) boolean(to **bool) error {
	switch k := r.dec.PeekKind(); k {
	case jsontext.KindTrue, jsontext.KindFalse:
		v := k == jsontext.KindTrue
		*to = &v
	case jsontext.KindNull, jsontext.KindInvalid:
	default:
		if _, err := r.dec.ReadToken(); err != nil {
			return err
		}
		return r.errorf("true or false is expected, not %s", kindName(k))
	}
	_, err := r.dec.ReadToken()
	return err
}

func kindName(k jsontext.Kind) string {
	switch k {
	case jsontext.KindBeginObject:
		return "an object"
	case jsontext.KindBeginArray:
		return "an array"
	case jsontext.KindString:
		return "a string"
	case jsontext.KindNumber:
		return "a number"
	case jsontext.KindNull:
		return "null"
	default:
		return k.String()
	}
}

// jsonError words an error of the decoder plainly.
func jsonError(err error) error {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntax):
		at := fmt.Sprintf("byte %d", syntax.ByteOffset)
		if syntax.JSONPointer != "" {
			at += " (" + string(syntax.JSONPointer) + ")"
		}
		if errors.Is(syntax.Err, jsontext.ErrDuplicateName) {
			return fmt.Errorf("at %s: repeated field", at)
		}
		return fmt.Errorf("at %s: %w", at, syntax.Err)
	case err == io.EOF:
		return errors.New("the body is empty")
	}
	return err
}
