package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server"
)

// faltering is a server that answers every other request with one of a few errors, or not at all.
type faltering struct {
	http.Handler
	requests atomic.Int64
}

func (h *faltering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := h.requests.Add(1)
	if n%2 == 0 || r.Method != http.MethodGet {
		h.Handler.ServeHTTP(w, r)
		return
	}
	status := []int{429, 503, 504, 500, 0}[n/2%5]
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
}

func collect[T any](t *testing.T, seq iter.Seq2[T, error]) (out []string) {
	t.Helper()
	for item, err := range seq {
		require.NoError(t, err)
		out = append(out, fmt.Sprint(item))
	}
	return out
}

// The iterators yield all, over pages and failures, each time they are used.
func TestIteratorsSurviveFailures(t *testing.T) {
	db, err := engine.Open(t.Context(), mem.New(mem.Options{}), engine.Options{FlushInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	s, err := server.New(server.Options{DB: db})
	require.NoError(t, err)
	c, ctx := clientOf(t, &faltering{Handler: s}), t.Context()
	var keys, values, cursors, consumers []string
	for i := range 7 {
		key := fmt.Sprintf("key %d", i)
		c.mustAppend(t, "k", fmt.Sprint(i))
		c.mustAppend(t, key, "")
		_, err := c.SetCursors(ctx, fmt.Sprint("consumer ", i), []Cursor{{Key: []byte(key), Next: 5}}, false)
		require.NoError(t, err)
		_, err = c.SetCursors(ctx, "all", []Cursor{{Key: []byte(key), Next: 7}}, false)
		require.NoError(t, err)
		keys, values = append(keys, fmt.Sprint([]byte(key))), append(values, fmt.Sprint(i))
		cursors, consumers = append(cursors, fmt.Sprint(Cursor{Key: []byte(key), Next: 7})), append(consumers, fmt.Sprint("consumer ", i))
	}
	scan := c.ScanAll(ctx, []byte("k"), ScanOptions{Limit: 2, MinSequence: 14})
	for range 2 {
		var got []string
		for v, err := range scan {
			require.NoError(t, err)
			got = append(got, string(v.Value))
		}
		require.Equal(t, values, got)
	}
	require.Equal(t, keys, collect(t, c.KeysAll(ctx, KeysOptions{Prefix: []byte("key"), Limit: 3})))
	require.Equal(t, cursors, collect(t, c.CursorsAll(ctx, "all", CursorsOptions{Limit: 3})))
	require.Equal(t, append([]string{"all"}, consumers...), collect(t, c.ConsumersAll(ctx, ConsumersOptions{Limit: 3})))
	require.Len(t, collect(t, c.SegmentsAll(ctx, SegmentsOptions{Limit: 1})), 1)
	for range c.KeysAll(ctx, KeysOptions{Limit: 3}) {
		break
	}
}

// What fails for now is asked for again for so long, what fails for good is not.
func TestIteratorsGiveUp(t *testing.T) {
	for status, lasts := range map[int]bool{401: false, 403: false, 400: false, 404: false, 421: false, 429: true, 500: true, 502: true, 503: true, 504: true} {
		for _, retryFor := range []time.Duration{0, 10 * time.Second, -1} {
			synctest.Test(t, func(t *testing.T) {
				c, err := New("http://host", Options{HTTP: &http.Client{Transport: sameAnswer{status: status}}, RetryReadsFor: retryFor})
				require.NoError(t, err)
				began := time.Now()
				n := 0
				for _, err := range c.KeysAll(t.Context(), KeysOptions{}) {
					var answer *Error
					require.ErrorAs(t, err, &answer)
					require.Equal(t, status, answer.Status)
					n++
				}
				require.Equal(t, 1, n)
				most := max(0, retryFor)
				if retryFor == 0 {
					most = DefaultRetryReadsFor
				}
				if !lasts {
					most = 0
				}
				require.LessOrEqual(t, time.Since(began), most)
				require.GreaterOrEqual(t, time.Since(began), most-maxRetryWait)
			})
		}
	}
}

// Its context ends an iterator at once; so does the timeout that the caller asked for.
func TestIteratorsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New("http://host", Options{HTTP: &http.Client{Transport: sameAnswer{status: 504}}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		for _, err := range c.ScanAll(ctx, nil, ScanOptions{MinSequence: 1}) {
			require.ErrorIs(t, err, ErrTimeout)
		}
		require.Zero(t, time.Since(began))
		for _, err := range c.ScanAll(ctx, nil, ScanOptions{}) {
			require.ErrorIs(t, err, ErrTimeout)
		}
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

func TestErrorsMatchTheirStatus(t *testing.T) {
	all := []error{ErrInvalid, ErrUnauthorized, ErrForbidden, ErrNotFound, ErrConflict, ErrOutOfRange, ErrOverloaded, ErrUnavailable, ErrTimeout}
	for status, want := range map[int]error{
		400: ErrInvalid, 413: ErrInvalid, 401: ErrUnauthorized, 403: ErrForbidden, 404: ErrNotFound, 409: ErrConflict,
		421: ErrOutOfRange, 429: ErrOverloaded, 502: ErrUnavailable, 503: ErrUnavailable, 504: ErrTimeout, 418: nil, 500: nil,
	} {
		for _, err := range all {
			wrapped := fmt.Errorf("scan: %w", &ConflictError{Answer: &Error{Status: status}})
			require.Equal(t, err == want, errors.Is(wrapped, err), "%d is %v", status, err)
		}
	}
	require.False(t, (&Error{Status: 500}).Is(nil))
}
