package server

import (
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// scanOf returns what a scan of key "k" asks for without further parameters.
func scanOf(change func(*scanQuery)) scanQuery {
	q := scanQuery{
		key: []byte("k"), rng: engine.All(), timeout: 30 * time.Second,
		opts: engine.ScanOptions{Limit: 32, MaxBytes: 8 << 20},
	}
	change(&q)
	return q
}

func TestParseScan(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want func(*scanQuery)
	}{
		{"key=k", func(*scanQuery) {}},
		{"&&key=k&", func(*scanQuery) {}},
		{"%6Bey=%6b", func(*scanQuery) {}},
		{"key=", func(q *scanQuery) { q.key = []byte{} }},
		{"key", func(q *scanQuery) { q.key = []byte{} }},
		{"key=a+b%2Bc", func(q *scanQuery) { q.key = []byte("a b+c") }},
		{"key=%FF%00", func(q *scanQuery) { q.key = []byte{0xff, 0} }},
		{"key=a=b;c", func(q *scanQuery) { q.key = []byte("a=b;c") }},
		{"key_b64=aw==", func(*scanQuery) {}},
		{"key_b64=aw", func(*scanQuery) {}},
		{"key_b64=", func(q *scanQuery) { q.key = []byte{} }},
		{"key_b64=_-8", func(q *scanQuery) { q.key = []byte{0xff, 0xef} }},
		{"key_b64=/+8=", func(q *scanQuery) { q.key = []byte{0xff, 0xef} }},
		{"key_b64=%2F%2B8%3D", func(q *scanQuery) { q.key = []byte{0xff, 0xef} }},
		{"key=k&x=1&x=2&Follow=maybe&%zz=1&y=%zz", func(*scanQuery) {}},
		{"key=k&start_seq=5&end_seq=18446744073709551615", func(q *scanQuery) { q.rng.Start = 5 }},
		{"key=k&start_seq=5&end_seq=0", func(q *scanQuery) { q.rng = engine.Between(5, 0) }},
		{"key=k&limit=1&max_bytes=7", func(q *scanQuery) { q.opts.Limit, q.opts.MaxBytes = 1, 7 }},
		{"key=k&limit=10001&max_bytes=67108865", func(q *scanQuery) { q.opts.Limit, q.opts.MaxBytes = 10000, 64<<20 }},
		{"key=k&limit=18446744073709551615&max_bytes=18446744073709551615", func(q *scanQuery) { q.opts.Limit, q.opts.MaxBytes = 10000, 64<<20 }},
		{"key=k&max_bytes=0", func(q *scanQuery) { q.opts.MaxBytes = 1 }},
		{"key=k&follow=true&timeout_ms=0", func(q *scanQuery) { q.follow, q.timeout = true, 0 }},
		{"key=k&follow=false&timeout_ms=18446744073709551615", func(q *scanQuery) { q.timeout = 5 * time.Minute }},
		{"key=k&last=100", func(q *scanQuery) { q.opts.Last, q.opts.Limit = 100, 0 }},
		{"key=k&last=100000&limit=3", func(q *scanQuery) { q.opts.Last, q.opts.Limit = 3, 0 }},
		{"key=k&since_ms=0", func(q *scanQuery) { q.opts.Since = time.UnixMilli(0) }},
		{"key=k&since_ms=18446744073709551615", func(q *scanQuery) { q.opts.Since = time.UnixMilli(maxSinceMs) }},
		{"key=k&min_sequence=9", func(q *scanQuery) { q.minSequence = 9 }},
	} {
		got, err := parseScan(c.raw)
		require.NoError(t, err, c.raw)
		require.Equal(t, scanOf(c.want), got, c.raw)
	}
}

// badQueries are wrong for every route that knows the parameter.
var badQueries = []struct{ route, raw, want string }{
	{"scan", "", "key or key_b64 is required"},
	{"count", "start_seq=1", "key or key_b64 is required"},
	{"scan", "Key=k", "key or key_b64 is required"},
	{"scan", "key=k&key_b64=aw", "both key and key_b64 are given"},
	{"scan", "key=&key_b64=", "both key and key_b64 are given"},
	{"scan", "key=k&key=k", "key is given more than once"},
	{"scan", "key=k&%6bey=k", "key is given more than once"},
	{"count", "key_b64=aw&key_b64=aw", "key_b64 is given more than once"},
	{"scan", "key=%zz", `key is not percent-encoded text: invalid URL escape "%zz"`},
	{"scan", "key=%f", "key is not percent-encoded text"},
	{"scan", "key_b64=ax", "key_b64: not base64"},
	{"count", "key_b64=a", "key_b64: not base64"},
	{"scan", "key_b64=a%0Aw", "key_b64: base64 with line breaks"},
	{"scan", "key=k&limit=0", "limit must be above 0"},
	{"scan", "key=k&limit=", `limit is ""; it must be an integer`},
	{"scan", "key=k&limit=-1", `limit is "-1"; it must be an integer`},
	{"scan", "key=k&limit=+1", `limit is " 1"; it must be an integer`},
	{"scan", "key=k&limit=1.0", "limit is"},
	{"scan", "key=k&limit=1e3", "limit is"},
	{"scan", "key=k&limit=0x10", "limit is"},
	{"scan", "key=k&limit=1_000", "limit is"},
	{"scan", "key=k&limit=5&limit=5", "limit is given more than once"},
	{"scan", "key=k&start_seq=18446744073709551616", "start_seq is"},
	{"count", "key=k&end_seq=abc", "end_seq is"},
	{"scan", "key=k&max_bytes=8MiB", "max_bytes is"},
	{"scan", "key=k&follow=1", `follow is "1"; it must be true or false`},
	{"scan", "key=k&follow=", "follow is"},
	{"scan", "key=k&follow=True", "follow is"},
	{"scan", "key=k&timeout_ms=-5", "timeout_ms is"},
	{"scan", "key=k&since_ms=yesterday", "since_ms is"},
	{"scan", "key=k&since_ms=-1", "since_ms is"},
	{"scan", "key=k&last=0", "last must be above 0"},
	{"scan", "key=k&last=3&follow=true", "last cannot be combined with follow=true"},
	{"scan", "key=k&min_sequence=x", "min_sequence is"},
	{"keys", "limit=0", "limit must be above 0"},
	{"keys", "prefix=a&prefix_b64=aw", "both prefix and prefix_b64 are given"},
	{"keys", "prefix_b64=ax", "prefix_b64: not base64"},
	{"keys", "after_b64=ax", "after_b64: not base64"},
	{"keys", "start_segment=4294967296", "start_segment is"},
	{"keys", "end_segment=-1", "end_segment is"},
	{"segments", "limit=0", "limit must be above 0"},
	{"segments", "after=x", "after is"},
	{"segments", "after=4294967296", "after is"},
	{"segments", "start_seq=1&start_seq=2", "start_seq is given more than once"},
	{"segments", "end_seq=", "end_seq is"},
}

// parseRoute runs the parser of a route.
func parseRoute(route, raw string) (err error) {
	switch route {
	case "scan":
		_, err = parseScan(raw)
	case "keys":
		_, err = parseKeys(raw)
	case "segments":
		_, err = parseSegments(raw)
	case "count":
		_, _, err = parseCount(raw)
	default:
		panic(route)
	}
	return err
}

func TestBadQueries(t *testing.T) {
	for _, c := range badQueries {
		err := parseRoute(c.route, c.raw)
		require.ErrorContains(t, err, "Invalid input: "+c.want, "%s?%s", c.route, c.raw)
		require.Equal(t, 400, answerOf(err).status)
	}
}

func TestParseKeys(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want engine.KeysOptions
	}{
		{"", engine.KeysOptions{EndSegment: math.MaxUint32, Limit: 32}},
		{"prefix=a%2F&limit=99999", engine.KeysOptions{Prefix: []byte("a/"), EndSegment: math.MaxUint32, Limit: 10000}},
		{"prefix_b64=_w&start_segment=2&end_segment=3", engine.KeysOptions{Prefix: []byte{0xff}, StartSegment: 2, EndSegment: 3, Limit: 32}},
		{"after_b64=", engine.KeysOptions{After: []byte{}, EndSegment: math.MaxUint32, Limit: 32}},
		{"after_b64=aw&limit=1", engine.KeysOptions{After: []byte("k"), EndSegment: math.MaxUint32, Limit: 1}},
	} {
		got, err := parseKeys(c.raw)
		require.NoError(t, err, c.raw)
		require.Equal(t, c.want, got, c.raw)
	}
}

func TestParseSegmentsAndCount(t *testing.T) {
	o, err := parseSegments("")
	require.NoError(t, err)
	require.Equal(t, engine.SegmentsOptions{Range: engine.All(), Limit: engine.MaxPage}, o)
	o, err = parseSegments("start_seq=1&end_seq=2&after=3&limit=4")
	require.NoError(t, err)
	require.Equal(t, engine.SegmentsOptions{Range: engine.Between(1, 2), After: 3, Limit: 4}, o)

	key, rng, err := parseCount("key_b64=aw&start_seq=1&end_seq=2")
	require.NoError(t, err)
	require.Equal(t, "k", string(key))
	require.Equal(t, engine.Between(1, 2), rng)
}

func FuzzQuery(f *testing.F) {
	for _, c := range badQueries {
		f.Add(c.raw)
	}
	f.Add("key=a+b%2Bc&limit=5&follow=true&timeout_ms=1&since_ms=5&min_sequence=1")
	f.Add("prefix_b64=_w&after_b64=&start_segment=2&end_segment=3")
	f.Add("key=a&key_b64=_w&key=")
	f.Add("limit=3&after=c%20d&after_b64=aw")
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := parseScan(raw)
		if err == nil {
			require.NotNil(t, q.key)
			require.Positive(t, q.opts.Limit+q.opts.Last)
			require.LessOrEqual(t, q.opts.Limit+q.opts.Last, maxLimit)
			require.Positive(t, q.opts.MaxBytes)
			require.LessOrEqual(t, q.opts.MaxBytes, int64(maxScanBytes))
			require.GreaterOrEqual(t, q.timeout, time.Duration(0))
			require.LessOrEqual(t, q.timeout, maxTimeout)
			requireLibraryAgrees(t, raw, q.key)
		}
		if o, err := parseKeys(raw); err == nil {
			require.Positive(t, o.Limit)
		}
		if o, err := parseSegments(raw); err == nil {
			require.Positive(t, o.Limit)
		}
		_, _, _ = parseCount(raw)
		if o, err := parseCursors(raw); err == nil {
			require.Equal(t, len(o.Keys) == 0, o.Limit > 0)
			require.LessOrEqual(t, max(len(o.Keys), o.Limit), wire.MaxCursors)
		}
		if keys, err := parseCursorKeys(raw); err == nil {
			require.Equal(t, raw == "", len(keys) == 0, "all are deleted only by no parameters at all")
		}
		if after, limit, err := parseConsumers(raw); err == nil {
			require.True(t, after == "" || wire.ValidateConsumer(after) == nil)
			require.Positive(t, limit)
		}
	})
}

// requireLibraryAgrees compares the key with what net/url makes of the query,
// where that accepts it.
func requireLibraryAgrees(t *testing.T, raw string, key []byte) {
	values, err := url.ParseQuery(raw)
	if err != nil || strings.Contains(raw, ";") || !values.Has("key") {
		return
	}
	require.Equal(t, []string{string(key)}, values["key"])
}
