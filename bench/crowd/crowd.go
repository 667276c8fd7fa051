// Package crowd is many followers of a server of annals at once, for benchmarks: each follows a key of its
// own, and says of each record when it came.
//
// It speaks the protocol of docs/HTTP.md by hand, so that it takes as little as it can of the processors that it
// shares with the server that is measured. What it leaves out an application must not: it reads of a record no
// more than its sequence and its Stamp. Run runs it in this process, and a Process, which runs Serve, in one of its
// own, whose memory and CPU time can be told from the server's.
package crowd

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// A Form is how followers are connected.
type Form string

// The forms.
const (
	// HTTP2: an event stream each, many of them on one connection of HTTP/2.
	HTTP2 Form = "h2"
	// HTTP1: an event stream each, as a connection of HTTP/1.1 of its own.
	HTTP1 Form = "h1"
	// Shared: all keys by few requests POST /follow.
	Shared Form = "shared"
)

// Bounds of a crowd.
const (
	// silence is how long a server may say nothing: it sends a sign of life every 15 s.
	silence = 45 * time.Second
	// openingAtOnce is how many connections are being opened at the same time.
	openingAtOnce = 32
	// The waits before a connection is made again, around which random times are taken.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Options of a crowd.
type Options struct {
	// URL is the server's, such as http://127.0.0.1:8080.
	URL string
	// Token is the bearer token that the server asks for; empty: none.
	Token string
	Form  Form
	// Followers is how many there are: number i follows Key(i).
	Followers int
	// PerConnection is how many followers share one connection: the streams of a connection of HTTP/2, or
	// the keys of one POST /follow. HTTP1 has one.
	PerConnection int
	// From is the first sequence that is followed.
	From uint64
	// Run is which stamps are meant.
	Run uint64
}

// A Sink is told what happens. Its methods are called from any goroutine, but for one follower one after
// the other.
type Sink interface {
	Delivered(d Delivery)
	// Opened: so many more followers are connected, each for the first time.
	Opened(n int)
	// Broken: a connection was lost, and is made again.
	Broken(err error)
}

// authorization is the header line of the token, with its end; empty without one.
func (c *crowd) authorization() string {
	if c.Token == "" {
		return ""
	}
	return "Authorization: Bearer " + c.Token + "\r\n"
}

// Key is the key that a follower follows.
func Key(i int) []byte {
	return fmt.Appendf(make([]byte, 0, keyBytes), "%s%0*d", keyPrefix, keyDigits, i)
}

const (
	keyPrefix = "key-"
	keyDigits = 12
	keyBytes  = len(keyPrefix) + keyDigits
)

// keyNumber returns the number of a key in base64.
func keyNumber(text []byte) (uint64, bool) {
	var key [keyBytes + 2]byte
	if len(text) != base64.StdEncoding.EncodedLen(keyBytes) {
		return 0, false
	}
	n, err := base64.StdEncoding.Decode(key[:], text)
	if err != nil || n != keyBytes || string(key[:len(keyPrefix)]) != keyPrefix {
		return 0, false
	}
	v, err := strconv.ParseUint(string(key[len(keyPrefix):n]), 10, 64)
	return v, err == nil
}

// crowd is all followers.
type crowd struct {
	Options
	address string // of the server
	host    string // as requests name it
	path    string // in front of the API's
	sink    Sink
	opening chan struct{} // held while a connection is being opened
	// next is where each follower goes on. It belongs to the goroutine of its connection.
	next []uint64
}

// Run follows until ctx ends, and returns nil then. It returns an error when a follower cannot be connected in the
// first place, unless the server asks to try again; connections that are lost later are made again from where they were.
func Run(ctx context.Context, o Options, sink Sink) error {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return fmt.Errorf("followers need a server at http://HOST:PORT, not %q", o.URL)
	}
	c := &crowd{Options: o, address: u.Host, host: u.Host, path: u.EscapedPath(), sink: sink,
		opening: make(chan struct{}, openingAtOnce), next: make([]uint64, o.Followers)}
	if u.Port() == "" {
		c.address = net.JoinHostPort(u.Hostname(), "80")
	}
	for i := range c.next {
		c.next[i] = o.From
	}
	if o.Form == HTTP1 {
		c.PerConnection = 1
	}
	group, ctx := errgroup.WithContext(ctx)
	for low := 0; low < o.Followers; low += c.PerConnection {
		k := &connection{crowd: c, low: low, high: min(low+c.PerConnection, o.Followers)}
		group.Go(func() error { return k.keep(ctx) })
	}
	return group.Wait()
}

// connection is what connects some of the followers: from low on, up to high.
type connection struct {
	*crowd
	low, high int
	opened    int  // of them, since it was made last
	announced int  // the most that were
	opening   bool // it holds crowd.opening
}

// keep connects, again and again, until ctx ends.
func (k *connection) keep(ctx context.Context) error {
	wait := firstRetry
	for {
		select {
		case k.crowd.opening <- struct{}{}:
			k.opening = true
		case <-ctx.Done():
			return nil
		}
		k.opened = 0
		err := k.once(ctx)
		k.isOpen()
		switch {
		case ctx.Err() != nil:
			return nil
		case k.announced == k.high-k.low:
			k.sink.Broken(err)
		case !forNow(err):
			return fmt.Errorf("connect follower %d of %d: %w", k.low+k.opened+1, k.Followers, err)
		}
		if k.opened == k.high-k.low {
			wait = firstRetry // it works in principle
		}
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, lastRetry)
	}
}

// once makes the connection, and returns why it ended.
func (k *connection) once(ctx context.Context) error {
	var d net.Dialer
	dialing, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	conn, err := d.DialContext(dialing, "tcp", k.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if k.Form == HTTP2 {
		return k.http2(&watched{conn})
	}
	return k.http1(&watched{conn})
}

// nowOpen notes that n more followers are connected.
func (k *connection) nowOpen(n int) {
	k.opened += n
	if k.opened > k.announced {
		k.sink.Opened(k.opened - k.announced)
		k.announced = k.opened
	}
	if k.opened == k.high-k.low {
		k.isOpen()
	}
}

// isOpen lets others open.
func (k *connection) isOpen() {
	if k.opening {
		k.opening = false
		<-k.crowd.opening
	}
}

// watched is a connection that fails when the server is silent for too long.
type watched struct{ net.Conn }

func (w *watched) Read(p []byte) (int, error) {
	if err := w.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return w.Conn.Read(p)
}

var errEnded = errors.New("the server ended the stream")

// refusal is an answer that is not a stream.
type refusal struct {
	status string // its number, and perhaps its name
	body   []byte
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the server answered %s: %.300s", r.status, r.body)
}

// forNow reports whether a server refused only because of what else it does at the moment.
func forNow(err error) bool {
	var r *refusal
	return errors.As(err, &r) && strings.HasPrefix(r.status, strconv.Itoa(http.StatusTooManyRequests))
}

// scanPath is the request for the event stream of one follower.
func (c *crowd) scanPath(i int) string {
	return fmt.Sprintf("%s/api/v1/log/scan?follow=true&start_seq=%d&key=%s", c.path, c.next[i], Key(i))
}

// oneKey is the event stream of one follower.
type oneKey struct {
	c        *crowd
	follower uint32
	place    uint64 // the id of the event that is not complete
	lines    lines
}

func (s *oneKey) feed(p []byte) error { return s.lines.feed(p, s.line) }

func (s *oneKey) line(line []byte) error {
	it, err := parseLine(line)
	if err != nil {
		return err
	}
	switch next := &s.c.next[s.follower]; it.kind {
	case place:
		s.place = it.next
	case endOfItem:
		*next = max(*next, s.place)
		s.place = 0
	case record:
		s.c.deliver(s.follower, &it)
		*next = max(*next, it.next)
	case end:
		return fmt.Errorf("%w: %s", errEnded, it.why)
	}
	return nil
}

func (c *crowd) deliver(follower uint32, it *item) {
	c.sink.Delivered(Delivery{Stamp: it.stamp, Follower: follower, Seq: it.seq,
		At: time.Now().UnixNano(), Foreign: !it.stamped || it.stamp.Run != c.Run})
}
