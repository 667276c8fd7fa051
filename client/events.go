package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/annalsdb/annals/wire"
)

// items reads the objects of an answer without end: server-sent events, or lines of
// JSON.
type items struct {
	in   *bufio.Reader
	long []byte // a line that did not fit into in
}

func newItems(r io.Reader) *items { return &items{in: bufio.NewReaderSize(r, 64<<10)} }

// next returns the next object. What an id says, without a record, is a cursor. A bare
// end of the answer is io.EOF.
func (i *items) next() (item wire.StreamItem, err error) {
	for {
		line, err := i.line()
		if err != nil {
			return item, err
		}
		if bytes.HasPrefix(line, []byte("{")) {
			return item, decodeItem(&item, line)
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			// The server's events have one line of data each. An id that came before it
			// says the same as nextSequence.
			return item, decodeItem(&item, value)
		case "id":
			if item.Next, err = strconv.ParseUint(string(value), 10, 64); err != nil {
				return item, fmt.Errorf("id of an event: %w", err)
			}
		case "":
			if len(line) == 0 && item.Next > 0 { // the end of an event without data
				return item, nil
			}
		}
	}
}

func decodeItem(item *wire.StreamItem, data []byte) error {
	if err := item.UnmarshalJSON(data); err != nil {
		return fmt.Errorf("decode what the server sent: %w", err)
	}
	return nil
}

// line returns the next line without its end. It is valid until the next call.
func (i *items) line() ([]byte, error) {
	i.long = i.long[:0]
	if cap(i.long) > 1<<20 {
		i.long = nil
	}
	for {
		part, err := i.in.ReadSlice('\n')
		switch {
		case err == nil && len(i.long) == 0:
			return bytes.TrimRight(part, "\r\n"), nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err // a line without an end is none
		case len(i.long)+len(part) > maxResponseBytes:
			return nil, fmt.Errorf("a line has more than %d bytes", int64(maxResponseBytes))
		}
		i.long = append(i.long, part...)
		if err == nil {
			return bytes.TrimRight(i.long, "\r\n"), nil
		}
	}
}
