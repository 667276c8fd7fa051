// Package binary builds the program of the module above, and runs it, for tests that hold the files of this module
// against it.
package binary

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startTime bounds how long a server may take to say that it serves, and stopTime how long to end.
const (
	startTime = 30 * time.Second
	stopTime  = 60 * time.Second
)

// Root returns the root of the clone.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// Build writes the program to a file, as deploy/Dockerfile builds it for this machine's processor and the given system.
func Build(file, goos string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "./cmd/annals")
	cmd.Dir = Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build annals: %w\n%s", err, out)
	}
	return nil
}

// Main builds the program for the tests of a package, runs them, and exits. path is where the program will be.
func Main(m *testing.M, path *string) {
	folder, err := os.MkdirTemp("", "annals-deploy-")
	if err == nil {
		*path = filepath.Join(folder, "annals")
		err = Build(*path, runtime.GOOS)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(status)
}

// Run runs the program to its end and returns its exit status and what it printed on both outputs.
func Run(t *testing.T, path string, environ []string, args ...string) (status int, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = environ
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", path, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// A Server is "annals serve" that runs.
type Server struct {
	URL   string // such as http://127.0.0.1:1234
	Token string // sent with requests, unless it is empty

	cmd     *exec.Cmd
	exited  chan error // gets how it ended, once
	stopped bool       // of the test's goroutine
}

// Start runs "annals serve" with flags on a free loopback port, waits until it serves, and stops it with the test. Its
// log goes to the test's.
func Start(t *testing.T, path string, environ []string, flags ...string) *Server {
	t.Helper()
	args := append([]string{"serve", "--listen", "127.0.0.1:0", "--log-format", "json"}, flags...)
	cmd := exec.Command(path, args...)
	cmd.Env = environ
	return StartCommand(t, cmd)
}

// StartCommand is Start for a command that runs "annals serve --log-format json" somehow.
func StartCommand(t *testing.T, cmd *exec.Cmd) *Server {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &Server{cmd: cmd, exited: make(chan error, 1)}
	address := make(chan string, 1)
	go func() {
		s.follow(t, stderr, address)
		s.exited <- cmd.Wait()
	}()
	t.Cleanup(func() { s.Stop(t) })
	select {
	case a := <-address:
		s.URL = "http://" + a
	case err := <-s.exited:
		s.stopped = true
		t.Fatalf("annals serve ended before it served: %v", err)
	case <-time.After(startTime):
		t.Fatal("annals serve does not say that it serves")
	}
	return s
}

// follow copies the server's log to the test's, and takes the address out of it.
func (s *Server) follow(t *testing.T, stderr io.Reader, address chan<- string) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		t.Logf("annals: %s", lines.Text())
		var line struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			address <- line.Address
		}
	}
}

// Stop ends the server cleanly. It may be called again.
func (s *Server) Stop(t *testing.T) {
	t.Helper()
	if s.stopped {
		return
	}
	s.stopped = true
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-s.exited:
		if err != nil {
			t.Errorf("annals serve: %v", err)
		}
	case <-time.After(stopTime):
		_ = s.cmd.Process.Kill()
		t.Errorf("annals serve does not stop")
	}
}

// Get returns the body of a GET that succeeds.
func (s *Server) Get(t *testing.T, path string) []byte {
	t.Helper()
	return s.do(t, http.MethodGet, path, nil)
}

// Post returns the body of a POST of JSON that succeeds.
func (s *Server) Post(t *testing.T, path string, body io.Reader) []byte {
	t.Helper()
	return s.do(t, http.MethodPost, path, body)
}

// PostInto is Post, and decodes the answer.
func (s *Server) PostInto(t *testing.T, path, body string, answer any) {
	t.Helper()
	if err := json.Unmarshal(s.Post(t, path, strings.NewReader(body)), answer); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) do(t *testing.T, method, path string, body io.Reader) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.Token != "" {
		req.Header.Set("Authorization", "Bearer "+s.Token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s: %s (%v)", method, path, resp.Status, answer, err)
	}
	return answer
}

// FreeAddress returns a loopback address on which nothing listens.
func FreeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
