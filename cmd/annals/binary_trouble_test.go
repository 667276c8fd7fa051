package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/s3"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

// weather is what an S3 server does to requests, as a test says.
type weather struct {
	mu   sync.Mutex
	hook func(*s3fake.Request) s3fake.Action
}

func (w *weather) set(hook func(*s3fake.Request) s3fake.Action) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = hook
}

func (w *weather) do(r *s3fake.Request) s3fake.Action {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hook == nil {
		return s3fake.Action{}
	}
	return w.hook(r)
}

// denies answers "access denied" to one operation, or all, on keys with a part in them.
func denies(op s3fake.Op, part string) func(*s3fake.Request) s3fake.Action {
	return func(r *s3fake.Request) s3fake.Action {
		if (op == "" || r.Op == op) && strings.Contains(r.Key, part) {
			return s3fake.Fail(http.StatusForbidden, "AccessDenied")
		}
		return s3fake.Action{}
	}
}

// readiness waits until /-/ready has a status, and returns what it says.
func (d *daemon) readiness(t *testing.T, want int) (says string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var status int
		status, says = request(t, http.MethodGet, d.url+"/-/ready", "")
		return status == want
	}, patience, 20*time.Millisecond)
	return says
}

// A permission is lost while the process runs, and comes back: not ready, in words that say which; a line when it begins
// and one when it ends; nothing acknowledged is lost, and nobody restarts anything.
func TestBinaryLosesPermission(t *testing.T) {
	for _, test := range []struct {
		name string
		hook func(*s3fake.Request) s3fake.Action
		kind engine.TroubleKind
		says string
		ack  int // what an append meanwhile is answered
	}{
		{"to write anything", denies(s3fake.PutObject, ""), engine.NotDurable, "put trees/00000000/wal/", http.StatusGatewayTimeout},
		{"to write tables", denies(s3fake.PutObject, "/sst/"), engine.TablesUnwritable, "put trees/00000000/sst/", http.StatusOK},
		{"to do anything", denies("", ""), engine.NotDurable, "put trees/00000000/wal/", http.StatusGatewayTimeout},
	} {
		t.Run(test.name, func(t *testing.T) {
			var w weather
			store := fakeS3(t, s3fake.Bucket, w.do)
			d := start(t, store, "--append-timeout", "500ms", "--memtable-bytes", "65536")
			value := strings.Repeat("v", 100<<10) // a memtable
			status, body := d.appendOne(t, "k", value)
			require.Equal(t, http.StatusOK, status, body)
			d.readiness(t, http.StatusOK)

			w.set(test.hook)
			status, body = d.appendOne(t, "k", value)
			require.Equal(t, test.ack, status, body)
			if status != http.StatusOK {
				require.Contains(t, body, `"outcome":"unknown"`)
				require.Contains(t, body, "access denied")
			}
			says := d.readiness(t, http.StatusServiceUnavailable)
			require.Contains(t, says, "not ready: "+test.kind.Says()+": ")
			require.Contains(t, says, test.says)
			require.Contains(t, says, "access denied: status 403 AccessDenied")
			line := d.await(t, test.kind.Says())
			require.Equal(t, "WARN", line["level"])
			require.Contains(t, line["error"], "access denied")
			require.Equal(t, 1.0, d.metric(t, fmt.Sprintf(`annals_trouble\{kind="%s"\}`, test.kind)))
			require.NotZero(t, d.metric(t, `annals_store_requests_total\{op="put",result="denied"\}`))

			w.set(nil)
			d.readiness(t, http.StatusOK)
			d.await(t, test.kind.Says()+": over")
			status, body = d.appendOne(t, "k", "after")
			require.Equal(t, http.StatusOK, status, body)
			require.Equal(t, []string{value, value, "after"}, d.values(t, []byte("k")), "what was unknown came to be written")
			require.Zero(t, d.metric(t, `annals_trouble\{kind="[a-z_]+"\}`))
			d.stop(t)
			requireSound(t, store)
		})
	}
}

// requireSound checks the whole log.
func requireSound(t *testing.T, url string) {
	t.Helper()
	options, err := s3.ParseURL(url)
	require.NoError(t, err)
	store, err := s3.Open(t.Context(), options)
	require.NoError(t, err)
	report, err := engine.Check(context.Background(), store, engine.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Damage)
}

// Credentials expire, and are renewed in the file that they came from.
func TestBinaryCredentialsExpire(t *testing.T) {
	var w weather
	accepts := func(id string) {
		w.set(func(r *s3fake.Request) s3fake.Action {
			if strings.Contains(r.Header.Get("Authorization"), "Credential="+id+"/") {
				return s3fake.Action{}
			}
			return s3fake.Fail(http.StatusBadRequest, "ExpiredToken")
		})
	}
	file := filepath.Join(t.TempDir(), "credentials")
	writes := func(id string) {
		text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = secret\n", id)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	writes("first")
	accepts("first")
	store := fakeS3(t, s3fake.Bucket, w.do)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		t.Setenv(name, "") // to be restored
		require.NoError(t, os.Unsetenv(name))
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	d := start(t, store, "--append-timeout", "500ms")
	replica := start(t, store, "--replica")
	status, body := d.appendOne(t, "k", "before")
	require.Equal(t, http.StatusOK, status, body)

	accepts("second")
	status, body = d.appendOne(t, "k", "meanwhile")
	require.Equal(t, http.StatusGatewayTimeout, status, body)
	for _, p := range []*daemon{d, replica} {
		require.Contains(t, p.readiness(t, http.StatusServiceUnavailable), "no valid credentials: status 400 ExpiredToken")
	}
	require.Contains(t, d.await(t, "records cannot be made durable")["error"], "no valid credentials")
	require.Contains(t, replica.await(t, "the log's head cannot be read")["error"], "no valid credentials")

	writes("second")
	for _, p := range []*daemon{d, replica} {
		p.readiness(t, http.StatusOK)
	}
	d.await(t, "records cannot be made durable: over")
	replica.await(t, "the log's head cannot be read: over")
	require.Equal(t, []string{"before", "meanwhile"}, d.values(t, []byte("k")))
	require.Eventually(t, func() bool { return len(replica.values(t, []byte("k"))) == 2 }, patience, 20*time.Millisecond)
	d.stop(t)
	replica.stop(t)
}

// What only housekeeping needs is told, and no reason not to be ready.
func TestBinaryLosesPermissionToDelete(t *testing.T) {
	var w weather
	d := start(t, fakeS3(t, s3fake.Bucket, w.do), "--memtable-bytes", "65536", "--gc-interval", "1s")
	w.set(denies(s3fake.DeleteObjects, ""))
	status, body := d.appendOne(t, "k", strings.Repeat("v", 100<<10))
	require.Equal(t, http.StatusOK, status, body)
	line := d.await(t, "garbage cannot be collected")
	require.Contains(t, line["error"], "access denied")
	d.readiness(t, http.StatusOK)
	require.Equal(t, 1.0, d.metric(t, `annals_trouble\{kind="garbage"\}`))
	w.set(nil)
	d.await(t, "garbage cannot be collected: over")
	d.stop(t)
}

// The disk that a log in a folder is on is full, and has room again.
func TestBinaryStoreDiskFull(t *testing.T) {
	disk := smallDisk(t, 8<<20)
	d := start(t, "file:"+filepath.Join(disk, "log"), "--append-timeout", "500ms")
	status, body := d.appendOne(t, "k", "before")
	require.Equal(t, http.StatusOK, status, body)
	others := filepath.Join(disk, "of somebody else")
	require.Error(t, os.WriteFile(others, make([]byte, 8<<20), 0o600))

	status, body = d.appendOne(t, "k", strings.Repeat("v", 1<<20))
	require.Equal(t, http.StatusGatewayTimeout, status, body)
	require.Contains(t, body, `"outcome":"unknown"`)
	says := d.readiness(t, http.StatusServiceUnavailable)
	require.Contains(t, says, "not ready: records cannot be made durable: ")
	require.Contains(t, says, "no space left")
	d.await(t, "records cannot be made durable")
	require.Equal(t, []string{"before"}, d.values(t, []byte("k")), "reads go on")

	require.NoError(t, os.Remove(others))
	d.readiness(t, http.StatusOK)
	d.await(t, "records cannot be made durable: over")
	require.Len(t, d.values(t, []byte("k")), 2)
	d.stop(t)
}
