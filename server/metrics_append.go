package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// appendBounds are the buckets of append latencies, in seconds: from a local disk to the timeout.
var appendBounds = []float64{
	0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
	0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5, 10, 30,
}

func newAppendSeconds() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "annals_http_append_seconds", Help: "Time until an append was durable, of acknowledged ones that waited for that.",
		Buckets: appendBounds,
	})
}

// acknowledged counts an append that is about to be acknowledged.
func (m *metrics) acknowledged(ack engine.Durability, elapsed time.Duration) {
	m.appends.Inc()
	if ack != engine.Memory {
		m.appendSeconds.Observe(elapsed.Seconds())
	}
}

// ingest returns what the metrics have counted of appends.
func (m *metrics) ingest() wire.IngestCounters {
	return wire.IngestCounters{
		Appends: uint64(read(m.appends).GetCounter().GetValue()),
		Records: uint64(read(m.appendRecords).GetCounter().GetValue()),
		Bytes:   uint64(read(m.appendBytes).GetCounter().GetValue()),
	}
}

// appendLatency returns the latencies of durable appends.
func (m *metrics) appendLatency() wire.Histogram {
	h := read(m.appendSeconds).GetHistogram()
	out := wire.Histogram{LE: appendBounds, Counts: make([]uint64, 0, len(appendBounds)+1)}
	for _, b := range h.GetBucket() {
		out.Counts = append(out.Counts, b.GetCumulativeCount())
	}
	out.Counts = append(out.Counts, h.GetSampleCount())
	return out
}

// read returns a metric's value as Prometheus would collect it.
func read(m prometheus.Metric) *dto.Metric {
	out := new(dto.Metric)
	if err := m.Write(out); err != nil {
		panic("server: read a metric: " + err.Error()) // of a counter or a histogram: not possible
	}
	return out
}
