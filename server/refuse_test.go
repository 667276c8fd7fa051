package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/engine"
)

// A flood of refusals fills neither the disk nor the log with what strangers sent.
func TestRefusalsAreLoggedWithBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		var b bearers
		b.add("reader", auth.Read)
		s := newServer(t, Options{Tokens: b.tokens(t), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stranger := auth.Generate()
		require.Equal(t, 403, ask(s, "GET", "/metrics", "", b.header("reader")...).Code)
		require.Equal(t, 405, ask(s, "BREW", apiPrefix+"/scan?key=do-not-log", "").Code, "what is not there is no refusal")
		require.Equal(t, 401, ask(s, "GET", apiPrefix+"/scan?key=do-not-log", "", "Authorization", "Bearer "+stranger).Code)
		require.Equal(t, 401, ask(s, "GET", apiPrefix+"/scan?key=do-not-log", "", "Authorization", "Bearer "+strings.Repeat("do-not-log", 1000)).Code)
		require.NotContains(t, log.String(), auth.HashOf(strings.Repeat("do-not-log", 1000)).Short(), "a password's hash tells too much")
		told := strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Len(t, told, 3)
		require.Contains(t, told[0], "level=WARN msg=\"request refused\" reason=scope method=GET endpoint=/metrics remote=")
		require.Contains(t, told[0], "token=reader")
		require.Contains(t, told[1], "reason=unknown")
		require.Contains(t, told[1], "token_sha256="+auth.HashOf(stranger).Short())
		require.NotContains(t, log.String(), stranger)
		require.NotContains(t, log.String(), b.secrets["reader"])
		require.NotContains(t, log.String(), "do-not-log")
		for range 1000 {
			ask(s, "GET", apiPrefix+"/keys", "")
		}
		require.Equal(t, boundedLines, strings.Count(log.String(), "\n"))
		time.Sleep(boundedWindow)
		synctest.Wait()
		require.Equal(t, boundedLines+1, strings.Count(log.String(), "\n"))
		require.Contains(t, log.String(), fmt.Sprintf("left_out=%d", 1003-boundedLines))
		ask(s, "GET", apiPrefix+"/keys", "")
		require.Equal(t, boundedLines+2, strings.Count(log.String(), "\n"))
		time.Sleep(boundedWindow) // nothing was left out: nothing is said
		synctest.Wait()
		require.Equal(t, boundedLines+2, strings.Count(log.String(), "\n"))
	})
}

// endless is a body without end, which knows how much of it was taken.
type endless struct{ taken atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.taken.Add(int64(len(p)))
	return len(p), nil
}

// The body of a request without a token is not read, and the answer arrives all the same.
func TestBodiesOfRefusedRequestsAreNotRead(t *testing.T) {
	overAll(t, func(t *testing.T, run func(Options, func(*Server)) *running) {
		var b bearers
		b.add("reader", auth.Read)
		r := run(Options{Tokens: b.tokens(t)}, func(*Server) {})
		for _, headers := range [][]string{{}, b.header("reader")} {
			body := new(endless)
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", r.url+appendPath, io.NopCloser(body))
			require.NoError(t, err)
			req.ContentLength = 1 << 40
			want := 401
			if len(headers) > 0 {
				req.Header.Set(headers[0], headers[1])
				want = 403
			}
			resp, err := r.client.Do(req)
			require.NoError(t, err)
			require.Equal(t, want, resp.StatusCode)
			_ = resp.Body.Close()
			cancel()
			require.Less(t, body.taken.Load(), int64(32<<20), "what the buffers on the way hold")
		}
		require.Zero(t, r.bodies.peak)
	})
}

// A body that does not come keeps no answer, and no connection: of nobody who needs no token for it, neither.
func TestNobodyWaitsForBodiesThatNobodyReads(t *testing.T) {
	r := startWith(t, Options{Tokens: new(bearers).tokens(t)}, func(s *Server) { s.drainTimeout = 10 * time.Millisecond })
	for request, want := range map[string]string{
		"POST " + appendPath: "401", "POST /elsewhere": "404", "POST " + uiPath: "405", "GET " + uiPath: "200", "GET " + healthyPath: "200",
	} {
		conn, err := net.Dial("tcp", r.url[len("http://"):])
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = io.WriteString(conn, request+" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Contains(t, string(answer), "HTTP/1.1 "+want+" ", request)
	}
}

// deadlined is an answer that notes until when the body may arrive.
type deadlined struct {
	*httptest.ResponseRecorder
	read time.Time
}

func (d *deadlined) SetReadDeadline(at time.Time) error {
	d.read = at
	return nil
}

// The same while the log is opening, and of the admin side.
func TestBodiesThatNobodyReadsHaveAnEnd(t *testing.T) {
	debug := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {})
	for _, h := range []http.Handler{NewFront(FrontOptions{}), NewAdmin(AdminOptions{Debug: debug})} {
		for _, path := range []string{healthyPath, "/debug/", "/elsewhere"} {
			d := &deadlined{ResponseRecorder: httptest.NewRecorder()}
			h.ServeHTTP(d, httptest.NewRequest("GET", path, strings.NewReader("left")))
			require.WithinDuration(t, time.Now().Add(drainTimeout), d.read, drainTimeout, path)
			d.read = time.Time{}
			h.ServeHTTP(d, httptest.NewRequest("GET", path, nil))
			require.Zero(t, d.read, path)
		}
	}
}

// A stream whose request has a body that nobody needs goes on behind it.
func TestStreamsOutliveTheirBody(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := startWith(t, Options{}, func(s *Server) {
			s.drainTimeout = 20 * time.Millisecond
			s.following.keepAlive, s.following.interval = s.drainTimeout, 5*time.Millisecond
		}).speak(http2)
		o := r.open("GET", scanPath+"?follow=true&key=k", "not needed", "Accept", "text/event-stream")
		for range 3 { // each a drainTimeout later
			require.True(t, strings.HasPrefix(o.next(), ":"))
		}
		r.mustAppend("k", "v")
		require.Equal(t, event("k", 0, "v"), o.record())
	})
}

// A token that is removed while a body arrives appends nothing with it, and sets no cursor.
func TestBodiesDoNotOutliveTheirToken(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		var b bearers
		b.add("t", auth.Read|auth.Append)
		for _, c := range []struct{ method, path, body string }{
			{"POST", appendPath, `{"records":[{"key":"k","value":"v"}]}`},
			{"PUT", cursorsPath + "/c", `{"cursors":[{"key":"k","nextSequence":0}]}`},
			{"POST", followPath, `{"streams":[{"key":"k"}]}`},
		} {
			tokens := b.tokens(t)
			r := startWith(t, Options{Tokens: tokens}, func(*Server) {}).speak(http2)
			body, arriving := io.Pipe()
			req, err := http.NewRequestWithContext(t.Context(), c.method, r.url+c.path, body)
			require.NoError(t, err)
			req.Header.Set(b.header("t")[0], b.header("t")[1])
			answers := make(chan answer)
			go func() {
				resp, err := r.client.Do(req)
				if err != nil {
					answers <- answer{body: err.Error()}
					return
				}
				defer resp.Body.Close()
				text, _ := io.ReadAll(resp.Body)
				answers <- answer{status: resp.StatusCode, body: string(text)}
			}()
			_, err = io.WriteString(arriving, c.body[:4])
			require.NoError(t, err)
			require.Eventually(t, func() bool { return r.bodies.used() > 0 }, patience, time.Millisecond)
			require.NoError(t, tokens.Replace(nil))
			_, err = io.WriteString(arriving, c.body[4:])
			require.NoError(t, err)
			require.NoError(t, arriving.Close())
			got := soon(t, answers)
			require.Equal(t, 401, got.status, got.body)
			require.Contains(t, got.body, "the token is not known")
			require.Zero(t, r.db.Frontier())
		}
	})
}

// Streams and long polls end when their token is removed; those of others stay.
func TestStreamsDoNotOutliveTheirToken(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		var b bearers
		b.add("t", auth.Read)
		b.add("other", auth.Read)
		tokens := b.tokens(t)
		r := startWith(t, Options{Tokens: tokens}, func(s *Server) { s.following.interval = 10 * time.Millisecond }).speak(http2)
		answers := make(chan answer)
		for _, query := range []string{"follow=true", "min_sequence=9"} {
			go func() { answers <- r.get(scanPath+"?key=k&timeout_ms=300000&"+query, b.header("t")...) }()
		}
		stays := r.events("key=k", b.header("other")...)
		events := r.events("key=k", b.header("t")...)
		follow := r.open("POST", followPath, `{"prefixes":[{"prefix":""}]}`, b.header("t")...)
		r.followers(2, 2, 1)
		require.NoError(t, tokens.Replace(b.entries[1:]))
		for range 2 {
			got := soon(t, answers)
			require.Equal(t, 401, got.status)
			require.Contains(t, got.body, "the token is not known")
		}
		require.Contains(t, events.rest(), "the token is not known")
		require.Contains(t, follow.rest(), "the token is not known")
		r.followers(0, 1, 0)
		r.mustAppend("k", "v")
		require.Equal(t, event("k", 0, "v"), stays.record())
	})
}

// The same where its time is up, within two looks; and where the client does not take what it is sent.
func TestStreamsEndWhenTheirTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bearers
		b.add("t", auth.Read)
		b.entries[0].Expires = time.Now().Add(time.Hour)
		s := newServer(t, Options{Tokens: b.tokens(t)})
		ended := make(chan time.Time, 3)
		serve := func(w http.ResponseWriter, target string) {
			r := httptest.NewRequest("GET", target, nil)
			r.Header.Set("Authorization", b.header("t")[1])
			r.Header.Set("Accept", "text/event-stream")
			s.ServeHTTP(w, r)
			ended <- time.Now()
		}
		w := httptest.NewRecorder()
		go serve(w, scanPath+"?key=k&follow=true")
		go serve(&slowClient{httptest.NewRecorder(), make(chan struct{})}, scanPath+"?key=slow&follow=true")
		time.Sleep(time.Hour - 3*time.Second)
		_, err := s.writer.Append(t.Context(), []engine.Record{{Key: []byte("slow")}}, engine.AppendOptions{})
		require.NoError(t, err)
		for range 2 {
			require.Less(t, (<-ended).Sub(b.entries[0].Expires), drainedPiece+2*tendInterval)
		}
		require.Contains(t, w.Body.String(), "the token has expired")
		time.Sleep(2 * tendInterval) // until nobody looks any more
		synctest.Wait()
	})
}
