package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/bench"
	"github.com/annalsdb/annals/compaction"
)

const benchCompactLong = `Builds a segment of runs of the given shape in an empty log, and merges them into one run, as the
compactor of a server or "annals compact" does. It is done several times, and the medians are reported: key and value bytes a
second and a processor second (of the whole process, while it merges), bytes read and written, memory above what was in use before.

Nothing is committed: what a merge wrote is deleted before the next one. The engine's own compactor is off.`

// defaultCompactBytes is what a segment has unless --bytes or --records says otherwise.
const defaultCompactBytes = "512MiB"

func newBenchCompact(p *process) *cobra.Command {
	o := bench.CompactOptions{}
	return newBenchCommand(p, benchCommand{
		use: "compact [flags]", short: "Measure compaction", long: benchCompactLong,
		define: func(s *settings) {
			addFlag(s, "bytes", "size", defaultCompactBytes, &o.Bytes, parseSize[int64], "key and value bytes of the segment, on average")
			addFlag(s, "records", "count", "", &o.Records, parseCount(1, 1<<40), "records of the segment, instead of --bytes")
			addFlag(s, "runs", "count", "16", &o.Runs, parseInt, fmt.Sprintf("runs that it has, %d to %d; each is made in memory", bench.MinCompactRuns, bench.MaxCompactRuns))
			addKeyFlags(s, &o.KeyOptions, 100_000)
			addFlag(s, "hot-share", "share", "0", &o.HotShare, parseShare, "share of the records, from 0 to 1, that one key has beside its part")
			addValueFlags(s, &o.ValueOptions)
			addFlag(s, "kind", "consolidate|relieve", "consolidate", &o.Kind,
				parseChoice([]string{"consolidate", "relieve"}, []compaction.Kind{compaction.Consolidate, compaction.Relieve}),
				"as a sealed segment is merged, or the runs of one that is still written to")
			addFlag(s, "parallel", "count|auto", "auto", &o.Parallel, parseParallel, "key ranges that are merged at the same time; auto: as a compactor chooses")
			addFlag(s, "times", "count", "3", &o.Times, parseInt, "how often it is merged")
		},
		check:    func(s *settings, c *benchConfig) { checkBenchCompact(s, c, &o) },
		workload: func() bench.Workload { return bench.NewCompact(o) },
	})
}

// checkBenchCompact completes the options of the engine, which only makes the runs.
func checkBenchCompact(s *settings, c *benchConfig, o *bench.CompactOptions) {
	if s.changed("server") {
		s.fault("--server: a server compacts when and what it decides, and its tables are out of reach; use --store")
		return
	}
	if s.changed("http") {
		s.fault("--http: nothing of a compaction goes over HTTP")
	}
	for _, name := range []string{"duration", "warmup"} {
		if s.changed(name) {
			s.fault("--%s: a compaction ends when it is done; use --bytes and --times", name)
		}
	}
	if s.changed("records") && s.changed("bytes") {
		s.fault("--records and --bytes: give one of them")
	}
	if s.changed("compaction") && !c.serve.engine.DisableCompaction {
		s.fault("--compaction on: the runs would be merged while they are made")
	}
	c.duration, c.warmup = 0, 0
	c.serve.engine.DisableCompaction = true
	o.StoreInMemory = c.store.private
	if len(s.faults) > 0 || len(bench.NewCompact(*o).Faults()) > 0 {
		return
	}
	if !s.changed("memtable-bytes") {
		c.serve.engine.MemtableBytes = o.MemtableBytes()
	}
	if !s.changed("max-unflushed-bytes") {
		c.serve.engine.MaxUnflushedBytes = max(c.serve.engine.MaxUnflushedBytes, o.MemtableBytes())
	}
}

// parseParallel reads a number of parts; "auto" is 0.
func parseParallel(text string) (int, error) {
	if text == "auto" {
		return 0, nil
	}
	return parseInt(text)
}
