package main

import (
	"log/slog"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/server"
	"github.com/annalsdb/annals/trace"
)

// telemetryConfig is what the flags of serve say about what is told of operations.
type telemetryConfig struct {
	slow time.Duration // 0: no operation is slow

	// Made by start.
	tracer  trace.Tracer   // nil: nobody is told
	slowLog *trace.SlowLog // nil: there is none
}

func (c *telemetryConfig) addFlags(s *settings) {
	addFlag(s, "slow-log", "duration|off", "1s", &c.slow, parseSlowLog,
		"operations that take longer get a warning that says what they did and where the time went, at most ten in ten seconds. "+
			"Flushes, openings and retention may take ten times as long; compactions and collections any time")
}

// parseSlowLog reads a duration, or off.
func parseSlowLog(text string) (time.Duration, error) {
	if text == "off" {
		return 0, nil
	}
	return parseDuration(text)
}

// start makes what is told.
func (c *telemetryConfig) start(log *slog.Logger) {
	if c.slow > 0 {
		c.slowLog = trace.NewSlowLog(trace.SlowOptions{Threshold: c.slow, Logger: log})
		c.tracer = c.slowLog
	}
}

// store returns the options with which the store is counted.
func (c *telemetryConfig) store() metered.Options {
	return metered.Options{Tracer: c.tracer, Kind: base.KindOf}
}

// options puts what was started into the options of a server.
func (c *telemetryConfig) options(o *server.Options) {
	o.Tracer, o.SlowLog = c.tracer, c.slowLog
}
