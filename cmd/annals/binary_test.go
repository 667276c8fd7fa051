package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests named TestBinary... run the built program as its users do.

// patience bounds every wait for a process. A test that passes never waits that
// long.
const patience = 2 * time.Minute

// dataFile is a real history: 61,221 changes to 6,852 files, in the form that
// append reads.
const dataFile = "testdata/file-history.ndjson.gz"

var binary struct {
	build func() (string, error)
	dir   string
}

func TestMain(m *testing.M) {
	binary.build = sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "annals-test-")
		if err != nil {
			return "", err
		}
		binary.dir = dir
		path := filepath.Join(dir, "annals")
		if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
			return "", fmt.Errorf("build: %w\n%s", err, out)
		}
		return path, nil
	})
	status := m.Run()
	if binary.dir != "" {
		_ = os.RemoveAll(binary.dir)
	}
	os.Exit(status)
}

// annals returns the built program with arguments, in an environment without
// variables of ours.
func annals(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary.build()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...)
	for _, v := range os.Environ() {
		if !bytes.HasPrefix([]byte(v), []byte(variablePrefix)) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

// exitStatus returns how a process ended: its status, or -1 for a signal.
func exitStatus(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	return exit.ExitCode()
}

// runAnnals runs the program to its end.
func runAnnals(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := annals(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	return exitStatus(t, cmd.Run()), out.String(), errs.String()
}

// daemon is a running "annals serve", or "annals compact".
type daemon struct {
	cmd    *exec.Cmd
	url    string
	serves map[string]any // its line at the start

	mu    sync.Mutex
	log   []map[string]any
	grown chan struct{} // closed and renewed with each line
	ended chan struct{} // after the last line
	err   error         // of Wait, once ended is closed
}

// launch starts a server without waiting for anything.
func launch(t *testing.T, store string, args ...string) *daemon {
	t.Helper()
	return background(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--store", store, "--log-format", "json"}, args...)...)
}

// background starts the program without waiting for anything.
func background(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{cmd: annals(t, args...), grown: make(chan struct{}), ended: make(chan struct{})}
	stderr, err := d.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, d.cmd.Start())
	go d.follow(stderr)
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.ended
		if t.Failed() {
			for _, line := range d.log {
				t.Logf("log of %s: %v", d.url, line)
			}
		}
	})
	return d
}

func (d *daemon) follow(stderr io.Reader) {
	in := bufio.NewScanner(stderr)
	for in.Scan() {
		line := make(map[string]any)
		if json.Unmarshal(in.Bytes(), &line) != nil {
			line = map[string]any{"msg": in.Text()}
		}
		d.mu.Lock()
		d.log = append(d.log, line)
		close(d.grown)
		d.grown = make(chan struct{})
		d.mu.Unlock()
	}
	d.err = d.cmd.Wait()
	close(d.ended)
}

// start starts a server and waits until it serves.
func start(t *testing.T, store string, args ...string) *daemon {
	t.Helper()
	d := launch(t, store, args...)
	d.serves = d.await(t, "serving")
	d.url = fmt.Sprint("http://", d.serves["address"])
	return d
}

// await returns the first line of the log with the given message.
func (d *daemon) await(t *testing.T, msg string) map[string]any {
	t.Helper()
	deadline := time.After(patience)
	for {
		d.mu.Lock()
		grown := d.grown
		for _, line := range d.log {
			if line["msg"] == msg {
				d.mu.Unlock()
				return line
			}
		}
		d.mu.Unlock()
		select {
		case <-grown:
		case <-d.ended:
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(d.log) > 0 && d.log[len(d.log)-1]["msg"] == msg {
				return d.log[len(d.log)-1]
			}
			require.FailNow(t, "the server ended before it logged "+msg, "%v: %v", d.err, d.log)
		case <-deadline:
			require.FailNow(t, "the server does not log "+msg)
		}
	}
}

// status waits for the end and returns the exit status, -1 for a signal.
func (d *daemon) status(t *testing.T) int {
	t.Helper()
	select {
	case <-d.ended:
		return exitStatus(t, d.err)
	case <-time.After(patience):
		require.FailNow(t, "the server does not end")
		return 0
	}
}

// stop ends the server as a supervisor does, and wants that to be clean.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, exitOK, d.status(t))
}

// kill ends it as a power cut does.
func (d *daemon) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, d.cmd.Process.Kill())
	<-d.ended
}

// request returns the status and body of an answer.
func request(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(got)
}

// appendOne appends one record by JSON and returns the answer.
func (d *daemon) appendOne(t *testing.T, key, value string) (status int, body string) {
	t.Helper()
	return request(t, http.MethodPost, d.url+"/api/v1/log/append", fmt.Sprintf(`{"records":[{"key":%q,"value":%q}]}`,
		base64.StdEncoding.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString([]byte(value))))
}

var appendedRecords = regexp.MustCompile(`(?m)^log_append_records_total (\S+)$`)

// awaitAppended waits until the server has appended that many records.
func (d *daemon) awaitAppended(t *testing.T, records float64) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, metrics := request(t, http.MethodGet, d.url+"/metrics", "")
		found := appendedRecords.FindStringSubmatch(metrics)
		if found == nil {
			return false
		}
		n, err := strconv.ParseFloat(found[1], 64)
		return err == nil && n >= records
	}, patience, 2*time.Millisecond)
}

// streams are the values of each key, in order.
type streams map[string][]string

// input returns the streams of the first n lines of the data file, all with 0.
func input(t *testing.T, n int) (s streams, lines int) {
	t.Helper()
	f, err := os.Open(dataFile)
	require.NoError(t, err)
	defer f.Close()
	r, err := newLineReader(f, dataFile)
	require.NoError(t, err)
	s = make(streams)
	for n == 0 || lines < n {
		e, err := r.next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		s[string(e.key)] = append(s[string(e.key)], string(e.value))
		lines++
	}
	return s, lines
}

// contents reads all streams back over HTTP. Sequences must rise.
func (d *daemon) contents(t *testing.T) (s streams, records int) {
	t.Helper()
	s = make(streams)
	after := ""
	for {
		var page struct {
			Keys    []struct{ Key []byte }
			NextKey []byte
		}
		d.get(t, "/api/v1/log/keys?limit=10000"+after, &page)
		for _, k := range page.Keys {
			values := d.values(t, k.Key)
			s[string(k.Key)] = values
			records += len(values)
		}
		if page.NextKey == nil {
			return s, records
		}
		after = "&after_b64=" + base64.URLEncoding.EncodeToString(page.NextKey)
	}
}

func (d *daemon) values(t *testing.T, key []byte) (values []string) {
	t.Helper()
	var page struct {
		Values []struct {
			Sequence uint64
			Value    []byte
		}
	}
	d.get(t, "/api/v1/log/scan?limit=10000&key_b64="+base64.URLEncoding.EncodeToString(key), &page)
	for i, v := range page.Values {
		require.True(t, i == 0 || v.Sequence > page.Values[i-1].Sequence)
		values = append(values, string(v.Value))
	}
	return values
}

func (d *daemon) get(t *testing.T, path string, into any) {
	t.Helper()
	status, body := request(t, http.MethodGet, d.url+path, "")
	require.Equal(t, http.StatusOK, status, body)
	require.NoError(t, json.Unmarshal([]byte(body), into))
}
