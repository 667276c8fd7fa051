package s3

import (
	"context"
	"fmt"
	"strings"

	"github.com/annalsdb/annals/objstore"
	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
)

// maxListRequests bounds the requests of one List call. A server may answer fewer
// objects than asked for, even none, and say that there are more.
const maxListRequests = 100

// List implements objstore.Store. It asks until limit objects are found or there are
// no more.
//
// One object more than limit is asked for, where S3 allows it: some servers say
// "truncated" when only objects outside the prefix follow. For a full page of
// MaxListPage they are believed.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	limit = objstore.PageSize(limit)
	want := min(limit+1, objstore.MaxListPage)
	in := &awss3.ListObjectsV2Input{Bucket: s.bucket(), Prefix: s.key(prefix)}
	if startAfter != "" {
		in.StartAfter = s.key(startAfter)
	}
	r := request{verb: "list", name: prefix}
	var page objstore.Page
	last := startAfter
	for range maxListRequests {
		in.MaxKeys = aws.Int32(int32(want - len(page.Entries)))
		var entries []objstore.Entry
		var next *string
		err := s.do(ctx, r, func(ctx context.Context) (err error) {
			entries, next, err = s.listOnce(ctx, in, prefix, last)
			return err
		})
		if err != nil {
			return objstore.Page{}, err
		}
		page.Entries = append(page.Entries, entries...)
		page.More = next != nil
		if next == nil || len(page.Entries) == want {
			break
		}
		if len(page.Entries) > 0 {
			last = page.Entries[len(page.Entries)-1].Name
		}
		in.ContinuationToken = next
	}
	if len(page.Entries) > limit {
		return objstore.Page{Entries: page.Entries[:limit], More: true}, nil
	}
	if page.More && len(page.Entries) == 0 { // a caller could not go on from here
		return objstore.Page{}, fmt.Errorf("%s: %w: %d pages without an object", r, errAnswer, maxListRequests)
	}
	return page, nil
}

// listOnce returns the entries of one answer and the token to go on with, nil at
// the end.
func (s *Store) listOnce(ctx context.Context, in *awss3.ListObjectsV2Input, prefix, last string) ([]objstore.Entry, *string, error) {
	out, err := s.client.ListObjectsV2(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	if len(out.Contents) > int(*in.MaxKeys) {
		return nil, nil, fmt.Errorf("%w: %d objects where %d were asked for", errAnswer, len(out.Contents), *in.MaxKeys)
	}
	entries := make([]objstore.Entry, 0, len(out.Contents))
	for _, o := range out.Contents {
		name, ok := strings.CutPrefix(aws.ToString(o.Key), s.root)
		if !ok || !strings.HasPrefix(name, prefix) || name <= last || o.Size == nil || o.LastModified == nil {
			return nil, nil, fmt.Errorf("%w: object %q (size %d) after %q in a listing of %q", errAnswer, aws.ToString(o.Key), aws.ToInt64(o.Size), last, s.root+prefix)
		}
		last = name
		if objstore.ValidName(name) != nil {
			continue // not written by a store: folder markers of consoles, for example
		}
		entries = append(entries, objstore.Entry{
			Name:       name,
			Attributes: objstore.Attributes{Size: *o.Size, Modified: *o.LastModified},
		})
	}
	if !aws.ToBool(out.IsTruncated) {
		return entries, nil, nil
	}
	if aws.ToString(out.NextContinuationToken) == "" {
		return nil, nil, fmt.Errorf("%w: truncated without a continuation token", errAnswer)
	}
	return entries, out.NextContinuationToken, nil
}
