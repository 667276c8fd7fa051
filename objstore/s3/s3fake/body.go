package s3fake

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// maxBody bounds what the server takes into memory.
const maxBody = 256 << 20

const (
	contentSHA256 = "X-Amz-Content-Sha256"
	checksum      = "X-Amz-Checksum-"
	// streamingTrailer is the payload hash of a body in chunks with a trailer, the
	// one streaming form that the SDK uses.
	streamingTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// algorithms are the checksums that the server verifies, by the header's last part.
var algorithms = map[string]func() hash.Hash{
	"Crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"Crc32c":    func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	"Crc64nvme": func() hash.Hash { return crc64.New(crc64.MakeTable(0x9A6C9329AC4BC9B5)) },
	"Sha1":      sha1.New,
	"Sha256":    sha256.New,
}

// readBody reads a request's body, decodes its chunks, and verifies every checksum that
// came with it. Checksums in a trailer are put among the headers.
func readBody(r *http.Request, needChecksum bool) ([]byte, *Error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, &Error{400, "IncompleteBody", err.Error()}
	}
	if len(body) > maxBody {
		return nil, &Error{400, "EntityTooLarge", "more than the test server takes"}
	}
	payloadHash := r.Header.Get(contentSHA256)
	switch {
	case payloadHash == streamingTrailer:
		if body, err = decodeChunks(body, r.Header); err != nil {
			return nil, &Error{400, "IncompleteBody", err.Error()}
		}
	case payloadHash == "UNSIGNED-PAYLOAD":
	case strings.HasPrefix(payloadHash, "STREAMING-"):
		return nil, &Error{501, "NotImplemented", payloadHash}
	default:
		if sum := sha256.Sum256(body); payloadHash != hex.EncodeToString(sum[:]) {
			return nil, &Error{400, "XAmzContentSHA256Mismatch", "the body is not what was signed"}
		}
	}
	verified, bad := verify(body, r.Header)
	if bad != nil {
		return nil, bad
	}
	if needChecksum && !verified {
		return nil, &Error{400, "InvalidRequest", "Missing required header for this request: Content-MD5 or a checksum"}
	}
	return body, nil
}

// verify checks the body against the checksums in the headers.
func verify(body []byte, h http.Header) (verified bool, bad *Error) {
	if want := h.Get("Content-Md5"); want != "" {
		if sum := md5.Sum(body); want != base64.StdEncoding.EncodeToString(sum[:]) {
			return false, &Error{400, "BadDigest", "Content-MD5 does not match"}
		}
		verified = true
	}
	for name := range h {
		algorithm, ok := strings.CutPrefix(name, checksum)
		if !ok || algorithm == "Algorithm" || algorithm == "Type" || algorithm == "Mode" {
			continue
		}
		newHash, known := algorithms[algorithm]
		if !known {
			return false, &Error{501, "NotImplemented", name}
		}
		if h.Get(name) != sumOf(newHash, body) {
			return false, &Error{400, "BadDigest", fmt.Sprintf("The %s you specified did not match the calculated checksum.", algorithm)}
		}
		verified = true
	}
	return verified, nil
}

func sumOf(newHash func() hash.Hash, body []byte) string {
	sum := newHash()
	_, _ = sum.Write(body)
	return base64.StdEncoding.EncodeToString(sum.Sum(nil))
}

// decodeChunks decodes "aws-chunked" encoding: chunks of a hexadecimal length, CRLF,
// that many bytes, CRLF; one of length 0; then trailers, which are announced in X-Amz-Trailer.
func decodeChunks(encoded []byte, h http.Header) ([]byte, error) {
	r := bufio.NewReader(bytes.NewReader(encoded))
	var body []byte
	for {
		line, err := readLine(r)
		if err != nil {
			return nil, fmt.Errorf("chunk header: %w", err)
		}
		n, err := strconv.ParseUint(line, 16, 31)
		if err != nil || n > uint64(len(encoded)) {
			return nil, fmt.Errorf("chunk header %q", line)
		}
		if n == 0 {
			break
		}
		chunk := make([]byte, n)
		if _, err := io.ReadFull(r, chunk); err != nil {
			return nil, fmt.Errorf("chunk: %w", err)
		}
		body = append(body, chunk...)
		if line, err := readLine(r); err != nil || line != "" {
			return nil, fmt.Errorf("chunk is not followed by a line's end")
		}
	}
	if want := h.Get("X-Amz-Decoded-Content-Length"); want != strconv.Itoa(len(body)) {
		return nil, fmt.Errorf("%d bytes, X-Amz-Decoded-Content-Length is %q", len(body), want)
	}
	for {
		line, err := readLine(r)
		if err != nil {
			return nil, fmt.Errorf("trailer: %w", err)
		}
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !strings.EqualFold(name, h.Get("X-Amz-Trailer")) {
			return nil, fmt.Errorf("trailer %q was not announced", name)
		}
		h.Set(name, strings.TrimSpace(value))
	}
	if t := h.Get("X-Amz-Trailer"); t != "" && h.Get(t) == "" {
		return nil, fmt.Errorf("trailer %q is missing", t)
	}
	return body, nil
}

func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line, ok := strings.CutSuffix(line, "\r\n")
	if !ok {
		return "", fmt.Errorf("line %q does not end with CRLF", line)
	}
	return line, nil
}
