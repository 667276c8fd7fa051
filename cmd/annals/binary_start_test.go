package main

import (
	"bufio"
	le "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

// hangingRequest begins an append whose body never ends, and returns once the
// server reads it.
func hangingRequest(t *testing.T, d *daemon) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST /api/v1/log/append HTTP/1.1\r\nHost: annals\r\n"+
		"Content-Type: application/json\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(t, err)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 100 Continue\r\n", answer)
	return conn
}

// refuses starts a server that must not start, and returns the one line in
// which it says why.
func refuses(t *testing.T, store string, args ...string) string {
	t.Helper()
	d := launch(t, store, args...)
	require.Equal(t, exitFailure, d.status(t))
	require.Len(t, d.log, 1, "%v", d.log)
	require.Equal(t, "stopped", d.log[0]["msg"])
	return fmt.Sprint(d.log[0]["error"])
}

// All faults are reported at once, and nothing is started.
func TestBinaryBadFlags(t *testing.T) {
	dir := t.TempDir()
	cmd := annals(t, "serve", "--store", "file:data", "--listen", "8080", "--ack=maybe", "--nonsense", "x",
		"--flush-interval", "-5ms", "--wal-object-bytes=0", "--segment-bytes", "1MiB", "extra", "--body-limit")
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "ANNALS_CACHE_BYTES=plenty", "ANNALS_LISTEN=also bad but the flag wins",
		"ANNALS_SEGMENT_MIN_BYTES=2MiB", "ANNALS_TEST_S3=s3://x")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.Equal(t, exitUsage, exitStatus(t, cmd.Run()))
	require.Equal(t, `annals serve: 9 faults:
  --listen: "8080" is not an address such as 127.0.0.1:8080
  --ack: "maybe" is not one of: durable, memory
  unknown flag --nonsense
  --flush-interval: "-5ms" is out of range: a duration is above 0
  --wal-object-bytes: "0" is out of range: a size is above 0 and below 4EiB
  --body-limit needs a value
  ANNALS_CACHE_BYTES: "plenty" is not a size such as 64MiB
  unexpected argument "extra"
  --segment-min-bytes (2097152) is above --segment-bytes (1048576)
Run "annals serve --help" for the flags.
`, stderr.String())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBinaryPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	dir := t.TempDir()
	line := refuses(t, "file:"+dir+"/data", "--listen", taken.Addr().String())
	require.Contains(t, line, taken.Addr().String())
	require.Contains(t, line, "address already in use")
	require.NoDirExists(t, dir+"/data", "the port comes first")
}

func TestBinaryUnusableDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	// Permissions do not stop root; what is not a directory does.
	require.Contains(t, refuses(t, "file:"+file), file)
	require.Contains(t, refuses(t, "file:"+file+"/data"), file)
	require.Contains(t, refuses(t, "file:/proc/annals"), "/proc/annals")
}

// fakeS3 returns a --store in a fake server, which answers as the hook says.
func fakeS3(t *testing.T, bucket string, hook func(*s3fake.Request) s3fake.Action) string {
	t.Helper()
	s := s3fake.New(t)
	s.SetHook(hook)
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testsecret")
	return "s3://" + bucket + "/p?region=us-east-1&path_style=true&endpoint=" + url.QueryEscape(s.URL)
}

func TestBinaryUnusableBucket(t *testing.T) {
	for _, test := range []struct {
		name, bucket, want string
		hook               func(*s3fake.Request) s3fake.Action
	}{
		{"missing", "no-such-bucket", "no such bucket",
			func(*s3fake.Request) s3fake.Action { return s3fake.Action{} }},
		{"denied", s3fake.Bucket, "access denied",
			func(*s3fake.Request) s3fake.Action { return s3fake.Fail(http.StatusForbidden, "AccessDenied") }},
		{"ignores conditions", s3fake.Bucket, "conditional writes",
			func(*s3fake.Request) s3fake.Action { return s3fake.Action{IgnoreConditions: true} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			line := refuses(t, fakeS3(t, test.bucket, test.hook))
			require.Contains(t, line, test.want)
			require.Contains(t, line, "s3://"+test.bucket+"/p")
		})
	}
}

// crashed returns a directory store whose server was killed with one record in
// the WAL.
func crashed(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir() + "/data"
	d := start(t, "file:"+dir)
	status, body := d.appendOne(t, "k", "acknowledged")
	require.Equal(t, http.StatusOK, status, body)
	d.kill(t)
	return dir
}

// A wrong byte is named, with its object, and nothing is lost: with the right
// byte back the record is there.
func TestBinaryWrongByte(t *testing.T) {
	for name, object := range map[string]string{
		"LOG":      base.LogName,
		"MANIFEST": base.ManifestName(0),
		"WAL":      base.WALName(0, 1, 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := crashed(t)
			path := filepath.Join(dir, object)
			right, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, at := range []int{0, len(right) / 2, len(right) - 1} {
				wrong := append([]byte(nil), right...)
				wrong[at] ^= 0x10
				require.NoError(t, os.WriteFile(path, wrong, 0o600))
				line := refuses(t, "file:"+dir)
				require.Contains(t, line, object)
				require.Contains(t, line, "corrupt object")
				left, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, wrong, left, "a damaged object is left as it is")
			}
			require.NoError(t, os.WriteFile(path, right, 0o600))
			d := start(t, "file:"+dir)
			require.Equal(t, []string{"acknowledged"}, d.values(t, []byte("k")))
			d.stop(t)
		})
	}
}

// LOG without MANIFEST is damage, never an empty log.
func TestBinaryMissingManifest(t *testing.T) {
	dir := crashed(t)
	require.NoError(t, os.Remove(filepath.Join(dir, base.ManifestName(0))))
	require.Contains(t, refuses(t, "file:"+dir), base.ManifestName(0))
	require.NoFileExists(t, filepath.Join(dir, base.ManifestName(0)))
}

// A log of another format version is left alone, and the line says which it is.
func TestBinaryOtherFormatVersion(t *testing.T) {
	const versionOffset, sumBytes = 8, 8 // of LOG and MANIFEST: docs/format/manifest.md
	for object, seed := range map[string]string{base.LogName: "LOG", base.ManifestName(0): "MANIFEST"} {
		dir := crashed(t)
		path := filepath.Join(dir, object)
		body, err := os.ReadFile(path)
		require.NoError(t, err)
		body[versionOffset] += 8
		checked := body[:len(body)-sumBytes]
		le.LittleEndian.PutUint64(body[len(checked):], base.Checksum(base.Seed([]byte(seed), 0), checked))
		require.NoError(t, os.WriteFile(path, body, 0o600))
		line := refuses(t, "file:"+dir)
		require.Contains(t, line, object)
		require.Contains(t, line, "format version 9")
	}
}
