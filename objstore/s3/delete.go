package s3

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/annalsdb/annals/objstore"
	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Delete implements objstore.Store with one batch request. S3 answers 200 also when
// it could not delete some, and lists those; the ones that may work later are
// repeated within Options.MaxAttempts.
func (s *Store) Delete(ctx context.Context, names []string) error {
	if err := objstore.CheckDelete(names); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if len(names) == 0 {
		return nil
	}
	r := request{verb: "delete", name: names[0]}
	if len(names) > 1 {
		r.name += fmt.Sprintf(" and %d more", len(names)-1)
	}
	var failed, again []objstore.NameError // for good, and as of the last answer
	left := names
	err := s.do(ctx, r, func(ctx context.Context) error {
		var final []objstore.NameError
		var err error
		if final, again, err = s.deleteOnce(ctx, r, left); err != nil {
			return err
		}
		failed = append(failed, final...)
		if len(again) == 0 {
			return nil
		}
		left = nil
		for _, e := range again {
			left = append(left, e.Name)
		}
		return fmt.Errorf("%w: %d objects not deleted yet: %w", errNotAll, len(again), again[0].Err)
	})
	switch {
	case err != nil && (!errors.Is(err, errNotAll) || ctx.Err() != nil):
		return err
	case len(failed)+len(again) > 0:
		return &objstore.DeleteError{Failed: append(failed, again...)}
	}
	return nil
}

// errNotAll marks an answer to a batch delete that lists objects worth another try.
var errNotAll = errors.New("incomplete")

// deleteOnce returns the names that could not be deleted, apart those for which another
// try makes sense.
func (s *Store) deleteOnce(ctx context.Context, r request, names []string) (final, again []objstore.NameError, err error) {
	batch := &types.Delete{Quiet: aws.Bool(true), Objects: make([]types.ObjectIdentifier, len(names))}
	for i, name := range names {
		batch.Objects[i].Key = s.key(name)
	}
	out, err := s.client.DeleteObjects(ctx, &awss3.DeleteObjectsInput{Bucket: s.bucket(), Delete: batch})
	if err != nil {
		return nil, nil, err
	}
	for _, e := range out.Errors {
		code := aws.ToString(e.Code)
		if code == "NoSuchKey" {
			continue // counts as deleted
		}
		name, ok := strings.CutPrefix(aws.ToString(e.Key), s.root)
		if !ok || !slices.Contains(names, name) { // it would be deleted by the next try
			return nil, nil, fmt.Errorf("%w: an error for %q, which was not asked for", errAnswer, aws.ToString(e.Key))
		}
		detail := strings.TrimSuffix(code+": "+aws.ToString(e.Message), ": ")
		f, known := r.judgeCode(code, detail)
		if !known {
			f = failure{err: errors.New(detail)}
		}
		if f.retry {
			again = append(again, objstore.NameError{Name: name, Err: fmt.Errorf("%w: %w", objstore.ErrUnavailable, f.err)})
		} else {
			final = append(final, objstore.NameError{Name: name, Err: f.err})
		}
	}
	return final, again, nil
}
