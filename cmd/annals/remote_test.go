package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What an answer to an append means for the load.
func TestAppendAnswers(t *testing.T) {
	const refused, retried, unknown = "refused", "retried", "unknown"
	for _, test := range []struct {
		status  int
		outcome string
		after   string
		want    string
	}{
		{400, "", "", refused},
		{413, "", "", refused},
		{404, "", "", refused},
		{429, "", "7", retried},
		{503, "not_appended", "", retried},
		{503, "unknown", "", unknown},
		{503, "", "", unknown}, // a proxy's: nobody knows
		{504, "unknown", "", unknown},
		{504, "not_appended", "", refused},
		{500, "unknown", "", unknown},
		{502, "", "", unknown},
	} {
		t.Run(fmt.Sprint(test.status, test.outcome), func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if test.after != "" {
					w.Header().Set("Retry-After", test.after)
				}
				w.WriteHeader(test.status)
				fmt.Fprintf(w, `{"status":"error","message":"as told"`)
				if test.outcome != "" {
					fmt.Fprintf(w, `,"outcome":%q`, test.outcome)
				}
				fmt.Fprint(w, "}")
			}))
			defer s.Close()
			send, err := newAppendFunc(s.URL)
			require.NoError(t, err)
			err = send(t.Context(), []entry{{1, []byte("k"), []byte("v")}})
			require.ErrorContains(t, err, "as told")
			var e *sendError
			switch {
			case !errors.As(err, &e):
				require.Equal(t, test.want, unknown)
			case e.retry:
				require.Equal(t, test.want, retried)
			default:
				require.Equal(t, test.want, refused)
			}
			if test.after != "" {
				require.Equal(t, 7*time.Second, e.after)
			}
		})
	}
}

func TestAppendConnections(t *testing.T) {
	// A connection that breaks behind the request leaves the outcome unknown.
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	send, err := newAppendFunc(s.URL)
	require.NoError(t, err)
	batch := []entry{{1, []byte("k"), []byte("v")}}
	err = send(t.Context(), batch)
	require.Error(t, err)
	var e *sendError
	require.False(t, errors.As(err, &e))
	s.Close()

	// One that was never made does not, and is not waited for.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	send, err = newAppendFunc("http://" + free.Addr().String())
	require.NoError(t, err)
	require.ErrorAs(t, send(t.Context(), batch), &e)
	require.False(t, e.retry)
}
