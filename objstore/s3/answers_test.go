package s3

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"testing"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

// sameAnswer is a server that says the same to everything, and keeps what it was asked to delete.
type sameAnswer struct {
	status  int
	header  http.Header
	body    []byte
	deletes [][]byte
}

func (a *sameAnswer) Do(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && r.URL.Query().Has("delete") {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		a.deletes = append(a.deletes, body)
	}
	length := int64(len(a.body))
	if n, err := strconv.ParseInt(a.header.Get("Content-Length"), 10, 32); err == nil {
		length = n
	}
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header.Clone(),
		ContentLength: length, Body: io.NopCloser(bytes.NewReader(a.body)), Request: r,
	}, nil
}

// FuzzAnswers makes every call at a server that answers anything. Each call ends, with an error or with an answer that keeps the
// contract as far as can be told without knowing the objects.
func FuzzAnswers(f *testing.F) {
	const date = "Date: Tue, 14 Nov 2023 22:13:20 GMT\n"
	const object = "<Contents><Key>some/prefix/a/1</Key><Size>3</Size><LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>\"e\"</ETag></Contents>"
	f.Add(200, date+"ETag: \"e\"\nContent-Length: 3\n", []byte("abc"))
	f.Add(206, "ETag: \"e\"\nContent-Range: bytes 1-2/9\n", []byte("bc"))
	f.Add(200, date, []byte("<ListBucketResult><IsTruncated>false</IsTruncated>"+object+"</ListBucketResult>"))
	f.Add(200, date, []byte("<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"+object+"</ListBucketResult>"))
	f.Add(200, "", []byte("<DeleteResult><Error><Key>some/prefix/a/1</Key><Code>InternalError</Code><Message>m</Message></Error></DeleteResult>"))
	f.Add(200, "", []byte("<DeleteResult><Error><Key>some/prefix/other</Key><Code>SlowDown</Code></Error></DeleteResult>"))
	f.Add(200, "", []byte("<CompleteMultipartUploadResult><ETag>\"e\"</ETag></CompleteMultipartUploadResult>"))
	f.Add(404, "", []byte("<Error><Code>NoSuchKey</Code><Message>m</Message></Error>"))
	f.Add(412, "", []byte("<Error><Code>PreconditionFailed</Code></Error>"))
	f.Add(503, "Retry-After: 99999999999\n", []byte("<html>"))
	f.Add(304, "ETag: \"e\"\n", []byte{})
	s, _, _ := open(f, func(o *Options) { o.MaxAttempts = 3 })
	real := s.client.Options()
	f.Fuzz(func(t *testing.T, status int, headers string, body []byte) {
		if status < 200 || status > 599 {
			return // net/http would not pass it on
		}
		h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(headers + "\n\n"))).ReadMIMEHeader()
		if err != nil {
			return
		}
		answer := &sameAnswer{status: status, header: http.Header(h), body: body}
		s := &Store{opts: s.opts, root: s.root, keys: s.keys, client: awss3.New(real, func(o *awss3.Options) { o.HTTPClient = answer })}
		requireContract(t, s, answer)
	})
}

func requireContract(t *testing.T, s *Store, answer *sameAnswer) {
	ctx := t.Context()
	for _, o := range []objstore.GetOptions{{MaxBytes: 1 << 20}, {Offset: 1, Length: 2}, {Suffix: 2}, {IfNoneMatch: `"e"`, MaxBytes: 1 << 20}} {
		if obj, err := s.Get(ctx, "a/1", o); err == nil {
			require.LessOrEqual(t, int64(len(obj.Body)), obj.Size)
			require.True(t, o.Length == 0 || int64(len(obj.Body)) == min(o.Length, obj.Size-o.Offset))
			require.True(t, o.MaxBytes == 0 || int64(len(obj.Body)) <= o.MaxBytes)
		}
	}
	if a, err := s.Head(ctx, "a/1"); err == nil {
		require.GreaterOrEqual(t, a.Size, int64(0))
	}
	if page, err := s.List(ctx, "a/", "a/0", 5); err == nil {
		require.LessOrEqual(t, len(page.Entries), 5)
		last := "a/0"
		for _, e := range page.Entries {
			require.NoError(t, objstore.ValidName(e.Name))
			require.True(t, strings.HasPrefix(e.Name, "a/") && e.Name > last)
			last = e.Name
		}
	}
	for _, o := range []objstore.PutOptions{{IfAbsent: true}, {IfMatch: `"e"`}, {}} {
		if res, err := s.Put(ctx, "a/1", []byte("abc"), o); err == nil {
			require.NotEmpty(t, res.ETag)
		}
	}
	if now, err := s.ServerTime(ctx); err == nil {
		require.False(t, now.IsZero())
	}
	_ = s.Delete(ctx, []string{"a/1", "a/2"})
	for _, body := range answer.deletes {
		for _, part := range bytes.Split(body, []byte("<Key>"))[1:] {
			key, _, _ := bytes.Cut(part, []byte("<"))
			require.Contains(t, []string{"some/prefix/a/1", "some/prefix/a/2"}, string(key), "it deletes what nobody asked for")
		}
	}
	require.NoError(t, ctx.Err())
}
