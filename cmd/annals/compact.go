package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/metered"
)

const compactLong = `Compacts a log from a process of its own, which may run on another machine and needs only the store: for
a server that is started with --compaction off. Any number may run: one works, and another takes over within
about a minute when it is gone. It runs until SIGTERM or SIGINT, and then exits with status 0; what it was
doing is done again by the next one. It logs a line for each job that it finished, and when it stops the
requests and bytes that it took.

Its memory stays near 256 MiB, plus twice the largest value, however large a segment is. The environment variable
GOMEMLIMIT replaces that figure: it is where Go's garbage collector begins to work harder.

--segment-bytes and --retention should be those of the server. As with serve every flag is also a variable,
ANNALS_SEGMENT_BYTES, and a line of the YAML file that --config names.`

// compactMemory is the process's soft limit: the records that are merged are garbage at once, so
// the collector could let the heap grow to twice what is in use, for nothing.
const compactMemory = 240 << 20

type compactConfig struct {
	store     storeURL
	options   engine.CompactOptions
	logLevel  slog.Level
	logFormat string
	json      bool
}

func newCompact(p *process) *cobra.Command {
	var c compactConfig
	cmd := &cobra.Command{Use: "compact [flags]", Short: "Compact a log from a process of its own", Long: compactLong}
	define := func(s *settings) {
		addStoreFlag(s, &c.store)
		addFlag(s, "segment-bytes", "size", formatSize(engine.DefaultSegmentBytes), &c.options.SegmentBytes, parseSize[int64],
			"size up to which small sealed neighbours are merged into one segment")
		addFlag(s, "retention", "duration", "", &c.options.Retention, parseDuration,
			"a merged segment spans at most a tenth of it; nothing is dropped here (default none: 31 days)")
		addLogFlags(s, &c.logLevel, &c.logFormat)
		addConfigFlags(s)
		s.withVariables()
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object when it stops: what it asked of the store")
	}
	check := func(s *settings) {
		if c.options.Retention > 0 && c.options.Retention < time.Second {
			s.fault("--retention is %v; it must be at least 1s", c.options.Retention)
		}
	}
	return newCommand(p, cmd, nil, define, check, func(*settings, []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if os.Getenv("GOMEMLIMIT") == "" {
			debug.SetMemoryLimit(compactMemory)
		}
		inner, err := c.store.openExisting(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil // stopped before anything was done
			}
			return failf("%w", err)
		}
		store := metered.New(inner, metered.Options{})
		c.options.Logger = newLogger(p.stderr, c.logLevel, c.logFormat)
		c.options.Logger.Info("standing by", "store", store.String())
		if err := engine.Compact(ctx, store, c.options); err != nil {
			return failf("%w", err)
		}
		stats := store.Stats()
		if c.json {
			if err := printJSONLine(p.stdout, resultOf(stats)); err != nil {
				return failf("write output: %w", err)
			}
		}
		c.options.Logger.Info("stopped", "bytes_read", stats.Ops[metered.Get].Bytes, "bytes_written", stats.Ops[metered.Put].Bytes,
			"requests", requestsOf(stats))
		return nil
	})
}

// compactResult is what a compactor asked of the store, for --json.
type compactResult struct {
	BytesRead    uint64            `json:"bytesRead"`
	BytesWritten uint64            `json:"bytesWritten"`
	Requests     map[string]uint64 `json:"requests"` // by operation
	Failed       uint64            `json:"requestsFailed"`
}

func resultOf(st metered.Stats) compactResult {
	r := compactResult{
		BytesRead: st.Ops[metered.Get].Bytes, BytesWritten: st.Ops[metered.Put].Bytes,
		Requests: make(map[string]uint64), Failed: failedOf(st),
	}
	for op := range metered.Op(metered.NumOps) {
		r.Requests[op.String()] = st.Ops[op].Calls()
	}
	return r
}

// failedOf counts the requests that failed.
func failedOf(st metered.Stats) (failed uint64) {
	for op := range metered.Op(metered.NumOps) {
		for _, r := range []metered.Result{metered.Denied, metered.NoBucket, metered.Unavailable, metered.Timeout, metered.Failed} {
			failed += st.Ops[op].Results[r]
		}
	}
	return failed
}

// requestsOf summarises what was asked of a store: requests by operation, how many of
// them failed, and what was really sent, where that is known.
func requestsOf(st metered.Stats) slog.Value {
	var attrs []slog.Attr
	for op := range metered.Op(metered.NumOps) {
		attrs = append(attrs, slog.Uint64(op.String(), st.Ops[op].Calls()))
	}
	attrs = append(attrs, slog.Uint64("failed", failedOf(st)))
	if st.Sent != nil {
		var sent uint64
		for _, s := range st.Sent {
			for _, n := range s.Count {
				sent += n
			}
		}
		attrs = append(attrs, slog.Uint64("sent", sent))
	}
	return slog.GroupValue(attrs...)
}
