package main

import (
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/dir"
)

func TestInspect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	status, _, stderr := runIn("inspect", "--store", "file:"+path)
	require.Equal(t, exitFailure, status)
	require.Contains(t, stderr, "no log here")

	store, err := dir.Open(path)
	require.NoError(t, err)
	db, err := engine.Open(t.Context(), store, engine.Options{})
	require.NoError(t, err)
	_, err = db.Append(t.Context(), []engine.Record{{Key: []byte("k"), Value: []byte("v")}}, engine.AppendOptions{})
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))

	status, stdout, stderr := runIn("inspect", "--store", "file:"+path)
	require.Equal(t, exitOK, status, stderr)
	require.Contains(t, stdout, "writer 1, compactor 1")
	require.Contains(t, stdout, "closed cleanly")
	require.Contains(t, stdout, "active")

	status, stdout, stderr = runIn("inspect", "--json", "--store", "file:"+path)
	require.Equal(t, exitOK, status, stderr)
	var in engine.Inspection
	require.NoError(t, json.Unmarshal([]byte(stdout), &in))
	require.Len(t, in.Segments, 1)
	require.Equal(t, uint64(1), in.Segments[0].Records)
}
