package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchJSON runs a benchmark of the built program and returns the report that it prints as JSON.
func benchJSON(t *testing.T, args ...string) benchReport {
	t.Helper()
	out, err := annals(t, append(append([]string{"bench"}, args...), "--json", "-")...).Output()
	require.NoError(t, err, "%s", out)
	return readBenchReport(t, out)
}

func TestBinaryBenchPoll(t *testing.T) {
	report := benchJSON(t, "poll", "--store", "mem:", "--keys", "1000", "--preload", "1000", "--value-size", "100", "--rate", "1MB",
		"--polls-per-second", "300", "--offline", "10%", "--offline-for", "200ms", "--duration", "500ms", "--warmup", "0s")
	require.Equal(t, "poll", report.Workload)
	require.Equal(t, "open", report.Loop)
	require.Contains(t, report.Results, "poll_under_1s")
	require.Contains(t, report.Results, "polls_left_out")
	require.Equal(t, "10%", report.Config["offline"])

	tip := benchJSON(t, "poll", "--store", "mem:", "--http", "--keys", "1000", "--rate", "none", "--behind", "0s",
		"--polls-per-second", "300", "--duration", "300ms", "--warmup", "0s")
	require.Contains(t, tip.Results, "poll_latency")
	require.NotContains(t, tip.Results, "append_latency")
}

func TestBinaryBenchScan(t *testing.T) {
	store := "file:" + t.TempDir()
	shape := []string{"scan", "--store", store, "--keys", "1000", "--value-size", "100", "--duration", "300ms"}
	built := benchJSON(t, append(shape, "--mode", "cold, count", "--records", "5000", "--hot-bytes", "100KB")...)
	require.Equal(t, "scan", built.Workload)
	require.Contains(t, built.Results, "built_records")
	require.Contains(t, built.Results, "cold")
	require.Contains(t, built.Results, "count")
	require.NotContains(t, built.Results, "keys")
	replay := benchJSON(t, append(shape, "--mode", "replay", "--reuse", "--simulate-s3", "--replays", "1")...)
	var result struct {
		Records uint64  `json:"records"`
		OfStore float64 `json:"of_store_bandwidth"`
	}
	require.NoError(t, json.Unmarshal(replay.Results["replay"], &result))
	require.EqualValues(t, 1000, result.Records)
	require.NotZero(t, result.OfStore)
}

// All faults of a command line come at once, and nothing is done.
func TestBenchPollAndScanFaults(t *testing.T) {
	for fault, args := range map[string][]string{
		"exclude each other":  {"poll", "--behind", "1s", "--fastest", "1s"},
		"from 0 to 1":         {"poll", "--offline", "110%"},
		"not a number":        {"poll", "--polls-per-second", "0"},
		"none of cold":        {"scan", "--mode", "luke"},
		"would wait for ever": {"scan", "--consolidate", "--compaction", "off"},
		"--closed and":        {"scan", "--closed", "--ops-per-second", "3"},
	} {
		status, _, stderr := runHere(append(append([]string{"bench"}, args...), "--store", "mem:")...)
		require.Equal(t, exitUsage, status, args)
		require.Contains(t, stderr, fault, args)
	}
}
