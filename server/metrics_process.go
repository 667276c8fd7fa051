package server

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/annalsdb/annals/trace"
)

// registerProcess registers what is known of the process: what was built, the Go runtime, and what the system
// knows. A registry of the caller's may have the last two.
func registerProcess(registry *prometheus.Registry, s *Server) error {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "annals_build_info", Help: "1; its labels say what was built.",
		ConstLabels: prometheus.Labels{"version": s.opts.Version, "go": runtime.Version()},
	})
	build.Set(1)
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "annals_ready", Help: "1 if requests should be sent here, as /-/ready says, else 0.",
	}, s.readyValue)
	for _, c := range []prometheus.Collector{build, ready} {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		var there prometheus.AlreadyRegisteredError
		if err := registry.Register(c); err != nil && !errors.As(err, &there) {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// readyValue is 1 or 0. It asks the store where /-/ready does, but not for as long: a store that hangs must not
// take the metrics away.
func (s *Server) readyValue() float64 {
	ctx, cancel := context.WithTimeout(context.Background(), statusReadyTimeout)
	defer cancel()
	return boolValue(s.readiness(ctx) == nil)
}

// tracingCollector reads the counts of slow operations and of spans when metrics are collected.
type tracingCollector struct {
	log   *trace.SlowLog          // nil: no counts
	spans func() trace.SpanCounts // nil: no counts

	slow, sent, queued *prometheus.Desc
}

func newTracingCollector(log *trace.SlowLog, spans func() trace.SpanCounts) *tracingCollector {
	return &tracingCollector{
		log: log, spans: spans,
		slow:   prometheus.NewDesc("annals_slow_operations_total", "Operations that took longer than --slow-log allows, logged or not.", []string{"operation"}, nil),
		sent:   prometheus.NewDesc("annals_traces_spans_total", "Spans of traces, by what came of them.", []string{"result"}, nil),
		queued: prometheus.NewDesc("annals_traces_queued_spans", "Spans that wait to be sent.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *tracingCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.slow
	out <- c.sent
	out <- c.queued
}

// Collect implements prometheus.Collector.
func (c *tracingCollector) Collect(out chan<- prometheus.Metric) {
	if c.log != nil {
		for op := range trace.Op(trace.NumOps) {
			if c.log.Limit(op) > 0 {
				out <- prometheus.MustNewConstMetric(c.slow, prometheus.CounterValue, float64(c.log.Slow(op)), op.String())
			}
		}
	}
	if c.spans == nil {
		return
	}
	n := c.spans()
	for result, count := range map[string]uint64{"exported": n.Exported, "failed": n.Failed, "dropped": n.Dropped} {
		out <- prometheus.MustNewConstMetric(c.sent, prometheus.CounterValue, float64(count), result)
	}
	out <- prometheus.MustNewConstMetric(c.queued, prometheus.GaugeValue, float64(n.Queued))
}
