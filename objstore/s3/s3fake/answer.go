package s3fake

import (
	"crypto/tls"
	"encoding/xml"
	"net"
	"net/http"
	"strconv"
)

// response returns the error as S3 writes it.
func (e *Error) response(resource string) *Response {
	if e.Status == http.StatusNotModified {
		return &Response{Status: e.Status}
	}
	return xmlResponse(e.Status, struct {
		XMLName  xml.Name `xml:"Error"`
		Code     string
		Message  string
		Resource string
	}{Code: e.Code, Message: e.Message, Resource: resource})
}

// xmlResponse encodes v, whose type must be encodable.
func xmlResponse(status int, v any) *Response {
	body, err := xml.Marshal(v)
	if err != nil {
		panic("s3fake: encode answer: " + err.Error())
	}
	return &Response{
		Status: status,
		Header: http.Header{"Content-Type": {"application/xml"}},
		Body:   append([]byte(xml.Header), body...),
	}
}

// send sends the answer as the action demands.
func (s *Server) send(w http.ResponseWriter, r *http.Request, resp *Response, a Action) {
	s.mu.Lock()
	now := s.now()
	s.mu.Unlock()
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	resp.Header.Set("Date", now.UTC().Format(http.TimeFormat))
	resp.Header.Set("x-amz-request-id", randomID())
	if resp.Header.Get("Content-Length") == "" && resp.Status != http.StatusNotModified && resp.Status != http.StatusNoContent {
		resp.Header.Set("Content-Length", strconv.Itoa(len(resp.Body)))
	}
	if a.Rewrite != nil {
		a.Rewrite(resp)
	}
	if resp.Header.Get("Date") == "" {
		resp.Header["Date"] = nil // keeps net/http from adding one
	}
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.Status)
	body := resp.Body
	if r.Method == http.MethodHead {
		body = nil
	}
	if !a.Close && !a.Reset && !a.Stall {
		_, _ = w.Write(body) // the client may be gone
		return
	}
	_, _ = w.Write(body[:min(a.Cut, len(body))])
	_ = http.NewResponseController(w).Flush()
	switch {
	case a.Stall:
		<-r.Context().Done()
	case a.Reset:
		reset(w)
		return
	}
	panic(http.ErrAbortHandler)
}

// reset closes the connection so that the client's kernel reports a reset.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic("s3fake: reset: " + err.Error())
	}
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = conn.Close()
}
