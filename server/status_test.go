package server

import (
	"encoding/hex"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

// status asks the server for its status.
func (r *running) status(query string) wire.LogStatus {
	r.t.Helper()
	got := r.get(statusPath + query)
	require.Equal(r.t, 200, got.status, got.body)
	st, err := wire.ParseLogStatus([]byte(got.body))
	require.NoError(r.t, err)
	return st
}

func TestStatusOfAWriter(t *testing.T) {
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	r := start(t, Options{DB: db, Version: "annals v1"})
	empty := r.status("")
	require.Zero(t, empty.Ingest)
	require.Equal(t, make([]uint64, len(appendBounds)+1), empty.AppendLatency.Counts)

	require.Equal(t, 200, r.post(appendPath, `{"records":[{"key":"aw","value":"dmFs"},{"key":"","value":""}]}`).status)
	require.Equal(t, 200, r.post(appendPath, `{"records":[{"key":"aw","value":"dmFs"}],"awaitDurable":false}`).status)
	require.Equal(t, 400, r.post(appendPath, `{"records":[{"key":"aw"}]}`).status)
	r.events("key=k&start_seq=9")
	r.followers(0, 1, 0)
	require.Equal(t, int64(8), r.status("").UnflushedBytes)
	require.NoError(t, db.Flush(t.Context()))

	st := r.status("")
	id := db.Status().LogID
	require.Equal(t, hex.EncodeToString(id[:]), st.LogID)
	require.WithinDuration(t, time.Now(), time.UnixMilli(st.NowMs), patience)
	require.GreaterOrEqual(t, st.UptimeMs, empty.UptimeMs)
	require.Positive(t, st.StoredBytes)
	require.Equal(t, appendBounds, st.AppendLatency.LE)
	counts := st.AppendLatency.Counts
	require.Len(t, counts, len(appendBounds)+1)
	require.True(t, slices.IsSorted(counts))
	require.Equal(t, uint64(1), counts[len(counts)-1], "the one that waited")
	st.NowMs, st.UptimeMs, st.StoredBytes, st.LogID, st.AppendLatency = 0, 0, 0, "", wire.Histogram{}
	require.Equal(t, wire.LogStatus{
		Status: "success", Role: "writer", Version: "annals v1", Ready: true, Store: db.Status().Store, Epoch: 1,
		Frontier: 3, Segments: 1, Runs: 1, Tables: 1, Followers: 1,
		Ingest: wire.IngestCounters{Appends: 2, Records: 3, Bytes: 8},
	}, st)
}

func TestStatusOfAReplica(t *testing.T) {
	w, r := startReplica(t, engine.KeyRange{Start: []byte("a"), End: []byte("n")})
	w.mustAppend("k", "v")
	require.Equal(t, 200, r.get(scanPath+"?key=k&min_sequence=1").status)
	st := r.status("")
	require.Equal(t, w.status("").LogID, st.LogID)
	require.Equal(t, wire.RoleReplica, st.Role)
	require.Equal(t, "a..n", st.KeyRange)
	require.Equal(t, uint64(1), st.Frontier)
	require.NotNil(t, st.LagMs)
	require.Nil(t, w.status("").LagMs)
	require.Empty(t, w.status("").KeyRange)
}

// Whoever asks why nothing works gets an answer also then.
func TestStatusOfALogThatStopped(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{}), err: engine.ErrFenced, notOK: errors.New("fenced")}
	r := start(t, Options{DB: db})
	require.Equal(t, 503, r.get(scanPath+"?key=k").status)
	st := r.status("")
	require.False(t, st.Ready)
	require.Equal(t, "fenced", st.Reason)
}

// What cannot be proved in time is not waited for: a page asks every few seconds.
func TestStatusDoesNotWaitForTheStore(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{}), waits: true}
	r := start(t, Options{DB: db})
	st := r.status("")
	require.False(t, st.Ready)
	require.Contains(t, st.Reason, "deadline")
}
