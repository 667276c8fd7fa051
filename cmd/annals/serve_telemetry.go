package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/server"
	"github.com/annalsdb/annals/telemetry"
	"github.com/annalsdb/annals/trace"
)

// telemetryConfig is what the flags of serve say about what is told of operations.
type telemetryConfig struct {
	slow   time.Duration    // 0: no operation is slow
	export telemetry.Config // of traces, from the OTEL_ variables

	// Made by start.
	tracer  trace.Tracer      // nil: nobody is told
	slowLog *trace.SlowLog    // nil: there is none
	traces  *telemetry.Traces // nil: none are sent
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

// check reads the variables of OpenTelemetry, which have no flags.
func (c *telemetryConfig) check(s *settings, environ []string) {
	var faults []error
	c.export, faults = telemetry.Read(func(name string) string {
		for _, entry := range slices.Backward(environ) { // the last one counts
			if value, ok := strings.CutPrefix(entry, name+"="); ok {
				return value
			}
		}
		return ""
	})
	for _, fault := range faults {
		s.fault("%s", strings.ReplaceAll(fault.Error(), "\n", "; "))
	}
}

// start makes what is told of operations; role is that of the process.
func (c *telemetryConfig) start(ctx context.Context, log *slog.Logger, role string) error {
	var tracers []trace.Tracer
	if c.slow > 0 {
		c.slowLog = trace.NewSlowLog(trace.SlowOptions{Threshold: c.slow, Logger: log})
		tracers = append(tracers, c.slowLog)
	}
	if c.export.On() {
		var err error
		c.traces, err = telemetry.Start(ctx, c.export, telemetry.Options{Version: version(), Role: role, Logger: log})
		if err != nil {
			return err
		}
		tracers = append(tracers, c.traces)
	}
	c.tracer = trace.Join(tracers...)
	return nil
}

// lastTraces bounds how long the end of a process waits for the collector of traces.
const lastTraces = 5 * time.Second

// stop sends the last traces, within what is left of the time for a shutdown.
func (c *telemetryConfig) stop(ctx context.Context, log *slog.Logger) {
	if c.traces == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastTraces)
	defer cancel()
	if err := c.traces.Shutdown(ctx); err != nil {
		log.Warn("some traces were not sent", "error", err)
	}
}

// store returns the options with which the store is counted.
func (c *telemetryConfig) store() metered.Options {
	return metered.Options{Tracer: c.tracer, Kind: base.KindOf}
}

// options puts what was started into the options of a server.
func (c *telemetryConfig) options(o *server.Options) {
	o.Tracer, o.SlowLog = c.tracer, c.slowLog
	if c.traces != nil {
		o.Spans = c.traces.Counts
	}
}
