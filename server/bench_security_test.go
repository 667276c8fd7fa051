package server

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
)

// securities are the ways to reach a server whose cost differs.
var securities = []struct {
	name       string
	token, tls bool
}{{"plain", false, false}, {"token", true, false}, {"TLS", false, true}, {"TLS+token", true, true}}

// secured starts a server with 1,000 tokens, TLS, both or neither, and returns a client of it. The token used is limited to
// a hundred prefixes.
func secured(b *testing.B, token, overTLS bool) (*running, *client.Client) {
	o := Options{DB: openDB(b, mem.New(mem.Options{}), engine.Options{})}
	var co client.Options
	if token {
		var all bearers
		for i := range 999 {
			all.add(fmt.Sprint("other-", i), auth.Read, fmt.Sprintf("other/%d/", i))
		}
		prefixes := []string{"stream/"}
		for i := range 99 {
			prefixes = append(prefixes, fmt.Sprintf("some/%d/", i))
		}
		all.add("bench", auth.Read|auth.Append, prefixes...)
		o.Tokens = all.tokens(b)
		co.Token = all.secrets["bench"]
	}
	if overTLS {
		f := newCertFiles(b)
		o.Front = NewFront(FrontOptions{TLS: f.open()})
		co.TLS = &tls.Config{RootCAs: f.ca.pool()}
	}
	r := start(b, o)
	if overTLS {
		r.url = "https" + r.url[len("http"):]
	}
	c, err := client.New(r.url, co)
	require.NoError(b, err)
	b.Cleanup(c.Close)
	return r, c
}

// BenchmarkAppendSecured is one append after the other, acknowledged from memory, of one record and of 100, on
// connections that stay: what a token and TLS add to a request.
func BenchmarkAppendSecured(b *testing.B) {
	for _, records := range []int{1, 100} {
		for _, s := range securities {
			b.Run(fmt.Sprintf("records=%d/%s", records, s.name), func(b *testing.B) {
				_, c := secured(b, s.token, s.tls)
				recs := make([]client.Record, records)
				for i := range recs {
					recs[i] = client.Record{Key: fmt.Appendf(nil, "stream/%d", i), Value: benchValue()}
				}
				b.SetBytes(int64(records) * 1024)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Append(b.Context(), recs, client.AppendOptions{Ack: client.AckMemory}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkPollSecured is one page of ten records after the other.
func BenchmarkPollSecured(b *testing.B) {
	for _, s := range securities {
		b.Run(s.name, func(b *testing.B) {
			r, c := secured(b, s.token, s.tls)
			for range 10 {
				r.mustAppend("stream/0", string(bytes.Repeat([]byte("v"), 1024)))
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Scan(b.Context(), []byte("stream/0"), client.ScanOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkConnectSecured is one connection after the other, each for one request.
func BenchmarkConnectSecured(b *testing.B) {
	for _, s := range securities {
		b.Run(s.name, func(b *testing.B) {
			r, _ := secured(b, s.token, s.tls)
			client := newTLSClient(b, &tls.Config{InsecureSkipVerify: true}, false)
			client.Transport.(*http.Transport).DisableKeepAlives = true
			for b.Loop() {
				resp, err := client.Get(r.url + healthyPath)
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

// BenchmarkAuthorize is the look at a token and a key alone.
func BenchmarkAuthorize(b *testing.B) {
	var all bearers
	all.add("bench", auth.Read|auth.Append, "stream/")
	s := newServer(b, Options{Tokens: all.tokens(b)})
	req := httptest.NewRequest("GET", apiPrefix+"/count?key=stream/1", nil)
	req.Header.Set("Authorization", all.header("bench")[1])
	rt, key := s.routes[apiPrefix+"/count"], []byte("stream/1")
	b.ReportAllocs()
	for b.Loop() {
		x := exchange{s: s, r: req}
		if s.authorize(&x, rt) != nil || x.covers(key) != nil {
			b.Fatal("refused")
		}
	}
}
