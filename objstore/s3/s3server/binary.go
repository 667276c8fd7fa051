package s3server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Version is the version of versitygw that tests run against.
const Version = "v1.8.0"

// BinaryVariable names the environment variable with the path of a versitygw that is
// there already.
const BinaryVariable = "ANNALS_VERSITYGW"

const module = "github.com/versity/versitygw/cmd/versitygw"

// buildWithin bounds a build: about two minutes with an empty cache of modules.
const buildWithin = 8 * time.Minute

// found is the binary, looked for once in a process.
var found = sync.OnceValues(look)

// find returns the path of versitygw. Where it can be had neither way, the test is skipped,
// or fails where CI is set.
func find(t testing.TB) string {
	t.Helper()
	path, err := found()
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("no S3 server to test against: %v", err)
	default:
		t.Skipf("no S3 server to test against; %s may hold the path of a versitygw, or %s the URL of another server: %v", BinaryVariable, Variable, err)
	}
	return path
}

// look returns the path of the binary: that which the environment names, or the one in
// the user's cache folder, which it builds if it is not there.
func look() (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return exec.LookPath(path)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("look for versitygw: %w", err)
	}
	return install(filepath.Join(cache, "annals", "versitygw-"+Version), build)
}

// install returns the path of the binary in dir. If it is not there build puts it there,
// of all processes at the same time in one of them.
func install(dir string, build func(dir string) error) (string, error) {
	path := filepath.Join(dir, "versitygw")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create cache folder: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil // another process was first
	}
	// Under another name until it is whole.
	temp, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", fmt.Errorf("create build folder: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := build(temp); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(temp, "versitygw"), path); err != nil {
		return "", fmt.Errorf("move versitygw into the cache: %w", err)
	}
	return path, nil
}

// build installs the pinned version into a folder.
func build(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), buildWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "install", module+"@"+Version)
	// As anybody would build it, whatever this test was built with.
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "GOOS=", "GOARCH=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build versitygw: %w\n%s", err, out)
	}
	return nil
}

// lock waits for a lock of the file, and returns how to give it back. It goes with the process.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}
