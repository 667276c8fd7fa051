package main

import (
	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/bench"
)

const benchIngestLong = `Appends batches at a rate, or as fast as the log takes them, and reports the latency from when each was due to when it was
acknowledged.

Appends that are refused because the log is overloaded are sent again, and counted; their latency goes on.`

func newBenchIngest(p *process) *cobra.Command {
	var o bench.IngestOptions
	return newBenchCommand(p, benchCommand{
		use: "ingest [flags]", short: "Measure appends", long: benchIngestLong,
		define: func(s *settings) {
			addBatchFlags(s, &o.BatchOptions, 100_000)
			addFlag(s, "appenders", "count", "16", &o.Appenders, parseInt, "how many append at the same time")
			addFlag(s, "in-flight", "size", "4MiB", &o.InFlight, parseSize[int64],
				"bytes that one appender has unacknowledged at most, in up to 1024 appends at the same time; one may always be under way")
			addRateFlags(s, "20MB", &o.Rate, &o.Arrivals)
			addFlag(s, "ack", "durable|memory", "durable", &o.Ack, durability, "what an append waits for")
			addFlag(s, "bytes", "size", "", &o.Total, parseSize[int64], "end after that many bytes; --duration and --warmup then count only if they are given (default: none)")
		},
		check: func(s *settings, c *benchConfig) {
			checkArrivals(s, o.Rate)
			if o.Total == 0 {
				return
			}
			if !s.changed("duration") {
				c.duration = 0
			}
			if !s.changed("warmup") {
				c.warmup = 0
			}
		},
		workload: func() bench.Workload { return bench.NewIngest(o) },
	})
}
