package s3

import (
	"bytes"
	"context"
	"fmt"

	"github.com/annalsdb/annals/objstore"
	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
)

// Put implements objstore.Store. A body of more than Options.PartSize is uploaded in parts
// unless opts.SinglePart is set; a single part has at most MaxPartSize bytes, more
// is ErrTooLarge.
//
// A conditional Put is repeated after transport errors and 5xx like any other, so
// ErrPrecondition may mean that an earlier try of the same call was applied.
// ErrConflict (S3's 409) is never repeated here.
func (s *Store) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	if err := checkName("put", name); err != nil {
		return objstore.PutResult{}, err
	}
	opts.Check()
	r := request{verb: "put", name: name, conditional: opts.IfAbsent || opts.IfMatch != ""}
	if int64(len(body)) > s.opts.PartSize && !opts.SinglePart {
		return s.putParts(ctx, r, body, opts)
	}
	if int64(len(body)) > MaxPartSize {
		return objstore.PutResult{}, fmt.Errorf("%s: %w: a single part of %d bytes", r, objstore.ErrTooLarge, len(body))
	}
	ifNoneMatch, ifMatch := conditions(opts)
	var result objstore.PutResult
	err := s.do(ctx, r, func(ctx context.Context) error {
		// The SDK drops its reference to the body before it returns (and the
		// wrapper in idleClient never holds it during I/O), so that the caller may change
		// the bytes afterwards even when the server answered early.
		out, err := s.client.PutObject(ctx, &awss3.PutObjectInput{
			Bucket: s.bucket(), Key: s.key(name), Body: bytes.NewReader(body),
			IfNoneMatch: ifNoneMatch, IfMatch: ifMatch,
		})
		if err != nil {
			return err
		}
		if result.ETag, err = etagOf(out.ETag); err != nil {
			return err
		}
		result.Time, err = dateOf(out.ResultMetadata)
		return err
	})
	if err != nil {
		return objstore.PutResult{}, err
	}
	return result, nil
}

// conditions returns the conditions as headers; nil where there is none.
func conditions(opts objstore.PutOptions) (ifNoneMatch, ifMatch *string) {
	if opts.IfAbsent {
		ifNoneMatch = aws.String("*")
	}
	if opts.IfMatch != "" {
		ifMatch = aws.String(opts.IfMatch)
	}
	return ifNoneMatch, ifMatch
}
