package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/bench"
)

// The followers of bench follow are a process of the same binary, be the log embedded or a running server's.
func TestBinaryBenchFollow(t *testing.T) {
	d := start(t, "mem:")
	for name, where := range map[string][]string{
		"embedded":     {"--store", "mem:"},
		"through HTTP": {"--store", "mem:", "--http", "--form", "shared"},
		"server":       {"--server", d.url, "--form", "h1"},
	} {
		args := append([]string{"bench", "follow", "--followers", "20", "--keys", "40", "--batch", "5", "--rate", "200KB",
			"--warmup", "0s", "--duration", "300ms", "--json", "-"}, where...)
		status, stdout, stderr := runAnnals(t, args...)
		require.Equal(t, exitOK, status, "%s: %s", name, stderr)
		var rep bench.Report
		require.NoError(t, json.Unmarshal([]byte(stdout), &rep), name)
		require.Equal(t, "follow", rep.Workload)
		require.EqualValues(t, 20, rep.Results["followers"], name)
		require.Positive(t, rep.Results["delivered_records"], name)
		require.Equal(t, rep.Results["appended_records"], rep.Results["delivered_records"], name)
		require.Positive(t, rep.Results["client_cpu_seconds"], name)
		require.NotEmpty(t, rep.Config["followers"], name)
	}
	d.stop(t)

	status, _, stderr := runAnnals(t, "bench", "follow", "--server", d.url, "--form", "engine", "--followed-share", "2")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "--followed-share: \"2\" is not a share from 0 to 1")
	require.Contains(t, stderr, "--form engine needs --store")
	status, _, stderr = runAnnals(t, "bench", "follow", "--store", "mem:", "--followers", "9", "--keys", "8", "--warmup", "0s")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "each follower has a key of its own")
}
