package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/engine"
)

// maxConnections bounds the idle connections that a Remote keeps: one for each operation under way, so that a load
// does not measure how connections are opened.
const maxConnections = 8192

// Remote is a log behind HTTP.
type Remote struct {
	URL    string
	Client *client.Client
	HTTP   *http.Client // of Client, for what it does not offer
	Token  string       // that every request bears; empty: none
	// Beside is the log itself where its engine runs in this process too; else nil.
	Beside *Embedded

	loopback *loopback // of Beside
	batches  sync.Pool // of *[]client.Record
}

// RemoteOptions say how a server is reached. The zero value is for one that asks for nothing.
type RemoteOptions struct {
	Token string      // empty: none
	TLS   *tls.Config // for https URLs. Default: the system's authorities
}

// NewRemote returns the log of the server at a URL such as "http://127.0.0.1:8080". Nothing is sent yet.
func NewRemote(url string, o RemoteOptions) (*Remote, error) {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	h := &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		ForceAttemptHTTP2:   true,
		TLSClientConfig:     o.TLS,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        maxConnections,
		MaxIdleConnsPerHost: maxConnections,
		IdleConnTimeout:     90 * time.Second,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	}}
	c, err := client.New(url, client.Options{HTTP: h, Token: o.Token})
	if err != nil {
		return nil, err
	}
	return &Remote{URL: url, Client: c, HTTP: h, Token: o.Token}, nil
}

// Append implements Target.
func (r *Remote) Append(ctx context.Context, recs []Record, ack Ack) (uint64, error) {
	batch, _ := r.batches.Get().(*[]client.Record)
	if batch == nil {
		batch = new([]client.Record)
	}
	defer r.batches.Put(batch)
	*batch = (*batch)[:0]
	for i := range recs {
		*batch = append(*batch, client.Record{Key: recs[i].Key, Value: recs[i].Value})
	}
	want := client.AckDurable
	if ack == Memory {
		want = client.AckMemory
	}
	res, err := r.Client.Append(ctx, *batch, client.AppendOptions{Ack: want})
	return res.Start, err
}

// Scan implements Target.
func (r *Remote) Scan(ctx context.Context, key []byte, o ScanOptions) (Page, error) {
	page, err := r.Client.Scan(ctx, key, client.ScanOptions{Start: o.From, Limit: o.Limit, MaxBytes: o.MaxBytes, Last: o.Last})
	if err != nil {
		return Page{}, err
	}
	p := Page{Records: make([]Got, len(page.Values)), Next: page.Next}
	for i, v := range page.Values {
		p.Records[i] = Got{v.Sequence, v.Value}
	}
	return p, nil
}

// Count implements Target.
func (r *Remote) Count(ctx context.Context, key []byte) (uint64, error) {
	return r.Client.Count(ctx, key, 0, 0)
}

// Keys implements Target.
func (r *Remote) Keys(ctx context.Context, prefix, after []byte, limit int) ([][]byte, bool, error) {
	p, err := r.Client.Keys(ctx, client.KeysOptions{Prefix: prefix, After: after, Limit: limit})
	return p.Keys, p.Next != nil, err
}

// Reopen closes the embedded log beside it and opens it again, behind a new server: URL and Client change. Nothing
// else may use either meanwhile. A log of another process cannot be reopened.
func (r *Remote) Reopen(ctx context.Context) error {
	if r.Beside == nil {
		return errors.New("the log of another process cannot be reopened from here: use --store")
	}
	r.Client.Close()
	if err := r.loopback.stop(ctx); err != nil {
		return err
	}
	if err := r.Beside.Reopen(ctx); err != nil {
		return err
	}
	again, err := r.Beside.Serve(nil)
	if err != nil {
		return err
	}
	r.URL, r.Client, r.HTTP, r.loopback = again.URL, again.Client, again.HTTP, again.loopback
	return nil
}

// Close implements Target.
func (r *Remote) Close(ctx context.Context) error {
	r.Client.Close()
	if r.Beside == nil {
		return nil
	}
	return errors.Join(r.loopback.stop(ctx), r.Beside.Close(ctx))
}

// Overloaded reports whether an append was refused because the log is full for now: nothing was appended, and it may
// be tried again. after is how long a server asked to wait, or 0.
func Overloaded(err error) (after time.Duration, yes bool) {
	if errors.Is(err, engine.ErrOverloaded) {
		return 0, true
	}
	var answer *client.Error
	if errors.As(err, &answer) && answer.Status == http.StatusTooManyRequests && client.NotAppended(err) {
		return answer.RetryAfter, true
	}
	return 0, false
}
