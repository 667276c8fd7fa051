package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/metered"
)

// counters are the figures whose difference over the measured window is reported.
type counters struct {
	cpu     time.Duration // of this process
	mallocs uint64        // of this process
	store   *metered.Stats
	log     *LogCounts
}

// LogCounts are the log's own figures, of the engine or from a server's metrics.
type LogCounts struct {
	AppendedRecords uint64 `json:"appended_records"`
	AppendedBytes   uint64 `json:"appended_bytes"`
	Overloaded      uint64 `json:"appends_overloaded"`
	WALObjects      uint64 `json:"wal_objects"`
	WALBytes        uint64 `json:"wal_bytes"`
	WALRetries      uint64 `json:"wal_retries"`
	WALHedges       uint64 `json:"wal_hedges"`
	Flushes         uint64 `json:"flushes"`
	FlushedBytes    uint64 `json:"flushed_bytes"`
	Commits         uint64 `json:"commits"`
	Seals           uint64 `json:"seals"`
	Compactions     uint64 `json:"compactions"`
	CompactionIn    uint64 `json:"compaction_read_bytes"`
	CompactionOut   uint64 `json:"compaction_written_bytes"`
	TableReads      uint64 `json:"table_reads"`
	TableReadBytes  uint64 `json:"table_read_bytes"`
	CacheHits       uint64 `json:"cache_hits"`
	CacheMisses     uint64 `json:"cache_misses"`
	// The rest is how it is at the end.
	StoredBytes    uint64 `json:"stored_bytes"`
	ObsoleteBytes  uint64 `json:"obsolete_bytes"`
	CompactionDebt uint64 `json:"compaction_debt_bytes"`
	Segments       uint64 `json:"segments"`
	Runs           uint64 `json:"runs"`
	Tables         uint64 `json:"tables"`
}

// since returns the difference of all that counts, or nil if that is not known: counters that went back are those of a server that was
// started again meanwhile.
func (c *LogCounts) since(before *LogCounts) *LogCounts {
	if c == nil || before == nil {
		return nil
	}
	d := *c
	for _, m := range d.metrics() {
		if !m.gauge {
			for _, b := range before.metrics() {
				if b.name != m.name {
					continue
				}
				if *m.value < *b.value {
					return nil
				}
				*m.value -= *b.value
			}
		}
	}
	return &d
}

// metric is one figure by the name that it has in a server's metrics.
type metric struct {
	name  string
	value *uint64
	gauge bool
}

func (c *LogCounts) metrics() []metric {
	return []metric{
		{"annals_appended_records_total", &c.AppendedRecords, false},
		{"annals_appended_bytes_total", &c.AppendedBytes, false},
		{"annals_appends_overloaded_total", &c.Overloaded, false},
		{"annals_wal_objects_total", &c.WALObjects, false},
		{"annals_wal_bytes_total", &c.WALBytes, false},
		{"annals_wal_retries_total", &c.WALRetries, false},
		{"annals_wal_hedges_total", &c.WALHedges, false},
		{"annals_flushes_total", &c.Flushes, false},
		{"annals_flushed_bytes_total", &c.FlushedBytes, false},
		{"annals_commits_total", &c.Commits, false},
		{"annals_seals_total", &c.Seals, false},
		{"annals_compactions_total", &c.Compactions, false},
		{"annals_compaction_read_bytes_total", &c.CompactionIn, false},
		{"annals_compaction_written_bytes_total", &c.CompactionOut, false},
		{"annals_table_reads_total", &c.TableReads, false},
		{"annals_table_read_bytes_total", &c.TableReadBytes, false},
		{"annals_cache_hits_total", &c.CacheHits, false},
		{"annals_cache_misses_total", &c.CacheMisses, false},
		{"annals_stored_bytes", &c.StoredBytes, true},
		{"annals_obsolete_bytes", &c.ObsoleteBytes, true},
		{"annals_compaction_debt_bytes", &c.CompactionDebt, true},
		{"annals_segments", &c.Segments, true},
		{"annals_runs", &c.Runs, true},
		{"annals_tables", &c.Tables, true},
	}
}

func logCountsOf(s engine.Status) *LogCounts {
	return &LogCounts{
		AppendedRecords: s.AppendedRecords, AppendedBytes: s.AppendedBytes, Overloaded: s.Overloaded,
		WALObjects: s.WALObjects, WALBytes: s.WALBytes, WALRetries: s.WALRetries, WALHedges: s.WALHedges,
		Flushes: s.Flushes, FlushedBytes: s.FlushedBytes, Commits: s.Commits, Seals: s.Seals,
		Compactions: s.Compaction.Jobs, CompactionIn: s.Compaction.BytesIn, CompactionOut: s.Compaction.BytesOut,
		TableReads: s.TableReads, TableReadBytes: s.TableReadBytes, CacheHits: s.CacheHits, CacheMisses: s.CacheMisses,
		StoredBytes: s.StoredBytes, ObsoleteBytes: s.ObsoleteBytes, CompactionDebt: s.Compaction.Debt,
		Segments: uint64(s.Segments), Runs: uint64(s.Runs), Tables: uint64(s.Tables),
	}
}

// counters returns the figures now. Those of a server that does not tell are nil.
func (r *Run) counters() counters {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	c := counters{cpu: CPUTime(), mallocs: mem.Mallocs}
	if e := r.Embedded(); e != nil {
		stats := e.Store.Stats()
		c.store, c.log = &stats, logCountsOf(e.DB.Status())
	} else if remote, ok := r.Target.(*Remote); ok {
		ctx, cancel := context.WithTimeout(context.Background(), metricsTimeout)
		defer cancel()
		if m, err := remote.metrics(ctx); err == nil {
			c.store, c.log = m.store(), m.log()
		}
	}
	return c
}

func (c counters) since(before counters) counters {
	d := counters{cpu: c.cpu - before.cpu, mallocs: c.mallocs - before.mallocs, log: c.log.since(before.log)}
	if c.store != nil && before.store != nil && !wentBack(*c.store, *before.store) {
		s := statsSince(*c.store, *before.store)
		d.store = &s
	}
	return d
}

// wentBack reports whether a store was asked for less than before: what counts was started again.
func wentBack(s, before metered.Stats) bool {
	for op := range s.Ops {
		for i := range s.Ops[op].Results {
			if s.Ops[op].Results[i] < before.Ops[op].Results[i] {
				return true
			}
		}
	}
	return false
}

// statsSince returns what was asked of a store between two looks.
func statsSince(s, before metered.Stats) metered.Stats {
	for op := range s.Ops {
		a, b := &s.Ops[op], &before.Ops[op]
		for i := range a.Results {
			a.Results[i] -= b.Results[i]
		}
		for i := range a.Buckets {
			a.Buckets[i] -= b.Buckets[i]
		}
		a.Took -= b.Took
		a.Bytes -= b.Bytes
	}
	s.DeletedNames -= before.DeletedNames
	sent := make([]objstore.SentRequests, len(s.Sent))
	copy(sent, s.Sent)
	for i := range sent {
		for _, b := range before.Sent {
			if b.Operation == sent[i].Operation {
				for answer := range b.Count {
					sent[i].Count[answer] -= b.Count[answer]
				}
			}
		}
	}
	s.Sent = sent
	return s
}

// usage is the memory of this process now.
type usage struct{ rss, heap uint64 }

func (r *Run) usage() usage {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return usage{rss: residentBytes(), heap: sample[0].Value.Uint64()}
}

const (
	metricsTimeout = 5 * time.Second
	maxMetrics     = 8 << 20 // bytes of a server's metrics
)

// series are the figures of a server's /metrics, by name with labels.
type series map[string]float64

// metrics asks the server for its metrics.
func (r *Remote) metrics(ctx context.Context) (series, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	if r.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.Token)
	}
	resp, err := r.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get metrics: %s", resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	if err != nil {
		return nil, err
	}
	return parseMetrics(string(text)), nil
}

// parseMetrics reads the lines of the Prometheus text format that are numbers.
func parseMetrics(text string) series {
	m := make(series)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			m[line[:at]] = v
		}
	}
	return m
}

// log returns the log's figures, or nil if these are not annals's metrics.
func (m series) log() *LogCounts {
	c := &LogCounts{}
	for _, of := range c.metrics() {
		v, ok := m[of.name]
		if !ok {
			return nil
		}
		*of.value = uint64(v)
	}
	return c
}

// store returns what was asked of the server's store, or nil if it does not tell.
func (m series) store() *metered.Stats {
	var s metered.Stats
	for op := range metered.Op(metered.NumOps) {
		for result := range metered.Result(metered.NumResults) {
			v, ok := m[fmt.Sprintf(`annals_store_requests_total{op=%q,result=%q}`, op, result)]
			if !ok {
				return nil
			}
			s.Ops[op].Results[result] = uint64(v)
		}
		s.Ops[op].Bytes = uint64(m[fmt.Sprintf(`annals_store_bytes_total{op=%q}`, op)])
		s.Ops[op].Took = time.Duration(m[fmt.Sprintf(`annals_store_request_seconds_sum{op=%q}`, op)] * float64(time.Second))
	}
	s.DeletedNames = uint64(m["annals_store_deleted_names_total"])
	s.Sent = m.sent()
	return &s
}

// sent returns the requests that the server sent to S3, if it did.
func (m series) sent() (all []objstore.SentRequests) {
	const name, answers = `annals_store_http_requests_total{answer="`, objstore.NumAnswers
	at := make(map[string]int)
	for text, v := range m {
		labels, ok := strings.CutPrefix(text, name)
		answer, operation, ok2 := strings.Cut(labels, `",operation="`)
		if !ok || !ok2 {
			continue
		}
		operation = strings.TrimSuffix(operation, `"}`)
		i, known := at[operation]
		if !known {
			i, at[operation] = len(all), len(all)
			all = append(all, objstore.SentRequests{Operation: operation})
		}
		for a := range objstore.Answer(answers) {
			if a.String() == answer {
				all[i].Count[a] = uint64(v)
			}
		}
	}
	return all
}
