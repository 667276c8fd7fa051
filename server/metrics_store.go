package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/metered"
)

// storeCollector reads the counts of the object store when metrics are collected.
// All labels are from closed sets, and every series exists from the start, so
// that the first failure shows as an increase.
type storeCollector struct {
	store *metered.Store

	calls, seconds, bytes, deleted, age, sent *prometheus.Desc
}

func newStoreCollector(store *metered.Store) *storeCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &storeCollector{
		store:   store,
		calls:   desc("annals_store_requests_total", "Requests to the object store that ended.", "op", "result"),
		seconds: desc("annals_store_request_seconds", "Time of these requests, with all that the store repeats within one.", "op"),
		bytes:   desc("annals_store_bytes_total", "Bytes of the objects, or ranges of them, that successful requests wrote and read.", "op"),
		deleted: desc("annals_store_deleted_names_total", "Names that delete requests removed."),
		age:     desc("annals_store_answer_age_seconds", "Time since the object store answered a request as it should.", "op"),
		sent:    desc("annals_store_http_requests_total", "HTTP requests sent to S3, each repetition and each part of an upload counted.", "operation", "answer"),
	}
}

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.calls, c.seconds, c.bytes, c.deleted, c.age, c.sent} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(out chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	stats := c.store.Stats()
	for op := range metered.Op(metered.NumOps) {
		o := &stats.Ops[op]
		for result, n := range o.Results {
			counter(c.calls, n, op.String(), metered.Result(result).String())
		}
		out <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, o.AnswerAge.Seconds(), op.String())
		count, buckets := cumulative(o)
		out <- prometheus.MustNewConstHistogram(c.seconds, count, o.Took.Seconds(), buckets, op.String())
	}
	for _, op := range []metered.Op{metered.Put, metered.Get} {
		counter(c.bytes, stats.Ops[op].Bytes, op.String())
	}
	counter(c.deleted, stats.DeletedNames)
	for _, s := range stats.Sent {
		for answer, n := range s.Count {
			counter(c.sent, n, s.Operation, objstore.Answer(answer).String())
		}
	}
}

// cumulative returns the buckets as Prometheus wants them: each with all below it.
func cumulative(o *metered.OpStats) (count uint64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, metered.NumBuckets-1)
	for i, bound := range metered.Bounds() {
		count += o.Buckets[i]
		buckets[bound.Seconds()] = count
	}
	return count + o.Buckets[metered.NumBuckets-1], buckets
}
