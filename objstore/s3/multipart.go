package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"
)

const (
	maxParts = 10_000 // S3's limit
	// maxUploads bounds how often one Put starts a multipart upload.
	maxUploads = 2
	// abortTimeout bounds the abort of an upload that failed.
	abortTimeout = 5 * time.Second
)

// putParts uploads a body in parts. Nothing is visible before the last step, which
// carries the condition.
func (s *Store) putParts(ctx context.Context, r request, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	for try := 1; ; try++ {
		result, err := s.putPartsOnce(ctx, r, body, opts)
		if !errors.Is(err, errNoUpload) {
			return result, err
		}
		// The upload vanished: an earlier try to complete it was applied, or somebody
		// aborted it.
		if r.conditional {
			return objstore.PutResult{}, fmt.Errorf("%w (%w)", err, objstore.ErrPrecondition)
		}
		if try == maxUploads {
			return objstore.PutResult{}, err
		}
	}
}

func (s *Store) putPartsOnce(ctx context.Context, r request, body []byte, opts objstore.PutOptions) (result objstore.PutResult, err error) {
	id, err := s.createUpload(ctx, r)
	if err != nil {
		return objstore.PutResult{}, err
	}
	defer func() {
		if err != nil {
			s.abortUpload(ctx, r, id)
		}
	}()
	parts, err := s.uploadParts(ctx, r, id, body)
	if err != nil {
		return objstore.PutResult{}, err
	}
	return s.completeUpload(ctx, r, id, parts, opts)
}

// createUpload starts an upload. When its answer is lost, an empty upload stays behind;
// AbortUploads removes it.
func (s *Store) createUpload(ctx context.Context, r request) (*string, error) {
	var id *string
	err := s.do(ctx, r.step(), func(ctx context.Context) error {
		out, err := s.client.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{
			Bucket: s.bucket(), Key: s.key(r.name),
			// The SDK sends a CRC32 with every part; S3 wants to hear of that first.
			ChecksumAlgorithm: types.ChecksumAlgorithmCrc32,
		})
		if err != nil {
			return err
		}
		if id = out.UploadId; aws.ToString(id) == "" {
			return fmt.Errorf("%w: no upload id", errAnswer)
		}
		return nil
	})
	return id, err
}

// step is the request for the steps of a multipart upload before the last: they
// are not conditional, whatever the whole is.
func (r request) step() request {
	r.conditional = false
	return r
}

func (s *Store) uploadParts(ctx context.Context, r request, id *string, body []byte) ([]types.CompletedPart, error) {
	size := max(s.opts.PartSize, (int64(len(body))+maxParts-1)/maxParts)
	if size > MaxPartSize {
		return nil, fmt.Errorf("%s: %w", r, objstore.ErrTooLarge)
	}
	parts := make([]types.CompletedPart, (int64(len(body))+size-1)/size)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(s.opts.Concurrency)
	for i := range parts {
		start := int64(i) * size
		piece := body[start:min(start+size, int64(len(body)))]
		group.Go(func() error {
			var err error
			parts[i], err = s.uploadPart(groupCtx, r, id, int32(i+1), piece)
			return err
		})
	}
	return parts, group.Wait()
}

func (s *Store) uploadPart(ctx context.Context, r request, id *string, number int32, piece []byte) (types.CompletedPart, error) {
	part := types.CompletedPart{PartNumber: aws.Int32(number)}
	err := s.do(ctx, r.step(), func(ctx context.Context) error {
		out, err := s.client.UploadPart(ctx, &awss3.UploadPartInput{
			Bucket: s.bucket(), Key: s.key(r.name), UploadId: id, PartNumber: part.PartNumber, Body: bytes.NewReader(piece),
			ChecksumAlgorithm: types.ChecksumAlgorithmCrc32,
		})
		if err != nil {
			return err
		}
		etag, err := etagOf(out.ETag)
		part.ETag, part.ChecksumCRC32 = aws.String(etag), out.ChecksumCRC32
		return err
	})
	return part, err
}

// completeUpload makes the object. S3 may answer 200 and put an error into the body,
// because it starts to answer before it knows; the SDK turns that into an
// error, but takes an empty body for success, hence the look at the ETag.
func (s *Store) completeUpload(ctx context.Context, r request, id *string, parts []types.CompletedPart, opts objstore.PutOptions) (objstore.PutResult, error) {
	ifNoneMatch, ifMatch := conditions(opts)
	var result objstore.PutResult
	err := s.do(ctx, r, func(ctx context.Context) error {
		out, err := s.client.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
			Bucket: s.bucket(), Key: s.key(r.name), UploadId: id,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
			IfNoneMatch:     ifNoneMatch, IfMatch: ifMatch,
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

// abortUpload frees the parts of a failed upload, as well as it can: what it cannot,
// AbortUploads can. It also keeps a delayed request from completing the
// upload later. When the caller's context has ended the caller does not wait for it.
func (s *Store) abortUpload(ctx context.Context, r request, id *string) {
	abort := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		_ = s.abort(ctx, s.key(r.name), id)
	}
	if ctx.Err() != nil {
		go abort() // ends within abortTimeout
		return
	}
	abort()
}

// abort frees the parts of an upload. One that does not exist counts as aborted.
func (s *Store) abort(ctx context.Context, key, id *string) error {
	r := request{verb: "abort upload", name: aws.ToString(key)}
	err := s.do(ctx, r, func(ctx context.Context) error {
		_, err := s.client.AbortMultipartUpload(ctx, &awss3.AbortMultipartUploadInput{Bucket: s.bucket(), Key: key, UploadId: id})
		return err
	})
	if errors.Is(err, errNoUpload) {
		return nil
	}
	return err
}

// AbortUploads aborts multipart uploads under the store's prefix that began before
// the given time, by the store's clock, and returns how many. Processes that died in the
// middle of a Put leave such uploads behind, which cost money and appear
// in no listing of objects. An upload that is aborted while its Put is still at
// work makes that Put fail. It stops at the first error; calling it again goes on.
func (s *Store) AbortUploads(ctx context.Context, before time.Time) (int, error) {
	aborted := 0
	var afterKey, afterID *string
	for {
		var out *awss3.ListMultipartUploadsOutput
		err := s.do(ctx, request{verb: "list uploads"}, func(ctx context.Context) (err error) {
			out, err = s.client.ListMultipartUploads(ctx, &awss3.ListMultipartUploadsInput{
				Bucket: s.bucket(), Prefix: aws.String(s.root), KeyMarker: afterKey, UploadIdMarker: afterID,
			})
			return err
		})
		if err != nil {
			return aborted, err
		}
		for _, u := range out.Uploads {
			if u.Initiated == nil || !u.Initiated.Before(before) {
				continue
			}
			if err := s.abort(ctx, u.Key, u.UploadId); err != nil {
				return aborted, err
			}
			aborted++
		}
		if !aws.ToBool(out.IsTruncated) {
			return aborted, nil
		}
		next := aws.ToString(out.NextKeyMarker) + "\x00" + aws.ToString(out.NextUploadIdMarker)
		if next == aws.ToString(afterKey)+"\x00"+aws.ToString(afterID) {
			return aborted, fmt.Errorf("list uploads: %w: the marker does not advance", errAnswer)
		}
		afterKey, afterID = out.NextKeyMarker, out.NextUploadIdMarker
	}
}
