package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/bench"
)

const benchScanLong = `Builds a log, of many keys and of one large one, or takes the one that is there (--reuse), and then measures reads of it:

  cold    the first page of keys that nobody read since the log was opened, each once
  warm    the first page of a few keys, that were read before
  replay  all records of the large key, one reader
  last    the newest records of keys
  count   how many records keys have
  keys    pages of the keys that there are

Each but warm begins with a log that was just opened, with empty caches (not with --server), and --duration is that of each; a
replay goes on to its end. Cold reads share the metadata of tables, so that the first ones cost more: the timeline of --json shows it.`

func newBenchScan(p *process) *cobra.Command {
	var o bench.ReadsOptions
	var closed bool
	return newBenchCommand(p, benchCommand{
		use: "scan [flags]", short: "Measure reads: cold, warm, deep replay, last, count, keys", long: benchScanLong,
		define: func(s *settings) {
			addBatchFlags(s, &o.BatchOptions, 100_000)
			addFlag(s, "mode", "list", "all", &o.Modes, parseModes, "what is measured, separated by commas, or all")
			addFlag(s, "records", "count", "1000000", &o.Records, parseCount(1, 1<<40), "records of all keys together, beside the large one")
			addFlag(s, "hot-bytes", "size", "256MiB", &o.HotBytes, parseSize[int64], "bytes of the large key's values, spread over the whole log")
			addFlag(s, "appenders", "count", "64", &o.Appenders, parseInt, "batches under way while the log is built")
			s.flags.BoolVar(&o.Reuse, "reuse", false, "append nothing: the log is there from a run before, with the same --keys")
			s.flags.BoolVar(&o.Consolidate, "consolidate", false, "wait until compaction has nothing left to do")
			addFlag(s, "ops-per-second", "number", "200", &o.OpsPerSecond, parseNumber, "reads that are due in a second, of each mode but replay")
			s.flags.BoolVar(&closed, "closed", false, "instead of that: each reader reads again when its read before has ended, which hides stalls")
			addArrivalsFlag(s, &o.Arrivals)
			addFlag(s, "readers", "count", "64", &o.Readers, parseInt, "reads that may be under way at the same time")
			addFlag(s, "limit", "count", "100", &o.Limit, parseInt, "records of a cold or warm read")
			addFlag(s, "last", "count", "10", &o.Last, parseInt, "records of a read of the newest")
			addFlag(s, "page", "count", "1000", &o.Page, parseInt, "keys of a page")
			addFlag(s, "replays", "count", "3", &o.Replays, parseInt, "how often the large key is read")
		},
		check: func(s *settings, c *benchConfig) {
			if !s.changed("warmup") {
				c.warmup = 0 // reads of a log that was just opened are what is measured
			}
			for _, name := range []string{"ops-per-second", "arrivals"} {
				if closed && s.changed(name) {
					s.fault("--closed and --%s exclude each other", name)
				}
			}
			if closed {
				o.OpsPerSecond = 0
			}
			if c.simulate {
				o.StoreBandwidth = float64(c.simulated.Bandwidth)
			}
			if o.Consolidate && c.server.server != "" {
				s.fault("--consolidate needs --store: a running server's compaction cannot be waited for")
			}
			if o.Consolidate && c.serve.engine.DisableCompaction {
				s.fault("--consolidate with --compaction off would wait for ever")
			}
		},
		workload: func() bench.Workload { return bench.NewReads(o) },
	})
}

// parseModes reads a list of modes.
func parseModes(text string) ([]bench.ReadMode, error) {
	if text == "all" {
		return slices.Clone(bench.ReadModes), nil
	}
	var modes []bench.ReadMode
	for name := range strings.SplitSeq(text, ",") {
		modes = append(modes, bench.ReadMode(strings.TrimSpace(name)))
	}
	return modes, nil
}
