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

// minPart is the smallest part but for the last one, as on S3.
const minPart = 5 << 20

type upload struct {
	bucket, key string
	initiated   time.Time
	parts       map[int]*object
}

func (s *Server) createUpload(req *Request) *Response {
	id := randomID()
	s.uploads[id] = &upload{bucket: req.Bucket, key: req.Key, initiated: s.now().UTC().Truncate(time.Second), parts: map[int]*object{}}
	return xmlResponse(200, struct {
		XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}{Bucket: req.Bucket, Key: req.Key, UploadId: id})
}

func (s *Server) findUpload(req *Request) (*upload, *Error) {
	u, ok := s.uploads[req.Query.Get("uploadId")]
	if !ok || u.bucket != req.Bucket || u.key != req.Key {
		return nil, &Error{404, "NoSuchUpload", "The specified multipart upload does not exist."}
	}
	return u, nil
}

func (s *Server) uploadPart(req *Request) (*Response, *Error) {
	u, bad := s.findUpload(req)
	if bad != nil {
		return nil, bad
	}
	number, err := strconv.Atoi(req.Query.Get("partNumber"))
	if err != nil || number < 1 || number > 10_000 {
		return nil, &Error{400, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive"}
	}
	part := s.newObject(req.Body, req.Header.Get(checksum+"Crc32"))
	u.parts[number] = part
	h := http.Header{"Etag": {part.etag}}
	if part.crc32 != "" {
		h.Set(checksum+"Crc32", part.crc32)
	}
	return &Response{Status: 200, Header: h}, nil
}

type completedPart struct {
	PartNumber          int
	ETag, ChecksumCRC32 string
}

func (s *Server) completeUpload(bucket map[string]*object, req *Request) (*Response, *Error) {
	u, bad := s.findUpload(req)
	if bad != nil {
		return nil, bad
	}
	var list struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []completedPart
	}
	if err := xml.Unmarshal(req.Body, &list); err != nil || len(list.Part) == 0 {
		return nil, &Error{400, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema"}
	}
	body, sums, bad := u.join(list.Part)
	if bad != nil {
		return nil, bad
	}
	if bad := refused(bucket, req); bad != nil {
		return nil, bad // the upload stays, as on S3
	}
	o := s.newObject(body, "")
	sum := md5.Sum(sums)
	o.etag = fmt.Sprintf(`"%s-%d"`, hex.EncodeToString(sum[:]), len(list.Part))
	bucket[req.Key] = o
	delete(s.uploads, req.Query.Get("uploadId"))
	return xmlResponse(200, struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: req.Bucket, Key: req.Key, ETag: o.etag}), nil
}

// join returns the parts' bytes, and their binary MD5s, in order.
func (u *upload) join(list []completedPart) (body, sums []byte, _ *Error) {
	for i := 1; i < len(list); i++ {
		if list[i].PartNumber <= list[i-1].PartNumber {
			return nil, nil, &Error{400, "InvalidPartOrder", "The list of parts was not in ascending order."}
		}
	}
	for i, p := range list {
		part, ok := u.parts[p.PartNumber]
		switch {
		case !ok || !sameTag(part.etag, p.ETag), part.crc32 != p.ChecksumCRC32:
			return nil, nil, &Error{400, "InvalidPart", "One or more of the specified parts could not be found."}
		case i < len(list)-1 && len(part.body) < minPart:
			return nil, nil, &Error{400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size"}
		}
		body = append(body, part.body...)
		sum := md5.Sum(part.body)
		sums = append(sums, sum[:]...)
	}
	return body, sums, nil
}

func (s *Server) abortUpload(req *Request) (*Response, *Error) {
	if _, err := s.findUpload(req); err != nil {
		return nil, err
	}
	delete(s.uploads, req.Query.Get("uploadId"))
	return &Response{Status: 204}, nil
}

func (s *Server) listUploads(req *Request) *Response {
	type entry struct{ Key, UploadId, Initiated string }
	var all []entry
	for _, id := range slices.Sorted(maps.Keys(s.uploads)) {
		u := s.uploads[id]
		if u.bucket == req.Bucket && strings.HasPrefix(u.key, req.Query.Get("prefix")) {
			all = append(all, entry{u.key, id, u.initiated.Format(timeFormat)})
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return strings.Compare(a.Key, b.Key) })
	key, id := req.Query.Get("key-marker"), req.Query.Get("upload-id-marker")
	all = slices.DeleteFunc(all, func(e entry) bool { return e.Key < key || e.Key == key && e.UploadId <= id })
	limit := 1000
	if req.pageSize > 0 {
		limit = req.pageSize
	}
	var result struct {
		XMLName                           xml.Name `xml:"ListMultipartUploadsResult"`
		IsTruncated                       bool
		NextKeyMarker, NextUploadIdMarker string
		Upload                            []entry
	}
	if len(all) > limit {
		all = all[:limit]
		result.IsTruncated, result.NextKeyMarker, result.NextUploadIdMarker = true, all[limit-1].Key, all[limit-1].UploadId
	}
	result.Upload = all
	return xmlResponse(200, result)
}
