package server

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// lines is what was logged, by any goroutine.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// However many requests fail, the log does not grow with them, and says how many there were.
func TestBoundedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		l := boundedLog{log: slog.New(slog.NewTextHandler(&out, nil)), says: "request failed", more: "more requests failed"}
		for range 1000 {
			l.write("endpoint", "/e")
		}
		require.Equal(t, boundedLines, strings.Count(out.String(), `msg="request failed" endpoint=/e`))
		time.Sleep(boundedWindow)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(out.String(), `msg="more requests failed" left_out=980 in=1m0s`))
		l.write("endpoint", "/e")
		require.Equal(t, boundedLines+1, strings.Count(out.String(), `msg="request failed" endpoint=/e`))
		time.Sleep(boundedWindow)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(out.String(), "left_out"), "none was left out")
	})
}
