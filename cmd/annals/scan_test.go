package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// paged reads from records as a server does, at most page of them at a time.
// Other keys have made the frontier rise up to frontier.
func paged(records []scanned, page int, frontier uint64, requests *[]pageRequest) pageFunc {
	return func(_ context.Context, q pageRequest) (found []scanned, next uint64, err error) {
		*requests = append(*requests, q)
		for _, r := range records {
			if r.sequence >= q.from && r.sequence < q.to {
				found = append(found, r)
			}
		}
		if q.last > 0 && uint64(len(found)) > q.last {
			found = found[uint64(len(found))-q.last:]
		}
		if n := min(page, int(q.limit)); len(found) > n {
			return found[:n], found[n-1].sequence + 1, nil
		}
		return found, max(q.from, min(frontier, q.to)), nil
	}
}

func scan(ctx context.Context, w io.Writer, read pageFunc, key []byte, c scanConfig) error {
	_, _, err := scanPages(ctx, w, read, key, c)
	return err
}

func TestScanPages(t *testing.T) {
	var records []scanned
	for i := range uint64(10) {
		records = append(records, scanned{sequence: 3 * i, value: []byte{'a' + byte(i)}})
	}
	const all = math.MaxUint64
	for _, test := range []struct {
		name string
		c    scanConfig
		want string
	}{
		{"all", scanConfig{to: all}, "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n"},
		{"from", scanConfig{from: 20, to: all}, "h\ni\nj\n"},
		{"to", scanConfig{to: 9}, "a\nb\nc\n"},
		{"nothing in the range", scanConfig{from: 4, to: 6}, ""},
		{"empty range", scanConfig{from: 5, to: 5}, ""},
		{"limit in a page", scanConfig{to: all, limit: 2}, "a\nb\n"},
		{"limit beyond a page", scanConfig{to: all, limit: 7}, "a\nb\nc\nd\ne\nf\ng\n"},
		{"last", scanConfig{to: all, last: 2}, "i\nj\n"},
		{"last, more than a page", scanConfig{to: 27, last: 5}, "e\nf\ng\nh\ni\n"},
		{"last, then following", scanConfig{to: all, last: 2, follow: true}, "i\nj\n"},
		{"last, more than there are", scanConfig{to: all, last: 100}, "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			var requests []pageRequest
			require.NoError(t, scan(t.Context(), &out, paged(records, 3, 50, &requests), []byte("k"), test.c))
			require.Equal(t, test.want, out.String())
			for i, q := range requests {
				require.Equal(t, "k", string(q.key))
				require.True(t, i == 0 || q.last == 0, "only the first page counts from the end")
			}
		})
	}
}

func TestScanJSON(t *testing.T) {
	read := func(_ context.Context, q pageRequest) ([]scanned, uint64, error) {
		if q.from > 0 {
			return nil, q.from, nil
		}
		return []scanned{
			{1, 1712345678901, []byte("say \"hi\"\n<é>")},
			{math.MaxUint64 - 1, 0, []byte("\xff\x00")},
			{math.MaxUint64 - 1, 0, nil},
		}, 2, nil
	}
	var out bytes.Buffer
	require.NoError(t, scan(t.Context(), &out, read, []byte("k"), scanConfig{to: math.MaxUint64, json: true}))
	require.Equal(t, `{"sequence":1,"timestampMs":1712345678901,"key":"k","value":"say \"hi\"\n<é>"}
{"sequence":18446744073709551614,"timestampMs":0,"key":"k","valueB64":"/wA="}
{"sequence":18446744073709551614,"timestampMs":0,"key":"k","value":""}
`, out.String())
	require.Equal(t, `{"sequence":0,"timestampMs":0,"keyB64":"/w==","value":""}`, string(appendJSON(nil, []byte{0xff}, scanned{})))
}

// What was read before a failure is printed, and the failure says where it was.
func TestScanFailure(t *testing.T) {
	read := func(_ context.Context, q pageRequest) ([]scanned, uint64, error) {
		if q.from > 0 {
			return nil, 0, errors.New("the server is gone")
		}
		return []scanned{{sequence: 6, value: []byte("v")}}, 7, nil
	}
	var out bytes.Buffer
	err := scan(t.Context(), &out, read, []byte("k"), scanConfig{to: math.MaxUint64})
	require.EqualError(t, err, "scan from sequence 7: the server is gone")
	require.Equal(t, "v\n", out.String())
}

// full is an output that takes nothing more.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestScanOutputFails(t *testing.T) {
	read := func(_ context.Context, q pageRequest) ([]scanned, uint64, error) {
		return []scanned{{value: make([]byte, 2*outputBufferBytes)}}, q.from + 1, nil
	}
	require.ErrorContains(t, scan(t.Context(), full{}, read, nil, scanConfig{to: math.MaxUint64}), "write output: no space left")
}
