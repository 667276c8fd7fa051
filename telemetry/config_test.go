package telemetry

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, variables map[string]string) (Config, []string) {
	t.Helper()
	c, faults := Read(func(name string) string { return variables[name] })
	var texts []string
	for _, f := range faults {
		texts = append(texts, f.Error())
	}
	return c, texts
}

func TestOff(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, variables := range []map[string]string{
		nil,
		{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_SAMPLER": "x"}, // of other programs
		{endpoint: " "},
		{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"},
		{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
	} {
		c, faults := read(t, variables)
		require.Empty(t, faults)
		require.False(t, c.On(), variables)
	}
}

func TestOn(t *testing.T) {
	c, faults := read(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/x"})
	require.Empty(t, faults)
	require.Equal(t, Config{on: true, queue: 2048, batch: 512, delay: 5 * time.Second, exportTimeout: 30 * time.Second}, c)
	c, faults = read(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
		"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20x,", "OTEL_EXPORTER_OTLP_TIMEOUT": "1000",
		"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01", "OTEL_TRACES_EXPORTER": "otlp",
		"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_BSP_EXPORT_TIMEOUT": "20",
	})
	require.Empty(t, faults)
	require.Equal(t, Config{on: true, queue: 100, batch: 100, delay: 10 * time.Millisecond, exportTimeout: 20 * time.Millisecond}, c)
}

// All that is wrong is told at once, and no secret is repeated.
func TestFaults(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, faults := read(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "user:secret@c:4317", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "unix:///secret",
		"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "zstd",
		"OTEL_EXPORTER_OTLP_HEADERS": "authorization: secret", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=%zzsecret",
		"OTEL_EXPORTER_OTLP_TIMEOUT": "10s", "OTEL_EXPORTER_OTLP_CERTIFICATE": empty,
		"OTEL_EXPORTER_OTLP_CLIENT_KEY": "k.pem", "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": empty, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": empty,
		"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "NaN", "OTEL_TRACES_EXPORTER": "zipkin",
		"OTEL_BSP_MAX_QUEUE_SIZE": "0", "OTEL_BSP_SCHEDULE_DELAY": "-1", "OTEL_BSP_EXPORT_TIMEOUT": "x", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4096",
	})
	require.Equal(t, []string{
		`OTEL_TRACES_EXPORTER is "zipkin"; supported are otlp, none`,
		`OTEL_EXPORTER_OTLP_ENDPOINT must be a URL such as http://localhost:4318`,
		`OTEL_EXPORTER_OTLP_PROTOCOL is "grpc"; supported are http/protobuf, http/json`,
		`OTEL_EXPORTER_OTLP_HEADERS must be of the form name=value,name=value, its values percent-encoded`,
		`OTEL_EXPORTER_OTLP_TIMEOUT is "10s"; it must be a whole number from 1 to 86400000`,
		`OTEL_EXPORTER_OTLP_CERTIFICATE: read ` + empty + `: no certificate in it`,
		`OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY need each other`,
		`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must be a URL such as http://localhost:4318`,
		`OTEL_EXPORTER_OTLP_TRACES_COMPRESSION is "zstd"; supported are none, gzip`,
		`OTEL_EXPORTER_OTLP_TRACES_HEADERS must be of the form name=value,name=value, its values percent-encoded`,
		`OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE: tls: failed to find any PEM data in certificate input`,
		`OTEL_TRACES_SAMPLER_ARG is "NaN"; it must be a number from 0 to 1`,
		`OTEL_BSP_MAX_QUEUE_SIZE is "0"; it must be a whole number from 1 to 1048576`,
		`OTEL_BSP_SCHEDULE_DELAY is "-1"; it must be a whole number from 1 to 86400000`,
		`OTEL_BSP_EXPORT_TIMEOUT is "x"; it must be a whole number from 1 to 86400000`,
		`OTEL_BSP_MAX_EXPORT_BATCH_SIZE is "4096"; it must be a whole number from 1 to 2048`,
	}, faults)
}
