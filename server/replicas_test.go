package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

// fakeReplica runs what takes itself for a replica, until the test ends.
func fakeReplica(t *testing.T, answer http.HandlerFunc) string {
	f := httptest.NewServer(answer)
	t.Cleanup(f.Close)
	return f.URL
}

// says answers with a status and a body.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func TestStatusTellsOfReplicas(t *testing.T) {
	store := mem.New(mem.Options{})
	db := openDB(t, store, engine.Options{})
	replica := startReplicaOf(t, store, engine.KeyRange{})
	r := start(t, Options{DB: db, Replicas: []string{replica.url, replica.url + "/"}})
	r.mustAppend("k", "v")
	require.Equal(t, 200, replica.get(scanPath+"?key=k&min_sequence=1").status)

	st := r.status("")
	require.Equal(t, []wire.ReplicaState{{URL: replica.url, Role: "replica", Ready: true, Frontier: 1, LagMs: st.Replicas[0].LagMs},
		{URL: replica.url + "/", Error: "it answered 404: unknown path"}}, st.Replicas)
	require.Nil(t, r.status("?replicas=false").Replicas)
	require.Equal(t, 400, r.get(statusPath+"?replicas=no").status)
}

// Whatever a replica does, the status comes in time and says what it did.
func TestStatusOfBadReplicas(t *testing.T) {
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	logID := fmt.Sprintf("%x", db.Status().LogID)
	dead := httptest.NewServer(nil)
	dead.Close()
	var elsewhere atomic.Int64
	target := fakeReplica(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	_, other := startReplica(t, engine.KeyRange{})
	fenced := start(t, Options{DB: &testDB{DB: db, err: engine.ErrFenced, notOK: engine.ErrFenced}})
	const timeout = 300 * time.Millisecond
	late := "no answer within " + timeout.String()

	cases := []struct {
		name, url string
		want      wire.ReplicaState // Error: a part of it
	}{
		{"dead", dead.URL, wire.ReplicaState{Error: "connection refused"}},
		{"slow", fakeReplica(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), wire.ReplicaState{Error: late}},
		{"slow body", fakeReplica(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("{"))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}), wire.ReplicaState{Error: late}},
		{"huge", fakeReplica(t, func(w http.ResponseWriter, _ *http.Request) {
			piece := []byte(strings.Repeat(" ", 1<<10))
			for { // until nobody reads it
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}), wire.ReplicaState{Error: "longer than 65536 bytes"}},
		{"huge headers", fakeReplica(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", maxReplicaAnswer))
		}), wire.ReplicaState{Error: "server response headers exceeded"}},
		{"cut off", fakeReplica(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		}), wire.ReplicaState{Error: "unexpected EOF"}},
		{"not HTTP's", fakeReplica(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), wire.ReplicaState{Error: "EOF"}},
		{"not JSON", fakeReplica(t, says(200, "<html>")), wire.ReplicaState{Error: "decode status: "}},
		{"something else", fakeReplica(t, says(200, `{"status":"success"}`)), wire.ReplicaState{Error: "not the status of an annals server"}},
		{"a wrong type", fakeReplica(t, says(200, `{"status":"success","role":"replica","frontier":-1}`)), wire.ReplicaState{Error: "decode status: "}},
		{"redirect", fakeReplica(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target, http.StatusTemporaryRedirect)
		}), wire.ReplicaState{Error: "it answered 307, and redirects are not followed"}},
		{"another log", other.url, wire.ReplicaState{Error: "it serves another log"}},
		{"fenced", fenced.url, wire.ReplicaState{Role: "writer", Error: "not ready: " + engine.ErrFenced.Error()}},
		{"refused", fakeReplica(t, says(401, `{"status":"error","message":"no token"}`)), wire.ReplicaState{Error: "it answered 401: no token"}},
		{"no words", fakeReplica(t, says(502, "")), wire.ReplicaState{Error: "it answered 502"}},
		{"many words", fakeReplica(t, says(500, `{"status":"error","message":"`+strings.Repeat("é", 1000)+`"}`)), wire.ReplicaState{Error: "é…"}},
		{"a liar", fakeReplica(t, says(200, `{"status":"success","role":"replica","logId":"`+logID+`","ready":true,"frontier":18446744073709551615,"lagMs":-7}`)),
			wire.ReplicaState{Role: "replica", Ready: true, Frontier: 1<<64 - 1}},
		{"behind", fakeReplica(t, says(200, `{"status":"success","role":"replica","logId":"`+logID+`","ready":false,"reason":"slow","lagMs":40}`)),
			wire.ReplicaState{Role: "replica", LagSequences: 1, LagMs: 40, Error: "not ready: slow"}},
	}
	o := Options{DB: db}
	for _, c := range cases {
		o.Replicas = append(o.Replicas, c.url)
	}
	r := startWith(t, o, func(s *Server) { s.replicas.timeout = timeout })
	r.mustAppend("k", "v")
	got := r.status("").Replicas
	require.Len(t, got, len(cases))
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, got[i].Error, c.want.Error)
			require.Equal(t, c.want.Error == "", got[i].Error == "", got[i].Error)
			require.LessOrEqual(t, len(got[i].Error), maxReplicaError+len("…"))
			c.want.URL, c.want.Error = c.url, got[i].Error
			if c.name == "fenced" {
				c.want.Frontier = got[i].Frontier // the same log
			}
			require.Equal(t, c.want, got[i])
		})
	}
	require.Zero(t, elsewhere.Load(), "a redirect was followed")
}

// Replicas decide for themselves whom they answer, so they get the caller's token; and they are not asked
// for replicas of theirs, or two servers that name each other would ask for ever.
func TestReplicasAreAskedAsTheCaller(t *testing.T) {
	asked := make(chan *http.Request, 1)
	r := start(t, Options{Replicas: []string{fakeReplica(t, func(_ http.ResponseWriter, r *http.Request) { asked <- r })}})
	r.get(statusPath, "Authorization", "Bearer abc", "Cookie", "a=b")
	req := <-asked
	require.Equal(t, "Bearer abc", req.Header.Get("Authorization"))
	require.Empty(t, req.Header.Get("Cookie"))
	require.Equal(t, statusPath+"?replicas=false", req.URL.String())
	r.get(statusPath)
	require.NotContains(t, (<-asked).Header, "Authorization")
}

// A status that asked is as good as the first one, however many asked before and failed.
func TestReplicasAreAskedAgain(t *testing.T) {
	_, replica := startReplica(t, engine.KeyRange{})
	r := start(t, Options{Replicas: []string{replica.url, fakeReplica(t, says(500, ""))}})
	for range replicaSlots + 1 {
		st := r.status("")
		require.Equal(t, "it serves another log", st.Replicas[0].Error)
		require.Equal(t, "it answered 500", st.Replicas[1].Error)
	}
}

func TestReplicasOverTLS(t *testing.T) {
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	inner, err := New(Options{DB: db})
	require.NoError(t, err)
	f := httptest.NewUnstartedServer(inner)
	f.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // one side refuses the other below
	f.StartTLS()
	t.Cleanup(f.Close)
	pool := x509.NewCertPool()
	pool.AddCert(f.Certificate())
	trusting := start(t, Options{DB: db, Replicas: []string{f.URL}, ReplicaTLS: &tls.Config{RootCAs: pool}})
	require.True(t, trusting.status("").Replicas[0].Ready)
	got := start(t, Options{DB: db, Replicas: []string{f.URL}}).status("").Replicas[0]
	require.False(t, got.Ready)
	require.Contains(t, got.Error, "certificate")
}

func TestReplicaOptions(t *testing.T) {
	o := Options{DB: &testDB{}, Replicas: []string{"http://a:1", "https://b/path"}}
	require.NoError(t, o.Validate())
	for _, bad := range []string{"", "a:1", "ftp://a", "http://", "http://user:pass@a", "http://a?b", "http://a#b", "http://a\n"} {
		o.Replicas = []string{bad}
		require.ErrorContains(t, o.Validate(), "Replicas[0] is not a URL", bad)
	}
	o.Replicas = make([]string, MaxReplicas+1)
	for i := range o.Replicas {
		o.Replicas[i] = "http://a"
	}
	require.EqualError(t, o.Validate(), "Replicas names 65; at most 64 are allowed")
}
