// Package client is a Go client of the HTTP API of annals (docs/HTTP.md).
//
// It speaks protobuf. A Client, but for what it follows, repeats nothing by itself: an append whose outcome is unknown
// must not be sent again blindly, because it may be there already. NotAppended
// says when it is safe. A Producer numbers its appends, so that it can repeat them.
package client

import (
	"bytes"
	"context"
	"encoding/base64"
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
	// Default: a client of its own that keeps up to 64 idle connections.
	HTTP *http.Client
}

// Client talks to one server. All methods may be called from any goroutine. Every
// call is bounded by its context alone. An answer that is not a success is an
// *Error.
type Client struct {
	base string
	http *http.Client
}

// New returns a client for the server at baseURL, such as
// "http://127.0.0.1:8080". Nothing is sent yet.
func New(baseURL string, o Options) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil {
		return nil, fmt.Errorf("parse server URL: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.ContainsAny(baseURL, "?#") { // an empty query too: a path is put behind it
		return nil, fmt.Errorf("parse server URL %q: it must look like http://host:port", baseURL)
	}
	if o.HTTP == nil {
		o.HTTP = defaultHTTP()
	}
	return &Client{base: strings.TrimRight(u.String(), "/"), http: o.HTTP}, nil
}

func defaultHTTP() *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
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
	answer, err := c.http.Do(req)
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
