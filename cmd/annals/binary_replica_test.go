package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mustAppend appends one record and returns its sequence.
func (d *daemon) mustAppend(t *testing.T, key, value string) (sequence uint64) {
	t.Helper()
	status, body := d.appendOne(t, key, value)
	require.Equal(t, http.StatusOK, status, body)
	_, rest, _ := strings.Cut(body, `"startSequence":`)
	_, err := fmt.Sscanf(rest, "%d", &sequence)
	require.NoError(t, err)
	return sequence
}

// reads wants a key's values at a server that has reached a sequence.
func (d *daemon) reads(t *testing.T, key string, minSequence uint64, want ...string) {
	t.Helper()
	status, stdout := request(t, http.MethodGet, fmt.Sprintf("%s/api/v1/log/scan?key=%s&limit=1000&timeout_ms=%d&min_sequence=%d",
		d.url, key, patience/time.Millisecond, minSequence), "")
	require.Equal(t, http.StatusOK, status, stdout)
	require.Equal(t, want, d.values(t, []byte(key)))
}

// A writer and a replica in two processes: what was appended at the one is read at the
// other, whichever of them is killed in between.
func TestBinaryReplica(t *testing.T) {
	stores(t, func(t *testing.T, store string) {
		w := start(t, store)
		r := start(t, store, "--replica", "--poll-interval", "10ms")
		var want []string
		add := func(value string) uint64 {
			want = append(want, value)
			return w.mustAppend(t, "k", value) + 1
		}
		r.reads(t, "k", add("first"), want...)
		status, body := request(t, http.MethodPost, r.url+"/api/v1/log/append", `{"records":[]}`)
		require.Equal(t, http.StatusNotFound, status, body)
		require.Equal(t, http.StatusOK, ready(t, r))
		status, body = request(t, http.MethodPut, w.url+"/api/v1/log/cursors/c", `{"cursors":[{"key":"aw==","nextSequence":1}]}`)
		require.Equal(t, http.StatusOK, status, body)
		status, body = request(t, http.MethodPut, r.url+"/api/v1/log/cursors/c", `{}`)
		require.Equal(t, http.StatusMethodNotAllowed, status, body)
		r.reads(t, "k", add("behind the cursor"), want...)
		_, body = request(t, http.MethodGet, r.url+"/api/v1/log/cursors/c", "")
		require.Equal(t, `{"status":"success","cursors":[{"key":"aw==","nextSequence":1}]}`, body)

		r.kill(t)
		next := add("while the replica is gone")
		r = start(t, store, "--replica", "--poll-interval", "10ms")
		r.reads(t, "k", next, want...)

		w.kill(t)
		r.reads(t, "k", next, want...)
		w = start(t, store)
		r.reads(t, "k", add("after a crash of the writer"), want...)
		w.stop(t)
		w = start(t, store)
		r.reads(t, "k", add("after a clean restart"), want...)
		r.stop(t)
		w.stop(t)
	})
}

func ready(t *testing.T, d *daemon) int {
	t.Helper()
	status, _ := request(t, http.MethodGet, d.url+"/-/ready", "")
	return status
}

// A replica that is there before its log waits for it, says so, and is not ready meanwhile.
func TestBinaryReplicaWaitsForALog(t *testing.T) {
	store := "file:" + t.TempDir() + "/data"
	taken := freeAddress(t)
	r := launch(t, store, "--replica", "--listen", taken)
	r.url = "http://" + taken
	line := r.await(t, "there is no log yet; waiting for its writer")
	require.Contains(t, line["found"], "no log here")
	require.Equal(t, http.StatusServiceUnavailable, ready(t, r))

	w := start(t, store)
	sequence := w.mustAppend(t, "k", "v")
	r.await(t, "serving")
	r.reads(t, "k", sequence+1, "v")
	require.Equal(t, http.StatusOK, ready(t, r))
	r.stop(t)
	w.stop(t)

	// A signal ends the wait.
	r = launch(t, "file:"+t.TempDir()+"/data", "--replica")
	r.await(t, "there is no log yet; waiting for its writer")
	r.stop(t)
}

// A replica of a range answers for it alone.
func TestBinaryReplicaOfARange(t *testing.T) {
	store := "file:" + t.TempDir() + "/data"
	w := start(t, store)
	w.mustAppend(t, "a", "outside")
	w.mustAppend(t, "m", "inside")
	next := w.mustAppend(t, "z", "outside") + 1
	r := start(t, store, "--replica", "--key-range", "b..n")
	require.Equal(t, "b..n", r.serves["keys"])
	r.reads(t, "m", next, "inside")
	_, body := request(t, http.MethodGet, r.url+"/api/v1/log/keys", "")
	require.Equal(t, `{"status":"success","keys":[{"key":"bQ=="}]}`, body)
	status, body := request(t, http.MethodGet, r.url+"/api/v1/log/scan?key=a", "")
	require.Equal(t, http.StatusMisdirectedRequest, status, body)
	require.Contains(t, body, "b..n")
	r.stop(t)
	w.stop(t)
}
