package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/trace"
)

func TestMetricsAreSet(t *testing.T) {
	registry := prometheus.NewRegistry()
	db := openDB(t, mem.New(mem.Options{}), engine.Options{MemtableBytes: 1 << 16})
	r := start(t, Options{DB: db, Registry: registry})
	require.Equal(t, 200, r.post(appendPath, `{"records":[{"key":"aw","value":"dmFs"},{"key":"","value":""}]}`).status)
	require.Equal(t, 200, r.get(scanPath+"?key=k").status)
	require.Equal(t, 400, r.get(scanPath).status)
	require.Equal(t, 404, r.get("/some/path").status)
	require.Equal(t, 405, r.do("BREW", "/api/v1/log/keys", nil).status)
	require.NoError(t, db.Flush(t.Context()))

	text := r.get("/metrics").body
	for _, line := range []string{
		"log_append_records_total 2",
		"log_append_bytes_total 4",
		"log_records_scanned_total 1",
		"log_bytes_scanned_total 4",
		`http_requests_total{endpoint="/api/v1/log/append",method="POST",status="200"} 1`,
		`http_requests_total{endpoint="/api/v1/log/scan",method="GET",status="200"} 1`,
		`http_requests_total{endpoint="/api/v1/log/scan",method="GET",status="400"} 1`,
		`http_requests_total{endpoint="other",method="GET",status="404"} 1`,
		`http_requests_total{endpoint="/api/v1/log/keys",method="other",status="405"} 1`,
		`http_request_duration_seconds_count{endpoint="/api/v1/log/append",method="POST"} 1`,
		"http_requests_in_flight 1", // this one
		"annals_http_buffered_bytes 0",
		"annals_epoch 1",
		"annals_next_sequence 2",
		"annals_durable_sequence 2",
		"annals_frontier_sequence 2",
		"annals_flushed_sequence 2",
		"annals_appended_records_total 2",
		"annals_appended_bytes_total 4",
		"annals_scanned_records_total 1",
		"annals_runs 1",
		"annals_tables 1",
		"annals_segments 1",
		"annals_wal_objects_total 1",
		"annals_flushes_total 1",
		"annals_unflushed_bytes 0",
	} {
		require.Contains(t, text, "\n"+line+"\n")
	}
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// Every metric is documented, and every documented one exists.
func TestMetricsAreDocumented(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := start(t, Options{
		Registry: registry, Store: metered.New(&leftUploads{Store: mem.New(mem.Options{})}, metered.Options{}),
		SlowLog: trace.NewSlowLog(trace.SlowOptions{Threshold: time.Second, Logger: slog.New(slog.DiscardHandler)}),
		Spans:   func() trace.SpanCounts { return trace.SpanCounts{} },
	})
	r.get("/-/healthy") // labelled metrics exist once they are used
	families, err := registry.Gather()
	require.NoError(t, err)
	var have []string
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			continue // documented by their library
		}
		have = append(have, f.GetName())
		if !strings.HasPrefix(f.GetName(), "http_") && !strings.HasPrefix(f.GetName(), "log_") {
			require.True(t, strings.HasPrefix(f.GetName(), "annals_"), f.GetName())
		}
	}
	documented := documentedMetrics(t)
	require.ElementsMatch(t, have, documented)
	for _, name := range mentionedMetrics(t) {
		require.Contains(t, documented, name)
	}
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func metricsPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/METRICS.md")
	require.NoError(t, err)
	return string(page)
}

// documentedMetrics returns the names in the table of docs/METRICS.md.
func documentedMetrics(t *testing.T) (names []string) {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (?:counter|gauge|histogram) \\|")
	for _, m := range row.FindAllStringSubmatch(metricsPage(t), -1) {
		names = append(names, m[1])
	}
	return names
}

// mentionedMetrics returns the names anywhere in the page, as in what to alert on.
func mentionedMetrics(t *testing.T) (names []string) {
	t.Helper()
	for _, name := range regexp.MustCompile(`\b(?:annals|http|log)_[a-z0-9_]*[a-z0-9]\b`).FindAllString(metricsPage(t), -1) {
		names = append(names, strings.TrimSuffix(name, "_bucket"))
	}
	return names
}

func TestTwoServersCannotShareARegistry(t *testing.T) {
	registry := prometheus.NewRegistry()
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	_, err := New(Options{DB: db, Registry: registry})
	require.NoError(t, err)
	_, err = New(Options{DB: db, Registry: registry})
	require.ErrorContains(t, err, "register metrics")
}

// answering is a store that answers with an error that a test sets, and takes a time
// that it sets.
type answering struct {
	objstore.Store
	now, took time.Duration
	err       error
}

func (a *answering) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	a.now += a.took
	if a.err != nil {
		return objstore.Object{}, a.err
	}
	return a.Store.Get(ctx, name, o)
}

func TestMetricsOfTheStore(t *testing.T) {
	inner := &answering{Store: &leftUploads{Store: mem.New(mem.Options{})}}
	store := metered.New(inner, metered.Options{Elapsed: func() time.Duration { return inner.now }})
	// The log is in another store, which is not counted: the numbers are exact.
	r := start(t, Options{Store: store})
	before := r.get("/metrics").body
	_, err := store.Put(t.Context(), "n", []byte("twelve bytes"), objstore.PutOptions{})
	require.NoError(t, err)
	_, err = store.Put(t.Context(), "n", nil, objstore.PutOptions{IfAbsent: true})
	require.ErrorIs(t, err, objstore.ErrPrecondition)
	get := func(took time.Duration, fails error) {
		inner.took, inner.err = took, fails
		_, err := store.Get(t.Context(), "n", objstore.GetOptions{Length: 6})
		require.ErrorIs(t, err, fails)
	}
	get(time.Millisecond, nil)
	get(3*time.Millisecond, nil)
	get(2*time.Minute, objstore.ErrUnavailable)
	require.NoError(t, store.Delete(t.Context(), []string{"n", "m"}))
	after := r.get("/metrics").body
	for _, line := range []string{
		`annals_store_requests_total{op="put",result="ok"} 1`,
		`annals_store_requests_total{op="put",result="precondition"} 1`,
		`annals_store_requests_total{op="get",result="ok"} 2`,
		`annals_store_requests_total{op="get",result="unavailable"} 1`,
		`annals_store_requests_total{op="delete",result="ok"} 1`,
		`annals_store_bytes_total{op="put"} 12`,
		`annals_store_bytes_total{op="get"} 12`,
		`annals_store_deleted_names_total 2`,
		`annals_store_request_seconds_bucket{op="get",le="0.0005"} 0`,
		`annals_store_request_seconds_bucket{op="get",le="0.001"} 1`,
		`annals_store_request_seconds_bucket{op="get",le="0.0025"} 1`,
		`annals_store_request_seconds_bucket{op="get",le="0.005"} 2`,
		`annals_store_request_seconds_bucket{op="get",le="60"} 2`,
		`annals_store_request_seconds_bucket{op="get",le="+Inf"} 3`,
		`annals_store_request_seconds_sum{op="get"} 120.004`,
		`annals_store_request_seconds_count{op="get"} 3`,
	} {
		require.Contains(t, after, "\n"+line+"\n")
		name, _, _ := strings.Cut(line, " ")
		require.Contains(t, before, "\n"+name+" 0\n", "all series exist from the start")
	}
}

// What the store sent is shown by the protocol's operation and the answer.
func TestMetricsOfWhatTheStoreSent(t *testing.T) {
	r := start(t, Options{Store: metered.New(&leftUploads{Store: mem.New(mem.Options{})}, metered.Options{})})
	page := r.get("/metrics").body
	for answer, n := range map[string]int{"ok": 5, "refused": 4, "throttled": 3, "failed": 2, "none": 1} {
		require.Contains(t, page, fmt.Sprintf("\nannals_store_http_requests_total{answer=%q,operation=\"PutObject\"} %d\n", answer, n))
	}
}

// A server whose store is not counted shows no counts of it.
func TestMetricsWithoutAStore(t *testing.T) {
	require.NotContains(t, start(t, Options{}).get("/metrics").body, "annals_store_")
}
