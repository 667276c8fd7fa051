package server

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/wire"
)

// Defaults and bounds of query parameters. Larger values are lowered to the
// bound (invariant I9).
const (
	defaultLimit     = 32
	maxLimit         = 10_000
	defaultScanBytes = 8 << 20
	maxScanBytes     = 64 << 20
	defaultTimeout   = 30 * time.Second
	maxTimeout       = 5 * time.Minute
	maxSinceMs       = 253402300799999 // the end of the year 9999
)

// query is the known parameters of a query string. Its methods return the
// parameter's value, or the default when it is absent; the first error sticks.
type query struct {
	names  []string // known and present
	values []string
	err    error
}

// parseQuery splits a query string. Parameters that are not known are ignored.
// Names and values are percent-decoded to raw bytes, and a plus sign is a space.
func parseQuery(raw string, known ...string) *query {
	q := &query{}
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil || !slices.Contains(known, name) {
			continue
		}
		value, err := url.QueryUnescape(rawValue)
		switch {
		case err != nil:
			q.fail("%s is not percent-encoded text: %v", name, err)
		case slices.Contains(q.names, name):
			q.fail("%s is given more than once", name)
		}
		q.names = append(q.names, name)
		q.values = append(q.values, value)
	}
	return q
}

func (q *query) fail(format string, args ...any) {
	if q.err == nil {
		q.err = invalid(format, args...)
	}
}

func (q *query) get(name string) (string, bool) {
	if i := slices.Index(q.names, name); i >= 0 {
		return q.values[i], true
	}
	return "", false
}

// number returns an integer from 0 to limit.
func (q *query) number(name string, absent, limit uint64) uint64 {
	v, ok := q.get(name)
	if !ok {
		return absent
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil || n > limit {
		q.fail("%s is %q; it must be an integer from 0 to %d", name, v, limit)
	}
	return n
}

// bounded returns an integer of any size, lowered to limit.
func (q *query) bounded(name string, absent, limit uint64) uint64 {
	return min(limit, q.number(name, absent, math.MaxUint64))
}

// positive is bounded, but does not allow 0.
func (q *query) positive(name string, absent, limit uint64) uint64 {
	n := q.bounded(name, absent, limit)
	if _, ok := q.get(name); ok && n == 0 {
		q.fail("%s must be above 0", name)
	}
	return n
}

func (q *query) boolean(name string) bool {
	v, ok := q.get(name)
	if ok && v != "true" && v != "false" {
		q.fail("%s is %q; it must be true or false", name, v)
	}
	return v == "true"
}

// base64 returns the bytes, or nil when the parameter is absent.
func (q *query) base64(name string) []byte {
	v, ok := q.get(name)
	if !ok {
		return nil
	}
	b, err := wire.DecodeQueryBase64(v)
	if err != nil {
		q.fail("%s: %v", name, err)
	}
	return b
}

// bytes returns a parameter that may be given as text or, under the name with
// _b64 behind it, as base64; nil when it is absent.
func (q *query) bytes(name string) []byte {
	coded := q.base64(name + "_b64")
	text, ok := q.get(name)
	switch {
	case ok && coded != nil:
		q.fail("both %s and %s_b64 are given", name, name)
	case ok:
		return []byte(text)
	}
	return coded
}

// key returns the required parameter key.
func (q *query) key() []byte {
	key := q.bytes("key")
	if key == nil {
		q.fail("key or key_b64 is required")
	}
	return key
}

func (q *query) sequences() engine.Range {
	return engine.Between(
		q.number("start_seq", 0, math.MaxUint64),
		q.number("end_seq", base.MaxSequence, math.MaxUint64))
}

// scanQuery is the parameters of a scan.
type scanQuery struct {
	key         []byte
	rng         engine.Range
	opts        engine.ScanOptions
	follow      bool
	timeout     time.Duration
	minSequence uint64
	paged       string // of follow: a parameter, if there is one, that only makes sense for a page
}

// since is the time, in milliseconds, at which the records begin.
func (q *scanQuery) since() int64 {
	if q.opts.Since.IsZero() {
		return 0
	}
	return q.opts.Since.UnixMilli()
}

func parseScan(raw string) (scanQuery, error) {
	q := parseQuery(raw, "key", "key_b64", "start_seq", "end_seq", "limit", "max_bytes",
		"follow", "timeout_ms", "since_ms", "last", "min_sequence")
	s := scanQuery{
		key:         q.key(),
		rng:         q.sequences(),
		follow:      q.boolean("follow"),
		timeout:     time.Duration(q.bounded("timeout_ms", uint64(defaultTimeout/time.Millisecond), uint64(maxTimeout/time.Millisecond))) * time.Millisecond,
		minSequence: q.number("min_sequence", 0, math.MaxUint64),
	}
	s.opts = engine.ScanOptions{
		Limit: int(q.positive("limit", defaultLimit, maxLimit)),
		// 0 would mean no limit to the engine, which returns the first record anyway.
		MaxBytes: int64(max(1, q.bounded("max_bytes", defaultScanBytes, maxScanBytes))),
	}
	last := q.positive("last", 0, maxLimit)
	if last > 0 {
		// The newest records are all that is asked for: the cursor behind them is
		// the frontier's, not that of a scan which a limit stopped.
		s.opts.Last, s.opts.Limit = int(last), 0
		if _, ok := q.get("limit"); ok {
			s.opts.Last = int(min(last, q.positive("limit", 0, maxLimit)))
		}
	}
	if _, ok := q.get("since_ms"); ok {
		s.opts.Since = time.UnixMilli(int64(q.bounded("since_ms", 0, maxSinceMs)))
	}
	if s.follow {
		s.paged = q.paged(s.rng)
	}
	if last > 0 && s.follow {
		q.fail("last cannot be combined with follow=true")
	}
	return s, q.err
}

// paged returns a parameter that is there and needs an answer with an end, or "".
func (q *query) paged(r engine.Range) string {
	for _, name := range []string{"limit", "max_bytes"} {
		if _, ok := q.get(name); ok {
			return name
		}
	}
	if r.End != base.MaxSequence {
		return "end_seq"
	}
	return ""
}

func parseKeys(raw string) (engine.KeysOptions, error) {
	q := parseQuery(raw, "start_segment", "end_segment", "limit", "prefix", "prefix_b64", "after_b64")
	o := engine.KeysOptions{
		Prefix:       q.bytes("prefix"),
		After:        q.base64("after_b64"),
		StartSegment: uint32(q.number("start_segment", 0, math.MaxUint32)),
		EndSegment:   uint32(q.number("end_segment", math.MaxUint32, math.MaxUint32)),
		Limit:        int(q.positive("limit", defaultLimit, engine.MaxPage)),
	}
	return o, q.err
}

func parseSegments(raw string) (engine.SegmentsOptions, error) {
	q := parseQuery(raw, "start_seq", "end_seq", "limit", "after")
	o := engine.SegmentsOptions{
		Range: q.sequences(),
		After: uint32(q.number("after", 0, math.MaxUint32)),
		Limit: int(q.positive("limit", engine.MaxPage, engine.MaxPage)),
	}
	return o, q.err
}

// parseStatus returns whether replicas are to be asked for theirs.
func parseStatus(raw string) (replicas bool, err error) {
	q := parseQuery(raw, "replicas")
	_, given := q.get("replicas")
	return q.boolean("replicas") || !given, q.err
}

func parseCount(raw string) ([]byte, engine.Range, error) {
	q := parseQuery(raw, "key", "key_b64", "start_seq", "end_seq")
	key, rng := q.key(), q.sequences()
	return key, rng, q.err
}
