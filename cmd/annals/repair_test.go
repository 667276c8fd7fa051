package main

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
)

// The tests named TestRepair... follow the recipes of docs/REPAIR.md, each by the commands that it gives: a folder
// stands for the bucket, and cp, mv and rm for the S3 tool.

// damagedLog is a log in a folder that a test damages and repairs.
type damagedLog struct {
	*testing.T
	path   string
	server *daemon
	next   int               // of what is appended
	want   map[string]string // the values that must be there, by key
}

// agingFlags make a small segment of every few records. The memory that is not flushed is not small.
var agingFlags = []string{"--segment-bytes", "8KiB", "--segment-min-bytes", "1KiB"}

func newDamagedLog(t *testing.T, flags ...string) *damagedLog {
	l := &damagedLog{T: t, path: filepath.Join(t.TempDir(), "data"), want: map[string]string{}}
	l.start(flags...)
	return l
}

func (l *damagedLog) store() string { return "file:" + l.path }

func (l *damagedLog) start(flags ...string) {
	l.Helper()
	l.server = start(l.T, l.store(), append(slices.Clone(agingFlags), flags...)...)
}

// append appends one record, under a key of its own, and returns its sequence.
func (l *damagedLog) append(bytes int) uint64 {
	l.Helper()
	key, value := fmt.Sprintf("key %04d", l.next), strings.Repeat("v", bytes)+fmt.Sprint(l.next)
	l.next++
	l.want[key] = value
	return l.server.mustAppend(l.T, key, value)
}

// segments appends until the log has so many segments that are sealed.
func (l *damagedLog) segments(n int) {
	l.Helper()
	for range n * 3 {
		l.append(4 << 10)
	}
}

// objects returns the paths of objects below a folder of the tree, in order.
func (l *damagedLog) objects(folder string) (paths []string) {
	l.Helper()
	root := filepath.Join(l.path, "trees/00000000", folder)
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}

// records returns the WAL objects from where replay starts that are no fences.
func (l *damagedLog) records() (paths []string) {
	l.Helper()
	in, err := engine.Inspect(l.Context(), openToRead(l.T, l.path))
	require.NoError(l, err)
	from := filepath.Join(l.path, fmt.Sprintf("trees/00000000/wal/%020d/%020d", in.Position.Epoch, in.Position.ID))
	for _, path := range l.objects("wal") {
		info, err := os.Stat(path)
		require.NoError(l, err)
		if path >= from && info.Size() > 64 {
			paths = append(paths, path)
		}
	}
	return paths
}

// groups returns how many groups the log has by now.
func (l *damagedLog) groups() int {
	l.Helper()
	in, err := engine.Inspect(l.Context(), openToRead(l.T, l.path))
	require.NoError(l, err)
	return len(in.Groups)
}

// damaged checks that check finds damage of one object, and returns it.
func (l *damagedLog) damaged(path string) engine.Damage {
	l.Helper()
	status, report, stderr := checked(l.T, l.path)
	require.Equal(l, exitDamaged, status, stderr)
	name, err := filepath.Rel(l.path, path)
	require.NoError(l, err)
	i := slices.IndexFunc(report.Damage, func(d engine.Damage) bool { return d.Object == name })
	require.GreaterOrEqual(l, i, 0, "%s: %v", name, report.Damage)
	return report.Damage[i]
}

func (l *damagedLog) sound() {
	l.Helper()
	status, report, stderr := checked(l.T, l.path)
	require.Equal(l, exitOK, status, stderr)
	require.True(l, report.Sound)
}

// holds checks that the server has all that it should have, and nothing else.
func (l *damagedLog) holds() {
	l.Helper()
	got, _ := l.server.contents(l.T)
	want := streams{}
	for key, value := range l.want {
		want[key] = []string{value}
	}
	require.Equal(l, want, got)
}

// refuses checks that a server does not start, and says which object is why.
func (l *damagedLog) refuses(path string) {
	l.Helper()
	status, _, stderr := runAnnals(l.T, "serve", "--listen", "127.0.0.1:0", "--store", l.store())
	require.Equal(l, exitFailure, status)
	require.Contains(l, stderr, filepath.Base(path))
}

// Every object can be put back from a copy, whatever happened to it.
func TestRepairFromACopy(t *testing.T) {
	l := newDamagedLog(t, "--max-unflushed-bytes", "1GiB")
	status, _, stderr := runAnnals(t, "cursors", "set", "--server", l.server.url, "mailer", "key 0000", "1")
	require.Equal(t, exitOK, status, stderr)
	l.segments(4)
	require.Eventually(t, func() bool { return l.groups() > 0 && len(l.objects("state")) > 0 }, patience, 10*time.Millisecond)
	for range 4 {
		l.append(10)
	}
	l.server.kill(t)
	l.sound()
	in, err := engine.Inspect(t.Context(), openToRead(t, l.path))
	require.NoError(t, err)
	require.NotEmpty(t, in.Groups)
	require.GreaterOrEqual(t, len(l.records()), 3)

	for what, path := range map[string]string{
		"LOG": filepath.Join(l.path, "LOG"), "MANIFEST": filepath.Join(l.path, "trees/00000000/MANIFEST"),
		"index": filepath.Join(l.path, in.Groups[0].Index), "state": filepath.Join(l.path, in.State.Base),
		"WAL object": l.records()[1], "table": liveTable(t, l.path),
	} {
		body, err := os.ReadFile(path)
		require.NoError(t, err)
		for how, damage := range map[string]func(){
			"deleted":   func() { require.NoError(t, os.Remove(path)) },
			"truncated": func() { require.NoError(t, os.WriteFile(path, body[:len(body)*2/3], 0o600)) },
			"rotten": func() {
				rotten := slices.Clone(body)
				rotten[len(rotten)/2] ^= 0x10
				require.NoError(t, os.WriteFile(path, rotten, 0o600))
			},
		} {
			damage()
			d := l.damaged(path)
			if how == "deleted" {
				require.Equal(t, engine.DamageMissing, d.Kind, what)
			} else {
				require.NotEqual(t, engine.DamageMissing, d.Kind, what)
			}
			if what == "table" || what == "index" {
				require.NotZero(t, d.Affected.FirstSegment, what)
				require.NotZero(t, d.Affected.EndSequence, what)
			}
			require.NoError(t, os.WriteFile(path, body, 0o600))
			l.sound()
		}
	}
	l.start()
	l.holds()
	l.server.stop(t)
}

// liveTable returns the path of a table that the log needs.
func liveTable(t *testing.T, path string) string {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(path, "trees/00000000/sst/*/*.sst"))
	require.NoError(t, err)
	_, report, _ := checked(t, path)
	for _, table := range slices.Backward(tables) {
		body, err := os.ReadFile(table)
		require.NoError(t, err)
		require.NoError(t, os.Remove(table))
		_, now, _ := checked(t, path)
		require.NoError(t, os.WriteFile(table, body, 0o600))
		if now.DamageFound > report.DamageFound {
			return table
		}
	}
	require.FailNow(t, "no table is live")
	return ""
}

// What the WAL has lost, a writer that still runs has in memory: a clean stop writes it to tables.
func TestRepairByStoppingTheWriter(t *testing.T) {
	l := newDamagedLog(t)
	for range 4 {
		l.append(10)
	}
	lost := l.records()[1]
	require.NoError(t, os.Remove(lost))
	d := l.damaged(lost)
	require.Equal(t, &engine.Affected{FirstSequence: 1}, d.Affected)
	l.server.stop(t)
	l.sound()
	l.start()
	l.holds()
	l.server.stop(t)
}

// A WAL object that is lost without a copy: what lies behind it is moved away, and the log ends before it.
func TestRepairWithoutWALObject(t *testing.T) {
	for _, how := range []string{"deleted", "rotten"} {
		t.Run(how, func(t *testing.T) {
			l := newDamagedLog(t)
			for range 2 {
				l.append(10)
			}
			var last uint64
			var lostKeys []string
			for range 3 {
				lostKeys = append(lostKeys, fmt.Sprintf("key %04d", l.next))
				last = l.append(10)
			}
			l.server.kill(t)
			records := l.records()
			require.Len(t, records, 5)
			lost := records[2]
			if how == "deleted" {
				require.NoError(t, os.Remove(lost))
			} else {
				body, err := os.ReadFile(lost)
				require.NoError(t, err)
				body[len(body)/2] ^= 1
				require.NoError(t, os.WriteFile(lost, body, 0o600))
			}
			d := l.damaged(lost)
			require.Equal(t, &engine.Affected{FirstSequence: 2}, d.Affected)
			l.refuses(lost)
			l.refuses(lost) // however often: it fences, and that is behind it too

			away := t.TempDir()
			for _, path := range l.objects("wal") {
				if filepath.Dir(path) == filepath.Dir(lost) && path >= lost {
					require.NoError(t, os.Rename(path, filepath.Join(away, filepath.Base(path))))
				}
			}
			l.sound()
			l.start()
			for _, key := range lostKeys {
				delete(l.want, key)
			}
			l.holds()
			require.Greater(t, l.append(10), last, "no sequence is used again")
			l.holds()
			l.server.stop(t)
			l.sound()
		})
	}
}

// Cursors and producers that are lost without a copy are given up; no record is.
func TestRepairWithoutStateObject(t *testing.T) {
	l := newDamagedLog(t)
	status, _, stderr := runAnnals(t, "cursors", "set", "--server", l.server.url, "mailer", "key 0000", "1")
	require.Equal(t, exitOK, status, stderr)
	l.append(10)
	l.server.stop(t)
	in, err := engine.Inspect(t.Context(), openToRead(t, l.path))
	require.NoError(t, err)
	lost := filepath.Join(l.path, in.State.Base)
	require.NoError(t, os.Remove(lost))
	require.Nil(t, l.damaged(lost).Affected)
	l.refuses(lost)
	l.start("--forget-lost-state", in.State.Base)
	l.server.await(t, "cursors and producers are lost and forgotten")
	l.holds()
	_, body := request(t, http.MethodGet, l.server.url+"/api/v1/log/cursors", "")
	require.NotContains(t, body, "mailer")
	l.server.stop(t)
	l.sound()
	l.start()
	l.holds()
	l.server.stop(t)
}

// LOG says nothing that MANIFEST does not say too.
func TestRepairWithoutLOG(t *testing.T) {
	l := newDamagedLog(t)
	l.append(10)
	l.server.stop(t)
	made := filepath.Join(t.TempDir(), "LOG")
	status, _, stderr := runAnnals(t, "check", "--store", l.store(), "--lost-log", made)
	require.Equal(t, exitNoLook, status)
	require.Contains(t, stderr, "LOG exists")
	lost := filepath.Join(l.path, "LOG")
	l.start()
	require.NoError(t, os.Remove(lost))
	l.append(10) // the server runs on
	l.server.stop(t)
	require.Equal(t, engine.DamageMissing, l.damaged(lost).Kind)
	l.refuses(lost)
	status, _, stderr = runAnnals(t, "check", "--store", l.store(), "--lost-log", made)
	require.Equal(t, exitOK, status, stderr)
	status, _, stderr = runAnnals(t, "check", "--store", l.store(), "--lost-log", made)
	require.Equal(t, exitNoLook, status, "it does not write over a file")
	require.Contains(t, stderr, "exists")
	require.NoError(t, os.Rename(made, lost))
	l.sound()
	l.start()
	l.holds()
	l.server.stop(t)
	head := filepath.Join(l.path, "trees/00000000/MANIFEST")
	require.NoError(t, os.Remove(head))
	require.NoError(t, os.Remove(lost))
	require.Equal(t, engine.DamageMissing, l.damaged(head).Kind)
	l.refuses(head) // it is no place for a new log
	status, _, stderr = runAnnals(t, "check", "--store", l.store(), "--lost-log", made)
	require.Equal(t, exitNoLook, status)
	require.Contains(t, stderr, "no log here")
}

// A MANIFEST that is not the last version is told from it.
func TestRepairOlderMANIFEST(t *testing.T) {
	l := newDamagedLog(t)
	l.append(10)
	l.server.stop(t)
	path := filepath.Join(l.path, "trees/00000000/MANIFEST")
	older, err := os.ReadFile(path)
	require.NoError(t, err)
	l.start()
	l.append(10)
	l.server.stop(t)
	last, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, older, 0o600))
	d := l.damaged(path)
	require.Equal(t, engine.DamageContradiction, d.Kind)
	require.Contains(t, d.Message, "it is older than the log")

	// To read what can be read, in a copy.
	away := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(away, os.DirFS(l.path)))
	replica := start(t, "file:"+away, "--replica")
	require.Len(t, replica.values(t, []byte("key 0000")), 1)
	replica.stop(t)

	require.NoError(t, os.WriteFile(path, last, 0o600))
	l.sound()
	l.start()
	l.holds()
	l.server.stop(t)
}

// A writer that runs goes on until its next commit when MANIFEST is lost, and on when it is put back before.
func TestRepairMANIFESTWhileTheWriterRuns(t *testing.T) {
	for _, back := range []bool{true, false} {
		l := newDamagedLog(t)
		l.append(10)
		path := filepath.Join(l.path, "trees/00000000/MANIFEST")
		last, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		require.Equal(t, engine.DamageMissing, l.damaged(path).Kind)
		l.server.await(t, "the log's head cannot be read")
		l.append(10)
		if back {
			require.NoError(t, os.WriteFile(path, last, 0o600))
			l.sound()
			l.server.stop(t)
		} else {
			require.NoError(t, l.server.cmd.Process.Signal(syscall.SIGTERM))
			require.Equal(t, exitFailure, l.server.status(t), "what is not flushed stays in the WAL")
			require.NoError(t, os.WriteFile(path, last, 0o600))
		}
		l.sound()
		l.start()
		l.holds()
		l.server.stop(t)
	}
}

// A table or an index that is lost without a copy: the rest of the log is served, until retention drops the segment, or
// what remains is copied to a new log.
func TestRepairWithoutTableOrIndex(t *testing.T) {
	for _, what := range []string{"table", "index"} {
		t.Run(what, func(t *testing.T) {
			flags := []string{"--compaction", "off"}
			if what == "index" {
				flags = nil
			}
			l := newDamagedLog(t, flags...)
			for range 12 { // of one key, through all segments
				l.server.mustAppend(t, "all", strings.Repeat("v", 4<<10))
			}
			require.Eventually(t, func() bool { return len(l.objects("sst")) > 2 && (what == "table" || l.groups() > 0) }, patience, 10*time.Millisecond)
			l.server.stop(t)
			in, err := engine.Inspect(t.Context(), openToRead(t, l.path))
			require.NoError(t, err)
			lost := ""
			if what == "index" {
				lost = filepath.Join(l.path, in.Groups[0].Index)
			} else {
				lost = liveTable(t, l.path)
			}
			require.NoError(t, os.Remove(lost))
			a := l.damaged(lost).Affected
			l.start(flags...)

			scan := func(args ...string) (status int, lines []string, stderr string) {
				status, stdout, stderr := runAnnals(t, append(append([]string{"scan", "--json", "--server", l.server.url}, args...), "all")...)
				return status, strings.Split(strings.TrimSpace(stdout), "\n"), stderr
			}
			status, _, stderr := scan()
			require.Equal(t, exitFailure, status)
			require.Contains(t, stderr, filepath.Base(lost))
			l.server.mustAppend(t, "all", "still written")
			status, behind, stderr := scan("--from", fmt.Sprint(a.EndSequence))
			require.Equal(t, exitOK, status, stderr)
			require.Contains(t, behind[len(behind)-1], "still written")
			var before []string
			if a.FirstSequence > 0 {
				status, before, stderr = scan("--to", fmt.Sprint(a.FirstSequence))
				require.Equal(t, exitOK, status, stderr)
			}
			require.Equal(t, 13-int(a.EndSequence-a.FirstSequence), len(before)+len(behind))
			require.Equal(t, []string{"all"}, l.keys(fmt.Sprint("start_segment=", a.LastSegment+1)))
			_ = l.keys(fmt.Sprint("end_segment=", a.FirstSegment)) // none if the damage is in the first
			l.copied(append(before, behind...))
			l.server.stop(t)

			// Retention drops it.
			l.start(append(flags, "--retention-bytes", "8KiB", "--retention-check-interval", "1s", "--segment-interval", "1s")...)
			require.Eventually(t, func() bool {
				l.server.mustAppend(t, "all", strings.Repeat("v", 4<<10))
				_, report, _ := checked(t, l.path)
				return !slices.ContainsFunc(report.Damage, func(d engine.Damage) bool { return d.Affected != nil })
			}, patience, 100*time.Millisecond)
			status, _, stderr = scan()
			require.Equal(t, exitOK, status, stderr)
			l.server.stop(t)
			if what == "table" {
				l.sound()
				return
			}
			require.Contains(t, l.damaged(lost).Message, "cannot be collected")
		})
	}
}

// keys lists the keys of some segments.
func (l *damagedLog) keys(segments string) (keys []string) {
	l.Helper()
	var page struct{ Keys []struct{ Key []byte } }
	l.server.get(l.T, "/api/v1/log/keys?"+segments, &page)
	for _, k := range page.Keys {
		keys = append(keys, string(k.Key))
	}
	return keys
}

// copied loads lines that scan printed to a new log.
func (l *damagedLog) copied(lines []string) {
	l.Helper()
	path := filepath.Join(l.TempDir(), "lines")
	require.NoError(l, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	to := start(l.T, "file:"+l.TempDir()+"/data")
	status, _, stderr := runAnnals(l.T, "append", "--server", to.url, "--file", path)
	require.Equal(l, exitOK, status, stderr)
	require.Len(l, to.values(l.T, []byte("all")), len(lines))
	to.stop(l.T)
}
