// Package s3fake is a server for tests that speaks the part of S3's API that
// annals uses, keeps objects in memory, and fails on demand in the ways in which S3 does.
//
// It is strict where leniency would hide faults of a client: checksums are
// verified, requests must be signed (though signatures are not verified),
// anything it does not know is refused with 501.
package s3fake

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bucket is the bucket that a new server has.
const Bucket = "bucket"

// Op is an operation of S3.
type Op string

// The operations that the server knows.
const (
	PutObject      Op = "PutObject"
	GetObject      Op = "GetObject"
	HeadObject     Op = "HeadObject"
	ListObjects    Op = "ListObjectsV2"
	DeleteObjects  Op = "DeleteObjects"
	HeadBucket     Op = "HeadBucket"
	CreateUpload   Op = "CreateMultipartUpload"
	UploadPart     Op = "UploadPart"
	CompleteUpload Op = "CompleteMultipartUpload"
	AbortUpload    Op = "AbortMultipartUpload"
	ListUploads    Op = "ListMultipartUploads"
)

// Request is a request as a hook sees it. Its body has been read and found intact.
type Request struct {
	Op          Op
	Bucket, Key string
	Header      http.Header
	Query       url.Values
	Body        []byte
	// N counts the requests with this Op since the server started, from 1.
	N int

	ignoreConditions bool
	keyErrors        map[string]Error
	pageSize         int
}

// Response is an answer before it is sent. Body may be an object's: replace it,
// do not change its bytes.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Error is an error answer, or the error of one key in a batch delete.
type Error struct {
	Status  int // HTTP status; unused for a key of a batch
	Code    string
	Message string
}

// Action says how a request is to be answered. The zero value is the truth.
type Action struct {
	// Before the request is applied, in this order: wait until Wait is closed or the
	// client is gone; close the connection (Drop); answer with an error (Fail).
	Wait <-chan struct{}
	Drop bool
	Fail *Error

	// While it is applied: take conditional writes as unconditional; fail keys of a
	// batch delete; list at most PageSize objects (-1: none, though there are more).
	IgnoreConditions bool
	KeyErrors        map[string]Error
	PageSize         int

	// After it was applied: close the connection without an answer (Lose), change
	// the answer (Rewrite).
	Lose    bool
	Rewrite func(*Response)

	// While the answer is sent: after Cut bytes of the body close the connection, or
	// reset it (Reset), or stop sending and leave it open (Stall). Cut counts only with one of
	// Close, Reset and Stall.
	Cut                 int
	Close, Reset, Stall bool
}

// Fail is the action of answering with an error.
func Fail(status int, code string) Action {
	return Action{Fail: &Error{Status: status, Code: code, Message: "as the test demands"}}
}

// Server is a running server. Its methods may be called from any goroutine.
type Server struct {
	// URL is its endpoint. Buckets are addressed in the path.
	URL string
	// Certificate is the PEM of its TLS certificate, if it has one.
	Certificate []byte

	mu       sync.Mutex
	hook     func(*Request) Action
	now      func() time.Time
	counts   map[Op]int
	buckets  map[string]map[string]*object
	uploads  map[string]*upload
	inFlight map[Op]int
	peak     map[Op]int
}

// object is immutable.
type object struct {
	body     []byte
	etag     string
	modified time.Time
	crc32    string // base64; "" if it was not sent
}

// New starts a server with one empty bucket; the test's end stops it.
func New(t testing.TB) *Server { return start(t, (*httptest.Server).Start) }

// NewTLS is New over TLS, where the AWS SDK sends bodies in chunks with trailing
// checksums.
func NewTLS(t testing.TB) *Server { return start(t, (*httptest.Server).StartTLS) }

func start(t testing.TB, run func(*httptest.Server)) *Server {
	s := &Server{
		now:      time.Now,
		counts:   map[Op]int{},
		buckets:  map[string]map[string]*object{Bucket: {}},
		uploads:  map[string]*upload{},
		inFlight: map[Op]int{},
		peak:     map[Op]int{},
	}
	h := httptest.NewUnstartedServer(s)
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that break off are part of the game
	run(h)
	s.URL = h.URL
	if c := h.Certificate(); c != nil {
		s.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	t.Cleanup(func() {
		h.CloseClientConnections() // ends what stalls
		h.Close()
	})
	return s
}

// SetHook makes every further request ask f what to do; nil means the truth. f is called
// by one goroutine at a time, and must not call the server.
func (s *Server) SetHook(f func(*Request) Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = f
}

// SetNow replaces the server's clock.
func (s *Server) SetNow(now func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
}

// AddBucket makes an empty bucket.
func (s *Server) AddBucket(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buckets[name] = map[string]*object{}
}

// RemoveBucket removes a bucket and all that is in it.
func (s *Server) RemoveBucket(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.buckets, name)
}

// Keys returns the keys in a bucket, sorted.
func (s *Server) Keys(bucket string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.buckets[bucket]))
}

// Set stores an object, whatever its key.
func (s *Server) Set(bucket, key string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buckets[bucket][key] = s.newObject(slices.Clone(body), "")
}

// Uploads returns how many multipart uploads are unfinished.
func (s *Server) Uploads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uploads)
}

// Count returns how many intact requests of an operation have arrived.
func (s *Server) Count(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[op]
}

// Peak returns how many requests of an operation were at work at the same time at most.
func (s *Server) Peak(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak[op]
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, refusal := parse(r)
	if refusal != nil {
		s.send(w, r, refusal.response(r.URL.Path), Action{})
		return
	}
	action := s.begin(req)
	defer s.end(req)
	if action.Wait != nil {
		select {
		case <-action.Wait:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	if action.Drop {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	var resp *Response
	if action.Fail != nil {
		resp = action.Fail.response(r.URL.Path)
	} else {
		resp = s.apply(req)
	}
	if action.Lose {
		panic(http.ErrAbortHandler)
	}
	s.send(w, r, resp, action)
}

func (s *Server) begin(req *Request) Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[req.Op]++
	req.N = s.counts[req.Op]
	s.inFlight[req.Op]++
	s.peak[req.Op] = max(s.peak[req.Op], s.inFlight[req.Op])
	var a Action
	if s.hook != nil {
		a = s.hook(req)
	}
	req.ignoreConditions, req.keyErrors, req.pageSize = a.IgnoreConditions, a.KeyErrors, a.PageSize
	return a
}

func (s *Server) end(req *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[req.Op]--
}

// parse reads a request and its body, and verifies what can be verified without the
// server's state.
func parse(r *http.Request) (*Request, *Error) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	req := &Request{Bucket: bucket, Key: key, Header: r.Header, Query: r.URL.Query()}
	if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=") {
		return nil, &Error{403, "AccessDenied", "the request is not signed"}
	}
	has := req.Query.Has
	switch m := r.Method; {
	case key == "" && m == http.MethodHead:
		req.Op = HeadBucket
	case key == "" && m == http.MethodGet && req.Query.Get("list-type") == "2":
		req.Op = ListObjects
	case key == "" && m == http.MethodGet && has("uploads"):
		req.Op = ListUploads
	case key == "" && m == http.MethodPost && has("delete"):
		req.Op = DeleteObjects
	case key == "":
	case m == http.MethodPost && has("uploads"):
		req.Op = CreateUpload
	case m == http.MethodPost && has("uploadId"):
		req.Op = CompleteUpload
	case m == http.MethodPut && has("uploadId"):
		req.Op = UploadPart
	case m == http.MethodDelete && has("uploadId"):
		req.Op = AbortUpload
	case m == http.MethodPut && r.Header.Get("x-amz-copy-source") == "":
		req.Op = PutObject
	case m == http.MethodGet && !has("uploadId"):
		req.Op = GetObject
	case m == http.MethodHead:
		req.Op = HeadObject
	}
	if bucket == "" || req.Op == "" {
		return nil, &Error{501, "NotImplemented", r.Method + " " + r.URL.String()}
	}
	var err *Error
	req.Body, err = readBody(r, req.Op == DeleteObjects)
	return req, err
}

// apply performs a request on the server's state, atomically.
func (s *Server) apply(req *Request) *Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	bucket, ok := s.buckets[req.Bucket]
	if !ok {
		e := Error{404, "NoSuchBucket", "The specified bucket does not exist"}
		return e.response(req.Bucket)
	}
	var resp *Response
	var err *Error
	switch req.Op {
	case HeadBucket:
		resp = &Response{Status: 200}
	case PutObject:
		resp, err = s.putObject(bucket, req)
	case GetObject, HeadObject:
		resp, err = getObject(bucket, req)
	case ListObjects:
		resp, err = listObjects(bucket, req)
	case DeleteObjects:
		resp, err = deleteObjects(bucket, req)
	case CreateUpload:
		resp = s.createUpload(req)
	case UploadPart:
		resp, err = s.uploadPart(req)
	case CompleteUpload:
		resp, err = s.completeUpload(bucket, req)
	case AbortUpload:
		resp, err = s.abortUpload(req)
	case ListUploads:
		resp = s.listUploads(req)
	}
	if err != nil {
		return err.response(req.Key)
	}
	return resp
}

func randomID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
