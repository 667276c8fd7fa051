package s3fake

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// call sends a request whose body is not signed, and returns the status and the body.
func call(t *testing.T, s *Server, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=key/...")
	req.Header.Set(contentSHA256, "UNSIGNED-PAYLOAD")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NotEmpty(t, resp.Header.Get("Date"))
	return resp.StatusCode, string(answer)
}

func crc(body string) string {
	return sumOf(algorithms["Crc32"], []byte(body))
}

func TestChecksumsAreVerified(t *testing.T) {
	sum := md5.Sum([]byte("body"))
	good := base64.StdEncoding.EncodeToString(sum[:])
	tests := []struct {
		name    string
		headers []string
		status  int
		says    string
	}{
		{"none", nil, 200, ""},
		{"crc32", []string{"X-Amz-Checksum-Crc32", crc("body")}, 200, ""},
		{"wrong crc32", []string{"X-Amz-Checksum-Crc32", crc("bodY")}, 400, "BadDigest"},
		{"wrong crc32c", []string{"X-Amz-Checksum-Crc32c", crc("body")}, 400, "BadDigest"},
		{"crc64", []string{"X-Amz-Checksum-Crc64nvme", sumOf(algorithms["Crc64nvme"], []byte("body"))}, 200, ""},
		{"wrong sha1", []string{"X-Amz-Checksum-Sha1", crc("body")}, 400, "BadDigest"},
		{"unknown", []string{"X-Amz-Checksum-Crc7", "x"}, 501, "NotImplemented"},
		{"md5", []string{"Content-Md5", good}, 200, ""},
		{"wrong md5", []string{"Content-Md5", crc("body")}, 400, "BadDigest"},
		{"wrong payload hash", []string{contentSHA256, strings.Repeat("0", 64)}, 400, "XAmzContentSHA256Mismatch"},
		{"signed chunks", []string{contentSHA256, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, 501, "NotImplemented"},
		{"not signed", []string{"Authorization", "Basic x"}, 403, "AccessDenied"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := New(t)
			status, answer := call(t, s, http.MethodPut, "/bucket/n", "body", test.headers...)
			require.Equal(t, test.status, status, answer)
			require.Contains(t, answer, test.says)
			require.Equal(t, test.status == 200, len(s.Keys(Bucket)) == 1)
		})
	}
}

func TestBatchDeleteNeedsAChecksum(t *testing.T) {
	s := New(t)
	s.Set(Bucket, "a", nil)
	batch := "<Delete><Object><Key>a</Key></Object></Delete>"
	status, answer := call(t, s, http.MethodPost, "/bucket?delete", batch)
	require.Equal(t, 400, status)
	require.Contains(t, answer, "InvalidRequest")
	status, answer = call(t, s, http.MethodPost, "/bucket?delete", batch, "X-Amz-Checksum-Crc32", crc(batch))
	require.Equal(t, 200, status)
	require.Contains(t, answer, "<Deleted><Key>a</Key></Deleted>")
	require.Empty(t, s.Keys(Bucket))
}

func TestUnknownRequestsAreRefused(t *testing.T) {
	s := New(t)
	for _, r := range [][2]string{
		{http.MethodGet, "/"}, {http.MethodGet, "/bucket"}, {http.MethodPut, "/bucket"}, {http.MethodDelete, "/bucket/n"},
		{http.MethodGet, "/bucket?list-type=2&delimiter=/"}, {http.MethodGet, "/bucket/n?uploadId=x"},
	} {
		status, answer := call(t, s, r[0], r[1], "")
		require.Equal(t, 501, status, "%v: %s", r, answer)
	}
}

func TestListEncodesKeys(t *testing.T) {
	s := New(t)
	s.Set(Bucket, "a b&<", nil)
	_, answer := call(t, s, http.MethodGet, "/bucket?list-type=2", "")
	require.Contains(t, answer, "<Key>a b&amp;&lt;</Key>")
	_, answer = call(t, s, http.MethodGet, "/bucket?list-type=2&encoding-type=url", "")
	require.Contains(t, answer, "<Key>a%20b%26%3C</Key>")
}

func TestUploadsAreStrict(t *testing.T) {
	s := New(t)
	_, answer := call(t, s, http.MethodPost, "/bucket/n?uploads", "")
	_, id, _ := strings.Cut(answer, "<UploadId>")
	id, _, _ = strings.Cut(id, "</UploadId>")
	for number := 1; number <= 2; number++ {
		status, _ := call(t, s, http.MethodPut, fmt.Sprintf("/bucket/n?uploadId=%s&partNumber=%d", id, number), "small")
		require.Equal(t, 200, status)
	}
	sum := md5.Sum([]byte("small"))
	part := func(number int, etag string) string {
		return fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", number, etag)
	}
	tag := fmt.Sprintf("%x", sum)
	for _, test := range []struct {
		list   string
		status int
		says   string
	}{
		{"", 400, "MalformedXML"},
		{part(1, "x"), 400, "InvalidPart"},
		{part(3, tag), 400, "InvalidPart"},
		{part(2, tag) + part(1, tag), 400, "InvalidPartOrder"},
		{part(1, tag) + part(2, tag), 400, "EntityTooSmall"},
		{part(2, tag), 200, "-1"},
		{part(2, tag), 404, "NoSuchUpload"},
	} {
		status, answer := call(t, s, http.MethodPost, "/bucket/n?uploadId="+id, "<CompleteMultipartUpload>"+test.list+"</CompleteMultipartUpload>")
		require.Equal(t, test.status, status, answer)
		require.Contains(t, answer, test.says)
	}
}

func FuzzDecodeChunks(f *testing.F) {
	f.Add([]byte("4\r\nbody\r\n0\r\nx-amz-checksum-crc32:abc=\r\n\r\n"), "4", "x-amz-checksum-crc32")
	f.Add([]byte("0\r\n\r\n"), "0", "")
	f.Add([]byte("7fffffff\r\nx"), "1", "")
	f.Add([]byte("1\r\nab\r\n0\r\n\r\n"), "1", "")
	f.Fuzz(func(t *testing.T, encoded []byte, length, trailer string) {
		h := http.Header{}
		h.Set("X-Amz-Decoded-Content-Length", length)
		h.Set("X-Amz-Trailer", trailer)
		body, err := decodeChunks(encoded, h)
		if err != nil {
			return
		}
		require.Equal(t, length, fmt.Sprint(len(body)))
		if trailer != "" {
			require.NotEmpty(t, h.Get(trailer))
		}
	})
}

func TestDecodeChunks(t *testing.T) {
	h := http.Header{}
	h.Set("X-Amz-Decoded-Content-Length", "7")
	h.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
	good := "4\r\nbody\r\n3\r\n123\r\n0\r\nx-amz-checksum-crc32:abc=\r\n\r\n"
	body, err := decodeChunks([]byte(good), h.Clone())
	require.NoError(t, err)
	require.True(t, bytes.Equal([]byte("body123"), body))
	for i := range good {
		_, err := decodeChunks([]byte(good[:i]), h.Clone())
		require.Error(t, err, "cut after %d bytes", i)
	}
	_, err = decodeChunks([]byte(strings.Replace(good, "crc32:", "crc32c:", 1)), h.Clone())
	require.ErrorContains(t, err, "not announced")
}
