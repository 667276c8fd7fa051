package s3

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// errNoCredentials marks a request that could not be signed because no
// credentials were ever found.
var errNoCredentials = errors.New("no usable AWS credentials")

// errCredentialsRefresh marks a request that could not be signed although there were
// credentials before: their source is down, which is worth a retry.
var errCredentialsRefresh = errors.New("refresh AWS credentials")

// Bounds of renewing credentials that the server refused.
const (
	// renewEvery is the least time between two looks for other credentials: they may cost a request, or a
	// process, and every request that fails meanwhile asks for one.
	renewEvery = 2 * time.Second
	// renewTimeout bounds one look.
	renewTimeout = 10 * time.Second
)

// credentialsProvider gives failures to find credentials a type, which the SDK
// does not, and replaces credentials that the server refuses. The SDK asks a source again when
// the credentials said themselves that they expire by then; it never reads a file of keys
// again, nor notices that a key was revoked. Safe for concurrent use.
type credentialsProvider struct {
	// load begins again where the SDK began: environment, files, roles.
	load   func(ctx context.Context) (aws.CredentialsProvider, error)
	worked atomic.Bool

	renewing chan struct{} // holds a token while somebody looks for others
	looked   time.Time     // when that began last; belongs to the holder of the token

	mu    sync.Mutex
	inner aws.CredentialsProvider // guarded by mu
	count uint64                  // how often inner was replaced; guarded by mu
}

func newCredentialsProvider(inner aws.CredentialsProvider, load func(context.Context) (aws.CredentialsProvider, error)) *credentialsProvider {
	return &credentialsProvider{inner: inner, load: load, renewing: make(chan struct{}, 1)}
}

// Retrieve implements aws.CredentialsProvider.
func (p *credentialsProvider) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := p.source().Retrieve(ctx)
	switch {
	case err == nil:
		p.worked.Store(true)
		return c, nil
	case ctx.Err() != nil:
		return aws.Credentials{}, err
	case p.worked.Load():
		return aws.Credentials{}, fmt.Errorf("%w: %w", errCredentialsRefresh, err)
	default:
		return aws.Credentials{}, fmt.Errorf("%w: %w", errNoCredentials, err)
	}
}

func (p *credentialsProvider) source() aws.CredentialsProvider {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inner
}

// generation changes whenever credentials were replaced.
func (p *credentialsProvider) generation() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// renew is called when credentials of a generation, or earlier ones, were refused. It reports whether there are
// others by now, so that it is worth to ask again.
func (p *credentialsProvider) renew(ctx context.Context, generation uint64) bool {
	select {
	case p.renewing <- struct{}{}:
		defer func() { <-p.renewing }()
	case <-ctx.Done():
		return false
	}
	if p.generation() != generation {
		return true
	}
	if !p.looked.IsZero() && time.Since(p.looked) < renewEvery {
		return false
	}
	p.looked = time.Now()
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	fresh, err := p.load(ctx)
	if err != nil {
		return false // what was refused stays the error
	}
	now, err := fresh.Retrieve(ctx)
	if err != nil {
		return false
	}
	old, err := p.source().Retrieve(ctx) // of its cache, unless that has expired
	if err == nil && now.AccessKeyID == old.AccessKeyID && now.SecretAccessKey == old.SecretAccessKey && now.SessionToken == old.SessionToken {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inner = fresh
	p.count++
	return true
}
