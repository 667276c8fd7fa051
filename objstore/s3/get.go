package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
)

const (
	// maxBodyBytes is what a Get without MaxBytes reads at most; more is ErrTooLarge. The
	// length that a server announces is allocated at once.
	maxBodyBytes = MaxPartSize
	// maxSuffixTries bounds how often a suffix is asked for when the object changes
	// between requests.
	maxSuffixTries = 3
	// maxTornTries bounds how often an answer that looks torn is asked for again, and
	// maxTornBytes is the largest body that is looked at: what is replaced by
	// compare-and-swap is small.
	maxTornTries = 8
	maxTornBytes = 8 << 20
)

// Get implements objstore.Store. A body that ends early, is longer than announced, or fails
// its checksum is read again from the start, within Options.MaxAttempts.
func (s *Store) Get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	if err := checkName("get", name); err != nil {
		return objstore.Object{}, err
	}
	opts.Check()
	var torn *objstore.Object
	for try := 1; ; try++ {
		var obj objstore.Object
		err := s.do(ctx, request{verb: "get", name: name}, func(ctx context.Context) (err error) {
			obj, err = s.getOnce(ctx, name, opts)
			return err
		})
		switch {
		case err == nil && s.tornAnswer(&obj, torn):
			if try == maxTornTries {
				return objstore.Object{}, fmt.Errorf("get %s: %w: the body is not what its ETag says, %d times", name, errAnswer, try)
			}
			torn = &obj
			continue
		case err == nil:
			return obj, nil
		case opts.Suffix == 0 || !errors.Is(err, objstore.ErrRange) || try > maxSuffixTries:
			return objstore.Object{}, err
		}
		// S3 refuses any range of an empty object, where our contract gives the empty
		// suffix.
		attrs, err := s.Head(ctx, name)
		switch {
		case err != nil:
			return objstore.Object{}, err
		case attrs.Size > 0: // written in between
		case opts.IfNoneMatch == attrs.ETag:
			return objstore.Object{}, fmt.Errorf("get %s: %w", name, objstore.ErrNotModified)
		default:
			return objstore.Object{Body: []byte{}, Attributes: attrs}, nil
		}
	}
}

// tornAnswer reports whether an answer may have the ETag of one version of the
// object and the body of another. Some servers that keep objects in files open
// the file and read its attributes in two steps; a compare-and-swap that builds on
// such an answer would overwrite what it never saw. Where the ETag of an object is
// its MD5, as S3 and most servers have it, that is seen here. Where it is something
// else (S3 with KMS keys), two answers in a row that are the same say so, and no
// further answer of this store is looked at. before is the answer before, if that
// was taken for torn.
func (s *Store) tornAnswer(obj, before *objstore.Object) bool {
	if s.etagsOpaque.Load() || int64(len(obj.Body)) != obj.Size || len(obj.Body) > maxTornBytes {
		return false
	}
	etag, err := hex.DecodeString(strings.Trim(obj.ETag, `"`))
	if err != nil || len(etag) != md5.Size {
		return false // of a multipart upload, or no hash at all
	}
	if sum := md5.Sum(obj.Body); bytes.Equal(sum[:], etag) {
		return false
	}
	if before != nil && before.ETag == obj.ETag && bytes.Equal(before.Body, obj.Body) {
		s.etagsOpaque.Store(true)
		return false
	}
	return true
}

func (s *Store) getOnce(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	in := &awss3.GetObjectInput{Bucket: s.bucket(), Key: s.key(name), Range: rangeHeader(opts)}
	if opts.IfNoneMatch != "" {
		in.IfNoneMatch = aws.String(opts.IfNoneMatch)
	}
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		return objstore.Object{}, err
	}
	defer func() { _ = out.Body.Close() }() // everything was read, or the answer is given up
	if out.ContentLength == nil || *out.ContentLength < 0 {
		return objstore.Object{}, fmt.Errorf("%w: no Content-Length", errAnswer)
	}
	length := *out.ContentLength
	size, err := checkRange(opts, length, out.ContentRange)
	if err != nil {
		return objstore.Object{}, err
	}
	attrs, err := attributes(size, out.ETag, out.LastModified, out.ResultMetadata)
	if err != nil {
		return objstore.Object{}, err
	}
	body, err := readBody(out.Body, length)
	if err != nil {
		return objstore.Object{}, err
	}
	return objstore.Object{Body: body, Attributes: attrs}, nil
}

// readBody reads exactly length bytes and then the end, which is where the SDK compares
// the checksum.
func readBody(r io.Reader, length int64) ([]byte, error) {
	body := make([]byte, length)
	n, err := io.ReadFull(r, body)
	if err != nil {
		return nil, fmt.Errorf("%w: body ends after %d of %d bytes: %w", errAnswer, n, length, err)
	}
	var more [1]byte
	switch n, err := io.ReadFull(r, more[:]); {
	case n > 0:
		return nil, fmt.Errorf("%w: more than the %d bytes announced", errAnswer, length)
	case err != io.EOF:
		return nil, fmt.Errorf("%w: read the end of the body: %w", errAnswer, err)
	}
	return body, nil
}

// rangeHeader returns the Range header, or nil for the whole object.
func rangeHeader(opts objstore.GetOptions) *string {
	switch {
	case opts.Suffix > 0:
		return aws.String(fmt.Sprintf("bytes=-%d", opts.Suffix))
	case opts.Length > 0 && opts.Length <= math.MaxInt64-opts.Offset:
		return aws.String(fmt.Sprintf("bytes=%d-%d", opts.Offset, opts.Offset+opts.Length-1))
	case opts.Length > 0 || opts.Offset > 0:
		return aws.String(fmt.Sprintf("bytes=%d-", opts.Offset))
	}
	return nil
}

// checkRange returns the whole object's size if the answer of that length is what
// opts ask for (invariant I8: a server or proxy that ignores the range, or
// answers another one, must not be believed).
func checkRange(opts objstore.GetOptions, length int64, contentRange *string) (size int64, err error) {
	first, size := int64(0), length
	if contentRange != nil {
		var last int64
		if first, last, size, err = parseContentRange(*contentRange); err != nil {
			return 0, err
		}
		if last-first+1 != length {
			return 0, fmt.Errorf("%w: %d bytes for Content-Range %q", errAnswer, length, *contentRange)
		}
	}
	start, end, err := opts.Span(size)
	if err != nil {
		return 0, err // also where a server answers 200 to a range that an object does not have
	}
	if first != start || length != end-start {
		return 0, fmt.Errorf("%w: bytes %d+%d of %d where %d to %d were asked for", errAnswer, first, length, size, start, end)
	}
	if length > maxBodyBytes {
		return 0, fmt.Errorf("%w: %d bytes, the limit of one request is %d", objstore.ErrTooLarge, length, int64(maxBodyBytes))
	}
	return size, nil
}

// parseContentRange reads "bytes FIRST-LAST/SIZE".
func parseContentRange(header string) (first, last, size int64, err error) {
	rest, ok := strings.CutPrefix(header, "bytes ")
	pair, total, ok2 := strings.Cut(rest, "/")
	from, to, ok3 := strings.Cut(pair, "-")
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	if !ok || !ok2 || !ok3 || errors.Join(err1, err2, err3) != nil || first < 0 || first > last || last >= size {
		return 0, 0, 0, fmt.Errorf("%w: Content-Range %q", errAnswer, header)
	}
	return first, last, size, nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, name string) (objstore.Attributes, error) {
	if err := checkName("head", name); err != nil {
		return objstore.Attributes{}, err
	}
	var attrs objstore.Attributes
	err := s.do(ctx, request{verb: "head", name: name}, func(ctx context.Context) error {
		out, err := s.client.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: s.bucket(), Key: s.key(name)})
		if err != nil {
			return err
		}
		if out.ContentLength == nil {
			return fmt.Errorf("%w: no Content-Length", errAnswer)
		}
		attrs, err = attributes(*out.ContentLength, out.ETag, out.LastModified, out.ResultMetadata)
		return err
	})
	if errors.Is(err, objstore.ErrNotFound) {
		err = s.missing(ctx, err)
	}
	if err != nil {
		return objstore.Attributes{}, err
	}
	return attrs, nil
}

func attributes(size int64, etag *string, modified *time.Time, m middleware.Metadata) (attrs objstore.Attributes, err error) {
	attrs.Size = size
	if attrs.ETag, err = etagOf(etag); err != nil {
		return objstore.Attributes{}, err
	}
	if modified == nil {
		return objstore.Attributes{}, fmt.Errorf("%w: no Last-Modified", errAnswer)
	}
	attrs.Modified = *modified
	if attrs.Time, err = dateOf(m); err != nil {
		return objstore.Attributes{}, err
	}
	return attrs, nil
}
