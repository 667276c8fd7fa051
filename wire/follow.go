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

// Media types of answers without end.
const (
	TypeEvents = "text/event-stream"
	TypeLines  = "application/x-ndjson"
)

// HeaderFrontier is the header of an answer to POST /follow that tells the frontier when it began: where
// streams begin that follow from now.
const HeaderFrontier = "Annals-Frontier"

// FollowBody is a decoded request of POST /follow.
type FollowBody struct {
	Streams  []FollowStream
	Prefixes []FollowStream
	Consumer *string // nil: none
	Start    uint64  // of what has no start of its own, and no stored cursor
	FromNow  bool    // instead of Start: the frontier
	SinceMs  uint64  // records with lower timestamps are left out
}

// FollowStream is one key, or the keys with one prefix, to follow.
type FollowStream struct {
	Key   []byte // or the prefix; never nil
	Start uint64
	Given bool // Start was in the request
}

// Bytes of a JSON body that one stream takes at least, {"key":""} and a comma, and
// those that it takes decoded beside its key.
const (
	minStreamJSON     = 11
	followStreamBytes = 40
)

// FollowMemory bounds what ParseFollowBody allocates for a body of n bytes with at
// most so many streams.
func FollowMemory(n int64, most int) int64 {
	// A list grows by at most a factor of two, while the one before still exists.
	return n*3/4 + 3*followStreamBytes*min(n/minStreamJSON+1, int64(most)+1)
}

// ParseFollowBody decodes the JSON form of the request, as strictly as that of an
// append: unknown fields are ignored; a repeated field, a field of another type than
// it should have, and anything behind the object are errors; null counts as missing.
// There must be one stream at least and at most so many, prefixes included; keys of
// maxKey bytes at most. The keys are in memory of the body's own, in one piece.
func ParseFollowBody(data []byte, most, maxKey int) (*FollowBody, error) {
	b := new(FollowBody)
	var start, since *uint64
	var now *bool
	r := jsonReader{
		dec:   jsontext.NewDecoder(bytes.NewBuffer(data)),
		arena: make([]byte, 0, base64.RawStdEncoding.DecodedLen(len(data))),
	}
	streams := func(list *[]FollowStream, array, name string) error {
		return r.array(func() error {
			if len(b.Streams)+len(b.Prefixes) == most {
				return fmt.Errorf("more than %d streams and prefixes", most)
			}
			s, err := r.followStream(name)
			switch {
			case err != nil:
				return err
			case s.Key == nil:
				return fmt.Errorf("%s[%d]: %s is required", array, len(*list), name)
			case len(s.Key) > maxKey:
				return fmt.Errorf("%s[%d]: %s has %d bytes; at most %d are allowed", array, len(*list), name, len(s.Key), maxKey)
			}
			*list = append(*list, s)
			return nil
		})
	}
	err := r.object(func(name []byte) error {
		switch string(name) {
		case "streams":
			return streams(&b.Streams, "streams", "key")
		case "prefixes":
			return streams(&b.Prefixes, "prefixes", "prefix")
		case "consumer":
			return r.text(&b.Consumer)
		case "startSeq":
			return r.number(&start)
		case "fromNow":
			return r.boolean(&now)
		case "sinceMs":
			return r.number(&since)
		}
		return r.dec.SkipValue()
	})
	if err == nil {
		err = r.end()
	}
	if start != nil {
		b.Start = *start
	}
	if since != nil {
		b.SinceMs = *since
	}
	b.FromNow = now != nil && *now
	switch {
	case err != nil:
		return nil, jsonError(err)
	case b.FromNow && start != nil:
		return nil, errors.New("startSeq and fromNow exclude each other")
	case len(b.Streams)+len(b.Prefixes) == 0:
		return nil, errors.New("streams or prefixes are required")
	}
	return b, nil
}

// followStream reads one stream, whose key has the given name.
func (r *jsonReader) followStream(key string) (s FollowStream, err error) {
	var start *uint64
	err = r.object(func(name []byte) error {
		switch string(name) {
		case key:
			return r.bytes(&s.Key)
		case "startSeq":
			return r.number(&start)
		}
		return r.dec.SkipValue()
	})
	if start != nil {
		s.Start, s.Given = *start, true
	}
	return s, err
}

// end reads the end of the document.
func (r *jsonReader) end() error {
	if _, err := r.dec.ReadToken(); err == nil {
		return errors.New("more than one JSON value")
	} else if err != io.EOF {
		return err
	}
	return nil
}

// AppendJSON appends the request's JSON form.
func (b *FollowBody) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	list := func(array, name string, streams []FollowStream) {
		dst = append(dst, '"')
		dst = append(dst, array...)
		dst = append(dst, `":[`...)
		for i, s := range streams {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"`...)
			dst = append(dst, name...)
			dst = append(dst, `":`...)
			dst = appendBytes(dst, s.Key)
			if s.Given {
				dst = append(dst, `,"startSeq":`...)
				dst = strconv.AppendUint(dst, s.Start, 10)
			}
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
	}
	list("streams", "key", b.Streams)
	dst = append(dst, ',')
	list("prefixes", "prefix", b.Prefixes)
	if b.Consumer != nil {
		dst = append(dst, `,"consumer":`...)
		dst = appendString(dst, *b.Consumer)
	}
	if b.Start > 0 {
		dst = append(dst, `,"startSeq":`...)
		dst = strconv.AppendUint(dst, b.Start, 10)
	}
	if b.FromNow {
		dst = append(dst, `,"fromNow":true`...)
	}
	if b.SinceMs > 0 {
		dst = append(dst, `,"sinceMs":`...)
		dst = strconv.AppendUint(dst, b.SinceMs, 10)
	}
	return append(dst, '}')
}
