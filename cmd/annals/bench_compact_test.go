package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBinaryBenchCompact(t *testing.T) {
	status, stdout, stderr := runAnnals(t, "bench", "compact", "--store", "file:"+t.TempDir(), "--bytes", "1MiB", "--runs", "3",
		"--hot-share", "0.2", "--times", "2", "--parallel", "2", "--json", "-")
	require.Equal(t, exitOK, status, stderr)
	var report struct {
		Workload string
		Config   map[string]string
		Results  struct {
			Bytes       uint64 `json:"record_bytes"`
			Tables      int    `json:"tables_in"`
			Repetitions []struct {
				Speed float64 `json:"bytes_per_second"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &report), stdout)
	require.Equal(t, "compact", report.Workload)
	require.Equal(t, "2", report.Config["parallel"])
	require.InDelta(t, 1<<20, report.Results.Bytes, 2000)
	require.Equal(t, 3, report.Results.Tables)
	require.Len(t, report.Results.Repetitions, 2)
	require.Positive(t, report.Results.Repetitions[0].Speed)
}

func TestBenchCompactRefusals(t *testing.T) {
	status, _, stderr := runIn("bench", "compact", "--server", "http://127.0.0.1:1")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "its tables are out of reach; use --store")
	status, _, stderr = runIn("bench", "compact", "--store", "mem:", "--http", "--duration", "5s", "--records", "5", "--bytes", "5MB", "--compaction", "on",
		"--hot-share", "2", "--parallel", "none")
	require.Equal(t, exitUsage, status)
	for _, want := range []string{"--http", "--duration", "--records and --bytes", "--compaction on", "not a share from 0 to 1", "--parallel"} {
		require.Contains(t, stderr, want)
	}
	status, _, stderr = runIn("bench", "compact", "--store", "mem:", "--runs", "65")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "--runs is 65")
}
