package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A fenced server exits after a moment, or stays until it is told to stop or cannot serve.
func TestFencedServerWaits(t *testing.T) {
	for name, c := range map[string]struct {
		stay    bool
		stopped time.Duration // when a signal comes
		broken  time.Duration // when the server fails
		want    time.Duration
	}{
		"exit":               {want: fencedDrain},
		"exit, signal":       {stopped: time.Second, want: time.Second},
		"stay, signal":       {stay: true, stopped: 1000 * time.Hour, want: 1000 * time.Hour},
		"stay, server fails": {stay: true, broken: time.Hour, want: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.stopped > 0 {
					time.AfterFunc(c.stopped, cancel)
				}
				served := make(chan error, 1)
				if c.broken > 0 {
					time.AfterFunc(c.broken, func() { served <- errors.New("broken") })
				}
				began := time.Now()
				(&fenceConfig{stay: c.stay}).wait(ctx, slog.New(slog.DiscardHandler), served)
				require.Equal(t, c.want, time.Since(began))
			})
		})
	}
}

// With --on-fence stay the passed writer is alive, not ready, and does not take the log back.
func TestBinaryFencedServerStays(t *testing.T) {
	store := "file:" + t.TempDir() + "/data"
	first := start(t, store, "--on-fence", "stay")
	second := start(t, store)
	first.await(t, "another writer has taken the log; answering 503 until this server is stopped")
	status, body := request(t, http.MethodGet, first.url+"/-/ready", "")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "fenced")
	status, _ = request(t, http.MethodGet, first.url+"/-/healthy", "")
	require.Equal(t, http.StatusOK, status)
	status, body = second.appendOne(t, "k", "v")
	require.Equal(t, http.StatusOK, status, body)

	require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, exitFenced, first.status(t))
	second.stop(t)
}
