package crowd

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// As Go's own client has them.
const (
	connWindow   = 1 << 30
	streamWindow = 4 << 20
	// windowStep is how much is taken before the server hears that there is room again.
	windowStep = 1 << 20

	http2Buffer = 256 << 10
	// openingStreams is how many requests are sent before the first of them is answered.
	openingStreams = 64
	headerTable    = 4096
)

// http2Conn is one connection with an event stream for each of its followers. One goroutine does it all: it reads
// frames, and answers those that want an answer.
type http2Conn struct {
	*connection
	out     *bufio.Writer
	frames  *http2.Framer
	header  bytes.Buffer
	encoder *hpack.Encoder

	streams []http2Stream // the request of streams[i] has the id 2i+1
	taken   int           // of connWindow, and not said yet
}

type http2Stream struct {
	oneKey
	taken   int    // of streamWindow, and not said yet
	refused string // the status, if it is not 200
}

// http2 follows by the connection until it or one of its streams ends.
func (k *connection) http2(conn net.Conn) error {
	c := &http2Conn{connection: k, out: bufio.NewWriterSize(conn, eventsBuffer), streams: make([]http2Stream, 0, k.high-k.low)}
	c.frames = http2.NewFramer(c.out, bufio.NewReaderSize(conn, http2Buffer))
	c.frames.SetReuseFrames()
	c.frames.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	c.encoder = hpack.NewEncoder(&c.header)
	if err := c.greet(); err != nil {
		return err
	}
	for {
		f, err := c.frames.ReadFrame()
		if err == nil {
			err = c.take(f)
		}
		if err != nil {
			return err
		}
	}
}

// greet begins the connection, and the first streams.
func (c *http2Conn) greet() error {
	if _, err := c.out.WriteString(http2.ClientPreface); err != nil {
		return err
	}
	err := c.frames.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
	)
	if err == nil {
		err = c.frames.WriteWindowUpdate(0, connWindow)
	}
	for range min(openingStreams, c.high-c.low) {
		if err == nil {
			err = c.request()
		}
	}
	if err != nil {
		return err
	}
	return c.out.Flush()
}

// request asks for one more stream. The caller flushes.
func (c *http2Conn) request() error {
	i := len(c.streams)
	c.streams = append(c.streams, http2Stream{oneKey: oneKey{c: c.crowd, follower: uint32(c.low + i)}})
	c.header.Reset()
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: "http"},
		{Name: ":authority", Value: c.host},
		{Name: ":path", Value: c.scanPath(c.low + i)},
		{Name: "accept", Value: acceptEvents},
	}
	if c.Token != "" {
		fields = append(fields, hpack.HeaderField{Name: "authorization", Value: "Bearer " + c.Token, Sensitive: true})
	}
	for _, f := range fields {
		if err := c.encoder.WriteField(f); err != nil {
			return err
		}
	}
	return c.frames.WriteHeaders(http2.HeadersFrameParam{
		StreamID: uint32(2*i + 1), BlockFragment: c.header.Bytes(), EndHeaders: true, EndStream: true,
	})
}

// take takes in one frame.
func (c *http2Conn) take(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.DataFrame:
		return c.data(f)
	case *http2.MetaHeadersFrame:
		return c.answered(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		if err := c.frames.WritePing(true, f.Data); err != nil {
			return err
		}
		return c.out.Flush()
	case *http2.RSTStreamFrame:
		return fmt.Errorf("the server reset a stream: %v", f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server ends the connection: %v %s", f.ErrCode, f.DebugData())
	}
	return nil
}

func (c *http2Conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if most, ok := f.Value(http2.SettingMaxConcurrentStreams); ok && int(most) < c.high-c.low {
		return fmt.Errorf("the server takes %d streams on a connection, not %d: lower --streams-per-connection", most, c.high-c.low)
	}
	if size, ok := f.Value(http2.SettingHeaderTableSize); ok {
		c.encoder.SetMaxDynamicTableSizeLimit(size)
	}
	if err := c.frames.WriteSettingsAck(); err != nil {
		return err
	}
	return c.out.Flush()
}

func (c *http2Conn) stream(id uint32) (*http2Stream, error) {
	if i := int(id / 2); id%2 == 1 && i < len(c.streams) {
		return &c.streams[i], nil
	}
	return nil, fmt.Errorf("the server sent a frame of stream %d, which was not opened", id)
}

// answered takes in the head of an answer, or what is behind its end.
func (c *http2Conn) answered(f *http2.MetaHeadersFrame) error {
	s, err := c.stream(f.StreamID)
	if err != nil {
		return err
	}
	if status := f.PseudoValue("status"); status != "200" && !f.StreamEnded() {
		s.refused = status
		return nil
	} else if f.StreamEnded() {
		return fmt.Errorf("%w, with status %s", errEnded, strings.TrimSpace(status))
	}
	c.nowOpen(1)
	if len(c.streams) == c.high-c.low {
		return nil
	}
	if err := c.request(); err != nil {
		return err
	}
	return c.out.Flush()
}

// data takes in a piece of an answer.
func (c *http2Conn) data(f *http2.DataFrame) error {
	s, err := c.stream(f.StreamID)
	if err != nil {
		return err
	}
	if s.refused != "" {
		return &refusal{s.refused, bytes.Clone(f.Data())}
	}
	if err := s.feed(f.Data()); err != nil {
		return err
	}
	if f.StreamEnded() {
		return errEnded
	}
	size := int(f.Length)
	if s.taken += size; s.taken >= windowStep {
		if err := c.frames.WriteWindowUpdate(f.StreamID, uint32(s.taken)); err != nil {
			return err
		}
		s.taken = 0
	}
	if c.taken += size; c.taken >= windowStep {
		if err := c.frames.WriteWindowUpdate(0, uint32(c.taken)); err != nil {
			return err
		}
		c.taken = 0
		return c.out.Flush()
	}
	if s.taken == 0 {
		return c.out.Flush()
	}
	return nil
}
