package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// benchReport is what the tests read of a report.
type benchReport struct {
	Workload    string                     `json:"workload"`
	Config      map[string]string          `json:"config"`
	Seed        uint64                     `json:"seed"`
	Loop        string                     `json:"loop"`
	Interrupted bool                       `json:"interrupted"`
	Results     map[string]json.RawMessage `json:"results"`
	Cost        map[string]any             `json:"cost"`
	Violations  []string                   `json:"violations"`
	Failures    []string                   `json:"failures"`
}

func readBenchReport(t *testing.T, text []byte) (rep benchReport) {
	t.Helper()
	require.NoError(t, json.Unmarshal(text, &rep), "%s", text)
	return rep
}

// runHere runs a command line in this process.
func runHere(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(&process{args: args, stdin: &bytes.Buffer{}, stdout: &out, stderr: &errs})
	return status, out.String(), errs.String()
}

func TestBenchFaults(t *testing.T) {
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"bench"}, []string{"say what to measure: ", "ingest"}},
		{[]string{"bench", "nothing"}, []string{`unknown command "nothing"`}},
		{[]string{"bench", "ingest"}, []string{"either --store or --server"}},
		{[]string{"bench", "ingest", "--store", "mem:", "--server", "http://h"}, []string{"either --store or --server"}},
		{[]string{"bench", "ingest", "--server", "http://h", "--http", "--simulate-s3", "--cache-bytes", "1MiB"},
			[]string{"--http needs --store", "--simulate-s3 needs --store", "--cache-bytes needs --store"}},
		{[]string{"bench", "ingest", "--store", "mem:", "--s3-put-p50", "1ms"}, []string{"--s3-put-p50 needs --simulate-s3"}},
		{[]string{"bench", "ingest", "--store", "mem:", "--simulate-s3", "--s3-put-p50", "1s"}, []string{"simulated S3"}},
		{[]string{"bench", "ingest", "--store", "mem:", "--batch", "100000", "--value-size", "1MiB"}, []string{"--batch of 100000 records"}},
		{[]string{"bench", "ingest", "--store", "mem:", "--segment-min-bytes", "2GiB", "--segment-bytes", "1GiB"}, []string{"--segment-min-bytes"}},
		{[]string{"bench", "ingest", "--store", "mem:", "--gc-grace", "64s"}, []string{"--gc-grace is 1m4s; it must be at least 1m5s here"}},
		{[]string{"bench", "ingest", "--store", "mem:", "--rate", "max", "--arrivals", "uniform"}, []string{"--arrivals needs a --rate"}},
		{[]string{"bench", "follow", "--store", "mem:", "--rate", "max", "--arrivals", "uniform"}, []string{"--arrivals needs a --rate"}},
		{[]string{"bench", "follow", "--store", "mem:", "--form", "h1", "--streams-per-connection", "5", "--connections", "2"},
			[]string{"--streams-per-connection needs --form h2", "--connections needs --form shared"}},
		{[]string{"bench", "follow", "--store", "mem:", "--form", "engine", "--clients-in-process"}, []string{"--clients-in-process: --form engine has no other process"}},
		{[]string{"bench", "scan", "--store", "mem:", "--closed", "--arrivals", "uniform"}, []string{"--closed and --arrivals"}},
		{[]string{"bench", "ingest", "--store", "mem:", "--rate", "fast", "--compress", "0.5"}, []string{`"fast"`, `"0.5"`}},
	} {
		status, _, stderr := runHere(test.args...)
		require.Equal(t, exitUsage, status, test.args)
		for _, want := range test.want {
			require.Contains(t, stderr, want, test.args)
		}
	}
}

// A run of the built program, embedded, behind HTTP, and on a running server: the report has what was asked for.
func TestBinaryBenchIngest(t *testing.T) {
	file, profile := filepath.Join(t.TempDir(), "report.json"), filepath.Join(t.TempDir(), "cpu")
	cmd := annals(t, "bench", "ingest", "--store", "mem:", "--simulate-s3", "--s3-put-p50", "1ms", "--s3-put-p99", "2ms", "--s3-get-p50", "1ms", "--s3-get-p99", "2ms",
		"--bytes", "1MiB", "--value-size", "100", "--seed", "7", "--json", file, "--cpu-profile", profile)
	text, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(text), "append latency")
	require.Contains(t, string(text), "S3 Standard")
	report, err := os.ReadFile(file)
	require.NoError(t, err)
	written, err := os.Stat(profile)
	require.NoError(t, err)
	require.NotZero(t, written.Size())
	rep := readBenchReport(t, report)
	require.Equal(t, "ingest", rep.Workload)
	require.Equal(t, uint64(7), rep.Seed)
	require.Equal(t, "open", rep.Loop)
	require.Equal(t, "100", rep.Config["value-size"])
	require.Equal(t, "100ms", rep.Config["flush-interval"], "that of S3")
	require.NotEmpty(t, rep.Cost)
	require.Contains(t, rep.Results, "append_latency")

	out, err := annals(t, "bench", "ingest", "--store", "mem:", "--http", "--rate", "max", "--bytes", "1MiB", "--gc-grace", "65s", "--json", "-").Output()
	require.NoError(t, err)
	rep = readBenchReport(t, out)
	require.Equal(t, "closed", rep.Loop)
	require.Empty(t, rep.Cost)

	d := start(t, "mem:")
	out, err = annals(t, "bench", "ingest", "--server", d.url, "--bytes", "1MiB", "--json", "-").Output()
	require.NoError(t, err)
	require.NotContains(t, readBenchReport(t, out).Results, "allocations_per_record")
}

// A signal ends the measurement, with a report and status 0.
func TestBinaryBenchInterrupted(t *testing.T) {
	cmd := annals(t, "bench", "ingest", "--store", "mem:", "--rate", "1MB", "--warmup", "0s", "--duration", "1h", "--json", "-")
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stuck := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	_, err = stderr.Read(make([]byte, 1)) // the live line: it measures
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, cmd.Wait())
	rep := readBenchReport(t, out.Bytes())
	require.True(t, rep.Interrupted)
	require.Contains(t, rep.Results, "append_latency")
}

// A report that was there is kept when the benchmark cannot begin.
func TestBenchKeepsReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	require.NoError(t, os.WriteFile(file, []byte("of yesterday"), 0o600))
	notAFolder := filepath.Join(file, "store")
	status, _, stderr := runHere("bench", "ingest", "--store", "file:"+notAFolder, "--bytes", "1MiB", "--json", file)
	require.Equal(t, exitFailure, status, stderr)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "of yesterday", string(text))
}

// Nobody answers: operations fail, and the status says so.
func TestBenchFails(t *testing.T) {
	status, stdout, stderr := runHere("bench", "ingest", "--server", "http://127.0.0.1:1", "--bytes", "1MiB")
	require.Equal(t, exitFailure, status)
	require.Contains(t, stdout, "FAILED")
	require.Contains(t, stderr, "see the report")
}
