package crowd

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// A Stamp is what a record says about itself at the beginning of its value.
type Stamp struct {
	Run   uint64 // which run of the benchmark wrote it: a log may hold records of others
	Due   int64  // when its append was due, in nanoseconds since 1970
	Op    uint64 // which append it is part of
	Index uint32 // its place there
	Key   uint32 // the number of its key
}

const (
	stampBytes = 32
	// MinValue is the shortest value that a stamp is found in: with it there is no padding among the
	// characters of base64 that hold the stamp.
	MinValue = stampBytes + 1
	// stampText is how many characters of a value in base64 hold its stamp.
	stampText = (stampBytes + 2) / 3 * 4
)

// Put writes the stamp over the beginning of a value of MinValue bytes or more.
func (s *Stamp) Put(value []byte) {
	binary.LittleEndian.PutUint64(value[0:], s.Run)
	binary.LittleEndian.PutUint64(value[8:], uint64(s.Due))
	binary.LittleEndian.PutUint64(value[16:], s.Op)
	binary.LittleEndian.PutUint32(value[24:], s.Index)
	binary.LittleEndian.PutUint32(value[28:], s.Key)
}

// StampOf reads the stamp of a value. A record that is too short for one has none.
func StampOf(value []byte) (s Stamp, ok bool) {
	if len(value) < stampBytes {
		return s, false
	}
	return Stamp{
		Run:   binary.LittleEndian.Uint64(value[0:]),
		Due:   int64(binary.LittleEndian.Uint64(value[8:])),
		Op:    binary.LittleEndian.Uint64(value[16:]),
		Index: binary.LittleEndian.Uint32(value[24:]),
		Key:   binary.LittleEndian.Uint32(value[28:]),
	}, true
}

// A Delivery says that a follower got a record, and when.
type Delivery struct {
	Stamp
	Follower uint32
	Seq      uint64
	At       int64 // in nanoseconds since 1970
	// Foreign: no stamp is there, or another run's. The record counts only for order.
	Foreign bool
}

// maxLineHead is how much of a line is looked at: the key, the sequence and the stamp come before it.
const maxLineHead = 512

// lines cuts what comes in pieces into lines. Of a line that does not come in one piece it keeps the
// head alone, so that a follower that waits holds next to nothing.
type lines struct {
	head []byte
}

// feed calls each for every line that ends in p, without its end.
func (l *lines) feed(p []byte, each func(line []byte) error) error {
	for len(p) > 0 {
		part, rest, whole := bytes.Cut(p, []byte{'\n'})
		if !whole {
			l.keep(part)
			return nil
		}
		p = rest
		if len(l.head) > 0 {
			l.keep(part)
			part = l.head
		}
		if err := each(part); err != nil {
			return err
		}
		l.head = l.head[:0]
	}
	return nil
}

func (l *lines) keep(part []byte) {
	l.head = append(l.head, part[:min(len(part), maxLineHead-len(l.head))]...)
}

// An item is one line of an answer without end that says something.
type item struct {
	kind    itemKind
	key     []byte // base64; valid as long as the line
	seq     uint64 // of a record
	next    uint64 // where to go on, of all others
	stamp   Stamp
	stamped bool
	why     string // of an end
}

type itemKind int

const (
	nothing   itemKind = iota
	record             // a record
	place              // the id of an event: it counts when the event is complete
	cursor             // all is complete up to here
	endOfItem          // an event is complete
	end                // following failed
)

var errLine = errors.New("a line of the stream is not what docs/HTTP.md says")

// parseLine reads one line of server-sent events or of JSON objects. It takes what it needs from the text,
// as the server writes it: a whole decoder would take more than the server does, on the same processors.
func parseLine(line []byte) (it item, err error) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	switch {
	case len(line) == 0:
		it.kind = endOfItem
		return it, nil
	case bytes.HasPrefix(line, []byte("id: ")):
		it.kind = place
		it.next, err = strconv.ParseUint(string(line[len("id: "):]), 10, 64)
		return it, err
	case bytes.HasPrefix(line, []byte("data: ")):
		line = line[len("data: "):]
	case line[0] != '{':
		return it, nil // a comment, or the name of an event, which its data shows too
	}
	switch {
	case bytes.HasPrefix(line, []byte(`{"key":"`)):
		return parseRecord(line)
	case bytes.HasPrefix(line, []byte(`{"nextSequence":`)):
		it.kind = cursor
		it.next, err = number(line[len(`{"nextSequence":`):])
		return it, err
	case bytes.HasPrefix(line, []byte(`{"status":`)):
		it.kind, it.why = end, string(line)
		return it, nil
	}
	return it, fmt.Errorf("%w: %.100q", errLine, line)
}

func parseRecord(line []byte) (it item, err error) {
	it.kind = record
	rest := line[len(`{"key":"`):]
	var found bool
	if it.key, rest, found = bytes.Cut(rest, []byte(`","sequence":`)); !found {
		return it, fmt.Errorf("%w: %.100q", errLine, line)
	}
	if it.seq, err = number(rest); err != nil {
		return it, err
	}
	it.next = it.seq + 1
	if _, rest, found = bytes.Cut(rest, []byte(`"value":"`)); !found {
		return it, fmt.Errorf("%w: %.100q", errLine, line)
	}
	if len(rest) < stampText {
		return it, nil // somebody else's
	}
	var value [stampText / 4 * 3]byte
	if n, err := base64.StdEncoding.Decode(value[:], rest[:stampText]); err == nil {
		it.stamp, it.stamped = StampOf(value[:n])
	}
	return it, nil
}

// number reads the digits that text begins with.
func number(text []byte) (uint64, error) {
	n := 0
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	v, err := strconv.ParseUint(string(text[:n]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %.30q is not a number", errLine, text)
	}
	return v, nil
}
