package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/bench"
)

const benchPollLong = `One consumer for each key polls at a cadence of its own, while records are appended at a rate: it reads from its cursor on, and
again at once as long as a page is full. Some are offline for a while, and come back far behind.

Reported are latencies from when each poll was due, and what polls cost in GETs, by how far behind their cursors were: since when
the log had gone on behind them. GETs are those of the polls alone, but with --http or --server.

Each value carries the number that its record has among those of its key: a consumer must see all of them, in order, each once.
Else the run fails.

With --behind the cursors and cadences are left aside: each poll reads a key that is drawn, from where the log ended that long ago.
With 1s all are at the tip, whatever the number of keys.`

func newBenchPoll(p *process) *cobra.Command {
	var o bench.PollOptions
	return newBenchCommand(p, benchCommand{
		use: "poll [flags]", short: "Measure consumers that poll", long: benchPollLong,
		define: func(s *settings) {
			addBatchFlags(s, &o.BatchOptions, 1_000_000)
			addFlag(s, "preload", "count", "0", &o.Preload, parseCount(0, 1<<40), "records appended before anybody polls, of one key after the other")
			addFlag(s, "rate", "size|none", "25MB", &o.Rate, parseRateOrNone, "key and value bytes appended in a second meanwhile")
			addArrivalsFlag(s, &o.Arrivals)
			addFlag(s, "appenders", "count", "256", &o.Appenders, parseInt,
				"how many append at the same time, each one batch, with keys of its own")
			addFlag(s, "ack", "durable|memory", "durable", &o.Ack, durability, "what an append waits for")
			addFlag(s, "polls-per-second", "number", "2000", &o.PollsPerSecond, parseNumber, "polls of all consumers together")
			addFlag(s, "cadences", "zipf|even", string(bench.ZipfCadences), &o.Cadences,
				parseChoice([]string{"zipf", "even"}, []bench.Cadences{bench.ZipfCadences, bench.EvenCadences}),
				"how often each polls; zipf: the second half as often as the first, the third a third; even: all as often")
			addFlag(s, "fastest", "duration", "100ms", &o.Fastest, parseDuration, "no consumer polls more often")
			addFlag(s, "offline", "share", "0", &o.Offline, parseShare, "how many of the consumers are offline at any time, such as 0.1 or 10%")
			addFlag(s, "offline-for", "duration", "30s", &o.OfflineFor, parseDuration, "how long each of these is")
			addFlag(s, "behind", "duration", "", &o.Behind, parseDurationOrNone,
				"instead of cursors and cadences: each poll reads a drawn key from where the log ended that long ago (default: cursors)")
			addFlag(s, "limit", "count", "100", &o.Limit, parseInt, "records of a page")
			addFlag(s, "pollers", "count", "256", &o.Pollers, parseInt, "polls that may be under way at the same time")
		},
		check: func(s *settings, _ *benchConfig) {
			if !s.changed("behind") {
				o.Behind = -1
				return
			}
			for _, name := range []string{"cadences", "fastest", "offline", "offline-for"} {
				if s.changed(name) {
					s.fault("--behind and --%s exclude each other", name)
				}
			}
		},
		workload: func() bench.Workload { return bench.NewPoll(o) },
	})
}

// parseRateOrNone reads bytes a second; "none" is 0.
func parseRateOrNone(text string) (float64, error) {
	if text == "none" {
		return 0, nil
	}
	n, err := parseSize[int64](text)
	return float64(n), err
}

// parseNumber reads a number above 0.
func parseNumber(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0) || f > float64(time.Second) { // more than one a nanosecond is nothing to wait for
		return 0, fmt.Errorf("%q is not a number above 0", text)
	}
	return f, nil
}
