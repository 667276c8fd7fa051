package ui_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server"
	"github.com/annalsdb/annals/server/ui"
)

// served is a server over a log in memory, which can be stopped and started again on its port.
type served struct {
	t       *testing.T
	store   objstore.Store
	engine  engine.Options
	options server.Options
	address string

	db   *engine.DB
	stop func()
}

// serve runs a server with options until the test ends.
func serve(t *testing.T, o server.Options) *served {
	s := &served{t: t, store: mem.New(mem.Options{}), options: o, address: "127.0.0.1:0",
		engine: engine.Options{FlushInterval: time.Millisecond, DisableCompaction: true}}
	t.Cleanup(func() {
		if s.stop != nil {
			s.stop()
		}
	})
	s.start(nil)
	return s
}

// start opens the log and serves it. The front, if there is one, answers already.
func (s *served) start(front *server.Front) {
	s.t.Helper()
	var err error
	s.db, err = engine.Open(context.Background(), s.store, s.engine)
	require.NoError(s.t, err)
	o := s.options
	o.DB, o.Front = s.db, front
	srv, err := server.New(o)
	require.NoError(s.t, err)
	var done sync.WaitGroup
	if front == nil {
		l := s.listen()
		done.Go(func() { _ = srv.Serve(l) })
	}
	s.stop = func() {
		s.stop = nil
		require.NoError(s.t, srv.Shutdown(context.Background()))
		done.Wait()
		require.NoError(s.t, s.db.Close(context.Background()))
	}
}

// listen listens on the server's port: the same each time.
func (s *served) listen() net.Listener {
	s.t.Helper()
	l, err := net.Listen("tcp", s.address)
	require.NoError(s.t, err)
	s.address = l.Addr().String()
	return l
}

func (s *served) origin() string { return "http://" + s.address }

// append appends records, given as key, value, key, value, in one batch, and returns the first one's sequence.
func (s *served) append(pairs ...string) uint64 {
	s.t.Helper()
	var recs []engine.Record
	for i := 0; i < len(pairs); i += 2 {
		recs = append(recs, engine.Record{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
	}
	res, err := s.db.Append(s.t.Context(), recs, engine.AppendOptions{})
	require.NoError(s.t, err)
	return res.First
}

// appendMany appends n records of a key, with their numbers as values.
func (s *served) appendMany(key string, n int) {
	s.t.Helper()
	var pairs []string
	for i := range n {
		pairs = append(pairs, key, fmt.Sprint("value ", i))
	}
	s.append(pairs...)
}

// canned serves the page with answers of the API that a test made up.
func canned(t *testing.T, answer func(path string) (status int, body string)) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ui" {
			ui.SetHeaders(w.Header())
			w.Header().Set("Content-Type", ui.ContentType)
			_, _ = w.Write(ui.Document()) // the browser says what is missing
			return
		}
		status, body := answer(r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.URL
}
