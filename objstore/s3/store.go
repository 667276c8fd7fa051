// Package s3 keeps objects in an S3 bucket, or on a server that speaks S3's API.
//
// Beyond objstore.Store's contract:
//
//   - Durability and consistency are S3's: a Put that returned nil is kept by
//     the service, and every read or listing begun later sees it. General-purpose
//     buckets only: directory buckets (S3 Express) do not list in order.
//   - The server must honour If-None-Match: * and If-Match on PutObject and
//     CompleteMultipartUpload (AWS does; the engine probes it when it opens),
//     and must send a Date header with every answer: an answer without one is
//     malformed, that is, retried and then an error, since times of the store are never
//     taken from the local clock.
//   - An ETag, though opaque, is the same for the same bytes under most servers. It
//     identifies content, not a Put.
//   - Credentials that the server refuses as expired, revoked or unknown are got anew from where they came from (files,
//     a process, a role), at most every two seconds: whoever renews them needs not restart anybody.
//   - Every upload carries a CRC32 (or what the AWS configuration asks for), which the
//     server verifies; whole-object reads verify it where the server returns it.
//   - Objects in the bucket whose names this store could not have written are left
//     out of listings.
package s3

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
)

// Store is an objstore.Store in an S3 bucket. Its methods may be called from any
// goroutine. It needs no closing.
type Store struct {
	opts   Options // with defaults
	client *awss3.Client
	keys   *credentialsProvider
	root   string // "" or Prefix + "/"
	sent   sentCounts

	etagsOpaque atomic.Bool // ETags of single-part objects are not their MD5: see tornAnswer
}

var _ objstore.Store = (*Store)(nil)

// Open connects to a bucket and checks that it exists and may be listed.
// Errors: objstore.ErrNoBucket, objstore.ErrDenied (also when there are no
// credentials), faults of the options, or the network's. It takes at most
// Options.OpenTimeout.
func Open(ctx context.Context, opts Options) (*Store, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("open s3 store: %w", err)
	}
	opts = opts.withDefaults()
	cause := fmt.Errorf("no answer for %v", opts.OpenTimeout)
	bounded, cancel := context.WithTimeoutCause(ctx, opts.OpenTimeout, cause)
	defer cancel()
	s := &Store{opts: opts}
	if opts.Prefix != "" {
		s.root = opts.Prefix + "/"
	}
	var err error
	if s.client, s.keys, err = newClient(bounded, opts, &s.sent); err != nil {
		return nil, fmt.Errorf("open %s: %w", opts, err)
	}
	if _, err := s.probe(bounded, "check the bucket"); err != nil {
		if bounded.Err() != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("open %s: %w: %v", opts, cause, err)
		}
		return nil, fmt.Errorf("open %s: %w", opts, err)
	}
	return s, nil
}

// String returns the store's URL, without secrets.
func (s *Store) String() string { return s.opts.String() }

// ServerTime implements objstore.Store: it is the Date of the answer to a small
// listing.
func (s *Store) ServerTime(ctx context.Context) (time.Time, error) {
	return s.probe(ctx, "ask for the time")
}

// probe lists one object and returns the answer's Date. A listing needs no other
// permission than the store does anyway, even where that is limited to the prefix, and its
// errors, unlike those of HeadBucket, have a code and a message.
func (s *Store) probe(ctx context.Context, verb string) (time.Time, error) {
	var t time.Time
	err := s.do(ctx, request{verb: verb}, func(ctx context.Context) error {
		out, err := s.client.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{
			Bucket: aws.String(s.opts.Bucket), Prefix: aws.String(s.root), MaxKeys: aws.Int32(1),
		})
		if err != nil {
			return err
		}
		t, err = dateOf(out.ResultMetadata)
		return err
	})
	return t, err
}

// dateOf returns an answer's Date.
func dateOf(m middleware.Metadata) (time.Time, error) {
	t, ok := awsmiddleware.GetServerTime(m)
	if !ok || t.IsZero() {
		return time.Time{}, fmt.Errorf("%w: no Date header", errAnswer)
	}
	return t, nil
}

// etagOf returns an ETag in one spelling: servers quote it in headers, but not all
// do in XML.
func etagOf(e *string) (string, error) {
	tag := strings.Trim(aws.ToString(e), `"`)
	if tag == "" {
		return "", fmt.Errorf("%w: no ETag", errAnswer)
	}
	if strings.HasPrefix(tag, "W/") {
		return aws.ToString(e), nil
	}
	return `"` + tag + `"`, nil
}

// key returns the bucket's key of an object.
func (s *Store) key(name string) *string { return aws.String(s.root + name) }

func (s *Store) bucket() *string { return aws.String(s.opts.Bucket) }

// checkName returns an error that names the operation unless name is valid.
func checkName(verb, name string) error {
	if err := objstore.ValidName(name); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}

// missing finds out what a 404 without a body meant, the object or the bucket.
func (s *Store) missing(ctx context.Context, notFound error) error {
	if _, err := s.probe(ctx, "check the bucket"); err != nil {
		return err
	}
	return notFound
}
