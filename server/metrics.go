package server

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/annalsdb/annals/engine"
)

// unknownEndpoint and otherMethod are the labels of what has no route: clients
// cannot make new series.
const (
	unknownEndpoint = "other"
	otherMethod     = "other"
)

// metrics of the server. docs/METRICS.md lists them all.
type metrics struct {
	appendRecords, appendBytes prometheus.Counter
	scanRecords, scanBytes     prometheus.Counter

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge

	handler http.Handler
}

// newMetrics registers the server's metrics and those of the log.
func newMetrics(registry *prometheus.Registry, db DB, b *budget) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		appendRecords: counter("log_append_records_total", "Records of acknowledged appends."),
		appendBytes:   counter("log_append_bytes_total", "Key and value bytes of acknowledged appends."),
		scanRecords:   counter("log_records_scanned_total", "Records returned by scans."),
		scanBytes:     counter("log_bytes_scanned_total", "Key and value bytes returned by scans."),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_requests_total", Help: "Requests answered.",
		}, []string{"method", "endpoint", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_duration_seconds", Help: "Time to answer a request, including the wait of long polls.",
			Buckets: prometheus.ExponentialBucketsRange(0.0005, 60, 18),
		}, []string{"method", "endpoint"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "http_requests_in_flight", Help: "Requests under way.",
		}),
	}
	for _, c := range []prometheus.Collector{
		m.appendRecords, m.appendBytes, m.scanRecords, m.scanBytes, m.requests, m.duration, m.inFlight,
		newLogCollector(db),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annals_http_buffered_bytes", Help: "Bytes of request bodies and scan responses under way, which are bounded.",
		}, func() float64 { return float64(b.used()) }),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m, nil
}

// observe counts one answered request.
func (m *metrics) observe(method, endpoint string, status int, elapsed time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch:
	default:
		method = otherMethod
	}
	m.requests.WithLabelValues(method, endpoint, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(method, endpoint).Observe(elapsed.Seconds())
}

// serveMetrics serves GET /metrics.
func (s *Server) serveMetrics(x *exchange) error {
	x.status = http.StatusOK
	_ = x.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not supported in tests without a connection
	s.metrics.handler.ServeHTTP(x.w, x.r)
	return nil
}

// logCollector reads the log's status when metrics are collected.
type logCollector struct {
	db     DB
	values []logValue
}

type logValue struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*engine.Status) float64
}

func newLogCollector(db DB) *logCollector {
	c := &logCollector{db: db}
	for _, v := range logValues {
		c.values = append(c.values, logValue{prometheus.NewDesc(v.name, v.help, nil, nil), v.kind, v.of})
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *logCollector) Describe(out chan<- *prometheus.Desc) {
	for _, v := range c.values {
		out <- v.desc
	}
}

// Collect implements prometheus.Collector.
func (c *logCollector) Collect(out chan<- prometheus.Metric) {
	status := c.db.Status()
	for _, v := range c.values {
		out <- prometheus.MustNewConstMetric(v.desc, v.kind, v.of(&status))
	}
}

const (
	isGauge   = prometheus.GaugeValue
	isCounter = prometheus.CounterValue
)

// logValues says how each metric of the log follows from its status. Counters
// count since the log was opened.
var logValues = []struct {
	name, help string
	kind       prometheus.ValueType
	of         func(*engine.Status) float64
}{
	{"annals_epoch", "Epoch of this writer.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Epoch) }},
	{"annals_recovered_records", "Records that opening the log took from the WAL.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Recovered) }},
	{"annals_next_sequence", "Next sequence to be assigned.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Next) }},
	{"annals_durable_sequence", "Every sequence below is in the object store.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Durable) }},
	{"annals_frontier_sequence", "Every sequence below is readable.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Frontier) }},
	{"annals_flushed_sequence", "Every sequence below is in a run.", isGauge,
		func(s *engine.Status) float64 { return float64(s.FlushedEnd) }},
	{"annals_first_sequence", "Oldest sequence that the log holds.", isGauge,
		func(s *engine.Status) float64 { return float64(s.First) }},
	{"annals_manifest_version", "Version of the MANIFEST in use.", isGauge,
		func(s *engine.Status) float64 { return float64(s.ManifestVersion) }},
	{"annals_segments", "Segments of the log.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Segments) }},
	{"annals_runs", "Runs of all segments.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Runs) }},
	{"annals_tables", "Tables of all runs.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Tables) }},
	{"annals_stored_bytes", "Bytes of all tables in the object store.", isGauge,
		func(s *engine.Status) float64 { return float64(s.StoredBytes) }},
	{"annals_unflushed_bytes", "Record bytes that are not in runs.", isGauge,
		func(s *engine.Status) float64 { return float64(s.UnflushedBytes) }},
	{"annals_memtable_bytes", "Heap of all memtables.", isGauge,
		func(s *engine.Status) float64 { return float64(s.MemtableBytes) }},
	{"annals_wal_pending_objects", "WAL objects that are not yet durable.", isGauge,
		func(s *engine.Status) float64 { return float64(s.WALPending) }},
	{"annals_followers", "Reads that wait for a record.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Followers) }},
	{"annals_head_age_seconds", "Time since the request that last proved the view of the log current.", isGauge,
		func(s *engine.Status) float64 { return s.HeadAge.Seconds() }},
	{"annals_appended_records_total", "Records given a sequence, acknowledged or not.", isCounter,
		func(s *engine.Status) float64 { return float64(s.AppendedRecords) }},
	{"annals_appended_bytes_total", "Key and value bytes of these records.", isCounter,
		func(s *engine.Status) float64 { return float64(s.AppendedBytes) }},
	{"annals_appends_overloaded_total", "Appends refused because the write path was full.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Overloaded) }},
	{"annals_scanned_records_total", "Records read by scans.", isCounter,
		func(s *engine.Status) float64 { return float64(s.ScannedRecords) }},
	{"annals_scanned_bytes_total", "Key and value bytes of these records.", isCounter,
		func(s *engine.Status) float64 { return float64(s.ScannedBytes) }},
	{"annals_wal_objects_total", "WAL objects that became durable.", isCounter,
		func(s *engine.Status) float64 { return float64(s.WALObjects) }},
	{"annals_wal_bytes_total", "Bytes of these objects.", isCounter,
		func(s *engine.Status) float64 { return float64(s.WALBytes) }},
	{"annals_wal_retries_total", "PUTs of WAL objects that were repeated after a failure.", isCounter,
		func(s *engine.Status) float64 { return float64(s.WALRetries) }},
	{"annals_wal_hedges_total", "PUTs of WAL objects that were doubled because they were slow.", isCounter,
		func(s *engine.Status) float64 { return float64(s.WALHedges) }},
	{"annals_flushes_total", "Runs written from memtables.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Flushes) }},
	{"annals_flushed_bytes_total", "Bytes of the tables of these runs.", isCounter,
		func(s *engine.Status) float64 { return float64(s.FlushedBytes) }},
	{"annals_flush_failures_total", "Failed store calls of flushes; all are retried.", isCounter,
		func(s *engine.Status) float64 { return float64(s.FlushFailures) }},
	{"annals_seals_total", "Segments sealed.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Seals) }},
	{"annals_commits_total", "MANIFEST versions adopted.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Commits) }},
	{"annals_cache_hits_total", "Blocks of tables found in the memory cache.", isCounter,
		func(s *engine.Status) float64 { return float64(s.CacheHits) }},
	{"annals_cache_misses_total", "Blocks of tables not found there.", isCounter,
		func(s *engine.Status) float64 { return float64(s.CacheMisses) }},
	{"annals_table_reads_total", "Range requests for tables.", isCounter,
		func(s *engine.Status) float64 { return float64(s.TableReads) }},
	{"annals_table_read_bytes_total", "Bytes of these requests.", isCounter,
		func(s *engine.Status) float64 { return float64(s.TableReadBytes) }},
}
