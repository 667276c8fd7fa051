package s3

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseURL(t *testing.T) {
	tests := []struct {
		url  string
		want Options
	}{
		{"s3://bucket", Options{Bucket: "bucket"}},
		{"s3://bucket/", Options{Bucket: "bucket"}},
		{"s3://my.bucket-1/a/b/", Options{Bucket: "my.bucket-1", Prefix: "a/b"}},
		{"s3://bucket/a%2Bb?region=eu-west-1", Options{Bucket: "bucket", Prefix: "a+b", Region: "eu-west-1"}},
		{
			"s3://bucket/p?endpoint=http://127.0.0.1:7070&path_style=true&region=",
			Options{Bucket: "bucket", Prefix: "p", Endpoint: "http://127.0.0.1:7070", PathStyle: true},
		},
		{"s3://bucket?endpoint=https%3A%2F%2Fhost%2Fbase&path_style=0", Options{Bucket: "bucket", Endpoint: "https://host/base"}},
	}
	for _, test := range tests {
		got, err := ParseURL(test.url)
		require.NoError(t, err, test.url)
		require.Equal(t, test.want, got, test.url)
		again, err := ParseURL(got.String())
		require.NoError(t, err, got.String())
		require.Equal(t, got, again)
	}
}

func TestParseURLFaults(t *testing.T) {
	tests := []struct {
		url  string
		says []string
	}{
		{"", []string{"want s3://", "bucket: missing"}},
		{"s3:bucket", []string{"want s3://", "bucket: missing"}},
		{"http://bucket", []string{"want s3://"}},
		{"s3:///prefix", []string{"bucket: missing"}},
		{"s3://b", []string{"bucket \"b\""}},
		{"s3://bucket:80", []string{"port"}},
		{"s3://bucket#x", []string{"fragment"}},
		{"s3://key:hunter2@bucket", []string{"credentials do not belong into a URL"}},
		{"s3://bucket/a//b", []string{"prefix"}},
		{"s3://bucket/a/../b", []string{"prefix"}},
		{"s3://bucket/a%20b", []string{"prefix"}},
		{"s3://bucket/" + strings.Repeat("x", MaxPrefixBytes+1), []string{"prefix: 124 bytes"}},
		{"s3://bucket?endpoint=ftp://host", []string{"endpoint"}},
		{"s3://bucket?endpoint=http://", []string{"host is missing"}},
		{"s3://bucket?endpoint=http://u:hunter2@host", []string{"credentials do not belong into a URL"}},
		{"s3://bucket?endpoint=:hunter2", []string{"endpoint: not a URL"}},
		{"s3://bucket?endpoint=http://h%3Fa=b", []string{"query or fragment"}},
		{"s3://bucket?region=a/b", []string{"region"}},
		{"s3://bucket?region=a&region=b", []string{`"region" given 2 times`}},
		{"s3://bucket?a;b", []string{"malformed query"}},
		{"s3://k:hunter2@bucket:1?a=b&path_style=maybe&endpoint=x#y", []string{
			"credentials", "port", "fragment", `unknown parameter "a"`, `path_style "maybe"`, "endpoint",
		}},
		{"s3://k:hunter2@bu cket", []string{"parse s3 URL"}},
		{"s3://k:hunter2@bucket:port", []string{"parse s3 URL"}},
		{"\x7fhunter2", []string{"parse s3 URL"}},
	}
	for _, test := range tests {
		o, err := ParseURL(test.url)
		require.Error(t, err, test.url)
		require.Equal(t, Options{}, o)
		for _, s := range test.says {
			require.ErrorContains(t, err, s, test.url)
		}
		require.NotContains(t, err.Error(), "hunter2", "secrets stay out of errors")
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("s3://bucket/a/b?endpoint=http://127.0.0.1:7070&path_style=true&region=r")
	f.Add("s3://user:secret@bucket:1/a//b?x=y#z")
	f.Add("s3://bucket/%2e%2e/%00?path_style=1&path_style=0")
	f.Fuzz(func(t *testing.T, url string) {
		o, err := ParseURL(url)
		if err != nil {
			return
		}
		require.NoError(t, o.Validate())
		again, err := ParseURL(o.String())
		require.NoError(t, err, o.String())
		require.Equal(t, o, again)
	})
}

func TestValidateReportsAllFaults(t *testing.T) {
	require.NoError(t, Options{Bucket: "bucket"}.Validate())
	err := Options{
		Prefix: "/", PartSize: 1, Concurrency: 65, MaxAttempts: 101, Credentials: &Credentials{AccessKeyID: "hunter2"},
		FirstBackoff: -1, MaxBackoff: -1, ConnectTimeout: -1, IdleTimeout: -1, RequestTimeout: -1, OpenTimeout: -1,
	}.Validate()
	for _, what := range []string{
		"bucket", "prefix", "part size", "concurrency", "max attempts", "credentials",
		"first backoff", "max backoff", "connect timeout", "idle timeout", "request timeout", "open timeout",
	} {
		require.Contains(t, "\n"+err.Error(), "\n"+what, what)
	}
	require.NotContains(t, err.Error(), "hunter2")
}

func TestSecretsDoNotPrint(t *testing.T) {
	o := Options{Bucket: "bucket", Endpoint: "http://u:hunter2@host", Credentials: &Credentials{"hunter2", "hunter2", "hunter2"}}
	require.Equal(t, "s3://bucket", o.String())
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %s", o, o, *o.Credentials, o), "hunter2")
	require.NotContains(t, fmt.Sprintf("%+v", struct{ C Credentials }{*o.Credentials}), "hunter2")
}

func TestBackoff(t *testing.T) {
	s := &Store{opts: Options{FirstBackoff: 100 * time.Millisecond, MaxBackoff: time.Second}}
	limits := []time.Duration{100, 200, 400, 800, 1000, 1000}
	for n, limit := range limits {
		for _, r := range []float64{0, 0.25, 0.999} {
			s.opts.Random = func() float64 { return r }
			require.Equal(t, time.Duration(r*float64(limit*time.Millisecond)), s.backoff(n), "retry %d, random %v", n, r)
		}
	}
	s.opts.Random = func() float64 { return 1 }
	require.Equal(t, time.Second, s.backoff(1<<20))
	s.opts.FirstBackoff = time.Minute
	require.Equal(t, time.Second, s.backoff(0), "never above the limit")
}
