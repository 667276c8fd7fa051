package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/wire"
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
			to, err := newOutlet(appendConfig{connection: connection{server: s.URL}})
			require.NoError(t, err)
			err = to.send(t.Context(), []entry{{1, []byte("k"), []byte("v")}})
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
	to, err := newOutlet(appendConfig{connection: connection{server: s.URL}})
	require.NoError(t, err)
	batch := []entry{{1, []byte("k"), []byte("v")}}
	err = to.send(t.Context(), batch)
	require.Error(t, err)
	var e *sendError
	require.False(t, errors.As(err, &e))
	s.Close()

	// One that was never made does not, and is not waited for.
	to, err = newOutlet(appendConfig{connection: connection{server: "http://" + freeAddress(t)}})
	require.NoError(t, err)
	require.ErrorAs(t, to.send(t.Context(), batch), &e)
	require.False(t, e.retry)
}

// What the flags ask for is in each request; a producer sends one again by itself.
func TestAppendsOnConditionAndNumbered(t *testing.T) {
	var got []*wire.AppendBody
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m := &wire.AppendBody{}
		if err := m.UnmarshalProtobuf(body); err != nil {
			panic(err)
		}
		got = append(got, m)
		if len(got) == 2 {
			panic(http.ErrAbortHandler) // the answer is lost
		}
		if len(got) == 4 {
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"status":"error","message":"as told","key":"aw==","lastSequence":9}`)
		}
	}))
	defer s.Close()
	expected := uint64(9)
	to, err := newOutlet(appendConfig{connection: connection{server: s.URL}, producer: "p", producerSeq: 5, expectNext: &expected})
	require.NoError(t, err)
	batch := []entry{{1, []byte("k"), []byte("v")}, {2, []byte("l"), nil}, {3, []byte("k"), nil}}
	require.NoError(t, to.send(t.Context(), batch))
	require.NoError(t, to.send(t.Context(), batch[:1]))
	require.Equal(t, uint64(7), to.number())
	err = to.send(t.Context(), batch[:1])
	var refused *sendError
	require.ErrorAs(t, err, &refused)
	require.False(t, refused.retry)
	require.ErrorContains(t, err, "key k: append: the server answered 409 Conflict: as told")
	require.Equal(t, uint64(7), to.number())
	require.Len(t, got, 4)
	for i, number := range []uint64{5, 6, 6, 7} {
		require.Equal(t, "p", *got[i].ProducerID)
		require.Equal(t, number, *got[i].ProducerSeq)
		require.True(t, *got[i].AwaitDurable)
		require.Equal(t, expected, got[i].ExpectedNext[0].Sequence)
	}
	require.Len(t, got[0].ExpectedNext, 2, "each key once")
	require.Equal(t, got[1], got[2])
}
