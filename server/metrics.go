package server

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/metered"
)

// unknownEndpoint and otherMethod are the labels of what has no route: clients
// cannot make new series.
const (
	unknownEndpoint = "other"
	otherMethod     = "other"

	metricsTimeout = 30 * time.Second // to take the answer
)

// metrics of the server. docs/METRICS.md lists them all.
type metrics struct {
	appends, appendRecords, appendBytes prometheus.Counter
	appendSeconds                       prometheus.Histogram // of durable ones
	scanRecords, scanBytes              prometheus.Counter
	cursorsSet                          prometheus.Counter

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge

	followedRecords, followedBytes, followReads prometheus.Counter
	followersCut, followersRefused              prometheus.Counter

	refused *prometheus.CounterVec // by refusal

	handler http.Handler
}

// newMetrics registers the server's metrics, those of the log, and those of the store
// unless it is nil.
func newMetrics(registry *prometheus.Registry, s *Server, store *metered.Store) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		appends:       counter("annals_http_appends_total", "Acknowledged appends."),
		appendSeconds: newAppendSeconds(),
		appendRecords: counter("log_append_records_total", "Records of acknowledged appends."),
		appendBytes:   counter("log_append_bytes_total", "Key and value bytes of acknowledged appends."),
		scanRecords:   counter("log_records_scanned_total", "Records returned by scans."),
		scanBytes:     counter("log_bytes_scanned_total", "Key and value bytes returned by scans."),
		cursorsSet:    counter("annals_http_cursors_set_total", "Cursors of answered requests that set them, moved or not."),
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
		followedRecords:  counter("annals_http_followed_records_total", "Records sent on streams: event streams and POST /follow."),
		followedBytes:    counter("annals_http_followed_bytes_total", "Key and value bytes of these records."),
		followReads:      counter("annals_http_follow_reads_total", "Reads of the log that found these records."),
		followersCut:     counter("annals_http_followers_cut_total", "Streams cut off because their clients did not take what was sent."),
		followersRefused: counter("annals_http_followers_refused_total", "Requests refused because too many wait for records."),
	}
	m.refused = newRefused()
	s.following.refused = m.followersRefused
	collectors := []prometheus.Collector{
		m.appends, m.appendSeconds, m.appendRecords, m.appendBytes, m.scanRecords, m.scanBytes, m.cursorsSet, m.requests, m.duration, m.inFlight,
		m.followedRecords, m.followedBytes, m.followReads, m.followersCut, m.followersRefused, m.refused,
		newLogCollector(s.db), newFollowingCollector(s.following), newTracingCollector(s.opts.SlowLog, s.opts.Spans),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annals_http_buffered_bytes", Help: "Bytes of request bodies and responses under way, which are bounded.",
		}, func() float64 { return float64(s.bodies.used() + s.responses.used()) }),
	}
	collectors = append(collectors, newSecurityCollectors(s)...)
	if store != nil {
		collectors = append(collectors, newStoreCollector(store))
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m, registerProcess(registry, s)
}

// boundedMethod returns the method, or otherMethod where a client could have invented it.
func boundedMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch:
		return method
	}
	return otherMethod
}

// observe counts one answered request.
func (m *metrics) observe(method, endpoint string, status int, elapsed time.Duration) {
	method = boundedMethod(method)
	m.requests.WithLabelValues(method, endpoint, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(method, endpoint).Observe(elapsed.Seconds())
}

// serveMetrics serves GET /metrics.
func (s *Server) serveMetrics(x *exchange) error {
	x.status = http.StatusOK
	_ = x.control.SetWriteDeadline(time.Now().Add(metricsTimeout)) // not supported in tests without a connection
	s.metrics.handler.ServeHTTP(x.w, x.r)
	return nil
}

// logCollector reads the log's status when metrics are collected.
type logCollector struct {
	db       DB
	values   []logValue
	troubles *prometheus.Desc
}

type logValue struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*engine.Status) float64
}

func newLogCollector(db DB) *logCollector {
	c := &logCollector{db: db, troubles: newTroubleDesc()}
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
	out <- c.troubles
}

// Collect implements prometheus.Collector.
func (c *logCollector) Collect(out chan<- prometheus.Metric) {
	status := c.db.Status()
	for _, v := range c.values {
		out <- prometheus.MustNewConstMetric(v.desc, v.kind, v.of(&status))
	}
	collectTroubles(out, c.troubles, &status)
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
	{"annals_groups", "Groups of consolidated segments, each with one index.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Groups) }},
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
	{"annals_replica_lag_sequences", "Of a replica: sequences that are known to exist and not yet readable here.", isGauge,
		func(s *engine.Status) float64 { return float64(s.LagSequences) }},
	{"annals_replica_lag_seconds", "Of a replica: time since all that was there was readable.", isGauge,
		func(s *engine.Status) float64 { return s.LagTime.Seconds() }},
	{"annals_replica_wal_polls_total", "Requests of a replica for WAL objects.", isCounter,
		func(s *engine.Status) float64 { return float64(s.WALPolls) }},
	{"annals_replica_wal_objects_total", "Of these requests, those that found an object.", isCounter,
		func(s *engine.Status) float64 { return float64(s.WALObjectsRead) }},
	{"annals_replica_manifest_polls_total", "Requests of a replica for MANIFEST.", isCounter,
		func(s *engine.Status) float64 { return float64(s.ManifestPolls) }},
	{"annals_replica_jumps_total", "Times that a replica went on behind WAL objects that were collected.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Jumps) }},
	{"annals_head_age_seconds", "Time since the request that last proved the view of the log current.", isGauge,
		func(s *engine.Status) float64 { return s.HeadAge.Seconds() }},
	{"annals_appended_records_total", "Records given a sequence, acknowledged or not.", isCounter,
		func(s *engine.Status) float64 { return float64(s.AppendedRecords) }},
	{"annals_appended_bytes_total", "Key and value bytes of these records.", isCounter,
		func(s *engine.Status) float64 { return float64(s.AppendedBytes) }},
	{"annals_appends_overloaded_total", "Appends refused because the write path was full.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Overloaded) }},
	{"annals_append_conflicts_total", "Appends refused because the log was not as they expected.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Conflicts) }},
	{"annals_append_repeats_total", "Appends of producers that were answered as before.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Repeats) }},
	{"annals_consumers", "Consumers that have cursors.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Consumers) }},
	{"annals_cursors", "Cursors of all consumers.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Cursors) }},
	{"annals_producers", "Producers whose last appends are known.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Producers) }},
	{"annals_state_bytes", "Heap of cursors and producers.", isGauge,
		func(s *engine.Status) float64 { return float64(s.StateBytes) }},
	{"annals_state_stored_bytes", "Bytes of the objects that hold them.", isGauge,
		func(s *engine.Status) float64 { return float64(s.StateSize) }},
	{"annals_state_objects_total", "Objects with cursors and producers written by flushes.", isCounter,
		func(s *engine.Status) float64 { return float64(s.StateObjects) }},
	{"annals_state_objects_bytes_total", "Bytes of these objects.", isCounter,
		func(s *engine.Status) float64 { return float64(s.StateObjectBytes) }},
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
	{"annals_cache_bytes", "Bytes of decoded blocks in the memory cache.", isGauge,
		func(s *engine.Status) float64 { return float64(s.CacheBytes) }},
	{"annals_cache_hits_total", "Blocks of tables found in the memory cache.", isCounter,
		func(s *engine.Status) float64 { return float64(s.CacheHits) }},
	{"annals_cache_misses_total", "Blocks of tables not found there.", isCounter,
		func(s *engine.Status) float64 { return float64(s.CacheMisses) }},
	{"annals_table_reads_total", "Range requests for tables.", isCounter,
		func(s *engine.Status) float64 { return float64(s.TableReads) }},
	{"annals_table_read_bytes_total", "Bytes of these requests.", isCounter,
		func(s *engine.Status) float64 { return float64(s.TableReadBytes) }},
	{"annals_table_read_seconds_total", "Time of these requests together.", isCounter,
		func(s *engine.Status) float64 { return s.TableReadTime.Seconds() }},
	{"annals_table_read_hedges_total", "Of these requests, those sent because an earlier one was slow.", isCounter,
		func(s *engine.Status) float64 { return float64(s.TableReadHedges) }},
	{"annals_disk_cache_bytes", "Bytes that the files of the disk cache occupy.", isGauge,
		func(s *engine.Status) float64 { return float64(s.DiskCacheBytes) }},
	{"annals_disk_cache_hits_total", "Ranges of tables found in the disk cache.", isCounter,
		func(s *engine.Status) float64 { return float64(s.DiskCacheHits) }},
	{"annals_disk_cache_misses_total", "Ranges of tables not found there.", isCounter,
		func(s *engine.Status) float64 { return float64(s.DiskCacheMisses) }},
	{"annals_disk_cache_errors_total", "Files of the disk cache that were damaged, or could not be read, written or removed; none makes a read fail.", isCounter,
		func(s *engine.Status) float64 { return float64(s.DiskCacheErrors) }},
	{"annals_disk_cache_evictions_total", "Ranges evicted from the disk cache.", isCounter,
		func(s *engine.Status) float64 { return float64(s.DiskCacheEvictions) }},
	{"annals_disk_cache_dropped_total", "Ranges not written to the disk cache because it was too slow, or had failed lately.", isCounter,
		func(s *engine.Status) float64 { return float64(s.DiskCacheDropped) }},
	{"annals_obsolete_objects", "Objects that are no longer part of the log and are kept for their grace.", isGauge,
		func(s *engine.Status) float64 { return float64(s.ObsoleteObjects) }},
	{"annals_obsolete_bytes", "Bytes of these objects.", isGauge,
		func(s *engine.Status) float64 { return float64(s.ObsoleteBytes) }},
	{"annals_compactor_working", "1 while this process is the log's compactor, else 0.", isGauge,
		func(s *engine.Status) float64 { return boolValue(s.Compaction.Working) }},
	{"annals_compactor_epoch", "The compactor epoch that this process took last.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Compaction.Epoch) }},
	{"annals_compactions_total", "Compactions finished.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Compaction.Jobs) }},
	{"annals_compaction_failures_total", "Compactions that failed; all are repeated.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Compaction.Failures) }},
	{"annals_compaction_read_bytes_total", "Stored bytes that finished compactions read.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Compaction.BytesIn) }},
	{"annals_compaction_written_bytes_total", "Stored bytes that finished compactions wrote.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Compaction.BytesOut) }},
	{"annals_compaction_records_total", "Records that finished compactions rewrote.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Compaction.Records) }},
	{"annals_compaction_planned_jobs", "Compactions that the state of the log calls for now, whoever does them.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Compaction.Planned) }},
	{"annals_compaction_debt_bytes", "Key and value bytes that these compactions would rewrite.", isGauge,
		func(s *engine.Status) float64 { return float64(s.Compaction.Debt) }},
	{"annals_segments_dropped_total", "Segments that retention dropped.", isCounter,
		func(s *engine.Status) float64 { return float64(s.SegmentsDropped) }},
	{"annals_bytes_dropped_total", "Key and value bytes of these segments.", isCounter,
		func(s *engine.Status) float64 { return float64(s.BytesDropped) }},
	{"annals_retention_failures_total", "Looks of the retention that failed; all are repeated.", isCounter,
		func(s *engine.Status) float64 { return float64(s.RetentionFailures) }},
	{"annals_gc_rounds_total", "Rounds of the garbage collector.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Collections) }},
	{"annals_gc_sweeps_total", "Walks over the whole bucket for what was left unfinished that came to their end.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Sweeps) }},
	{"annals_gc_failures_total", "Steps of rounds that failed; all are repeated.", isCounter,
		func(s *engine.Status) float64 { return float64(s.CollectFailures) }},
	{"annals_gc_obsolete_deleted_total", "Obsolete objects deleted after their grace.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Collected.Obsolete) }},
	{"annals_gc_obsolete_deleted_bytes_total", "Bytes of these objects.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Collected.Bytes) }},
	{"annals_gc_wal_deleted_total", "WAL objects deleted because replay does not need them.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Collected.WALObjects) }},
	{"annals_gc_orphans_deleted_total", "Objects of passed epochs deleted that never became part of the log.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Collected.Orphans) }},
	{"annals_gc_probes_deleted_total", "Left-over objects of conditional-write tests deleted.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Collected.Probes) }},
	{"annals_gc_uploads_aborted_total", "Unfinished multipart uploads aborted.", isCounter,
		func(s *engine.Status) float64 { return float64(s.Collected.Uploads) }},
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
