package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/dir"
)

// smallLog makes a log of a few records in a folder, and returns the path of its one table.
func smallLog(t *testing.T, path string) (table string) {
	t.Helper()
	store, err := dir.Open(path)
	require.NoError(t, err)
	db, err := engine.Open(t.Context(), store, engine.Options{})
	require.NoError(t, err)
	for i := range 10 {
		_, err = db.Append(t.Context(), []engine.Record{{Key: fmt.Appendf(nil, "key %d", i), Value: []byte("v")}}, engine.AppendOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, db.Close(t.Context()))
	tables, err := filepath.Glob(filepath.Join(path, "trees/00000000/sst/*/*.sst"))
	require.NoError(t, err)
	require.Len(t, tables, 1)
	return tables[0]
}

// checked runs check --json and returns what it says.
func checked(t *testing.T, path string) (status int, report engine.CheckReport, stderr string) {
	t.Helper()
	status, stdout, stderr := runIn("check", "--json", "--store", "file:"+path)
	require.NoError(t, json.Unmarshal([]byte(stdout), &report, json.RejectUnknownMembers(true)))
	return status, report, stderr
}

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	status, report, stderr := checked(t, path)
	require.Equal(t, exitNoLook, status)
	require.Contains(t, stderr, "no log here")
	require.False(t, report.Complete)
	require.Contains(t, report.Stopped, "no log here")
	require.NoDirExists(t, path)
	require.NoError(t, os.Mkdir(path, 0o755))
	status, stdout, stderr := runIn("check", "--store", "file:"+path)
	require.Equal(t, exitNoLook, status)
	require.Contains(t, stderr, "no log here")
	require.Contains(t, stdout, "not known")
	status, _, _ = runIn("check", "--nonsense")
	require.Equal(t, exitNoLook, status, "that of bad flags too")

	table := smallLog(t, path)
	status, report, stderr = checked(t, path)
	require.Equal(t, exitOK, status, stderr)
	require.True(t, report.Sound && report.Complete)
	require.Equal(t, uint64(10), report.TableRecords)
	require.Empty(t, stderr)
	status, stdout, stderr = runIn("check", "--progress", "--store", "file:"+path)
	require.Equal(t, exitOK, status, stderr)
	require.True(t, strings.HasSuffix(stdout, "\nsound\n"), stdout)
	require.Empty(t, stderr, "a short check shows no progress")

	body, err := os.ReadFile(table)
	require.NoError(t, err)
	for kind, damage := range map[engine.DamageKind]func(){
		engine.DamageCorrupt: func() {
			flipped := append([]byte(nil), body...)
			flipped[20] ^= 1
			require.NoError(t, os.WriteFile(table, flipped, 0o600))
		},
		engine.DamageSize:    func() { require.NoError(t, os.WriteFile(table, body[:len(body)-5], 0o600)) },
		engine.DamageMissing: func() { require.NoError(t, os.Remove(table)) },
	} {
		damage()
		name, err := filepath.Rel(path, table)
		require.NoError(t, err)
		status, report, stderr = checked(t, path)
		require.Equal(t, exitDamaged, status)
		require.Contains(t, stderr, "the log is damaged in 1 place: ")
		require.Len(t, report.Damage, 1)
		d := report.Damage[0]
		require.Equal(t, kind, d.Kind)
		require.Equal(t, name, d.Object)
		require.Equal(t, &engine.Affected{
			FirstSegment: 1, LastSegment: 1, EndSequence: 10, LowerKey: []byte("key 0"), UpperKey: []byte("key 9"),
		}, d.Affected)
		status, stdout, _ = runIn("check", "--store", "file:"+path)
		require.Equal(t, exitDamaged, status)
		require.Contains(t, stdout, string(kind)+": ")
		require.Contains(t, stdout, `affects segment 1, sequences 0 to 9, keys "key 0" to "key 9"`)
		require.True(t, strings.HasSuffix(stdout, "\nDAMAGED: 1\n"), stdout)
		require.NoError(t, os.WriteFile(table, body, 0o600))
	}
	status, _, stderr = checked(t, path)
	require.Equal(t, exitOK, status, stderr)
}

// What was interrupted says so, and that nothing is known.
func TestCheckInterrupted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	smallLog(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	store, err := parseStoreURL("file:" + path)
	require.NoError(t, err)
	var out, errs strings.Builder
	err = runCheck(ctx, &process{stdout: &out, stderr: &errs}, checkConfig{store: store, progress: true, now: time.Now})
	var exit *exitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, exitNoLook, exit.status)
	require.ErrorIs(t, err, errInterrupted)
	require.True(t, strings.HasSuffix(out.String(), "\nnot known: interrupted\n"), out.String())
}

// A long check says how far it has come, without a flag, where nobody may sit at a terminal, too.
func TestCheckShowsProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	smallLog(t, path)
	store, err := parseStoreURL("file:" + path)
	require.NoError(t, err)
	require.Equal(t, "true", newCheck(&process{variables: make(variableNames)}).Flags().Lookup("progress").DefValue)
	for _, c := range []struct {
		progress bool
		step     time.Duration // of the clock between two looks at it
		want     bool
	}{{true, plainProgressEvery, true}, {true, time.Millisecond, false}, {false, plainProgressEvery, false}} {
		var at time.Time
		now := func() time.Time { at = at.Add(c.step); return at }
		var out, errs strings.Builder
		require.NoError(t, runCheck(t.Context(), &process{stdout: &out, stderr: &errs}, checkConfig{store: store, progress: c.progress, now: now}))
		if c.want {
			require.Regexp(t, `^(\d+ objects, .* of .*/s.*\n)+$`, errs.String())
		} else {
			require.Empty(t, errs.String())
		}
	}
}

// The document that scripts read: the names of its members are stable.
func TestCheckDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	table := smallLog(t, path)
	require.NoError(t, os.Remove(table))
	_, stdout, _ := runIn("check", "--json", "--store", "file:"+path)
	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	for _, name := range []string{
		"store", "complete", "sound", "damageFound", "damageLeftOut", "damage", "manifestVersion", "writerEpoch", "compactorEpoch",
		"groups", "segments", "runs", "tables", "tableRecords", "stateObjects", "pins", "walObjects", "walRecords", "nextSequence",
		"bytes", "orphans", "uncommitted", "waiting", "foreign",
	} {
		require.Contains(t, doc, name)
		delete(doc, name)
	}
	require.Empty(t, doc)
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	damage := doc["damage"].([]any)[0].(map[string]any)
	require.Equal(t, "missing", damage["kind"])
	require.Contains(t, damage["message"], damage["object"])
	require.Equal(t, map[string]any{
		"firstSegment": 1.0, "lastSegment": 1.0, "firstSequence": 0.0, "endSequence": 10.0,
		"lowerKeyB64": base64.StdEncoding.EncodeToString([]byte("key 0")), "upperKeyB64": base64.StdEncoding.EncodeToString([]byte("key 9")),
	}, damage["affected"])
}

func TestPrintReport(t *testing.T) {
	r := &engine.CheckReport{
		Store: "file:/data", ManifestVersion: 12, Tables: 1234, Orphans: engine.CheckedObjects{Objects: 7, Bytes: 700, Names: []string{"a", "b", "c", "d", "e", "f"}},
		Damage: []engine.Damage{{Kind: engine.DamageMissing, Message: "it is not there"}}, DamageFound: 3, DamageLeftOut: 2,
	}
	var out strings.Builder
	require.NoError(t, printReport(&out, r))
	for _, want := range []string{"1,234 with", "7 objects, 700 B", "orphan: e\norphan: and 2 more\n", "missing: it is not there\nand 2 more\nDAMAGED: 3\n"} {
		require.Contains(t, out.String(), want)
	}
	require.ErrorIs(t, printReport(failingWriter{}, r), io.ErrShortWrite)
}

func TestProgressText(t *testing.T) {
	p := engine.CheckProgress{Objects: 1200, Bytes: 1 << 30, Total: 3 << 30}
	require.Equal(t, "1,200 objects, 1.0 GiB of 3.0 GiB, 102 MiB/s, 20s left", progressText(p, 10*time.Second))
	p.Total = 0
	require.Equal(t, "1,200 objects, 1.0 GiB of 1.0 GiB, 102 MiB/s", progressText(p, 10*time.Second))
}

// openToRead opens the store in a folder.
func openToRead(t *testing.T, path string) objstore.Store {
	t.Helper()
	store, err := dir.OpenReadOnly(path)
	require.NoError(t, err)
	return store
}
