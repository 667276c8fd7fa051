package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// However many requests fail, the log does not grow with them, and says how many there were.
func TestBoundedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
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
