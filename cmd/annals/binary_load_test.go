package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/s3/s3server"
)

// stores runs a test on a fresh store of each kind: a directory, and a real S3 server.
func stores(t *testing.T, test func(t *testing.T, store string)) {
	t.Helper()
	t.Run("directory", func(t *testing.T) { test(t, "file:"+t.TempDir()+"/data") })
	t.Run("S3", func(t *testing.T) { test(t, s3server.Start(t).URL("binary")) })
}

// The main job: load a real file, and read one file's history back in order.
func TestBinaryRealInput(t *testing.T) {
	want, lines := input(t, 0)
	require.Equal(t, 61_221, lines)
	require.Len(t, want, 6_852)
	history := want["pebble/compaction.go"]
	require.Len(t, history, 426)
	stores(t, func(t *testing.T, store string) {
		d := start(t, store)
		status, _, stderr := runAnnals(t, "append", "--server", d.url, "--file", dataFile)
		require.Equal(t, exitOK, status, stderr)
		require.Contains(t, stderr, "61221 lines acknowledged: 61221 records")

		status, stdout, stderr := runAnnals(t, "scan", "--server", d.url, "pebble/compaction.go")
		require.Equal(t, exitOK, status, stderr)
		require.Equal(t, strings.Join(history, "\n")+"\n", stdout)
		got, records := d.contents(t)
		require.Equal(t, lines, records)
		require.Equal(t, want, got)
		d.stop(t)

		// A clean shutdown leaves nothing to recover, and no gap in the sequence.
		d = start(t, store)
		require.Equal(t, 0.0, d.serves["recovered"])
		status, stdout, _ = runAnnals(t, "scan", "--server", d.url, "--last", "2", "pebble/compaction.go")
		require.Equal(t, exitOK, status)
		require.Equal(t, strings.Join(history[424:], "\n")+"\n", stdout)
		code, body := d.appendOne(t, "k", "v")
		require.Equal(t, http.StatusOK, code, body)
		require.Contains(t, body, `"startSequence":61221`)
	})
}

var acknowledgedLines = regexp.MustCompile(`(?m)^(\d+) lines were acknowledged`)

// startLoad runs a load of the data file in batches of batch lines.
func startLoad(t *testing.T, url string, batch int, more ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	args := append([]string{"append", "--server", url, "--file", dataFile, "--batch-records", strconv.Itoa(batch)}, more...)
	load := annals(t, args...)
	var stderr bytes.Buffer
	load.Stderr = &stderr
	require.NoError(t, load.Start())
	return load, &stderr
}

// broken waits for a load that cannot have finished, and returns how many lines
// it says were acknowledged.
func broken(t *testing.T, load *exec.Cmd, stderr *bytes.Buffer) int {
	t.Helper()
	status := exitStatus(t, load.Wait())
	require.Contains(t, []int{exitFailure, exitUnknown}, status, stderr.String())
	found := acknowledgedLines.FindStringSubmatch(stderr.String())
	require.NotNil(t, found, stderr.String())
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	if status == exitUnknown {
		require.Contains(t, stderr.String(), "it is unknown which")
	}
	return n
}

// holdsPrefix checks that the log holds exactly the first lines of the input:
// all that were acknowledged, and of what was not only the one batch that was
// under way, whole. It returns their number.
func (d *daemon) holdsPrefix(t *testing.T, acknowledged, batch int) int {
	t.Helper()
	got, records := d.contents(t)
	require.Contains(t, []int{acknowledged, acknowledged + batch}, records)
	want, _ := input(t, records)
	require.Equal(t, want, got)
	return records
}

// The server is killed in the middle of a load, and again in the middle of the
// rest. Its memtable is small, so that the log is in runs and in the WAL.
func TestBinaryKilledDuringLoad(t *testing.T) {
	const batch = 100
	stores(t, func(t *testing.T, store string) {
		there := 0
		for _, enough := range []int{3_000, 6_000} {
			d := start(t, store, "--memtable-bytes", "256KiB")
			load, stderr := startLoad(t, d.url, batch, "--skip", strconv.Itoa(there))
			d.awaitAppended(t, float64(enough-there))
			d.kill(t)
			acknowledged := broken(t, load, stderr)
			require.GreaterOrEqual(t, acknowledged, there)
			require.Less(t, acknowledged, 61_221, "killed too late")

			d = start(t, store)
			there = d.holdsPrefix(t, acknowledged, batch)
			require.GreaterOrEqual(t, there, enough-batch)
			d.kill(t)
		}
		d := start(t, store)
		status, _, stderr := runAnnals(t, "append", "--server", d.url, "--file", dataFile, "--skip", strconv.Itoa(there))
		require.Equal(t, exitOK, status, stderr)
		d.holdsPrefix(t, 61_221, 0)
		d.stop(t)
	})
}

// A second writer takes the log from the first, which is in the middle of a
// load.
func TestBinarySecondWriterFencesTheFirst(t *testing.T) {
	const batch = 20
	stores(t, func(t *testing.T, store string) {
		first := start(t, store)
		load, stderr := startLoad(t, first.url, batch)
		first.awaitAppended(t, 500)
		second := start(t, store)
		require.Equal(t, first.serves["epoch"].(float64)+1, second.serves["epoch"])

		first.await(t, "another writer has taken the log; answering 503 until the exit")
		status, body := first.appendOne(t, "k", "v")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, body, `"outcome":"not_appended"`)
		status, _ = request(t, http.MethodGet, first.url+"/api/v1/log/scan?key=k", "")
		require.Equal(t, http.StatusServiceUnavailable, status)
		status, body = request(t, http.MethodGet, first.url+"/-/ready", "")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, body, "fenced")
		status, _ = request(t, http.MethodGet, first.url+"/-/healthy", "")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, exitFenced, first.status(t))

		second.holdsPrefix(t, broken(t, load, stderr), batch)
		status, body = second.appendOne(t, "k", "v")
		require.Equal(t, http.StatusOK, status, body)
		second.stop(t)
	})
}

// What is under way at a SIGTERM is finished; another one later does not wait.
func TestBinaryShutdown(t *testing.T) {
	store := "file:" + t.TempDir() + "/data"
	d := start(t, store)
	status, body := d.appendOne(t, "k", "one")
	require.Equal(t, http.StatusOK, status, body)

	// A request whose body does not end keeps the shutdown waiting.
	hung := hangingRequest(t, d)
	defer hung.Close()
	began, exited := time.Now(), make(chan struct{})
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.await(t, "stopping")
	go func() {
		// Those of the first second are the first signal passed on by a wrapper.
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-tick.C:
				_ = d.cmd.Process.Signal(syscall.SIGINT) // it may have exited
			case <-exited:
				return
			}
		}
	}()
	require.Equal(t, exitFailure, d.status(t))
	close(exited)
	require.GreaterOrEqual(t, time.Since(began), sameSignal)

	// That was a crash: the record is recovered. Then the shutdown timeout ends
	// the wait for the request, and the log is closed cleanly all the same.
	d = start(t, store, "--shutdown-timeout", "1s")
	require.Equal(t, 1.0, d.serves["recovered"])
	hung = hangingRequest(t, d)
	defer hung.Close()
	d.stop(t)
	d = start(t, store)
	require.Equal(t, 0.0, d.serves["recovered"])
	require.Equal(t, []string{"one"}, d.values(t, []byte("k")))
	d.stop(t)
}

// A reader that goes away ends the scan without a word.
func TestBinaryScanIntoBrokenPipe(t *testing.T) {
	d := start(t, "mem:")
	var lines bytes.Buffer
	for range 2000 {
		require.NoError(t, json.NewEncoder(&lines).Encode(map[string]string{"key": "k", "value": strings.Repeat("v", 1000)}))
	}
	load := annals(t, "append", "--server", d.url)
	load.Stdin = &lines
	require.NoError(t, load.Run())

	scan := annals(t, "scan", "--server", d.url, "k")
	var stderr bytes.Buffer
	scan.Stderr = &stderr
	out, err := scan.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, scan.Start())
	_, err = out.Read(make([]byte, 10))
	require.NoError(t, err)
	require.NoError(t, out.Close())
	err = scan.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, syscall.SIGPIPE, exit.Sys().(syscall.WaitStatus).Signal())
	require.Empty(t, stderr.String())
	d.stop(t)
}
