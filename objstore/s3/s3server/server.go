// Package s3server gives tests a real S3 server: versitygw of a pinned version, which it
// builds when it is not there, on a free port and a temporary folder of the test. A test
// may kill it, start it again, and pause it.
//
//	s := s3server.Start(t)
//	store := s.URL("a") // for --store, or s3.ParseURL
//
// ANNALS_TEST_S3 holds the URL of another, running server to use instead, of whatever make:
//
//	s3://BUCKET/PREFIX?endpoint=URL&region=R&path_style=true
//
// with credentials in the AWS environment variables. Nobody can kill that one: tests that must
// leave that out or skip. What they leave in the bucket is for its owner to delete.
//
// versitygw never calls fsync. That it loses nothing when it is killed says nothing about
// a power cut.
package s3server

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	mathrand "math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/annalsdb/annals/internal/child"
)

// Variable names the environment variable with the URL of another server.
const Variable = "ANNALS_TEST_S3"

const (
	bucket = "annals-test"
	region = "us-east-1"
	access = "test"
	secret = "testsecret"
)

// Bounds of a start.
const (
	patience   = 2 * time.Minute // until it listens
	portTries  = 10
	pollEvery  = 5 * time.Millisecond
	dialWithin = time.Second
)

// Server is an S3 server. Its methods may be called from one goroutine at a time.
type Server struct {
	url   *url.URL // of the store that a test begins its prefixes in
	given bool     // it runs already, and is not ours

	binary  string
	address string
	folder  string // the buckets
	sidecar string // attributes, where the file system has none of its own; else empty
	log     string
	process *child.Process
}

// Start returns a server that runs until the test ends. Without one, because versitygw can
// be neither found nor built, it skips the test, or fails it where CI is set.
//
// It sets the AWS environment variables for the test and the processes that it starts.
func Start(t testing.TB) *Server {
	t.Helper()
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	if text := os.Getenv(Variable); text != "" {
		return given(t, text)
	}
	binary := find(t)
	t.Setenv("AWS_ACCESS_KEY_ID", access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_SESSION_TOKEN", "")
	dir := t.TempDir()
	s := &Server{binary: binary, folder: filepath.Join(dir, "buckets"), log: filepath.Join(dir, "log")}
	if err := s.prepare(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("log of the S3 server on %s:\n%s", s.address, child.Tail(s.log))
		}
	})
	if err := s.startAnywhere(); err != nil {
		t.Fatal(err)
	}
	return s
}

// given returns the server that the environment names.
func given(t testing.TB, text string) *Server {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "s3" || u.Host == "" {
		t.Fatalf("%s is not of the form s3://BUCKET/PREFIX?endpoint=URL&region=R&path_style=true", Variable)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return &Server{url: u.JoinPath("test-" + hex.EncodeToString(id[:])), given: true}
}

// prepare makes the bucket, and a folder for attributes if there must be one.
func (s *Server) prepare(dir string) error {
	path := s.Folder()
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("create bucket: %w", err)
	}
	if unix.Setxattr(path, "user.annals", nil, 0) == nil {
		return nil
	}
	s.sidecar = filepath.Join(dir, "sidecar")
	if err := os.Mkdir(s.sidecar, 0o700); err != nil {
		return fmt.Errorf("create folder for attributes: %w", err)
	}
	return nil
}

// URL returns the place of a store, under a prefix of its own.
func (s *Server) URL(prefix string) string { return s.url.JoinPath(prefix).String() }

// URLThrough is URL for a client that reaches the server by way of another address.
func (s *Server) URLThrough(address, prefix string) string {
	u := s.url.JoinPath(prefix)
	q := u.Query()
	q.Set("endpoint", "http://"+address)
	u.RawQuery = q.Encode()
	return u.String()
}

// Given reports whether the server is one that the environment names: it cannot be killed,
// started or paused.
func (s *Server) Given() bool { return s.given }

// Address returns the host and port of its endpoint; empty if a given server's is none to which a client may go
// by way of another address, because its URL names none or it speaks TLS.
func (s *Server) Address() string {
	if !s.given {
		return s.address
	}
	u, err := url.Parse(s.url.Query().Get("endpoint"))
	if err != nil || u.Scheme != "http" {
		return ""
	}
	return u.Host
}

// Folder returns the folder that is the server's bucket: each object is a file in it. Empty for a given server.
func (s *Server) Folder() string {
	if s.given {
		return ""
	}
	return filepath.Join(s.folder, bucket)
}

// Process returns the server's process, to pause it.
func (s *Server) Process() *child.Process { return s.process }

// Kill ends the server as a power cut of its process does. What it had acknowledged stays.
func (s *Server) Kill() {
	if s.process != nil {
		s.process.Kill()
	}
}

// Restart starts a server that was killed again, on the same address and folder.
func (s *Server) Restart() error {
	end := time.Now().Add(patience)
	for {
		err := s.start()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(pollEvery) // somebody may have the port for a moment
	}
}

// startAnywhere starts the server on a port that is free.
func (s *Server) startAnywhere() error {
	var err error
	for range portTries {
		if s.address, err = freeAddress(); err != nil {
			continue
		}
		if err = s.start(); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	s.url, err = url.Parse(fmt.Sprintf("s3://%s?region=%s&path_style=true&endpoint=%s", bucket, region, url.QueryEscape("http://"+s.address)))
	return err
}

// freeAddress returns an address that nobody listens on. Its port is below those that
// systems give to outgoing connections, one of which could have it at a restart.
func freeAddress() (string, error) {
	address := fmt.Sprintf("127.0.0.1:%d", 10_000+mathrand.IntN(20_000))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", fmt.Errorf("look for a port: %w", err)
	}
	return address, l.Close()
}

// start starts the server on its address, and returns when it listens.
func (s *Server) start() error {
	log, err := child.OpenLog(s.log)
	if err != nil {
		return err
	}
	defer log.Close() // the process has it for itself
	args := []string{"--port", s.address, "--quiet", "--keep-alive", "posix"}
	if s.sidecar != "" {
		args = append(args, "--sidecar", s.sidecar)
	}
	cmd := exec.Command(s.binary, append(args, s.folder)...)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+access, "ROOT_SECRET_KEY="+secret)
	cmd.Stdout, cmd.Stderr = log, log
	if s.process, err = child.Start(cmd); err != nil {
		return err
	}
	if err := s.await(); err != nil {
		s.process.Kill()
		return err
	}
	return nil
}

// await returns when the server listens.
func (s *Server) await() error {
	end := time.Now().Add(patience)
	for {
		conn, err := net.DialTimeout("tcp", s.address, dialWithin)
		if err == nil {
			_ = conn.Close()
		}
		select {
		case <-s.process.Ended():
			return fmt.Errorf("start the S3 server on %s: it ended with status %d:\n%s", s.address, s.process.ExitCode(), child.Tail(s.log))
		default:
		}
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("start the S3 server on %s: it does not listen: %w", s.address, err)
		}
		time.Sleep(pollEvery)
	}
}
