package server

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
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
	r := start(t, Options{Registry: registry})
	r.get("/-/healthy") // labelled metrics exist once they are used
	families, err := registry.Gather()
	require.NoError(t, err)
	var have []string
	for _, f := range families {
		have = append(have, f.GetName())
		if !strings.HasPrefix(f.GetName(), "http_") && !strings.HasPrefix(f.GetName(), "log_") {
			require.True(t, strings.HasPrefix(f.GetName(), "annals_"), f.GetName())
		}
	}
	page, err := os.ReadFile("../docs/METRICS.md")
	require.NoError(t, err)
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, m[1])
	}
	require.ElementsMatch(t, have, documented)
}

func TestTwoServersCannotShareARegistry(t *testing.T) {
	registry := prometheus.NewRegistry()
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	_, err := New(Options{DB: db, Registry: registry})
	require.NoError(t, err)
	_, err = New(Options{DB: db, Registry: registry})
	require.ErrorContains(t, err, "register metrics")
}
