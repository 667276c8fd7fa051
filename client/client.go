// Package client is a Go client of the HTTP API of annals. docs/CLIENT.md leads through it, docs/HTTP.md says what goes over the wire.
//
// A [Client] talks to one server and may be used by any goroutine. What it does not say itself, it does as the server's
// defaults say. There are three ways to append:
//
//   - [Client.Append] sends a batch once. When it fails, [NotAppended] says whether it certainly did nothing; else the batch must not be
//     sent again blindly, because it may be there.
//   - A [Producer] numbers its batches, so that it can repeat each until its outcome is known, and yet appends it once.
//   - A [Batcher] does that for single records from any goroutine, in order, several requests at a time.
//
// And three to read:
//
//   - Calls for a page, such as [Client.Scan] and [Client.Keys], are sent once.
//   - Iterators, such as [Client.ScanAll] and [Client.KeysAll], go on from page to page, and ask again for one that fails for now.
//   - A [Follower] returns the records of keys and prefixes as they come, connects again by itself, and returns each record once.
//     A consumer's cursors, [Client.SetCursors], say where to go on after a restart.
//
// Every call is bounded by its context, and by nothing else. An answer that is not a success is an [*Error]; errors.Is matches it
// with [ErrUnauthorized] and the like, and [Transient] says whether the same call may succeed later. Errors never hold tokens.
//
// All of it speaks protobuf but for following, which is lines of JSON or server-sent events.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/wire"
)

// Bounds of what a client takes from a server.
const (
	// maxResponseBytes is above the largest page that a server sends: 64 MiB of
	// values, or one value alone, which an engine allows up to 256 MiB.
	maxResponseBytes = 320 << 20
	maxErrorBytes    = 64 << 10
)

// Options of New. The zero value of every field takes its default.
type Options struct {
	// HTTP sends the requests. Its Timeout should be 0: contexts bound each call.
	// Default: a client of its own that keeps up to 64 idle connections. Redirects are followed only to the same
	// scheme, host and port.
	HTTP *http.Client
	// Token is the bearer token that every request carries. It goes to the server at baseURL only, and is in no
	// error. Default: none.
	Token string
	// TokenSource returns the token instead, for one that changes: it is called for every request, from any
	// goroutine. A request for which it fails is not sent. TokenFile is one. It excludes Token.
	TokenSource func() (string, error)
	// TLS is for connections to https servers: which authorities to trust, and which certificate to show. It is
	// copied. It excludes HTTP, whose transport has its own. Default: the system's authorities.
	TLS *tls.Config
	// RetryReadsFor is for how long the iterators (ScanAll, KeysAll, SegmentsAll, CursorsAll, ConsumersAll) ask again for a
	// page that fails for now, as Transient says, with growing waits of at most 5 s; a wait that the server asks for counts. Below
	// 0: not at all. Calls for a single page are sent once. Default 1 min.
	RetryReadsFor time.Duration
}

// tokenSource returns what to ask for tokens, or nil.
func (o *Options) tokenSource() (func() (string, error), error) {
	if o.Token == "" {
		return o.TokenSource, nil
	}
	if o.TokenSource != nil {
		return nil, errors.New("the options Token and TokenSource exclude each other")
	}
	token := o.Token
	return func() (string, error) { return token, nil }, checkToken(token)
}

// Client talks to one server. All methods may be called from any goroutine.
type Client struct {
	base  string
	http  *http.Client
	token func() (string, error) // nil: none is sent
	retry time.Duration          // for how long iterators ask again
}

// New returns a client for the server at baseURL, such as
// "http://127.0.0.1:8080". Nothing is sent yet.
func New(baseURL string, o Options) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil {
		var why *url.Error
		if errors.As(err, &why) {
			err = why.Err // the URL may hold a password
		}
		return nil, fmt.Errorf("parse server URL: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.ContainsAny(baseURL, "?#") { // an empty query too: a path is put behind it
		return nil, fmt.Errorf("parse server URL %q: it must look like http://host:port", u.Redacted())
	}
	token, err := o.tokenSource()
	switch {
	case err != nil:
		return nil, fmt.Errorf("new client: %w", err)
	case o.HTTP != nil && o.TLS != nil:
		return nil, errors.New("new client: HTTP and TLS exclude each other")
	case o.HTTP == nil:
		o.HTTP = defaultHTTP(o.TLS.Clone())
	}
	if o.RetryReadsFor == 0 {
		o.RetryReadsFor = DefaultRetryReadsFor
	}
	return &Client{base: strings.TrimRight(u.String(), "/"), http: withinOrigin(o.HTTP), token: token, retry: o.RetryReadsFor}, nil
}

func defaultHTTP(config *tls.Config) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSClientConfig:     config,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        64,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     90 * time.Second, // below the server's: no race with its close
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	}}
}

// Close closes idle connections. Calls under way go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// get asks one of the reading routes.
func (c *Client) get(ctx context.Context, route string, q url.Values, resp proto.Message) error {
	return c.do(ctx, http.MethodGet, "/api/v1/log/"+route+"?"+q.Encode(), nil, resp)
}

// do sends one request and decodes the answer into resp.
func (c *Client) do(ctx context.Context, method, path string, body []byte, resp proto.Message) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", wire.TypeProtobuf)
	}
	req.Header.Set("Accept", wire.TypeProtobuf)
	answer, err := c.send(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errorOf(answer)
	}
	data, err := readAll(answer)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if err := proto.Unmarshal(data, resp); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}

// readAll reads a body of at most maxResponseBytes.
func readAll(answer *http.Response) ([]byte, error) {
	if answer.ContentLength > maxResponseBytes {
		return nil, fmt.Errorf("%d bytes are more than %d", answer.ContentLength, int64(maxResponseBytes))
	}
	var buf bytes.Buffer
	if answer.ContentLength > 0 {
		buf.Grow(int(answer.ContentLength) + bytes.MinRead) // so that the end is found without growing
	}
	n, err := buf.ReadFrom(io.LimitReader(answer.Body, maxResponseBytes+1))
	if err == nil && n > maxResponseBytes {
		err = fmt.Errorf("more than %d bytes", int64(maxResponseBytes))
	}
	return buf.Bytes(), err
}

func encodeKey(key []byte) string { return base64.URLEncoding.EncodeToString(key) }

func setUint(q url.Values, name string, v uint64) {
	if v != 0 {
		q.Set(name, strconv.FormatUint(v, 10))
	}
}
