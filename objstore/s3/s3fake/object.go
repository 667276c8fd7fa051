package s3fake

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timeFormat is how S3 writes times in XML. Like S3's, they have whole seconds.
const timeFormat = "2006-01-02T15:04:05.000Z"

func (s *Server) newObject(body []byte, crc string) *object {
	sum := md5.Sum(body)
	return &object{
		body: body, etag: `"` + hex.EncodeToString(sum[:]) + `"`,
		modified: s.now().UTC().Truncate(time.Second), crc32: crc,
	}
}

func sameTag(a, b string) bool { return strings.Trim(a, `"`) == strings.Trim(b, `"`) }

// refused returns the error of a conditional write whose condition does not hold.
func refused(bucket map[string]*object, req *Request) *Error {
	if req.ignoreConditions {
		return nil
	}
	current, exists := bucket[req.Key]
	switch v := req.Header.Get("If-None-Match"); {
	case v == "":
	case v != "*":
		return &Error{501, "NotImplemented", "If-None-Match takes only *"}
	case exists:
		return &Error{412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"}
	}
	if v := req.Header.Get("If-Match"); v != "" {
		if !exists {
			return &Error{404, "NoSuchKey", "The specified key does not exist."}
		}
		if !sameTag(v, current.etag) {
			return &Error{412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"}
		}
	}
	return nil
}

func (s *Server) putObject(bucket map[string]*object, req *Request) (*Response, *Error) {
	if err := refused(bucket, req); err != nil {
		return nil, err
	}
	o := s.newObject(req.Body, req.Header.Get(checksum+"Crc32"))
	bucket[req.Key] = o
	h := http.Header{"Etag": {o.etag}}
	if o.crc32 != "" {
		h.Set(checksum+"Crc32", o.crc32)
	}
	return &Response{Status: 200, Header: h}, nil
}

func getObject(bucket map[string]*object, req *Request) (*Response, *Error) {
	o, ok := bucket[req.Key]
	if !ok {
		return nil, &Error{404, "NoSuchKey", "The specified key does not exist."}
	}
	h := http.Header{
		"Etag": {o.etag}, "Last-Modified": {o.modified.Format(http.TimeFormat)},
		"Accept-Ranges": {"bytes"}, "Content-Type": {"binary/octet-stream"},
	}
	if v := req.Header.Get("If-None-Match"); v != "" && sameTag(v, o.etag) {
		return &Response{Status: 304, Header: h}, nil
	}
	resp := &Response{Status: 200, Header: h, Body: o.body}
	if v := req.Header.Get("Range"); v != "" {
		first, last, err := parseRange(v, len(o.body))
		if err != nil {
			return nil, err
		}
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(o.body)))
		resp.Status, resp.Body = 206, o.body[first:last+1]
	} else if o.crc32 != "" && req.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" {
		h.Set(checksum+"Crc32", o.crc32)
	}
	h.Set("Content-Length", strconv.Itoa(len(resp.Body)))
	return resp, nil
}

// parseRange reads a Range header of one range. Like S3 it refuses any range of
// an empty object.
func parseRange(header string, size int) (first, last int, _ *Error) {
	from, to, ok := strings.Cut(strings.TrimPrefix(header, "bytes="), "-")
	a, errA := strconv.Atoi(from)
	b, errB := strconv.Atoi(to)
	switch {
	case !ok || !strings.HasPrefix(header, "bytes="):
	case from == "" && errB == nil && b > 0 && size > 0:
		return max(0, size-b), size - 1, nil
	case errA == nil && to == "" && a < size:
		return a, size - 1, nil
	case errA == nil && errB == nil && a <= b && a < size:
		return a, min(b, size-1), nil
	}
	return 0, 0, &Error{416, "InvalidRange", "The requested range is not satisfiable"}
}

type listEntry struct {
	Key, LastModified, ETag string
	Size                    int
}

func listObjects(bucket map[string]*object, req *Request) (*Response, *Error) {
	q := req.Query
	for name := range q {
		switch name {
		case "list-type", "prefix", "start-after", "continuation-token", "max-keys", "encoding-type", "x-id":
		default:
			return nil, &Error{501, "NotImplemented", name}
		}
	}
	limit := 1000
	if v := q.Get("max-keys"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return nil, &Error{400, "InvalidArgument", "max-keys"}
		}
		limit = min(limit, n)
	}
	if req.pageSize != 0 {
		limit = min(limit, max(0, req.pageSize))
	}
	after := q.Get("start-after")
	if v := q.Get("continuation-token"); v != "" {
		b, err := hex.DecodeString(v)
		if err != nil {
			return nil, &Error{400, "InvalidArgument", "continuation-token"}
		}
		after = string(b)
	}
	encode := func(s string) string { return s }
	if q.Get("encoding-type") == "url" {
		encode = escape
	}
	var result struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Name, Prefix          string
		KeyCount, MaxKeys     int
		IsTruncated           bool
		EncodingType          string      `xml:",omitempty"`
		NextContinuationToken string      `xml:",omitempty"`
		Contents              []listEntry `xml:"Contents"`
	}
	result.Name, result.Prefix, result.MaxKeys, result.EncodingType = req.Bucket, encode(q.Get("prefix")), limit, q.Get("encoding-type")
	last := after
	for _, key := range slices.Sorted(maps.Keys(bucket)) {
		if key <= after || !strings.HasPrefix(key, q.Get("prefix")) {
			continue
		}
		if len(result.Contents) == limit {
			// An empty page with more to come needs a token that is not empty.
			result.IsTruncated, result.NextContinuationToken = true, hex.EncodeToString([]byte(max(last, " ")))
			break
		}
		o := bucket[key]
		result.Contents = append(result.Contents, listEntry{encode(key), o.modified.Format(timeFormat), o.etag, len(o.body)})
		last = key
	}
	result.KeyCount = len(result.Contents)
	return xmlResponse(200, result), nil
}

// escape encodes a key as S3 does for encoding-type=url.
func escape(key string) string {
	var b strings.Builder
	for i := range len(key) {
		switch c := key[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_.*/", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func deleteObjects(bucket map[string]*object, req *Request) (*Response, *Error) {
	var batch struct {
		Quiet  bool
		Object []struct{ Key string }
	}
	if err := xml.Unmarshal(req.Body, &batch); err != nil || len(batch.Object) == 0 || len(batch.Object) > 1000 {
		return nil, &Error{400, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema"}
	}
	type failed struct{ Key, Code, Message string }
	type deleted struct{ Key string }
	var result struct {
		XMLName xml.Name `xml:"DeleteResult"`
		Deleted []deleted
		Error   []failed
	}
	for _, o := range batch.Object {
		if e, ok := req.keyErrors[o.Key]; ok {
			result.Error = append(result.Error, failed{o.Key, e.Code, e.Message})
			continue
		}
		delete(bucket, o.Key)
		if !batch.Quiet {
			result.Deleted = append(result.Deleted, deleted{o.Key})
		}
	}
	return xmlResponse(200, result), nil
}
