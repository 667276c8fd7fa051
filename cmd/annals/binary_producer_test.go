package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The server is killed between an append and its repeat. The repeat is answered as the first was, and
// there is one record; cursors are there too.
func TestBinaryRepeatAfterKill(t *testing.T) {
	stores(t, func(t *testing.T, store string) {
		d := start(t, store)
		key := base64.StdEncoding.EncodeToString([]byte("k"))
		post := func(body string) (int, string) {
			return request(t, http.MethodPost, d.url+"/api/v1/log/append", body)
		}
		numbered := func(seq int) string {
			return fmt.Sprintf(`{"records":[{"key":%q,"value":"dg=="}],"producerId":"p","producerSeq":%d}`, key, seq)
		}
		var first string
		for seq := 10; seq <= 12; seq++ {
			status, body := post(numbered(seq))
			require.Equal(t, http.StatusOK, status, body)
			first = body
		}
		status, body := request(t, http.MethodPut, d.url+"/api/v1/log/cursors/c", `{"cursors":[{"key":"aw==","nextSequence":3}]}`)
		require.Equal(t, http.StatusOK, status, body)
		for range 2 { // after a replay, and after a replay of a log that was replayed
			d.kill(t)
			d = start(t, store)
			status, body = post(numbered(12))
			require.Equal(t, http.StatusOK, status, body)
			require.Equal(t, first, body)
			_, body = request(t, http.MethodGet, d.url+"/api/v1/log/count?key=k", "")
			require.Contains(t, body, `"count":3}`)
			_, body = request(t, http.MethodGet, d.url+"/api/v1/log/cursors/c", "")
			require.Contains(t, body, `[{"key":"aw==","nextSequence":3}]`)
		}
		status, body = post(numbered(14))
		require.Equal(t, http.StatusConflict, status, body)
		require.Contains(t, body, `"lastProducerSeq":12}`)
		status, body = post(fmt.Sprintf(`{"records":[{"key":%q,"value":""}],"expectedNext":[{"key":%q,"sequence":2}]}`, key, key))
		require.Equal(t, http.StatusConflict, status, body)
		require.Contains(t, body, `"key":"aw==","lastSequence":2}`)
		d.stop(t)
	})
}

// A load whose appends are numbered goes on by itself when the server was killed and comes
// back: every line is there once, in order. The same command again appends nothing.
func TestBinaryNumberedLoadAcrossKill(t *testing.T) {
	const lines, batch = 6_000, 100
	store := "file:" + t.TempDir() + "/data"
	d := start(t, store, "--memtable-bytes", "256KiB")
	address := strings.TrimPrefix(d.url, "http://")
	file := firstLines(t, lines)
	load, stderr := startLoad(t, d.url, batch, "--file", file, "--producer", "load", "--producer-seq", "7")
	for _, enough := range []float64{1_000, 1_000} {
		d.awaitAppended(t, enough)
		d.kill(t)
		d = start(t, store, "--memtable-bytes", "256KiB", "--listen", address)
	}
	require.Equal(t, exitOK, exitStatus(t, load.Wait()), stderr.String())
	require.Contains(t, stderr.String(), "the producer's next number is 67\n")
	want, n := input(t, lines)
	got, records := d.contents(t)
	require.Equal(t, n, records)
	require.Equal(t, want, got)

	// All 60 batches are among the last 64. The load itself may have repeated one at this server.
	before := d.metric(t, "annals_append_repeats_total")
	status, _, again := runAnnals(t, "append", "--server", d.url, "--file", file, "--batch-records", strconv.Itoa(batch), "--producer", "load", "--producer-seq", "7")
	require.Equal(t, exitOK, status, again)
	_, records = d.contents(t)
	require.Equal(t, n, records)
	require.Equal(t, before+60, d.metric(t, "annals_append_repeats_total"))
	d.stop(t)
}

// firstLines returns a file of the first lines of the data file.
func firstLines(t *testing.T, n int) string {
	t.Helper()
	f, err := os.Open(dataFile)
	require.NoError(t, err)
	defer f.Close()
	r, err := newLineReader(f, dataFile)
	require.NoError(t, err)
	var b strings.Builder
	for range n {
		line, err := r.in.ReadString('\n')
		require.NoError(t, err)
		b.WriteString(line)
	}
	path := t.TempDir() + "/first.ndjson"
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path
}

// A condition holds once: the same command again is refused, with status 1.
func TestBinaryAppendOnCondition(t *testing.T) {
	d := start(t, "file:"+t.TempDir()+"/data")
	file := firstLines(t, 10)
	args := []string{"append", "--server", d.url, "--file", file, "--expect-next", "0"}
	status, _, stderr := runAnnals(t, args...)
	require.Equal(t, exitOK, status, stderr)
	status, _, stderr = runAnnals(t, args...)
	require.Equal(t, exitFailure, status)
	require.Contains(t, stderr, "409 Conflict")
	require.Contains(t, stderr, "go on with --skip 0")
	_, records := d.contents(t)
	require.Equal(t, 10, records)
	d.stop(t)
}
