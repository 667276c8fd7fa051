package main

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// readTelemetry reads the flag and the variables.
func readTelemetry(t *testing.T, flag string, environ ...string) (telemetryConfig, []string) {
	t.Helper()
	var c telemetryConfig
	s := newSettings(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	c.addFlags(s)
	if flag != "" {
		s.parse([]string{"--slow-log", flag})
	}
	c.check(s, environ)
	return c, s.faults
}

func TestTelemetrySettings(t *testing.T) {
	c, faults := readTelemetry(t, "")
	require.Empty(t, faults)
	require.Equal(t, time.Second, c.slow)
	require.False(t, c.export.On())
	c, faults = readTelemetry(t, "off", "OTEL_EXPORTER_OTLP_ENDPOINT=x", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318")
	require.Empty(t, faults, "the last one counts")
	require.Zero(t, c.slow)
	require.True(t, c.export.On())
	_, faults = readTelemetry(t, "-1s", "OTEL_EXPORTER_OTLP_ENDPOINT=c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	require.Len(t, faults, 3, "all at once: %v", faults)
}
