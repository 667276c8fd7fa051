package main

import (
	"io"
	"math"
	"math/big"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// FuzzDuration holds parseDuration against exact numbers: days and what time.ParseDuration reads, together above 0 and no
// more than a time.Duration holds.
func FuzzDuration(f *testing.F) {
	for _, s := range []string{"7d", "1d2h3m", "100ms", "106751d", "106752d", "106751d23h47m16.854775807s", "0d", "-1d", "1d-1h", "d", "1d1d", "1h1d", "+1d", "99999999999d", "0.5d", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseDuration(text)
		want := new(big.Int)
		number, rest, isDays := strings.Cut(text, "d")
		if !isDays {
			number, rest = "0", text
		}
		days, derr := strconv.ParseUint(number, 10, 64)
		more, merr := time.ParseDuration(rest)
		if isDays && rest == "" {
			more, merr = 0, nil
		}
		want.Mul(new(big.Int).SetUint64(days), big.NewInt(int64(24*time.Hour)))
		want.Add(want, big.NewInt(int64(more)))
		signed := isDays && rest != "" && strings.ContainsAny(rest[:1], "+-")
		if derr != nil || merr != nil || signed || want.Sign() <= 0 || !want.IsInt64() {
			require.Error(t, err, "%q: %v", text, got)
			return
		}
		require.NoError(t, err, text)
		require.Equal(t, want.Int64(), int64(got), text)
	})
}

// FuzzSize: what is read is in its bounds, and is written and read again to the same.
func FuzzSize(f *testing.F) {
	for _, s := range []string{"1", "64MiB", "1.5KiB", "10MB", "2 GiB", "0", "-1", "9EiB", "4EiB", "1e3", "NaN", "Inf", "0x10", "1,000", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseSize[int64](text)
		if err != nil {
			require.Zero(t, n)
			return
		}
		require.Positive(t, n)
		require.LessOrEqual(t, n, int64(math.MaxInt64/2))
		again, err := parseSize[int64](formatSize(n))
		require.NoError(t, err)
		require.InEpsilon(t, n, again, 1e-9, "a number of more than 53 bits is read as a float")
	})
}

// FuzzAddress: what is taken for an address to listen on, or for a server, is one for the libraries that use it.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"127.0.0.1:8080", ":0", "[::1]:80", "host:http", "http://host/prefix", "https://[::1]:1/", "http://user@host", "ftp://x", "http://host?q", "http://%zz", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if a, err := parseListen(text); err == nil {
			_, port, err := net.SplitHostPort(a)
			require.NoError(t, err)
			n, err := strconv.Atoi(port)
			require.NoError(t, err)
			require.True(t, 0 <= n && n <= 65535)
		}
		if s, err := parseServer(text); err == nil {
			u, err := url.Parse(s + "/api/v1/log/keys")
			require.NoError(t, err)
			require.True(t, u.Host != "" && u.RawQuery == "" && strings.HasSuffix(u.Path, "/api/v1/log/keys"))
		}
		if u, err := parseStoreURL(text); err == nil {
			require.Positive(t, u.flushInterval)
		}
	})
}

// FuzzServeCommandLine gives serve any arguments and variables, one a line: it says what is wrong with them, each thing on
// a line, or has options that are valid.
func FuzzServeCommandLine(f *testing.F) {
	f.Add("--store\nmem:\n--ack=memory\n--retention=7d", "ANNALS_LISTEN=:0\nANNALS_SEGMENT_BYTES=1MiB")
	f.Add("--replica\n--key-range\na..n\n--poll-interval\n20ms", "ANNALS_TAIL_BYTES=1GiB")
	f.Add("--store=s3://b/p?endpoint=http://h&secret_key=x\n--bogus\n--ack\n--\nx", "ANNALS_ACK=x\nANNALS_NONE=1")
	f.Add("-h\n--disk-cache-dir\n/x\n--disk-cache-bytes\n0", "=\nANNALS_")
	f.Fuzz(func(t *testing.T, args, environ string) {
		var c serveConfig
		s := newSettings(pflag.NewFlagSet("serve", pflag.ContinueOnError))
		c.define(s)
		_, help := s.read(strings.Split(args, "\n"), strings.Split(environ, "\n"), nil)
		c.check(s)
		if help || len(s.faults) > 0 {
			for _, fault := range s.faults {
				require.NotEmpty(t, fault)
				require.NotContains(t, fault, "\n")
			}
			return
		}
		if c.replica.on {
			require.NoError(t, c.readerOptions().Validate())
		} else {
			require.NoError(t, c.engine.Validate())
		}
	})
}

// FuzzLines reads any input by lines: as many as there are, gzipped or not, or an error that names the line.
func FuzzLines(f *testing.F) {
	const text = "{\"key\":\"a\",\"value\":\"1\"}\r\n\n  \n{\"key\":\"b\",\"value\":[1, 2]}"
	f.Add([]byte(text))
	f.Add([]byte(zip(f, text)))
	f.Add([]byte(zip(f, text))[:20])
	f.Add([]byte("{\"key\":\"a\"}\n"))
	f.Add([]byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := newLineReader(strings.NewReader(string(in)), "input")
		if err != nil {
			require.ErrorContains(t, err, "input")
			return
		}
		entries, err := readAll(t, r)
		for i, e := range entries {
			require.True(t, e.key != nil && e.value != nil)
			require.True(t, i == 0 || e.line > entries[i-1].line)
		}
		if err != io.EOF {
			require.ErrorContains(t, err, "line ")
		}
	})
}
