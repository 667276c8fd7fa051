package crowd

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
)

const (
	eventsBuffer = 4 << 10   // of an event stream: there may be thousands
	sharedBuffer = 256 << 10 // of a POST /follow

	acceptEvents = "text/event-stream"
	acceptLines  = "application/x-ndjson"

	maxRefusal = 4 << 10 // of an answer that is not a stream
)

// http1 follows by one request of HTTP/1.1: the event stream of one follower, or POST /follow of all of them.
func (k *connection) http1(conn net.Conn) error {
	size := eventsBuffer
	feed := (&oneKey{c: k.crowd, follower: uint32(k.low)}).feed
	var err error
	if k.Form == Shared {
		size = sharedBuffer
		feed = (&manyKeys{connection: k}).feed
		err = k.requestShared(conn)
	} else {
		_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n%sAccept: %s\r\n\r\n", k.scanPath(k.low), k.host, k.authorization(), acceptEvents)
	}
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, size), nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // the status says enough
		return &refusal{resp.Status, why}
	}
	k.nowOpen(k.high - k.low)
	buf := make([]byte, size)
	for {
		n, err := resp.Body.Read(buf)
		if err := feed(buf[:n]); err != nil {
			return err
		}
		if err == io.EOF {
			return errEnded
		}
		if err != nil {
			return err
		}
	}
}

// requestShared asks for all keys of the connection, each from where it is.
func (k *connection) requestShared(conn net.Conn) error {
	body := []byte(`{"streams":[`)
	for i := k.low; i < k.high; i++ {
		if i > k.low {
			body = append(body, ',')
		}
		body = append(body, `{"key":"`...)
		body = base64.StdEncoding.AppendEncode(body, Key(i))
		body = append(body, `","startSeq":`...)
		body = strconv.AppendUint(body, k.next[i], 10)
		body = append(body, '}')
	}
	body = append(body, `]}`...)
	_, err := fmt.Fprintf(conn, "POST %s/api/v1/log/follow HTTP/1.1\r\nHost: %s\r\n%sAccept: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		k.path, k.host, k.authorization(), acceptLines, len(body))
	if err == nil {
		_, err = conn.Write(body)
	}
	return err
}

// manyKeys is the answer to POST /follow.
type manyKeys struct {
	*connection
	lines lines
}

// nobody is the follower of a record that none of a connection's follows.
const nobody = math.MaxUint32

func (s *manyKeys) feed(p []byte) error { return s.lines.feed(p, s.line) }

func (s *manyKeys) line(line []byte) error {
	it, err := parseLine(line)
	if err != nil {
		return err
	}
	switch it.kind {
	case record:
		i, known := keyNumber(it.key)
		if !known || i < uint64(s.low) || i >= uint64(s.high) {
			s.deliver(nobody, &it)
			return nil
		}
		s.deliver(uint32(i), &it)
		s.next[i] = max(s.next[i], it.next)
	case cursor:
		for i := s.low; i < s.high; i++ {
			s.next[i] = max(s.next[i], it.next)
		}
	case end:
		return fmt.Errorf("%w: %s", errEnded, it.why)
	}
	return nil
}
