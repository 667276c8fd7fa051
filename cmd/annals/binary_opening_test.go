package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

// freeAddress returns one that was free a moment ago. Its port is below those that systems give to
// outgoing connections and to whoever asks for any, of which other tests make many.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 10 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err == nil {
			require.NoError(t, l.Close())
			return l.Addr().String()
		}
	}
	require.FailNow(t, "no free port among ten")
	return ""
}

// launchStalled starts a server whose store answers nothing before goOn is
// closed, and returns it once it answers on its port.
func launchStalled(t *testing.T) (d *daemon, goOn chan struct{}) {
	t.Helper()
	goOn = make(chan struct{})
	store := fakeS3(t, s3fake.Bucket, func(*s3fake.Request) s3fake.Action { return s3fake.Action{Wait: goOn} })
	address := freeAddress(t)
	d = launch(t, store, "--listen", address)
	d.url = "http://" + address
	require.Eventually(t, func() bool {
		answer, err := http.Get(d.url + "/-/healthy")
		if err != nil {
			return false
		}
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}, patience, 5*time.Millisecond)
	return d, goOn
}

// A log that takes long to open must not look dead.
func TestBinaryAnswersWhileOpening(t *testing.T) {
	d, goOn := launchStalled(t)
	status, body := request(t, http.MethodGet, d.url+"/-/ready", "")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.JSONEq(t, `{"status":"error","message":"not ready: opening"}`, body)
	status, body = d.appendOne(t, "k", "v")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.JSONEq(t, `{"status":"error","message":"the log is opening","outcome":"not_appended"}`, body)

	close(goOn)
	d.await(t, "serving")
	status, _ = request(t, http.MethodGet, d.url+"/-/ready", "")
	require.Equal(t, http.StatusOK, status)
	status, body = d.appendOne(t, "k", "v")
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, `"startSequence":0`)
	d.stop(t)
}

func TestBinaryStoppedWhileOpening(t *testing.T) {
	d, goOn := launchStalled(t)
	defer close(goOn)
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.await(t, "stopped before the log was open")
	require.Equal(t, exitOK, d.status(t))
}
