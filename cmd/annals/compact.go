package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/engine"
)

const compactLong = `Compacts a log from a process of its own, which may run on another machine and needs only the store: for
a server that is started with --compaction off. Any number may run: one works, and another takes over within
about a minute when it is gone. It runs until SIGTERM or SIGINT, and then exits with status 0; what it was
doing is done again by the next one.

--segment-bytes and --retention should be those of the server.`

type compactConfig struct {
	store     storeURL
	options   engine.CompactOptions
	logLevel  slog.Level
	logFormat string
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
		for _, name := range []string{"segment-bytes", "retention", "log-level", "log-format"} {
			s.withVariable(name)
		}
	}
	check := func(s *settings) {
		if c.options.Retention > 0 && c.options.Retention < time.Second {
			s.fault("--retention is %v; it must be at least 1s", c.options.Retention)
		}
	}
	return newCommand(p, cmd, nil, define, check, func(*settings, []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		store, err := c.store.open(ctx)
		if err != nil {
			return failf("%w", err)
		}
		c.options.Logger = newLogger(p.stderr, c.logLevel, c.logFormat)
		c.options.Logger.Info("standing by", "store", store.String())
		if err := engine.Compact(ctx, store, c.options); err != nil {
			return failf("%w", err)
		}
		c.options.Logger.Info("stopped")
		return nil
	})
}
