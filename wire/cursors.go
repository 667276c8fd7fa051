package wire

import (
	"bytes"
	"encoding/base64"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protowire"
)

// KeyCursor is one cursor of a request: the consumer goes on with Key at Next.
type KeyCursor struct {
	Key  []byte
	Next uint64
}

// CursorsBody is a decoded CursorsRequest. The zero value is ready for use. Not safe
// for use by several goroutines.
type CursorsBody struct {
	Cursors []KeyCursor
	Force   bool
}

// Field numbers of wire.proto.
const (
	fieldCursorsCursors protowire.Number = 1
	fieldCursorsForce   protowire.Number = 2

	fieldCursorKey  protowire.Number = 1
	fieldCursorNext protowire.Number = 2
)

// Validate reports the first cursor whose key is longer than allowed.
func (b *CursorsBody) Validate(maxKey int) error {
	for i, c := range b.Cursors {
		if len(c.Key) > maxKey {
			return fmt.Errorf("cursors[%d]: key has %d bytes; at most %d are allowed", i, len(c.Key), maxKey)
		}
	}
	return nil
}

// UnmarshalProtobuf decodes a CursorsRequest. Keys alias data. It accepts exactly
// what the generated code accepts, with the same result, except for more than
// MaxCursors cursors, which the generated code would make messages of.
func (b *CursorsBody) UnmarshalProtobuf(data []byte) error {
	*b = CursorsBody{}
	for len(data) > 0 {
		var f field
		var err error
		if f, data, err = nextField(data); err != nil {
			return err
		}
		switch {
		case f.isBytes(fieldCursorsCursors):
			if len(b.Cursors) == MaxCursors {
				return ErrTooManyCursors
			}
			c, err := unmarshalCursor(f.bytes)
			if err != nil {
				return fmt.Errorf("cursors[%d]: %w", len(b.Cursors), err)
			}
			b.Cursors = append(b.Cursors, c)
		case f.isVarint(fieldCursorsForce):
			b.Force = protowire.DecodeBool(f.varint)
		}
	}
	return nil
}

func unmarshalCursor(data []byte) (c KeyCursor, err error) {
	for len(data) > 0 {
		var f field
		if f, data, err = nextField(data); err != nil {
			return KeyCursor{}, err
		}
		switch {
		case f.isBytes(fieldCursorKey):
			c.Key = f.bytes
		case f.isVarint(fieldCursorNext):
			c.Next = f.varint
		}
	}
	return c, nil
}

// UnmarshalJSON decodes the JSON form of a CursorsRequest, by the rules of
// AppendBody.UnmarshalJSON. Both fields of a cursor are required.
func (b *CursorsBody) UnmarshalJSON(data []byte) error {
	*b = CursorsBody{}
	r := jsonReader{
		dec:   jsontext.NewDecoder(bytes.NewBuffer(data)),
		arena: make([]byte, 0, base64.RawStdEncoding.DecodedLen(len(data))), // for all keys
	}
	var force *bool
	err := r.object(func(name []byte) error {
		switch string(name) {
		case "cursors":
			return r.array(func() error {
				if len(b.Cursors) == MaxCursors {
					return ErrTooManyCursors
				}
				c, err := r.cursor()
				b.Cursors = append(b.Cursors, c)
				return err
			})
		case "force":
			return r.boolean(&force)
		}
		return r.dec.SkipValue()
	})
	b.Force = force != nil && *force
	return r.finish(err)
}

func (r *jsonReader) cursor() (c KeyCursor, err error) {
	key, next, err := r.keyNumber("nextSequence")
	return KeyCursor{Key: key, Next: next}, err
}
