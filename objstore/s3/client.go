package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
)

// Sizes of the connection pool (invariant I9).
const (
	maxIdleConns = 64
	maxConns     = 256
	// continueTimeout is how long a large upload waits for "100 Continue" before
	// it sends the body anyway. The wait lets a refusal arrive as an answer instead of a
	// reset; a server that ignores the header costs this much once a request.
	continueTimeout = 250 * time.Millisecond

	defaultRegion = "us-east-1"
)

// newClient builds the SDK's client. Loading the standard configuration matters:
// it brings the credential chain, AWS_CA_BUNDLE, and the checksums that S3
// verifies on every upload. What the client sends is counted in sent.
func newClient(ctx context.Context, opts Options, sent *sentCounts) (*awss3.Client, *credentialsProvider, error) {
	// The SDK refuses AWS_CA_BUNDLE with any client but its own.
	transport := awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = opts.ConnectTimeout }).
		WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConns = maxIdleConns
			t.MaxIdleConnsPerHost = maxIdleConns
			t.MaxConnsPerHost = maxConns
			t.TLSHandshakeTimeout = opts.ConnectTimeout
			t.ExpectContinueTimeout = continueTimeout
		})
	cfg, err := loadConfig(ctx, opts, config.WithHTTPClient(transport))
	if err != nil {
		return nil, nil, err
	}
	if cfg.Region == "" {
		cfg.Region = defaultRegion
	}
	idle := &idleClient{inner: cfg.HTTPClient, timeout: opts.IdleTimeout, newTimer: newTimer}
	cfg.HTTPClient = &countingClient{inner: idle, sent: sent}
	keys := newCredentialsProvider(cfg.Credentials, func(ctx context.Context) (aws.CredentialsProvider, error) {
		cfg, err := loadConfig(ctx, opts, config.WithHTTPClient(transport))
		return cfg.Credentials, err
	})
	cfg.Credentials = keys
	client := awss3.NewFromConfig(cfg, func(o *awss3.Options) {
		o.UsePathStyle = opts.PathStyle
		o.Retryer = aws.NopRetryer{} // retries are the store's: see retry.go
		o.RetryMaxAttempts = 1
		o.DisableLogOutputChecksumValidationSkipped = true
		if opts.Endpoint != "" {
			o.BaseEndpoint = aws.String(opts.Endpoint)
		}
	})
	return client, keys, nil
}

// loadConfig loads the standard configuration, with what the options replace of it.
func loadConfig(ctx context.Context, opts Options, load ...func(*config.LoadOptions) error) (aws.Config, error) {
	load = append(load, config.WithLogger(logging.Nop{})) // what goes wrong comes back as an error
	if opts.Region != "" {
		load = append(load, config.WithRegion(opts.Region))
	}
	if c := opts.Credentials; c != nil {
		load = append(load, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken)))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("load AWS configuration: %w", err)
	}
	return cfg, nil
}

// errIdle is the cause with which an idle request is cancelled.
var errIdle = errors.New("no byte moved")

// timer is the part of *time.Timer that idleClient uses.
type timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

func newTimer(d time.Duration, f func()) timer { return time.AfterFunc(d, f) }

// idleClient cancels a request when no byte of it, or of its answer, has moved
// for the timeout. Deadlines on the connection would not do: its reader waits
// while a long body is sent, and between requests.
type idleClient struct {
	inner    aws.HTTPClient
	timeout  time.Duration
	newTimer func(d time.Duration, f func()) timer
}

// Do implements aws.HTTPClient. The answer's body must be closed.
func (c *idleClient) Do(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	t := c.newTimer(c.timeout, func() { cancel(fmt.Errorf("%w for %v", errIdle, c.timeout)) })
	moved := func() { t.Reset(c.timeout) }
	end := func() {
		t.Stop()
		cancel(nil)
	}
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		// Not only for the timer: unlike the SDK's own wrapper this has no WriteTo, in
		// which a send would hold the body's lock, and with it the caller, for
		// as long as the server does not read.
		req.Body = &watchedBody{inner: req.Body, moved: moved}
	}
	resp, err := c.inner.Do(req)
	if err != nil {
		err = causeOf(ctx, err)
		end()
		return nil, err
	}
	moved()
	resp.Body = &watchedBody{inner: resp.Body, moved: moved, ctx: ctx, end: sync.OnceFunc(end)}
	return resp, nil
}

// causeOf returns why ctx was cancelled if idleness was the reason, else err.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errIdle) {
		return cause
	}
	return err
}

// watchedBody is a request's or an answer's body that tells when bytes move.
type watchedBody struct {
	inner io.ReadCloser
	moved func()
	ctx   context.Context // answers only
	end   func()          // answers only
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.inner.Read(p)
	if n > 0 {
		b.moved()
	}
	if err != nil && err != io.EOF && b.ctx != nil {
		err = causeOf(b.ctx, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *watchedBody) Close() error {
	err := b.inner.Close()
	if b.end != nil {
		b.end()
	}
	return err
}
