package main

import (
	"io"
	"path/filepath"
	"strings"
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

func TestPrintInspection(t *testing.T) {
	in := &engine.Inspection{
		Store: "file:/data", LogID: "ab", FormatVersion: 1, ManifestVersion: 12,
		Groups: []engine.InspectedGroup{{
			FirstSegment: 3, LastSegment: 66, Segments: 64, Start: 100, End: 5000, Tables: 12, Records: 4900, Keys: 1234,
			Bytes: 10 << 20, StoredBytes: 5 << 20, IndexBytes: 20 << 10, ShardBytes: 8 << 10, OldestAge: 7200, AgeSeconds: 60,
		}},
		Segments: []engine.InspectedSegment{
			{ID: 3, LastID: 18, Group: "cd", Start: 100, End: 200, Sealed: true, AgeSeconds: 7200, Runs: 1, Tables: 1, Records: 100, Bytes: 2048, StoredBytes: 1024},
			{ID: 67, LastID: 67, Start: 5000, End: 5001, Runs: 1, Tables: 1, Records: 1, Bytes: 5, StoredBytes: 400},
		},
		Obsolete: engine.InspectedObsolete{Objects: 7, Bytes: 700},
		Totals: engine.InspectedTotals{
			Objects: 20, Bytes: 3000, Tables: 14, TableBytes: 2000, Indexes: 1, IndexBytes: 500, Other: 2, OtherBytes: 100,
			Unnamed: 3, UnnamedBytes: 300, LiveBytes: 2000, SpaceAmplification: 1.5,
		},
		Damage: []string{"something is wrong"},
	}
	var out strings.Builder
	require.NoError(t, printInspection(&out, in))
	squeezed := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"obsolete 7 objects, 700 B",
		"3-66 64 100..5000 12 4,900 1,234 10 MiB 5.0 MiB 20 KiB 8.0 KiB sealed 2h0m0s to 1m0s ago",
		"3-18 100..200 1 1 100 2.0 KiB 1.0 KiB sealed 2h0m0s ago, in a group",
		"67 5000..5001 1 1 1 5 B 400 B active",
		"tables 14 2.0 KiB indexes 1 500 B",
		"of these, not named by the log 3 300 B",
		"2.0 KiB are live: space amplification 1.50",
		"damage: something is wrong",
	} {
		require.Contains(t, squeezed, want)
	}

	in.Groups, in.Damage = nil, nil
	out.Reset()
	require.NoError(t, printInspection(&out, in))
	require.NotContains(t, out.String(), "group of")
	require.ErrorIs(t, printInspection(failingWriter{}, in), io.ErrShortWrite)
}

// failingWriter writes nothing.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
