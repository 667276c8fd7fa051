package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A compactor that is stopped says as JSON what it took.
func TestBinaryCompactJSON(t *testing.T) {
	store := "file:" + filepath.Join(t.TempDir(), "data")
	start(t, store, "--compaction", "off")
	cmd := annals(t, "compact", "--store", store, "--json")
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stuck := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	_, err = stderr.Read(make([]byte, 1)) // it stands by
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	var result map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &result), out.String())
	require.Contains(t, result, "bytesWritten")
	require.Contains(t, result["requests"], "get")
	require.EqualValues(t, 0, result["requestsFailed"])
}

func TestVersionJSON(t *testing.T) {
	status, stdout, _ := runIn("version", "--json")
	require.Equal(t, exitOK, status)
	var b build
	require.NoError(t, json.Unmarshal([]byte(stdout), &b))
	require.Equal(t, thisBuild(), b)
	require.Equal(t, runtime.Version(), b.Go)
	require.NotEmpty(t, b.Version)
}

// The result of a load that stops early says what is known of the lines behind the acknowledged ones.
func TestAppendJSON(t *testing.T) {
	for _, test := range []struct {
		err     error
		outcome string
	}{
		{&sendError{err: errInterrupted}, outcomeNotAppended},
		{errInterrupted, outcomeUnknown}, // the answer was lost
	} {
		var out bytes.Buffer
		r := recorder{answer: func(int) error { return test.err }}
		_, err := loadText(t.Context(), &r, numbered(25), appendConfig{batchRecords: 10, batchBytes: 1 << 20, json: &out})
		require.Error(t, err)
		var result loadResult
		require.NoError(t, json.Unmarshal(out.Bytes(), &result), out.String())
		require.Equal(t, test.outcome, result.Outcome)
		require.Zero(t, result.Lines)
		require.Equal(t, err.Error(), result.Error)
	}
}

// A load that cannot begin says so in JSON as well.
func TestAppendJSONWithoutInput(t *testing.T) {
	for _, args := range [][]string{
		{"--file", filepath.Join(t.TempDir(), "none")},
		{"--token-file", filepath.Join(t.TempDir(), "none")},
		{"--skip", "7"}, // standard input is empty
	} {
		args = append([]string{"append", "--json", "--producer", "p", "--producer-seq", "3"}, args...)
		var stdout, stderr bytes.Buffer
		status := run(&process{args: args, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr})
		require.Equal(t, exitFailure, status, stderr.String())
		var result loadResult
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &result), "%s: %q", args, stdout.String())
		require.Equal(t, outcomeNotAppended, result.Outcome)
		require.EqualValues(t, 3, *result.NextProducerSeq)
		require.Contains(t, stderr.String(), result.Error)
	}
}
