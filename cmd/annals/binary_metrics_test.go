package main

import (
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

// metric returns the sum of all series of a metric whose line matches an expression.
func (d *daemon) metric(t *testing.T, series string) (sum float64) {
	t.Helper()
	status, page := request(t, http.MethodGet, d.url+"/metrics", "")
	require.Equal(t, http.StatusOK, status)
	for _, m := range regexp.MustCompile(`(?m)^`+series+` (\S+)$`).FindAllStringSubmatch(page, -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		sum += n
	}
	return sum
}

// What the server counts is what S3 was sent; a retry is a request of S3's, and none of
// ours. What compact did it says when it stops.
func TestBinaryStoreRequests(t *testing.T) {
	var mu sync.Mutex
	received := map[s3fake.Op]int{}
	refused := 0
	count := func(op s3fake.Op) float64 {
		mu.Lock()
		defer mu.Unlock()
		return float64(received[op])
	}
	store := fakeS3(t, s3fake.Bucket, func(r *s3fake.Request) s3fake.Action {
		mu.Lock()
		defer mu.Unlock()
		received[r.Op]++
		if r.Op == s3fake.PutObject && refused < 2 {
			refused++
			return s3fake.Fail(http.StatusServiceUnavailable, "SlowDown")
		}
		return s3fake.Action{}
	})
	d := start(t, store)
	status, body := d.appendOne(t, "k", "value")
	require.Equal(t, http.StatusOK, status, body)
	const puts = `annals_store_http_requests_total\{answer="[a-z]+",operation="PutObject"\}`
	require.Eventually(t, func() bool { // the compactor takes its epoch meanwhile
		before := count(s3fake.PutObject)
		return d.metric(t, puts) == before && before == count(s3fake.PutObject)
	}, patience, 10*time.Millisecond)
	require.Equal(t, 2.0, d.metric(t, `annals_store_http_requests_total\{answer="throttled",operation="PutObject"\}`))
	require.Equal(t, d.metric(t, puts)-2, d.metric(t, `annals_store_requests_total\{op="put",result="[a-z_]+"\}`))
	require.NotZero(t, d.metric(t, `annals_store_requests_total\{op="get",result="not_modified"\}`)+d.metric(t, `annals_store_requests_total\{op="get",result="ok"\}`))
	require.NotZero(t, d.metric(t, `annals_store_bytes_total\{op="put"\}`))
	require.NotZero(t, d.metric(t, `annals_store_request_seconds_count\{op="put"\}`))

	d.stop(t)
	c := background(t, "compact", "--store", store, "--log-format", "json")
	c.await(t, "compacting")
	c.stop(t)
	line := c.await(t, "stopped")
	requests, ok := line["requests"].(map[string]any)
	require.True(t, ok, "%v", line)
	require.NotZero(t, line["bytes_read"], "it looked at the log's head")
	require.NotZero(t, requests["get"])
	require.GreaterOrEqual(t, requests["sent"], requests["get"])
	require.EqualValues(t, 2, requests["put"], "it takes the epoch at once, since the server released its own, and releases it")
	require.EqualValues(t, 0, requests["failed"])
}

// A signal ends compact well at any time, also while the store does not answer.
func TestBinaryCompactStoppedWhileOpening(t *testing.T) {
	asked := make(chan struct{}, 100)
	store := fakeS3(t, s3fake.Bucket, func(*s3fake.Request) s3fake.Action {
		asked <- struct{}{}
		return s3fake.Action{Wait: make(chan struct{})}
	})
	c := background(t, "compact", "--store", store, "--log-format", "json")
	<-asked
	c.stop(t)
	require.Empty(t, c.log)
}
